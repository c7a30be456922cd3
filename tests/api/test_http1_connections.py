"""HTTP/1.1: connections that are slow, leave, do not read, fail, are forgotten and drained."""

import asyncio
import gc
import logging

import pytest

from tests.api.clients.raw import (
    MemoryTransport,
    RawClient,
    ScriptedApp,
    Told,
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


def only(listener: Listener) -> Http1:
    (connection,) = listener.connections.open
    assert isinstance(connection, Http1)
    return connection


def pass_time(listener: Listener, clock: ManualClock, seconds: float) -> None:
    clock.advance(int(seconds * 1000))
    listener.sweep()


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
        stream.owner = Told(app, b"/hold")
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
        kinds = (Http1, Http1Reader, Exchange, Stream)
        others = [id(one) for one in gc.get_objects() if isinstance(one, kinds)]
        await visit()
        assert [one for one in gc.get_objects() if isinstance(one, kinds) and id(one) not in others] == []
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
