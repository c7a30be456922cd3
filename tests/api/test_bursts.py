"""How much of what one connection sends is worked on in one turn of the loop, before others have theirs (LM10)."""

import asyncio
from functools import cached_property
from typing import Any, cast

import pytest
from hpack import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as hpack_decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from tests.api.clients.raw import MemoryTransport, ScriptedApp, chunked, get, post
from tests.api.clients.websocket import client_frame
from topics.server.transport.exchange import Exchange, Limits, Request
from topics.server.transport.http1 import BURST_MAX, Http1
from topics.server.transport.http1_reader import WORK_MAX
from topics.server.transport.http2 import LONG_TURN_S, SLICES_MAX
from topics.server.transport.http2_reader import FRAMES_MAX as HTTP2_FRAMES_MAX
from topics.server.transport.http2_reader import HEADS_BYTES_MAX, PREFACE, FrameWatch, decode_huffman
from topics.server.transport.websocket import WebSocket
from topics.server.transport.websocket_reader import CONT, FRAMES_MAX, TEXT, FrameReader
from topics.testing.clock import ManualClock

HEAD = b"\x82\x86\x04\x02/a\x01\x01a"  # GET /a
SETTINGS = FrameWatch.HEADER.pack(0, 0, 4, 0, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return FrameWatch.HEADER.pack(0, len(payload), kind, flags, stream) + payload


def first_turn(peer: MemoryTransport, data: bytes) -> None:
    """One read of the server, without what it leaves for later turns."""
    peer._protocol.data_received(data)


def one_turn(peer: MemoryTransport) -> bool:
    """What the next turn does; False: nothing is left."""
    if not peer._turns:
        return False
    peer._turns.pop(0)()
    return True


def test_pipelined_requests_take_turns() -> None:
    """LM10: each turn has a few, and all are answered, in order."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, b"".join(get(f"/{number}") for number in range(5000)))
    seen = len(app.requests)
    assert 0 < seen <= BURST_MAX
    while one_turn(peer):
        assert len(app.requests) - seen <= BURST_MAX
        seen = len(app.requests)
    assert [request.target for request in app.requests] == [b"/%d" % number for number in range(5000)]


@pytest.mark.parametrize("read_requests", [1, 20, 5000])
def test_while_another_connection_waits_each_has_one_request_in_a_turn(read_requests: int) -> None:
    """LM10: very many connections that pipeline are no longer turn than a few."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, get("/first"))
    waits = [True]

    def wait_on() -> None:
        if waits:
            peer.connections.turns.add(wait_on)

    wait_on()
    seen = len(app.requests)
    first_turn(peer, b"".join(get(f"/{number}") for number in range(read_requests)))
    for _ in range(3):
        assert len(app.requests) - seen <= 1
        seen = len(app.requests)
        one_turn(peer)
    waits.clear()
    while one_turn(peer):
        pass
    assert [request.target for request in app.requests] == [
        b"/first",
        *(b"/%d" % number for number in range(read_requests)),
    ]


def test_refused_requests_take_turns_no_less() -> None:
    """LM10"""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, get("/refused") * 1000)
    answers = peer.written.count(b"HTTP/1.1 ")
    assert 0 < answers <= BURST_MAX
    while one_turn(peer):
        assert peer.written.count(b"HTTP/1.1 ") - answers <= BURST_MAX
        answers = peer.written.count(b"HTTP/1.1 ")
    assert answers == 1000


def test_small_chunks_take_turns() -> None:
    """LM10"""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, chunked("/a", *[b"x"] * 40_000))
    http1 = cast(Http1, peer._protocol)
    turns = 1
    while one_turn(peer):
        assert http1.reader.work <= 2 * WORK_MAX  # a slice of input may go beyond
        turns += 1
    assert turns >= 4 and len(app.requests[0].body) == 40_000


def test_a_large_body_has_all_of_its_read_in_one_turn() -> None:
    """LM10: what is little work is not put off."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, chunked("/a", bytes(200_000)))
    assert not peer._turns and len(app.requests[0].body) == 200_000


class BusyApp(ScriptedApp):
    """Each request takes a millisecond."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.clock.advance(1)
        super().handle(request, exchange)


