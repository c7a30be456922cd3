"""Very many SSE clients that come, stall, vanish and come back: what each gets, and what is left of them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest

from tests.api.transcript import Client, ok
from tests.live import load
from tests.live.churn import Report
from tests.live.load import Written
from topics.testing.server import ServerProcess

TOPICS = ["plain-0", "plain-1", "plain-2", "ring-0", "ring-1", "shared-0", "pruned-0", "deep-0"]
DEEP_RECORDS = 600  # before the start: more than the buffers of a connection take
BATCH = 25
PATIENCE_S = 120.0
MIB = 1 << 20
ENVIRON = {"TOPICS_CACHE_BYTES": str(8 * MIB), "TOPICS_MAX_WATCH_SESSIONS": "0"}
ALLOWANCE_BYTES = 16 * MIB  # for what an allocator does not give back


@contextmanager
def process(module: str, **wanted: Any) -> Iterator["subprocess.Popen[str]"]:
    """A client process; its input ends, or it is killed, with the block."""
    command = [sys.executable, "-m", f"tests.live.{module}", json.dumps(wanted)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def last_words(started: "subprocess.Popen[str]", command: str = "") -> str:
    """Give it its last command and wait for its end; what it said last."""
    said = started.communicate(command, PATIENCE_S)[0]
    assert started.returncode == 0, said
    return said.splitlines()[-1]


def wait_until(what: str, condition: Any, patience_s: float = PATIENCE_S) -> None:
    deadline = monotonic() + patience_s
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.05)


def metrics(api: Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v0/metrics", "Accept: application/json").json
    return found


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is no page of a file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def prepare(api: Client) -> dict[str, int]:
    """Create the topics; their heads."""
    for topic in TOPICS:
        ok(api.put(f"/v0/topics/{topic}", load.config(topic)), 201)
    for first in range(1, DEEP_RECORDS, 100):
        records = [load.record("deep-0", seq) for seq in range(first, first + 100)]
        ok(api.post("/v0/topics/deep-0", {"records": records}))
    return {topic: DEEP_RECORDS if topic == "deep-0" else 0 for topic in TOPICS}


def churn(
    server: ServerProcess, heads: dict[str, int], *, clients: int, seconds: float, records_per_s: int, stall_s: float
) -> tuple[Report, Written]:
    """Write and churn for so long, then stop writing and let every client get everything."""
    with (
        process("load", address=server.address, heads=heads, batch=BATCH, records_per_s=records_per_s) as writing,
        process(
            "churn", address=server.address, topics=TOPICS, clients=clients, seed=clients, stall_s=stall_s
        ) as watching,
    ):
        assert watching.stdout is not None
        assert watching.stdout.readline() == "all are there\n"
        try:
            watching.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        written = msgspec.json.decode(last_words(writing), type=Written)
        report = msgspec.json.decode(last_words(watching, json.dumps(written.heads) + "\n"), type=Report)
    print(report, written)
    return report, written


def check(report: Report) -> None:
    assert report.broken == []
    assert report.late == []
    for deed in ("fin", "rst", "half-close", "stall", "take over", "left while stalled", "records", "tombstones"):
        assert report.counts.get(deed, 0), f"nobody came to this: {deed}"
    for how in ("last id", "cursor", "older id", "no id"):
        assert report.counts.get(f"resumed by {how}", 0), how


def test_clients_that_come_and_go_get_what_the_contract_allows_and_leave_nothing_behind(tmp_path: Path) -> None:
    """SS1, SS9, SS10, SS14, SS15, SS17, SS19, SS22, SS26, LM5, TM4, TM13, S9, ND1: a sample of the run below."""
    with ServerProcess(tmp_path, ENVIRON) as server:
        api = Client(server.address)
        report, written = churn(server, prepare(api), clients=30, seconds=2, records_per_s=1000, stall_s=1)
        sessions = report.sessions
        before = anonymous_bytes(server.pid)
        report, _ = churn(server, written.heads, clients=100, seconds=10, records_per_s=1000, stall_s=6)
        check(report)
        wait_until("streams are left", lambda: metrics(api)["sse_connections"] == 0)
        assert metrics(api)["watch_sessions"] == sessions + report.sessions
        print(before / MIB, anonymous_bytes(server.pid) / MIB)
        assert anonymous_bytes(server.pid) <= before + ALLOWANCE_BYTES
