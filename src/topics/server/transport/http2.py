"""HTTP/2 cleartext by prior knowledge, over the h2 state machine: one protocol object per connection.

Owns: exchanges as HTTP/2 streams, flow control both ways, deadlines and the end of a connection.
Must not know: routes, JSON, HTTP/1.

Invariants
- An exchange is in `_exchanges` from its headers until its answer is sent or its stream is reset.
- What waits for the peer's window or for the socket is held per exchange (`pending`) and shown as
  `Stream.buffered`; h2 is given only what goes out at once.
- The connection's window is always refilled. A stream's window is refilled while the bodies held for this
  connection are within the limit of one body, or if it is the oldest: bodies are bounded and one always goes on.
- `_stage` only grows. ENDING: no new requests. CLOSING: no input is interpreted.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from topics.server.transport.exchange import (
    BODYLESS,
    JSON,
    KIB,
    NEVER,
    TOO_LARGE,
    TOO_SLOW,
    Answer,
    Connections,
    Exchange,
    Headers,
    Limits,
    Request,
    Stream,
    check_headers,
    log,
)
from topics.server.transport.http2_reader import (
    FRAME_BYTES_MAX,
    WINDOW_BYTES,
    Flood,
    FrameWatch,
    goaway,
    judge_head,
    new_state_machine,
    read_head,
)

CHUNK_BYTES_MAX: Final = 64 * KIB  # of one frame out, whatever the peer would take
EXAMINE_S: Final = 5.0  # between looks at the exchanges of a busy connection

OPEN, ENDING, CLOSING, LOST = range(4)


class Http2Exchange(Exchange):
    def __init__(self, connection: "Http2", stream_id: int, request: Request) -> None:
        super().__init__(request)
        self._connection = connection
        self.id = stream_id
        self.is_gone = False  # answered completely, reset, or the connection is lost
        self.since = connection.shared.now  # the request began, or something pending was last sent
        # In.
        self.is_complete = False
        self.parts: list[bytes] = []
        self.body_bytes = 0
        self.unrefilled_bytes = 0  # taken from the stream's window and not given back yet
        # Out.
        self.pending: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.is_ending = False  # nothing comes after what is pending

    def respond(self, status: int, body: bytes, headers: Headers = (), content_type: bytes = JSON) -> None:
        self.must_be_unanswered()
        lines = self._head(status, headers, content_type)
        if body or status not in BODYLESS:
            lines.append((b"content-length", b"%d" % len(body)))
        self.is_answered = True
        has_body = bool(body) and self.request.method != "HEAD"
        self._connection.send_head(self, lines, is_end=not has_body)
        if has_body:
            self.is_ending = True
            self._connection.send(self, body)

    def start_stream(
        self, status: int, headers: Headers = (), content_type: bytes = JSON, *, survives_eof: bool = False
    ) -> Stream:
        self.must_be_unanswered()
        lines = self._head(status, headers, content_type)
        self.is_answered = True
        self._connection.send_head(self, lines, is_end=False)
        self.stream = stream = Http2Stream(self, self._connection)
        if self.is_gone:
            self._connection.shared.soon(stream.closed)
        return stream

    def _head(self, status: int, headers: Headers, content_type: bytes) -> list[tuple[bytes, bytes]]:
        check_headers(headers)
        lines = [(b":status", b"%d" % status), (b"date", self._connection.shared.date), (b"content-type", content_type)]
        return lines + [(name.lower(), value) for name, value in headers]

    def deadline(self, limits: Limits) -> float:
        if not self.is_complete and not self.is_answered:
            return self.since + limits.body_s + self.body_bytes / limits.body_rate_min
        return self.since + limits.stall_s if self.pending_bytes else NEVER

    def take(self, bytes_max: int) -> memoryview:
        """What goes into the next frame."""
        if not self.pending:
            return memoryview(b"")
        data = self.pending.popleft()
        if len(data) > bytes_max:
            self.pending.appendleft(data[bytes_max:])
            data = data[:bytes_max]
        self.pending_bytes -= len(data)
        return data

    def gone(self) -> None:
        """For the connection: nothing more can be sent."""
        self.is_gone = True
        self.pending.clear()
        self.pending_bytes = 0
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
            self._connection.send(self._exchange, data)

    def end(self, *, closes: bool = False) -> None:
        if not self._exchange.is_ending:
            self._exchange.is_ending = True
            self._connection.send(self._exchange, b"")

    def abort(self) -> None:
        self._connection.reset(self._exchange, ErrorCodes.INTERNAL_ERROR)


class Http2(asyncio.Protocol):
    def __init__(self, shared: Connections) -> None:
        self.shared = shared
        self.deadline = shared.now + shared.limits.idle_s
        self.is_write_blocked = False
        self._exchanges: dict[int, Http2Exchange] = {}
        self._h2 = new_state_machine(shared.limits)
        self._watch = FrameWatch()
        self._noise = 0
        self._noise_since = shared.now
        self._unrefilled_bytes = 0  # of the connection's window
        self._stage = OPEN

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.shared.open.add(self)
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._stage >= CLOSING:
            return
        try:
            self._listen_for_noise(data)
            for event in self._h2.receive_data(data):
                handler = HANDLERS.get(type(event))
                if handler is not None:
                    handler(self, event)
            self._flush()
        except Flood:
            self._close(ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError:
            self._close(None)
        except Exception:
            log.exception("an HTTP/2 connection failed")
            self._close(ErrorCodes.INTERNAL_ERROR)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_write_blocked = True

    def resume_writing(self) -> None:
        self.is_write_blocked = False
        self._go_on(list(self._exchanges.values()))

    def connection_lost(self, error: Exception | None) -> None:
        self._stage = LOST
        self.shared.forget(self)
        for exchange in list(self._exchanges.values()):
            self._lost(exchange)
        vars(self._h2).clear()  # it refers to itself

    # --- what the listener calls

    def expire(self, now: float) -> None:
        if self._stage >= CLOSING:
            self.shared.expired_total += 1
            self.transport.abort()
        elif not self._exchanges:
            self.shared.expired_total += 1
            self._close(ErrorCodes.NO_ERROR)
        else:
            for exchange in list(self._exchanges.values()):
                if exchange.deadline(self.shared.limits) <= now:
                    self._cut_off(exchange)
            self._rest()

    def _cut_off(self, exchange: Http2Exchange) -> None:
        self.shared.expired_total += 1
        if exchange.is_answered:
            self.reset(exchange, ErrorCodes.CANCEL)
        else:
            self._answer(exchange, TOO_SLOW)

    def drain(self) -> None:
        if self._stage == OPEN:
            self._stage = ENDING
            self.transport.write(goaway(self._h2.highest_inbound_stream_id))
            self._rest()

    def abort(self) -> None:
        self._stage = max(self._stage, CLOSING)
        self.transport.abort()

    # --- input

    def _listen_for_noise(self, data: bytes) -> None:
        limits = self.shared.limits
        if self.shared.now - self._noise_since >= limits.noise_s:
            self._noise, self._noise_since = 0, self.shared.now
        self._noise += self._watch.weigh(data)
        if self._noise > limits.noise_max:
            raise Flood("too many control frames")

    def _on_request(self, event: RequestReceived) -> None:
        if self._stage != OPEN:
            self._try(self._h2.reset_stream, event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        request = read_head(event.headers, event.stream_ended is not None, self._peer)
        exchange = self._exchanges[event.stream_id] = Http2Exchange(self, event.stream_id, request)
        self._rest()
        answer = judge_head(request, self.shared.limits) or self.shared.refusal(request)
        if answer is not None:
            exchange.is_complete = event.stream_ended is not None
            self._answer(exchange, answer)
        elif b"expect" in request.headers and request.content_length != 0:
            self._try(self._h2.send_headers, exchange.id, [(b":status", b"100")])

    def _on_data(self, event: DataReceived) -> None:
        self._unrefilled_bytes += event.flow_controlled_length
        if self._unrefilled_bytes >= FRAME_BYTES_MAX:
            self._h2.increment_flow_control_window(self._unrefilled_bytes)
            self._unrefilled_bytes = 0
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None or exchange.is_answered:
            return
        exchange.parts.append(bytes(event.data))
        exchange.body_bytes += len(event.data)
        exchange.unrefilled_bytes += event.flow_controlled_length
        if exchange.body_bytes > self.shared.limits.body_bytes_max:
            self._answer(exchange, TOO_LARGE)
        elif exchange.unrefilled_bytes >= WINDOW_BYTES // 2:
            self._refill()

    def _refill(self) -> None:
        """Give stream windows back, to the oldest unfinished body first."""
        unfinished = [one for one in self._exchanges.values() if not one.is_complete and not one.is_answered]
        held_bytes = sum(one.body_bytes for one in unfinished)
        for n, exchange in enumerate(unfinished):
            if exchange.unrefilled_bytes and (n == 0 or held_bytes <= self.shared.limits.body_bytes_max):
                self._try(self._h2.increment_flow_control_window, exchange.unrefilled_bytes, exchange.id)
                exchange.unrefilled_bytes = 0

    def _on_end(self, event: StreamEnded) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None:
            return
        exchange.is_complete = True
        if exchange.is_answered:
            return
        exchange.request.body = b"".join(exchange.parts)
        exchange.parts = []
        self._refill()
        try:
            self.shared.app.handle(exchange.request, exchange)
        except Exception as error:
            exchange.fail(error)

    def _on_reset(self, event: StreamReset) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            self._lost(exchange)
            self._refill()
            self._rest()

    def _on_window(self, event: Event) -> None:
        self._go_on([one for one in self._exchanges.values() if one.pending_bytes])

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        self._stage = max(self._stage, ENDING)
        self._rest()

    # --- output

    def _answer(self, exchange: Http2Exchange, answer: Answer) -> None:
        try:
            exchange.respond(answer.status, answer.body, answer.headers, answer.content_type)
        except Exception as error:
            exchange.fail(error)

    def send_head(self, exchange: Http2Exchange, headers: list[tuple[bytes, bytes]], *, is_end: bool) -> None:
        if exchange.is_gone:
            return
        is_sent = self._try(self._h2.send_headers, exchange.id, headers, end_stream=is_end)
        self._flush()
        if is_end or not is_sent:
            self._finish(exchange)

    def send(self, exchange: Http2Exchange, data: bytes) -> None:
        """Send what windows and socket take now, and keep the rest."""
        if exchange.is_gone:
            return
        if not exchange.pending_bytes:
            exchange.since = self.shared.now
        if data:
            exchange.pending.append(memoryview(data))
            exchange.pending_bytes += len(data)
        self._send_in_turn([exchange])

    def _go_on(self, exchanges: list[Http2Exchange]) -> None:
        self._send_in_turn([one for one in exchanges if one.pending_bytes or one.is_ending])
        for exchange in exchanges:
            if exchange.stream is not None and not exchange.stream.is_blocked:
                exchange.stream.writable()

    def _send_in_turn(self, exchanges: list[Http2Exchange]) -> None:
        """A frame for each, and again, until nothing more can go."""
        while exchanges and not self.is_write_blocked:
            exchanges = [one for one in exchanges if self._send_frame(one)]
            self._flush()

    def _send_frame(self, exchange: Http2Exchange) -> bool:
        """True: there may be more to send."""
        if exchange.is_gone:
            return False
        try:
            window_bytes = self._h2.local_flow_control_window(exchange.id)
            bytes_max = min(window_bytes, self._h2.max_outbound_frame_size, CHUNK_BYTES_MAX)
            if exchange.pending_bytes and bytes_max <= 0:
                return False
            data = exchange.take(bytes_max)
            is_end = exchange.is_ending and not exchange.pending_bytes
            if data or is_end:
                self._h2.send_data(exchange.id, bytes(data), end_stream=is_end)
        except ProtocolError:
            is_end = True
        if is_end:
            self._finish(exchange)
        exchange.since = self.shared.now
        self._noise = max(0, self._noise - 2)  # what it was sent, the peer may acknowledge: stream and connection
        return exchange.pending_bytes > 0

    def reset(self, exchange: Http2Exchange, code: ErrorCodes) -> None:
        if not exchange.is_gone:
            self._try(self._h2.reset_stream, exchange.id, code)
            self._flush()
            self._forget(exchange)

    def _finish(self, exchange: Http2Exchange) -> None:
        """The answer is sent. What is left of the request is not wanted any more."""
        if not exchange.is_complete:
            self._try(self._h2.reset_stream, exchange.id, ErrorCodes.NO_ERROR)
            self._flush()
        self._forget(exchange)

    def _lost(self, exchange: Http2Exchange) -> None:
        """The client is not there any more."""
        exchange.is_gone = True
        exchange.disconnected()
        self._forget(exchange)

    def _forget(self, exchange: Http2Exchange) -> None:
        self._exchanges.pop(exchange.id, None)
        exchange.gone()
        self._rest()

    def _try(self, action: Callable[..., None], *args: Any, **kwargs: Any) -> bool:
        """h2 knows of resets whose events have not been handled yet."""
        try:
            action(*args, **kwargs)
        except ProtocolError:
            return False
        return True

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._stage < CLOSING:
            self.transport.write(data)

    # --- time and the end

    def _rest(self) -> None:
        """Set the deadline that fits; end a connection that has nothing left to do."""
        now = self.shared.now
        if self._stage >= CLOSING:
            return
        if self._exchanges:
            if not now < self.deadline <= now + EXAMINE_S:
                self.deadline = now + EXAMINE_S
        elif self._stage == ENDING:
            self._close(ErrorCodes.NO_ERROR)
        else:
            self.deadline = now + self.shared.limits.idle_s

    def _close(self, code: ErrorCodes | None) -> None:
        """Say goodbye (None: h2 has), then read on until the peer closes: it shall hear why."""
        limits = self.shared.limits
        if self._stage >= CLOSING:
            return
        if code is not None:
            self._try(self._h2.close_connection, code)
        self._flush()
        self._stage = CLOSING
        for exchange in list(self._exchanges.values()):
            self._lost(exchange)
        self.deadline = self.shared.now + (limits.stall_s if self.unsent_bytes else limits.linger_s)
        if code is ErrorCodes.NO_ERROR:
            self.transport.close()
        else:
            self.shared.broken_total += 1
            self.transport.write_eof()


HANDLERS: Final[dict[type[Event], Callable[[Http2, Any], None]]] = {
    RequestReceived: Http2._on_request,
    DataReceived: Http2._on_data,
    StreamEnded: Http2._on_end,
    StreamReset: Http2._on_reset,
    WindowUpdated: Http2._on_window,
    RemoteSettingsChanged: Http2._on_window,
    ConnectionTerminated: Http2._on_goaway,
}
