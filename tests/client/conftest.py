"""Clients of both kinds against real servers, and a server that misbehaves by script.

Tests that take `client` run twice: with a Client, and with an AsyncClient behind `Blocking`, which runs its coroutines
on a loop in a thread. Time of the clients stands still but for their pauses, which end at once and are recorded.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from topics.client import AsyncClient, Client
from topics.clock import SystemClock
from topics.settings import Settings
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

NUMBERS = count(1)


class Skipping:
    """A clock whose waits are over at once. `during` is called in each, in turn; the last one again and again."""

    def __init__(self, *during: Callable[[], object]) -> None:
        self._now_s = 100.0
        self._during = list(during)
        self.pauses: list[float] = []

    def now_ms(self) -> int:
        return round(self._now_s * 1000)

    def monotonic(self) -> float:
        return self._now_s

    def pass_by(self, seconds: float) -> None:
        self._now_s += seconds

    def pause(self, seconds: float, over: threading.Event) -> None:
        self.pauses.append(seconds)
        self.pass_by(seconds)
        if self._during:
            (self._during.pop(0) if len(self._during) > 1 else self._during[0])()

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        await asyncio.to_thread(self.pause, timeout_ms / 1000, threading.Event())


class Pausing(SystemClock):
    """A clock whose pauses end only when they are cut short. `begun` is set by the first one."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def pause(self, seconds: float, over: threading.Event) -> None:
        self.begun.set()
        assert over.wait(PATIENCE_S)

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        self.begun.set()
        await asyncio.wait_for(asyncio.shield(future), PATIENCE_S)


class Blocking:
    """An AsyncClient, or an object of one, with everything awaited."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def _wait(self, awaitable: Any) -> Any:
        async def waiting() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(waiting(), self._loop).result(PATIENCE_S)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def calling(*args: Any, **named: Any) -> Any:
            result = value(*args, **named)
            if asyncio.iscoroutine(result):
                return self._wait(result)
            return Blocking(result, self._loop) if hasattr(result, "__dict__") or hasattr(result, "asend") else result

        return calling

    def __iter__(self) -> "Blocking":
        return self

    def __next__(self) -> Any:
        try:
            return self._wait(anext(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> "Blocking":
        self._wait(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._wait(self._inner.__aexit__(*error))


Connect = Callable[..., Any]


@pytest.fixture(params=[Client, AsyncClient])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes a client of an address, which is closed with the test; `clock` is its time."""
    opened: list[Any] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="client-loop")

    def connecting(
        address: tuple[str, int], token: str = "", *, clock: Any = None, scheme: str = "http", **arguments: Any
    ) -> Any:
        url = "{}://{}:{}".format(scheme, *address)
        client: Any = request.param(url, token, clock=clock, **arguments)
        if isinstance(client, AsyncClient):
            client = Blocking(client, loop)
        opened.append(client)
        return client

    thread.start()
    yield connecting
    for client in opened:
        client.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def client(server: ServerThread, connect: Connect) -> Any:
    return connect(server.address)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Start = Callable[..., ServerThread]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server with these settings, which ends with the test."""
    servers: list[ServerThread] = []

    def starting(*, starts: bool = True, **settings: Any) -> ServerThread:
        servers.append(ServerThread(Settings(**settings), starts=starts))
        return servers[-1].start()

    yield starting
    for server in servers:
        server.close()


Scene = Callable[[socket.socket], object]


class Scripted:
    """A server that plays one scene per connection, in order, and then takes no more."""

    def __init__(self, *scenes: Scene) -> None:
        self._scenes = scenes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.requests: list[bytes] = []
        self._thread = threading.Thread(target=self._play, name="scripted", daemon=True)
        self._thread.start()

    def _play(self) -> None:
        with self._listener:
            for scene in self._scenes:
                connection, _ = self._listener.accept()
                with connection:
                    scene(connection)

    def read(self, connection: socket.socket) -> bytes:
        """One request, and note it."""
        connection.settimeout(PATIENCE_S)
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536) or pytest.fail("the client is gone")
        head, _, body = data.partition(b"\r\n\r\n")
        length = int((head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) or b"0")
        while len(body) < length:
            body += connection.recv(65536)
        self.requests.append(data)
        return data

    def says(self, *answers: bytes) -> Scene:
        """A scene: answer as many requests with these, then hang up.

        A client that goes on at once may still use this connection, and then finds that it is gone.
        """

        def scene(connection: socket.socket) -> None:
            for answer in answers:
                self.read(connection)
                connection.sendall(answer)

        return scene

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "not every scene was played"


Script = Callable[..., Scripted]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts a scripted server of scenes; a scene may be the answers that it gives, as a list."""
    started: list[Scripted] = []

    def starting(*scenes: Scene | list[bytes]) -> Scripted:
        def scene(given: Scene | list[bytes]) -> Scene:
            if not isinstance(given, list):
                return given
            return lambda connection: server.says(*given)(connection)

        server = Scripted(*map(scene, scenes))
        started.append(server)
        return server

    yield starting
    for server in started:
        server.end()


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "content-type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
