"""Queues across a restart and a failure of the log: which leases, delays and jobs are there afterwards."""

import pytest

from tests.api.clients.transcript import Client, ok
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk

CLASSES = ["memory", "disk", "fsync"]


# --- restarts


@pytest.mark.parametrize("how", ["gracefully", "kill"])
@pytest.mark.parametrize("durability", CLASSES)
def test_leases_that_are_not_durable_end_with_a_restart(start: Start, durability: str, how: str) -> None:
    """QU18: and after a graceful stop the delivery counts are kept."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability=durability)
    worker = Worker(api, "q")
    jobs(worker, 4)
    worker.claim(3)
    worker.nack(2, delay_ms=10_000)
    if how == "gracefully":
        server.close()
    again = Worker(Client(start(disk=disk.kill()).address), "q")
    assert again.counts() == (4, 0, 0)
    deliveries = [job["deliveries"] for job in again.claim(9)["claimed"]]
    assert deliveries == ([2, 2, 2, 1] if how == "gracefully" else [1, 1, 1, 1])


@pytest.mark.parametrize("how", ["gracefully", "kill", "checkpoint and kill"])
@pytest.mark.parametrize("durability", CLASSES)
def test_durable_leases_are_restored_as_they_were(start: Start, durability: str, how: str) -> None:
    """QU18, QU5: with their holder, deadline and number; so are delays."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability=durability, leases_durable=True, lease_ms=10_000)
    worker = Worker(api, "q")
    jobs(worker, 7)
    first = worker.claim(5)["claimed"]
    worker.ack(1)
    worker.nack(2, delay_ms=5000)
    worker.nack(3)
    worker.extend(4, lease_ms=20_000)
    if how == "gracefully":
        server.close()
    elif how == "checkpoint and kill":
        server.do(server.server.engine.checkpoint())
        Worker(api, "q", "late").claim(1, lease_ms=100)
    server = start(disk=disk.kill())
    server.run(lambda: server.clock.set(1_700_000_000_000))
    again = Worker(Client(server.address), "q")
    is_late = how == "checkpoint and kill"
    assert again.counts() == (2 if is_late else 3, 3 if is_late else 2, 1)
    tokens = [first[3]["lease_id"], first[4]["lease_id"]]
    assert again.extend(4, 5, lease_ms=60_000, lease_ids=tokens)["extended"] == 2
    claimed = again.claim(9)["claimed"]
    expected = [(6, 1), (7, 1)] if is_late else [(3, 2), (6, 1), (7, 1)]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == expected
    server.advance(5001)
    claimed = again.claim(9)["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(2, 2), *([(3, 3)] if is_late else [])]


def test_no_job_is_stranded_behind_a_checkpoint(start: Start) -> None:
    """S11, QU5, QU18"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", leases_durable=True, lease_ms=1000)
    worker = Worker(api, "q")
    jobs(worker, 6)
    assert worker.seqs(5) == [1, 2, 3, 4, 5]
    server.do(server.server.engine.checkpoint())
    assert worker.seqs(1) == [6]
    server = start(disk=disk.kill())
    again = Worker(Client(server.address), "q")
    assert again.counts() == (0, 6, 0)
    server.advance(1001)
    assert again.seqs(9) == [1, 2, 3, 4, 5, 6]


def test_leases_switched_to_not_durable_are_not_restored(start: Start) -> None:
    """QU18"""
    disk = MemoryDisk()
    api = Client(start(disk=disk).address)
    api.create("q", type="queue", leases_durable=True)
    worker = Worker(api, "q")
    jobs(worker, 2)
    worker.claim(2)
    ok(api.put("/v0/topics/q", {"leases_durable": False}), 200)
    assert worker.counts() == (0, 2, 0)
    assert Worker(Client(start(disk=disk.kill()).address), "q").counts() == (2, 0, 0)


# --- failures


def test_a_failing_claim_holds_nothing_and_other_leases_stay(start: Start) -> None:
    """QU11, QU3: no job that is validly leased is handed out twice."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability="fsync")
    api.create("r", type="queue", durability="fsync", leases_durable=True)
    for name in ("q", "r"):
        worker = Worker(api, name)
        jobs(worker, 3)
        held = worker.claim(1)["claimed"][0]["lease_id"]
        server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
        body = {"records": [{"data": 4}]}
        with api.connect() as writing, api.connect() as claiming:
            writing.send(api.request("POST", f"/v0/topics/{name}", body))
            claiming.send(api.request("POST", f"/v0/topics/{name}/claim", {"node": "x", "max": 2}))
            writing.reply(), claiming.reply()
        server.run(disk.hooks.clear)
        assert worker.ack(1, lease_ids=[held])["acked"] == 1
