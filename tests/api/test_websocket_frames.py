"""The WebSocket as a transport: handshake, frames, pings, the end. What is said over it is in test_websocket.py."""

import json
import logging
import random
import socket
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
import websockets.sync.client
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.clients.transcript import Client, Connection, refused, request_bytes
from tests.api.clients.websocket import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONT,
    HANDSHAKE,
    KEY,
    PING,
    PONG,
    TEXT,
    Frame,
    Socket,
    client_frame,
    handshake,
    open_socket,
    text,
)
from tests.api.conftest import Start
from topics.server.transport.websocket_reader import BrokenOff, FrameReader
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

ORIGIN = "https://app.example"
COMMAND = {"op": "ping", "request_id": 1}
PONG_MESSAGE = {"op": "pong", "request_id": 1}


def streams(server: ServerThread) -> int:
    return server.run(lambda: server.server.app.slots.streams)


def until_closed(server: ServerThread) -> None:
    server.until(lambda: not server.server.app.slots.streams and not server.server.app.registry)


# --- the handshake


def test_the_handshake_is_that_of_rfc_6455(api: Client) -> None:
    """WS1"""
    with open_socket(api, "Sec-WebSocket-Extensions: permessage-deflate", "Sec-WebSocket-Protocol: chat") as ws:
        assert ws.answer.headers == {
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-accept": ACCEPT,
        }
        assert ws.ask("ping") == {"op": "pong"}


