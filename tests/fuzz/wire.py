"""Targets behind the listener: HTTP/1.1, HTTP/2 and WebSocket as bytes, and bodies of JSON, NDJSON and Arrow.

The first byte of an input steers how it is sent: its low half in how many bytes per read, its high half how often the
rest is repeated, so that a short input can say a lot. The bars of `tests.fuzz.bars` hold for every input; what the
server says is valid in its protocol, and it logs no error. What a write was acked for can be read back as it was sent.
"""

import gc
import gzip
import io
import json
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, Final

import pyarrow as pa

from tests.fuzz import answers, bars
from tests.fuzz.host import Host, cut

SENT_BYTES_MAX: Final = 128 * 1024
READ_SIZES: Final = (0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 7, 64, 500, 1400, 9000)
HOST: Final = b"Host: localhost\r\n"
UPGRADE: Final = (
    b"GET /v0/ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
Target = Callable[[bytes], None]


def steered(data: bytes) -> tuple[bytes, int]:
    """What an input says in full, and how many bytes a read has."""
    steer, rest = data[0] if data else 0, data[1:]
    times = 1 << (steer >> 4)
    return (rest * min(times, max(1, SENT_BYTES_MAX // max(1, len(rest)))))[:SENT_BYTES_MAX], READ_SIZES[steer & 15]


ENDS = count(1)  # of servers, whose parts refer to each other
COLLECTED_EVERY = 50


def paid(talk: Callable[[Host], None]) -> None:
    """Talk to a server, within the bars."""

    def cost() -> tuple[bars.Meter, int]:
        host = Host()
        try:
            talk(host)
        finally:
            host.end()
            if not next(ENDS) % COLLECTED_EVERY:
                gc.collect()
        return host.meter, host.sent_bytes

    warm_up()
    bars.check(cost)


@cache
def warm_up() -> None:
    """Have a first server load what every server loads."""
    host = Host()
    host.send([b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"])
    host.end()


def http1(data: bytes) -> None:
    sent, size = steered(data)
    if size and len(sent) // size > 4000:
        size = 500

    def talk(host: Host) -> None:
        came = host.send(cut(sent, size))
        if not sent.startswith(PREFACE[:3]):
            said, rest = answers.http1(came, has_head=b"HEAD" in sent or b"head" in sent)
            if said and said[-1].status == 101 and rest:
                answers.websocket(rest)

    paid(talk)


def http2(data: bytes) -> None:
    sent, size = steered(data)
    if size and len(sent) // size > 4000:
        size = 500

    def talk(host: Host) -> None:
        answers.http2(host.send([PREFACE, *cut(sent, size)]))

    paid(talk)


def websocket(data: bytes) -> None:
    sent, size = steered(data)
    if size and len(sent) // size > 4000:
        size = 500

    def talk(host: Host) -> None:
        said, rest = answers.http1(host.send([UPGRADE]))
        assert said[0].status == 101 and not rest
        answers.websocket(host.send(cut(sent, size)))

    paid(talk)


# --- bodies

JSON_ROUTES: Final = (
    b"POST /v0/topics/t",
    b"POST /v0/topics/new",
    b"PUT /v0/topics/t",
    b"PUT /v0/topics/new",
    b"POST /v0/topics/t/diff",
    b"POST /v0/topics/t/delete",
    b"PUT /v0/routers/r",
    b"PUT /v0/routers/s",
    b"POST /v0/watch",
    b"POST /v0/topics/q/claim",
    b"POST /v0/topics/q/ack",
    b"POST /v0/topics/q/nack",
    b"POST /v0/topics/q/extend",
    b"POST /v0/topics/q/redrive",
    b"POST /v0/ticket",
    b"POST /v0/topics/q",
)


def head_of(line: bytes, kind: bytes, size: int, *headers: bytes) -> bytes:
    lines = [line + b" HTTP/1.1", HOST.strip(), b"Content-Type: " + kind, b"Content-Length: %d" % size, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def asked(host: Host, line: bytes, kind: bytes, body: bytes, *headers: bytes) -> answers.Answer:
    said, rest = answers.http1(host.send([head_of(line, kind, len(body), *headers), body]))
    assert len(said) == 1 and not rest, "not one answer"
    return said[0]


def texts(text: bytes | str) -> Any:
    """JSON, with numbers and the members of objects as they are spelled."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)


def read_back(host: Host, ack: answers.Answer, sent: Callable[[], list[Any]]) -> None:
    """What was acked is there, as it was sent."""
    if ack.status != 200:
        return
    ack_body = json.loads(ack.body)
    first, last = ack_body["first_seq"], ack_body["last_seq"]
    ask = json.dumps({"from_seq": first - 1, "limit": 1000}).encode()
    reply = asked(host, b"POST /v0/topics/t/diff", b"application/json", ask)
    records = [dict(record) for record in dict(texts(reply.body))["records"]]
    found = [record["data"] for record in records if first <= int(record["$seq"]) <= last]
    wanted = sent()
    assert found == wanted[: len(found)] and found, "what is read is not what was sent"


def json_body(data: bytes) -> None:
    """The second byte names the route, and whether the body is compressed, or said to be."""
    sent, _ = steered(data[:1] + data[2:])
    choice = data[1] if len(data) > 1 else 0
    line = JSON_ROUTES[choice & 15]

    def talk(host: Host) -> None:
        packing = choice >> 4
        body = gzip.compress(sent, 1, mtime=0) if packing == 1 else sent
        headers = (b"Content-Encoding: gzip",) if packing in (1, 2) else ()
        if b"wait" in sent or b"jitter" in sent:  # an answer may take time, which stands still here
            host.send([head_of(line, b"application/json", len(body), *headers), body])
            return
        answer = asked(host, line, b"application/json", body, *headers)
        if line == b"POST /v0/topics/t" and packing == 0:
            read_back(host, answer, lambda: _datas(sent))

    paid(talk)


def _datas(body: bytes) -> list[Any]:
    records = dict(texts(body))["records"]
    return [dict(record)["data"] for record in records]


def ndjson_body(data: bytes) -> None:
    sent, _ = steered(data)

    def talk(host: Host) -> None:
        answer = asked(host, b"POST /v0/topics/t", b"application/x-ndjson", sent)
        lines = [line for line in sent.replace(b"\r", b"\n").split(b"\n") if line.strip()]
        read_back(host, answer, lambda: [dict(texts(line))["data"] for line in lines])

    paid(talk)


def arrow_body(data: bytes) -> None:
    def talk(host: Host) -> None:
        answer = asked(host, b"POST /v0/topics/t", b"application/vnd.apache.arrow.stream", data)
        read_back(host, answer, lambda: _arrow_datas(data))

    paid(talk)


def _arrow_datas(data: bytes) -> list[Any]:
    """Of the other columns only those that are known matter: the rest may be anything."""
    at = pa.ipc.open_stream(io.BytesIO(data)).schema.get_field_index("data")
    options = pa.ipc.IpcReadOptions(included_fields=[at])
    table = pa.ipc.open_stream(io.BytesIO(data), options=options).read_all()
    return [texts(text) for text in table.column("data").to_pylist()]
