"""HTTP/2 cleartext by prior knowledge, over the h2 state machine: one protocol object per connection.

Owns: which exchanges there are and whose turn it is to send, flow control of what comes in, deadlines and the end of a
connection. One exchange is `http2_exchange`. Must not know: routes, JSON, HTTP/1.

Invariants
- An exchange is in `_exchanges` from its headers until its answer is sent or its stream is reset.
- What waits for the peer's window or for the socket is kept per exchange (`pending`) and counts in `Stream.buffered`;
  h2 is given only what goes out at once. While too much of it waits (`answers`), no further large answer is made.
- The connection's window is always refilled. A stream's window is refilled while the bodies in memory for this
  connection are within the limit of one body, or if it is the oldest: memory is bounded, and one body always goes on.
- `_stage` only grows. ENDING: no new requests. CLOSING: no input is interpreted.
"""

import asyncio
from collections.abc import Callable
from functools import partial
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

from topics.server.paced import TURN_S
from topics.server.transport.exchange import (
    KIB,
    TOO_LARGE,
    Connections,
    logger,
)
from topics.server.transport.http2_exchange import Answers, Http2Exchange, attempt
from topics.server.transport.http2_reader import (
    FRAME_BYTES_MAX,
    RESET_WEIGHT,
    WINDOW_BYTES,
    Flood,
    Noise,
    goaway,
    judge_head,
    new_state_machine,
    read_head,
)

SLICES_MAX: Final = 8  # of a few frames each that are taken in one turn of the loop
READ_BYTES_MAX: Final = 64 * KIB  # the connection's window: a larger read is the last of its turn
LONG_TURN_S: Final = 2 * TURN_S  # a connection that took so long at once, because what it sent cannot be divided, …
REST_FACTOR: Final = 2  # … rests for so many times that long
EXAMINE_S: Final = 5.0  # between looks at the exchanges of a busy connection

OPEN, ENDING, CLOSING, LOST = range(4)