def test_a_compressed_frame_ends_the_socket_before_anything_is_inflated(api: Client) -> None:
    """WS1, LM11: permessage-deflate is declined, so RSV1 says nothing but that the client does not keep to it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(30_000_000)) + packer.flush(zlib.Z_SYNC_FLUSH)
    frame = bytearray(client_frame(1, bomb))
    frame[0] |= 0x40
    with open_socket(api, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits") as ws:
        ws.send(bytes(frame))
        ws.expect_close(1002)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        HANDSHAKE[1:],
        ("Connection: Upgrade", "Upgrade: h2c", *HANDSHAKE[2:]),
        ("Upgrade: websocket", *HANDSHAKE[2:]),
        ("Upgrade: websocket", "Connection: keep-alive", *HANDSHAKE[2:]),
        (*HANDSHAKE[:2], HANDSHAKE[2]),
        (*HANDSHAKE[:3], "Sec-WebSocket-Key: short"),
        (*HANDSHAKE[:3], "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j*Q=="),
        (*HANDSHAKE[:3], "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZXh4"),
        (*HANDSHAKE, f"Sec-WebSocket-Key: {KEY}"),
        (*HANDSHAKE[:2], HANDSHAKE[3]),
        (*HANDSHAKE[:2], HANDSHAKE[3], "Sec-WebSocket-Version: 8"),
        (*HANDSHAKE[:2], HANDSHAKE[3], "Sec-WebSocket-Version: 13, 8"),
    ],
    ids=str,
)
def test_a_request_that_is_no_valid_handshake_is_refused(api: Client, headers: tuple[str, ...]) -> None:
    """WS1, ER1"""
    reply = api.get("/v0/ws", *headers)
    refused(reply, 400, "invalid_request")
    versions = [header for header in headers if header.startswith("Sec-WebSocket-Version")]
    is_version_wrong = versions != [HANDSHAKE[2]] and {header.partition(":")[0] for header in headers} >= {
        "Upgrade",
        "Connection",
    }
    assert (reply.headers.get("sec-websocket-version") == "13") is is_version_wrong


def test_a_refused_handshake_leaves_the_connection_usable(api: Client) -> None:
    """WS1, CV16"""
    with api.connect() as connection:
        connection.send(request_bytes("GET", "/v0/ws", None, *HANDSHAKE[:3]))
        refused(connection.reply(), 400, "invalid_request")
        connection.send(request_bytes("GET", "/v0/health"))
        assert connection.reply().status == 200


def test_header_names_and_values_are_matched_as_the_rfc_says(api: Client) -> None:
    """WS1: tokens in any case, among others."""
    with Connection(api.address) as connection:
        lines = ("upgrade: foo, WebSocket", "CONNECTION: keep-alive, UPGRADE", *HANDSHAKE[2:])
        connection.send(request_bytes("GET", "/v0/ws?x=1", None, *lines))
        assert connection.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_the_path_has_no_method_but_get(api: Client, method: str) -> None:
    """CV23, ER3"""
    reply = api.ask(method, "/v0/ws")
    refused(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == "GET"


def test_a_handshake_with_a_body_is_refused(api: Client) -> None:
    """WS1"""
    refused(api.ask("GET", "/v0/ws", b"{}", *HANDSHAKE), 400, "invalid_request")


def test_websocket_is_http_11_only(api: Client) -> None:
    """CV16, WS1: an Upgrade header of HTTP/1.0 is ignored, and HTTP/2 has none."""
    with api.connect() as connection:
        connection.send(handshake().replace(b"HTTP/1.1", b"HTTP/1.0"))
        refused(connection.reply(), 400, "invalid_request")
        assert not connection.receive()
    assert http2_status(api, "/v0/ws") == 400


def http2_status(api: Client, path: str) -> int:
    """The status of a GET over HTTP/2."""
    h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
    h2.initiate_connection()
    names = {
        ":method": "GET",
        ":path": path,
        ":scheme": "http",
        ":authority": "localhost",
        "sec-websocket-version": "13",
    }
    h2.send_headers(1, list((names | {"sec-websocket-key": KEY}).items()), end_stream=True)
    with api.connect() as connection:
        connection.send(h2.data_to_send())
        while connection.receive():
            for event in h2.receive_data(connection.unread):
                if isinstance(event, ResponseReceived):
                    return int(dict(event.headers)[":status"])
            connection.unread = b""
    raise AssertionError("no answer")


def test_with_keys_the_upgrade_needs_one_and_no_scope(start: Start) -> None:
    """WS1, AU2, AU10: a token in the query does not count here."""
    server = start(api_keys="root,d:delete")
    with Connection(server.address) as connection:
        for target, headers in (("/v0/ws", ()), ("/v0/ws?token=root", ()), ("/v0/ws", ("Authorization: Bearer x",))):
            connection.send(request_bytes("GET", target, None, *HANDSHAKE, *headers))
            refused(connection.reply(), 401, "unauthorized")
    with Socket(server.address, "d") as ws:
        assert ws.ask("ping") == {"op": "pong"}
    assert Client(server.address, "root").get("/v0/ws").status == 400
    assert Client(server.address).get("/v0/ws").status == 401


def test_before_the_server_is_ready_there_is_no_socket(start: Start) -> None:
    """HM2, WS1"""
    server = start(starts=False)
    refused(Client(server.address).send(handshake()), 503, "not_ready")
    server.recover()


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil", "http://localhost:1", "localhost", "://"]
)
def test_pages_of_other_origins_are_kept_out(api: Client, origin: str) -> None:
    """WS1 (additive): a browser would let any page open a socket to this machine."""
    refused(api.send(handshake(f"Origin: {origin}")), 403, "forbidden")


def test_pages_of_this_server_and_of_listed_origins_are_let_in(start: Start) -> None:
    """WS1 (additive)"""
    for settings_, origins in (
        ({}, ["http://localhost", "https://LOCALHOST"]),
        ({"cors_origins": ORIGIN}, ["http://localhost", ORIGIN]),
        ({"cors_origins": "*"}, ["https://any.example", "null"]),
    ):
        server = start(**settings_)
        for origin in origins:
            with Socket(server.address, None, f"Origin: {origin}") as ws:
                assert ws.ask("ping") == {"op": "pong"}
    listed = start(cors_origins=ORIGIN)
    refused(Client(listed.address).send(handshake("Origin: https://evil.example")), 403, "forbidden")


# --- slots


def test_sockets_count_as_streams_and_give_their_slots_back(start: Start) -> None:
    """WS1, LM1, LM5, ER4"""
    server = start(max_sse_connections=2)
    api = Client(server.address)
    with open_socket(api), open_socket(api):
        assert api.metrics()["sse_connections"] == 2
        refused(api.send(handshake()), 429, "throttled", {"limit": "max_sse_connections", "max": 2})
    until_closed(server)
    with open_socket(api) as ws:
        assert ws.ask("ping") == {"op": "pong"}


def test_sockets_count_per_key_and_hold_no_in_flight_slot(start: Start) -> None:
    """LM1, LM5"""
    server = start(api_keys="a,b", max_sse_connections_per_key=1, max_inflight_per_key=1)
    a = Client(server.address, "a")
    with Socket(server.address, "a"):
        refused(a.send(handshake(key="a")), 429, "throttled", {"limit": "max_sse_connections_per_key", "max": 1})
        assert a.write("topic", 1)["seqs"] == [1]
        with Socket(server.address, "b") as other:
            assert other.ask("ping") == {"op": "pong"}
    until_closed(server)
    with Socket(server.address, "a"):
        pass


def abandon(ws: Socket) -> None:
    ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ws.socket.close()


ENDINGS: dict[str, Callable[[Socket], object]] = {
    "close": lambda ws: ws.send(client_frame(CLOSE)),
    "reset": abandon,
    "eof": lambda ws: ws.socket.shutdown(socket.SHUT_WR),
    "eof in a frame": lambda ws: (ws.send(text(COMMAND)[:5]), ws.socket.shutdown(socket.SHUT_WR)),
    "eof in a message": lambda ws: (ws.send(client_frame(TEXT, b"{", fin=False)), ws.socket.shutdown(socket.SHUT_WR)),
    "violation": lambda ws: ws.send(b"\xff\xff"),
    "close and eof": lambda ws: (ws.send(client_frame(CLOSE)), ws.socket.shutdown(socket.SHUT_WR)),
    "commands and eof": lambda ws: (ws.send(text(COMMAND) * 500), ws.socket.shutdown(socket.SHUT_WR)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_socket_ends_its_slot_comes_free(start: Start, topic: str, ending: str) -> None:
    """LM5"""
    server = start()
    api = Client(server.address)
    api.write(topic, 1)
    with open_socket(api) as ws:
        ws.follow(topic)
        ENDINGS[ending](ws)
        if ending != "reset":
            while ws.receive():
                pass
    until_closed(server)
    assert streams(server) == 0


# --- frames


def test_frames_may_be_split_at_any_byte(api: Client) -> None:
    """WS2, WS8"""
    stream = text(COMMAND) + client_frame(PING, b"x") + client_frame(TEXT, b'{"op":"ping",', fin=False)
    stream += client_frame(PING, b"y") + client_frame(CONT, b'"request_id":1}')
    with open_socket(api) as ws:
        ws.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(stream)):
            ws.send(stream[:cut])
            ws.send(stream[cut:])
            expect_both(ws)
        for byte in stream:
            ws.send(bytes([byte]))
        expect_both(ws)


def expect_both(ws: Socket) -> None:
    """Two answers, and that to the ping that came last; an earlier one may have been answered with it."""
    found: list[Frame] = []
    while found.count(Frame(TEXT, b'{"op":"pong","request_id":1}')) < 2 or Frame(PONG, b"y") not in found:
        found.append(ws.frame())
    assert len(found) <= 4 and {frame.payload for frame in found if frame.opcode == PONG} <= {b"x", b"y"}


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 200_000])
def test_every_form_of_length_works_both_ways(api: Client, topic: str, size: int) -> None:
    """WS2"""
    with open_socket(api) as ws:
        identity = "x" * size
        assert ws.ask("ping", request_id=identity) == {"op": "pong", "request_id": identity}


def test_a_length_need_not_be_the_shortest(api: Client) -> None:
    """WS2"""
    payload = b'{"op":"ping"}'
    with open_socket(api) as ws:
        ws.send(b"\x81\xfe\x00\x0d\0\0\0\0" + payload + b"\x81\xff" + (13).to_bytes(8, "big") + b"\0\0\0\0" + payload)
        assert [ws.message() for _ in range(2)] == [{"op": "pong"}] * 2


def test_a_message_may_come_in_many_fragments(api: Client) -> None:
    """WS2: a character may be split as well, and empty fragments are fragments."""
    payload = '{"op":"ping","request_id":"käse ☃"}'.encode()
    with open_socket(api) as ws:
        parts = [client_frame(TEXT, b"", fin=False)]
        parts += [client_frame(CONT, payload[n : n + 1], fin=False) for n in range(len(payload))]
        ws.send(b"".join([*parts, client_frame(CONT, b"")]))
        assert ws.message() == {"op": "pong", "request_id": "käse ☃"}
        ws.send(client_frame(BINARY, b"\xff", fin=False) + client_frame(CONT, b"\xfe"))
        assert ws.expect("error")["code"] == "unsupported_message"


VIOLATIONS = {
    "reserved bit": b"\xc1\x80\0\0\0\0",
    "reserved opcode": b"\x83\x80\0\0\0\0",
    "reserved control opcode": b"\x8b\x80\0\0\0\0",
    "not masked": client_frame(TEXT, b"{}", mask=b""),
    "fragmented ping": client_frame(PING, b"x", fin=False),
    "long ping": client_frame(PING, b"x" * 126),
    "continuation of nothing": client_frame(CONT, b"x"),
    "message within a message": client_frame(TEXT, b"x", fin=False) + client_frame(TEXT, b"y"),
    "close with one byte": client_frame(CLOSE, b"\x03"),
    "close with a code that may not be sent": client_frame(CLOSE, b"\x03\xed"),
    "close with code 0": client_frame(CLOSE, b"\0\0"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_of_the_protocol_closes_with_1002(server: ServerThread, api: Client, violation: str) -> None:
    """WS8"""
    with open_socket(api) as ws:
        ws.send(text(COMMAND) + VIOLATIONS[violation])
        assert ws.message() == PONG_MESSAGE
        ws.expect_close(1002)


@pytest.mark.parametrize(
    "frames",
    [
        client_frame(TEXT, b"\xff"),
        client_frame(TEXT, b"\xe2\x98"),
        client_frame(TEXT, b"\xe2", fin=False) + client_frame(CONT, b"\x28\xa1"),
        client_frame(TEXT, b'"\xed\xa0\x80"'),
        client_frame(CLOSE, b"\x03\xe8\xff"),
    ],
    ids=["a wrong byte", "a character that ends early", "over two frames", "half a surrogate pair", "a reason"],
)
def test_text_that_is_not_utf8_closes_with_1007(api: Client, frames: bytes) -> None:
    """WS8, CV21"""
    with open_socket(api) as ws:
        ws.send(frames)
        ws.expect_close(1007)


def test_a_message_above_the_limit_closes_with_1009_before_it_is_read(start: Start) -> None:
    """WS10, CV17: decided from the frame's head, in fragments as well; exactly the limit is taken."""
    api = Client(start(max_body_bytes=1000).address)
    fits = b'{"op":"ping"}'.ljust(1000)
    with open_socket(api) as ws:
        ws.send(client_frame(TEXT, fits))
        assert ws.message() == {"op": "pong"}
        ws.send(client_frame(TEXT, fits[:500], fin=False) + client_frame(CONT, fits[500:]))
        assert ws.message() == {"op": "pong"}
        ws.send(client_frame(TEXT, fits + b" ")[:8])
        ws.expect_close(1009)
    with open_socket(api) as ws:
        ws.send(client_frame(TEXT, fits[:999], fin=False) + client_frame(CONT, b"xx")[:6])
        ws.expect_close(1009)
    with open_socket(api) as ws:
        ws.send(b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0")
        ws.expect_close(1009)
    with open_socket(api) as ws:  # a client that goes on sending still gets to know why
        ws.send(client_frame(BINARY, b"x" * 300_000))
        ws.expect_close(1009)


# --- pings, the end


def test_control_pings_are_answered_with_their_payload(api: Client) -> None:
    """WS8"""
    with open_socket(api) as ws:
        for payload in (b"", b"x", b"\xff" * 125):
            ws.send(client_frame(PING, payload))
            assert ws.frame() == Frame(PONG, payload)
        ws.send(client_frame(PONG, b"nobody asked") + text(COMMAND))
        assert ws.message() == PONG_MESSAGE


def test_of_many_pings_at_once_the_last_is_answered(api: Client) -> None:
    """WS8"""
    with open_socket(api) as ws:
        ws.send(b"".join(client_frame(PING, b"%d" % n) for n in range(1000)))
        answers = [ws.frame()]
        while answers[-1].payload != b"999":
            answers.append(ws.frame())
        assert all(answer.opcode == PONG for answer in answers)


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1000), (b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"\x0f\xa1" + b"x" * 123, 4001)]
)
def test_a_close_is_answered_with_its_code(server: ServerThread, api: Client, payload: bytes, code: int) -> None:
    """WS8"""
    with open_socket(api) as ws:
        ws.send(client_frame(CLOSE, payload) + text(COMMAND))
        ws.expect_close(code)


