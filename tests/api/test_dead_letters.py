"""Dead letters: jobs delivered too often, what a failure leaves of them, redrive."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.worker import Worker, dead_letters, jobs, redrive
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk

CLASSES = ["memory", "disk", "fsync"]


# --- too many deliveries


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("dead", [None, "ephemeral", "disk", "fsync"])
def test_a_job_delivered_too_often_goes_to_the_dead_letter_topic(
    api: Client, topic: str, durability: str, dead: str | None
) -> None:
    """QU14, QU15, QU16, DU6: whatever the classes of the two, and if the second is absent, too."""
    dead_letter = f"{topic}.dead"
    if dead is not None:
        api.create(dead_letter, durability=dead)
    api.create(topic, type="queue", durability=durability, max_deliveries=2, dead_letter=dead_letter)
    api.write_records(topic, {"data": [1], "tag": "t", "node": "n", "meta": {"a": 1.0}}, {"data": 2})
    worker = Worker(api, topic)
    for deliveries in (1, 2):
        claimed = worker.claim(2)["claimed"]
        assert [job["deliveries"] for job in claimed] == [deliveries] * 2
        worker.nack(1, 2)
    assert worker.claim(5) == {"topic": topic, "claimed": [], "count": 0, "ready": 0, "paused": False}
    state = api.state(topic)
    assert (state["count"], state["queue"]) == (
        0,
        {"ready": 0, "in_flight": 0, "dead_lettered": 2, "delayed": 0},
    )
    stamp = {"$dead_letter_from": topic, "$dead_letter_deliveries": "2"}
    assert dead_letters(api, dead_letter) == [
        {"data": [1], "$tag": "t", "$node": "n", "meta": {"a": 1.0, **stamp, "$dead_letter_src_seq": "1"}},
        {"data": 2, "meta": {**stamp, "$dead_letter_src_seq": "2"}},
    ]
    assert api.diff(topic)["tombstone"] is None
    assert api.state(dead_letter)["config"]["durability"] == dead or (dead is None and "disk")


@pytest.mark.parametrize("config", [{"max_deliveries": 1}, {"dead_letter": "elsewhere"}], ids=str)
def test_without_a_limit_or_a_topic_for_it_jobs_are_delivered_for_ever(
    api: Client, topic: str, config: dict[str, Any]
) -> None:
    """QU14"""
    api.create(topic, type="queue", **config)
    worker = Worker(api, topic)
    jobs(worker, 1)
    for deliveries in range(1, 6):
        assert worker.claim()["claimed"][0]["deliveries"] == deliveries
        worker.nack(1)


def test_a_pass_moves_only_jobs_that_it_comes_across(api: Client, topic: str) -> None:
    """QU14: a job that would not be handed out is not moved."""
    api.create(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    worker = Worker(api, topic)
    jobs(worker, 3)
    worker.claim(2)
    ok(api.put(f"/v0/topics/{topic}", {"max_deliveries": 2, "dead_letter": f"{topic}.dead"}), 200)
    worker.nack(2)
    worker.claim(1)
    worker.nack(1, 2)
    assert worker.seqs(1) == [1]
    assert api.state(topic)["queue"]["dead_lettered"] == 0
    assert worker.seqs(1) == [3]
    assert api.state(topic)["queue"]["dead_lettered"] == 1


def test_a_raised_limit_frees_jobs_that_were_exhausted(api: Client, topic: str) -> None:
    """QU14, TP5"""
    dead = f"{topic}.dead"
    api.create(dead, discard="reject", cap_records=1)
    api.write(dead, 0)
    api.create(topic, type="queue", max_deliveries=1, dead_letter=dead)
    worker = Worker(api, topic)
    jobs(worker, 1)
    worker.claim()
    worker.nack(1)
    assert (worker.seqs(), worker.counts()) == ([], (1, 0, 0))
    ok(api.put(f"/v0/topics/{topic}", {"max_deliveries": 2, "dead_letter": dead}), 200)
    assert worker.claim()["claimed"][0]["deliveries"] == 2


def full(api: Client, dead: str) -> Callable[[], Any]:
    """A dead-letter topic without room; the call makes some."""
    api.create(dead, discard="reject", cap_records=1)
    api.write(dead, 0)
    return lambda: api.post(f"/v0/topics/{dead}/delete", {"before_seq": 99})


def narrow(api: Client, dead: str) -> Callable[[], Any]:
    api.create(dead, cap_bytes=8)
    return lambda: api.put(f"/v0/topics/{dead}", {"cap_bytes": 1000})


@pytest.mark.parametrize("refusing", [full, narrow])
@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_a_job_that_cannot_be_dead_lettered_is_given_to_nobody_and_tried_again(
    api: Client, topic: str, refusing: Callable[[Client, str], Callable[[], Any]], durability: str
) -> None:
    """QU15"""
    dead = f"{topic}.dead"
    make_room = refusing(api, dead)
    api.create(topic, type="queue", durability=durability, max_deliveries=1, dead_letter=dead)
    worker = Worker(api, topic)
    jobs(worker, 2)
    worker.claim(1)
    worker.nack(1)
    assert worker.seqs(1) == [2]
    assert (worker.seqs(5), worker.counts()) == ([], (1, 1, 0))
    make_room()
    assert (worker.seqs(5), worker.counts()) == ([], (0, 1, 0))
    assert [letter["data"] for letter in dead_letters(api, dead)] == [1]


def test_a_dead_letter_topic_counts_against_max_topics(start: Start) -> None:
    """QU15, LM1"""
    api = Client(start(max_topics=1).address)
    api.create("q", type="queue", max_deliveries=1, dead_letter="dead")
    worker = Worker(api, "q")
    jobs(worker, 1)
    worker.claim()
    worker.nack(1)
    assert (worker.seqs(), worker.counts()) == ([], (1, 0, 0))
    refused(api.get("/v0/topics/dead"), 404, "topic_not_found")


def test_a_dead_letter_may_be_a_job_of_another_queue(api: Client, topic: str) -> None:
    """QU14: and what it says of where it came from is replaced there."""
    names = [topic, f"{topic}.2", f"{topic}.3"]
    for name, dead in zip(names, [*names[1:], None], strict=True):
        api.create(name, type="queue", max_deliveries=1, dead_letter=dead)
    api.write_records(topic, {"data": 1, "meta": {"a": 1, "a2": 2}})
    for name in names[:2]:
        worker = Worker(api, name)
        worker.claim()
        worker.nack(1)
        worker.claim()
    meta = Worker(api, names[2]).claim()["claimed"][0]["meta"]
    assert meta == {
        "a": 1,
        "a2": 2,
        "$dead_letter_from": names[1],
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
    }


def test_meta_of_a_dead_letter_may_pass_the_limits_of_a_write(start: Start) -> None:
    """QU14"""
    api = Client(start(max_meta_bytes=20).address)
    api.create("q", type="queue", max_deliveries=1, dead_letter="dead")
    meta = {f"{key}": 1 for key in range(3)}
    api.write_records("q", {"data": 1, "meta": meta})
    worker = Worker(api, "q")
    worker.claim()
    worker.nack(1)
    worker.claim()
    assert dead_letters(api, "dead")[0]["meta"].items() > meta.items()


# --- restarts and failures


@pytest.mark.parametrize("durability", CLASSES)
def test_dead_letters_are_counted_across_a_restart(start: Start, durability: str) -> None:
    """QU18, QU16, DU6"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("q", type="queue", durability=durability, max_deliveries=1, dead_letter="dead")
    worker = Worker(api, "q")
    jobs(worker, 3)
    worker.claim(2)
    worker.nack(1, 2)
    worker.claim(1)
    assert api.state("q")["queue"]["dead_lettered"] == 2
    again = Client(start(disk=disk.kill()).address)
    assert again.state("q")["queue"] == {"ready": 1, "in_flight": 0, "dead_lettered": 2, "delayed": 0}
    assert [letter["data"] for letter in dead_letters(again, "dead")] == [1, 2]


