"""HTTP/1.1 and 1.0: bytes in, bytes out, and every protection of a connection."""

import asyncio
import gc
import json
import logging
import socket

import pytest

from tests.api.rawclient import (
    MemoryTransport,
    RawClient,
    ScriptedApp,
    chunked,
    get,
    on_loop,
    post,
    request,
    speaks,
    until,
)
from topics.server.transport.exchange import Exchange, Limits, Stream
from topics.server.transport.http1 import Http1
from topics.server.transport.http1_reader import Http1Reader
from topics.server.transport.listener import Listener, serve
from topics.testing.clock import ManualClock

DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # of a ManualClock
SMALL = Limits(body_bytes_max=1000, refused_body_bytes_max=200, headers_max=10, target_bytes_max=100)


def only(listener: Listener) -> Http1:
    (connection,) = listener.connections.open
    assert isinstance(connection, Http1)
    return connection


def pass_time(listener: Listener, clock: ManualClock, seconds: float) -> None:
    clock.advance(int(seconds * 1000))
    listener.sweep()


# --- answers


def test_an_answer_is_these_bytes() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(post("/a?b=c", b'{"x":1}'))
    body = b'["POST","/a","b=c",7,"{\\"x\\":1}"]'
    assert (
        peer.written
        == (
            f"HTTP/1.1 200 OK\r\ndate: {DATE}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        + body
    )


@pytest.mark.contract("CV16")
@on_loop
async def test_a_connection_serves_one_request_after_another_without_delay() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        for n in range(3):
            reply = await client.ask(post(f"/a{n}", b"x" * n))
            assert json.loads(reply.body)[1:4] == [f"/a{n}", "", n]
            assert "connection" not in reply.headers
        assert only(listener).transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert app.requests[0].peer == client.socket.getsockname()
        client.close()
        await until(lambda: listener.open_count == 0)


def test_the_application_sees_the_first_value_of_a_header_and_the_repeated_ones() -> None:
    app = ScriptedApp()
    MemoryTransport(app).feed(get("/a", "Accept: one  ", "X-Odd:two", "ACCEPT: three\t"))
    seen = app.requests[0]
    assert seen.headers == {b"host": b"test", b"accept": b"one", b"x-odd": b"two"}
    assert seen.repeated == [(b"accept", b"three")]
    assert seen.header_values(b"accept") == [b"one", b"three"]
    assert seen.header_values(b"absent") == []


def test_the_headers_of_one_request_do_not_reach_another() -> None:
    app = ScriptedApp()
    transport = MemoryTransport(app)
    transport.feed(get("/hold") + get("/a", "Accept: 1", "Accept: 2") + get("/b"))
    app.held[b"/hold"].respond(200, b"{}")
    transport.turn()
    assert [list(seen.repeated) for seen in app.requests] == [[], [(b"accept", b"2")], []]


@pytest.mark.parametrize(
    ("data", "length"), [(get("/a"), 0), (post("/a", b""), 0), (post("/a", b"abc"), 3), (chunked("/a", b"abc"), -1)]
)
def test_the_declared_length_of_the_body_is_known_with_the_headers(data: bytes, length: int) -> None:
    app = ScriptedApp()
    MemoryTransport(app).feed(data)
    assert app.requests[0].content_length == length


SESSION = (
    post("/first?q=1", b"hello", "X-One: 1", "X-Two: 2")
    + chunked("/second", b"ab", b"c", trailers=b"X-Trailer: ignored\r\n")
    + get("/refuse")
    + post("/third", b"x", "Connection: Upgrade", "Upgrade: h2c")
    + get("/fourth", "Connection: close")
)


def test_requests_split_at_any_byte_give_the_same_answers() -> None:
    whole = MemoryTransport(ScriptedApp())
    whole.feed(SESSION)
    assert whole.written.count(b"HTTP/1.1 ") == 5
    for at in range(len(SESSION)):
        split = MemoryTransport(ScriptedApp())
        split.feed(SESSION[:at])
        split.feed(SESSION[at:])
        assert split.written == whole.written, at
        assert split.is_ended


def test_requests_fed_byte_by_byte_give_the_same_answers() -> None:
    whole, bytewise = MemoryTransport(ScriptedApp()), MemoryTransport(ScriptedApp())
    whole.feed(SESSION)
    for at in range(len(SESSION)):
        bytewise.feed(SESSION[at : at + 1])
    assert bytewise.written == whole.written


def test_trailers_do_not_become_headers() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(chunked("/a", b"abc", trailers=b"Authorization: Bearer x\r\nHost: other\r\n") + get("/b"))
    assert [seen.headers for seen in app.requests] == [
        {b"host": b"test", b"transfer-encoding": b"chunked"},
        {b"host": b"test"},
    ]
    assert [list(seen.repeated) for seen in app.requests] == [[], []]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a%2Fb?x=%20&y", "/a%2Fb", "x=%20&y"),
        ("/a?b?c", "/a", "b?c"),
        ("//a//", "//a//", ""),
        ("http://host:80/a?b", "/a", "b"),
        ("HTTPS://host", "/", ""),
    ],
)
def test_the_target_is_split_and_otherwise_left_alone(target: str, path: str, query: str) -> None:
    app = ScriptedApp()
    MemoryTransport(app).feed(get(target))
    assert (app.requests[0].path.decode(), app.requests[0].query.decode()) == (path, query)
    assert app.requests[0].target == target.encode()


