"""Jobs that are moved to another topic (QU25)."""

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.worker import Worker, dead_letters, jobs
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk


def move(api: Client, topic: str, seqs: list[int], dest: str) -> tuple[list[int], list[int]]:
    told = ok(api.post(f"/v0/topics/{topic}/move", {"seqs": seqs, "dest": dest}))
    assert (told["topic"], told["dest"]) == (topic, dest)
    return told["moved"], told["skipped"]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("there", [None, "ephemeral", "disk", "fsync"])
def test_a_job_is_moved_as_it_is(api: Client, topic: str, durability: str, there: str | None) -> None:
    """QU25: whatever the classes of the two, and if the second is absent, too."""
    dest = f"{topic}.later"
    if there is not None:
        api.create(dest, durability=there)
    api.create(topic, type="queue", durability=durability)
    api.write_records(topic, {"data": [1], "tag": "t", "node": "n", "meta": {"a": 1.0}}, {"data": 2}, {"data": 3})
    assert move(api, topic, [1, 3, 3, 9], dest) == ([1, 3], [9])
    assert dead_letters(api, dest) == [{"data": [1], "$tag": "t", "$node": "n", "meta": {"a": 1.0}}, {"data": 3}]
    assert Worker(api, topic).counts() == (1, 0, 0)
    assert move(api, topic, [1, 3], dest) == ([], [1, 3]), "none is moved twice"
    assert api.diff(topic)["tombstone"] is None
    state = api.state(topic)
    assert (state["deleted_total"], state["lost_total"]) == (2, 0)


def test_jobs_that_a_worker_holds_stay_with_it(start: Start) -> None:
    """QU25: until their lease has ended."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    worker = Worker(api, "q")
    jobs(worker, 3)
    assert worker.seqs(1, lease_ms=1000) == [1]
    assert move(api, "q", [1, 2], "other") == ([2], [1])
    worker.ack(1)
    assert worker.seqs(1, lease_ms=1000) == [3]
    server.advance(1_001)
    assert move(api, "q", [3], "other") == ([3], [])
    assert worker.counts() == (0, 0, 0)


def test_a_delayed_job_is_moved_at_once(api: Client, topic: str) -> None:
    """QU25"""
    api.create(topic, type="queue")
    worker = Worker(api, topic)
    jobs(worker, 1)
    worker.claim(1)
    worker.nack(1, delay_ms=60_000)
    assert move(api, topic, [1], f"{topic}-b") == ([1], [])
    assert worker.counts() == (0, 0, 0)


def test_what_cannot_be_moved_is_refused(api: Client, topic: str) -> None:
    """QU25, CV12, QU1"""
    target = f"/v0/topics/{topic}/move"
    refused(api.post(target, {"seqs": [1], "dest": "x"}), 404, "topic_not_found")
    api.create(topic, type="queue")
    jobs(Worker(api, topic), 1)
    for body in (
        {},
        {"seqs": [1]},
        {"seqs": [], "dest": "x"},
        {"seqs": [1], "dest": "-x"},
        {"seqs": ["1"], "dest": "x"},
    ):
        refused(api.post(target, body), 400, "invalid_request", None)
    refused(api.post(target, {"seqs": [1], "dest": topic}), 400, "invalid_request", None)
    refused(api.post(target, {"seqs": [2**64], "dest": "x"}), 400, "invalid_request", None)
    refused(api.post(target, {"seqs": [1] * 1001, "dest": "x"}), 400, "batch_too_large", None)
    api.create(f"{topic}-log")
    refused(api.post(f"/v0/topics/{topic}-log/move", {"seqs": [1], "dest": "x"}), 409, "not_a_queue")
    api.create(f"{topic}-full", cap_records=1, discard="reject")
    api.write(f"{topic}-full", 0)
    refused(api.post(target, {"seqs": [1], "dest": f"{topic}-full"}), 422, "topic_full")
    assert Worker(api, topic).counts() == (1, 0, 0)


def test_as_many_are_moved_as_there_is_room_for(api: Client, topic: str) -> None:
    """QU25"""
    api.create(topic, type="queue")
    jobs(Worker(api, topic), 300)
    api.create(f"{topic}-b", cap_records=150, discard="reject")
    moved, skipped = move(api, topic, list(range(1, 301)), f"{topic}-b")
    assert (len(moved), len(skipped)) == (150, 150)
    assert [one["data"] for one in dead_letters(api, f"{topic}-b")] == list(range(1, 151))
    assert Worker(api, topic).counts() == (150, 0, 0)


@pytest.mark.parametrize("there", ["ephemeral", "disk", None])
def test_an_ephemeral_queue_moves_into_ephemeral_topics_only(api: Client, topic: str, there: str | None) -> None:
    """QU25: a job is handed out until it is gone, and it may not be in both."""
    api.create(topic, type="queue", durability="ephemeral")
    jobs(Worker(api, topic), 1)
    if there is not None:
        api.create(f"{topic}-b", durability=there)
    if there == "ephemeral":
        assert move(api, topic, [1], f"{topic}-b") == ([1], [])
    else:
        refused(api.post(f"/v0/topics/{topic}/move", {"seqs": [1], "dest": f"{topic}-b"}), 400, "invalid_request", None)
        assert Worker(api, topic).counts() == (1, 0, 0)


@pytest.mark.parametrize("there", ["ephemeral", "disk", "fsync"])
def test_a_move_whose_frame_fails_leaves_the_job_in_one_topic(start: Start, there: str) -> None:
    """QU25, G11"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("b", durability=there)
    api.create("q", type="queue")
    worker = Worker(api, "q")
    jobs(worker, 1)
    server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
    refused(api.post("/v0/topics/q/move", {"seqs": [1], "dest": "b"}), 500, "internal", None)
    assert (worker.counts(), dead_letters(api, "b")) == ((1, 0, 0), [])
    server.run(disk.hooks.clear)
    assert move(api, "q", [1], "b") == ([1], [])
    assert ([one["data"] for one in dead_letters(api, "b")], worker.counts()) == ([1], (0, 0, 0))


