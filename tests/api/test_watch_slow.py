"""Consumers that do not read: what the server holds for them is bounded, and nobody else notices."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from tests.api.clients.events import EVENTS, Event, Stream, connect, follow, open_stream, parsed, watch
from tests.api.clients.transcript import Client
from tests.api.conftest import Start
from topics.server.live.feeds import Reader
from topics.server.live.outlet import NEVER
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

PAYLOAD = "x" * 60_000  # of one record
FRAME_BYTES = 262_144  # the default budget of a frame
HIGH_WATER_BYTES = 65_536  # of the transports
SETTLED = 25  # looks at the transport, a millisecond apart, without a change


class Writer:
    """Writes numbered records of PAYLOAD."""

    def __init__(self, api: Client, topic: str) -> None:
        self.api = api
        self.topic = topic
        self.count = 0

    def write(self, records: int = 4) -> None:
        numbers = range(self.count + 1, self.count + records + 1)
        self.api.write(self.topic, *([number, PAYLOAD] for number in numbers))
        self.count += records


def let_pass(server: ServerThread, ms: int) -> None:
    """Let time pass in steps, each of which the server has seen."""
    for _ in range(ms // 5000):
        server.advance(5000)
        server.until(lambda: server.clock.waits or not server.server.app.registry)


def readers(server: ServerThread) -> list[Reader]:
    return server.run(lambda: list(server.server.app.registry))


def settled(server: ServerThread, reader: Reader) -> bool:
    """Wait until the transport takes nothing more, or is empty. Whether it is blocked."""
    seen, since = -1, 0

    def has_settled() -> bool:
        nonlocal seen, since
        since = since + 1 if reader.buffered == seen else 0
        seen = reader.buffered
        return since >= SETTLED

    server.until(has_settled)
    return server.run(lambda: reader.is_blocked)


def stuff(server: ServerThread, reader: Reader, writer: Writer) -> None:
    """Write until the consumer is blocked and the kernel takes no more."""
    for _ in range(200):
        writer.write()
        if server.run(lambda: reader.is_blocked) and settled(server, reader):
            writer.write()
            server.advance(250)
            server.until(lambda: reader.unsent_bytes == reader.buffered)
            return
    raise AssertionError("the consumer does not block")


def numbers(stream: Stream, until: Callable[[list[int]], bool]) -> list[int]:
    """The numbers of the records to come, past anything else."""
    found: list[int] = []
    while not until(found):
        event = stream.next()
        if event.kind == "record":
            found += [number for number, _ in event.payloads]
    return found


def next_records(stream: Stream) -> Event:
    """The next record frame; the stream may have been caught up before."""
    while (event := stream.next()).kind == "caught-up":
        pass
    assert event.kind == "record", event
    return event


@contextmanager
def blocked(
    server: ServerThread, api: Client, topic: str = "t", **fields: Any
) -> Iterator[tuple[Stream, Reader, Writer, Any]]:
    """A stream whose consumer has stopped reading."""
    session = watch(api, topic, **fields)
    writer = Writer(api, topic)
    with connect(api, session, EVENTS, receive_buffer_bytes=4096) as stream:
        server.until(lambda: server.server.app.registry)
        [reader] = readers(server)
        stuff(server, reader, writer)
        yield stream, reader, writer, session


def test_what_is_held_for_a_slow_consumer_is_bounded(start: Start) -> None:
    """SS19, LM6: writers and other readers go on; later it gets all, in order, in larger frames."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, reader, writer, _):
        held = server.run(lambda: reader.buffered)
        assert held <= HIGH_WATER_BYTES + 2 * FRAME_BYTES
        with follow(api, "t", limit=1000, max_batch_bytes=8 << 20) as other:
            last = 0
            while last < writer.count:
                last = other.expect("record").payloads[-1][0]
            other.expect("caught-up")
            for _ in range(40):
                writer.write(1)
                assert other.expect("record").payloads[0][0] == writer.count
        assert server.run(lambda: reader.buffered) <= held
        assert stream.head().status == 200
        frames: list[Event] = []
        while not frames or frames[-1].data["to_seq"] < writer.count:
            frames.append(next_records(stream))
        assert [number for frame in frames for number, _ in frame.payloads] == list(range(1, writer.count + 1))
        assert len(frames[-2].payloads) == 4, "what came one by one in the meantime comes in full frames"
        stream.expect("caught-up")


def test_a_consumer_that_stalls_only_lags_on_a_lossless_topic(start: Start) -> None:
    """SS26"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, reader, writer, _):
        server.advance(5000)
        server.until(lambda: reader.is_stalled)
        writer.write()
        stream.head()
        found: list[int] = []
        while len(found) < writer.count:
            found += [number for number, _ in next_records(stream).payloads]
        assert found == list(range(1, writer.count + 1))
        stream.expect("caught-up")
        server.run(lambda: None)
        assert not reader.is_stalled and reader.blocked_at == NEVER


@pytest.mark.parametrize(("blocked_ms", "reason"), [(4500, "cap"), (5000, "from_seq_too_old")])
def test_what_was_trimmed_during_a_stall_is_too_old(start: Start, blocked_ms: int, reason: str) -> None:
    """SS26, TM13: a shorter block is none."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, reader, writer, _):
        server.advance(blocked_ms)
        server.until(lambda: reader.is_stalled is (blocked_ms >= 5000))
        cursor = server.run(lambda: reader.feeds["t"].cursor)
        assert cursor < writer.count
        api.put("/v0/topics/t", {"cap_records": 1})
        stream.head()
        assert numbers(stream, lambda found: len(found) == cursor) == list(range(1, cursor + 1))
        lost = stream.expect("tombstone").data
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == (reason, cursor + 1, writer.count - 1)
        assert numbers(stream, bool) == [writer.count]
        api.write("t", *([writer.count + n, PAYLOAD] for n in (1, 2)))
        assert stream.expect("tombstone").data["reason"] == "cap"


