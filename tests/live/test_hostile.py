"""One client that sends whatever it likes, against a real server: what it costs everybody else.

Measured are the server's processor time between two answers to somebody else, the most memory it ever had, and that it
ends when it is told to. The bars are multiples of what holds on a quiet machine.
"""

import gzip
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Final
from urllib.parse import quote

import pytest
from hpack import Encoder
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tests.api.clients.raw import chunked, listed
from tests.api.clients.transcript import Client, ok, request_bytes
from tests.api.clients.websocket import client_frame, handshake
from topics.server.main import STOP_S
from topics.server.transport.http2_reader import PREFACE, FrameWatch
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ask_status

MIB: Final = 1024 * 1024
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
CPU_S_MAX: Final = 0.5  # of the server, between two answers to others; 0.05 is what is promised
MEMORY_BYTES_MAX: Final = 96 * MIB  # beyond the bytes sent; 64 MiB is what is promised

Attack = Callable[[], bytes]


def cpu_s(pid: int) -> float:
    """The processor time of a process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


def send_all(address: tuple[str, int], data: bytes) -> None:
    """Send, and read whatever comes until the server closes or has answered all that is complete."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        reader = threading.Thread(target=read_all, args=(connection,))
        reader.start()
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has seen enough
        reader.join(PATIENCE_S)


def read_all(connection: socket.socket) -> None:
    try:
        while connection.recv(MIB):
            pass
    except OSError:
        pass


def write(body: bytes, *headers: str) -> bytes:
    return request_bytes("POST", "/v0/topics/t", body, "Connection: close", *headers)


def gzip_members() -> bytes:
    """Empty members of gzip, 2 MiB of them."""
    return write(gzip.compress(b"") * 99_000, "Content-Encoding: gzip")


def gzip_padding() -> bytes:
    """One member, and zeros behind it."""
    return write(gzip.compress(b"") + bytes(32 * MIB), "Content-Encoding: gzip")


def gzip_bomb() -> bytes:
    return write(gzip.compress(bytes(MIB) * 60), "Content-Encoding: gzip")


def chunks(*parts: bytes) -> bytes:
    return chunked("/v0/topics/t", *parts).replace(b"\r\n", b"\r\nContent-Type: application/json\r\n", 1)


def trailers() -> bytes:
    """A body, and as many trailers as it may have had."""
    body = chunks(bytes(4 * MIB))
    return body[:-2] + b"a:\r\n" * 8_000_000


def head_lines() -> bytes:
    return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 8_000_000


def small_chunks() -> bytes:
    return chunks(b"xy").replace(b"2\r\nxy\r\n", b"2\r\nxy\r\n" * 2_000_000)


def lines() -> bytes:
    return write(b'{"data":1}\n' * 5_800_000, "Content-Type: application/x-ndjson")


def records() -> bytes:
    return write(b'{"records":[%b]}' % listed(b'{"data":1}', 5_800_000))


def dense_records() -> bytes:
    """As many records as a write may have, each slow to decode."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    return write(b'{"records":[%b]}' % listed(record, 10_000))


def spread_records() -> bytes:
    """The same over many lines, which are joined before they are kept."""
    record = b'{"data":[%b]}' % listed(b"1", 1800, b",\n")
    return write(b'{"records":[%b]}' % listed(record, 10_000))


def dense_publish() -> bytes:
    """The same in one message of a WebSocket, with the command behind the records."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    message = b'{"records":[%b],"topic":"t","op":"publish"}' % listed(record, 10_000)
    return handshake() + client_frame(1, message) + client_frame(8)


def dense_lines() -> bytes:
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    return write(listed(record, 10_000, b"\n"), "Content-Type: application/x-ndjson")


def dense_chunks() -> bytes:
    """Of a length that nobody knows before its end."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    body = b'{"records":[%b]}' % listed(record, 10_000)
    return chunks(*[body[start : start + 60_000] for start in range(0, len(body), 60_000)])


def dense_fragments() -> bytes:
    """A publish in two frames, each large."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    message = b'{"records":[%b],"topic":"t","op":"publish"}' % listed(record, 10_000)
    half = len(message) // 2
    return handshake() + client_frame(1, message[:half], fin=False) + client_frame(0, message[half:]) + client_frame(8)


