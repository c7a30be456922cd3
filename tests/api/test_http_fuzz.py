"""Hostile and broken input: the server never crashes, hangs or leaks a connection, however the bytes are cut.

Most cases run without a socket (`MemoryTransport`): there, reads come exactly as drawn and an exception reaches
the test. A few run over real sockets, with clients that leave at any moment.
"""

import asyncio
import random
import re

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.clients.raw import MemoryTransport, RawClient, ScriptedApp, chunked, get, on_loop, post, request, until
from tests.effort import tries
from topics.server.transport.exchange import Exchange, Limits
from topics.server.transport.listener import serve

LIMITS = Limits(
    body_bytes_max=2000, head_bytes_max=4000, target_bytes_max=500, headers_max=20, refused_body_bytes_max=300
)
STATUSES = re.compile(rb"HTTP/1\.1 (\d\d\d) ")

PATHS = ["/a", "/b?c=d", "/refuse", "/hold-1", "/hold-2", "/stream", "/boom", "/large", "/upgrade", "/inject"]
HEADERS = [
    "X-One: 1",
    "Accept: */*",
    "Connection: keep-alive",
    "Connection: Upgrade\r\nUpgrade: h2c",
    "Expect: 100-continue",
]
TOKENS = [b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b":", b"\0", b"\xff", b"GET ", b"POST ", b" HTTP/1.1", b"HTTP/1.0"]
TOKENS += [b"Host: a\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"]
TOKENS += [
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n",
    b"ffffffff",
    b"Expect: 100-continue\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]

headers = st.lists(st.sampled_from(HEADERS), max_size=2, unique=True)
paths = st.sampled_from(PATHS)
bodies = st.binary(max_size=60)
plain_requests = st.one_of(
    st.builds(lambda path, extra: get(path, *extra), paths, headers),
    st.builds(lambda path, body, extra: post(path, body, *extra), paths, bodies, headers),
    st.builds(lambda path, pieces: chunked(path, *filter(None, pieces)), paths, st.lists(bodies, max_size=4)),
    st.builds(lambda path: request("HEAD", path, b""), paths),
    st.builds(lambda path: f"GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode(), paths),
)
garbage = st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=10)), max_size=30).map(b"".join)


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of the original, some of them replaced, removed, doubled or interrupted."""
    data = draw(originals)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4), st.just(data[start:stop] * 2)))
        data = data[:start] + piece + data[stop:]
    return data


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in reads of any length."""
    marks = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:stop] for start, stop in zip([0, *marks], [*marks, len(data)], strict=True)]


def release(app: ScriptedApp, peer: MemoryTransport) -> None:
    """Answer what is held and end what is streamed, until nothing is left."""
    peer.turn()
    while app.unfinished:
        answer(app)
        peer.turn()


def answer(app: ScriptedApp) -> None:
    """Answer what is held; what comes behind it has to wait for a turn."""
    for _ in range(len(app.unfinished)):
        one = app.unfinished.pop(0)
        if isinstance(one, Exchange):
            one.respond(200, b"{}")
        else:
            one.write(b"piece")
            one.end()


def end(peer: MemoryTransport, app: ScriptedApp) -> None:
    """Let everything finish, then the client leaves: nothing may stay behind."""
    release(app, peer)
    peer.feed_eof()
    release(app, peer)
    for _ in range(3):
        if not peer.is_ended:
            peer.pass_time(100_000)
    assert peer.is_ended or app.upgraded
    peer.lose()
    assert not peer.connections.open


def replay(pieces: list[bytes], seed: int = 0) -> MemoryTransport:
    """Feed the pieces; at moments drawn from `seed`, held exchanges are answered and the client stops reading."""
    app, chance = ScriptedApp(), random.Random(seed)
    peer = MemoryTransport(app, LIMITS)
    for piece in pieces:
        if seed:
            chance.choice([peer.block, peer.unblock])()
        peer.feed(piece)
        if chance.random() < 0.3:
            chance.choice([lambda: release(app, peer), lambda: answer(app)])()
    peer.unblock()
    end(peer, app)
    return peer


