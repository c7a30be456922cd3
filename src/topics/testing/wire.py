"""Connections to a server in memory: the protocols of its listener, without sockets.

    wire = Wire(server.listener.connections)
    line = wire.connect()
    line.send(b"GET /healthz HTTP/1.1\\r\\n", b"Host: x\\r\\n\\r\\n")  # two reads of the server
    ...                                                          # turns of the loop
    line.take()                                                  # what has come back

Owns what lies between a client and a protocol of the server: bytes under way in both directions, the end of either
side, a client that does not read. Must not know: HTTP, WebSocket, what any byte means.

The server's end is a transport of asyncio, and does what one on a socket does:

- Nothing of the server runs inside a call of the client, but in a later turn of the loop. A slice that was sent is one
  read, and one is delivered per turn; while the protocol has paused reading, none is.
- What the protocol writes is with the client at once, as it is in the kernel's hands on a socket, unless the client
  does not read (`block`). Then it piles up, and the protocol is told to pause.
- `close` ends after what is written was taken, `abort` at once; `connection_lost` comes in a later turn.
- `cut` is the death of the server's process: what is with the clients by then stays, and nothing passes any more.

Nothing here uses threads or time; a run is repeated exactly by running it again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, cast

from topics.server.transport.exchange import Connections
from topics.server.transport.listener import Sniffer

HIGH_BYTES: Final = 64 * 1024  # unsent, above which the protocol is told to pause; asyncio's default
FIRST_PORT: Final = 50_000
END: Final = b""  # among slices under way: the client has ended its side


class Wire:
    """All connections of one server. `high_bytes` is how much may pile up on one before its protocol is told."""

    def __init__(self, connections: Connections, *, high_bytes: int = HIGH_BYTES) -> None:
        self.lines: list[Line] = []
        self.is_cut = False
        self._connections = connections
        self._high_bytes = high_bytes
        self._ports = count(FIRST_PORT)

    def connect(self) -> "Line":
        """A new connection, which the server has accepted."""
        transport = WireTransport(self, ("127.0.0.1", next(self._ports)), self._high_bytes)
        transport.begin(Sniffer(self._connections))
        line = Line(transport)
        self.lines.append(line)
        return line

    def cut(self) -> None:
        """The server's process is dead."""
        self.is_cut = True

    @property
    def is_quiet(self) -> bool:
        """Whether nothing that a client sent is under way any more; what a paused protocol leaves lying is."""
        return not any(line.is_sending for line in self.lines)


class Line:
    """The client's end of a connection."""

    def __init__(self, transport: "WireTransport") -> None:
        self._transport = transport
        self._has_ended = False

    def send(self, *slices: bytes) -> None:
        """Send bytes; each slice is one read of the server. Ignored when the connection is gone."""
        assert not self._has_ended, "the client has ended its side"
        self._transport.feed(*(data for data in slices if data))

    def end(self) -> None:
        """Send no more. What the server still writes is received."""
        if not self._has_ended:
            self._has_ended = True
            self._transport.feed(END)

    def drop(self) -> None:
        """The connection breaks: what is under way in either direction is lost."""
        self._transport.break_off()

    def take(self) -> bytes:
        """What has come since the last call."""
        taken, self._transport.arrived = bytes(self._transport.arrived), bytearray()
        return taken

    def block(self) -> None:
        """Stop reading: what the server writes from now on piles up at its end."""
        self._transport.is_blocked = True

    def unblock(self) -> None:
        """Read on."""
        self._transport.unblock()

    @property
    def is_blocked(self) -> bool:
        return self._transport.is_blocked

    @property
    def is_sending(self) -> bool:
        """Whether something that was sent is not delivered yet."""
        return self._transport.has_incoming

    @property
    def is_ended(self) -> bool:
        """Whether the server has ended its side, and everything before that has come."""
        return self._transport.is_drained and (self._transport.has_ended or self.is_lost)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone, and the server knows."""
        return self._transport.is_lost


class WireTransport(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, wire: Wire, peer: tuple[str, int], high_bytes: int) -> None:
        super().__init__()
        self.arrived = bytearray()  # with the client
        self.is_blocked = False  # the client does not read
        self.has_ended = False  # the server has ended its side
        self.is_lost = False
        self._wire = wire
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._incoming: deque[bytes] = deque()
        self._unsent = bytearray()
        self._is_delivering = False  # a turn is scheduled
        self._is_reading = True
        self._is_closing = False
        self._is_pausing = False  # the protocol was told to pause writing
        self.set_write_buffer_limits(high_bytes)

    def begin(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # --- what the client does

    @property
    def has_incoming(self) -> bool:
        return bool(self._incoming) and not self._is_closing

    @property
    def is_drained(self) -> bool:
        return not self._unsent

    def feed(self, *slices: bytes) -> None:
        if not self._is_closing:
            self._incoming.extend(slices)
            self._deliver_soon()

    def break_off(self) -> None:
        self._incoming.clear()
        self.arrived.clear()
        self._abort(ConnectionResetError("the client is gone"))

    def unblock(self) -> None:
        self.is_blocked = False
        self.arrived += self._unsent
        self._unsent.clear()
        self._soon(self._sent)

    # --- turns of the loop

    def _soon(self, call: Callable[..., None], *args: object) -> None:
        """Call something of the server's, unless its process is dead by then."""

        def turn() -> None:
            if not self._wire.is_cut:
                call(*args)

        self._loop.call_soon(turn)

    def _deliver_soon(self) -> None:
        if self._incoming and self._is_reading and not self._is_delivering:
            self._is_delivering = True
            self._soon(self._deliver)

    def _deliver(self) -> None:
        """One read of the server."""
        self._is_delivering = False
        if not self._incoming or not self._is_reading or self._is_closing:
            return
        data = self._incoming.popleft()
        try:
            if data != END:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self.close()
        except BaseException:
            self.abort()  # as asyncio does, and the loop reports it
            raise
        self._deliver_soon()

    def _sent(self) -> None:
        """The client has taken something."""
        if self._is_pausing and len(self._unsent) <= self._low_bytes and not self.is_lost:
            self._is_pausing = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._protocol.connection_lost(error)

    # --- what the protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.has_ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_closing or self._wire.is_cut:
            return
        if not self.is_blocked:
            self.arrived += data
            return
        self._unsent += data
        if len(self._unsent) > self._high_bytes and not self._is_pausing:
            self._is_pausing = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._incoming.clear()
            self._soon(self._sent)

    def abort(self) -> None:
        self._abort(None)

    def _abort(self, error: Exception | None) -> None:
        self._is_closing = True
        self._incoming.clear()
        self._unsent.clear()
        self._soon(self._lose, error)

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._deliver_soon()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default
