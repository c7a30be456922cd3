"""Workers on a real server that is killed with SIGKILL while they work."""

import http.client
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

ROUNDS = 4
WORKERS = 3
ACKS_PER_ROUND = 40
LEASE_MS = 100


class Caller:
    """One keep-alive connection. OSError or HTTPException: the server is gone, and nothing is known of the call."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)

    def __call__(self, path: str, body: Any, method: str = "POST") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body), headers)
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        self._connection.close()


class Told:
    """What clients were told, over all rounds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.written: set[int] = set()
        self.acked: list[int] = []
        self.doubtful: set[tuple[str, int]] = set()  # node and data of jobs whose ack was not answered
        self.next = 0
        self.enough = threading.Event()

    def draw(self, count: int) -> list[int]:
        with self.lock:
            self.next += count
            return list(range(self.next - count, self.next))

    def ask(self, node: str, data: Iterable[int]) -> None:
        with self.lock:
            self.doubtful |= {(node, value) for value in data}

    def answered(self, node: str, data: Iterable[int], acked: list[int], most: int) -> None:
        with self.lock:
            self.doubtful -= {(node, value) for value in data}
            self.acked += acked
            if len(self.acked) >= most:
                self.enough.set()


def write(address: tuple[str, int], told: Told) -> None:
    call = Caller(address)
    try:
        while True:
            data = told.draw(5)
            call("/v0/topics/q", {"records": [{"data": value} for value in data]})
            told.written.update(data)
    except (OSError, http.client.HTTPException):
        call.close()


def work(address: tuple[str, int], node: str, told: Told, most: int) -> None:
    call = Caller(address)
    try:
        while True:
            claimed = call("/v0/topics/q/claim", {"node": node, "max": 4})["claimed"]
            if not claimed:
                continue
            jobs = {job["$seq"]: job["data"] for job in claimed}
            told.ask(node, jobs.values())
            tokens = [job["lease_id"] for job in claimed]
            done = call("/v0/topics/q/ack", {"node": node, "seqs": list(jobs), "lease_ids": tokens})
            acked = [value for seq, value in jobs.items() if seq not in done["skipped"]]
            told.answered(node, jobs.values(), acked, most)
    except (OSError, http.client.HTTPException):
        call.close()


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_killed_under_its_workers_a_queue_loses_no_job_and_repeats_no_ack(
    tmp_path: Path, durability: str, leases_durable: bool
) -> None:
    """G11, QU9, QU18, DU3, DU4"""
    told = Told()
    config = {"type": "queue", "durability": durability, "leases_durable": leases_durable, "lease_ms": LEASE_MS}
    with ServerProcess(tmp_path) as server:
        call = Caller(server.address)
        call("/v0/topics/q", config, "PUT")
        call.close()
        for round_ in range(1, ROUNDS + 1):
            told.enough.clear()
            most = round_ * ACKS_PER_ROUND
            threads = [threading.Thread(target=write, args=(server.address, told))]
            threads += [
                threading.Thread(target=work, args=(server.address, f"w{n}", told, most)) for n in range(WORKERS)
            ]
            for thread in threads:
                thread.start()
            assert told.enough.wait(PATIENCE_S)
            server.kill()
            for thread in threads:
                thread.join(PATIENCE_S)
            server.start()
        assert len(told.acked) == len(set(told.acked)), "acked twice"
        left = drained(Caller(server.address))
        assert not left & set(told.acked), "an acked job came back"
        assert told.written <= left | set(told.acked) | {value for _, value in told.doubtful}, "a job is lost"
        assert server.stop() == 0


def drained(call: Caller) -> set[int]:
    """All jobs that are left, once every lease has ended; nothing is stuck."""
    left: set[int] = set()
    while True:
        state = call("/v0/topics/q", None, "GET")
        counts = state["queue"]
        assert counts["ready"] + counts["in_flight"] + counts["delayed"] == state["count"]
        if not state["count"]:
            call.close()
            return left
        claimed = call("/v0/topics/q/claim", {"node": "last", "max": 1000, "lease_ms": 86_400_000})["claimed"]
        data = [job["data"] for job in claimed]
        assert not left & set(data), "a job was handed out twice"
        left |= set(data)
        if claimed:
            call("/v0/topics/q/ack", {"node": "last", "seqs": [job["$seq"] for job in claimed]})


def test_a_worker_that_is_gone_gives_its_jobs_back_on_a_real_server(tmp_path: Path) -> None:
    """WK3, WK5"""
    with ServerProcess(tmp_path) as server:
        call = Caller(server.address)
        call("/v0/topics/q", {"type": "queue"}, "PUT")
        call("/v0/topics/q", {"records": [{"data": 1}, {"data": 2}]})
        stream = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        stream.request("GET", "/v0/topics/q/work?node=w&max=2")
        events = stream.getresponse()
        lines = iter(events.readline, b"")
        jobs = [json.loads(line[6:]) for line in (next(lines) for _ in range(12)) if line.startswith(b"data: ")]
        assert [job["$seq"] for job in jobs] == [1, 2]
        events.close()
        stream.close()
        claimed: list[dict[str, Any]] = []
        while len(claimed) < 2:
            claimed += call("/v0/topics/q/claim", {"node": "other", "max": 2})["claimed"]
        assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 2), (2, 2)]
        call.close()