def test_what_came_before_a_close_is_answered_before_it(api: Client, topic: str) -> None:
    """WS9, G15"""
    with open_socket(api) as ws:
        publish = {"op": "publish", "topic": topic, "records": [{"data": 1}], "request_id": 7}
        ws.send(text(publish) + text({"op": "subscribe", "topic": topic}) + text(COMMAND) + client_frame(CLOSE))
        ws.socket.shutdown(socket.SHUT_WR)
        assert ws.expect("ack")["request_id"] == 7
        assert ws.expect("subscribed")
        answers = []
        while (frame := ws.frame()).opcode != CLOSE:
            answers.append(frame.payload)
        assert b'{"op":"pong","request_id":1}' in answers
        assert ws.at_end()


def test_idle_sockets_are_pinged_and_dead_ones_are_dropped(start: Start) -> None:
    """WS8, LM5"""
    server = start()
    api = Client(server.address)
    with open_socket(api) as alive, open_socket(api) as dead:
        for _ in range(4):
            server.advance(25_000)
            assert alive.frame() == Frame(PING, b"")
            alive.send(client_frame(PONG))
            alive.synced()
        server.until(lambda: server.server.app.slots.streams == 1)
        assert [dead.frame(), dead.frame()] == [Frame(PING, b"")] * 2
        assert dead.at_end()
        assert alive.ask("ping") == {"op": "pong"}