def test_options_of_the_whole_server_reaches_the_application() -> None:
    app = ScriptedApp()
    MemoryTransport(app).feed(request("OPTIONS", "*", b""))
    assert app.requests[0].path == b"*"


@on_loop
async def test_head_has_the_length_of_the_body_but_not_the_body() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await RawClient.connect(listener)
        await client.send(request("HEAD", "/a", b"") + request("HEAD", "/large", b"") + get("/b"))
        reply = await client.reply(to_head=True)
        assert int(reply.headers["content-length"]) == len(b'["HEAD","/a","",0,""]')
        assert (await client.reply(to_head=True)).headers["content-length"] == "100000"
        assert json.loads((await client.reply()).body)[1] == "/b"


def test_an_answer_that_has_no_body_has_no_length_either() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold") + get("/a"))
    app.held[b"/hold"].respond(204, b"", [(b"x", b"y")])
    peer.turn()
    head, _, rest = peer.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 No Content\r\n") and b"length" not in head
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@on_loop
async def test_a_large_answer_arrives_whole() -> None:
    app = ScriptedApp()
    app.large = bytes(range(256)) * 20_000
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        assert (await client.ask(get("/large") + get("/b"))).body == app.large
        assert (await client.reply()).status == 200


# --- HTTP/1.0 and closing


def test_connection_close_is_honoured_and_said() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(get("/a", "Connection: close") + get("/never"))
    assert peer.is_ended
    assert peer.written.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in peer.written


def test_http10_closes_unless_asked_to_keep_the_connection() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert b"connection: keep-alive\r\n" in peer.written and not peer.is_ended
    peer.feed(get("/b"))
    assert peer.written.count(b"connection:") == 1
    peer.feed(b"GET /c HTTP/1.0\r\n\r\n")
    assert peer.written.endswith(b'["GET","/c","",0,""]')
    assert b"connection: close\r\n" in peer.written and peer.is_ended


