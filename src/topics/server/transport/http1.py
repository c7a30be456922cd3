"""HTTP/1.1 and 1.0 on a socket: one protocol object per connection.

Owns: the order of pipelined answers, answers as bytes, back-pressure, deadlines and the end of a connection. Must not
know: how input is parsed (`http1_reader`), routes, JSON, HTTP/2.

Invariants
- At most one exchange runs (`_current`). While it runs, or while the peer does not read, input is kept unparsed
  (`_ahead`), above a bound not read. Only requests in the running one's slice of input are parsed early (`_queue`).
- A request is handled in a turn of the connection's own: when its input comes, when the peer reads again, or in a turn
  asked for (`_is_advance_due`). Whoever answers the request before it may be in the middle of a change (ST17).
- `stage` only grows. From DEAF on no input is interpreted; from CLOSING on nothing is written.
- Where the peer may still be sending, a close lingers, or the last answer could be lost to a reset.
"""

import asyncio
from typing import Final, cast

from topics.server.paced import TURN_S
from topics.server.transport.exchange import (
    BODYLESS,
    JSON,
    KIB,
    NEVER,
    TOO_SLOW,
    Answer,
    Connections,
    Exchange,
    Headers,
    Request,
    Stream,
    Upgraded,
    check_headers,
)
from topics.server.transport.http1_reader import FULL_BYTES, READ_S, WORK_MAX, Http1Reader, is_one_known

SLICE_BYTES: Final = 16 * KIB  # parsed at a time: this bounds how many small requests are parsed early
LONE_BYTES: Final = 2 * KIB  # more at once, which may be many requests, waits for its turn if others do
COPY_BYTES_MAX: Final = 64 * KIB  # up to here head and body are joined into one write
BURST_MAX: Final = 16  # requests of one connection that are handled in one turn of the loop, if no other has to wait
NO_REQUEST: Final = Request("GET", b"", b"", b"", {}, (), 0, False, ("", 0))

OPEN, DEAF, CLOSING, LOST = range(4)


class Http1Exchange(Exchange):
    __slots__ = ("_connection", "is_http10", "keeps_alive")

    def __init__(self, connection: "Http1", request: Request, keeps_alive: bool, is_http10: bool) -> None:
        self.request = request  # the fields of Exchange are set here: one call less for every request
        self.is_answered = self.is_disconnected = False
        self.stream = self.on_disconnect = None
        self._connection = connection
        self.keeps_alive, self.is_http10 = keeps_alive, is_http10

    @property
    def is_lost(self) -> bool:
        return self._connection.stage == LOST

    def respond(self, status: int, body: bytes, headers: Headers = (), content_type: bytes = JSON) -> None:
        if self.is_answered:
            self.must_be_unanswered()
        connection, shared = self._connection, self._connection.shared
        head = shared.heads.get((status, content_type)) or shared.head(status, content_type)
        if headers or not self.keeps_alive or self.is_http10 or shared.is_draining:
            head += self._extra(headers)
        if not body and status in BODYLESS:
            data = head + b"\r\n"
        elif self.request.method == "HEAD" or len(body) > COPY_BYTES_MAX:
            data = b"%bcontent-length: %d\r\n\r\n" % (head, len(body))
        else:
            data = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
        self.is_answered = True
        if connection.stage >= CLOSING:
            return
        connection.transport.write(data)
        if len(body) > COPY_BYTES_MAX and self.request.method != "HEAD":
            connection.transport.write(body)
            shared.grew(len(body))
        connection.finished(self)

    def start_stream(
        self, status: int, headers: Headers = (), content_type: bytes = JSON, *, survives_eof: bool = False
    ) -> Stream:
        self.must_be_unanswered()
        connection = self._connection
        self.keeps_alive = self.keeps_alive and not self.is_http10
        head = connection.shared.head(status, content_type) + self._extra(headers)
        head += b"" if self.is_http10 else b"transfer-encoding: chunked\r\n"
        head += b"connection: keep-alive\r\n" if self.keeps_alive else b""
        self.is_answered = True
        self.stream = stream = Http1Stream(self, connection, survives_eof)
        connection.reader.rests = True  # no input is expected for long
        if connection.stage < CLOSING:
            connection.transport.write(head + b"\r\n")
        else:
            connection.shared.soon(stream.closed)
        return stream

    def upgrade(self, protocol: asyncio.Protocol) -> None:
        self.must_be_unanswered()
        if not self.request.wants_upgrade:  # what follows it was read as HTTP
            raise RuntimeError("the request does not ask for an upgrade")
        self.is_answered = True
        if self._connection.stage < CLOSING:
            try:
                self._connection.hand_over(protocol)
            except Exception:
                self._connection.transport.abort()
                raise

    def ended_by_client(self) -> None:
        """The client will send no more."""
        self.disconnected()
        if isinstance(self.stream, Http1Stream) and not self.stream.survives_eof:
            self.stream.abort()

    def _extra(self, headers: Headers) -> bytes:
        """Header lines beyond the cached ones; decides whether the connection stays open."""
        check_headers(headers)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if self._connection.shared.is_draining:
            self.keeps_alive = False
        if not self.keeps_alive:
            return lines + b"connection: close\r\n"
        return lines + b"connection: keep-alive\r\n" if self.is_http10 else lines