def test_a_client_that_does_not_end_its_side_is_cut_off(start: Start) -> None:
    """LM5"""
    server = start()
    with open_socket(Client(server.address)) as ws:
        ws.send(client_frame(CLOSE))
        ws.expect_close(1000)
        assert streams(server) == 1
        server.advance(5000)
        until_closed(server)


# --- the client library


def test_the_websockets_library_gets_along_with_it(server: ServerThread, topic: str) -> None:
    """WS1, WS2, WS8: compression is offered and declined."""
    host, port = server.address
    with websockets.sync.client.connect(f"ws://{host}:{port}/v0/ws", max_size=None) as ws:
        assert ws.protocol.extensions == []
        large = "x" * 500_000
        ws.send(json.dumps({"op": "publish", "topic": topic, "records": [{"data": large}]}))
        assert '"op":"ack"' in str(ws.recv())
        ws.send(json.dumps({"op": "subscribe", "topic": topic}))
        assert '"op":"subscribed"' in str(ws.recv())
        assert large in str(ws.recv())
        assert '"op":"caught_up"' in str(ws.recv())
        ws.send(iter(['{"op":', '"ping"}']))
        assert ws.recv() == '{"op":"pong"}'
        assert ws.ping().wait(PATIENCE_S)
    assert ws.protocol.close_code == 1000


