"""What the transport tests share: a scripted application, a raw socket, and an event loop to run a test on.

Server and client live on one loop, so a test can wait for what it wants to see (`until`) and never sleeps.
"""

import asyncio
import functools
import json
import socket
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, NamedTuple, ParamSpec, Self, cast

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.settings import Settings

from topics.server.transport.exchange import (
    Answer,
    Application,
    Connections,
    Exchange,
    Limits,
    Request,
    Stream,
    error_answer,
)
from topics.server.transport.listener import Listener, Sniffer
from topics.testing.clock import ManualClock
from topics.testing.patience import PATIENCE_S

P = ParamSpec("P")

UNAUTHORIZED = error_answer(401, "unauthorized", "no key")


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on uvloop, and fail it if it hangs or an exception reaches the loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            stray: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await test(*args, **kwargs)
            finally:
                for client in RawClient.open:
                    client.close()
                RawClient.open.clear()
            assert stray == []

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true; `on_loop` says when to give up."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)


def speaks(listener: Listener, kind: type) -> bool:
    """Is there one connection, and has it turned out to be of this kind?"""
    return [type(one) for one in listener.connections.open] == [kind]


class Told:
    """Notes what the application is told of a stream."""

    def __init__(self, app: "ScriptedApp", path: bytes) -> None:
        self._app, self._path = app, path

    def stream_writable(self) -> None:
        self._app.events.append(("writable", self._path))

    def stream_closed(self) -> None:
        self._app.events.append(("close", self._path))


class ScriptedApp:
    """Answers by path: /hold is kept in `held`, /stream opens a stream, the rest is echoed."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.held: dict[bytes, Exchange] = {}  # the last one by path
        self.streams: dict[bytes, Stream] = {}
        self.unfinished: list[Exchange | Stream] = []  # all of them
        self.events: list[tuple[str, bytes]] = []  # (what, path), in order
        self.upgraded: list[asyncio.Protocol] = []
        self.large = b"x" * 100_000

    def headers_received(self, request: Request) -> Answer | None:
        if request.path.startswith(b"/refuse"):
            return UNAUTHORIZED
        if request.path == b"/head-boom":
            raise RuntimeError("broken on purpose")
        request.admission = self
        return None

    def still_holds(self, admission: object) -> bool:
        return True

    def readmitted(self, request: Request) -> Answer | None:
        return None

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.requests.append(request)
        path = request.path
        if path.startswith(b"/hold"):
            self.held[path] = exchange
            self.unfinished.append(exchange)
            exchange.when_disconnected(lambda: self.events.append(("disconnect", path)))
        elif path.startswith((b"/stream", b"/download")):
            stream = exchange.start_stream(
                200, [(b"cache-control", b"no-store")], b"text/plain", survives_eof=path.startswith(b"/download")
            )
            stream.owner = Told(self, path)
            self.streams[path] = stream
            self.unfinished.append(stream)
        elif path == b"/upgrade":
            exchange.upgrade(EchoProtocol(self))
        elif path == b"/large":
            exchange.respond(200, self.large)
        else:
            self._misbehave(path, exchange)

    def _misbehave(self, path: bytes, exchange: Exchange) -> None:
        if path == b"/boom":
            raise RuntimeError("broken on purpose")
        if path == b"/boom-late":
            exchange.respond(200, b"{}")
            raise RuntimeError("broken on purpose")
        if path == b"/boom-stream":
            exchange.start_stream(200).write(b"half")
            raise RuntimeError("broken on purpose")
        if path == b"/inject":
            exchange.respond(200, b"{}", [(b"x", b"a\r\nset-cookie: b")])
        elif path == b"/smuggle":
            exchange.respond(200, b"{}", [(b"Content-Length", b"0")])
        else:
            exchange.respond(200, echo(exchange.request))


def echo(request: Request) -> bytes:
    """The answer of ScriptedApp to anything else."""
    path, query, start = (text.decode("latin-1") for text in (request.path, request.query, request.body[:40]))
    return json.dumps([request.method, path, query, len(request.body), start], separators=(",", ":")).encode()


class EchoProtocol(asyncio.Protocol):
    """Takes a connection over and sends back what it gets."""

    def __init__(self, app: ScriptedApp) -> None:
        self.app = app
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.app.upgraded.append(self)
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.app.events.append(("lost", b"/upgrade"))


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error, whose body must have exactly the shape of the contract."""
        error = json.loads(self.body)
        assert list(error) == ["error"] and list(error["error"]) == ["code", "message"] and error["error"]["message"]
        return str(error["error"]["code"])