def test_a_read_that_takes_long_is_the_last_in_its_turn() -> None:
    """LM10: a loop may read from one connection many times in a turn, and each read may bring a whole request."""
    clock = ManualClock()
    app = BusyApp(clock)
    peer = MemoryTransport(app, clock=clock)
    for known in range(4):  # but for the first one, its head is
        first_turn(peer, post("/a", bytes(200_000)))
        assert not peer.reads and len(app.requests) == known + 1
        peer.turn()
        assert peer.reads


def http2_requests(count: int) -> bytes:
    return b"".join(frame(1, 0x05, stream, HEAD) for stream in range(1, 2 * count, 2))


def test_http2_frames_take_turns() -> None:
    """LM10"""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    first_turn(peer, PREFACE + SETTINGS + http2_requests(1000))
    seen = len(app.requests)
    assert 0 < seen <= HTTP2_FRAMES_MAX * SLICES_MAX and not peer.reads
    while one_turn(peer):
        assert len(app.requests) - seen <= HTTP2_FRAMES_MAX * SLICES_MAX
        seen = len(app.requests)
    assert seen == 1000 and peer.reads and not peer.is_ended


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_http2_frames_take_turns_however_they_are_cut(size: int) -> None:
    """LM10"""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    data = PREFACE + SETTINGS + http2_requests(300)
    for at in range(0, len(data), size):
        peer.feed(data[at : at + size])
    assert len(app.requests) == 300 and not peer.is_ended


def test_streams_that_the_server_resets_are_noise() -> None:
    """LM10: data behind the end of a request; the server says so by a reset, without an end."""
    app = ScriptedApp()
    peer = MemoryTransport(app, Limits(noise_max=2000))
    peer.feed(PREFACE + SETTINGS)
    for stream in range(1, 2000, 2):
        peer.feed(frame(1, 0x05, stream, HEAD) + frame(0, 0, stream, b"x"))
    assert peer.is_ended and len(app.requests) <= 201
    assert frame(7, 0, 0, b"")[3:4] in peer.written


