"""Queues that are paused: nothing is handed out, all else goes on, and no worker is forgotten."""

from typing import Any

import pytest

from tests.api.clients.transcript import PERFORMANCE, Client, ok, refused
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from tests.api.test_claim_windows import Cohort
from tests.api.test_work import seqs, work
from topics.testing.disk import MemoryDisk
from topics.testing.server import ServerThread

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def turn(api: Client, topic: str, verb: str, body: Any = None) -> dict[str, Any]:
    return ok(api.post(f"/v0/topics/{topic}/{verb}", body), 200, PERFORMANCE)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_paused_queue_takes_everything_and_hands_out_nothing(api: Client, topic: str, durability: str) -> None:
    """QU23, QU16, CV11"""
    api.create(topic, type="queue", durability=durability, lease_ms=60_000)
    worker = Worker(api, topic)
    jobs(worker, 3)
    held = worker.claim(2)
    assert held["paused"] is False and api.state(topic)["paused"] is False
    assert turn(api, topic, "pause") == {"topic": topic, "paused": True}
    assert turn(api, topic, "pause", {}) == {"topic": topic, "paused": True}
    assert api.state(topic)["paused"] is True
    api.write(topic, 4)
    empty = {"topic": topic, "claimed": [], "count": 0, "paused": True}
    assert worker.claim(9) == empty | {"ready": 2}
    assert worker.ack(1)["acked"] == 1
    assert worker.extend(2)["extended"] == 1
    assert worker.nack(2)["nacked"] == 1
    assert worker.claim(9) == empty | {"ready": 3}
    assert worker.counts() == (3, 0, 0)
    assert turn(api, topic, "resume", {"later": 1}) == {"topic": topic, "paused": False}
    assert turn(api, topic, "resume") == {"topic": topic, "paused": False}
    assert worker.seqs(9) == [2, 3, 4]


def test_only_a_queue_can_be_paused(api: Client, topic: str) -> None:
    """QU23, QU1, ER4: and none is created. The state of a log does not speak of it."""
    api.create(f"{topic}-log")
    for verb in ("pause", "resume"):
        refused(api.post(f"/v0/topics/{topic}/{verb}"), 404, "topic_not_found", {"topic": topic})
        refused(api.post(f"/v0/topics/{topic}-log/{verb}"), 409, "not_a_queue", {"topic": f"{topic}-log"})
        refused(api.post(f"/v0/topics/{topic}-log/{verb}", b"[]"), 400, "invalid_request")
        refused(api.get(f"/v0/topics/{topic}-log/{verb}"), 405, "method_not_allowed")
    assert "paused" not in api.state(f"{topic}-log")
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_pausing_is_for_admins(start: Start) -> None:
    """QU23, AU6, AU8"""
    api = Client(start(api_keys="root,rwd:read+write+delete,near:admin:near").address)
    api.with_key("root").create("far", type="queue")
    for verb in ("pause", "resume"):
        refused(api.post(f"/v0/topics/far/{verb}"), 401, "unauthorized")
        for key in ("rwd", "near"):
            refused(api.with_key(key).post(f"/v0/topics/far/{verb}"), 403, "forbidden")
    assert api.with_key("root").state("far")["paused"] is False


@pytest.mark.parametrize("durability", CLASSES)
def test_a_pause_survives_a_put_and_ends_with_the_instance(api: Client, topic: str, durability: str) -> None:
    """QU23, TP5, TP12"""
    api.create(topic, type="queue", durability=durability)
    turn(api, topic, "pause")
    ok(api.put(f"/v0/topics/{topic}", {"durability": durability, "lease_ms": 500}))
    assert api.state(topic)["paused"] is True
    ok(api.put(f"/v0/topics/{topic}", {"durability": "disk" if durability != "disk" else "ephemeral"}))
    assert api.state(topic)["paused"] is True
    api.delete(f"/v0/topics/{topic}")
    api.create(topic, type="queue", durability=durability)
    assert api.state(topic)["paused"] is False


