"""The wire in memory does what a socket does: the same answers, the same ends, the same back-pressure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.api.clients.transcript import request_bytes
from tests.pipelining.clients import Answer, Client, Http1, Http2, Request, WebSocket
from topics.engine import Engine
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.wire import Line, Wire

TURNS_MAX = 10_000
SLICE = 7  # bytes; no request and no frame ends where a slice does, but by chance
HEALTH = request_bytes("GET", "/healthz")


def requests(client: Client) -> list[list[Request]]:
    """Some of every kind that a client can send; those of one list together."""
    writes = [
        Request("write", topic, {"records": [{"data": f"{topic} {n}", "tag": "t"}], "idempotency_key": f"k{n % 2}"})
        for n in range(4)
        for topic in ("a", "b")
    ]
    others = [
        Request("put", "q", {"type": "queue", "durability": "fsync"}, "PUT"),
        Request("write", "q", {"records": [{"data": 1}, {"data": 2}]}),
        Request("claim", "q", {"node": "n", "max": 2}, path="/topics/q/claim"),
        Request("delete", "a", {"before_seq": 2}, path="/topics/a/delete"),
        Request("diff", "a", {"from_seq": 0}, path="/topics/a/diff"),
        Request("diff", "nope", {}, path="/topics/nope/diff"),
        Request("state", "b", None, "GET"),
    ]
    if isinstance(client, WebSocket):
        return [writes]
    if isinstance(client, Http2):  # it does not promise an order
        return [writes, *([other] for other in others)]
    return [[*writes, *others]]


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    settings = Settings(port=0)
    engine = Engine.open("memory", settings, disk=MemoryDisk(), clock=ManualClock(), background=False)
    engine.queues._next_number = 1 << 58  # lease ids are random
    async with Server.open(settings, engine=engine, source=lambda: 0.0) as server:
        server.listener.connections._clock = engine.clock  # no turn is long, however busy the machine is
        yield server


async def until(condition: Callable[[], object]) -> None:
    for _ in range(TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def answers_over_wire(server: Server, client: Client) -> list[Answer]:
    line = Wire(server.listener.connections).connect()
    heard: list[Answer] = []

    def receive() -> None:
        heard.extend(one for one in client.receive(line.take()) if isinstance(one, Answer))
        line.send(client.owed())

    line.send(client.open())
    await until(lambda: (receive(), client.room)[1])
    for asked in requests(client):
        data = b"".join([client.ask(request) for request in asked])
        line.send(*(data[start : start + SLICE] for start in range(0, len(data), SLICE)))
        await until(lambda: (receive(), not client.in_flight)[1])
    line.drop()
    return heard


async def answers_over_socket(server: Server, client: Client) -> list[Answer]:
    reader, writer = await asyncio.open_connection(*server.listener.address)
    heard: list[Answer] = []

    async def receive() -> None:
        heard.extend(one for one in client.receive(await reader.read(1 << 16)) if isinstance(one, Answer))
        writer.write(client.owed())

    writer.write(client.open())
    while not client.room:
        await receive()
    for asked in requests(client):
        writer.write(b"".join([client.ask(request) for request in asked]))
        while client.in_flight:
            await receive()
    writer.close()
    await writer.wait_closed()
    return heard


@pytest.mark.parametrize("kind", [Http1, Http2, WebSocket])
async def test_answers_over_the_wire_are_those_over_a_socket(kind: type[Client]) -> None:
    """CV16, WS9: pipelined, in slices, for every protocol that the listener speaks."""
    async with served() as server:
        over_wire = shown(await answers_over_wire(server, kind(64)))
    async with served() as server:
        over_socket = shown(await answers_over_socket(server, kind(64)))
    assert over_wire == over_socket
    assert len(over_wire) == sum(map(len, requests(kind(64))))
    assert [status for _, status, _ in over_wire if status >= 300] == ([] if kind is WebSocket else [404])


def shown(heard: list[Answer]) -> list[tuple[str, int, str]]:
    """Answers in the order of their requests."""
    return sorted((repr(one.request), one.status, repr(one.body)) for one in heard)


async def test_what_was_asked_before_the_client_ended_its_side_is_answered() -> None:
    async with served() as server:
        line = Wire(server.listener.connections).connect()
        line.send(HEALTH + HEALTH[:10])
        line.send(HEALTH[10:])
        line.end()
        await until(lambda: line.is_lost)
        assert line.take().count(b"HTTP/1.1 200 OK") == 2
        assert line.is_ended
        assert not server.listener.connections.open


async def test_a_connection_that_breaks_is_gone_at_both_ends() -> None:
    async with served() as server:
        line = Wire(server.listener.connections).connect()
        line.send(HEALTH)
        await until(lambda: line.take())
        assert server.listener.open_count == 1
        line.send(HEALTH)
        line.drop()
        await until(lambda: line.is_lost)
        line.send(HEALTH)
        assert (line.take(), line.is_sending, server.listener.open_count) == (b"", False, 0)


async def test_a_client_that_does_not_read_is_answered_later_and_in_full() -> None:
    """The protocol is told to pause, so that most of what was asked waits unread."""
    async with served() as server:
        wire = Wire(server.listener.connections, high_bytes=1000)
        line = wire.connect()
        line.block()
        line.send(*[HEALTH] * 50)
        await until(lambda: is_paused(line))
        assert line.take() == b""
        line.unblock()
        taken = bytearray()
        await until(lambda: (taken.extend(line.take()), taken.count(b"HTTP/1.1 200 OK") == 50)[1])
        assert wire.is_quiet


def is_paused(line: Line) -> bool:
    return line._transport._is_pausing


async def test_a_dead_process_neither_hears_nor_says_anything() -> None:
    async with served() as server:
        wire = Wire(server.listener.connections)
        line, other = wire.connect(), wire.connect()
        line.send(HEALTH)
        await until(lambda: line._transport.arrived)
        line.send(HEALTH)
        other.send(HEALTH)
        wire.cut()
        for _ in range(10):
            await asyncio.sleep(0)
        assert line.take().count(b"HTTP/1.1") == 1
        assert other.take() == b""
        assert other.is_sending
        wire.is_cut = False  # so that the server can end
        line.drop()
        other.drop()
