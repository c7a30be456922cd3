"""HTTP/2 by prior knowledge: the same application, flow control, floods."""

import asyncio
import gc
import json
import shutil
import struct
import subprocess

import pytest
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    InformationalResponseReceived,
    PingAckReceived,
    ResponseReceived,
    StreamReset,
)
from h2.settings import SettingCodes

from tests.api.clients.raw import Http2Client, MemoryTransport, RawClient, ScriptedApp, on_loop, speaks, until
from tests.effort import stride
from topics.server.transport.exchange import Exchange, Limits, Stream
from topics.server.transport.http2 import Http2
from topics.server.transport.http2_reader import FrameWatch
from topics.server.transport.listener import Listener, serve
from topics.testing.clock import ManualClock

SMALL = Limits(body_bytes_max=1000, headers_max=10, target_bytes_max=100, head_bytes_max=4096)


def only(listener: Listener) -> Http2:
    (connection,) = listener.connections.open
    assert isinstance(connection, Http2)
    return connection


def pass_time(listener: Listener, clock: ManualClock, seconds: float) -> None:
    clock.advance(int(seconds * 1000))
    listener.sweep()


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0, size: int | None = None) -> bytes:
    size = len(payload) if size is None else size
    return FrameWatch.HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


# --- answers


@pytest.mark.contract("CV16")
@on_loop
async def test_a_request_is_answered_without_connection_headers() -> None:
    app = ScriptedApp()
    async with serve(app, clock=ManualClock()) as listener:
        client = await Http2Client.connect(listener)
        reply = await client.ask("/a?b=c", b'{"x":1}', ("x-odd", "1"))
        assert reply.body == b'["POST","/a","b=c",7,"{\\"x\\":1}"]'
        assert reply.headers == {
            "date": "Tue, 14 Nov 2023 22:13:20 GMT",
            "content-type": "application/json",
            "content-length": str(len(reply.body)),
        }
        seen = app.requests[0]
        assert (seen.http2, seen.content_length, seen.headers) == (True, -1, {b"host": b"localhost", b"x-odd": b"1"})
        assert seen.peer == client.raw.socket.getsockname()
        assert (await client.ask("/b")).status == 200
        assert (listener.connections.http2_total, listener.connections.accepted_total) == (1, 1)


@on_loop
async def test_head_has_the_length_of_the_body_but_not_the_body() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        reply = await client.ask("/large", method="HEAD")
        assert (reply.headers["content-length"], reply.body) == ("100000", b"")


@on_loop
async def test_exchanges_of_one_connection_do_not_wait_for_each_other() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        held = await client.start("/hold")
        assert (await client.ask("/a")).status == 200
        app.held[b"/hold"].respond(200, b'"late"')
        assert (await client.reply(held)).body == b'"late"'


async def conversation() -> bytes:
    """What a client sends in a few exchanges, on paper."""
    client = Http2Client(cast_socketless())
    client.h2.initiate_connection()
    for path, body in (("/a?b", None), ("/refuse", b"x" * 100), ("/c", b"y" * 1000)):
        await client.start(path, body)
    return client.raw.unread


def cast_socketless() -> RawClient:
    raw = RawClient.__new__(RawClient)
    raw.unread = b""

    async def send(data: bytes) -> None:
        raw.unread += data

    raw.send = send  # type: ignore[method-assign]
    return raw


@on_loop
async def test_input_split_at_any_byte_gives_the_same_answers() -> None:
    data = await conversation()
    answers = (b'["GET","/a","b",0,""]', b'"code":"unauthorized"', b'["POST","/c","",1000')
    for at in range(0, len(data) + 1, stride()):
        split = MemoryTransport(ScriptedApp())
        split.feed(data[:at])
        split.feed(data[at:])
        assert [split.written.count(answer) for answer in answers] == [1, 1, 1], at
        assert not split.is_ended


