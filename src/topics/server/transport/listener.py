"""The listening socket: accepts connections, finds out what they speak, sweeps and drains them.

Owns: the server socket, and the periodic sweep in place of a timer per connection.
Must not know: routes, requests, framing beyond the first bytes of a connection.

Invariants: every accepted connection is in `Connections.open` until it is gone; after `drain` returns, none is.
"""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from topics.clock import Clock, SystemClock
from topics.server.paced import Turns
from topics.server.transport.exchange import Application, Connections, Limits
from topics.server.transport.http1 import Http1
from topics.server.transport.http2 import Http2
from topics.server.transport.http2_reader import PREFACE
from topics.tuning import connections_allowed

SWEEP_S: Final = 1.0
BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 8  # libuv accepts one connection per turn of the loop and listening descriptor
RUSH_ACCEPTS: Final = 64  # more in a turn that had so many: who connects last must not wait for what the others ask


class Sniffer(asyncio.Protocol):
    """A connection that has not said yet whether it speaks HTTP/1 or HTTP/2."""

    __slots__ = ("_seen", "_shared", "_transport", "deadline")

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._seen = b""
        self.deadline = shared.now + shared.limits.idle_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._shared.admits_one_more():
            self._transport.abort()
            return
        self._shared.accepted_total += 1
        self._shared.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if len(self._seen) < len(PREFACE) and PREFACE.startswith(self._seen):
            self.deadline = min(self.deadline, self._shared.now + self._shared.limits.head_s)
        elif self._seen.startswith(PREFACE):
            self._shared.http2_total += 1
            self._become(Http2(self._shared))
        else:
            self._become(Http1(self._shared))

    def _become(self, protocol: Http1 | Http2) -> None:
        self._shared.forget(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._seen)

    def connection_lost(self, error: Exception | None) -> None:
        self._shared.forget(self)

    @property
    def held_bytes(self) -> int:
        return len(self._seen)

    def expire(self, now: float) -> None:
        self._shared.expired_total += 1
        self._transport.close()

    def drain(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class Listener:
    """Call `sweep` by hand, or let `start` call it every second."""

    def __init__(
        self,
        app: Application,
        limits: Limits | None = None,
        clock: Clock | None = None,
        turns_monotonic: Callable[[], float] | None = None,
    ) -> None:
        """`turns_monotonic` says how long the turns of connections take; by default the clock does."""
        self.connections = Connections(app, limits or Limits(), clock or SystemClock())
        if turns_monotonic is not None:
            self.connections.turns = Turns(turns_monotonic, self.connections.soon)
        self._servers: list[asyncio.Server] = []
        self._listening: list[socket.socket] = []
        self._accepting: set[asyncio.Task[object]] = set()
        self._accepted = 0  # since a rush was last looked for
        self._timer: asyncio.TimerHandle | None = None
        self.address = ("", 0)  # where it is bound; the first address, if the host name has several

    @property
    def open_count(self) -> int:
        return len(self.connections.open)

    async def start(self, host: str, port: int, *, sweeps: bool = True) -> None:
        """Bind and accept. Port 0 is any free one."""
        loop = asyncio.get_running_loop()
        self.connections.connections_max = self.connections.limits.connections_max or connections_allowed()
        first = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        self._servers.append(first)
        self.address = first.sockets[0].getsockname()[:2]
        for listening in list(first.sockets) * (ACCEPTS_PER_TURN - 1):
            again = socket.fromfd(listening.fileno(), listening.family, listening.type)
            self._servers.append(await loop.create_server(self._accept, sock=again, backlog=BACKLOG))
        self._listening = [socket.fromfd(one.fileno(), one.family, one.type) for one in first.sockets]
        for listening in self._listening:
            listening.setblocking(False)
        if sweeps:
            self._sweep_again()

    def _accept(self) -> Sniffer:
        """The protocol of a new connection."""
        self._accepted += 1
        if self._accepted == ACCEPTS_PER_TURN:
            self.connections.soon(self._accept_rush)
        return Sniffer(self.connections)

    def _accept_rush(self) -> None:
        """Accept what else waits. Otherwise a rush of requests would be worked off before whoever came behind it."""
        self._accepted, loop = 0, asyncio.get_running_loop()
        for listening in self._listening:
            for _ in range(RUSH_ACCEPTS):
                try:
                    connection, _ = listening.accept()
                except OSError:  # there is none, or no descriptor for it; then libuv deals with that
                    break
                connection.setblocking(False)
                connecting = loop.connect_accepted_socket(lambda: Sniffer(self.connections), connection)
                task = loop.create_task(connecting)
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)

    async def start_unix(self, path: str) -> None:
        """Accept on a Unix socket, too, that only this user may connect to. One left behind is replaced.

        OSError: something else is at the path, or a server answers there.
        """
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            else:
                raise OSError(errno.EADDRINUSE, "a server listens there")
        before = os.umask(0o177)
        try:
            server = await loop.create_unix_server(lambda: Sniffer(self.connections), path, backlog=BACKLOG)
        finally:
            os.umask(before)
        self._servers.append(server)

    def sweep(self) -> None:
        self.connections.sweep()

    def _sweep_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_again)
        self.sweep()

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        for listening in self._listening:
            listening.close()
        self._listening = []

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, close what is idle, wait for what runs, cut off what is left after the timeout."""
        self.stop_accepting()
        self.connections.is_draining = True
        for connection in list(self.connections.open):
            connection.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self.connections.wait_until_empty()
        except TimeoutError:
            await self.close()
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Cut everything off."""
        self.stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections.open):
            connection.abort()
        await self.connections.wait_until_empty()


@asynccontextmanager
async def serve(
    app: Application,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Listener]:
    """For tests: a listener that lives as long as the block. Given a `clock`, it sweeps only when told to."""
    listener = Listener(app, limits, clock)
    await listener.start(host, port, sweeps=clock is None)
    try:
        yield listener
    finally:
        await listener.close()
