"""The seam between the transports and the application.

Owns what the application sees of a connection (`Request`, `Exchange`, `Stream`), what transports call (`Application`),
and what all connections of a listener share (`Connections`). Must not know: HTTP/1.1 or HTTP/2 framing, routes, engine.

Invariants: an exchange is answered at most once, by `respond`, `start_stream` or `upgrade`; that the client is gone
and that a stream is over is told at most once, and the latter is told however the stream ends; an exception of the
application is a 500 and a log line, never a broken or hanging connection.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from topics.clock import Clock
from topics.server.paced import Turns
from topics.uring.lines import Line

logger = logging.getLogger("topics.server")

Headers = Sequence[tuple[bytes, bytes]]
Callback = Callable[[], None]

KIB: Final = 1024
NEVER: Final = float("inf")
JSON: Final = b"application/json"
REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
LOOK_BYTES: Final = 8 * KIB * KIB  # may come in, or wait to go out, between two looks at what is held
HEADS_KEPT_MAX: Final = 4096  # heads of requests
DIGEST_KEY: Final = os.urandom(32)
BODYLESS: Final = frozenset((204, 304))  # an answer without body and without a length

# Only the transports set these; from the application they would contradict the framing.
FRAMING_HEADERS: Final = frozenset(
    (b"connection", b"content-length", b"date", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# A second one of these would make the request ambiguous.
SINGLE_HEADERS: Final = frozenset((b"authorization", b"content-length", b"content-type", b"expect", b"host"))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one connection may use. Sizes are in bytes, times in seconds."""

    body_bytes_max: int = 64 * KIB * KIB
    head_bytes_max: int = 320 * KIB  # request line and headers
    target_bytes_max: int = 288 * KIB  # 256 names of topics are up to 64 KiB, and an id of them with epochs 190 KiB
    headers_max: int = 100
    refused_body_bytes_max: int = 256 * KIB  # unread body skipped to keep the connection of a refused request
    ahead_bytes_max: int = 64 * KIB  # pipelined input held while an exchange runs; above it reading stops
    head_s: float = 10.0
    body_s: float = 30.0  # for any body, on top of what body_rate_min allows
    body_rate_min: int = 1024  # bytes per second
    idle_s: float = 75.0
    stall_s: float = 60.0  # in which the peer takes none of the bytes that wait for it
    linger_s: float = 5.0  # reading after the last answer, so that a client that is still sending receives it
    connections_max: int = 0  # 0 = as many as descriptors allow
    connection_held_bytes_max: int = 96 * KIB * KIB  # unsent answers, unfinished bodies and heads of one connection …
    held_bytes_max: int = 256 * KIB * KIB  # … and of all
    answers_bytes_max: int = 8 * KIB * KIB  # HTTP/2: that wait on one connection; above it no further large one is made
    streams_max: int = 100  # HTTP/2: concurrent requests of one connection
    noise_max: int = 2000  # HTTP/2: control frames within noise_s; a reset counts ten times
    noise_s: float = 10.0