class RawClient:
    """A socket that sends and reads bytes as told."""

    open: ClassVar[list["RawClient"]] = []  # those of the running test

    def __init__(self, sock: socket.socket) -> None:
        self.open.append(self)
        self.socket = sock
        self.unread = b""
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, listener: Listener, *, receive_buffer_bytes: int = 0) -> "RawClient":
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        client = cls(sock)
        await client._loop.sock_connect(sock, listener.address)
        return client

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def receive(self) -> bytes:
        """What comes next; empty at EOF."""
        return await self._loop.sock_recv(self.socket, 1 << 16)

    async def read_until(self, end: bytes) -> bytes:
        while end not in self.unread:
            data = await self.receive()
            assert data, f"EOF before {end!r}, after {self.unread!r}"
            self.unread += data
        found, _, self.unread = self.unread.partition(end)
        return found + end

    async def read_exactly(self, count: int) -> bytes:
        while len(self.unread) < count:
            data = await self.receive()
            assert data, f"EOF after {len(self.unread)} of {count} bytes"
            self.unread += data
        found, self.unread = self.unread[:count], self.unread[count:]
        return found

    async def read_to_end(self) -> bytes:
        while data := await self.receive():
            self.unread += data
        found, self.unread = self.unread, b""
        return found

    async def reply(self, *, to_head: bool = False) -> Reply:
        head = (await self.read_until(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        version, status, _ = head[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers = dict(line.split(": ", 1) for line in head[1:])
        if to_head or status == "100":
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = await self.read_chunked()
        elif "content-length" in headers:
            body = await self.read_exactly(int(headers["content-length"]))
        else:
            body = await self.read_to_end()
        return Reply(int(status), headers, body)

    async def read_chunk(self) -> bytes:
        size = int(await self.read_until(b"\r\n"), 16)
        data = await self.read_exactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def read_chunked(self) -> bytes:
        body = b""
        while chunk := await self.read_chunk():
            body += chunk
        return body

    async def ask(self, request: bytes) -> Reply:
        await self.send(request)
        return await self.reply()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class MemoryTransport(asyncio.Transport):
    """A connection without a socket: what the server writes is in `written`, what the client sends goes to `feed`.

    Reads come exactly as they are fed, and nothing happens in between. There is no event loop: what the server leaves
    for a later turn is done at the end of `feed`, or by `turn`.
    """

    def __init__(self, app: Application, limits: Limits | None = None, clock: ManualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or ManualClock()
        self.connections = Connections(app, limits or Limits(), self.clock)
        self._turns: list[Callable[[], None]] = []
        self.connections.soon = self._turns.append  # type: ignore[method-assign]
        self.written = b""
        self.is_ended = False  # the client has seen EOF or a reset
        self.is_lost = False
        self.is_blocked = False
        self.reads = True
        self._protocol: asyncio.Protocol = Sniffer(self.connections)
        self._protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        if not self.is_lost:
            self._protocol.data_received(data)
            self.turn()

    def turn(self) -> None:
        """Do what was left for a later turn, and what that leaves."""
        while self._turns:
            self._turns.pop(0)()

    def feed_eof(self) -> None:
        if not self.is_lost and not self._protocol.eof_received():
            self.close()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.connections.sweep()

    def block(self) -> None:
        """The client stops reading; what is written from now on still arrives, later."""
        if not self.is_lost and not self.is_blocked:
            self.is_blocked = True
            self._protocol.pause_writing()

    def unblock(self) -> None:
        if not self.is_lost and self.is_blocked:
            self.is_blocked = False
            self._protocol.resume_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_ended

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_ended
        self.written += data

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        """Like a real one, tells its protocol only when the running callback is over: with `lose`."""
        self.is_ended = True

    abort = close

    def lose(self) -> None:
        if not self.is_lost:
            self.is_ended = self.is_lost = True
            self._protocol.connection_lost(None)


def get(path: str, *headers: str) -> bytes:
    return request("GET", path, b"", *headers)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return request("POST", path, body, f"Content-Length: {len(body)}", *headers)


def listed(one: bytes, times: int, between: bytes = b",") -> bytes:
    """The same thing very often, as `join` would make it of a list that takes longer to make than the bytes."""
    return (one + between) * (times - 1) + one


def chunked(path: str, *chunks: bytes, trailers: bytes = b"") -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return request("POST", path, b"".join(parts) + b"0\r\n" + trailers + b"\r\n", "Transfer-Encoding: chunked")


def request(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


class Http2Client:
    """The h2 state machine as a client on a raw socket. It refills windows only when told to."""

    def __init__(self, raw: RawClient, *, refills: bool = True) -> None:
        self.raw = raw
        self.refills = refills
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self.bodies: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.is_ended = False

    @classmethod
    async def connect(cls, listener: Listener, *, refills: bool = True, settings: dict[int, int] | None = None) -> Self:
        client = cls(await RawClient.connect(listener), refills=refills)
        if settings:
            client.h2.local_settings = Settings(client=True, initial_values=settings)
        client.h2.initiate_connection()
        await client.flush()
        return client

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.raw.send(data)

    async def start(
        self, path: str, body: bytes | None = None, *headers: tuple[str, str], method: str = "", is_end: bool = True
    ) -> int:
        """Send a request, as far as the window goes; the stream's id."""
        stream_id = self.h2.get_next_available_stream_id()
        method = method or ("GET" if body is None else "POST")
        lines = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost"), *headers]
        self.h2.send_headers(stream_id, lines, end_stream=body is None and is_end)
        await self.flush()
        if body is not None:
            await self.send_body(stream_id, body, is_end=is_end)
        return stream_id

    async def send_body(self, stream_id: int, body: bytes, *, is_end: bool = True) -> None:
        """All of it, unless the server resets the stream while this waits for its window."""
        at = 0
        while at < len(body) or is_end:
            size = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(body) - at)
            if size <= 0 and at < len(body):
                await self.read_more()
                if any(isinstance(event, StreamReset) and event.stream_id == stream_id for event in self.events):
                    return
                continue
            is_last = is_end and at + size == len(body)
            self.h2.send_data(stream_id, body[at : at + size], end_stream=is_last)
            await self.flush()
            at += size
            if is_last:
                break

    async def read_more(self) -> None:
        try:
            data = await self.raw.receive()
        except ConnectionResetError:  # what this side sent crossed the end that a GOAWAY had announced
            assert any(isinstance(event, ConnectionTerminated) for event in self.events)
            data = b""
        if not data:
            self.is_ended = True
            return
        events = self.h2.receive_data(data)
        self.events += events
        for event in events:
            if isinstance(event, DataReceived):
                self.bodies[event.stream_id] += event.data
                if self.refills and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        await self.flush()

    async def read_for(self, kind: type[Event], stream_id: int | None = None) -> Any:
        """The first event of this kind, of any stream or of this one."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    return event
            assert not self.is_ended, f"EOF before {kind.__name__}"
            await self.read_more()

    async def read_to_end(self) -> None:
        while not self.is_ended:
            await self.read_more()

    def body(self, stream_id: int) -> bytes:
        """What has come of a body so far."""
        return bytes(self.bodies[stream_id])

    async def reply(self, stream_id: int) -> Reply:
        response = await self.read_for(ResponseReceived, stream_id)
        await self.read_for(StreamEnded, stream_id)
        headers = dict(response.headers)
        return Reply(int(headers.pop(":status")), headers, self.body(stream_id))

    async def ask(self, path: str, body: bytes | None = None, *headers: tuple[str, str], method: str = "") -> Reply:
        return await self.reply(await self.start(path, body, *headers, method=method))