def test_a_failing_dead_letter_keeps_its_job_for_a_later_pass(start: Start) -> None:
    """S12, QU15"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("dead", durability="fsync")
    api.create("q", type="queue", durability="fsync", max_deliveries=1, dead_letter="dead")
    worker = Worker(api, "q")
    jobs(worker, 2)
    worker.claim(1)
    worker.nack(1)
    server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
    refused(api.post("/v0/topics/q/claim", {"node": "w", "max": 1}), 500, "internal", None)
    assert (worker.counts(), dead_letters(api, "dead")) == ((2, 0, 0), [])
    assert worker.seqs(5) == [2]
    assert [letter["data"] for letter in dead_letters(api, "dead")] == [1]
    assert api.state("q")["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 1, "delayed": 0}


@pytest.mark.parametrize("dead", ["ephemeral", "disk"])
@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_a_dead_letter_whose_frame_fails_is_in_one_topic_only(start: Start, durability: str, dead: str) -> None:
    """QU15, G11: the job is not lost, and there is one of it in the end."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("dead", durability=dead)
    api.create("q", type="queue", durability=durability, max_deliveries=1, dead_letter="dead")
    worker = Worker(api, "q")
    jobs(worker, 1)
    worker.claim(1)
    worker.nack(1)
    server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
    reply = api.post("/v0/topics/q/claim", {"node": "w"})
    if durability == dead == "ephemeral":
        assert ok(reply)["count"] == 0
    else:
        refused(reply, 500, "internal", None)
        assert (worker.counts(), dead_letters(api, "dead")) == ((1, 0, 0), [])
    server.run(disk.hooks.clear)
    assert worker.seqs(5) == []
    assert ([letter["data"] for letter in dead_letters(api, "dead")], worker.counts()) == ([1], (0, 0, 0))
    assert api.state("q")["queue"]["dead_lettered"] == 1


# --- redrive