class Http1Stream(Stream):
    __slots__ = ("_connection", "_exchange", "_is_chunked", "_is_mute", "survives_eof")

    def __init__(self, exchange: Http1Exchange, connection: "Http1", survives_eof: bool) -> None:
        super().__init__()
        self._exchange = exchange
        self._connection = connection
        self._is_chunked = not exchange.is_http10  # else the answer ends with the connection
        self._is_mute = exchange.request.method == "HEAD"
        self.survives_eof = survives_eof

    @property
    def buffered(self) -> int:
        return 0 if self._connection.stage == LOST else self._connection.transport.get_write_buffer_size()

    @property
    def is_blocked(self) -> bool:
        return self._connection.is_write_blocked

    def write(self, data: bytes) -> None:
        self.is_clear = False
        if self.is_closed or self._is_mute or not data or self._connection.stage >= CLOSING:
            return
        transport = self._connection.transport
        if not self._is_chunked:
            transport.write(data)
        elif len(data) <= COPY_BYTES_MAX:
            transport.write(self._connection.shared.chunk(data))
        else:
            transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))

    def write_rest(self, rest: bytes) -> None:
        self.is_clear = False
        if not self.is_closed and self._connection.stage < CLOSING:
            self._connection.transport.write(rest)

    def part(self, data: bytes) -> bytes:
        has_parts = self._is_chunked and not self._is_mute and not self.is_closed and self._connection.stage < CLOSING
        return self._connection.shared.chunk(data) if has_parts and self.clear(self._connection.transport) else b""

    def end(self, *, closes: bool = False) -> None:
        if self.is_closed or self._connection.stage >= CLOSING:
            return
        self._exchange.keeps_alive = self._exchange.keeps_alive and not closes
        self.is_clear = False
        if self._is_chunked and not self._is_mute:
            self._connection.transport.write(b"0\r\n\r\n")
        self.closed()
        self._exchange.stream = None
        self._connection.finished(self._exchange)

    def abort(self) -> None:
        if not self.is_closed:
            self._connection.abort()