@on_loop
async def test_httpx_is_served() -> None:
    httpx = pytest.importorskip("httpx")
    async with serve(ScriptedApp()) as listener:
        url = "http://{}:{}".format(*listener.address)
        async with httpx.AsyncClient(http1=False, http2=True, trust_env=False) as client:
            answers = await asyncio.gather(*(client.post(f"{url}/n{n}", content=b"x" * n) for n in range(50)))
            assert [answer.json()[3] for answer in answers] == list(range(50))
            assert {answer.http_version for answer in answers} == {"HTTP/2"}
            assert (await client.get(f"{url}/large")).text == "x" * 100_000


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@on_loop
async def test_curl_is_served() -> None:
    async with serve(ScriptedApp()) as listener:
        url = "http://{}:{}/a".format(*listener.address)
        command = ["curl", "-sS", "--http2-prior-knowledge", "-d", "abc", "--write-out", " %{http_version}", url]
        answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert answer.stdout == '["POST","/a","",3,"abc"] 2'


# --- bodies


@on_loop
async def test_a_body_larger_than_the_windows_arrives_whole() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        body = bytes(range(256)) * 20_000
        assert json.loads((await client.ask("/a", body)).body)[3] == len(body)
        assert app.requests[0].body == body


@on_loop
async def test_bodies_of_many_streams_are_bounded_together_and_all_come_through() -> None:
    app = ScriptedApp()
    async with serve(app, limits=Limits(body_bytes_max=1_000_000)) as listener:
        client = await Http2Client.connect(listener)
        streams = [await client.start("/a", is_end=False) for _ in range(20)]
        await until(lambda: speaks(listener, Http2))
        left = dict.fromkeys(streams, 900_000)
        most = 0
        while left:
            sent = 0
            for stream_id in reversed(list(left)):  # the newest first, so that the oldest is not the fastest
                size = min(client.h2.local_flow_control_window(stream_id), 16_384, left[stream_id])
                if size > 0:
                    left[stream_id] -= size
                    client.h2.send_data(stream_id, b"x" * size, end_stream=left[stream_id] == 0)
                    sent += size
                if left[stream_id] == 0:
                    del left[stream_id]
            await client.flush()
            if not sent:
                await client.read_more()
            held = sum(one.body_bytes for one in only(listener)._exchanges.values() if not one.is_complete)
            most = max(most, held)
        for stream_id in streams:
            assert (await client.reply(stream_id)).status == 200
        assert most < 1_000_000 + 1_000_000 + 20 * 256 * 1024
        assert [len(seen.body) for seen in app.requests] == [900_000] * 20


@pytest.mark.contract("CV17")
@pytest.mark.parametrize("headers", [[("content-length", "1001")], []])
@on_loop
async def test_a_body_above_the_limit_is_refused(headers: list[tuple[str, str]]) -> None:
    app = ScriptedApp()
    async with serve(app, limits=SMALL) as listener:
        client = await Http2Client.connect(listener)
        stream_id = await client.start("/a", b"x" * 1001, *headers, is_end=False)
        reply = await client.reply(stream_id)
        assert (reply.status, reply.code) == (413, "payload_too_large")
        assert (await client.read_for(StreamReset, stream_id)).error_code == ErrorCodes.NO_ERROR
        assert json.loads((await client.ask("/b", b"x" * 1000)).body)[3] == 1000
        assert len(app.requests) == 1


@on_loop
async def test_a_request_refused_from_its_headers_leaves_the_connection_usable() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        stream_id = await client.start("/refuse", b"x" * 5000, is_end=False)
        assert (await client.reply(stream_id)).code == "unauthorized"
        assert (await client.read_for(StreamReset, stream_id)).error_code == ErrorCodes.NO_ERROR
        assert (await client.ask("/refuse")).status == 401
        for n in range(30):  # what is sent and not read still comes back to the connection's window
            stream_id = await client.start("/refuse", b"x" * 16_000, is_end=False)
            assert (await client.reply(stream_id)).status == 401, n
        assert [seen.path for seen in app.requests] == []
        assert (await client.ask("/b", b"x" * 100_000)).status == 200


