"""Queues: cohorts, restarts, delayed jobs, redrive, who holds what, keys, pressure."""

from threading import Thread
from typing import Any

import pytest

from tests.api.conftest import Start
from tests.api.test_queues import Worker, dead_letters, jobs
from tests.api.transcript import PERFORMANCE, Client, Connection, Reply, ok, refused
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.server import ServerThread

CLASSES = ["memory", "disk", "fsync"]


class Cohort:
    """Claims that are sent and not answered yet."""

    def __init__(self, server: ServerThread, topic: str) -> None:
        self.server, self.topic = server, topic
        self.api = Client(server.address)
        self.connections: list[Connection] = []

    def claim(self, node: str, max: int, **fields: Any) -> Connection:
        """Send a claim and wait until it waits."""
        connection = self.api.connect()
        self.connections.append(connection)
        before = self.waiting()
        body = {"node": node, "max": max} | fields
        connection.send(self.api.request("POST", f"/v0/topics/{self.topic}/claim", body))
        self.server.until(lambda: self.waiting() > before)
        return connection

    def waiting(self) -> int:
        crews = self.server.server.engine.workers._crews
        return sum(not claim.is_gone for crew in crews.values() for claim in crew.claims)

    def replies(self) -> list[Reply]:
        return [connection.reply() for connection in self.connections]

    def __enter__(self) -> "Cohort":
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self.connections:
            connection.socket.close()


# --- cohorts


def test_the_claims_of_a_window_share_evenly(start: Start) -> None:
    """QU7: 20 jobs, 4 claimers with max 10, so 5 each; each keeps its own lease_ms."""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500, lease_ms=1000)
    api.write("q", *range(20))
    with Cohort(server, "q") as cohort:
        for number in range(4):
            cohort.claim(f"w{number}", 10, lease_ms=1000 * (number + 1))
        server.advance(499)
        assert cohort.waiting() == 4
        server.advance(1)
        answers = [ok(reply) for reply in cohort.replies()]
    now = server.clock.now_ms()
    for number, answer in enumerate(answers):
        assert (answer["count"], answer["ready"]) == (5, 0)
        assert [job["$seq"] for job in answer["claimed"]] == list(range(number + 1, 21, 4))
        assert {job["deadline"] for job in answer["claimed"]} == {now + 1000 * (number + 1)}


def test_who_wants_less_leaves_the_rest_to_the_others(start: Start) -> None:
    """QU7"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=10)
    api.write("q", *range(12))
    with Cohort(server, "q") as cohort:
        for number, most in enumerate([1, 100, 3]):
            cohort.claim(f"w{number}", most)
        server.advance(10)
        assert [ok(reply)["count"] for reply in cohort.replies()] == [1, 8, 3]


def test_a_claim_after_the_window_opens_the_next_one(start: Start) -> None:
    """QU7"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=10)
    api.write("q", 1, 2)
    with Cohort(server, "q") as cohort:
        first = cohort.claim("a", 5)
        server.advance(10)
        assert ok(first.reply())["count"] == 2
        second = cohort.claim("b", 5)
        api.write("q", 3)
        server.advance(10)
        assert [job["$seq"] for job in ok(second.reply())["claimed"]] == [3]
    server.until(lambda: not server.server.engine.workers._crews)


def test_a_claimer_that_leaves_gets_nothing_and_delays_nobody(start: Start) -> None:
    """S14, QU7"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500)
    api.write("q", 1, 2)
    with Cohort(server, "q") as cohort:
        gone = cohort.claim("gone", 1)
        other = cohort.claim("other", 1)
        gone.socket.close()
        server.until(lambda: cohort.waiting() == 1)
        server.advance(500)
        assert [job["$seq"] for job in ok(other.reply())["claimed"]] == [1]
        assert Worker(api, "q").counts() == (1, 1, 0)


def test_a_topic_deleted_within_the_window_is_not_found(start: Start) -> None:
    """QU1, QU7"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500)
    with Cohort(server, "q") as cohort:
        connection = cohort.claim("w", 1)
        api.delete("/v0/topics/q")
        server.advance(500)
        refused(connection.reply(), 404, "topic_not_found", {"topic": "q"})