@pytest.mark.parametrize(("durability", "there"), [("disk", "disk"), ("disk", "fsync"), ("fsync", "disk")])
def test_a_move_outlives_a_crash(start: Start, durability: str, there: str) -> None:
    """QU25, DU3: what was answered holds."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("b", durability=there)
    api.create("q", type="queue", durability=durability)
    jobs(Worker(api, "q"), 2)
    assert move(api, "q", [1], "b") == ([1], [])
    for kind, left in disk.aftermaths():
        later = Client(start(disk=left).address)
        if kind.startswith("kill") or (durability, there) == ("fsync", "fsync"):
            assert [one["data"] for one in dead_letters(later, "b")] == [1], kind
            assert Worker(later, "q").counts() == (1, 0, 0), kind
        both = [one["data"] for one in (*dead_letters(later, "b"), *dead_letters(later, "q"))]
        assert len(both) == len(set(both)), "a job is in one topic only"


def test_a_key_names_both_topics(start: Start) -> None:
    """QU25, AU6, AU8"""
    client = Client(start(api_keys="root,some::acme,reader:read,writer:write,wd:write+delete").address)
    root = client.with_key("root")
    root.create("acme-q", type="queue")
    root.write("acme-q", 1, 2)
    body = {"seqs": [1], "dest": "other"}
    refused(client.with_key("some").post("/v0/topics/acme-q/move", body), 403, "forbidden", None)
    for key in ("reader", "writer"):
        refused(client.with_key(key).post("/v0/topics/acme-q/move", body), 403, "forbidden", None)
    assert move(client.with_key("wd"), "acme-q", [1], "other") == ([1], [])
    assert move(client.with_key("some"), "acme-q", [2], "acme-b") == ([2], [])