class Request(msgspec.Struct):
    """One request. In `headers_received` the body is still empty, in `handle` it is complete."""

    method: str
    target: bytes  # as received
    path: bytes  # raw, still percent-encoded
    query: bytes  # raw, without the question mark
    headers: dict[bytes, bytes]  # the first value by lower-case name
    repeated: Headers  # further values of names that came more than once, in order
    content_length: int  # as declared; 0 = no body, -1 = not known before its end
    http2: bool
    peer: tuple[str, int]
    body_bytes_max: int = sys.maxsize  # the application's limit, beside that of the connection
    wants_upgrade: bool = False  # HTTP/1.1 with Connection: upgrade, something to upgrade to, and no body
    body: bytes = b""
    context: Any = None  # the application's own, from headers_received to handle
    admission: Any = None  # what the application decided, for requests with the same head; None: it decides on each

    def header_values(self, name: bytes) -> list[bytes]:
        first = self.headers.get(name)
        return [] if first is None else [first, *(value for other, value in self.repeated if other == name)]


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, ready to send."""

    status: int
    body: bytes
    headers: Headers = ()
    content_type: bytes = JSON


def error_answer(status: int, code: str, message: str) -> Answer:
    return Answer(status, msgspec.json.encode({"error": {"code": code, "message": message}}))


def malformed(message: str) -> Answer:
    return error_answer(400, "invalid_request", message)


TOO_LARGE: Final = error_answer(413, "payload_too_large", "the request body is larger than the server accepts")
INTERNAL: Final = error_answer(500, "internal", "the server failed to answer this request")
HEAD_TOO_LARGE: Final = malformed("the request line and headers are larger than the server accepts")
TOO_SLOW: Final = malformed("the request took too long to arrive")


class Application(Protocol):
    """What the transports call, on the event loop, without awaiting."""

    def headers_received(self, request: Request) -> Answer | None:
        """Refuse a request before its body is read, or let it pass.

        Takes nothing that must be given back: a request that passes may still never reach `handle`
        (body too large, client gone).
        """
        ...

    def still_holds(self, admission: Any) -> bool:
        """Whether what was decided from a head still holds; otherwise the head must be received again."""
        ...

    def readmitted(self, request: Request) -> Answer | None:
        """As `headers_received`, for a request with the head of one that passed, whose `admission` still holds."""
        ...

    def handle(self, request: Request, exchange: "Exchange") -> None:
        """Answer at once, or keep the exchange and answer later."""
        ...


class StreamOwner(Protocol):
    """Who is told of a stream: that it is no longer blocked, and once that it is over, however it ended."""

    def stream_writable(self) -> None: ...

    def stream_closed(self) -> None: ...


class Stream(Line):
    """An answer of unknown length: SSE, a download. After its end, writes are ignored."""

    __slots__ = ("is_closed", "owner")

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.owner: StreamOwner | None = None  # the application sets it: no callbacks, which weigh more

    # --- what the application calls

    @property
    def buffered(self) -> int:
        """Bytes that neither the kernel nor the peer's window has taken yet."""
        raise NotImplementedError

    @property
    def is_blocked(self) -> bool:
        """The peer reads too slowly: stop writing until it is writable again."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def end(self, *, closes: bool = False) -> None:
        """Everything is written; the connection may serve the next request, unless it `closes` with its last one."""
        raise NotImplementedError

    def finish(self, last: bytes, *, closes: bool = False) -> None:
        """Write a last thing and end, without calling anybody back."""
        self.owner = None
        self.write(last)
        self.end(closes=closes)

    def abort(self) -> None:
        """Drop what has not been sent; the peer sees an incomplete answer."""
        raise NotImplementedError

    # --- what the transport calls

    def writable(self) -> None:
        """The peer reads again."""
        if self.owner is not None:
            call(self.owner.stream_writable)

    def closed(self) -> None:
        """The stream is over."""
        if not self.is_closed:
            self.is_closed, self.is_clear = True, False
            owner, self.owner = self.owner, None
            if owner is not None:
                call(owner.stream_closed)


class Exchange:
    """One request and its answer."""

    __slots__ = ("is_answered", "is_disconnected", "on_disconnect", "request", "stream")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.is_answered = False
        self.is_disconnected = False
        self.stream: Stream | None = None
        self.on_disconnect: Callback | None = None  # see `when_disconnected`

    @property
    def is_lost(self) -> bool:
        """The client is gone. One that has only half-closed its side is not: it can still be answered."""
        raise NotImplementedError

    def when_disconnected(self, callback: Callback) -> None:
        """Call back once if the client is gone, or has closed its sending side, before the answer is complete.

        Whoever waits for something then stops waiting and still answers: a client that only half-closed gets it.
        """
        self.on_disconnect = callback
        if self.is_disconnected:
            callback()

    def room(self, bytes_max: int) -> AbstractAsyncContextManager[None]:
        """Make an answer of up to so many bytes inside: where many wait already, this one waits before it is made."""
        return nullcontext()

    @property
    def has_room(self) -> bool:
        """Whether an answer may be made without `room`."""
        return True

    def packing(self, size: int) -> AbstractContextManager[None]:
        """An answer of so many bytes is compressed inside."""
        return nullcontext()

    def respond(self, status: int, body: bytes, headers: Headers = (), content_type: bytes = JSON) -> None:
        """Answer as a whole. Ignored when the client is gone."""
        raise NotImplementedError

    def start_stream(
        self, status: int, headers: Headers = (), content_type: bytes = JSON, *, survives_eof: bool = False
    ) -> Stream:
        """Answer piece by piece. `survives_eof`: a client that half-closes still gets the rest (a download)."""
        raise NotImplementedError

    def upgrade(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection of a request that `wants_upgrade` to `protocol`: connection_made, then what was read."""
        raise RuntimeError("this connection cannot be upgraded")

    def fail(self, error: BaseException) -> None:
        """The application failed: answer 500 if nothing was answered yet, else cut the stream off."""
        logger.error("%s %s failed", self.request.method, self.request.path.decode("latin-1"), exc_info=error)
        if not self.is_answered:
            self.respond(INTERNAL.status, INTERNAL.body)
        elif self.stream is not None:
            self.stream.abort()

    def must_be_unanswered(self) -> None:
        if self.is_answered:
            raise RuntimeError("the exchange has been answered already")

    def disconnected(self) -> None:
        """For the transport: the client will send no more."""
        if not self.is_disconnected:
            self.is_disconnected = True
            callback, self.on_disconnect = self.on_disconnect, None
            call(callback)