def test_a_draining_server_answers_those_who_wait_for_a_window(start: Start) -> None:
    """SC3, G15"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", claim_jitter_ms=500)
    api.write("q", 1)
    with Cohort(server, "q") as cohort:
        connection = cohort.claim("w", 1)
        closing = server.start_closing()
        assert ok(connection.reply())["count"] == 0
        closing.result(20)


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


# --- delayed jobs


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


# --- redrive


def redrive(api: Client, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.post(f"/v0/topics/{topic}/redrive", body), 200, PERFORMANCE)


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
    """An addition: `match` and `max`."""
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
    """WR11: what was moved stays moved; if that is nothing, it is refused."""
    dead = f"{topic}.dead"
    bury(api, topic, dead, *({"data": number} for number in range(250)))
    ok(api.put(f"/v0/topics/{topic}", {"dead_letter": dead, "discard": "reject", "cap_records": 130}), 200)
    answer = redrive(api, topic)
    assert (answer["redriven"], answer["remaining"]) == (130, 120)
    refused(api.post(f"/v0/topics/{topic}/redrive", {}), 422, "topic_full")
    assert (api.state(topic)["count"], api.state(dead)["count"]) == (130, 120)


def test_a_redrive_is_refused_where_there_is_nothing_to_redrive_from(api: Client, topic: str) -> None:
    """QU1"""
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


# --- keys, pressure, metrics


def test_each_call_needs_its_scopes(start: Start) -> None:
    """AU6, A.1"""
    server = start(api_keys="all,r:read,w:write,rw:rw,d:delete,wd:write+delete")
    api = Client(server.address)
    api.with_key("all").create("q", type="queue", dead_letter="dead")
    allowed = {
        "claim": {"all", "rw"},
        "ack": {"all", "w", "rw", "wd"},
        "nack": {"all", "w", "rw", "wd"},
        "extend": {"all", "w", "rw", "wd"},
        "redrive": {"all", "wd"},
    }
    bodies = {"claim": {"node": "w"}, "redrive": {}, "extend": {"node": "w", "seqs": [1], "lease_ms": 100}}
    for call, keys in allowed.items():
        body = bodies.get(call, {"node": "w", "seqs": [1]})
        for key in ("all", "r", "w", "rw", "d", "wd"):
            reply = api.with_key(key).post(f"/v0/topics/q/{call}", body)
            assert reply.status == (200 if key in keys else 403), (call, key, reply)
        refused(api.post(f"/v0/topics/q/{call}", body), 401, "unauthorized")
    for key in ("all", "r", "w", "rw", "d", "wd"):
        assert api.with_key(key).get("/v0/topics/q/leases").status == (200 if key in ("all", "r", "rw") else 403)


def test_names_outside_the_keys_prefixes_are_forbidden(start: Start) -> None:
    """AU8: the dead-letter topic of a redrive is one of them."""
    server = start(api_keys="all,a::a.")
    api, limited = Client(server.address, "all"), Client(server.address, "a")
    for name, dead in (("b.q", "b.dead"), ("a.q", "b.dead"), ("a.ok", "a.dead")):
        api.create(name, type="queue", dead_letter=dead)
    for call, body in (("claim", {"node": "w"}), ("ack", {"node": "w", "seqs": [1]}), ("redrive", {})):
        refused(limited.post(f"/v0/topics/b.q/{call}", body), 403, "forbidden")
    refused(limited.post("/v0/topics/a.q/redrive", {}), 403, "forbidden")
    refused(limited.get("/v0/topics/b.q/leases"), 403, "forbidden")
    assert redrive(limited, "a.ok")["redriven"] == 0
    assert ok(limited.post("/v0/topics/a.q/claim", {"node": "w"}))["count"] == 0


def test_a_claim_waits_under_pressure_and_the_other_calls_do_not(start: Start) -> None:
    """PR7, CV11"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    worker = Worker(api, "q")
    jobs(worker, 5)
    worker.claim(3)

    def press(level: float) -> None:
        server.pressure = level
        server.run(server.server.pressure.measure)

    press(1.0)
    assert worker.ack(1)["acked"] == worker.nack(2)["nacked"] == worker.extend(3)["extended"] == 1
    refused(api.post("/v0/topics/none/claim", {"node": "w"}), 404, "topic_not_found")
    replies: list[Reply] = []
    claim = Thread(target=lambda: replies.append(api.post("/v0/topics/q/claim", {"node": "w"})))
    claim.start()
    server.until(lambda: server.server.pressure.parked_total == 1)
    server.run(lambda: server.clock.advance(300))
    press(0.0)
    claim.join()
    assert replies[0].json["claimed"][0]["$seq"] == 2
    assert replies[0].json["performance"]["throttle_wait_ms"] == 300
    press(1.0)
    claim = Thread(target=lambda: replies.append(api.post("/v0/topics/q/claim", {"node": "w"})))
    claim.start()
    server.until(lambda: server.server.pressure.parked_total == 2)
    server.until(lambda: server.clock.waits)
    server.advance(1000)
    claim.join()
    refused(replies[1], 429, "throttled")
    press(0.0)


def test_metrics_count_queues_and_active_leases(start: Start) -> None:
    """HM3, HM5"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=1000)
    api.create("log")
    worker = Worker(api, "q")
    jobs(worker, 5)
    worker.claim(3)
    metrics = api.metrics()
    assert (metrics["queue_topics"], metrics["queue_leases_in_flight"]) == (1, 3)
    text = api.get("/v0/metrics").body.decode()
    assert 'topics_topic_queue_ready{topic="q"} 2\n' in text and 'topics_topic_queue_in_flight{topic="q"} 3\n' in text
    assert 'topics_topic_queue_ready{topic="log"}' not in text
    server.advance(1001)
    assert api.metrics()["queue_leases_in_flight"] == 0


# --- routers


def test_a_claim_sees_what_was_written_upstream(api: Client, topic: str) -> None:
    """DF9, S30: over a chain of two routers; and a copy carries no delay."""
    names = [topic, f"{topic}.2", f"{topic}.3"]
    for name in names:
        api.create(name, type="queue")
    for source, dest in ((names[0], names[1]), (names[1], names[2])):
        ok(api.put(f"/v0/routers/{source}->{dest}", {"source": source, "dest": dest}), 201)
    api.write_records(topic, {"data": 1, "delay_ms": 1000}, {"data": 2})
    assert [job["data"] for job in Worker(api, names[2]).claim(9)["claimed"]] == [1, 2]
    assert Worker(api, topic).seqs(9) == [2]


def test_an_ack_of_a_copy_is_replayed_against_the_same_job(start: Start) -> None:
    """RT21, S4, QU18"""
    disk = MemoryDisk()
    api = Client(start(disk=disk).address)
    api.create("q", type="queue", leases_durable=True)
    ok(api.put("/v0/routers/r", {"source": "s", "dest": "q"}), 201)
    api.write("s", 1, 2, 3)
    worker = Worker(api, "q")
    assert worker.seqs(2) == [1, 2]
    worker.ack(2)
    again = Worker(Client(start(disk=disk.kill()).address), "q")
    assert again.counts() == (1, 1, 0)
    assert (again.ack(1)["acked"], again.seqs(9)) == (1, [3])


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
