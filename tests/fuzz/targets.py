"""The targets by name, each with the inputs that a search begins with."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.fuzz import decoders, wire
from tests.fuzz.host import directory

CORPUS: Final = Path(__file__).parent / "corpus"
PLAIN: Final = b"\0"  # one read, once


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    words: tuple[bytes, ...]  # that an input is often made of
    bytes_max: int = 4096


def corpus(name: str) -> list[bytes]:
    """What a search has found worth keeping."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*")) if path.is_file()]


REQUESTS: Final = (
    b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v0/topics?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v0/topics/t/diff?from_seq=3&limit=2 HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /v0/topics/t/export HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v0/metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"HEAD /readyz HTTP/1.1\r\nHost: [::1]:4000\r\n\r\n",
    b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n"
    b'{"records":[{"data":1}]}',
    b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n18;x=y\r\n{"records":[{"data":1}]}\r\n0\r\nX: y\r\n\r\n',
    b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"DELETE /v0/topics/t?if_empty=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"GET /v0/topics/q/work?node=n HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    wire.UPGRADE + b"\x89\x80\0\0\0\0",
)


def http1_seeds() -> Iterator[bytes]:
    yield from (PLAIN + request for request in REQUESTS)
    yield PLAIN + b"".join(REQUESTS[:8])
    yield b"\x5b" + REQUESTS[0]


def http2_seeds() -> Iterator[bytes]:
    for path, body in (
        ("/v0/health", b""),
        ("/v0/topics/t/diff", b"{}"),
        ("/v0/topics/t", b'{"records":[{"data":1}]}'),
    ):
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        client.data_to_send()
        for stream in (1, 3):
            lines = [
                (":method", "POST" if body else "GET"),
                (":path", path),
                (":scheme", "http"),
                (":authority", "localhost"),
                ("content-type", "application/json"),
            ]
            client.send_headers(stream, lines, end_stream=not body)
            if body:
                client.send_data(stream, body, end_stream=True)
        talk = client.data_to_send()
        yield PLAIN + talk
        client.ping(b"12345678")
        client.reset_stream(1)
        client.increment_flow_control_window(1000)
        yield PLAIN + talk + client.data_to_send()
        yield b"\x40" + talk


def frame(payload: bytes, opcode: int = 0x81) -> bytes:
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return bytes([opcode]) + size + bytes(4) + payload


COMMANDS: Final = (
    b'{"op":"subscribe","topic":"t","from_seq":0}',
    b'{"op":"publish","request_id":1,"topic":"t","records":[{"data":1,"tag":"a","node":"n","meta":{}}]}',
    b'{"op":"unsubscribe","topic":"t"}',
    b'{"op":"subscribe","topic":"c","node":["a","b"],"tag":{"Glob":"a:*"}}',
    b'{"op":"claim","topic":"q","node":"n","max":2}',
    b'{"op":"ack","topic":"q","node":"n","seqs":[1]}',
    b'{"op":"ping"}',
)


def websocket_seeds() -> Iterator[bytes]:
    yield from (PLAIN + frame(command) for command in COMMANDS)
    yield PLAIN + b"".join(map(frame, COMMANDS))
    yield PLAIN + frame(b'{"op":', 0x01) + frame(b'"ping"', 0x00) + frame(b"}", 0x80)
    yield PLAIN + frame(b"x", 0x89) + frame(b"\x03\xe8bye", 0x88)
    yield b"\x91" + frame(b"", 0x00)
    yield b"\x90" + frame(COMMANDS[1])


