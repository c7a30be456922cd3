"""A lone record reaches few watchers in the turn of its ack, and many right behind it: counted in turns of the loop."""

import asyncio
import json

import pytest

from topics.clock import Clock
from topics.engine import Engine
from topics.server.live.rounds import AT_ONCE_MAX
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.wire import Line, Wire

TURNS_MAX = 100


def request(method: str, path: str, body: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def answer(line: Line, asked: bytes, until: bytes = b"\r\n\r\n") -> bytes:
    line.send(asked)
    received = b""
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        received += line.take()
        if until in received:
            return received
    raise AssertionError(f"{until!r} does not come after {received!r}")


async def watching(wire: Wire, topic: str) -> Line:
    line = wire.connect()
    session = await answer(line, request("POST", "/v0/watch", json.dumps({"topics": {topic: {"tail": True}}})))
    url = json.loads(session.partition(b"\r\n\r\n")[2])["stream_url"]
    await answer(line, request("GET", url), b"event: caught-up")
    return line


async def turns_behind(durability: str, watchers: int, writes: int) -> list[int]:
    """How many turns after its ack each of the last watchers got a record."""
    clock: Clock = ManualClock()
    engine = Engine.open("memory", Settings(), disk=MemoryDisk(), clock=clock, background=False)
    server = Server.open(Settings(), engine=engine, source=lambda: 0.0)
    await server.recover()
    try:
        wire = Wire(server.listener.connections)
        writer = wire.connect()
        await answer(writer, request("PUT", "/v0/topics/t", json.dumps({"durability": durability})))
        lines = [await watching(wire, "t") for _ in range(watchers)]
        found = []
        for number in range(writes):
            writer.send(request("POST", "/v0/topics/t", json.dumps({"records": [{"data": number}]})))
            acked_in = arrived_in = -1
            missing = set(lines)
            for turn in range(TURNS_MAX):
                await asyncio.sleep(0)
                if acked_in < 0 and writer.take().startswith(b"HTTP/1.1 200 "):
                    acked_in = turn
                missing -= {line for line in missing if b"event: record" in line.take()}
                if not missing and acked_in >= 0:
                    arrived_in = turn
                    break
            assert arrived_in >= 0
            found.append(arrived_in - acked_in)
        return found
    finally:
        await server.close()


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("watchers", [1, AT_ONCE_MAX])
def test_a_lone_record_is_delivered_in_the_turn_of_its_ack(durability: str, watchers: int) -> None:
    """SS9, ST17: when the log is whole, and behind the gate of the topic's class."""
    assert asyncio.run(turns_behind(durability, watchers, 5)) == [0] * 5


def test_many_watchers_are_served_in_a_turn_of_their_own() -> None:
    """The ack of whoever comes next does not wait for them."""
    assert asyncio.run(turns_behind("disk", AT_ONCE_MAX + 1, 5)) == [1] * 5
