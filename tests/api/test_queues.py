"""Queues: claim, ack, nack, extend, removal, and who holds what."""

from typing import Any

import pytest

from tests.api.clients.transcript import PERFORMANCE, Client, ok, refused, tight
from tests.api.clients.worker import CLAIM_PERFORMANCE, Worker, jobs
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

CALLS = ("claim", "ack", "nack", "extend")
BODIES: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
}


@pytest.fixture
def worker(api: Client, topic: str) -> Worker:
    api.create(topic, type="queue", lease_ms=1000)
    return Worker(api, topic)


# --- refusals


@pytest.mark.parametrize("call", CALLS)
def test_only_a_queue_hands_out_jobs_and_none_is_created(api: Client, topic: str, call: str) -> None:
    """QU1, ER4"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}/{call}", BODIES[call]), 404, "topic_not_found", {"topic": topic})
    assert api.everything() == before
    api.write(topic, 1)
    refused(api.post(f"/v0/topics/{topic}/{call}", BODIES[call]), 409, "not_a_queue", {"topic": topic})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"node": ""},
        {"node": None},
        {"node": 1},
        {"node": "n" * 129},
        {"node": "é" * 65},
        {"node": "w", "max": -1},
        {"node": "w", "max": "1"},
        {"node": "w", "max": True},
        {"node": "w", "max": None},
        {"node": "w", "max": 1.5},
        {"node": "w", "lease_ms": -1},
        {"node": "w", "lease_ms": "1"},
    ],
    ids=str,
)
def test_a_claim_is_checked_before_the_topic(api: Client, topic: str, worker: Worker, body: dict[str, Any]) -> None:
    """QU2, CV18, CV19"""
    jobs(worker, 1)
    refused(api.post(f"/v0/topics/{topic}/claim", body), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}-none/claim", body), 400, "invalid_request", None)
    assert worker.counts() == (1, 0, 0)


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"node": ""}, "invalid_request"),
        ({"node": "n" * 129}, "invalid_request"),
        ({"seqs": []}, "invalid_request"),
        ({"seqs": None}, "invalid_request"),
        ({"seqs": 1}, "invalid_request"),
        ({"seqs": ["1"]}, "invalid_request"),
        ({"seqs": [-1]}, "invalid_request"),
        ({"seqs": [1.5]}, "invalid_request"),
        ({"seqs": [2**64]}, "invalid_request"),
        ({"seqs": list(range(1, 1002))}, "batch_too_large"),
        ({"lease_ids": []}, "invalid_request"),
        ({"lease_ids": ["", ""]}, "invalid_request"),
        ({"lease_ids": None}, "invalid_request"),
        ({"lease_ids": [None]}, "invalid_request"),
        ({"lease_ids": ["lease_"]}, "invalid_request"),
        ({"lease_ids": ["lease_xyz"]}, "invalid_request"),
        ({"lease_ids": ["7f3a9c"]}, "invalid_request"),
        ({"lease_ids": ["lease_7f "]}, "invalid_request"),
    ],
    ids=str,
)
def test_what_selects_jobs_is_checked_before_the_topic(
    worker: Worker, call: str, change: dict[str, Any], code: str
) -> None:
    """QU9, QU21, QU22"""
    jobs(worker, 1)
    worker.claim()
    for topic in (worker.topic, f"{worker.topic}-none"):
        refused(worker.api.post(f"/v0/topics/{topic}/{call}", BODIES[call] | change), 400, code, None)
    assert worker.counts() == (0, 1, 0)


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
@pytest.mark.parametrize("missing", ["node", "seqs"])
def test_node_and_seqs_are_needed(worker: Worker, call: str, missing: str) -> None:
    """QU9, QU22"""
    body = {name: value for name, value in BODIES[call].items() if name != missing}
    refused(worker.api.post(f"/v0/topics/{worker.topic}/{call}", body), 400, "invalid_request", None)


@pytest.mark.parametrize("lease_ms", [None, -1, "1", True], ids=str)
def test_an_extend_needs_a_length(worker: Worker, lease_ms: Any) -> None:
    """QU13, CV19"""
    body = {"node": "w", "seqs": [1], "lease_ms": lease_ms}
    refused(worker.api.post(f"/v0/topics/{worker.topic}/extend", body), 400, "invalid_request", None)
    refused(worker.api.post(f"/v0/topics/{worker.topic}/extend", {"node": "w", "seqs": [1]}), 400, "invalid_request")


@pytest.mark.parametrize("call", CALLS)
def test_a_call_needs_a_json_object(worker: Worker, call: str) -> None:
    """CV2, CV3"""
    path = f"/v0/topics/{worker.topic}/{call}"
    refused(worker.api.post(path), 415, "unsupported_media_type", None)
    refused(worker.api.post(path, b""), 400, "invalid_request", None)
    refused(worker.api.post(path, b"[]"), 400, "invalid_request", None)
    refused(worker.api.post(path, b"{}", "Content-Type: text/plain"), 415, "unsupported_media_type", None)


# --- claim


def test_a_claim_shows_each_job_with_its_lease(api: Client, server: ServerThread, topic: str, worker: Worker) -> None:
    """QU4, QU6, QU16, A.12: and without the node that wrote it."""
    api.write_records(
        topic,
        {"data": {"resize": 256}, "tag": "acme:41", "node": "writer", "meta": {"a": 1}},
        {"data": None},
    )
    now = server.clock.now_ms()
    reply = api.post(f"/v0/topics/{topic}/claim", {"node": "w", "max": 5})
    assert tight(reply.body)
    answer = ok(reply, 200, CLAIM_PERFORMANCE)
    first, second = answer["claimed"]
    for job in (first, second):
        assert job.pop("lease_id").startswith("lease_") and job.pop("$ts") == now
    assert first == {
        "$seq": 1,
        "deadline": now + 1000,
        "$tag": "acme:41",
        "deliveries": 1,
        "data": {"resize": 256},
        "meta": {"a": 1},
    }
    assert second == {"$seq": 2, "deadline": now + 1000, "deliveries": 1, "data": None}
    assert list(answer) == ["topic", "claimed", "count", "ready", "paused"]
    assert (answer["topic"], answer["count"], answer["ready"]) == (topic, 2, 0)


def test_lease_ids_are_hex_and_new_for_each_delivery(worker: Worker) -> None:
    """QU4"""
    jobs(worker, 3)
    seen = set()
    for _ in range(4):
        for job in worker.claim(3)["claimed"]:
            assert set(job["lease_id"].removeprefix("lease_")) <= set("0123456789abcdef")
            seen.add(job["lease_id"])
        worker.nack(1, 2, 3)
    assert len(seen) == 12


@pytest.mark.parametrize(("max", "count"), [(0, 1), (1, 1), (3, 3), (2000, 10), (10**30, 10)])
def test_max_is_the_most_and_fewer_is_no_error(worker: Worker, max: int, count: int) -> None:
    """QU2, QU4"""
    jobs(worker, 10)
    answer = worker.claim(max)
    assert (answer["count"], answer["ready"]) == (count, 10 - count)
    assert [job["$seq"] for job in answer["claimed"]] == list(range(1, count + 1))


def test_max_claim_bounds_a_claim_and_the_seqs_of_a_call(start: Start, topic: str) -> None:
    """QU2, QU21"""
    api = Client(start(max_claim=3).address)
    api.create(topic, type="queue")
    worker = Worker(api, topic)
    jobs(worker, 5)
    assert worker.seqs(100) == [1, 2, 3]
    body = {"node": "w", "seqs": [1, 2, 3, 4]}
    refused(api.post(f"/v0/topics/{topic}/ack", body), 400, "batch_too_large", None)
    assert worker.ack(1, 2, 3)["acked"] == 3


@pytest.mark.parametrize(("asked", "given"), [(None, 1000), (500, 500), (0, 100), (1, 100), (10**30, 86_400_000)])
def test_a_lease_is_as_long_as_asked_within_its_bounds(
    server: ServerThread, worker: Worker, asked: int | None, given: int
) -> None:
    """QU2, CV19: null means the topic's own."""
    jobs(worker, 1)
    assert worker.claim(1, lease_ms=asked)["claimed"][0]["deadline"] == server.clock.now_ms() + given


