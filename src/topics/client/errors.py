"""What a client raises.

    TopicsError
    ├── ApiError                the server answered with an error: status, code, message, detail, method, path
    │   ├── InvalidRequest …    one class per code; each is also the class of that name in topics.errors
    │   └── ServerFault         500 internal: the call left nothing visible behind
    └── ClientError             there is no usable answer
        ├── ConnectionFailed    no connection, or it broke; `was_sent`: the server may have carried the call out
        │   └── CannotConnect   and trying again would not help: unknown host, refused certificate, wrong scheme
        ├── ClientClosed        the client was closed, before the call or during it
        ├── DeadlineExceeded    the time for the call is over; `was_sent` as above
        ├── UnexpectedAnswer    the answer is not one of this API
        ├── WatchEnded          the server ended a watch for good
        └── TopicOnSeveralServers   of a fleet: a name belongs to one server

So `except topics.errors.TopicFull` catches a full topic, whether a client or an engine raises it. All of them can be
pickled. None holds a key: a request is named by its method and path alone.
"""

from collections.abc import Sequence
from typing import Any, Final

from topics import errors
from topics.errors import TopicsError


class ApiError(TopicsError):
    """The server refused the call, or failed to carry it out. `str` names the request."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        detail: dict[str, Any] | None = None,
        method: str = "",
        path: str = "",
        retry_after_ms: int | None = None,
    ) -> None:
        Exception.__init__(self, f"{method} {path}: {status} {code}: {message}")
        self.message = message
        self.status = status
        self.code = code
        self.detail = detail or {}
        self.method = method
        self.path = path
        self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


class InvalidRequest(ApiError, errors.InvalidRequest):
    pass


class BatchTooLarge(InvalidRequest, errors.BatchTooLarge):
    pass


class RecordTooLarge(InvalidRequest, errors.RecordTooLarge):
    pass


class Unauthorized(ApiError, errors.Unauthorized):
    pass


class Forbidden(ApiError, errors.Forbidden):
    pass


class NotFound(ApiError, errors.NotFound):
    pass


class TopicNotFound(NotFound, errors.TopicNotFound):
    pass


class RouterNotFound(NotFound, errors.RouterNotFound):
    pass


class MethodNotAllowed(ApiError, errors.MethodNotAllowed):
    pass


class NotAcceptable(ApiError, errors.NotAcceptable):
    pass


class TopicIncompatible(ApiError, errors.TopicIncompatible):
    pass


class TopicNotEmpty(ApiError, errors.TopicNotEmpty):
    pass


class NotAQueue(ApiError, errors.NotAQueue):
    pass


class NoDeadLetter(ApiError, errors.NoDeadLetter):
    pass


class EpochMismatch(ApiError, errors.EpochMismatch):
    pass


class CursorMoved(ApiError, errors.CursorMoved):
    pass


class IdempotencyMismatch(ApiError, errors.IdempotencyMismatch):
    pass


class RouterCycle(ApiError, errors.RouterCycle):
    pass


class PayloadTooLarge(ApiError, errors.PayloadTooLarge):
    pass


class UnsupportedMedia(ApiError, errors.UnsupportedMedia):
    pass


class TopicFull(ApiError, errors.TopicFull):
    pass


class Throttled(ApiError, errors.Throttled):
    pass


class NotReady(ApiError, errors.NotReady):
    pass


class ShuttingDown(ApiError, errors.ShuttingDown):
    pass


class ServerFault(ApiError, errors.StorageError):
    pass


class ClientError(TopicsError):
    """There is no answer, or none that tells what became of the call."""

    code = "client"
    status = 0

    def __init__(self, message: str, *, method: str = "", path: str = "", was_sent: bool = False) -> None:
        Exception.__init__(self, f"{method} {path}: {message}" if method else message)
        self.message = message
        self.detail = {}
        self.method = method
        self.path = path
        self.was_sent = was_sent

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


class ConnectionFailed(ClientError):
    """No connection, or it broke before the answer was complete. `was_sent`: the call may have been carried out."""


class CannotConnect(ConnectionFailed):
    """No connection, for a reason that does not pass: the host is unknown, TLS is refused, the scheme is wrong."""


class ClientClosed(ClientError):
    """The client was closed. `was_sent`: that was during the call, which may have been carried out."""


class DeadlineExceeded(ClientError):
    """The time for the call is over. `was_sent`: the call may have been carried out."""


class UnexpectedAnswer(ClientError):
    """The answer is not HTTP, not JSON, or not of this API's shape. The call may have been carried out."""


class WatchEnded(ClientError):
    """The server ended a watch for good, for example because another client opened the same session."""


class TopicOnSeveralServers(ClientError):
    """More than one server of a fleet has a topic of this name, so nobody can say which is meant."""

    def __init__(self, topic: str, servers: Sequence[str]) -> None:
        super().__init__(
            f'topic "{topic}" is on {" and on ".join(servers)}; a name belongs to one server: delete one of them'
        )
        self.topic = topic
        self.servers = tuple(servers)


CODES: Final[dict[str, type[ApiError]]] = {
    "invalid_request": InvalidRequest,
    "batch_too_large": BatchTooLarge,
    "record_too_large": RecordTooLarge,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "topic_not_found": TopicNotFound,
    "router_not_found": RouterNotFound,
    "method_not_allowed": MethodNotAllowed,
    "not_acceptable": NotAcceptable,
    "topic_exists_incompatible": TopicIncompatible,
    "topic_not_empty": TopicNotEmpty,
    "not_a_queue": NotAQueue,
    "no_dead_letter": NoDeadLetter,
    "epoch_mismatch": EpochMismatch,
    "cursor_moved": CursorMoved,
    "idempotency_mismatch": IdempotencyMismatch,
    "router_cycle": RouterCycle,
    "payload_too_large": PayloadTooLarge,
    "unsupported_media_type": UnsupportedMedia,
    "topic_full": TopicFull,
    "throttled": Throttled,
    "not_ready": NotReady,
    "shutting_down": ShuttingDown,
    "internal": ServerFault,
}


def _unpickled(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error