class Http1(asyncio.Protocol):
    __slots__ = (
        *("_ahead", "_burst", "_current", "_has_eof", "_is_advance_due", "_is_advancing", "_is_read_paused"),
        *("_lingers", "_queue", "_since", "_stalled_bytes", "deadline", "is_write_blocked", "reader", "shared"),
        *("stage", "transport"),
    )

    def __init__(self, shared: Connections) -> None:
        self.shared = shared
        self.deadline = NEVER
        self.is_write_blocked = False
        self._current: Http1Exchange | None = None
        self._queue: list[tuple[Http1Exchange, Answer | None]] = []  # not a deque: that is 600 bytes when empty
        self._ahead = bytearray()
        self._burst = 0  # requests handled in this turn
        self._since = 0.0  # when the first of them was done
        self.stage = OPEN
        self._lingers = self._has_eof = self._is_advance_due = self._is_advancing = self._is_read_paused = False
        self._stalled_bytes = 0  # waiting to be sent when the peer was last seen to take some

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.reader = Http1Reader(self, self.shared, (transport.get_extra_info("peername") or ("", 0))[:2])
        self.deadline = self.shared.now + self.shared.limits.idle_s
        self.shared.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self.stage != OPEN:
            return
        is_busy = self._current is not None or self._ahead or self.is_write_blocked or self._is_advance_due
        if is_busy or (len(data) > LONE_BYTES and self.shared.turns.waiting):
            self._hold(data)
            if not is_busy:
                self._advance_soon()
            return
        self._burst = self.reader.work = 0
        if len(data) <= SLICE_BYTES:
            self.reader.feed(data)
        else:
            began = (monotonic := self.shared.turns.monotonic)()
            self.reader.feed(data) if is_one_known(self.reader, data) else self._feed_sliced(memoryview(data))
            if monotonic() - began > (READ_S if len(data) > FULL_BYTES else TURN_S) and self.stage == OPEN:
                _pause_reading(self)
                self._advance_soon()
        if self._ahead:
            self._advance_soon() if _has_worked(self) else self._advance()
        elif self.reader.request is not None or self.reader.target:
            self._await_rest()

    def eof_received(self) -> bool:
        """True keeps the sending side open: requests from before EOF are still answered."""
        self._has_eof = True
        if self.stage >= CLOSING or _is_idle(self):
            return False
        if self._current is not None:
            self._current.ended_by_client()
        return True

    def pause_writing(self) -> None:
        self.is_write_blocked = True
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self.deadline = self.shared.now + self.shared.limits.stall_s

    def resume_writing(self) -> None:
        self.is_write_blocked = False
        if self.stage >= CLOSING:
            return
        if self._current is not None:
            self.deadline = NEVER
            if self._current.stream is not None:
                self._current.stream.writable()
        self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        self.stage = LOST
        self.shared.forget(self)
        self._queue, self._ahead = [], bytearray()
        self.reader.close()
        current, self._current = self._current, None
        if current is not None:
            current.disconnected()
            if current.stream is not None:
                current.stream.closed()
                current.stream = None

    # --- what the listener calls

    @property
    def held_bytes(self) -> int:
        unsent_bytes = 0 if self.stage == LOST else self.transport.get_write_buffer_size()
        return unsent_bytes + len(self._ahead) + self.reader.held_bytes

    def expire(self, now: float) -> None:
        waiting_bytes = self.transport.get_write_buffer_size()
        if 0 < waiting_bytes < self._stalled_bytes:  # the peer is slow, but it reads
            self._stalled_bytes, self.deadline = waiting_bytes, now + self.shared.limits.stall_s
            return
        self.shared.expired_total += 1
        if self.is_write_blocked or self.stage >= CLOSING:
            self.abort()
        elif self.reader.is_midway:
            self.reader.break_off(TOO_SLOW)
        else:
            self._close()

    def drain(self) -> None:
        if self.stage < CLOSING and _is_idle(self):
            self._close()

    def abort(self) -> None:
        if self.stage < LOST:
            self.stage = CLOSING
            self.transport.abort()

    # --- input

    def _hold(self, data: bytes | memoryview) -> None:
        self._ahead += data
        self.shared.grew(len(data))
        if len(self._ahead) > self.shared.limits.ahead_bytes_max:
            _pause_reading(self)

    def _feed_sliced(self, data: memoryview) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self.stage != OPEN:
                return
            is_busy = self._current is not None or self._ahead or self.is_write_blocked
            if is_busy or self.reader.has_stopped or _has_worked(self):
                self._hold(data[start:])
                return
            self.reader.feed(data[start : start + SLICE_BYTES])

    def _await_rest(self) -> None:
        """A message is incomplete. If nothing else is going on, let the client send the rest."""
        if self._current is not None or self.stage != OPEN:
            return
        if self.reader.has_stopped:
            self._advance()
            return
        if self.reader.is_continue_due:
            self.reader.is_continue_due = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.is_write_blocked:
            self.deadline = self.reader.deadline

    # --- what the reader calls

    def received(self, request: Request, keeps_alive: bool, is_http10: bool, answer: Answer | None) -> None:
        if self.stage != OPEN:
            return
        if not keeps_alive:
            self.stage = DEAF
            self._lingers = answer is not None
        exchange = Http1Exchange(self, request, keeps_alive, is_http10)
        is_free = self._current is None and not self.is_write_blocked
        if is_free and not self._queue and not (self._burst and _has_worked(self)):
            self._run(exchange, answer)
            return
        self._queue.append((exchange, answer))
        if is_free:
            self._advance_soon()

    def broken(self, answer: Answer | None) -> None:
        if self.stage != OPEN:
            return
        self.shared.broken_total += 1
        if answer is not None:
            self.received(self.reader.request or NO_REQUEST, False, False, answer)
            return
        self.stage, self._lingers = DEAF, True
        if self._current is None and not self._queue:
            self._close()

    def push_back(self, data: bytes) -> None:
        self._ahead[:0] = data

    # --- exchanges, in order

    def _run(self, exchange: Http1Exchange, answer: Answer | None) -> None:
        self._current = exchange
        self._burst += 1
        try:
            if answer is None:
                self.shared.app.handle(exchange.request, exchange)
            else:
                exchange.respond(answer.status, answer.body, answer.headers, answer.content_type)
        except Exception as error:
            exchange.fail(error)
        if self._current is exchange:
            if not self.is_write_blocked:
                self.deadline = NEVER
            if self._has_eof:
                exchange.ended_by_client()

    def finished(self, exchange: Http1Exchange) -> None:
        """The answer of `exchange` is written."""
        self._current = exchange.on_disconnect = None
        reader = self.reader
        if not exchange.keeps_alive:
            self._close()
        elif self._queue or self._ahead or reader.has_stopped:
            self._advance_soon()
        elif self.stage != OPEN or self._has_eof or self.is_write_blocked or self._is_read_paused or reader.is_midway:
            self._advance()
        else:
            self.deadline = self.shared.now + self.shared.limits.idle_s

    def _advance_soon(self) -> None:
        """Go on with what waits in a turn of the connection's own, unless this is one."""
        if not self._is_advancing and not self._is_advance_due:
            self._is_advance_due = True
            self.shared.turns.add(self._advance_later)

    def _advance_later(self) -> None:
        self._is_advance_due = False
        self._burst = self.reader.work = 0
        self._advance()

    def _advance(self) -> None:
        """Go on with what waits. A handler that answers at once ends up here again, so this is not reentrant."""
        if self._is_advancing:
            return
        self._is_advancing, is_due = True, False
        try:
            while self._current is None and not self.is_write_blocked and self.stage < CLOSING:
                if _has_worked(self) and (self._queue or self.reader.has_stopped or self._ahead):
                    is_due = True
                    break
                if self._queue:
                    self._run(*self._queue.pop(0))
                elif self.reader.has_stopped:
                    self.reader.go_on()
                elif self._ahead and self.stage == OPEN:
                    data, self._ahead = memoryview(self._ahead), bytearray()
                    self._feed_sliced(data)
                else:
                    self._go_idle()
                    break
        finally:
            self._is_advancing = False
        if is_due:
            self._advance_soon()

    def _go_idle(self) -> None:
        """Nothing runs and nothing waits: read on, or close."""
        if _is_idle(self) and (self._has_eof or self.stage == DEAF):
            self._close()
            return
        if self._is_read_paused and not self._has_eof:
            self._is_read_paused = False
            self.transport.resume_reading()
        if self.reader.is_midway:
            self.reader.restart_clock()
            self._await_rest()
        else:
            self.deadline = self.shared.now + self.shared.limits.idle_s

    # --- the end

    def _close(self) -> None:
        """Close: everything is written, though perhaps not sent."""
        limits = self.shared.limits
        self.stage = CLOSING
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self.deadline = self.shared.now + (limits.stall_s if self._stalled_bytes else limits.linger_s)
        if (self._lingers or self.reader.is_midway) and not self._has_eof:
            if self._is_read_paused:
                self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Give the connection to another protocol; the listener learns of its end through `Upgraded`."""
        rest, self._ahead = bytes(self._ahead), bytearray()
        self.stage, self._current = LOST, None
        self.reader.close()
        self.shared.forget(self)
        self.transport.set_protocol(Upgraded(self.shared, self.transport, protocol))
        protocol.connection_made(self.transport)
        if self._is_read_paused:
            self.transport.resume_reading()
        if self.is_write_blocked:
            protocol.pause_writing()
        if rest:
            protocol.data_received(rest)
        if self._has_eof and not protocol.eof_received():
            self.transport.close()


def _pause_reading(connection: Http1) -> None:
    if not connection._is_read_paused:
        connection._is_read_paused = True
        connection.transport.pause_reading()


def _has_worked(connection: Http1) -> bool:
    """Whether this turn has done its share of work (LM10): the rest waits for the next turn."""
    if connection._burst >= (1 if connection.shared.turns.waiting else BURST_MAX) or connection.reader.work >= WORK_MAX:
        return True
    if connection._burst <= 1:  # one request in a turn is not timed
        connection._since = connection.shared.turns.monotonic()
        return False
    return connection.shared.turns.monotonic() - connection._since > TURN_S


def _is_idle(connection: Http1) -> bool:
    """Whether nothing runs or waits, and what was received cannot become a request."""
    has_input = connection._ahead and connection.stage == OPEN
    if has_input or connection._current is not None or connection._queue or connection.reader.has_stopped:
        return False
    return connection._has_eof or connection.stage >= DEAF or not connection.reader.is_midway
