"""A node that works for one queue, and what the tests of queues ask of it."""

from typing import Any

from tests.api.clients.transcript import DELETE_PERFORMANCE, PERFORMANCE, Client, ok

CLAIM_PERFORMANCE = ["server_total_ms", "throttle_wait_ms"]


class Worker:
    """A node that works for one queue."""

    def __init__(self, api: Client, topic: str, node: str = "w") -> None:
        self.api, self.topic, self.node = api, topic, node

    def _call(self, name: str, performance: list[str], **fields: Any) -> dict[str, Any]:
        reply = self.api.post(f"/v0/topics/{self.topic}/{name}", {"node": self.node} | fields)
        return ok(reply, 200, performance)

    def claim(self, max: int = 1, **fields: Any) -> dict[str, Any]:
        return self._call("claim", CLAIM_PERFORMANCE, max=max, **fields)

    def seqs(self, max: int = 1, **fields: Any) -> list[int]:
        return [job["$seq"] for job in self.claim(max, **fields)["claimed"]]

    def ack(self, *seqs: int, **fields: Any) -> dict[str, Any]:
        return self._call("ack", DELETE_PERFORMANCE, seqs=seqs, **fields)

    def nack(self, *seqs: int, **fields: Any) -> dict[str, Any]:
        return self._call("nack", PERFORMANCE, seqs=seqs, **fields)

    def extend(self, *seqs: int, lease_ms: int = 1000, **fields: Any) -> dict[str, Any]:
        return self._call("extend", PERFORMANCE, seqs=seqs, lease_ms=lease_ms, **fields)

    def counts(self) -> tuple[int, int, int]:
        """Ready, in flight, delayed; they add up to what is live."""
        state = self.api.state(self.topic)
        queue = state["queue"]
        assert queue["ready"] + queue["in_flight"] + queue["delayed"] == state["count"]
        return queue["ready"], queue["in_flight"], queue["delayed"]


def jobs(worker: Worker, count: int) -> None:
    worker.api.write(worker.topic, *range(1, count + 1))


def dead_letters(api: Client, topic: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if not name.endswith(("seq", "ts"))}
        for record in api.diff(topic, include_tags=True)["records"]
    ]


def redrive(api: Client, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.post(f"/v0/topics/{topic}/redrive", body), 200, PERFORMANCE)