def test_nothing_to_claim_is_an_empty_answer(worker: Worker) -> None:
    """QU4"""
    assert worker.claim(5) == {"topic": worker.topic, "claimed": [], "count": 0, "ready": 0, "paused": False}


def test_a_leased_job_is_given_to_nobody_else(api: Client, topic: str, worker: Worker) -> None:
    """QU3, QU16"""
    jobs(worker, 3)
    assert worker.seqs(2) == [1, 2]
    other = Worker(api, topic, "other")
    assert other.seqs(5) == [3]
    assert worker.seqs(5) == []
    assert worker.counts() == (0, 3, 0)


def test_jobs_given_back_come_before_fresh_ones(worker: Worker) -> None:
    """QU5"""
    jobs(worker, 6)
    assert worker.seqs(4) == [1, 2, 3, 4]
    worker.nack(3)
    worker.nack(2)
    assert worker.seqs(1) == [2]
    assert worker.seqs(3) == [3, 5, 6]


def test_the_payload_comes_back_to_the_byte(start: Start, topic: str) -> None:
    """S18, CV6: before and after a restart."""
    data = b'{"b":1.0,"a":12345678901234567890,"b":1e400}'
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, type="queue", lease_ms=100)
    api.post(f"/v0/topics/{topic}", b'{"records":[{"data":%b,"meta":{"x": 1.0}}]}' % data)
    for _ in range(2):
        reply = api.post(f"/v0/topics/{topic}/claim", {"node": "w"})
        assert b'"data":%b,"meta":{"x": 1.0}}' % data in reply.body
        server.close()
        server = start(disk=disk.kill())
        api = Client(server.address)