def test_a_consumer_blocked_for_thirty_seconds_is_closed(start: Start) -> None:
    """SS26, SS25, LM5: with a last word, and the session goes on without a gap."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, _, writer, session):
        let_pass(server, 30_000)
        server.until(lambda: server.server.app.slots.streams == 0)
        assert api.metrics()["watch_sessions"] == 1
        stream.head()
        found: list[int] = []
        last_id = None
        while (event := stream.next()).kind != "error":
            found += [number for number, _ in event.payloads] if event.kind == "record" else []
            last_id = event.id
        assert (event.kind, event.data["code"]) == ("error", 408)
        stream.expect_end()
        assert stream.socket.recv(1) == b"", "the connection is closed"
        assert found == list(range(1, len(found) + 1)) and len(found) < writer.count
        with open_stream(api, session, EVENTS, f"Last-Event-ID: {last_id}") as again:
            rest = numbers(again, lambda rest: len(found) + len(rest) >= writer.count)
        assert found + rest == list(range(1, writer.count + 1))


def test_a_client_that_tells_nothing_misses_nothing_that_was_in_doubt(start: Start) -> None:
    """SS26, SS5: what never left the server counts as not delivered."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, _, writer, session):
        stream.socket.shutdown(socket.SHUT_RDWR)
        stream.socket.close()
        server.until(lambda: server.server.app.slots.streams == 0)
        with open_stream(api, session) as again:
            rest = numbers(again, lambda found: bool(found) and found[-1] == writer.count)
        assert rest == list(range(rest[0], writer.count + 1))
        assert len(rest) >= 4, "at least the frame that was being sent"


def test_a_hanging_stream_is_taken_over_and_nothing_is_missed(start: Start) -> None:
    """S9, SS22: the second stream gets every record, those included that the first one never read."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, _, writer, session):
        with open_stream(api, session) as second:
            server.until(lambda: server.server.app.slots.streams == 1)
            taken = numbers(second, lambda found: bool(found) and found[-1] == writer.count)
            assert taken == list(range(taken[0], writer.count + 1))
            stream.head()
            first: list[int] = []
            while (event := stream.next()).kind != "error":
                first += [number for number, _ in event.payloads] if event.kind == "record" else []
            assert event.data["code"] == 409
            stream.expect_end()
        assert first == list(range(1, len(first) + 1))
        assert taken[0] <= len(first) + 1


def test_a_consumer_that_reads_slowly_is_not_blocked(start: Start) -> None:
    """SS26: whoever takes bytes is not cut off, however long a frame takes."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with blocked(server, api) as (stream, reader, writer, _):
        for _ in range(20):
            before = server.run(lambda: reader.buffered)
            while server.run(lambda: reader.buffered) >= before and server.run(lambda: reader.is_blocked):
                assert stream.receive()
            settled(server, reader)
            server.advance(4000)
            server.until(lambda: server.clock.waits)
        assert server.run(lambda: server.server.app.slots.streams) == 1
        stream.head()
        assert len(numbers(stream, lambda found: len(found) == writer.count)) == writer.count


# --- over HTTP/2, where a stream's window does the same


class Http2Consumer:
    """Opens streams on one HTTP/2 connection, and refills windows only when told to."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 30)
        self.received: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def open(self, url: str) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        lines = [(":method", "GET"), (":path", url), (":scheme", "http"), (":authority", "localhost")]
        self.h2.send_headers(stream_id, [*lines, ("accept", "text/event-stream")], end_stream=True)
        self.received[stream_id] = b""
        self.flush()
        return stream_id

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def refill(self, stream_id: int) -> None:
        self.h2.increment_flow_control_window(1 << 24, stream_id)
        self.flush()

    def read_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            data = self.socket.recv(1 << 16)
            assert data, "the connection is closed"
            for event in self.h2.receive_data(data):
                if isinstance(event, DataReceived):
                    self.received[event.stream_id] += event.data
                elif isinstance(event, StreamEnded):
                    self.ended.add(event.stream_id)
            self.flush()

    def events(self, stream_id: int) -> list[Event]:
        return [parsed(block) for block in self.received[stream_id].split(b"\n\n")[1:-1]]


def test_a_window_that_is_not_refilled_blocks_one_stream_and_not_its_neighbour(start: Start) -> None:
    """SS19, SS26, CV16"""
    server = start()
    api = Client(server.address)
    api.create("t")
    api.create("u")
    client = Http2Consumer(server.address)
    slow, quick = client.open(watch(api, "t")["stream_url"]), client.open(watch(api, "u")["stream_url"])
    client.refill(quick)
    server.until(lambda: len(server.server.app.registry) == 2)
    reader = next(one for one in readers(server) if "t" in one.feeds)
    writer = Writer(api, "t")
    writer.write()
    server.until(lambda: reader.is_blocked)
    for n in count(1):
        api.write("u", n)
        writer.write(1)
        client.read_until(lambda: b'"data":%d}' % n in client.received[quick])  # noqa: B023
        if n == 5:
            break
    assert server.run(lambda: reader.buffered) <= 2 * FRAME_BYTES
    let_pass(server, 35_000)
    server.until(lambda: server.server.app.slots.streams == 1)
    client.refill(slow)
    client.read_until(lambda: slow in client.ended)
    events = [one for one in client.events(slow) if one.kind != "caught-up"]
    assert [one.kind for one in events] == ["record", "error"]
    assert [number for number, _ in events[0].payloads] == [1, 2, 3, 4]
    assert json.loads(events[-1].raw.partition(b"data: ")[2])["code"] == 408
    client.socket.close()
