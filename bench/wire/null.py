"""A server that does nothing: constant bytes for each request, as fast as uvloop admits.

What a client reaches against it is the most that this client can show of anybody; a figure close to it is one of the
client. The answers are those that the server under test has given to the same requests. `Hub` hands on what it is sent
to all who listen, as it is: the least that a fan-out can be.

A client must send one request at a time per connection, as all of ours do.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import uvloop

from bench.peers import Address, Peer
from bench.wire.epoll import FORK, settle

Answer = bytes | Callable[[], bytes]  # constant, or made for each request

LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
LISTEN: Final = b"GET /listen HTTP/1.1\r\n\r\n"
LISTENING: Final = b"listening\r\n\r\n"
DONE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
_REMEMBERED_BYTES: Final = 1024  # requests up to this size are found as a whole
_REMEMBERED: Final = 1024


class Constant(asyncio.Protocol):
    """One connection that is answered from a table, by the first line of a request."""

    def __init__(self, answers: Mapping[bytes, Answer], remembered: dict[bytes, Answer]) -> None:
        self._answers, self._remembered = answers, remembered
        self._rest = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._remembered.get(data) if len(data) <= _REMEMBERED_BYTES else None
        if answer is None or self._rest:
            request = self._rest + data
            if not is_whole_request(request):
                self._rest = request
                return
            self._rest = b""
            answer = self._answers.get(request[: request.index(b"\r\n")], DONE)
            if len(request) <= _REMEMBERED_BYTES and len(self._remembered) < _REMEMBERED:
                self._remembered[request] = answer
        self._transport.write(answer if isinstance(answer, bytes) else answer())


def is_whole_request(request: bytes) -> bool:
    end = request.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = LENGTH.search(request, 0, end + 2)
    return len(request) >= end + 4 + (int(length[1]) if length else 0)


class Hub:
    """Those who listen, and what they are to get at the end of this turn of the loop."""

    def __init__(self) -> None:
        self._listeners: set[Any] = set()
        self._news: list[bytes] = []

    def join(self, transport: Any) -> None:
        self._listeners.add(transport)

    def leave(self, transport: Any) -> None:
        self._listeners.discard(transport)

    def say(self, data: bytes) -> None:
        if not self._news:
            asyncio.get_running_loop().call_soon(self._tell)
        self._news.append(data)

    def _tell(self) -> None:
        news = b"".join(self._news)
        self._news.clear()
        for transport in self._listeners:
            transport.write(news)


class Member(asyncio.Protocol):
    """One connection to a hub. After `LISTEN` it hears, and all it sends is handed on; else it POSTs bodies."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rest = b""
        self._is_listening = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._hub.leave(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._is_listening:
            self._hub.say(data)
        elif data == LISTEN:
            self._is_listening = True
            self._hub.join(self._transport)
            self._transport.write(LISTENING)
        else:
            self._rest += data
            if is_whole_request(self._rest):
                self._hub.say(self._rest.partition(b"\r\n\r\n")[2])
                self._rest = b""
                self._transport.write(DONE)


@contextmanager
def constant(answers: Mapping[bytes, Answer]) -> Iterator[Peer]:
    """A server that gives these answers, by the first line of a request; what is not listed gets 200 and `{}`."""
    with _serving(lambda: _made_constant(answers)) as peer:
        yield peer


@contextmanager
def hub() -> Iterator[Peer]:
    with _serving(_made_member) as peer:
        yield peer


def _made_constant(answers: Mapping[bytes, Answer]) -> Callable[[], asyncio.Protocol]:
    remembered: dict[bytes, Answer] = {}
    return lambda: Constant(answers, remembered)


def _made_member() -> Callable[[], asyncio.Protocol]:
    members = Hub()
    return lambda: Member(members)


@contextmanager
def _serving(factory: Callable[[], Callable[[], asyncio.Protocol]]) -> Iterator[Peer]:
    """In a process of its own, on a free port, until the `with` ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        address: Address = listener.getsockname()
        process = FORK.Process(target=_serve, args=(listener, factory), daemon=True)
        process.start()
    assert process.pid is not None
    try:
        yield Peer(address, process.pid)
    finally:
        process.terminate()
        process.join()


def _serve(listener: socket.socket, factory: Callable[[], Callable[[], asyncio.Protocol]]) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(factory(), sock=listener)
        await server.serve_forever()

    settle()
    uvloop.run(serve())