def test_an_answer_of_many_jobs_is_packed_for_those_who_ask(worker: Worker) -> None:
    """CV7"""
    jobs(worker, 20)
    reply = worker.api.post(f"/v0/topics/{worker.topic}/claim", {"node": "w", "max": 20}, "Accept-Encoding: gzip")
    assert reply.headers["content-encoding"] == "gzip"


# --- expiry


def test_a_lease_ends_when_its_deadline_has_passed(start: Start, topic: str) -> None:
    """QU8, QU6, QU16"""
    server = start()
    api = Client(server.address)
    api.create(topic, type="queue", lease_ms=1000)
    worker, other = Worker(api, topic), Worker(api, topic, "other")
    jobs(worker, 2)
    assert worker.seqs(2) == [1, 2]
    server.advance(1000)
    assert (other.seqs(2), worker.counts()) == ([], (0, 2, 0))
    server.advance(1)
    assert worker.counts() == (2, 0, 0)
    assert worker.ack(1)["skipped"] == [1], "the lease has ended, though nobody has claimed the job again"
    claimed = other.claim(2)["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 2), (2, 2)]
    assert worker.ack(1, 2)["skipped"] == [1, 2]
    assert other.ack(1, 2)["acked"] == 2


def test_an_extended_lease_lasts_from_now_on_and_stays_the_same_lease(start: Start, topic: str) -> None:
    """QU13, QU22"""
    server = start()
    api = Client(server.address)
    api.create(topic, type="queue", lease_ms=1000)
    worker = Worker(api, topic)
    jobs(worker, 2)
    claimed = worker.claim(2)["claimed"]
    server.advance(900)
    now = server.clock.now_ms()
    answer = worker.extend(1, 9, lease_ms=5000)
    assert answer == {"topic": topic, "extended": 1, "skipped": [9], "deadlines": {"1": now + 5000}}
    server.advance(200)
    assert Worker(api, topic, "other").seqs(2) == [2]
    assert worker.extend(1, lease_ms=0)["deadlines"] == {"1": now + 200 + 100}
    assert worker.extend(1, lease_ms=10**30)["deadlines"] == {"1": now + 200 + 86_400_000}
    assert worker.ack(1, lease_ids=[claimed[0]["lease_id"]])["acked"] == 1
    assert Worker(api, topic, "other").counts() == (0, 1, 0)


# --- ack


def test_an_ack_deletes_what_its_node_holds_and_skips_the_rest(api: Client, topic: str, worker: Worker) -> None:
    """QU9, QU10, QU20, DL5"""
    jobs(worker, 6)
    worker.claim(3)
    Worker(api, topic, "other").claim(1)
    answer = worker.ack(3, 4, 1, 99, 5, 1, 0)
    assert answer == {"topic": topic, "acked": 2, "skipped": [4, 99, 5, 1, 0], "ready": 2, "in_flight": 2}
    assert worker.ack(1, 3)["skipped"] == [1, 3], "a repeat is harmless"
    read = api.diff(topic)
    assert ([record["$seq"] for record in read["records"]], read["tombstone"]) == ([2, 4, 5, 6], None)


def test_a_token_fences_off_an_earlier_delivery(worker: Worker) -> None:
    """QU9, QU20, QU21"""
    jobs(worker, 2)
    old = [job["lease_id"] for job in worker.claim(2)["claimed"]]
    worker.nack(1, 2)
    new = [job["lease_id"] for job in worker.claim(2)["claimed"]]
    assert worker.ack(1, 2, lease_ids=old) == {
        "topic": worker.topic,
        "acked": 0,
        "skipped": [1, 2],
        "ready": 0,
        "in_flight": 2,
    }
    assert worker.nack(1, 2, lease_ids=[old[0], new[0]])["skipped"] == [1, 2]
    assert worker.extend(1, 2, lease_ids=["lease_" + "f" * 40, "lease_0" + new[1][6:]])["skipped"] == [1, 2]
    assert worker.ack(1, 2, lease_ids=[new[0], ""])["acked"] == 2


def test_an_ack_on_an_fsync_queue_waits_for_its_sync(start: Start, topic: str) -> None:
    """QU10"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, type="queue", durability="fsync")
    worker = Worker(api, topic)
    jobs(worker, 2)
    worker.claim(2)
    server.run(disk.hold_syncs)
    with api.connect() as connection:
        connection.send(api.request("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1]}))
        server.until(lambda: disk.held_syncs)
        connection.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.socket.recv(1)
        connection.socket.settimeout(PATIENCE_S)
        server.run(lambda: server.clock.advance(3))
        server.run(disk.release_syncs)
        reply = connection.reply()
    assert reply.json["performance"]["fsync_ms"] > 0
    assert reply.json["acked"] == 1
    after = server.run(lambda: disk.power_loss("lost"))
    again = Worker(Client(start(disk=after).address), topic)
    assert again.seqs(5) == [2]


def test_an_ack_of_nothing_needs_no_sync(start: Start, topic: str) -> None:
    """CV11"""
    api = Client(start().address)
    api.create(topic, type="queue", durability="fsync")
    reply = api.post(f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1]})
    assert reply.json["performance"]["fsync_ms"] == 0.0


# --- nack


def test_a_job_given_back_is_claimable_at_once_or_after_its_delay(start: Start, topic: str) -> None:
    """QU12, QU3, QU16"""
    server = start()
    api = Client(server.address)
    api.create(topic, type="queue", lease_ms=100_000)
    worker = Worker(api, topic)
    jobs(worker, 3)
    worker.claim(3)
    assert worker.nack(1, 7) == {"topic": topic, "nacked": 1, "skipped": [7], "ready": 1, "in_flight": 2}
    answer = worker.nack(2, delay_ms=500)
    assert (answer["ready"], answer["in_flight"], worker.counts()) == (1, 1, (1, 1, 1))
    assert worker.seqs(5) == [1]
    assert worker.ack(2)["skipped"] == [2]
    server.advance(499)
    assert worker.seqs(5) == []
    server.advance(1)
    assert [(job["$seq"], job["deliveries"]) for job in worker.claim(5)["claimed"]] == [(2, 2)]


def test_a_delay_is_clamped(start: Start, topic: str) -> None:
    """QU12, CV18"""
    server = start()
    api = Client(server.address)
    api.create(topic, type="queue")
    worker = Worker(api, topic)
    jobs(worker, 1)
    worker.claim()
    assert worker.nack(1, delay_ms=10**30)["nacked"] == 1
    server.advance(86_400_000 - 1)
    assert worker.counts() == (0, 0, 1)
    server.advance(1)
    assert worker.counts() == (1, 0, 0)


# --- removal


def test_a_lease_ends_with_its_job(start: Start, topic: str) -> None:
    """QU17, QU20: by a delete, a cap or its age."""
    server = start()
    api = Client(server.address)
    api.create(topic, type="queue", lease_ms=100_000)
    worker = Worker(api, topic)
    jobs(worker, 6)
    worker.claim(4)
    ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2}), 200)
    assert worker.counts() == (2, 3, 0)
    assert worker.ack(1)["skipped"] == [1]
    ok(api.put(f"/v0/topics/{topic}", {"lease_ms": 100_000, "cap_records": 4}), 200)
    assert worker.counts() == (2, 2, 0)
    api.write(topic, 7)
    assert (worker.counts(), worker.ack(2, 3)["skipped"]) == ((3, 1, 0), [2, 3])
    server.advance(10)
    api.write(topic, 8)
    ok(api.put(f"/v0/topics/{topic}", {"lease_ms": 100_000, "ttl_ms": 5}), 200)
    assert (worker.counts(), worker.seqs(5), worker.ack(4)["skipped"]) == ((1, 0, 0), [8], [4])


def test_a_queue_that_rejects_never_evicts(api: Client, topic: str) -> None:
    """S20, TP17"""
    api.create(topic, type="queue", discard="reject")
    worker = Worker(api, topic)
    jobs(worker, 10)
    ok(api.put(f"/v0/topics/{topic}", {"discard": "reject", "cap_records": 5}), 200)
    assert worker.counts() == (10, 0, 0)
    worker.claim(5)
    worker.ack(1, 2, 3, 4, 5)
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}]}), 422, "topic_full")
    worker.claim(1)
    worker.ack(6)
    api.write(topic, 1)


def test_reading_a_queue_leaves_its_leases_alone(api: Client, topic: str, worker: Worker) -> None:
    """QU19"""
    jobs(worker, 3)
    worker.claim(2)
    assert api.data(topic) == [1, 2, 3]
    assert worker.counts() == (1, 2, 0)


def test_a_deleted_queue_takes_its_leases_along(api: Client, topic: str, worker: Worker) -> None:
    """TP11"""
    jobs(worker, 2)
    worker.claim(2)
    api.delete(f"/v0/topics/{topic}")
    api.create(topic, type="queue")
    jobs(worker, 2)
    assert worker.counts() == (2, 0, 0)
    assert worker.claim(2)["claimed"][0]["deliveries"] == 1


# --- failures of the log


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_failing_ack_leaves_its_jobs_claimable(start: Start, topic: str, leases_durable: bool) -> None:
    """S12, QU11, ER7"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, type="queue", durability="fsync", leases_durable=leases_durable)
    worker = Worker(api, topic)
    jobs(worker, 3)
    worker.claim(3)
    server.run(lambda: disk.hooks.append(Faulty("write", name="log-*")))
    refused(api.post(f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1, 2]}), 500, "internal", None)
    assert worker.counts() == (2, 1, 0)
    assert worker.ack(1, 2)["skipped"] == [1, 2]
    assert Worker(api, topic, "other").seqs(5) == [1, 2]
    assert worker.ack(3)["acked"] == 1


