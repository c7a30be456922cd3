"""The stream of jobs."""

import socket
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from tests.api.clients.events import EVENTS, Event, Stream, connect, http2_stream, open_stream
from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread


def url(topic: str, node: str = "w", **query: Any) -> str:
    return f"/v0/topics/{topic}/work?node={node}" + "".join(f"&{name}={value}" for name, value in query.items())


def work(api: Client, topic: str, node: str = "w", **query: Any) -> Stream:
    """Open a stream; its first heartbeat has come."""
    stream = open_stream(api, url(topic, node, **query))
    stream.expect("comment")
    return stream


def taken(stream: Stream, count: int) -> list[Event]:
    return [stream.expect("job") for _ in range(count)]


def seqs(stream: Stream, count: int) -> list[int]:
    return [event.data["$seq"] for event in taken(stream, count)]


def streams(server: ServerThread) -> int:
    return server.run(lambda: server.server.app.slots.streams)


@pytest.fixture
def quiet(start: Start) -> tuple[ServerThread, Client]:
    """A server of its own, with a queue `q`."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=60_000)
    return server, api


Quiet = tuple[ServerThread, Client]


# --- opening


def ask(api: Client, target: str, *headers: str) -> Reply:
    with connect(api, target, *headers) as stream:
        return stream.head()


@pytest.mark.parametrize(
    "query",
    ["", "?node=", "?max=1", f"?node={'n' * 129}"]
    + [f"?node=w&max={value}" for value in ("0", "-1", "x", "1.5", "", "1e3", "%31x")]
    + [f"?node=w&lease_ms={value}" for value in ("x", "-1", "1.5", "")],
)
def test_parameters_are_checked_first(api: Client, topic: str, query: str) -> None:
    """WK1: before Accept and before the topic."""
    api.create(topic, type="queue")
    for name in (topic, f"{topic}-none"):
        refused(ask(api, f"/v0/topics/{name}/work{query}", "Accept: text/html"), 400, "invalid_request", None)


def test_the_order_of_refusals(start: Start) -> None:
    """WK1, LM1: 400, 406, 404, 409, 429"""
    server = start(max_sse_connections=1)
    api = Client(server.address)
    api.create("log")
    api.create("q", type="queue")
    with work(api, "q"):
        refused(ask(api, url("none"), "Accept: text/html"), 406, "not_acceptable", None)
        refused(ask(api, url("none")), 404, "topic_not_found", {"topic": "none"})
        refused(ask(api, url("log")), 409, "not_a_queue", {"topic": "log"})
        refused(ask(api, url("q")), 429, "throttled", {"limit": "max_sse_connections", "max": 1})
    server.until(lambda: not server.server.app.slots.streams)
    work(api, "q").socket.close()


@pytest.mark.parametrize("accept", [(), ("Accept: */*",), ("Accept: text/html, text/event-stream;q=0.1",)])
def test_what_a_stream_accepts(api: Client, topic: str, accept: tuple[str, ...]) -> None:
    """WK1, SS6"""
    api.create(topic, type="queue")
    with Stream(api.address, api.request("GET", url(topic), None, *accept)) as stream:
        assert stream.head().status == 200


def test_a_stream_has_no_head_request(api: Client, topic: str) -> None:
    """CV23"""
    api.create(topic, type="queue")
    refused(api.ask("HEAD", url(topic)), 405, "method_not_allowed")


def test_a_stream_opens_with_retry_and_a_heartbeat(server: ServerThread, api: Client, topic: str) -> None:
    """WK3, A.13, SS7"""
    api.create(topic, type="queue")
    with connect(api, url(topic)) as stream:
        head = stream.head()
        assert stream.next().raw == b": hb %d" % server.clock.now_ms()
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (head.headers["cache-control"], head.headers["x-accel-buffering"]) == ("no-store", "no")


def test_the_key_may_come_in_the_query(start: Start) -> None:
    """AU6, AU10, AU13"""
    server = start(api_keys="all,r:read,w:write,rw:rw,other:rw:x")
    api = Client(server.address)
    api.with_key("all").create("q", type="queue")
    refused(ask(api, url("q")), 401, "unauthorized")
    refused(ask(api, url("q", token="nobody")), 401, "unauthorized")
    for token in ("r", "w", "other"):
        refused(ask(api, url("q", token=token)), 403, "forbidden")
    work(api, "q", token="rw").socket.close()
    work(api.with_key("rw"), "q", token="nobody").socket.close()


# --- jobs


def test_a_job_frame_is_a_claim_item_with_its_topic(quiet: Quiet) -> None:
    """WK3, A.13, QU4"""
    server, api = quiet
    api.write_records("q", {"data": {"resize": 256}, "tag": "a", "node": "n", "meta": {"m": 1}}, {"data": None})
    with work(api, "q", max=5) as stream:
        first, second = taken(stream, 2)
        now = server.clock.now_ms()
        assert (first.id, second.id) == ("1", "2")
        lease_id = first.data.pop("lease_id")
        assert first.data == {
            "topic": "q",
            "$seq": 1,
            "deadline": now + 60_000,
            "$ts": now,
            "$tag": "a",
            "deliveries": 1,
            "data": {"resize": 256},
            "meta": {"m": 1},
        }
        assert "$tag" not in second.data and "$node" not in second.data
        assert Worker(api, "q").ack(1, lease_ids=[lease_id])["acked"] == 1


def test_the_payload_is_one_line_to_the_byte(quiet: Quiet) -> None:
    """S18, CV26, SS7"""
    _, api = quiet
    api.post("/v0/topics/q", b'{"records":[{"data":{"b":1.0,"b":1e400}},{"data":{"x":\n [1,\r\n 2]}}]}')
    with work(api, "q", max=5) as stream:
        first, second = taken(stream, 2)
    assert first.raw.endswith(b'"data":{"b":1.0,"b":1e400}}')
    assert second.raw.endswith(b'"data":{"x":[1,2]}}')


def test_lease_ms_of_a_stream_is_clamped(quiet: Quiet) -> None:
    """WK1, QU2"""
    server, api = quiet
    jobs(Worker(api, "q"), 2)
    for lease_ms, given in ((1, 100), (10**30, 86_400_000)):
        with work(api, "q", lease_ms=lease_ms) as stream:
            assert taken(stream, 1)[0].data["deadline"] == server.clock.now_ms() + given


def test_max_bounds_the_leases_of_a_connection(quiet: Quiet) -> None:
    """WK1, WK2: the default is 1."""
    server, api = quiet
    worker = Worker(api, "q")
    jobs(worker, 4)
    with work(api, "q") as stream:
        assert seqs(stream, 1) == [1]
        assert worker.counts() == (3, 1, 0)
        stream.expect_silence(server)
        worker.ack(1)
        assert seqs(stream, 1) == [2]
        stream.expect_silence(server)


def test_max_claim_bounds_max(start: Start) -> None:
    """WK1"""
    server = start(max_claim=2)
    api = Client(server.address)
    api.create("q", type="queue")
    jobs(Worker(api, "q"), 5)
    with work(api, "q", max=10**30) as stream:
        assert seqs(stream, 2) == [1, 2]
        stream.expect_silence(server)


def refills(name: str) -> Callable[[ServerThread, Client], Any]:
    def ack(server: ServerThread, api: Client) -> Any:
        return Worker(api, "q").ack(1)

    def nack(server: ServerThread, api: Client) -> Any:
        return Worker(api, "q").nack(1, delay_ms=100_000)

    def delete(server: ServerThread, api: Client) -> Any:
        return ok(api.post("/v0/topics/q/delete", {"before_seq": 2}))

    def cap(server: ServerThread, api: Client) -> Any:
        return ok(api.put("/v0/topics/q", {"cap_records": 1, "lease_ms": 60_000}))

    def expiry(server: ServerThread, api: Client) -> Any:
        ok(api.post("/v0/topics/q/extend", {"node": "w", "seqs": [1], "lease_ms": 1000}))
        return server.advance(1001)

    return {"ack": ack, "nack": nack, "delete": delete, "cap": cap, "expiry": expiry}[name]


@pytest.mark.parametrize("how", ["ack", "nack", "delete", "cap", "expiry"])
def test_room_is_refilled_promptly(quiet: Quiet, how: str) -> None:
    """WK2, QU17: whatever ended the lease; an expired job comes again."""
    server, api = quiet
    jobs(Worker(api, "q"), 2)
    with work(api, "q", max=1) as stream:
        assert seqs(stream, 1) == [1]
        refills(how)(server, api)
        assert seqs(stream, 1) == [1 if how == "expiry" else 2]


def test_an_append_reaches_a_waiting_stream(quiet: Quiet) -> None:
    """WK2"""
    _, api = quiet
    with work(api, "q", max=3) as stream:
        for number in range(1, 4):
            api.write("q", number)
            assert seqs(stream, 1) == [number]


def test_delays_end_by_themselves_for_a_waiting_stream(quiet: Quiet) -> None:
    """WK2, QU12: of jobs given back, and of jobs written with a delay."""
    server, api = quiet
    api.write_records("q", {"data": 1, "delay_ms": 500}, {"data": 2})
    worker = Worker(api, "q")
    with work(api, "q", max=5) as stream:
        assert seqs(stream, 1) == [2]
        server.advance(500)
        assert seqs(stream, 1) == [1]
        worker.nack(2, delay_ms=200)
        server.until(lambda: server.clock.waits)
        server.advance(200)
        assert [event.data["deliveries"] for event in taken(stream, 1)] == [2]


def test_streams_share_evenly(quiet: Quiet) -> None:
    """WK2, QU7: one job each in turn."""
    _, api = quiet
    opened = [work(api, "q", f"w{number}", max=100) for number in range(4)]
    try:
        api.write("q", *range(20))
        held = [seqs(stream, 5) for stream in opened]
        assert sorted(chain(*held)) == list(range(1, 21))
        for _ in range(8):
            api.write("q", 0)
        assert sorted(chain(*[seqs(stream, 2) for stream in opened])) == list(range(21, 29))
    finally:
        for stream in opened:
            stream.socket.close()


def test_streams_take_part_in_cohorts(start: Start) -> None:
    """WK4, QU7"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500, lease_ms=60_000)
    with work(api, "q", "a", max=10) as a, work(api, "q", "b", max=10) as b:
        api.write("q", *range(9))
        crews = server.server.engine.workers.crews.by_id
        server.until(lambda: any(crew.window for crew in crews.values()))
        with api.connect() as claiming:
            claiming.send(api.request("POST", "/v0/topics/q/claim", {"node": "c", "max": 10}))
            server.until(lambda: any(crew.claims for crew in crews.values()))
            server.advance(500)
            claimed = [job["$seq"] for job in ok(claiming.reply())["claimed"]]
        assert claimed == [1, 4, 7]
        assert sorted(seqs(a, 3) + seqs(b, 3)) == [2, 3, 5, 6, 8, 9]


