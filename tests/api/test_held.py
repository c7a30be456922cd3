"""What is held for connections, how many there may be, and what ends when it is too much (LM11); sessions per key."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from h2.events import StreamEnded

from tests.api.clients.raw import (
    Http2Client,
    MemoryTransport,
    RawClient,
    ScriptedApp,
    chunked,
    get,
    on_loop,
    post,
    until,
)
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import client_frame, handshake, open_socket
from tests.api.conftest import Start
from topics.server.transport.exchange import Limits
from topics.server.transport.http2 import Http2
from topics.server.transport.listener import serve
from topics.testing.server import ServerThread

KIB = 1024
MIB = 1024 * 1024
HELD_MAX = 4 * MIB
SMALL = Limits(held_bytes_max=HELD_MAX, connection_held_bytes_max=3 * MIB)


# --- what counts


@pytest.mark.parametrize(
    "data",
    [
        post("/a", bytes(100 * KIB))[: -50 * KIB],
        chunked("/a", bytes(50 * KIB))[:-2],
        get("/hold") + post("/b", bytes(50 * KIB))[:-1],
    ],
    ids=["a body", "chunks", "pipelined"],
)
def test_what_came_in_and_waits_is_held(data: bytes) -> None:
    """LM11"""
    peer = MemoryTransport(ScriptedApp())
    peer.feed(data)
    (connection,) = peer.connections.open
    assert 49 * KIB <= connection.held_bytes <= 52 * KIB
    peer.lose()
    assert not peer.connections.open


def test_a_head_that_waits_is_held() -> None:
    """LM11"""
    peer = MemoryTransport(ScriptedApp())
    peer.feed(b"GET /a HTTP/1.1\r\nHost: a\r\nX: ")
    for _ in range(10):
        peer.feed(b"a" * KIB)
    (connection,) = peer.connections.open
    assert connection.held_bytes >= 9 * KIB


@on_loop
async def test_answers_that_a_window_holds_back_are_held_and_end_their_connection() -> None:
    """LM11: HTTP/2 with a window of zero; each answer is a hundred thousand bytes."""
    async with serve(ScriptedApp(), limits=replace(SMALL, answers_bytes_max=HELD_MAX)) as listener:
        other = await RawClient.connect(listener)
        client = await Http2Client.connect(listener, refills=False, settings={4: 0})
        for _ in range(40):
            await client.start("/large")
        await until(lambda: listener.connections.held_ended_total)
        await until(lambda: listener.open_count == 1)
        assert (await other.ask(get("/a"))).status == 200
        other.close()


DIFF = "/v0/topics/t/diff?max_batch_bytes=8000000"
WRITE = b'{"records":[{"data":"news"}]}'
LARGE = {"records": [{"data": "x" * 900 * KIB}] * 3}


def http2_of(server: ServerThread) -> Http2 | None:
    return next((one for one in server.server.listener.connections.open if isinstance(one, Http2)), None)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"{DIFF}&wait_ms=60000", []),
        (DIFF, []),
        (DIFF, [("accept-encoding", "gzip")]),
        ("/v0/topics/t/records/1", []),
        ("/v0/topics/t/export", []),
    ],
    ids=["polls", "reads", "packed reads", "single records", "downloads"],
)
def test_large_answers_that_nobody_takes_wait_before_they_are_made(
    start: Start, path: str, headers: list[tuple[str, str]]
) -> None:
    """LM11: a hundred of them; of polls that all get the news at once."""
    server = start()
    api, app = Client(server.address), server.server.app
    api.create("t")
    if "wait_ms" not in path:
        ok(api.post("/v0/topics/t", LARGE))

    def has_stalled() -> bool:
        held = http2_of(server)
        assert held is not None
        return held.is_write_blocked or held.answers.is_full

    @on_loop
    async def run() -> None:
        client = await Http2Client.connect(server.server.listener, refills=False, settings={4: 2**30})
        client.h2.increment_flow_control_window(2**30)
        for _ in range(100):
            await client.start(path, None, *headers)
        if "wait_ms" in path:
            await until(lambda: server.run(lambda: app.slots.running) == 100)
            await asyncio.to_thread(api.post, "/v0/topics/t", LARGE)
        await until(lambda: server.run(has_stalled))
        for _ in range(500):  # turns, in which all of them would have been made
            assert server.run(lambda: 0 if (one := http2_of(server)) is None else one.held_bytes) <= 20 * MIB
        client.raw.close()

    run()
    server.until(lambda: http2_of(server) is None and not app.slots.running)


def test_while_large_answers_wait_the_connection_does_everything_else(start: Start) -> None:
    """LM11, SS19: behind a proxy it has many users. A small answer, a write and an event stream go on."""
    server = start()
    api = Client(server.address)
    api.create("t")
    api.create("u")
    ok(api.post("/v0/topics/t", LARGE))

    @on_loop
    async def run() -> None:
        client = await Http2Client.connect(server.server.listener, refills=False, settings={4: 0})
        reads = [await client.start(DIFF) for _ in range(20)]
        await until(lambda: server.run(lambda: (one := http2_of(server)) is not None and one.answers.is_full))

        async def ask(path: str, body: bytes | None = None) -> int:
            stream = await client.start(path, body, ("content-type", "application/json"))
            client.h2.increment_flow_control_window(10_000, stream)
            await client.flush()
            return stream

        events = await ask("/v0/topics/u/events?from_seq=0")
        asked = {await ask("/v0/health"): b'"ok"', await ask("/v0/topics/u", WRITE): b'"first_seq":1'}
        for stream, answer in asked.items():
            await client.read_for(StreamEnded, stream)
            assert answer in client.bodies[stream]
        while b"news" not in client.bodies[events]:
            await client.read_more()
        for stream in reads:
            client.h2.increment_flow_control_window(2**30, stream)
        client.h2.increment_flow_control_window(2**30)
        await client.flush()
        for stream in reads:
            await client.read_for(StreamEnded, stream)
            assert client.bodies[stream].count(b"x" * 900 * KIB) == 3
        client.raw.close()

    run()


@on_loop
async def test_beyond_what_may_be_held_for_all_the_largest_ends() -> None:
    """LM11: four unfinished bodies that are too much together; none alone is."""
    async with serve(ScriptedApp(), limits=SMALL) as listener:
        connections = listener.connections
        small = [await RawClient.connect(listener) for _ in range(3)]
        for client in small:
            await client.send(post("/a", bytes(MIB))[:-1])
        await until(lambda: sum(one.held_bytes for one in connections.open) >= 3 * (MIB - 1))
        largest = await RawClient.connect(listener)
        await largest.send(post("/b", bytes(2 * MIB))[:-1])
        await until(lambda: connections.held_ended_total)
        with suppress(ConnectionResetError):  # what the server has not read may be what ends it
            assert not await largest.read_to_end()
        for client in small:
            await client.send(b"\0")
            assert (await client.reply()).status == 200
            client.close()
        assert connections.held_ended_total == 1


def test_an_unfinished_message_is_held(start: Start) -> None:
    """LM11"""
    server = start(max_held_bytes=HELD_MAX)
    api, connections = Client(server.address), server.server.listener.connections
    with open_socket(api) as other, api.connect() as connection:
        connection.send(handshake())
        connection.read_until(b"\r\n\r\n")
        connection.send(client_frame(1, bytes(2 * MIB), fin=False))
        server.until(lambda: any(one.held_bytes >= 2 * MIB for one in connections.open))
        connection.send(client_frame(0, bytes(3 * MIB), fin=False))
        server.until(lambda: connections.held_ended_total)
        assert is_closed(connection.socket)
        other.synced()
    assert server.run(lambda: connections.held_ended_total) == 1
    assert "\ntopics_connections_held_ended_total 1\n" in Client(server.address).get("/v0/metrics").body.decode()


# --- connections


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_beyond_the_most_connections_new_ones_are_closed(start: Start) -> None:
    """LM11: and those that are open go on."""
    server = start(max_connections=3)
    connections = server.server.listener.connections
    with ExitStack() as stack:
        kept = [stack.enter_context(Client(server.address).connect()) for _ in range(3)]
        server.until(lambda: len(connections.open) == 3)
        assert is_closed(stack.enter_context(socket.create_connection(server.address)))
        for one in kept:
            one.send(get("/v0/health"))
            assert one.reply().status == 200
        kept[0].socket.close()
        server.until(lambda: len(connections.open) == 2)
        assert Client(server.address).get("/v0/health").status == 200
    server.until(lambda: not connections.open)
    assert server.run(lambda: connections.refused_total) == 1
    assert "\ntopics_connections_refused_total 1\n" in Client(server.address).get("/v0/metrics").body.decode()


ALLOWED = "import resource; from topics.tuning import connections_allowed; {}; print(connections_allowed())"


@pytest.mark.parametrize(("files", "expected"), [(60, 12), (20, 8), (256, 208), (1024, 896)])
def test_descriptors_allow_so_many_connections(files: int, expected: int) -> None:
    """LM11"""
    script = ALLOWED.format(f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected


# --- watch sessions


def watch(api: Client) -> Callable[[], int]:
    return lambda: api.post("/v0/watch", {"topics": {"t": {}}}).status


def test_a_key_may_have_only_so_many_watch_sessions(start: Start) -> None:
    """LM12, LM1, LM5"""
    server: ServerThread = start(api_keys="a,b", max_watch_sessions_per_key=2)
    one, other = Client(server.address, "a"), Client(server.address, "b")
    one.create("t")
    assert [watch(one)(), watch(one)()] == [200, 200]
    detail = {"limit": "max_watch_sessions_per_key", "max": 2}
    refused(one.post("/v0/watch", {"topics": {"t": {}}}), 429, "throttled", detail)
    assert watch(other)() == 200
    server.advance(300_001)
    assert watch(one)() == 200


@pytest.mark.parametrize(
    "settings", [{"api_keys": "a", "max_watch_sessions_per_key": 0}, {"max_watch_sessions_per_key": 1}]
)
def test_without_keys_or_with_zero_there_is_no_limit_per_key(start: Start, settings: dict[str, object]) -> None:
    """LM12, LM5"""
    api = Client(start(**settings).address, "a" if "api_keys" in settings else None)
    api.create("t")
    assert [watch(api)() for _ in range(5)] == [200] * 5