# --- who holds what


def test_leases_are_listed_in_pages_without_their_ids(server: ServerThread, api: Client, topic: str) -> None:
    """CV15: an addition; the id of a lease is its holder's alone."""
    api.create(topic, type="queue", lease_ms=5000)
    jobs(Worker(api, topic), 9)
    Worker(api, topic, "a").claim(3)
    b = Worker(api, topic, "b")
    b.claim(4)
    b.nack(5)
    b.claim(1)
    b.ack(6)
    deadline = server.clock.now_ms() + 5000
    path = f"/v0/topics/{topic}/leases"
    seen: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = ok(api.get(f"{path}?page_size=2{cursor}"), 200, PERFORMANCE)
        assert page["topic"] == topic and 0 < len(page["leases"]) <= 2
        seen += page["leases"]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    nodes = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 7: "b"}
    assert seen == [
        {"$seq": seq, "node": node, "deadline": deadline, "deliveries": 2 if seq == 5 else 1}
        for seq, node in nodes.items()
    ]


def test_a_list_of_leases_is_refused_like_any_queue_call(api: Client, topic: str) -> None:
    """QU1, CV15"""
    path = f"/v0/topics/{topic}/leases"
    refused(api.get(path), 404, "topic_not_found", {"topic": topic})
    api.write(topic, 1)
    refused(api.get(path), 409, "not_a_queue", {"topic": topic})
    api.create(f"{topic}-q", type="queue")
    assert ok(api.get(f"/v0/topics/{topic}-q/leases"))["leases"] == []
    for cursor in ("%", "eyJhZnRlciI6IngifQ"):
        refused(api.get(f"/v0/topics/{topic}-q/leases?cursor={cursor}"), 400, "invalid_request", None)