# --- the frame reader by itself, and noise


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (one := reader.next()) is not None:
            found.append(one)
    return found


@given(
    st.lists(st.tuples(st.sampled_from([TEXT, BINARY, PING, PONG]), st.text(max_size=400)), max_size=8),
    st.randoms(use_true_random=False),
)
@settings(derandomize=True, database=None)
def test_messages_survive_any_fragments_and_any_cuts(messages: list[tuple[int, str]], choice: random.Random) -> None:
    """WS2"""
    stream, expected = b"", []
    for opcode, said in messages:
        payload = said.encode()[: 125 if opcode >= CLOSE else None]
        expected.append((opcode, payload))
        if opcode >= CLOSE:
            stream += client_frame(opcode, payload)
            continue
        cuts = sorted(choice.randrange(len(payload) + 1) for _ in range(choice.randrange(3)))
        parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        for n, part in enumerate(parts):
            stream += client_frame(opcode if n == 0 else CONT, part, fin=n == len(parts) - 1)
    cuts = sorted(choice.randrange(len(stream) + 1) for _ in range(choice.randrange(10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read_all(FrameReader(10_000), pieces) == expected
    assert read_all(FrameReader(10_000), [bytes([byte]) for byte in stream]) == expected
    assert read_all(FrameReader(10_000), [stream + b"\x81"]) == expected


@given(st.binary(max_size=300), st.randoms(use_true_random=False))
@settings(derandomize=True, database=None)
def test_the_frame_reader_follows_or_breaks_off_and_never_holds_too_much(noise: bytes, choice: random.Random) -> None:
    """WS10, CV21: and how the bytes are cut does not matter."""

    def outcome(pieces: list[bytes]) -> tuple[object, ...]:
        reader, found = FrameReader(100), []
        try:
            for piece in pieces:
                reader.feed(piece)
                while (one := reader.next()) is not None:
                    assert len(one[1]) <= 125
                    found.append(one)
        except BrokenOff as error:
            return (*found, error.code)
        return tuple(found)

    cut = choice.randrange(len(noise) + 1)
    assert outcome([noise]) == outcome([noise[:cut], noise[cut:]]) == outcome([bytes([byte]) for byte in noise])


def mutated(stream: bytes, choice: random.Random) -> bytes:
    data = bytearray(stream)
    for _ in range(choice.randrange(1, 6)):
        at = choice.randrange(len(data))
        match choice.randrange(4):
            case 0:
                data[at] ^= 1 << choice.randrange(8)
            case 1:
                del data[at : at + choice.randrange(1, 20)]
            case 2:
                data[at:at] = choice.randbytes(choice.randrange(1, 20))
            case _:
                data[at:] = data[at:] * 2
        data = data or bytearray(b"\0")
    return bytes(data)


@pytest.mark.parametrize("seed", range(40))
def test_noise_never_hangs_leaks_or_breaks_the_server(
    start: Start, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """CV21, LM5, G15"""
    choice = random.Random(seed)
    server = start(max_body_bytes=2000)
    api = Client(server.address)
    for _ in range(10):
        stream = b"".join(
            text({"op": op, "topic": f"t{choice.randrange(3)}", "records": [{"data": n}], "request_id": n})
            for n, op in enumerate(choice.choices(["publish", "subscribe", "unsubscribe", "ping", "x"], k=12))
        )
        noise = choice.randbytes(choice.randrange(200)) if choice.random() < 0.2 else mutated(stream, choice)
        with open_socket(api) as ws:
            cut = choice.randrange(len(noise) + 1)
            ws.send(noise[:cut])
            with suppress(BrokenPipeError, ConnectionResetError):
                ws.send(noise[cut:])
                ws.socket.shutdown(socket.SHUT_WR)
                while ws.receive():
                    pass
    until_closed(server)
    assert api.get("/v0/health").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
