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
    """A value that cannot be: the message names it."""


class BatchTooLarge(InvalidRequest, errors.BatchTooLarge):
    """More records than one write takes; `split=True` writes them in parts."""


class RecordTooLarge(InvalidRequest, errors.RecordTooLarge):
    """A record that is larger than the server takes."""


class Unauthorized(ApiError, errors.Unauthorized):
    """No key, or one that the server does not know."""


class Forbidden(ApiError, errors.Forbidden):
    """The key may not do that, or not with this name."""


class NotFound(ApiError, errors.NotFound):
    """There is no such thing: a route, a record, a cursor."""


class TopicNotFound(NotFound, errors.TopicNotFound):
    """There is no such topic."""


class RouterNotFound(NotFound, errors.RouterNotFound):
    """There is no such router."""


class MethodNotAllowed(ApiError, errors.MethodNotAllowed):
    """The path has no such method."""


class NotAcceptable(ApiError, errors.NotAcceptable):
    """The server has no answer of the type that was asked for."""


class TopicIncompatible(ApiError, errors.TopicIncompatible):
    """The topic is of the other type: a log, not a queue, or the other way round."""


class TopicNotEmpty(ApiError, errors.TopicNotEmpty):
    """The topic has records, and was to be deleted only without."""


class NotAQueue(ApiError, errors.NotAQueue):
    """The topic is a log, which has no jobs."""


class NoDeadLetter(ApiError, errors.NoDeadLetter):
    """The queue has no dead-letter topic."""


class EpochMismatch(ApiError, errors.EpochMismatch):
    """The topic is another instance than the one that was meant: it was deleted and created again."""


class CursorMoved(ApiError, errors.CursorMoved):
    """The named cursor does not stand where it was expected."""


class IdempotencyMismatch(ApiError, errors.IdempotencyMismatch):
    """The idempotency key stands for other records."""


class RouterCycle(ApiError, errors.RouterCycle):
    """The router would close a cycle."""


class PayloadTooLarge(ApiError, errors.PayloadTooLarge):
    """The body is larger than the server takes."""


class UnsupportedMedia(ApiError, errors.UnsupportedMedia):
    """The server does not read bodies of this type."""


class TopicFull(ApiError, errors.TopicFull):
    """The topic is full, and its config refuses more."""


class Throttled(ApiError, errors.Throttled):
    """Too much at once; the call was tried again until its time was over."""


class NotReady(ApiError, errors.NotReady):
    """The server is starting, or cannot write for now."""


class ShuttingDown(ApiError, errors.ShuttingDown):
    """The server is stopping."""


class ServerFault(ApiError, errors.StorageError):
    """The server failed; the call left nothing visible behind."""


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