@on_loop
async def test_a_refused_request_that_ends_before_its_answer_is_sent_is_not_reset() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener, settings={SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream_id = await client.start("/refuse", b"abc", is_end=False)
        await client.read_for(ResponseReceived, stream_id)
        await client.send_body(stream_id, b"def")
        client.h2.increment_flow_control_window(1000, stream_id)
        await client.flush()
        assert (await client.reply(stream_id)).status == 401
        assert not any(isinstance(event, StreamReset) for event in client.events)


@on_loop
async def test_100_continue_is_sent_to_a_client_that_waits() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        stream_id = await client.start("/a", None, ("expect", "100-continue"), method="POST", is_end=False)
        assert (await client.read_for(InformationalResponseReceived, stream_id)).headers == [(":status", "100")]
        await client.send_body(stream_id, b"abc")
        assert (await client.reply(stream_id)).status == 200


# --- heads


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/" + "a" * 100, []),
        ("/a", [(f"x{n}", "1") for n in range(10)]),
        ("/a#b", []),
        ("a", []),
        ("/a b", []),
        ("/é", []),
        ("*", []),
        ("/a", [("content-type", "a"), ("content-type", "b")]),
        ("/a", [("authorization", "a"), ("authorization", "b")]),
        ("/a", [("expect", "200-ok")]),
        ("/a", [("content-length", "1")]),
        ("/a", [("content-length", "0"), ("content-length", "0")]),
    ],
)
@on_loop
async def test_a_head_that_is_too_large_or_ambiguous_is_refused(path: str, headers: list[tuple[str, str]]) -> None:
    app = ScriptedApp()
    async with serve(app, limits=SMALL) as listener:
        client = await Http2Client.connect(listener)
        client.h2.config.validate_outbound_headers = False
        reply = await client.ask(path, None, *headers)
        assert (reply.status, reply.code) == (400, "invalid_request")
        assert app.requests == []
        assert (await client.ask("/b")).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        [(":method", "GET"), (":path", "/a"), (":scheme", "http")],
        [(":method", "CONNECT"), (":authority", "a:80")],
    ],
)
@on_loop
async def test_a_head_without_authority_or_path_reaches_nobody(lines: list[tuple[str, str]]) -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        client.h2.config.validate_outbound_headers = False
        client.h2.send_headers(1, lines, end_stream=True)
        await client.flush()
        while not client.is_ended and not client.body(1):
            await client.read_more()
        assert app.requests == []


@pytest.mark.parametrize(
    "lines",
    [
        [("x", "y" * 5000)],
        [("connection", "close")],
        [("transfer-encoding", "chunked")],
        [("X-Upper", "a")],
        [("x", "a\r\nb")],
        [(":path", "/twice")],
        [("content-length", "x")],
        [("content-length", "+0")],
    ],
)
@on_loop
async def test_a_malformed_header_block_ends_the_connection(lines: list[tuple[str, str]]) -> None:
    app = ScriptedApp()
    async with serve(app, limits=SMALL) as listener:
        client = await Http2Client.connect(listener)
        client.h2.config.validate_outbound_headers = client.h2.config.normalize_outbound_headers = False
        head = [(":method", "GET"), (":path", "/a"), (":scheme", "http"), (":authority", "a")]
        client.h2.send_headers(1, head + lines, end_stream=True)
        await client.flush()
        assert (await client.read_for(ConnectionTerminated)).error_code != 0
        await client.read_to_end()
        assert app.requests == []
        client.raw.close()
        await until(lambda: listener.open_count == 0)


@on_loop
async def test_more_streams_than_allowed_end_the_connection() -> None:
    app = ScriptedApp()
    async with serve(app, limits=Limits(streams_max=5)) as listener:
        client = await Http2Client.connect(listener)
        for n in range(6):
            await client.start(f"/hold-{n}")
        await client.read_for(ConnectionTerminated)
        await client.read_to_end()
        client.raw.close()
        await until(lambda: listener.open_count == 0)
        await until(lambda: len(app.events) == len(app.held))


# --- flow control out


@on_loop
async def test_an_answer_waits_for_the_window_of_its_stream() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener, refills=False)
        large = await client.start("/large")
        while len(client.body(large)) < 65_535:
            await client.read_more()
        (exchange,) = only(listener)._exchanges.values()
        assert exchange.pending_bytes == 100_000 - 65_535
        client.h2.increment_flow_control_window(100_000)
        client.h2.increment_flow_control_window(1000, large)
        await client.flush()
        while len(client.body(large)) < 66_535:
            await client.read_more()
        assert (await client.ask("/small")).status == 200  # not held up by the large one
        client.h2.increment_flow_control_window(100_000, large)
        await client.flush()
        assert (await client.reply(large)).body == app.large


