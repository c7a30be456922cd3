"""HTTP/1.1: ambiguous framing and heads, trailers and chunks beyond their limits."""

import tracemalloc
from collections.abc import Callable

import pytest

from tests.api.clients.raw import (
    MemoryTransport,
    RawClient,
    ScriptedApp,
    chunked,
    get,
    on_loop,
    until,
)
from topics.server.transport.exchange import Limits
from topics.server.transport.listener import serve

SMALL = Limits(body_bytes_max=1000, refused_body_bytes_max=200, headers_max=10, target_bytes_max=100)


# --- framing


GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
AMBIGUOUS = {
    "length and coding": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "different lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "underscored length": POST + b"Content-Length: 1_0\r\n\r\nabcdefghij",
    "empty length": POST + b"Content-Length:\r\n\r\nabc",
    "length out of range": POST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding after chunked": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding in two lines": POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "control before chunked": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF after request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LF after header": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare LF at the end": GET + b"\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "tab before colon": b"GET / HTTP/1.1\r\nHost\t: a\r\n\r\n",
    "folded header": GET + b"X: b\r\n c\r\n\r\n",
    "folded with tab": GET + b"X: b\r\n\tc\r\n\r\n",
    "space before first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost a\r\n\r\n",
    "no header name": GET + b": b\r\n\r\n",
    "parenthesis in name": GET + b"X(y): b\r\n\r\n",
    "non-ASCII in name": GET + b"X\xc3\xa9: b\r\n\r\n",
    "NUL in name": GET + b"X\0: b\r\n\r\n",
    "NUL in value": GET + b"X: b\0c\r\n\r\n",
    "control in value": GET + b"X: b\x01c\r\n\r\n",
    "DEL in value": GET + b"X: b\x7fc\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\nX: a\r\n\r\n",
    "two Hosts": GET + b"Host: a\r\n\r\n",
    "two content types": GET + b"Content-Type: a\r\nContent-Type: b\r\n\r\n",
    "two keys": GET + b"Authorization: a\r\nAuthorization: b\r\n\r\n",
    "other expectation": GET + b"Expect: 200-ok\r\n\r\n",
    "chunk size with prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "chunk size with space": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunk size with sign": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "chunk size out of range": CHUNKED + b"fffffffffffffffff\r\n",
    "bare LF after chunk size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "bare LF after chunk": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "bare LF in chunk extension": CHUNKED + b"3;a\nabc\r\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
    "length among trailers": CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2.0 without its preface": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "unknown method": b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n",
    "method in lower case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tab after method": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment in target": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "non-ASCII in target": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "control in target": b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
    "star as target": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "authority as target": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "foreign scheme": b"GET ftp://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
    "authority with query": b"GET http://a?b/c HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
@on_loop
async def test_ambiguous_framing_is_refused_and_ends_the_connection(data: bytes) -> None:
    """SC2: and so is whoever speaks TLS."""
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(data + get("/smuggled"))
        reply = await client.reply()
        assert (reply.status, reply.code) == (400, "invalid_request")
        assert reply.headers["connection"] == "close"
        assert await client.read_to_end() == b""
        assert app.requests == []
        client.close()
        await until(lambda: listener.open_count == 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a\r\nX:\r\nY: \xff\xfe\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 003 \r\n\r\nabc",
        b'POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3;x="y"\r\nabc\r\n00\r\n\r\n',
        b"GET /a HTTP/1.1\r\nhOST: a\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_unusual_but_clear_requests_are_served(data: bytes) -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(data + get("/next"))
    assert [seen.path for seen in app.requests] == [b"/a", b"/next"]


# --- sizes


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        (SMALL, get("/a", *(f"X{n}: 1" for n in range(10)))),
        (SMALL, get("/a", *("X: 1" for _ in range(10)))),
        (SMALL, get("/" + "a" * 100)),
        (Limits(), get("/a", "X: " + "x" * 400_000)),
        (Limits(), get("/a", "X" * 400_000 + ": x")),
        (Limits(), get("/" + "a" * 400_000)),
        (Limits(), get("/a", *("X: 1" for _ in range(50_000)))),
        (Limits(), b"GET " + b" " * 400_000),
    ],
)
def test_a_head_above_the_limits_is_refused(limits: Limits, data: bytes) -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app, limits)
    for at in range(0, len(data), 1000):
        peer.feed(data[at : at + 1000])
    assert b"invalid_request" in peer.written or b" " * 1000 in data
    assert peer.is_ended or b" " * 1000 in data
    assert app.requests == []