class Http2(asyncio.Protocol):
    def __init__(self, shared: Connections) -> None:
        self.shared = shared
        self.deadline = shared.now + shared.limits.idle_s
        self.is_write_blocked = False
        self._exchanges: dict[int, Http2Exchange] = {}
        self.h2 = new_state_machine(shared.limits)
        self.noise = Noise(shared.limits, shared.now)
        self._unrefilled_bytes = 0  # of the connection's window
        self._ahead = bytearray()  # what came in and waits for its turn; nothing is read meanwhile
        self._due: list[Http2Exchange] = []  # complete requests that wait for a turn
        self._is_due = False  # a turn for them is asked for
        self._has_room = False  # and one for answers that wait for room
        self.answers = Answers(shared.limits.answers_bytes_max, partial(_have_room, self))
        self._since = 0.0  # when this turn began
        self._stage = OPEN

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.shared.open.add(self)
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._ahead:
            self._ahead += data
        else:
            self._take(data)

    def _take_more(self) -> None:
        """A turn of its own: take more of what has come, and read on when that is used up."""
        data, self._ahead = bytes(self._ahead), bytearray()
        self._take(data)
        if not self._ahead and self._stage < LOST and not self.transport.is_closing():
            self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        """Take what is enough for a turn (LM10), and keep the rest for the next one."""
        if self._stage >= CLOSING:
            return
        try:
            self.shared.grew(len(data))
            self._since, is_full, spent_s = self.shared.turns.monotonic(), len(data) > READ_BYTES_MAX, 0.0
            for _ in range(SLICES_MAX):
                data = _take_slice(self, data)
                spent_s = self.shared.turns.monotonic() - self._since
                if not data or spent_s > self.shared.turns.share_s:
                    break
            self.flush()
            self._ahead += data
            if self._ahead or is_full or spent_s > TURN_S:  # the loop may have more of it in this turn
                if self.transport.is_reading():
                    self.transport.pause_reading()
                _later(self, spent_s)
        except Flood:
            self._close(ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError:
            self._close(None)
        except Exception:
            logger.exception("an HTTP/2 connection failed")
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
        self._ahead.clear()
        self._due.clear()
        self.shared.forget(self)
        for exchange in list(self._exchanges.values()):
            exchange.lost()
        self.answers.close()
        vars(self.h2).clear()  # it refers to itself

    # --- what the listener calls

    @property
    def held_bytes(self) -> int:
        return self.unsent_bytes + len(self._ahead) + sum(one.held_bytes for one in self._exchanges.values())

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
                    self.shared.expired_total += 1
                    exchange.cut_off()
            self._rest()

    def drain(self) -> None:
        if self._stage == OPEN:
            self._stage = ENDING
            self.transport.write(goaway(self.h2.highest_inbound_stream_id))
            self._rest()

    def abort(self) -> None:
        self._stage = max(self._stage, CLOSING)
        self.transport.abort()

    # --- input

    def _on_request(self, event: RequestReceived) -> None:
        if self._stage != OPEN:
            attempt(self.h2.reset_stream, event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        request = read_head(event.headers, event.stream_ended is not None, self._peer)
        exchange = self._exchanges[event.stream_id] = Http2Exchange(self, event.stream_id, request)
        self._rest()
        answer = judge_head(request, self.shared.limits) or self.shared.refusal(request)
        if answer is not None:
            exchange.is_complete = event.stream_ended is not None
            exchange.answer(answer)
        elif b"expect" in request.headers and request.content_length != 0:
            attempt(self.h2.send_headers, exchange.id, [(b":status", b"100")])

    def _on_data(self, event: DataReceived) -> None:
        self._unrefilled_bytes += event.flow_controlled_length
        if self._unrefilled_bytes >= FRAME_BYTES_MAX:
            self.h2.increment_flow_control_window(self._unrefilled_bytes)
            self._unrefilled_bytes = 0
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None or exchange.is_answered:
            return
        exchange.receive(bytes(event.data))
        exchange.unrefilled_bytes += event.flow_controlled_length
        if exchange.body_bytes > min(exchange.request.body_bytes_max, self.shared.limits.body_bytes_max):
            exchange.answer(TOO_LARGE)
        elif exchange.unrefilled_bytes >= WINDOW_BYTES // 2:
            self._refill()

    def _refill(self) -> None:
        """Give stream windows back, to the oldest unfinished body first."""
        unfinished = [one for one in self._exchanges.values() if not one.is_complete and not one.is_answered]
        held_bytes = sum(one.body_bytes for one in unfinished)
        for n, exchange in enumerate(unfinished):
            if exchange.unrefilled_bytes and (n == 0 or held_bytes <= self.shared.limits.body_bytes_max):
                attempt(self.h2.increment_flow_control_window, exchange.unrefilled_bytes, exchange.id)
                exchange.unrefilled_bytes = 0

    def _on_end(self, event: StreamEnded) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None:
            return
        exchange.is_complete = True
        if exchange.is_answered:
            return
        exchange.request.body = exchange.take_body()
        self._refill()
        if self._due or self.shared.turns.monotonic() - self._since > self.shared.turns.share_s:
            self._due.append(exchange)
            _due_soon(self)
        else:
            exchange.run()

    def _on_reset(self, event: StreamReset) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if not event.remote_reset:  # the peer has sent what it may not, and h2 has reset its stream
            self.noise.add(RESET_WEIGHT)
        if exchange is not None:
            exchange.lost()
            self._refill()
            self._rest()

    # --- output

    def _go_on(self, exchanges: list[Http2Exchange]) -> None:
        self.send_in_turn([one for one in exchanges if one.pending_bytes or one.is_ending])
        for exchange in exchanges:
            if exchange.stream is not None and not exchange.stream.is_blocked:
                exchange.stream.writable()

    def send_in_turn(self, exchanges: list[Http2Exchange]) -> None:
        """Send a frame of each exchange in turn, until nothing more can go out."""
        while exchanges and not self.is_write_blocked:
            exchanges = [one for one in exchanges if one.send_frame()]
            self.flush()

    def forget(self, exchange: Http2Exchange) -> None:
        """An exchange is over."""
        self._exchanges.pop(exchange.id, None)
        exchange.gone()
        self._rest()

    def flush(self) -> None:
        """Write what h2 has to send to the socket."""
        data = self.h2.data_to_send()
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
        """Say why (None: h2 has), then read on until the peer closes, so that it hears."""
        limits = self.shared.limits
        if self._stage >= CLOSING:
            return
        if code is not None:
            attempt(self.h2.close_connection, code)
        self.flush()
        self._stage = CLOSING
        for exchange in list(self._exchanges.values()):
            exchange.lost()
        self.deadline = self.shared.now + (limits.stall_s if self.unsent_bytes else limits.linger_s)
        if code is ErrorCodes.NO_ERROR:
            self.transport.close()
        else:
            self.shared.broken_total += 1
            self.transport.write_eof()


def _on_window(connection: Http2, event: Event) -> None:
    connection._go_on([one for one in connection._exchanges.values() if one.pending_bytes])


def _on_goaway(connection: Http2, event: ConnectionTerminated) -> None:
    connection._stage = max(connection._stage, ENDING)
    connection._rest()


def _take_slice(connection: Http2, data: bytes) -> bytes:
    """Take some frames; what is left."""
    used_bytes = connection.noise.hear(data, connection.shared.now)
    for event in connection.h2.receive_data(data[:used_bytes]):
        handler = HANDLERS.get(type(event))
        if handler is not None:
            handler(connection, event)
    return data[used_bytes:]


def _later(connection: Http2, spent_s: float) -> None:
    """Take more in a turn of its own, when others had time, too, if this one was very long."""
    if spent_s > LONG_TURN_S:
        asyncio.get_running_loop().call_later(REST_FACTOR * spent_s, connection._take_more)
    else:
        connection.shared.turns.add(connection._take_more)


def _have_room(connection: Http2) -> None:
    """Answers were taken: those that are still to be made go on in a turn of their own."""
    connection._has_room = True
    _due_soon(connection)


def _due_soon(connection: Http2) -> None:
    """Go on with what waits in a turn of its own."""
    if not connection._is_due and connection._stage < CLOSING:
        connection._is_due = True
        connection.shared.turns.add(partial(_handle_due, connection))


def _handle_due(connection: Http2) -> None:
    """A turn of its own: handle what was complete before, as much as is enough for a turn (LM10).

    What has begun and waits for room goes before that.
    """
    shared, due = connection.shared, connection._due
    connection._is_due = False
    if connection._stage >= CLOSING:
        return
    connection._since = shared.turns.monotonic()
    if connection._has_room:
        connection._has_room = False
        connection.answers.wake()
    while due:
        if not due[0].is_gone:
            due[0].run()
        del due[:1]  # it was lost with its connection, perhaps
        if shared.turns.monotonic() - connection._since > shared.turns.share_s:
            break
    if due:
        _due_soon(connection)


HANDLERS: Final[dict[type[Event], Callable[[Http2, Any], None]]] = {
    RequestReceived: Http2._on_request,
    DataReceived: Http2._on_data,
    StreamEnded: Http2._on_end,
    StreamReset: Http2._on_reset,
    WindowUpdated: _on_window,
    RemoteSettingsChanged: _on_window,
    ConnectionTerminated: _on_goaway,
}