@pytest.mark.parametrize("how", ["gracefully", "kill", "checkpoint and kill"])
@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("verbs", [["pause"], ["pause", "resume"]], ids=" ".join)
def test_a_pause_survives_a_restart(start: Start, durability: str, how: str, verbs: list[str]) -> None:
    """QU23, DU3"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability=durability)
    for verb in verbs:
        turn(api, "q", verb)
        if how == "checkpoint and kill":
            server.do(server.server.engine.checkpoint())
    if how == "gracefully":
        server.close()
    api = Client(start(disk=disk.kill()).address)
    is_paused = verbs[-1] == "pause"
    assert api.state("q")["paused"] is is_paused
    api.write("q", 1)
    assert Worker(api, "q").claim()["count"] == (not is_paused)


def test_claims_of_a_window_wait_for_its_end_and_get_nothing(start: Start) -> None:
    """QU23, QU7: also those that came before the pause."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500)
    api.write("q", 1, 2)
    with Cohort(server, "q") as cohort:
        cohort.claim("a", 1)
        turn(api, "q", "pause")
        cohort.claim("b", 1)
        server.advance(499)
        assert cohort.waiting() == 2
        server.advance(1)
        answers = [ok(reply) for reply in cohort.replies()]
    assert [(answer["count"], answer["ready"], answer["paused"]) for answer in answers] == [(0, 2, True)] * 2
    with Cohort(server, "q") as cohort:
        cohort.claim("a", 1)
        turn(api, "q", "resume")
        server.advance(500)
        assert [ok(reply)["count"] for reply in cohort.replies()] == [1]


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("jitter_ms", [0, 500])
def test_a_stream_gets_no_jobs_while_its_queue_is_paused_and_all_when_it_goes_on(
    start: Start, durability: str, jitter_ms: int
) -> None:
    """QU23, WK2: a stream that came during the pause, too."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", durability=durability, claim_jitter_ms=jitter_ms, lease_ms=60_000)
    with work(api, "q", "early", max=2) as early:
        turn(api, "q", "pause")
        api.write("q", 1, 2, 3, 4)
        with work(api, "q", "late", max=2) as late:
            server.advance(5000)
            assert in_flight(api) == 0 and windows(server) == 0
            turn(api, "q", "resume")
            server.advance(jitter_ms)
            assert sorted(seqs(early, 2) + seqs(late, 2)) == [1, 2, 3, 4]
            turn(api, "q", "pause")
            Worker(api, "q", "early").ack(1, 2, 3, 4)
            Worker(api, "q", "late").ack(1, 2, 3, 4)
            api.write("q", 5)
            server.advance(5000)
            assert in_flight(api) == 0
            turn(api, "q", "resume")
            server.advance(jitter_ms)
            server.until(lambda: in_engine(server) == 1)


def test_a_job_that_becomes_claimable_during_a_pause_is_handed_out_after_it(start: Start) -> None:
    """QU23, QU8: a lease or delay that ends meanwhile does not wake anybody in vain, and is not forgotten."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=1000)
    api.write_records("q", {"data": 1}, {"data": 2, "delay_ms": 2000})
    assert Worker(api, "q", "other").seqs() == [1]
    with work(api, "q", max=2) as stream:
        turn(api, "q", "pause")
        server.advance(3000)
        assert Worker(api, "q").counts() == (2, 0, 0)
        turn(api, "q", "resume")
        assert seqs(stream, 2) == [1, 2]


def test_jobs_delivered_too_often_stay_while_their_queue_is_paused(api: Client, topic: str) -> None:
    """QU23, QU14: a pass that hands out nothing comes across none."""
    api.create(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    worker = Worker(api, topic)
    jobs(worker, 1)
    worker.claim()
    worker.nack(1)
    turn(api, topic, "pause")
    assert (worker.claim()["ready"], api.state(topic)["queue"]["dead_lettered"]) == (1, 0)
    turn(api, topic, "resume")
    assert (worker.claim()["ready"], api.state(topic)["queue"]["dead_lettered"]) == (0, 1)


def in_flight(api: Client) -> int:
    return int(api.state("q")["queue"]["in_flight"])


def in_engine(server: ServerThread) -> int:
    return len(server.server.engine.state.topics["q"].queue.leases)


def windows(server: ServerThread) -> int:
    """Windows that are open although nothing can come of them."""

    def count() -> int:
        return sum(crew.window is not None for crew in server.server.engine.workers.crews.by_id.values())

    return server.run(count)