@on_loop
async def test_a_window_of_nothing_and_tiny_frames_still_get_their_answers() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener, refills=False, settings={SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream_id = await client.start("/a")
        for _ in range(20):
            client.h2.increment_flow_control_window(1, stream_id)
            await client.flush()
        assert (await client.reply(stream_id)).body == b'["GET","/a","",0,""]'


@on_loop
async def test_a_stream_shows_what_waits_and_when_it_can_go_on() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener, refills=False)
        stream_id = await client.start("/stream")
        await until(lambda: app.streams)
        stream = app.streams[b"/stream"]
        stream.write(b"x" * 60_000)
        assert not stream.is_blocked
        stream.write(b"y" * 60_000)
        assert stream.is_blocked and stream.buffered >= 120_000 - 65_535
        while len(client.body(stream_id)) < 65_535:
            await client.read_more()
        assert stream.buffered == 120_000 - 65_535 and app.events == []
        client.h2.increment_flow_control_window(100_000)
        client.h2.increment_flow_control_window(100_000, stream_id)
        await client.flush()
        await until(lambda: app.events == [("writable", b"/stream")])
        stream.write(b"z")
        stream.end()
        stream.end()
        stream.write(b"ignored")
        assert (await client.reply(stream_id)).body == b"x" * 60_000 + b"y" * 60_000 + b"z"
        assert app.events == [("writable", b"/stream"), ("close", b"/stream")]


@on_loop
async def test_a_stream_that_ends_while_blocked_is_sent_to_its_end() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener, refills=False)
        stream_id = await client.start("/stream")
        await until(lambda: app.streams)
        app.streams[b"/stream"].write(b"x" * 100_000)
        app.streams[b"/stream"].end()
        assert app.events == []
        client.h2.increment_flow_control_window(100_000)
        client.h2.increment_flow_control_window(100_000, stream_id)
        await client.flush()
        assert (await client.reply(stream_id)).body == b"x" * 100_000
        assert app.events == [("close", b"/stream")]


