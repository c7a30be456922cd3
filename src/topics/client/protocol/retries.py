"""When an operation is tried again, and after which pause. The rule has no other place.

    flow = Retries(...).answered(operation)     # a generator of Attempts and Pauses; the caller carries them out

A refusal (429, or 503 with an error of this API) has changed nothing, so the operation is tried again when the
refusal says. The same goes for a connection that could not be made, unless the reason does not pass. After a failure
that leaves open whether the operation was carried out, it is repeated only if repeating is harmless: an append needs an
idempotency key, and must arrive within the topic's window, which is looked up at that point. Nothing starts or waits
past the deadline.

This module has no socket and never sleeps; `monotonic` and `random` are injected.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from topics.client.errors import (
    CODES,
    ApiError,
    CannotConnect,
    ClientError,
    ConnectionFailed,
    Forbidden,
    TopicNotFound,
    UnexpectedAnswer,
)
from topics.client.protocol import operations
from topics.client.protocol.http_parser import Request, Response
from topics.client.protocol.operations import Operation

T = TypeVar("T")

BACKOFF_S: Final = 0.05  # before the first retry; doubled for each one after it
BACKOFF_MAX_S: Final = 2.0
JITTER: Final = 0.25  # added to a wait that the server asked for; never subtracted
RETRY_AFTER_MAX_S: Final = 86_400.0
REFUSED: Final = (429, 503)
GATEWAY: Final = (502, 503, 504)  # from a proxy: the server may have carried the operation out, or not


class Attempt(Struct, frozen=True):
    """Send this request and read the whole answer before `deadline`, on the monotonic clock."""

    request: Request
    deadline: float


class Pause(Struct, frozen=True):
    """Wait before the next try. The rest says why."""

    seconds: float
    request: Request
    tries: int  # made so far
    elapsed_s: float  # since the first
    failure: ApiError | ClientError


Step = Attempt | Pause
Flow = Generator[Step, Any, T]


class Retries(Struct, frozen=True):
    """`window_ms` stands in for a topic's idempotency window where the key may not read it; 0 = do not repeat."""

    timeout_ms: int
    retries: int
    window_ms: int
    monotonic: Callable[[], float]
    random: Callable[[], float]

    def run(self, operation: Operation[T]) -> Flow[T]:
        answer = yield from self.answered(operation)
        return operation.parse(answer)

    def once(self, operation: Operation[T]) -> Flow[T]:
        """Try once, for callers that have other work to do between tries."""
        answer = yield from replace(self, retries=0).answered(operation)
        return operation.parse(answer)

    def answered(self, operation: Operation[Any], deadline: float | None = None) -> Flow[Response]:
        """Try until there is an answer that is not an error."""
        started = self.monotonic()
        if deadline is None:
            deadline = started + (self.timeout_ms + operation.wait_ms) / 1000
        is_window_known = False
        doubt: ClientError | None = None  # the failure of an append that may have been carried out
        tried = 0
        while True:
            try:
                answer: Response = yield Attempt(operation.request, deadline)
                if answer.status < 400:
                    return answer
                raise error_of(operation.request, answer)
            except (ApiError, ClientError) as error:
                failure = error
            if operation.repeat == "keyed" and isinstance(failure, ClientError) and failure.was_sent:
                doubt = failure
            if not self._may_repeat(failure, operation) or tried >= self.retries:
                raise_last(failure, doubt)
            if doubt is not None and not is_window_known:
                window_ms = yield from self._window_ms(operation, deadline, doubt)
                deadline, is_window_known = min(deadline, started + window_ms / 1000), True
            wait_s = self._wait_s(failure, tried)
            if self.monotonic() + wait_s >= deadline:
                raise_last(failure, doubt)
            tried += 1
            yield Pause(wait_s, operation.request, tried, self.monotonic() - started, failure)

    def _may_repeat(self, error: ApiError | ClientError, operation: Operation[Any]) -> bool:
        if isinstance(error, ApiError):
            return error.status in REFUSED or (error.status in GATEWAY and operation.repeat != "never")
        if isinstance(error, CannotConnect):
            return False
        if isinstance(error, ConnectionFailed):
            return not error.was_sent or operation.repeat != "never"
        return isinstance(error, UnexpectedAnswer) and error.status in GATEWAY and operation.repeat != "never"

    def _window_ms(self, operation: Operation[Any], deadline: float, failure: Exception) -> Flow[int]:
        """How long the topic remembers keys. If there is no way to know, the failure is raised."""
        ask = operations.state(operation.topic, touch=False)
        try:
            answer = yield from self.answered(ask, deadline)
            return ask.parse(answer).config.idempotency_window_ms
        except TopicNotFound:
            return operation.window_ms
        except Forbidden:
            if self.window_ms:
                return self.window_ms
            raise failure from None
        except (ApiError, ClientError):
            raise failure from None

    def _wait_s(self, failure: ApiError | ClientError, tried: int) -> float:
        if isinstance(failure, ApiError) and failure.retry_after_ms is not None:
            return failure.retry_after_ms / 1000 * (1 + JITTER * self.random())
        return self.backoff_s(tried)

    def backoff_s(self, tried: int) -> float:
        """How long to wait if the server does not say."""
        most = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(tried, 30))
        return most * (0.5 + 0.5 * self.random())


def raise_last(failure: ApiError | ClientError, doubt: ClientError | None) -> NoReturn:
    """Raise the last failure; or the doubt, if the last failure does not tell whether records were appended."""
    settles = isinstance(failure, ApiError) and failure.status not in REFUSED and failure.status < 500
    if doubt is None or doubt is failure or settles:
        raise failure
    raise doubt from failure


class ErrorBody(Struct):
    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class ErrorAnswer(Struct):
    error: ErrorBody


_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


def error_of(request: Request, answer: Response) -> ApiError | UnexpectedAnswer:
    """The exception for an error answer."""
    try:
        body = _decode_error(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        unexpected = UnexpectedAnswer(
            f"status {answer.status} with a body that this API does not send",
            method=request.method,
            path=request.path,
            was_sent=True,
        )
        unexpected.status = answer.status
        return unexpected
    detail = body.detail or {}
    return CODES.get(body.code, ApiError)(
        body.message or body.code,
        status=answer.status,
        code=body.code,
        detail=detail,
        method=request.method,
        path=request.path,
        retry_after_ms=retry_after_ms(answer, detail),
    )


def retry_after_ms(answer: Response, detail: dict[str, Any]) -> int | None:
    """How long the server asks to wait. The detail is more exact than the header."""
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int) and exact >= 0:
        return min(exact, int(RETRY_AFTER_MAX_S * 1000))
    text = answer.headers.get("retry-after", "").strip()
    return (
        min(int(text), int(RETRY_AFTER_MAX_S)) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else None
    )