def test_a_job_handed_out_too_often_is_dead_lettered_by_a_stream_as_well(quiet: Quiet) -> None:
    """QU14, WK2"""
    server, api = quiet
    ok(api.put("/v0/topics/q", {"max_deliveries": 1, "dead_letter": "dead", "lease_ms": 1000}))
    api.write("q", 1)
    with work(api, "q") as stream:
        assert seqs(stream, 1) == [1]
        server.advance(1001)
        server.until(lambda: "dead" in server.server.engine.state.topics)
        api.write("q", 2)
        assert seqs(stream, 1) == [2]
    assert api.data("dead") == [1]


# --- the end of a connection


def fin(stream: Stream) -> None:
    stream.socket.close()


def rst(stream: Stream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def half(stream: Stream) -> None:
    stream.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [fin, rst, half])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_the_end_of_a_connection_releases_its_leases_and_no_others(
    start: Start, leave: Callable[[Stream], None], leases_durable: bool
) -> None:
    """WK5, LM5: not those that were claimed, nor those of another stream of the same node."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=60_000, leases_durable=leases_durable)
    worker = Worker(api, "q")
    jobs(worker, 9)
    assert worker.seqs(2) == [1, 2]
    with work(api, "q", max=2) as other:
        assert seqs(other, 2) == [3, 4]
        stream = work(api, "q", max=4)
        tokens = [event.data["lease_id"] for event in taken(stream, 4)]
        worker.ack(5)
        assert seqs(stream, 1) == [9]
        worker.nack(6)
        assert seqs(stream, 1) == [6]
        leave(stream)
        server.until(lambda: server.server.app.slots.streams == 1)
        assert worker.counts() == (4, 4, 0)
        assert worker.ack(7, lease_ids=[tokens[2]])["skipped"] == [7]
        claimed = Worker(api, "q", "next").claim(9)["claimed"]
        assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(6, 3), (7, 2), (8, 2), (9, 2)]
        assert worker.ack(1, 2, 3, 4)["acked"] == 4
        stream.socket.close()


def test_a_lease_that_went_to_somebody_else_is_not_released(quiet: Quiet) -> None:
    """WK5"""
    server, api = quiet
    jobs(Worker(api, "q"), 1)
    stream = work(api, "q", lease_ms=100)
    assert seqs(stream, 1) == [1]
    other = Worker(api, "q", "other")
    # The deadline passes while nothing looks at the queue; then another claim comes first.
    server.run(lambda: server.clock.set(server.clock.now_ms() + 101))
    assert other.seqs(1) == [1]
    stream.socket.close()
    server.until(lambda: not server.server.app.slots.streams)
    assert other.ack(1)["acked"] == 1


def test_released_jobs_go_to_another_stream_at_once(quiet: Quiet) -> None:
    """WK5, WK2"""
    _, api = quiet
    jobs(Worker(api, "q"), 3)
    first = work(api, "q", max=3)
    assert seqs(first, 3) == [1, 2, 3]
    with work(api, "q", "v", max=3) as second:
        first.socket.close()
        assert [(event.data["$seq"], event.data["deliveries"]) for event in taken(second, 3)] == [
            (1, 2),
            (2, 2),
            (3, 2),
        ]


def test_over_http2_a_stream_works_and_its_end_releases(quiet: Quiet) -> None:
    """CV16, WK2, WK3, WK5"""
    server, api = quiet
    worker = Worker(api, "q")
    jobs(worker, 3)
    with http2_stream(api, {"stream_url": url("q", max=2)}) as stream:
        stream.expect("comment")
        assert [stream.expect("job").data["$seq"] for _ in range(2)] == [1, 2]
        worker.ack(1)
        assert stream.expect("job").data["$seq"] == 3
        assert worker.counts() == (0, 2, 0)
    server.until(lambda: not server.server.app.slots.streams)
    assert worker.counts() == (2, 0, 0)


def test_a_stream_holds_no_request_slot_and_gives_its_own_back(start: Start) -> None:
    """LM5, LM1"""
    server = start(api_keys="k", max_inflight_per_key=1, max_sse_connections_per_key=2)
    api = Client(server.address, "k")
    api.create("q", type="queue")
    for _ in range(3):
        one, two = work(api, "q"), work(api, "q")
        assert api.metrics()["sse_connections"] == 2
        detail = {"limit": "max_sse_connections_per_key", "max": 2}
        refused(ask(api, url("q"), EVENTS), 429, "throttled", detail)
        one.socket.close(), two.socket.close()
        server.until(lambda: not server.server.app.slots.streams)


# --- heartbeats, slow consumers, pressure, terminal errors


def test_a_heartbeat_comes_after_fifteen_seconds_of_silence(quiet: Quiet) -> None:
    """WK7"""
    server, api = quiet
    with work(api, "q", max=5) as stream:
        server.advance(14_000)
        api.write("q", 1)
        assert seqs(stream, 1) == [1]
        server.advance(14_750)
        api.write("q", 2)
        assert seqs(stream, 1) == [2], "the frame before started the time anew"
        server.advance(15_000)
        stream.expect("comment")


@pytest.mark.slow
def test_a_stream_that_does_not_read_gets_no_more_jobs(quiet: Quiet) -> None:
    """SS19, WK2: they go to others, and what it was sent is released when it is given up."""
    server, api = quiet
    text = "x" * 500_000
    with connect(api, url("q", "slow", max=1000), receive_buffer_bytes=4096) as slow:
        slow.head()
        for _ in range(60):
            api.write("q", text)
        held = server.run(lambda: len(server.server.engine.state.topics["q"].queue.leases))
        assert 0 < held < 60
        with work(api, "q", "quick", max=60 - held) as quick:
            assert len(seqs(quick, 60 - held)) == 60 - held
            for _ in range(8):
                server.advance(5000)
            server.until(lambda: server.server.app.slots.streams == 1)
        server.until(lambda: not server.server.app.slots.streams)
    assert Worker(api, "q").counts() == (60, 0, 0)


def test_deleting_the_queue_ends_its_streams(quiet: Quiet) -> None:
    """WK6"""
    server, api = quiet
    jobs(Worker(api, "q"), 1)
    with work(api, "q") as stream:
        seqs(stream, 1)
        api.delete("/v0/topics/q")
        error = stream.expect("error")
        assert (error.data["code"], error.id) == (404, None)
        stream.expect_end()
    assert streams(server) == 0


def test_a_queue_that_comes_back_as_a_log_ends_its_streams(quiet: Quiet) -> None:
    """WK6: 409, no longer a queue."""
    server, api = quiet
    engine = server.server.engine

    async def replace() -> None:
        await engine.delete_topic("q")
        await engine.put_topic("q", {})

    with work(api, "q") as stream:
        server.run(lambda: engine.unlisten(*_listening(engine)))
        server.do(replace())
        server.run(engine.workers.crews.wake_all)
        assert stream.expect("error").data["code"] == 409
        stream.expect_end()


def _listening(engine: Any) -> tuple[int, Any]:
    """Keep the crew from hearing of the deletion before the new topic is there."""
    (crew,) = engine.workers.crews.by_id.values()
    return crew.id, crew.wake


def test_a_stopping_server_says_so(quiet: Quiet) -> None:
    """WK6, SC3"""
    server, api = quiet
    with work(api, "q") as stream:
        closing = server.start_closing()
        error = stream.expect("error").data
        assert (error["code"], error["error"]) == (503, "server_shutting_down")
        assert error["retry_after_ms"] > 0
        stream.expect_end()
        closing.result(PATIENCE_S)


def press(server: ServerThread, level: float) -> None:
    server.pressure = level
    server.run(server.server.pressure.measure)


def test_opening_a_stream_waits_under_pressure(quiet: Quiet) -> None:
    """PR7"""
    server, api = quiet
    press(server, 1.0)
    with connect(api, url("q")) as stream:
        server.until(lambda: server.server.pressure.parked_total == 1)
        server.until(lambda: server.clock.waits)
        server.advance(1000)
        refused(stream.head(), 429, "throttled")
    refused(ask(api, url("none")), 404, "topic_not_found")
    press(server, 0.0)


def test_jobs_of_low_priority_are_held_back_under_pressure(start: Start) -> None:
    """WK6, PR5, PR6: with one advice per episode, and nothing is lost."""
    server = start()
    api = Client(server.address)
    api.create("low", type="queue", priority=-1)
    api.create("q", type="queue")
    with work(api, "low", max=9) as low, work(api, "q", max=9) as usual:
        for _ in range(2):
            press(server, 0.6)
            advice = low.expect("error")
            assert advice.data["code"] == 429 and advice.data["topics"] == ["low"]
            assert advice.data["retry_after_ms"] > 0
            api.write("low", 1)
            api.write("q", 1)
            seqs(usual, 1)
            press(server, 0.0)
            seqs(low, 1)


# --- failures of the log


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_failure_of_the_log_leaves_a_stream_working(start: Start, leases_durable: bool) -> None:
    """QU11, WK2, WK5: it is sent nothing that does not hold, and keeps what it has."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability="fsync", lease_ms=60_000, leases_durable=leases_durable)
    worker = Worker(api, "q")
    jobs(worker, 1)
    with work(api, "q", max=3) as stream:
        assert seqs(stream, 1) == [1]
        server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
        refused(api.post("/v0/topics/q", {"records": [{"data": 2}]}), 500, "internal")
        server.run(disk.hooks.clear)
        api.write("q", 3)
        assert [(event.data["$seq"], event.data["data"]) for event in taken(stream, 1)] == [(2, 3)]
        assert worker.counts() == (0, 2, 0)
        server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
        refused(api.post("/v0/topics/q/ack", {"node": "w", "seqs": [1]}), 500, "internal")
        server.run(disk.hooks.clear)
        assert [(event.data["$seq"], event.data["deliveries"]) for event in taken(stream, 1)] == [(1, 2)]
        assert worker.ack(1, 2)["acked"] == 2