def test_large_http2_heads_are_fewer_in_a_turn() -> None:
    """LM10: decoding them takes as long as they are large."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    head = HEAD + b"\x00\x01b\x7f\x81\x01" + b"c" * 256  # a header of 256 bytes
    count_max = SLICES_MAX * (HEADS_BYTES_MAX // len(head) + 1)
    first_turn(peer, PREFACE + SETTINGS + b"".join(frame(1, 0x05, stream, head) for stream in range(1, 200, 2)))
    seen = len(app.requests)
    assert 0 < seen <= count_max
    while one_turn(peer):
        assert len(app.requests) - seen <= count_max
        seen = len(app.requests)
    assert seen == 100 and not peer.is_ended


@pytest.mark.parametrize(("references", "is_taken"), [(100, True), (101, True), (1000, False), (8000, False)])
def test_a_block_that_refers_to_many_headers_ends_its_connection(references: int, is_taken: bool) -> None:
    """LM10: a reference is a byte, and costs as much as a header. What is a little too much is refused by itself."""
    peer = MemoryTransport(ScriptedApp())
    peer.feed(PREFACE + SETTINGS + frame(1, 0x05, 1, HEAD + b"\x90" * references))
    assert peer.is_ended is not is_taken


@pytest.mark.parametrize(
    ("resizes", "is_taken"), [(b"\x20\x3f\xe1\x1f", True), (b"\x20" * 3, False), (b"\x3f\xe1\x1f" * 3, False)]
)
def test_a_table_that_is_resized_again_and_again_ends_its_connection(resizes: bytes, is_taken: bool) -> None:
    """LM10: resizes are no headers, so that no other limit counts them."""
    app = ScriptedApp()
    peer = MemoryTransport(app)
    peer.feed(PREFACE + SETTINGS + frame(1, 0x05, 1, resizes + HEAD))
    assert peer.is_ended is not is_taken and len(app.requests) == is_taken


def test_a_header_block_is_no_larger_than_a_head_however_many_frames_it_has() -> None:
    """LM10: it is decoded in one piece."""
    app = ScriptedApp()
    peer = MemoryTransport(app, Limits(head_bytes_max=20_000))
    rest = b"\x00\x01b\x7f\x81\x7d" + b"c" * 16_128  # a header of 16128 bytes
    for stream in (1, 3):  # each block has its own measure
        peer.feed(
            (PREFACE + SETTINGS if stream == 1 else b"") + frame(1, 0x01, stream, HEAD) + frame(9, 4, stream, rest)
        )
    assert len(app.requests) == 2 and not peer.is_ended
    peer.feed(frame(1, 0x01, 5, HEAD) + frame(9, 0, 5, rest) + frame(9, 0, 5, rest))
    assert len(app.requests) == 2 and peer.is_ended


def test_settings_that_nobody_has_a_use_for_end_their_connection() -> None:
    """LM10: each is kept, and looked at whenever others come."""
    setting = b"\x10\x00" + bytes(4)
    peer = MemoryTransport(ScriptedApp())
    peer.feed(PREFACE + frame(4, 0, 0, setting * 100))
    assert not peer.is_ended
    peer.feed(frame(4, 0, 0, setting * 200))
    assert peer.is_ended
    peer = MemoryTransport(ScriptedApp())
    peer.feed(PREFACE + frame(4, 0, 0, setting * 100) * 200)
    assert peer.is_ended


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_huffman_codes_are_decoded_as_hpack_does(text: bytes, code: bytes) -> None:
    """LM10: by whole bytes, which takes half as long; what is no code is refused."""
    assert decode_huffman(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)) == text
    try:
        expected: bytes | None = hpack_decode_huffman(code)
    except HPACKDecodingError:
        expected = None
    if expected is None:
        with pytest.raises(HPACKDecodingError):
            decode_huffman(code)
    else:
        assert decode_huffman(code) == expected


def test_a_full_http2_read_is_the_last_of_its_turn() -> None:
    """LM10: the loop reads up to thirty times in one turn from a socket that has so much."""
    peer = MemoryTransport(ScriptedApp())
    first_turn(peer, PREFACE + SETTINGS + frame(1, 0x05, 1, HEAD))
    assert peer.reads
    first_turn(peer, frame(10, 0, 0, bytes(16_000)) * 5)  # of a kind that nobody knows
    assert not peer.reads
    while one_turn(peer):
        pass
    assert peer.reads and not peer.is_ended


class Listening:
    """A peer that counts what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []

    def received(self, text: bytes | None) -> None:
        self.heard.append(text)

    def __getattr__(self, name: str) -> Any:
        return lambda: None


def test_fragments_are_taken_so_many_at_a_time() -> None:
    """LM10"""
    reader = FrameReader(1000)
    reader.feed(client_frame(TEXT, fin=False) + client_frame(CONT, fin=False) * 5000 + client_frame(CONT, b"end"))
    turns = 0
    while (found := reader.next()) is None:
        assert reader.work == FRAMES_MAX and reader.has_enough
        reader.work, turns = 0, turns + 1
    assert found == (TEXT, b"end") and turns == 5


def test_a_socket_takes_fragments_in_turns_and_reads_on_afterwards() -> None:
    """LM10"""

    async def main() -> None:
        peer, wire = Listening(), MemoryTransport(ScriptedApp())
        socket = WebSocket(b"101", 1000, lambda _: peer)
        wire.set_protocol(socket)
        socket.connection_made(wire)
        many = client_frame(TEXT, fin=False) + client_frame(CONT, fin=False) * 5000 + client_frame(CONT, b"end")
        socket.data_received(many)
        assert not peer.heard and not wire.reads
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.heard == [b"end"] and wire.reads

    asyncio.run(main())


def test_a_socket_reads_on_in_another_turn_after_a_large_message() -> None:
    """LM10: the loop would go on reading what a client has sent, a message after the other."""

    async def main() -> None:
        peer, wire = Listening(), MemoryTransport(ScriptedApp())
        socket = WebSocket(b"101", 200_000, lambda _: peer)
        wire.set_protocol(socket)
        socket.connection_made(wire)
        socket.data_received(client_frame(TEXT, bytes(1000)))
        assert len(peer.heard) == 1 and wire.reads
        socket.data_received(client_frame(TEXT, bytes(100_000)))
        assert len(peer.heard) == 2 and not wire.reads
        await asyncio.sleep(0)
        assert wire.reads

    asyncio.run(main())