@on_loop
async def test_a_socket_that_is_not_read_blocks_its_streams() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await Http2Client.connect(listener, settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        client.h2.increment_flow_control_window(2**30)
        stream_id = await client.start("/stream")
        await until(lambda: app.streams)
        stream = app.streams[b"/stream"]
        for _ in range(30):
            stream.write(b"x" * 1_000_000)
        connection = only(listener)
        assert stream.is_blocked and connection.is_write_blocked
        assert stream.buffered > 10_000_000
        assert connection.transport.get_write_buffer_size() < 300_000
        while len(client.bodies[stream_id]) < 30_000_000:
            await client.read_more()
        assert app.events == [("writable", b"/stream")]
        assert stream.buffered == 0


# --- clients that leave


@pytest.mark.contract("LM5")
@pytest.mark.parametrize("how", ["reset stream", "close", "reset connection", "break the protocol"])
@on_loop
async def test_a_client_that_leaves_is_reported_exactly_once(how: str) -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        held, streamed = await client.start("/hold"), await client.start("/stream")
        await until(lambda: app.held and app.streams)
        if how == "reset stream":
            client.h2.reset_stream(held)
            client.h2.reset_stream(streamed)
            await client.flush()
        elif how == "close":
            client.raw.close()
        elif how == "reset connection":
            client.raw.reset()
        else:
            await client.raw.send(frame(0, b"x", stream_id=77))
        await until(lambda: len(app.events) == 2)
        exchange, stream = app.held[b"/hold"], app.streams[b"/stream"]
        assert exchange.is_disconnected and stream.is_closed
        exchange.respond(200, b"{}")
        stream.write(b"x")
        stream.end()
        stream.abort()
        client.raw.close()
        await until(lambda: listener.open_count == 0)
        assert sorted(app.events) == [("close", b"/stream"), ("disconnect", b"/hold")]


@on_loop
async def test_a_request_reset_in_the_same_packet_leaves_nothing_behind() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        lines = [(":method", "GET"), (":scheme", "http"), (":authority", "a")]
        for n, path in enumerate(["/a", "/hold", "/stream", "/refuse", "/large", "/boom-stream"]):
            client.h2.send_headers(2 * n + 1, [*lines, (":path", path)], end_stream=True)
            client.h2.reset_stream(2 * n + 1)
        await client.flush()
        assert (await client.ask("/b")).status == 200
        assert only(listener)._exchanges == {}
        assert ("disconnect", b"/hold") in app.events and ("close", b"/stream") in app.events


@on_loop
async def test_an_aborted_stream_is_reset() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        stream_id = await client.start("/stream")
        await until(lambda: app.streams)
        app.streams[b"/stream"].abort()
        assert (await client.read_for(StreamReset, stream_id)).error_code == ErrorCodes.INTERNAL_ERROR
        assert app.events == [("close", b"/stream")]
        assert (await client.ask("/a")).status == 200


# --- an application that fails


@pytest.mark.parametrize("path", ["/boom", "/head-boom", "/inject", "/smuggle"])
@on_loop
async def test_a_failing_handler_is_a_500_and_the_connection_goes_on(path: str) -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        reply = await client.ask(path)
        assert (reply.status, reply.code) == (500, "internal")
        assert (await client.ask("/a")).status == 200


@on_loop
async def test_a_connection_cannot_be_upgraded() -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        assert (await client.ask("/upgrade")).status == 500


@on_loop
async def test_a_client_that_says_goodbye_gets_what_it_asked_for() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        held = await client.start("/hold")
        await until(lambda: app.held)
        await client.raw.send(frame(7, struct.pack(">LL", 0, 0)) + frame(6, b"12345678"))
        app.held[b"/hold"].respond(200, b'"held"')
        assert (await client.reply(held)).body == b'"held"'
        await client.read_to_end()
        client.raw.close()  # else the server waits for it
        await until(lambda: listener.open_count == 0)


async def visit() -> None:
    """Exchanges of every kind on one connection."""
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        for path in ("/a", "/refuse"):
            await client.ask(path, b"x")
        for path in ("/hold", "/stream", "/stream-lost"):
            await client.start(path)
        await until(lambda: len(app.unfinished) == 3)
        app.held[b"/hold"].respond(200, b"{}")
        app.streams[b"/stream"].end()
        client.raw.close()
        await until(lambda: listener.open_count == 0)
        for kept in (app.held, app.streams, app.unfinished):
            kept.clear()  # type: ignore[attr-defined]


@on_loop
async def test_nothing_of_a_connection_waits_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        kinds = (Http2, Exchange, Stream)
        others = [id(one) for one in gc.get_objects() if isinstance(one, kinds)]
        await visit()
        assert [one for one in gc.get_objects() if isinstance(one, kinds) and id(one) not in others] == []
    finally:
        gc.enable()


# --- floods


@pytest.mark.parametrize(
    "flood",
    [
        frame(6, b"12345678") * 3000,  # PING
        frame(4) * 3000,  # SETTINGS
        frame(4, struct.pack(">HL", 4, 1000)) * 3000,
        frame(2, b"\0\0\0\0\1", stream_id=1) * 3000,  # PRIORITY
        frame(8, b"\0\0\0\1") * 3000,  # WINDOW_UPDATE
        frame(0xAB, b"") * 3000,  # unknown
        frame(0, b"", stream_id=1) * 3000,  # empty DATA
    ],
    ids=["ping", "settings", "changing settings", "priority", "window", "unknown", "empty data"],
)
@on_loop
async def test_a_flood_of_control_frames_ends_the_connection(flood: bytes) -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        await client.start("/hold", b"", is_end=False)
        await client.raw.send(flood)
        assert (await client.read_for(ConnectionTerminated)).error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await client.read_to_end()
        client.raw.close()
        await until(lambda: listener.open_count == 0)


@on_loop
async def test_control_frames_at_a_human_pace_are_no_flood() -> None:
    clock = ManualClock()
    async with serve(ScriptedApp(), clock=clock) as listener:
        client = await Http2Client.connect(listener)
        for _ in range(10):
            await client.raw.send(frame(6, b"12345678") * 1000)
            assert (await client.ask("/a")).status == 200
            pass_time(listener, clock, 10)


@on_loop
async def test_rapid_resets_end_the_connection() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        client = await Http2Client.connect(listener)
        lines = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/hold")]
        for n in range(1000):
            client.h2.send_headers(2 * n + 1, lines, end_stream=True)
            client.h2.reset_stream(2 * n + 1)
            if n % 10 == 0:
                await client.flush()
        await client.flush()
        assert (await client.read_for(ConnectionTerminated)).error_code == ErrorCodes.ENHANCE_YOUR_CALM
        assert len(app.requests) < 250


@pytest.mark.parametrize(
    "data",
    [
        frame(0, b"x" * 100, stream_id=1, size=16_385),
        frame(0xAB, b"x" * 100, size=2**24 - 1),
        frame(1, b"", stream_id=1) + frame(9, b"", stream_id=1) * 100,  # HEADERS without end, CONTINUATION
        frame(1, b"", stream_id=1) + frame(9, b"x" * 16_000, stream_id=1) * 100,
        frame(5, b"\0\0\0\2", stream_id=1),  # PUSH_PROMISE
        frame(4, b"x"),
        frame(8, b"\0\0\0\0"),
        b"\xff" * 100,
    ],
    ids=["large", "huge", "continuation", "large continuation", "push", "odd settings", "no increment", "garbage"],
)
@on_loop
async def test_frames_that_break_the_protocol_end_the_connection(data: bytes) -> None:
    async with serve(ScriptedApp()) as listener:
        client = await Http2Client.connect(listener)
        await client.raw.send(data)
        assert (await client.read_for(ConnectionTerminated)).error_code != 0
        await client.read_to_end()
        client.raw.close()
        await until(lambda: listener.open_count == 0)
        assert listener.connections.broken_total == 1


# --- time


@on_loop
async def test_an_idle_connection_is_told_to_go() -> None:
    clock = ManualClock()
    async with serve(ScriptedApp(), clock=clock) as listener:
        client = await Http2Client.connect(listener)
        assert (await client.ask("/a")).status == 200
        pass_time(listener, clock, 74)
        await client.raw.send(frame(6, b"12345678"))
        await client.read_for(PingAckReceived)  # a ping is no work
        assert listener.open_count == 1
        pass_time(listener, clock, 1)
        assert (await client.read_for(ConnectionTerminated)).error_code == ErrorCodes.NO_ERROR
        await client.read_to_end()
        await until(lambda: listener.open_count == 0)


@on_loop
async def test_a_slow_body_is_refused_and_a_held_exchange_is_not() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await Http2Client.connect(listener)
        held = await client.start("/hold")
        slow = await client.start("/a", b"x" * 1024, is_end=False)
        await until(lambda: app.held and len(only(listener)._exchanges) == 2)
        for _ in range(30):
            pass_time(listener, clock, 1)
        assert len(only(listener)._exchanges) == 2
        for _ in range(5):
            pass_time(listener, clock, 1)
        assert (await client.reply(slow)).code == "invalid_request"
        pass_time(listener, clock, 1000)
        app.held[b"/hold"].respond(200, b"{}")
        assert (await client.reply(held)).status == 200


@on_loop
async def test_a_stream_that_stays_blocked_is_reset() -> None:
    clock, app = ManualClock(), ScriptedApp()
    async with serve(app, clock=clock) as listener:
        client = await Http2Client.connect(listener, refills=False)
        stream_id = await client.start("/large")
        while len(client.body(stream_id)) < 65_535:
            await client.read_more()
        for _ in range(59):
            pass_time(listener, clock, 1)
        assert only(listener)._exchanges
        for _ in range(6):
            pass_time(listener, clock, 1)
        assert (await client.read_for(StreamReset, stream_id)).error_code == ErrorCodes.CANCEL


# --- drain


@pytest.mark.contract("SC3")
@on_loop
async def test_draining_says_goaway_and_finishes_what_runs() -> None:
    app = ScriptedApp()
    async with serve(app) as listener:
        idle, busy = await Http2Client.connect(listener), await Http2Client.connect(listener)
        assert (await idle.ask("/a")).status == 200
        held = await busy.start("/hold")
        await until(lambda: app.held)
        draining = asyncio.ensure_future(listener.drain(10))
        await idle.read_for(ConnectionTerminated)
        await idle.read_to_end()
        raw = await busy.raw.receive()
        assert raw.endswith(frame(7, struct.pack(">LL", held, 0)))
        late = await busy.start("/late")
        app.held[b"/hold"].respond(200, app.large)
        assert (await busy.reply(held)).body == app.large
        assert (await busy.read_for(StreamReset, late)).error_code == ErrorCodes.REFUSED_STREAM
        await busy.read_to_end()
        await draining
        assert [seen.path for seen in app.requests] == [b"/a", b"/hold"]
