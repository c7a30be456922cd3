"""One request of an HTTP/2 connection and its answer: a stream of the h2 state machine.

Owns what came in of a body and what still has to go out, the end of the stream, and what all answers of a connection
may take together (`Answers`). Must not know: sockets, when it is its turn to send (`http2`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from topics.server.transport.encoding import FILLED_BYTES_MIN, Filling, add_part, joined
from topics.server.transport.exchange import (
    BODYLESS,
    JSON,
    KIB,
    NEVER,
    TOO_SLOW,
    Answer,
    Exchange,
    Headers,
    Limits,
    Request,
    Stream,
    check_headers,
)

if TYPE_CHECKING:
    from topics.server.transport.http2 import Http2

CHUNK_BYTES_MAX: Final = 64 * KIB  # of one frame out, whatever the peer would take


class Answers:
    """What the answers of a connection take that its peer has not taken, and those that are being made (LM11).

    Above the bound no read is made, and no part of a download. Whatever else the connection asks for goes on: behind a
    proxy it may have many users, and the slow ones must not hold up the others. One answer may be larger than all the
    room there is, so reads and downloads take at most the bound and one answer.
    """

    def __init__(self, bytes_max: int, when_room: Callable[[], None]) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._when_room = when_room
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self._bytes_max

    def add(self, size: int) -> None:
        self.held_bytes += size

    def free(self, size: int) -> None:
        was_full = self.is_full
        self.held_bytes -= size
        if was_full and not self.is_full:
            self._when_room()

    def next_one(self) -> "asyncio.Future[None]":
        """Done when whoever waits for it may look again whether there is room, in the order in which they came."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    def close(self) -> None:
        """The connection is gone, and is not called any more: a cycle of references would wait for the collector."""
        self._when_room = _nothing

    def wake(self) -> None:
        """Let the next one look, if there is room."""
        while self._waiting and not self.is_full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break