@on_loop
async def test_a_stream_is_chunked_in_http11_and_ended_by_close_in_http10() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        new, old = await RawClient.connect(listener), await RawClient.connect(listener)
        await new.send(get("/stream-new"))
        await old.send(b"GET /stream-old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        await until(lambda: len(app.streams) == 2)
        for stream in app.streams.values():
            stream.write(b"one")
            stream.write(b"")
            stream.write(b"two" * 40_000)
            stream.end()
            stream.write(b"ignored")
            stream.end()
        reply = await new.reply()
        assert reply.body == b"one" + b"two" * 40_000
        assert reply.headers == {
            "date": reply.headers["date"],
            "content-type": "text/plain",
            "cache-control": "no-store",
            "transfer-encoding": "chunked",
            "connection": "keep-alive",
        }
        assert (await new.ask(get("/after"))).status == 200
        reply = await old.reply()
        assert reply.body == b"one" + b"two" * 40_000
        assert reply.headers["connection"] == "close" and "transfer-encoding" not in reply.headers
        assert sorted(app.events) == [("close", b"/stream-new"), ("close", b"/stream-old")]


@pytest.mark.parametrize("cut", range(len(get("/after")) + 1))
@on_loop
async def test_a_request_that_began_together_with_a_stream_is_answered_after_it(cut: int) -> None:
    app, after = ScriptedApp(), get("/after")
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/stream") + after[:cut])
        await until(lambda: len(app.streams) == 1)
        await client.send(after[cut:])
        app.streams[b"/stream"].end()
        assert (await client.reply()).status == (await client.reply()).status == 200
        assert [request.path for request in app.requests] == [b"/stream", b"/after"]


# --- order


@on_loop
async def test_pipelined_requests_are_answered_in_order_behind_a_slow_one() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold") + get("/b") + get("/refuse") + post("/c", b"xyz"))
        await client.send(post("/d", b"later"))
        await until(lambda: app.held)
        assert [seen.path for seen in app.requests] == [b"/hold"]
        app.held[b"/hold"].respond(200, b'"held"')
        replies = [await client.reply() for _ in range(5)]
        assert [reply.status for reply in replies] == [200, 200, 401, 200, 200]
        assert [json.loads(replies[n].body)[1] for n in (1, 3, 4)] == ["/b", "/c", "/d"]
        assert replies[0].body == b'"held"'


@pytest.mark.parametrize("first", ["/hold", "/stream"])
def test_a_pipelined_request_is_handled_in_a_turn_of_its_own(first: str) -> None:
    """ST17: whoever answers the one before it may be in the middle of a change; input that comes waits."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get(first) + get("/a"))
    if first == "/hold":
        app.held[b"/hold"].respond(200, b"{}")
    else:
        app.streams[b"/stream"].end()
    assert [request.path.decode() for request in app.requests] == [first]
    peer.feed(get("/b"))
    assert [request.path.decode() for request in app.requests] == [first, "/a", "/b"]
    assert peer.written.count(b"HTTP/1.1 200 OK") == 3


def test_a_connection_that_is_lost_before_a_pipelined_request_had_its_turn_handles_no_more() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold") + get("/a"))
    app.held[b"/hold"].respond(200, b"{}")
    peer.lose()
    peer.turn()
    assert [request.path for request in app.requests] == [b"/hold"]


def test_a_thousand_pipelined_requests_are_answered_without_deep_recursion() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold") + get("/a") * 1000 + get("/b", "Connection: Upgrade", "Upgrade: x") * 1000)
    app.held[b"/hold"].respond(200, b"{}")
    peer.turn()
    assert peer.written.count(b"HTTP/1.1 200 OK") == 2001


@on_loop
async def test_a_malformed_request_behind_a_slow_one_is_refused_after_it() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold") + b"GARBAGE\r\n\r\n" + get("/never"))
        await until(lambda: app.held)
        app.held[b"/hold"].respond(200, b"{}")
        assert (await client.reply()).status == 200
        assert (await client.reply()).code == "invalid_request"
        assert await client.read_to_end() == b""
        assert len(app.requests) == 1


@on_loop
async def test_reading_stops_while_the_application_is_behind_and_goes_on_after() -> None:
    app = ScriptedApp()
    async with serve(app, limits=Limits(ahead_bytes_max=10_000)) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold"))
        await until(lambda: app.held)
        sending = asyncio.ensure_future(client.send(post("/big", b"z" * 5_000_000)))
        connection = only(listener)
        await until(lambda: not connection.transport.is_reading())
        assert len(connection._ahead) < 10_000 + 300_000
        app.held[b"/hold"].respond(200, b"{}")
        await sending
        assert (await client.reply()).body == b"{}"
        assert json.loads((await client.reply()).body)[3] == 5_000_000


# --- bodies


@pytest.mark.contract("CV17")
@on_loop
async def test_a_declared_body_above_the_limit_is_refused_before_it_is_read() -> None:
    app = ScriptedApp()
    async with serve(app, limits=SMALL) as listener:
        client = await RawClient.connect(listener)
        reply = await client.ask(request("POST", "/a", b"", "Content-Length: 1001"))
        assert (reply.status, reply.code) == (413, "payload_too_large")
        assert reply.headers["connection"] == "close"
        await client.send(b"x" * 1001)
        assert await client.read_to_end() == b""
        assert app.requests == []


@pytest.mark.contract("CV17")
@on_loop
async def test_a_chunked_body_is_measured() -> None:
    app = ScriptedApp()
    async with serve(app, limits=SMALL) as listener:
        client = await RawClient.connect(listener)
        assert json.loads((await client.ask(chunked("/a", b"x" * 600, b"y" * 400))).body)[3] == 1000
        reply = await client.ask(chunked("/a", b"x" * 600, b"y" * 401))
        assert (reply.status, reply.code) == (413, "payload_too_large")
        assert await client.read_to_end() == b""
        assert len(app.requests) == 1


@pytest.mark.parametrize("data", [post("/refuse", b"x" * 5000), chunked("/refuse", b"x" * 5000)])
def test_what_the_headers_decide_comes_before_the_size_of_the_body(data: bytes) -> None:
    peer = MemoryTransport(ScriptedApp(), SMALL)
    peer.feed(data)
    assert peer.written.startswith(b"HTTP/1.1 401 ")
    assert peer.written.count(b"HTTP/1.1 ") == 1
    assert peer.is_ended


@pytest.mark.parametrize("data", [post("/refuse", b"x" * 200), chunked("/refuse", b"x" * 99, b"x")])
def test_a_refused_request_with_a_short_body_keeps_its_connection(data: bytes) -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app, SMALL)
    head, _, body = data.partition(b"\r\n\r\n")
    peer.feed(head + b"\r\n\r\n")
    assert peer.written.startswith(b"HTTP/1.1 401 ")  # before the body is there
    peer.feed(body)
    peer.feed(get("/next"))
    assert [seen.path for seen in app.requests] == [b"/next"]
    assert not peer.is_ended


@on_loop
async def test_a_client_that_sends_on_after_a_refusal_still_gets_the_answer() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await RawClient.connect(listener)
        data = post("/refuse", b"x" * 20_000_000)
        await client.send(data)
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        client.half_close()
        assert await client.read_to_end() == b""
        await until(lambda: listener.open_count == 0)


# --- Expect


@on_loop
async def test_100_continue_is_sent_when_the_client_waits_for_it() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await RawClient.connect(listener)
        await client.send(request("POST", "/a", b"", "Content-Length: 3", "Expect: 100-Continue"))
        assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert json.loads((await client.ask(b"abc")).body)[4] == "abc"


@pytest.mark.parametrize(
    "data",
    [
        post("/a", b"abc", "Expect: 100-continue"),  # the body is there already
        get("/a", "Expect: 100-continue"),  # there is none
        b"POST /a HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    ],
)
def test_100_continue_is_not_sent_when_nobody_waits_for_it(data: bytes) -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(data)
    assert peer.written.startswith(b"HTTP/1.1 200 OK\r\n")


def test_100_continue_is_not_sent_for_a_later_request() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(post("/a", b"abc", "Expect: 100-continue") + b"POST /b HTTP/1.1\r\n")
    peer.feed(b"Host: a\r\nContent-Length: 1\r\n\r\n")
    peer.feed(b"x")
    assert [part[:3] for part in peer.written.split(b"HTTP/1.1 ")] == [b"", b"200", b"200"]


def test_100_continue_comes_after_the_answers_before_it() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold") + request("POST", "/a", b"", "Content-Length: 3", "Expect: 100-continue"))
    assert peer.written == b""
    app.held[b"/hold"].respond(200, b'"first"')
    peer.turn()
    assert peer.written.endswith(b'"first"HTTP/1.1 100 Continue\r\n\r\n')
    peer.feed(b"abc")
    assert peer.written.endswith(b'"abc"]')


def test_a_refusal_takes_the_place_of_100_continue() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(request("POST", "/refuse", b"", "Content-Length: 3", "Expect: 100-continue"))
    assert peer.written.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close\r\n" in peer.written and peer.is_ended


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
        (Limits(), get("/a", "X: " + "x" * 200_000)),
        (Limits(), get("/a", "X" * 200_000 + ": x")),
        (Limits(), get("/" + "a" * 200_000)),
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


# --- time


@on_loop
async def test_slow_headers_are_cut_off_however_they_dribble() -> None:
    clock = ManualClock()
    async with serve(ScriptedApp(), clock=clock) as listener:
        client = await RawClient.connect(listener)
        await client.send(b"GET /a HTTP/1.1\r\nX-0: a\r\n")
        await until(lambda: speaks(listener, Http1))
        await until(lambda: only(listener).reader.is_midway)
        for n in range(9):
            await client.send(b"X-%d: a\r\n" % n)
            pass_time(listener, clock, 1)
        assert only(listener).stage == 0
        pass_time(listener, clock, 1)
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (400, "invalid_request", "close")
        assert await client.read_to_end() == b""
        pass_time(listener, clock, 5)  # the client does not close
        await until(lambda: listener.open_count == 0)
        assert listener.connections.expired_total == 2


def test_a_body_must_keep_up_a_minimal_rate() -> None:
    peer = MemoryTransport(ScriptedApp(), Limits(body_s=30, body_rate_min=1000))
    peer.feed(request("POST", "/a", b"", "Content-Length: 1000000"))
    for _ in range(60):  # at twice the rate it may take as long as it likes
        peer.pass_time(1)
        peer.feed(b"x" * 2000)
    assert not peer.is_ended
    for _ in range(89):  # 120 kB give it 120 s and 30 s of grace
        peer.pass_time(1)
    assert not peer.is_ended
    peer.pass_time(1)
    assert b"invalid_request" in peer.written and peer.is_ended


def test_a_refused_request_whose_body_does_not_come_is_not_answered_twice() -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(post("/refuse", b"abc")[:-1])
    peer.pass_time(30)
    assert not peer.is_ended
    peer.pass_time(1)
    assert peer.written.count(b"HTTP/1.1 ") == 1 and peer.is_ended


@pytest.mark.parametrize("data", [b"", b"PRI * HT", b"\r\n", get("/a")])
@on_loop
async def test_an_idle_connection_is_closed_without_a_word(data: bytes) -> None:
    clock = ManualClock()
    async with serve(ScriptedApp(), clock=clock) as listener:
        client = await RawClient.connect(listener)
        await client.send(data)
        await until(lambda: listener.open_count == 1)
        if data == b"\r\n":
            await until(lambda: speaks(listener, Http1))
        elif data == b"PRI * HT":
            await until(lambda: next(iter(listener.connections.open)).deadline == 10)
        if data == get("/a"):
            await client.reply()
            pass_time(listener, clock, 74)
            assert (await client.ask(get("/b"))).status == 200
            pass_time(listener, clock, 74)
            assert listener.open_count == 1
            pass_time(listener, clock, 1)
        else:
            pass_time(listener, clock, 75)
        assert await client.read_to_end() == b""
        await until(lambda: listener.open_count == 0)


@on_loop
async def test_an_exchange_may_take_as_long_as_the_application_likes() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold") + b"GET /b HTTP/1.1\r\n")
        await until(lambda: app.held)
        pass_time(listener, clock, 100_000)
        app.held[b"/hold"].respond(200, b"{}")
        pass_time(listener, clock, 1)  # the second head gets its time from here
        assert (await client.reply()).status == 200
        assert (await client.ask(b"Host: a\r\n\r\n")).status == 200


# --- upgrade


@on_loop
async def test_another_protocol_can_take_the_connection_with_what_was_read() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/a") + get("/upgrade", "Connection: Upgrade", "Upgrade: echo") + b"\0early")
        assert (await client.reply()).status == 200
        assert (await client.reply(to_head=True)).status == 101
        assert await client.read_exactly(6) == b"\0early"
        await client.send(b"late")
        assert await client.read_exactly(4) == b"late"
        assert listener.open_count == 1
        client.close()
        await until(lambda: listener.open_count == 0)
        assert app.events == [("lost", b"/upgrade")]


def test_what_follows_an_upgrade_in_a_large_read_is_passed_on_whole() -> None:
    peer = MemoryTransport(ScriptedApp())
    upgrade = get("/upgrade", "Connection: Upgrade", "Upgrade: echo")
    follow_up = bytes(range(256)) * 1000
    for padding in (0, 16_384 - len(upgrade) - len(get("/a", "X: "))):
        peer = MemoryTransport(ScriptedApp())
        peer.feed(get("/a", "X: " + "x" * padding) + upgrade + follow_up)
        assert peer.written.partition(b" 101 Switching Protocols\r\n\r\n")[2] == follow_up


@pytest.mark.parametrize(
    "data",
    [
        get("/a", "Connection: Upgrade", "Upgrade: websocket"),
        post(
            "/a",
            b"abc",
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
        ),
        chunked("/a", b"ab", b"c").replace(b"Host: test\r\n", b"Host: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"),
    ],
)
def test_an_upgrade_nobody_takes_is_an_ordinary_request(data: bytes) -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(data + get("/b"))
    assert [seen.path for seen in app.requests] == [b"/a", b"/b"]
    assert app.requests[0].body in (b"", b"abc")
    assert peer.written.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("extra", [[], ["Upgrade: echo"], ["Connection: Upgrade"]])
def test_a_connection_is_not_given_away_unasked(extra: list[str], caplog: pytest.LogCaptureFixture) -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(get("/upgrade", *extra) + get("/b"))
    assert [part[:3] for part in peer.written.split(b"HTTP/1.1 ")] == [b"", b"500", b"200"]
    assert "GET /upgrade failed" in caplog.text


def test_a_refused_request_that_asks_for_an_upgrade_skips_its_body() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(post("/refuse", b"abc", "Connection: Upgrade", "Upgrade: h2c") + get("/b"))
    assert [seen.path for seen in app.requests] == [b"/b"]
    assert [part[:3] for part in peer.written.split(b"HTTP/1.1 ")] == [b"", b"401", b"200"]


# --- clients that leave


@pytest.mark.contract("LM5")
@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset])
@on_loop
async def test_a_client_that_leaves_is_reported_exactly_once(leave: type) -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold"))
        await until(lambda: app.held)
        leave(client)
        await until(lambda: app.events)
        exchange = app.held[b"/hold"]
        assert exchange.is_disconnected
        exchange.respond(200, b"{}")
        await until(lambda: listener.open_count == 0)
        assert app.events == [("disconnect", b"/hold")]


@pytest.mark.contract("LM5")
@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset])
@on_loop
async def test_a_stream_whose_client_leaves_is_closed_exactly_once(leave: type) -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/stream"))
        await client.read_until(b"\r\n\r\n")
        leave(client)
        await until(lambda: listener.open_count == 0)
        stream = app.streams[b"/stream"]
        stream.write(b"ignored")
        stream.end()
        stream.abort()
        assert app.events == [("close", b"/stream")]
        assert (stream.is_closed, stream.buffered) == (True, 0)


@on_loop
async def test_a_client_that_half_closes_gets_its_answers() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold-1") + get("/hold-2") + get("/a") + b"GET /cut-off HT")
        client.half_close()
        await until(lambda: app.events)
        app.held[b"/hold-1"].respond(200, b'"one"')
        await until(lambda: len(app.events) == 2)  # told at once: it had half-closed before
        app.held[b"/hold-2"].respond(200, b'"two"')
        assert [(await client.reply()).body for _ in range(3)] == [b'"one"', b'"two"', b'["GET","/a","",0,""]']
        assert await client.read_to_end() == b""
        await until(lambda: listener.open_count == 0)
        assert app.events == [("disconnect", b"/hold-1"), ("disconnect", b"/hold-2")]


@on_loop
async def test_a_download_survives_a_half_close_and_a_live_stream_does_not() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/download"))
        client.half_close()
        await until(lambda: app.streams)
        app.streams[b"/download"].write(b"all of it")
        app.streams[b"/download"].end()
        assert (await client.reply()).body == b"all of it"
        await until(lambda: listener.open_count == 0)
        assert app.events == [("close", b"/download")]


@on_loop
async def test_an_answer_after_the_client_is_gone_is_ignored() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold"))
        await until(lambda: app.held)
        client.reset()
        await until(lambda: listener.open_count == 0)
        stream = app.held[b"/hold"].start_stream(200)
        stream.listen(lambda: None, lambda: app.events.append(("close", b"/hold")))
        stream.write(b"x")
        await until(lambda: len(app.events) == 2)
        assert app.events == [("disconnect", b"/hold"), ("close", b"/hold")]


# --- clients that do not read


@on_loop
async def test_a_client_that_does_not_read_stops_the_server_from_working_for_it() -> None:
    clock, app = ManualClock(), ScriptedApp()
    app.large = b"x" * 1_000_000
    async with serve(app, clock=clock) as listener:
        client = await RawClient.connect(listener, receive_buffer_bytes=4096)
        sending = asyncio.ensure_future(client.send(get("/large") * 200_000))
        await until(lambda: speaks(listener, Http1))
        connection = only(listener)
        await until(lambda: connection.is_write_blocked and not connection.transport.is_reading())
        handled = len(app.requests)
        assert handled < 20
        assert connection.transport.get_write_buffer_size() < 2 * len(app.large)
        pass_time(listener, clock, 59)
        assert listener.open_count == 1 and len(app.requests) == handled
        pass_time(listener, clock, 1)
        await until(lambda: listener.open_count == 0)
        sending.cancel()


@on_loop
async def test_a_slow_reader_that_takes_something_is_not_dropped() -> None:
    clock, app = ManualClock(), ScriptedApp()
    app.large = b"x" * 8_000_000
    async with serve(app, clock=clock) as listener:
        client = await RawClient.connect(listener, receive_buffer_bytes=65536)
        await client.send(get("/large", "Connection: close"))
        await client.read_until(b"\r\n\r\n")
        read = rounds = 0
        connection = only(listener)
        while waiting := connection.transport.get_write_buffer_size():
            while connection.transport.get_write_buffer_size() >= waiting:
                read += len(await client.receive())
            pass_time(listener, clock, 59)  # each time a little less than stall_s
            rounds += 1
        assert rounds > 1
        assert read + len(await client.read_to_end()) == len(app.large)


@on_loop
async def test_a_stream_shows_what_waits_and_when_it_can_go_on() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await RawClient.connect(listener, receive_buffer_bytes=4096)
        await client.send(get("/stream"))
        await client.read_until(b"\r\n\r\n")
        stream = app.streams[b"/stream"]
        assert not stream.is_blocked
        written = 0
        while not stream.is_blocked:
            stream.write(b"x" * 10_000)
            written += 10_000
            await asyncio.sleep(0)
        assert 0 < stream.buffered < 200_000
        while stream.is_blocked:
            client.unread += await client.receive()
        assert app.events == [("writable", b"/stream")]
        pass_time(listener, clock, 1000)
        assert listener.open_count == 1
        stream.end()
        assert await client.read_chunked() == b"x" * written


@on_loop
async def test_a_blocked_stream_is_cut_off_in_the_end() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await RawClient.connect(listener, receive_buffer_bytes=4096)
        await client.send(get("/stream"))
        await until(lambda: app.streams)
        app.streams[b"/stream"].write(b"x" * 10_000_000)
        pass_time(listener, clock, 60)
        pass_time(listener, clock, 60)
        await until(lambda: listener.open_count == 0)
        assert app.events == [("close", b"/stream")]


# --- an application that fails


@pytest.mark.parametrize("path", ["/boom", "/head-boom", "/inject", "/smuggle"])
def test_a_failing_handler_is_a_500_and_the_connection_goes_on(path: str, caplog: pytest.LogCaptureFixture) -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(get(f"{path}?token=secret") + get("/next"))
    assert peer.written.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b'\r\n\r\n{"error":{"code":"internal","message":"' in peer.written
    assert peer.written.endswith(b'["GET","/next","",0,""]')
    assert f"GET {path} failed" in caplog.text and "secret" not in caplog.text


def test_a_refusal_behind_an_answer_given_while_an_exception_is_handled_is_still_that_refusal() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold", "Connection: Upgrade", "Upgrade: x") + b"GET / HTTP/1.1\r\nX: a\r\n\r\n")
    try:
        raise RuntimeError("something the application knows how to answer")
    except RuntimeError:
        app.held[b"/hold"].respond(422, b"{}")
        peer.turn()
    assert [part[:3] for part in peer.written.split(b"HTTP/1.1 ")] == [b"", b"422", b"400"]


def test_a_handler_that_fails_after_its_answer_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    peer = MemoryTransport(ScriptedApp())
    peer.feed(get("/boom-late") + get("/next"))
    assert peer.written.count(b"HTTP/1.1 200 OK") == 2 and b"500" not in peer.written
    assert "GET /boom-late failed" in caplog.text


@on_loop
async def test_a_handler_that_fails_in_its_stream_cuts_it_off() -> None:
    logging.getLogger("topics.server").disabled = True
    async with serve(ScriptedApp()) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/boom-stream"))
        with pytest.raises((AssertionError, ConnectionResetError)):
            await client.reply()
        await until(lambda: listener.open_count == 0)
    logging.getLogger("topics.server").disabled = False


def test_an_exchange_is_answered_once() -> None:
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(get("/hold"))
    exchange = app.held[b"/hold"]
    exchange.respond(200, b"{}")
    with pytest.raises(RuntimeError):
        exchange.respond(200, b"{}")
    with pytest.raises(RuntimeError):
        exchange.start_stream(200)
    assert peer.written.count(b"HTTP/1.1 ") == 1


# --- memory


async def visit() -> None:
    """Exchanges of every kind on one connection."""
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.ask(get("/a") + post("/b", b"x"))
        await client.reply()
        await client.send(get("/hold"))
        await until(lambda: app.held)
        app.held[b"/hold"].respond(200, b"{}")
        await client.reply()
        await client.send(get("/stream"))
        await until(lambda: app.streams)
        app.streams[b"/stream"].end()
        await client.reply()
        await client.send(get("/stream-lost"))
        await until(lambda: len(app.streams) == 2)
        client.close()
        await until(lambda: listener.open_count == 0)
        for kept in (app.held, app.streams, app.unfinished):
            kept.clear()  # type: ignore[attr-defined]


@on_loop
async def test_nothing_of_a_connection_waits_for_the_garbage_collector() -> None:
    """Collections are rare in this server, so connections and exchanges must not refer to themselves."""
    gc.collect()
    gc.disable()
    try:
        await visit()
        kinds = (Http1, Http1Reader, Exchange, Stream)
        assert [one for one in gc.get_objects() if isinstance(one, kinds)] == []
    finally:
        gc.enable()


# --- drain


@pytest.mark.contract("SC3")
@on_loop
async def test_draining_closes_idle_connections_and_finishes_running_exchanges() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        idle, fresh, busy, reading = [await RawClient.connect(listener) for _ in range(4)]
        await idle.ask(get("/a"))
        await busy.send(get("/hold") + get("/never"))
        await reading.send(post("/late", b"abcdef")[:-3])
        await until(lambda: app.held and listener.open_count == 4)
        draining = asyncio.ensure_future(listener.drain(10))
        assert await idle.read_to_end() == await fresh.read_to_end() == b""
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(listener)
        assert not draining.done()
        app.held[b"/hold"].respond(200, b'"done"')
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b'"done"', "close")
        assert await busy.read_to_end() == b""
        assert (await reading.ask(b"def")).headers["connection"] == "close"
        await draining
        assert listener.open_count == 0
        assert [seen.path for seen in app.requests] == [b"/a", b"/hold", b"/late"]


@on_loop
async def test_draining_cuts_off_what_does_not_end_in_time() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await RawClient.connect(listener)
        await client.send(get("/hold"))
        await until(lambda: app.held)
        await listener.drain(0)
        assert listener.open_count == 0
        assert app.events == [("disconnect", b"/hold")]