JSON_BODIES: Final = {
    0: b'{"records":[{"data":{"a":[1,2.5e3,null,true,"x"]},"tag":"a:1","node":"n","meta":{"m":1}},{"data":null}]}',
    1: b'{"records":[{"data":"\\u00e9\\ud83e\\udd89"}],"config":{"durability":"fsync","cap_records":5}}',
    2: b'{"ttl_ms":1000,"cap_bytes":10,"discard":"new","priority":3,"idempotency_window_ms":5}',
    3: b'{"type":"queue","lease_ms":10,"max_deliveries":3,"dead_letter":"d","leases_durable":true}',
    4: b'{"from_seq":2,"limit":3,"node":["n"],"match":{"Glob":"a:*"},"epoch":1,"include_tags":true}',
    5: b'{"before_seq":4,"match":{"Eq":"a:1"}}',
    6: b'{"source":"t","dest":"c","match":{"Glob":"a*"},"preserve_tag":false,"exactly_once":true}',
    8: b'{"topics":{"t":{"from_seq":1},"c":{}},"node":["x"]}',
    9: b'{"node":"n","max":3,"lease_ms":100}',
    10: b'{"node":"n","seqs":[1,2,3],"lease_ids":["a"]}',
    11: b'{"node":"n","seqs":[1],"delay_ms":5}',
    12: b'{"node":"n","seqs":[1],"lease_ms":5}',
    13: b'{"max":2,"match":{"Eq":"x"}}',
    14: b'{"url":"/v0/ws"}',
}


def json_seeds() -> Iterator[bytes]:
    for route, body in JSON_BODIES.items():
        yield PLAIN + bytes([route]) + body
        yield PLAIN + bytes([route | 0x10]) + body
    yield b"\xf0\0" + b'{"records":['
    yield b"\xf0\0" + b"[" * 8


def ndjson_seeds() -> Iterator[bytes]:
    yield PLAIN + b'{"data":1}\n{"data":{"a":1},"tag":"x"}\n\n{"data":"y","meta":{}}\n'
    yield b"\xf0" + b'{"data":1}\n'
    yield b"\xf0" + b"\r\n"


def arrow_seeds() -> Iterator[bytes]:
    for columns in (
        {"data": ["1", '{"a":2}']},
        {"data": ["1"], "tag": ["x"], "node": [None], "meta": ['{"m":1}']},
        {"data": pa.array(["1"], pa.large_string()), "other": [1.5]},
    ):
        table = pa.table(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
            writer.write_table(table)
        yield sink.getvalue().to_pybytes()


def files_like(prefix: str) -> Iterator[bytes]:
    for name, image in directory().items():
        if name.startswith(prefix):
            image = image.rstrip(b"\0") + bytes(100) if prefix == "log-" else image
            yield b"\0" + image
            yield b"\1" + image
            yield b"\3" + image


HTTP_WORDS: Final = (
    b"\r\n", b"\r\n\r\n", b"GET ", b"POST ", b"CONNECT ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Content-Length: ",
    b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Host: ",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"ffffffff", b"%00", b"a:\r\n",
)  # fmt: skip
JSON_WORDS: Final = (
    b'"records":', b'{"data":', b'"tag":', b'"node":', b'"meta":', b"null", b"[", b"]", b"{", b"}", b",", b'"\\ud800"',
    b"1e999", b"-0", b"18446744073709551616", b'"from_seq":', b'"seqs":', b'"topics":', b'"match":{"Glob":"', b"\xff",
)  # fmt: skip
FILE_WORDS: Final = (b"FRME", b"VOID", b"TOPICLOG", b"TOPICSNP", b"ARROW1", bytes(8), b"\xff" * 4, b"\x91", b"\xc4")

TARGETS: Final = {
    "http1": Target(wire.http1, http1_seeds, HTTP_WORDS),
    "http2": Target(wire.http2, http2_seeds, (bytes(3), b"\0\0\4\3\0", b"\0\0\0\1\5", b"\0\0\4\x08\0", b"\x82\x84")),
    "websocket": Target(
        wire.websocket, websocket_seeds, (*JSON_WORDS, b"\x80\x80\0\0\0\0", b"\0\x80\0\0\0\0", b"\xff")
    ),
    "json": Target(wire.json_body, json_seeds, JSON_WORDS),
    "ndjson": Target(wire.ndjson_body, ndjson_seeds, (*JSON_WORDS, b"\n", b"\r", b"\r\n")),
    "arrow": Target(wire.arrow_body, arrow_seeds, (b"\xff\xff\xff\xff", bytes(8), b"\x10\0\0\0")),
    "log": Target(decoders.log, lambda: files_like("log-"), FILE_WORDS, 8192),
    "segment": Target(decoders.segment, lambda: files_like("segment-"), FILE_WORDS, 8192),
    "snapshot": Target(decoders.snapshot, lambda: files_like("snapshot-"), (*FILE_WORDS, msgspec.msgpack.encode(b"#"))),
}