def bury(api: Client, topic: str, dead: str, *records: dict[str, Any], **config: Any) -> Worker:
    """A queue all of whose jobs were dead-lettered."""
    api.create(topic, type="queue", max_deliveries=1, dead_letter=dead, **config)
    api.write_records(topic, *records)
    worker = Worker(api, topic)
    seqs = worker.seqs(1000)
    worker.nack(*seqs)
    worker.claim()
    assert worker.counts() == (0, 0, 0)
    return worker


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("dead", ["ephemeral", "disk", "fsync"])
def test_dead_letters_become_jobs_again(api: Client, topic: str, durability: str, dead: str) -> None:
    """An addition: with what they were, and as if never delivered."""
    dead_letter = f"{topic}.dead"
    api.create(dead_letter, durability=dead)
    api.write(dead_letter, "written there by hand")
    records = [{"data": 1, "tag": "a", "node": "n", "meta": {"m": 1}}, {"data": 2}]
    worker = bury(api, topic, dead_letter, *records, durability=durability)
    bury(api, f"{topic}-other", dead_letter, {"data": 3})
    assert redrive(api, topic) == {"topic": topic, "dead_letter": dead_letter, "redriven": 2, "remaining": 0}
    assert [letter["data"] for letter in dead_letters(api, dead_letter)] == ["written there by hand", 3]
    assert dead_letters(api, topic) == [{"data": 1, "$tag": "a", "$node": "n", "meta": {"m": 1}}, {"data": 2}]
    assert [job["deliveries"] for job in worker.claim(9)["claimed"]] == [1, 1]
    assert redrive(api, topic)["redriven"] == 0
    assert api.state(topic)["queue"]["dead_lettered"] == 2, "a total: it does not fall"


def test_a_redrive_goes_by_tag_and_number(api: Client, topic: str) -> None:
    """QU24: `match` and `max`."""
    records = [{"data": number, "tag": f"{'a' if number % 2 else 'b'}:{number}"} for number in range(1, 8)]
    worker = bury(api, topic, f"{topic}.dead", *records)
    answer = redrive(api, topic, match=["tag", "Glob", "a:*"], max=3)
    assert (answer["redriven"], answer["remaining"]) == (3, 1)
    assert [job["data"] for job in worker.claim(9)["claimed"]] == [1, 3, 5]
    answer = redrive(api, topic, match="b:4")
    assert (answer["redriven"], answer["remaining"]) == (1, 0)
    assert redrive(api, topic, max=0) == {
        "topic": topic,
        "dead_letter": f"{topic}.dead",
        "redriven": 0,
        "remaining": 3,
    }
    assert redrive(api, topic)["redriven"] == 3


def test_a_redrive_stops_where_the_queue_is_full(api: Client, topic: str) -> None:
    """QU24, WR11: what was moved stays moved; if that is nothing, it is refused."""
    dead = f"{topic}.dead"
    bury(api, topic, dead, *({"data": number} for number in range(250)))
    ok(api.put(f"/v0/topics/{topic}", {"dead_letter": dead, "discard": "reject", "cap_records": 130}), 200)
    answer = redrive(api, topic)
    assert (answer["redriven"], answer["remaining"]) == (130, 120)
    refused(api.post(f"/v0/topics/{topic}/redrive", {}), 422, "topic_full")
    assert (api.state(topic)["count"], api.state(dead)["count"]) == (130, 120)


def test_a_redrive_is_refused_where_there_is_nothing_to_redrive_from(api: Client, topic: str) -> None:
    """QU24, QU1"""
    path = f"/v0/topics/{topic}/redrive"
    refused(api.post(path, {}), 404, "topic_not_found", {"topic": topic})
    api.create(topic, type="queue")
    refused(api.post(path, {}), 409, "no_dead_letter", {"topic": topic})
    api.create(f"{topic}-log", dead_letter="x")
    refused(api.post(f"/v0/topics/{topic}-log/redrive", {}), 409, "not_a_queue", {"topic": f"{topic}-log"})
    for body in ({"match": 1}, {"match": ["tag", "Glob", "x"]}, {"max": -1}, {"max": "1"}, {"max": None}):
        refused(api.post(path, body), 400, "invalid_request", None)
    ok(api.put(f"/v0/topics/{topic}", {"dead_letter": f"{topic}.dead"}), 200)
    assert redrive(api, topic)["redriven"] == 0
    refused(api.get(f"/v0/topics/{topic}.dead"), 404, "topic_not_found")


# --- routers


def test_dead_letters_and_redriven_jobs_are_forwarded(api: Client, topic: str) -> None:
    """QU14, RT10: a dead-letter topic may be the source of a router, and full."""
    dead, audit = f"{topic}.dead", f"{topic}.audit"
    api.create(dead, cap_records=1)
    ok(api.put(f"/v0/routers/{dead}", {"source": dead, "dest": audit}), 201)
    worker = bury(api, topic, dead, {"data": 1}, {"data": 2}, {"data": 3})
    assert [letter["data"] for letter in dead_letters(api, dead)] == [3]
    assert api.state(audit)["head_seq"] == 3
    assert redrive(api, topic)["redriven"] == 1
    assert [job["data"] for job in worker.claim(9)["claimed"]] == [3]