def call(callback: Callback | None) -> None:
    """Run a callback of the application. Its failure must not stop the transport's own clean-up."""
    if callback is not None:
        try:
            callback()
        except Exception:
            logger.exception("a connection callback failed")


def check_headers(headers: Headers) -> None:
    """No header of an answer may break or contradict its framing."""
    for name, value in headers:
        if name.lower() in FRAMING_HEADERS:
            raise ValueError(f"{name!r} is set by the transport")
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise ValueError(f"{name!r} holds a line break")


def head_digest(head: bytes) -> bytes:
    return blake2b(head, digest_size=32, key=DIGEST_KEY).digest()


class Connection(Protocol):
    """What the listener asks of any connection, whatever it speaks."""

    deadline: float  # monotonic; NEVER while the application works

    @property
    def held_bytes(self) -> int:
        """What is held for it: unsent answers, unfinished bodies, messages and heads."""
        ...

    def expire(self, now: float) -> None:
        """The deadline has passed: close, or show progress and set a new one."""
        ...

    def drain(self) -> None:
        """Close when idle, else after what is running."""
        ...

    def abort(self) -> None: ...


class Connections:
    """What the connections of one listener share, and the set of those open."""

    def __init__(self, app: Application, limits: Limits, clock: Clock) -> None:
        self.app = app
        self.limits = limits
        self.turns = Turns(clock.monotonic, lambda turn: self.soon(turn))
        self.open: set[Connection] = set()
        self.is_draining = False
        self.accepted_total = self.http2_total = 0
        self.broken_total = 0  # ended because their input was not followed any further
        self.expired_total = 0
        self.refused_total = 0  # closed at once, because there were enough
        self.held_ended_total = 0  # ended, because too much was held for them
        self.connections_max = limits.connections_max or sys.maxsize
        self._grown_bytes = 0  # held, at most, since `_look`
        self._ending: set[Connection] = set()  # cut off by `_look`, and not gone yet
        self.heads: dict[tuple[int, bytes], bytes] = {}  # HTTP/1.1 heads by status and type, with the date
        self._part = self._chunk = b""  # the last part of a stream over HTTP/1.1, and its chunk
        self.known_heads: dict[bytes, Request] = {}  # HTTP/1.1 heads of requests that passed, as they came …
        self.secret_heads: dict[bytes, Request] = {}  # … and the digests of those that hold a key
        self._clock = clock
        self._emptied: asyncio.Future[None] | None = None
        self.refresh()

    def soon(self, turn: Callback) -> None:
        """Call `turn` in a turn of the event loop of its own."""
        asyncio.get_running_loop().call_soon(turn)

    def admits_one_more(self) -> bool:
        """Whether a new connection may stay (LM11)."""
        if len(self.open) < self.connections_max:
            return True
        if not self.refused_total:
            logger.warning("%d connections are open, which is the limit: new ones are closed", self.connections_max)
        self.refused_total += 1
        return False

    def grew(self, size: int) -> None:
        """A connection may hold so many bytes more than before. Once enough has come together, all are examined."""
        self._grown_bytes += size
        if self._grown_bytes >= min(LOOK_BYTES, self.limits.held_bytes_max // 16):
            self._look()

    def _look(self) -> None:
        """End the connections that hold too much: those above their own bound, then the largest until all fit."""
        self._grown_bytes = 0
        held = sorted(((one.held_bytes, id(one), one) for one in self.open - self._ending), reverse=True)
        total = sum(size for size, _, _ in held)
        for size, _, connection in held:
            if size <= self.limits.connection_held_bytes_max and total <= self.limits.held_bytes_max:
                return
            total -= size
            self.held_ended_total += 1
            self._ending.add(connection)
            logger.warning("a connection is ended: %d bytes are held for it, and too many for all", size)
            self.soon(connection.abort)

    def forget(self, connection: Connection) -> None:
        """A connection is gone, or goes on as another object."""
        self.open.discard(connection)
        self._ending.discard(connection)
        if not self.open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def wait_until_empty(self) -> None:
        while self.open:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def refresh(self) -> None:
        """Read the clock. Deadlines and the Date header are only as precise as these calls are frequent."""
        self.now = self._clock.monotonic()
        self.date = formatdate(self._clock.now_ms() // 1000, usegmt=True).encode()
        self.heads.clear()

    def remember(self, head: bytes, request: Request) -> None:
        """Keep a request that passed, for others with the same head. Keys are not kept (AU3)."""
        is_secret = b"authorization" in request.headers
        heads = self.secret_heads if is_secret else self.known_heads
        headers = {name: value for name, value in request.headers.items() if name != b"authorization"}
        if len(heads) >= HEADS_KEPT_MAX:
            heads.clear()
        known = msgspec.structs.replace(request, headers=headers, peer=("", 0), context=None)
        heads[head_digest(head) if is_secret else head] = known

    def known_by_digest(self, head: bytes) -> Request | None:
        """A request that passed with this head, which holds a key."""
        return self.secret_heads.get(head_digest(head)) if self.secret_heads else None

    def head(self, status: int, content_type: bytes) -> bytes:
        """Status line and headers common to all HTTP/1.1 answers of a status and type; kept until the date changes."""
        reason = REASONS.get(status, b"")
        head = b"HTTP/1.1 %d %b\r\ndate: %b\r\ncontent-type: %b\r\n" % (status, reason, self.date, content_type)
        self.heads[status, content_type] = head
        return head

    def chunk(self, part: bytes) -> bytes:
        """A part of a stream over HTTP/1.1 as a chunk: made once for all streams that send it one after the other."""
        if self._part is not part:
            self._part, self._chunk = part, b"%x\r\n%b\r\n" % (len(part), part)
        return self._chunk

    def sweep(self) -> None:
        self.refresh()
        for connection in [one for one in self.open if one.deadline <= self.now]:
            connection.expire(self.now)

    def refusal(self, request: Request) -> Answer | None:
        """The refusal that the headers alone decide: that of the application comes before that of a large body."""
        try:
            answer = self.app.headers_received(request) if request.admission is None else self.app.readmitted(request)
        except Exception:
            logger.exception("%s %s failed at its headers", request.method, request.path.decode("latin-1"))
            return INTERNAL
        if answer is None and request.content_length > min(request.body_bytes_max, self.limits.body_bytes_max):
            return TOO_LARGE
        return answer


@runtime_checkable
class Holding(Protocol):
    """A protocol that took a connection over and keeps what it has not understood yet."""

    @property
    def unread_bytes(self) -> int: ...


class Upgraded(asyncio.Protocol):
    """Passes everything on to the protocol that took a connection over, and counts among the open connections."""

    __slots__ = ("_held", "_protocol", "_shared", "_transport", "deadline")

    def __init__(self, shared: Connections, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._shared = shared
        self._transport = transport
        self._protocol = protocol
        self._held = protocol if isinstance(protocol, Holding) else None
        self.deadline = NEVER  # the protocol sees to its own deadlines
        shared.open.add(self)

    @property
    def held_bytes(self) -> int:
        unsent_bytes = self._transport.get_write_buffer_size()
        return unsent_bytes if self._held is None else unsent_bytes + self._held.unread_bytes

    def data_received(self, data: bytes) -> None:
        self._shared.grew(len(data))
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._shared.forget(self)
        self._protocol.connection_lost(error)

    def expire(self, now: float) -> None:
        raise AssertionError("no deadline was set")

    def drain(self) -> None:
        """The application itself ends what it took over."""

    def abort(self) -> None:
        self._transport.abort()