class Http2Exchange(Exchange):
    def __init__(self, connection: "Http2", stream_id: int, request: Request) -> None:
        super().__init__(request)
        self._connection = connection
        self.id = stream_id
        self.is_gone = False  # answered completely, reset, or the connection is lost
        self.since = connection.shared.now  # the request began, or something pending was last sent
        # In.
        self.is_complete = False
        self.parts: list[bytes | bytearray] = []
        self.filling: Filling | None = None  # the body, once it is large
        self.body_bytes = 0
        self.unrefilled_bytes = 0  # taken from the stream's window and not given back yet
        # Out.
        self.pending: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.is_ending = False  # nothing comes after what is pending
        self._room: asyncio.Future[None] | None = None  # it waits for room
        self._unpacked_bytes = 0  # of an answer that is being packed

    @property
    def held_bytes(self) -> int:
        body_bytes = 0 if self.is_complete or self.is_answered else self.body_bytes
        return self.pending_bytes + self._unpacked_bytes + body_bytes

    @property
    def has_room(self) -> bool:
        return not self._connection.answers.is_full

    @contextmanager
    def packing(self, size: int) -> Iterator[None]:
        answers, self._unpacked_bytes = self._connection.answers, size
        answers.add(size)
        try:
            yield
        finally:
            self._unpacked_bytes = 0
            answers.free(size)

    @asynccontextmanager
    async def room(self, bytes_max: int) -> AsyncIterator[None]:
        answers = self._connection.answers
        while answers.is_full and not self.is_gone:
            self._room = answers.next_one()
            await self._room
            self._room = None
        answers.add(bytes_max)
        answers.wake()
        try:
            yield
        finally:
            answers.free(bytes_max)

    @property
    def is_lost(self) -> bool:
        return self.is_gone

    def receive(self, data: bytes) -> None:
        """A part of the body has come."""
        self.body_bytes += len(data)
        if self.body_bytes <= FILLED_BYTES_MIN:
            add_part(self.parts, data)
            return
        if self.filling is None:
            self.filling, self.parts = Filling(self.request.content_length, self.parts), []
        self.filling.add(data)

    def run(self) -> None:
        """Have the request, which is complete, handled."""
        try:
            self._connection.shared.app.handle(self.request, self)
        except Exception as error:
            self.fail(error)

    def take_body(self) -> bytes:
        """The whole body, which is not kept here any longer."""
        body = joined(self.parts) if self.filling is None else self.filling.take()
        self.filling, self.parts = None, []
        return body

    def respond(self, status: int, body: bytes, headers: Headers = (), content_type: bytes = JSON) -> None:
        self.must_be_unanswered()
        lines = self._head(status, headers, content_type)
        if body or status not in BODYLESS:
            lines.append((b"content-length", b"%d" % len(body)))
        self.is_answered = True
        has_body = bool(body) and self.request.method != "HEAD"
        self._send_head(lines, is_end=not has_body)
        if has_body:
            self.is_ending = True
            self.send(body)

    def start_stream(
        self, status: int, headers: Headers = (), content_type: bytes = JSON, *, survives_eof: bool = False
    ) -> Stream:
        self.must_be_unanswered()
        lines = self._head(status, headers, content_type)
        self.is_answered = True
        self._send_head(lines, is_end=False)
        self.stream = stream = Http2Stream(self, self._connection)
        if self.is_gone:
            self._connection.shared.soon(stream.closed)
        return stream

    def _head(self, status: int, headers: Headers, content_type: bytes) -> list[tuple[bytes, bytes]]:
        check_headers(headers)
        lines = [(b":status", b"%d" % status), (b"date", self._connection.shared.date), (b"content-type", content_type)]
        return lines + [(name.lower(), value) for name, value in headers]

    def answer(self, answer: Answer) -> None:
        """Give an answer of the transport's own; what has arrived of the body is no longer needed."""
        self.filling, self.parts = None, []
        try:
            self.respond(answer.status, answer.body, answer.headers, answer.content_type)
        except Exception as error:
            self.fail(error)

    # --- what goes out

    def _send_head(self, lines: list[tuple[bytes, bytes]], *, is_end: bool) -> None:
        if self.is_gone:
            return
        connection = self._connection
        is_sent = attempt(connection.h2.send_headers, self.id, lines, end_stream=is_end)
        connection.flush()
        if is_end or not is_sent:
            self._finish()

    def send(self, data: bytes) -> None:
        """Send what windows and socket take now, and keep the rest."""
        if self.is_gone:
            return
        if not self.pending_bytes:
            self.since = self._connection.shared.now
        if data:
            self.pending.append(memoryview(data))
            self.pending_bytes += len(data)
            self._connection.answers.add(len(data))
        self._connection.send_in_turn([self])
        if self.pending_bytes:
            self._connection.shared.grew(len(data))

    def send_frame(self) -> bool:
        """For the connection: send one frame, if there is something to send. True: there may be more."""
        if self.is_gone:
            return False
        connection = self._connection
        h2 = connection.h2
        try:
            window_bytes = h2.local_flow_control_window(self.id)
            bytes_max = min(window_bytes, h2.max_outbound_frame_size, CHUNK_BYTES_MAX)
            if self.pending_bytes and bytes_max <= 0:
                return False
            data = self._take(bytes_max)
            is_end = self.is_ending and not self.pending_bytes
            if data or is_end:
                h2.send_data(self.id, bytes(data), end_stream=is_end)
        except ProtocolError:
            is_end = True
        if is_end:
            self._finish()
        self.since = connection.shared.now
        connection.noise.forgive(2)  # what it was sent, the peer may acknowledge: stream and connection
        return self.pending_bytes > 0

    def _take(self, bytes_max: int) -> memoryview:
        """What goes into the next frame."""
        if not self.pending:
            return memoryview(b"")
        data = self.pending.popleft()
        if len(data) > bytes_max:
            self.pending.appendleft(data[bytes_max:])
            data = data[:bytes_max]
        self.pending_bytes -= len(data)
        self._connection.answers.free(len(data))
        return data

    # --- time and the end

    def deadline(self, limits: Limits) -> float:
        if not self.is_complete and not self.is_answered:
            return self.since + limits.body_s + self.body_bytes / limits.body_rate_min
        return self.since + limits.stall_s if self.pending_bytes else NEVER

    def cut_off(self) -> None:
        """The deadline has passed."""
        if self.is_answered:
            self.reset(ErrorCodes.CANCEL)
        else:
            self.answer(TOO_SLOW)

    def reset(self, code: ErrorCodes) -> None:
        if not self.is_gone:
            attempt(self._connection.h2.reset_stream, self.id, code)
            self._connection.flush()
            self._connection.forget(self)

    def _finish(self) -> None:
        """The answer is sent. The rest of the request is no longer wanted."""
        if not self.is_complete:
            attempt(self._connection.h2.reset_stream, self.id, ErrorCodes.NO_ERROR)
            self._connection.flush()
        self._connection.forget(self)

    def lost(self) -> None:
        """Called by the connection: the client is gone."""
        self.is_gone = True
        self.disconnected()
        self._connection.forget(self)

    def gone(self) -> None:
        """For the connection: nothing more can be sent."""
        self.is_gone = True
        self.pending.clear()
        pending_bytes, self.pending_bytes = self.pending_bytes, 0
        self._connection.answers.free(pending_bytes)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self.on_disconnect = None
        if self.stream is not None:
            self.stream.closed()
            self.stream = None


class Http2Stream(Stream):
    __slots__ = ("_connection", "_exchange")

    def __init__(self, exchange: Http2Exchange, connection: "Http2") -> None:
        super().__init__()
        self._exchange = exchange
        self._connection = connection

    @property
    def buffered(self) -> int:
        return 0 if self._exchange.is_gone else self._exchange.pending_bytes + self._connection.unsent_bytes

    @property
    def is_blocked(self) -> bool:
        return self._exchange.pending_bytes > 0 or self._connection.is_write_blocked

    def write(self, data: bytes) -> None:
        if data and self._exchange.request.method != "HEAD" and not self._exchange.is_ending:
            self._exchange.send(data)

    def end(self, *, closes: bool = False) -> None:
        if not self._exchange.is_ending:
            self._exchange.is_ending = True
            self._exchange.send(b"")

    def abort(self) -> None:
        self._exchange.reset(ErrorCodes.INTERNAL_ERROR)


def _nothing() -> None:
    """What is to be done when nobody is there."""


def attempt(action: Callable[..., None], *args: Any, **kwargs: Any) -> bool:
    """Let h2 do something. False: it knows of a reset whose event has not been handled yet."""
    try:
        action(*args, **kwargs)
    except ProtocolError:
        return False
    return True