def test_a_resume_id_of_many_topics_fits_into_head_and_target() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/a?cursor=" + "a" * 98_000) + get("/b", "Last-Event-ID: " + "b" * 98_000))
    assert [len(seen.target) for seen in app.requests] == [98_010, 2]


@pytest.mark.parametrize("part", [b"X: y\r\n", b"X", b"X: " + b"y" * 1000])
def test_trailers_are_bounded(part: bytes) -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(chunked("/a")[:-2])
    fed = 0
    while not peer.is_ended:
        peer.feed(part * 10)
        fed += len(part) * 10
        assert fed < 1_000_000
    assert b"invalid_request" in peer.written


def test_chunk_extensions_are_bounded() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(chunked("/a")[:-5] + b"1;")
    for _ in range(1000):
        peer.feed(b"x" * 1000)
    assert b"invalid_request" in peer.written and peer.is_ended


def test_a_body_in_tiny_chunks_is_accepted() -> None:
    app = ScriptedApp()
    data = chunked("/a", *[b"x"] * 100_000)
    peer = MemoryTransport(app)
    for at in range(0, len(data), 1000):
        peer.feed(data[at : at + 1000])
    assert len(app.requests[0].body) == 100_000


def test_trailers_behind_a_large_body_are_bounded_no_less() -> None:
    """LM11"""
    peer = MemoryTransport(ScriptedApp())
    peer.feed(chunked("/a", bytes(1_000_000))[:-2])
    fed = 0
    while not peer.is_ended:
        peer.feed(b"a:\r\n" * 1000)
        fed += 4000
        assert fed < 700_000
    assert b"invalid_request" in peer.written


def traced_bytes(feed: Callable[[], None]) -> int:
    """How much memory is taken, and still held, by what is fed."""
    tracemalloc.start()
    try:
        feed()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_trailers_are_not_stored() -> None:
    """LM11: each of these lines took thirty times its size."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(chunked("/a", b"abc")[:-2])
    trailers = b"".join(b"a%d:\r\n" % number for number in range(10_000))
    assert traced_bytes(lambda: peer.feed(trailers)) < 20_000
    peer.feed(b"\r\n")
    assert app.requests[0].body == b"abc"


@pytest.mark.parametrize("line", [b"a:\r\n", b"a%d:\r\n"], ids=["one name", "many names"])
def test_lines_of_a_head_are_counted_as_they_come(line: bytes) -> None:
    """LM9, LM11: not when the head is complete."""
    peer = MemoryTransport(ScriptedApp())
    peer.feed(GET)
    for number in range(110):
        peer.feed(line % number if b"%" in line else line)
    assert b"invalid_request" in peer.written and peer.is_ended


def test_a_body_in_small_chunks_takes_no_more_memory_than_it_has_bytes() -> None:
    """LM11: an object for each made it twenty times as much."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    data = chunked("/a", *[b"xy"] * 100_000)
    half = len(data) // 2

    def feed_half() -> None:
        for at in range(0, half, 1000):
            peer.feed(data[at : min(at + 1000, half)])

    assert traced_bytes(feed_half) < 400_000
    peer.feed(data[half:])
    assert app.requests[0].body == b"xy" * 100_000


@pytest.mark.parametrize("behind", [b"", get("/b")], ids=["alone", "pipelined"])
@pytest.mark.parametrize("target", ["a:80", "/", "/v0/health", "http://a/"])
def test_connect_is_refused_and_ends_the_connection(
    target: str, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """LM10: what follows would not be HTTP."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(f"CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode() + behind)
    assert peer.written.startswith(b"HTTP/1.1 400 ") and peer.written.count(b"HTTP/1.1") == 1 and peer.is_ended
    assert not app.requests and not caplog.records
