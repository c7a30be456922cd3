"""Claims that wait for a window: who shares what, and who leaves before it ends."""

from typing import Any

from tests.api.clients.transcript import Client, Connection, Reply, ok, refused
from tests.api.clients.worker import Worker
from tests.api.conftest import Start
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread


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
        crews = self.server.server.engine.workers.crews.by_id
        return sum(not claim.is_gone for crew in crews.values() for claim in crew.claims)

    def replies(self) -> list[Reply]:
        return [connection.reply() for connection in self.connections]

    def __enter__(self) -> "Cohort":
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self.connections:
            connection.socket.close()


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
    server.until(lambda: not server.server.engine.workers.crews.by_id)


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
        closing.result(PATIENCE_S)
