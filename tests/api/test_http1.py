"""HTTP/1.1 and 1.0: bytes in, bytes out, in order."""

import asyncio
import json
import socket

import pytest

from tests.api.clients.raw import (
    MemoryTransport,
    RawClient,
    ScriptedApp,
    chunked,
    get,
    on_loop,
    post,
    request,
    until,
)
from topics.server.transport.exchange import Limits
from topics.server.transport.http1 import Http1
from topics.server.transport.listener import Listener, serve

DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # of a ManualClock
SMALL = Limits(body_bytes_max=1000, refused_body_bytes_max=200, headers_max=10, target_bytes_max=100)


def only(listener: Listener) -> Http1:
    (connection,) = listener.connections.open
    assert isinstance(connection, Http1)
    return connection


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
    assert seen.headers == {b"host": b"localhost", b"accept": b"one", b"x-odd": b"two"}
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
        {b"host": b"localhost", b"transfer-encoding": b"chunked"},
        {b"host": b"localhost"},
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
