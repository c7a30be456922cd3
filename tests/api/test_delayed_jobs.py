"""Delayed jobs: when they can be claimed, and what is clamped, refused, deleted and kept across a restart."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.worker import Worker
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk

CLASSES = ["memory", "disk", "fsync"]


def test_a_job_written_with_a_delay_is_claimable_when_it_is_over(start: Start) -> None:
    """QU3, QU16: an addition; it is counted as delayed until then."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    now = server.clock.now_ms()
    api.write_records(
        "q",
        {"data": 1, "delay_ms": 1000},
        {"data": 2},
        {"data": 3, "deliver_at": now + 500},
        {"data": 4, "delay_ms": 0},
        {"data": 5, "deliver_at": now - 1},
    )
    worker = Worker(api, "q")
    assert worker.counts() == (3, 0, 2)
    assert worker.seqs(9) == [2, 4, 5]
    assert api.data("q") == [1, 2, 3, 4, 5], "a reader sees them all"
    server.advance(499)
    assert worker.seqs(9) == []
    server.advance(1)
    assert worker.seqs(9) == [3]
    server.advance(500)
    claimed = worker.claim(9)["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 1)]
    assert worker.counts() == (0, 5, 0)


def test_a_delayed_job_is_handed_out_once_though_it_comes_with_the_last_one_given_back(start: Start) -> None:
    """QU4, G11"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    api.write_records("q", {"data": 1}, {"data": 2, "delay_ms": 1000})
    worker, other = Worker(api, "q"), Worker(api, "q", "other")
    assert worker.seqs(9) == [1]
    assert other.seqs(9) == []
    worker.nack(1)
    server.advance(1000)
    assert worker.seqs(9) == [1, 2]
    assert other.seqs(9) == []
    assert worker.counts() == (0, 2, 0)


def test_a_job_whose_delay_is_over_comes_in_its_turn(start: Start) -> None:
    """QU5: fresh ones come after those given back, and ascending."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=100_000)
    worker = Worker(api, "q")
    api.write_records("q", {"data": 1, "delay_ms": 100}, {"data": 2}, {"data": 3}, {"data": 4, "delay_ms": 50})
    assert worker.seqs(2) == [2, 3]
    server.advance(100)
    api.write("q", 5)
    worker.nack(3)
    assert worker.seqs(1) == [3]
    assert worker.seqs(2) == [1, 4]
    assert worker.seqs(2) == [5]


def test_a_job_whose_delay_is_over_has_one_holder_if_it_is_claimed_with_one_that_was_given_back(start: Start) -> None:
    """G11, QU3"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=100_000)
    worker = Worker(api, "q")
    api.write_records("q", {"data": 1}, {"data": 2, "delay_ms": 100}, {"data": 3})
    assert worker.seqs(9) == [1, 3] and worker.seqs(9) == []
    worker.nack(1)
    server.advance(100)
    assert worker.seqs(2) == [1, 2]
    assert Worker(api, "q", "other").seqs(9) == []


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("how", ["kill", "checkpoint and kill"])
def test_delays_of_written_jobs_are_kept_across_a_restart(start: Start, durability: str, how: str) -> None:
    """QU18: whatever leases_durable says."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability=durability)
    api.write_records("q", {"data": 1, "delay_ms": 1000}, {"data": 2})
    if how != "kill":
        server.do(server.server.engine.checkpoint())
    server = start(disk=disk.kill())
    again = Worker(Client(server.address), "q")
    assert (again.counts(), again.seqs(9)) == ((1, 0, 1), [2])
    server.advance(1000)
    assert again.seqs(9) == [1]


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"delay_ms": -1}, "records[0].delay_ms"),
        ({"delay_ms": "1"}, "records[0].delay_ms"),
        ({"delay_ms": None}, "records[0].delay_ms"),
        ({"deliver_at": 1.5}, "records[0].deliver_at"),
        ({"deliver_at": None}, "records[0].deliver_at"),
        ({"deliver_at": 2**64}, "records[0].deliver_at"),
        ({"delay_ms": 1, "deliver_at": 1}, "records[0] has delay_ms and deliver_at"),
    ],
    ids=str,
)
def test_a_delay_is_checked(api: Client, topic: str, record: dict[str, Any], place: str) -> None:
    """CV18, CV19"""
    api.create(topic, type="queue")
    reply = api.post(f"/v0/topics/{topic}", {"records": [{"data": 1} | record, {"data": 2}]})
    assert place in refused(reply, 400, "invalid_request", None)
    assert api.state(topic)["count"] == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_log_takes_no_delay(api: Client, topic: str, count: int) -> None:
    """A delay that would be ignored is refused, and nothing is created."""
    records = [{"data": 1}] * (count - 1) + [{"data": 1, "delay_ms": 5}]
    reply = api.post(f"/v0/topics/{topic}", {"records": records})
    assert "delay_ms" in refused(reply, 409, "not_a_queue", {"topic": topic})
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    api.write(topic, 1)
    refused(api.post(f"/v0/topics/{topic}", {"records": records}), 409, "not_a_queue", {"topic": topic})
    assert api.state(topic)["count"] == 1


def test_long_delays_are_clamped_and_times_are_not(start: Start) -> None:
    """CV18"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    api.write_records("q", {"data": 1, "delay_ms": 10**30}, {"data": 2, "deliver_at": 2**64 - 1})
    server.advance(86_400_000)
    worker = Worker(api, "q")
    assert (worker.seqs(9), worker.counts()) == ([1], (0, 1, 1))


def test_a_delayed_job_can_be_deleted_and_does_not_carry_its_delay_away(start: Start) -> None:
    """QU17, QU14"""
    server = start()
    api = Client(server.address)
    api.create("dead", type="queue")
    api.create("q", type="queue", max_deliveries=1, dead_letter="dead")
    api.write_records("q", {"data": 1, "delay_ms": 1000}, {"data": 2, "delay_ms": 1000, "tag": "x"})
    ok(api.post("/v0/topics/q/delete", {"match": "x"}), 200)
    worker = Worker(api, "q")
    assert worker.counts() == (0, 0, 1)
    server.advance(1000)
    assert worker.seqs(9) == [1]
    worker.nack(1)
    worker.claim()
    assert Worker(api, "dead").seqs(9) == [1]


def test_jobs_that_become_claimable_at_once_are_all_handed_out_in_order(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QU3, QU5, QU8, LM10: their ends are carried out in steps, and nobody who claims can tell."""
    monkeypatch.setattr("topics.core.queue.jobs.STEP_JOBS_MAX", 4)
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=1000)
    api.write_records("q", *({"data": n, "delay_ms": 1000} for n in range(30)))
    worker = Worker(api, "q")
    assert worker.counts() == (0, 0, 30)
    for _ in range(2):  # the delays end, then the leases
        server.advance(1001)
        found = [seq for _ in range(10) for seq in worker.seqs(3)]
        assert found == list(range(1, 31))
        assert worker.counts() == (0, 30, 0)