def without_continue(written: bytes) -> bytes:
    return written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "topics.server")


@settings(max_examples=tries(300))
@given(st.data(), st.lists(plain_requests, min_size=1, max_size=6), st.integers())
def test_well_formed_requests_are_answered_alike_however_they_are_cut_and_held(
    data: st.DataObject, requests: list[bytes], seed: int
) -> None:
    whole = b"".join(requests)
    assert without_continue(replay(data.draw(cut(whole)), seed).written) == without_continue(replay([whole]).written)


@settings(max_examples=tries(300))
@given(st.data(), mutated(st.lists(plain_requests, min_size=1, max_size=4).map(b"".join)))
def test_mutated_requests_are_answered_alike_however_they_are_cut(data: st.DataObject, whole: bytes) -> None:
    once, cut_up = replay([whole]), replay(data.draw(cut(whole)))
    assert without_continue(once.written) == without_continue(cut_up.written)
    statuses = STATUSES.findall(once.written)
    assert b"500" not in statuses or any(path in whole for path in (b"/boom", b"/inject", b"/upgrade"))


@settings(max_examples=tries(300))
@given(st.data(), garbage)
def test_garbage_is_survived(data: st.DataObject, whole: bytes) -> None:
    replay(data.draw(cut(whole)))


def http2_conversation(steps: list[tuple[str, bytes]]) -> bytes:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for n, (path, body) in enumerate(steps):
        lines = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "a")]
        client.send_headers(2 * n + 1, lines, end_stream=not body)
        if body:
            client.send_data(2 * n + 1, body, end_stream=True)
    return client.data_to_send()


conversations = st.lists(st.tuples(paths, bodies), min_size=1, max_size=6).map(http2_conversation)


@settings(max_examples=tries(200))
@given(st.data(), mutated(conversations), st.integers())
def test_mutated_frames_are_survived(data: st.DataObject, whole: bytes, seed: int) -> None:
    replay(data.draw(cut(whole)), seed)


@settings(max_examples=tries(100))
@given(st.data(), conversations, garbage)
def test_garbage_after_frames_is_survived(data: st.DataObject, whole: bytes, rest: bytes) -> None:
    replay(data.draw(cut(whole + rest)))


# --- over sockets


async def misbehave(client: RawClient, chance: random.Random) -> None:
    """Send something odd in pieces, perhaps read, and leave in some way at some moment."""
    parts = [chance.choice([get, request_with_body])(chance.choice(PATHS)) for _ in range(chance.randrange(5))]
    parts += [chance.choice(TOKENS), chance.randbytes(chance.randrange(20)), http2_conversation([("/a", b"x")])]
    chance.shuffle(parts)
    data = b"".join(parts)[: chance.randrange(2000)]
    try:
        while data:
            size = chance.randrange(1, 300)
            await client.send(data[:size])
            data = data[size:]
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        if chance.random() < 0.3:
            client.half_close()
            await asyncio.sleep(0)
    except OSError:
        pass  # the server has closed first
    if chance.random() < 0.5:
        client.reset()
    else:
        client.close()


def request_with_body(path: str) -> bytes:
    return post(path, b"x" * 50)


@pytest.mark.parametrize("seed", range(5))
@on_loop
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(seed: int) -> None:
    app, chance = ScriptedApp(), random.Random(seed)
    async with serve(app, limits=LIMITS) as listener:
        for _ in range(20):
            clients = [await RawClient.connect(listener) for _ in range(10)]
            await asyncio.gather(*(misbehave(client, chance) for client in clients))
            answer(app)
        await until(lambda: listener.connections.accepted_total == 200)
        while listener.open_count:
            answer(app)
            await asyncio.sleep(0.001)
        client = await RawClient.connect(listener)
        assert (await client.ask(get("/a"))).status == 200