def large_messages() -> bytes:
    """Publishes one behind the other, each as large as may be decoded at once."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    message = b'{"op":"publish","topic":"t","records":[%b]}' % listed(record, 180)
    return handshake() + client_frame(1, message) * 50 + client_frame(8)


def keyed_records() -> bytes:
    """As dense, and what they have in common with a repeat is remembered."""
    record = b'{"data":[%b]}' % listed(b"1", 2800)
    return write(b'{"idempotency_key":"k","node":"n","records":[%b]}' % listed(record, 10_000))


def one_value() -> bytes:
    """A record that is all of the body, and slow to pass over."""
    return write(b'{"records":[{"data":[%b]}]}' % listed(b"{}", 20_000_000))


def one_field() -> bytes:
    """The same beside the records, where nobody asks for it."""
    return write(b'{"records":[{"data":1}],"other":[%b]}' % listed(b"{}", 20_000_000))


def one_line() -> bytes:
    return write(b'{"data":[%b]}' % listed(b"{}", 20_000_000), "Content-Type: application/x-ndjson")


def one_command() -> bytes:
    message = b'{"op":"ping","other":[%b]}' % listed(b"{}", 20_000_000)
    return handshake() + client_frame(1, message) + client_frame(8)


def small_fields() -> bytes:
    return write(b"{%b}" % listed(b'"a":1', 10_000_000))


def watched_topics() -> bytes:
    topics = b",".join(b'"t%d":{}' % number for number in range(300_000))
    return request_bytes("POST", "/v0/watch", b'{"topics":{%b}}' % topics, "Connection: close")


def jobs() -> bytes:
    body = b'{"node":"n","seqs":[%b]}' % listed(b"1", 2_000_000)
    return request_bytes("POST", "/v0/topics/t/ack", body, "Connection: close")


def pipelined() -> bytes:
    return b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n" * 20_000


def reset_streams() -> bytes:
    """HTTP/2: a GET, and data behind its end, for which the server resets the stream."""
    head = b"\x82\x86\x04\x0a/v0/health\x01\x01a"
    frames = [
        FrameWatch.HEADER.pack(0, len(head), 1, 0x05, stream) + head + FrameWatch.HEADER.pack(0, 1, 0, 0, stream) + b"x"
        for stream in range(1, 40_001, 2)
    ]
    return PREFACE + FrameWatch.HEADER.pack(0, 0, 4, 0, 0) + b"".join(frames)


def segments() -> bytes:
    """Paths of very many segments."""
    return b"GET /v0%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"/a" * 140_000) * 40


def escapes() -> bytes:
    """Paths that are all escapes."""
    return b"GET /v0/topics/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"%41" * 90_000) * 40


def coded_headers() -> bytes:
    """HTTP/2: heads as large as they may be, in Huffman code."""
    huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    path = huffman.encode(b"/?") + huffman.encode(b"aQ9_") * 70_000  # each part fills its bytes: they can be joined
    length = encode_integer(len(path), 7)
    block = b"\x82\x86\x04" + bytes([length[0] | 0x80]) + bytes(length[1:]) + path  # :method, :scheme, :path
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    frames = [
        FrameWatch.HEADER.pack(0, len(part), 9 if at else 1, 4 if at == len(parts) - 1 else 1 - bool(at), stream) + part
        for stream in range(1, 100, 2)
        for at, part in enumerate(parts)
    ]
    return PREFACE + FrameWatch.HEADER.pack(0, 0, 4, 0, 0) + b"".join(frames)


def unknown_settings() -> bytes:
    settings = b"".join(pack(">HL", 0x1000 + number, 5) for number in range(2700))
    return PREFACE + (FrameWatch.HEADER.pack(0, len(settings), 4, 0, 0) + settings) * 300


def referred_headers() -> bytes:
    """HTTP/2: requests with five thousand headers each, of which each is a byte that refers to a table."""
    head = b"\x82\x86\x04\x0a/v0/health\x01\x01a" + b"\x90" * 5000
    frames = [FrameWatch.HEADER.pack(0, len(head), 1, 0x05, stream) + head for stream in range(1, 800, 2)]
    return PREFACE + FrameWatch.HEADER.pack(0, 0, 4, 0, 0) + b"".join(frames)


def unknown_paths() -> bytes:
    """HTTP/2: requests that are answered as soon as their heads are read, one behind the other."""
    head = b"\x82\x86\x04\x02/a\x01\x01a" + b"\x90" * 90
    frames = [FrameWatch.HEADER.pack(0, len(head), 1, 0x05, stream) + head for stream in range(1, 10_000, 2)]
    return PREFACE + FrameWatch.HEADER.pack(0, 0, 4, 0, 0) + b"".join(frames)


def fragments() -> bytes:
    """WebSocket: a message of a million empty fragments."""
    return handshake() + client_frame(1, fin=False) + client_frame(0, fin=False) * 1_000_000


ATTACKS: Final[list[Attack]] = [
    gzip_members,
    gzip_padding,
    gzip_bomb,
    trailers,
    head_lines,
    small_chunks,
    lines,
    records,
    dense_records,
    spread_records,
    dense_publish,
    dense_lines,
    dense_chunks,
    dense_fragments,
    large_messages,
    keyed_records,
    one_value,
    one_field,
    one_line,
    one_command,
    small_fields,
    watched_topics,
    jobs,
    pipelined,
    reset_streams,
    segments,
    escapes,
    coded_headers,
    unknown_settings,
    referred_headers,
    unknown_paths,
    fragments,
]


def worst_wait_s(server: ServerProcess, attack: Callable[[], None]) -> float:
    """The most processor time that the server spent before it answered somebody else, while it was attacked."""
    attacker, worst = threading.Thread(target=attack), 0.0
    attacker.start()
    while attacker.is_alive():
        spent = cpu_s(server.pid)
        assert ask_status(server.address, "/v0/health") == 200
        worst = max(worst, cpu_s(server.pid) - spent)
    return worst


# What goes the way of another one but for its end or its beginning.
ALIKE: Final = {spread_records, dense_chunks, dense_fragments, dense_lines, keyed_records, one_field, one_line}


@pytest.mark.parametrize(
    "attack",
    [pytest.param(one, marks=pytest.mark.full) if one in ALIKE else one for one in ATTACKS],
    ids=lambda attack: attack.__name__,
)
def test_one_client_cannot_hurt_others(tmp_path: Path, attack: Attack) -> None:
    """LM10, LM11: the loop stays free, memory is bounded by what was sent, and the server ends when told."""
    with ServerProcess(tmp_path) as server:
        Client(server.address).create("t")
        data = attack()
        send_all(server.address, data[: 64 * 1024])  # what is imported at the first use counts for nobody
        before = peak_bytes(server.pid)
        worst = worst_wait_s(server, lambda: send_all(server.address, data))
        grown = peak_bytes(server.pid) - before
        print(
            f"{attack.__name__}: {len(data) / MIB:.1f} MiB, {worst:.2f} s, {(grown - len(data)) / MIB:.0f} MiB beyond"
        )
        assert worst <= CPU_S_MAX
        assert grown <= len(data) + MEMORY_BYTES_MAX
        assert "Traceback" not in server.output
        assert server.stop() == 0


@pytest.mark.parametrize("attack", [gzip_members, gzip_bomb], ids=lambda attack: attack.__name__)
def test_bodies_that_are_being_inflated_do_not_hold_up_a_stop(tmp_path: Path, attack: Attack) -> None:
    """LM10, SC3"""
    with ServerProcess(tmp_path) as server:
        Client(server.address).create("t")
        sockets = [socket.create_connection(server.address, timeout=PATIENCE_S) for _ in range(16)]
        data = attack()
        for connection in sockets:
            connection.sendall(data)
        spent = cpu_s(server.pid)
        server.signal(15)
        assert server.wait() == 0
        for connection in sockets:
            connection.close()
        assert spent >= 0
        assert "still running" not in server.output


# --- reads


def fill(api: Client, records: list[dict[str, object]]) -> None:
    """Write records, as often as it takes: on a busy machine the server may be at its limit."""

    def is_written() -> bool:
        reply = api.post("/v0/topics/t?return_seqs=false", {"records": records})
        return reply.status != 429 and bool(ok(reply))

    wait_until("the records are written", is_written)


def pipelined_diffs(address: tuple[str, int]) -> None:
    """Reads that look at all and find nothing, one behind the other."""
    send_all(address, request_bytes("POST", "/v0/topics/t/diff", {"filter": ["tag", "Glob", "*x*"]}) * 200)


def concurrent_diffs(address: tuple[str, int]) -> None:
    """The same as streams of HTTP/2, as many as there may be at once."""
    ask_at_once(address, "/v0/topics/t/diff?filter=" + quote('["tag","Glob","*x*"]'))


def concurrent_scrapes(address: tuple[str, int]) -> None:
    ask_at_once(address, "/v0/metrics")


def concurrent_deletes(address: tuple[str, int]) -> None:
    ask_at_once(address, "/v0/topics/t/delete", b'{"match":["tag","Glob","t*"],"dry_run":true}')


def concurrent_lists(address: tuple[str, int]) -> None:
    ask_at_once(address, "/v0/topics?contains=nothing")


def concurrent_diagnoses(address: tuple[str, int]) -> None:
    ask_at_once(address, "/v0/doctor")


def ask_at_once(address: tuple[str, int], path: str, body: bytes = b"") -> None:
    """A hundred GETs, or POSTs of a body, over HTTP/2, with room for all answers; wait for these."""
    packer, stream_end = Encoder(), 0x01
    method, kind = ("POST", [("content-type", "application/json")]) if body else ("GET", [])
    settings = FrameWatch.HEADER.pack(0, 6, 4, 0, 0) + pack(">HL", 4, 2**30)  # the windows of streams
    window = FrameWatch.HEADER.pack(0, 4, 8, 0, 0) + pack(">L", 2**30)  # and that of the connection
    frames = [PREFACE, settings, window]
    for stream in range(1, 200, 2):
        named = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        head = packer.encode([*named, *kind])
        frames.append(FrameWatch.HEADER.pack(0, len(head), 1, 0x04 if body else 0x05, stream) + head)
        if body:
            frames.append(FrameWatch.HEADER.pack(0, len(body), 0, stream_end, stream) + body)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(frames))
        ended = 0
        while ended < 100:
            high, low, kind, flags, _ = FrameWatch.HEADER.unpack(answers.read(FrameWatch.HEADER.size))
            answers.read((high << 16) + low)
            ended += kind == 0 and bool(flags & stream_end)


READS: Final = [
    pipelined_diffs,
    concurrent_diffs,
    concurrent_scrapes,
    concurrent_deletes,
    concurrent_lists,
    concurrent_diagnoses,
]


@pytest.mark.parametrize("attack", READS, ids=lambda attack: attack.__name__)
def test_reads_of_one_client_leave_others_their_turns(
    tmp_path: Path, attack: Callable[[tuple[str, int]], None]
) -> None:
    """LM10, LM11, LM13: every live record of the topic lies between two dead ones, and it is one of many."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        for _ in range(5):
            records = [{"data": 1, "tag": f"t{number % 2}"} for number in range(10_000)]
            fill(api, records)
        ok(api.post("/v0/topics/t/delete", {"match": "t0"}))
        for number in range(500):
            api.create(f"topic-{number}", durability="ephemeral")
        before = peak_bytes(server.pid)
        worst = worst_wait_s(server, lambda: attack(server.address))
        grown = peak_bytes(server.pid) - before
        print(f"{attack.__name__}: {worst:.2f} s, {grown / MIB:.0f} MiB")
        assert worst <= CPU_S_MAX
        assert grown <= MEMORY_BYTES_MAX
        assert server.stop() == 0