# --- requests that take long


class SlowApp(ScriptedApp):
    """Takes some milliseconds for each request."""

    def __init__(self, clock: ManualClock, takes_ms: int = 3) -> None:
        super().__init__()
        self._clock = clock
        self._takes_ms = takes_ms

    def handle(self, request: Request, exchange: Exchange) -> None:
        self._clock.advance(self._takes_ms)
        super().handle(request, exchange)


def slow_peer() -> tuple[SlowApp, MemoryTransport]:
    clock = ManualClock()
    app = SlowApp(clock)
    return app, MemoryTransport(app, clock=clock)


class RestingTransport(MemoryTransport):
    """Tells when it is read from again."""

    def resume_reading(self) -> None:
        super().resume_reading()
        self.has_resumed.set()

    @cached_property
    def has_resumed(self) -> asyncio.Event:
        return asyncio.Event()


async def test_a_connection_that_took_very_long_rests() -> None:
    """LM10: a large head in Huffman code cannot be decoded in parts; nothing is read behind it while others go on."""
    clock = ManualClock()
    peer = RestingTransport(SlowApp(clock, int(2000 * LONG_TURN_S)), clock=clock)
    peer.feed(PREFACE + SETTINGS + frame(1, 0x05, 1, HEAD))
    assert not peer.reads
    await peer.has_resumed.wait()
    assert peer.reads and not peer.is_ended


@pytest.mark.parametrize("pieces", [1, 3])
def test_pipelined_requests_that_take_long_are_fewer_in_a_turn(pieces: int) -> None:
    """LM10: and all are answered, in order."""
    app, peer = slow_peer()
    data = b"".join(get(f"/{number}") for number in range(100))
    seen, size = 0, -(-len(data) // pieces)
    for start in range(0, len(data), size):
        first_turn(peer, data[start : start + size])
        assert len(app.requests) - seen <= 4
        seen = len(app.requests)
    while one_turn(peer):
        assert len(app.requests) - seen <= 4
        seen = len(app.requests)
    assert [request.target for request in app.requests] == [b"/%d" % number for number in range(100)]
    assert peer.written.count(b"HTTP/1.1 200") == 100


def test_http2_requests_that_take_long_are_fewer_in_a_turn() -> None:
    """LM10: in their order; one that is reset meanwhile is not begun."""
    app, peer = slow_peer()
    first_turn(peer, PREFACE + SETTINGS + http2_requests(60))
    seen = len(app.requests)
    assert 0 < seen <= 3
    first_turn(peer, frame(3, 0, 119, bytes(4)))
    while one_turn(peer):
        assert len(app.requests) - seen <= 3
        seen = len(app.requests)
    assert seen == 59 and not peer.is_ended


def test_http2_requests_that_wait_for_a_turn_end_with_their_connection() -> None:
    """LM10, LM5"""
    app, peer = slow_peer()
    first_turn(peer, PREFACE + SETTINGS + http2_requests(60))
    seen = len(app.requests)
    peer._protocol.connection_lost(None)
    while one_turn(peer):
        pass
    assert len(app.requests) == seen


def test_a_large_read_that_took_long_is_the_last_of_its_turn() -> None:
    """LM10: the loop reads up to thirty times in one turn from a socket that has so much."""
    app, peer = slow_peer()
    data = b"".join(get(f"/{number}?" + "x" * 7_000) for number in range(12))
    first_turn(peer, data)
    assert not peer.reads
    while one_turn(peer):
        pass
    assert peer.reads and len(app.requests) == 12


def test_an_http2_read_that_took_long_is_the_last_of_its_turn() -> None:
    """LM10"""
    app, peer = slow_peer()
    first_turn(peer, PREFACE + SETTINGS + http2_requests(3))
    assert not peer.reads
    while one_turn(peer):
        pass
    assert peer.reads and len(app.requests) == 3
    first_turn(peer, frame(6, 0, 0, bytes(8)))
    assert peer.reads