# --- answers that nobody takes, and followers that come and go


def unread(address: tuple[str, int], path: str, window: int, is_enough: Callable[[], bool]) -> None:
    """A hundred GETs over HTTP/2 whose answers are not taken, until it is enough."""
    packer = Encoder()
    settings = FrameWatch.HEADER.pack(0, 6, 4, 0, 0) + pack(">HL", 4, window)
    frames = [PREFACE, settings, FrameWatch.HEADER.pack(0, 4, 8, 0, 0) + pack(">L", 2**30)]
    for stream in range(1, 200, 2):
        head = packer.encode([(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")])
        frames.append(FrameWatch.HEADER.pack(0, len(head), 1, 0x05, stream) + head)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(b"".join(frames))
        wait_until("the server answers others", is_enough)


@pytest.mark.parametrize("window", [0, 2**30], ids=["no window", "no room in the socket"])
@pytest.mark.parametrize("path", ["diff?max_batch_bytes=8000000", "export"])
def test_answers_that_nobody_takes_take_little_memory(tmp_path: Path, path: str, window: int) -> None:
    """LM10, LM11: 60 MB of records, a hundred times."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        for _ in range(12):
            ok(api.post("/v0/topics/t?return_seqs=false", {"records": [{"data": "x" * 50_000}] * 100}))
        ok(api.post("/v0/topics/t/diff", {"max_batch_bytes": 8_000_000}))
        before, looks = peak_bytes(server.pid), 0

        def is_enough() -> bool:  # no more comes in many looks, in each of which all of them would have had a turn
            nonlocal looks
            looks += 1
            return looks > 200 and ask_status(server.address, "/v0/health") == 200

        worst = worst_wait_s(server, lambda: unread(server.address, "/v0/topics/t/" + path, window, is_enough))
        grown = peak_bytes(server.pid) - before
        print(f"unread {path}: {worst:.2f} s, {grown / MIB:.0f} MiB")
        assert worst <= CPU_S_MAX
        assert grown <= MEMORY_BYTES_MAX
        assert "a connection is ended" not in server.output
        assert server.stop() == 0


def test_sockets_that_subscribe_and_unsubscribe_all_the_time_leave_others_their_turns(tmp_path: Path) -> None:
    """LM10, LM11: from the beginning each time."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        ok(api.post("/v0/topics/t?return_seqs=false", {"records": [{"data": "x" * 300}] * 10_000}))
        commands = client_frame(1, b'{"op":"subscribe","topic":"t","from_seq":0}')
        commands += client_frame(1, b'{"op":"unsubscribe","topic":"t"}')
        data = handshake() + commands * 1000 + client_frame(8)

        def attack() -> None:
            senders = [threading.Thread(target=send_all, args=(server.address, data)) for _ in range(8)]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join(PATIENCE_S)

        before = peak_bytes(server.pid)
        worst = worst_wait_s(server, attack)
        grown = peak_bytes(server.pid) - before
        print(f"subscriptions: {worst:.2f} s, {grown / MIB:.0f} MiB")
        assert worst <= CPU_S_MAX
        assert grown <= 8 * len(data) + MEMORY_BYTES_MAX
        assert server.stop() == 0


@pytest.mark.parametrize(("record_bytes", "count"), [(300, 400_000), (60_000, 4_000)])
def test_reading_old_records_from_the_first_to_the_last_takes_little_memory(
    tmp_path: Path, record_bytes: int, count: int
) -> None:
    """LM6, LM11: neither their rendered form nor the files that they lie in add up."""
    with ServerProcess(tmp_path) as server:
        write = min(10_000, 30 * MIB // record_bytes)
        records = [{"data": "x" * record_bytes, "tag": f"t{number}"} for number in range(write)]
        api = Client(server.address)
        api.create("t")
        for written in range(0, count, write):
            fill(api, records[: count - written])
        assert server.stop() == 0
        server.start()
        api, before, cursor = Client(server.address), peak_bytes(server.pid), 0
        while cursor < count:
            cursor = ok(api.post("/v0/topics/t/diff", {"from_seq": cursor, "limit": 1000}))["next_from_seq"]
        grown = peak_bytes(server.pid) - before
        print(f"old records of {record_bytes} bytes: {grown / MIB:.0f} MiB")
        assert grown <= MEMORY_BYTES_MAX
        assert server.stop() == 0


COMMANDS: Final = {
    "gets": request_bytes("GET", "/v0/topics/t"),
    "writes": request_bytes("POST", "/v0/topics/w", {"records": [{"data": 1}]}),
    "diffs": request_bytes("POST", "/v0/topics/t/diff", {"limit": 100}),
    "filtered": request_bytes("POST", "/v0/topics/t/diff", {"limit": 1, "not_nodes": ["n"]}),
    "pings": client_frame(1, b'{"op":"ping"}'),
    "publishes": client_frame(1, b'{"op":"publish","topic":"w","records":[{"data":1}]}'),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_many_connections_that_send_without_waiting_leave_others_their_turns(tmp_path: Path, kind: str) -> None:
    """LM10: what is done in one turn of the loop is bounded over all of them."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        for name in ("t", "w"):
            api.create(name)
        fill(api, [{"data": 1, "tag": f"t{n % 2}"} for n in range(9000)])
        ok(api.post("/v0/topics/t/delete", {"match": "t0"}))
        opening = handshake() if kind in ("pings", "publishes") else b""
        closing = client_frame(8) if opening else b""
        data = opening + COMMANDS[kind] * 100 + closing

        def attack() -> None:
            senders = [threading.Thread(target=send_all, args=(server.address, data)) for _ in range(100)]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join(PATIENCE_S)

        worst = worst_wait_s(server, attack)
        print(f"100 connections, {kind}: {worst:.2f} s")
        assert worst <= CPU_S_MAX
        assert "Traceback" not in server.output
        assert server.stop() == 0


def test_many_held_jobs_cost_others_little_when_they_come_and_when_they_go(tmp_path: Path) -> None:
    """LM10, LM11: claimed, every second one deleted by its tag, the others by age."""
    with ServerProcess(tmp_path) as server:
        api, count = Client(server.address), 100_000
        config = {"type": "queue", "lease_ms": 3_600_000}
        api.create("t", **config)
        records = [{"data": 1, "tag": f"t{number % 2}"} for number in range(10_000)]
        for _ in range(count // 10_000):
            fill(api, records)
        before = peak_bytes(server.pid)

        def claim_all() -> None:
            while ok(api.get("/v0/topics/t"))["queue"]["ready"]:
                api.post("/v0/topics/t/claim", {"node": "w", "max": 1000})

        def delete() -> None:
            ok(api.post("/v0/topics/t/delete", {"match": "t0"}))

        def expire() -> None:
            ok(api.put("/v0/topics/t", {**config, "ttl_ms": 1}))

        worst = max(worst_wait_s(server, attack) for attack in (claim_all, delete, expire))
        grown = peak_bytes(server.pid) - before
        print(f"held jobs: {worst:.2f} s, {grown / MIB:.0f} MiB")
        assert ok(api.get("/v0/topics/t"))["count"] == 0
        assert worst <= CPU_S_MAX
        assert grown <= MEMORY_BYTES_MAX
        assert server.stop() == 0


def test_a_download_that_nobody_reads_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """SC3, LM10: it is cut off, early enough for the last checkpoint."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        for _ in range(3):
            fill(api, [{"data": "x" * 1000}] * 10_000)
        requests = (request_bytes("GET", "/v0/topics/t/export"), request_bytes("POST", "/v0/backup", {}))
        connections = [socket.create_connection(server.address, timeout=PATIENCE_S) for _ in requests]
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
            assert connection.recv(9) == b"HTTP/1.1 "
        assert server.stop() == 0
        assert "2 requests were still running" in server.output and "Traceback" not in server.output
        for connection in connections:
            connection.close()
    assert STOP_S <= 8, "and what is being written then is finished"
