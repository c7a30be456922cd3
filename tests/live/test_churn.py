"""Very many SSE clients that come, stall, vanish and come back: what each gets, and what is left of them."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.clients.transcript import Client, ok
from tests.live import load
from tests.live.churn import DEEDS, RESUMES, Report
from tests.live.load import Written
from tests.live.processes import last_words, process
from topics.testing.patience import wait_until
from topics.testing.server import ServerProcess

WRITTEN = ("plain-0", "plain-1", "plain-2", "ring-0", "ring-1", "shared-0", "pruned-0")
DEEP = "deep-0"  # written before the start; from its beginning on it is more than the buffers of a connection take
DEEP_RECORDS = 600
BATCH = 25
RECORDS_PER_S = 1000
MIB = 1 << 20
ENVIRON = {"TOPICS_CACHE_BYTES": str(32 * MIB), "TOPICS_MAX_WATCH_SESSIONS": "0"}
ALLOWANCE_BYTES = 4 * MIB  # of growth: some records more, and what the allocator keeps
FULL_ALLOWANCE_BYTES = 32 * MIB  # half a kilobyte for each connection that was there


def prepare(api: Client) -> dict[str, int]:
    """Create the topics; their heads."""
    for topic in (*WRITTEN, DEEP):
        ok(api.put(f"/v0/topics/{topic}", load.config(topic)), 201)
    for first in range(1, DEEP_RECORDS, 100):
        records = [load.record(DEEP, seq) for seq in range(first, first + 100)]
        ok(api.post(f"/v0/topics/{DEEP}", {"records": records}))
    return dict.fromkeys(WRITTEN, 0) | {DEEP: DEEP_RECORDS}


class Run:
    """Churn on one server, one round after the other."""

    def __init__(self, server: ServerProcess) -> None:
        self.api = Client(server.address)
        self.sessions = 0  # created
        self._server = server
        self._heads = prepare(self.api)

    def churn(self, *, clients: int, seconds: float, stall_s: float) -> Report:
        """Write and churn for so long, then stop writing and let every client get everything."""
        with (
            process(
                "load",
                address=self._server.address,
                heads={topic: self._heads[topic] for topic in WRITTEN},
                batch=BATCH,
                records_per_s=RECORDS_PER_S,
            ) as writing,
            process(
                "churn",
                address=self._server.address,
                topics=list(self._heads),
                clients=clients,
                seed=clients,
                stall_s=stall_s,
            ) as watching,
        ):
            assert watching.stdout is not None
            said = watching.stdout.readline()
            assert said == "all are there\n", said
            with pytest.raises(subprocess.TimeoutExpired):
                watching.wait(seconds)
            written = msgspec.json.decode(last_words(writing), type=Written)
            self._heads |= written.heads
            report = msgspec.json.decode(last_words(watching, json.dumps(self._heads) + "\n"), type=Report)
        print(f"{clients} clients, {seconds} s: {report}; {written}; {self.memory_bytes / MIB:.1f} MiB")
        assert (report.broken, report.late) == ([], [])
        self.sessions += report.sessions
        wait_until("streams are left", lambda: self.metrics["sse_connections"] == 0)
        return report

    @property
    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/v0/metrics", "Accept: application/json").json
        return found

    @property
    def memory_bytes(self) -> int:
        """Of the server; without pages of files."""
        status = Path(f"/proc/{self._server.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def churn_until_all_is_done(run: Run, **round_: Any) -> Counter[str]:
    """Round after round, until everything that a client may do was done, and how often."""
    wanted = {f"resumed by {how}" for how in RESUMES} | {*DEEDS, "left while stalled", "records", "tombstones"}
    done: Counter[str] = Counter()

    def is_all_done() -> bool:
        done.update(run.churn(**round_).counts)
        return all(done[deed] for deed in wanted)

    wait_until("something was never done", is_all_done)
    return done


def test_clients_that_come_and_go_get_what_the_contract_allows_and_leave_nothing_behind(tmp_path: Path) -> None:
    """SS1, SS9, SS10, SS14, SS15, SS17, SS19, SS22, SS26, LM5, TM4, TM13, ND1, S9: a sample of the run below."""
    with ServerProcess(tmp_path, ENVIRON) as server:
        run = Run(server)
        run.churn(clients=100, seconds=3, stall_s=1)
        before = run.memory_bytes
        churn_until_all_is_done(run, clients=100, seconds=8, stall_s=6)
        assert run.metrics["watch_sessions"] == run.sessions
        assert run.memory_bytes <= before + ALLOWANCE_BYTES


@pytest.mark.full
def test_two_thousand_clients_that_come_and_go_for_five_minutes_leave_nothing_behind(tmp_path: Path) -> None:
    """SS1, SS5, SS9, SS10, SS14, SS15, SS17, SS19, SS22, SS25, SS26, LM5, TM4, TM13, ND1, S9"""
    with ServerProcess(tmp_path, ENVIRON) as server:
        run = Run(server)
        run.churn(clients=2000, seconds=120, stall_s=35)  # what the allocators keep after such a rush is warm, too
        before = run.memory_bytes
        done = churn_until_all_is_done(run, clients=2000, seconds=300, stall_s=35)
        assert done["ended with 408"], "nobody was too slow"

        def are_swept() -> bool:
            assert run.api.get("/v0/watch/wid_x").status == 404  # looks for it, and drops what has expired
            return bool(run.metrics["watch_sessions"] == 0)

        wait_until("sessions are left", are_swept)
        print(f"{before / MIB:.1f} MiB before, {run.memory_bytes / MIB:.1f} MiB after")
        wait_until("memory is left", lambda: run.memory_bytes <= before + FULL_ALLOWANCE_BYTES)
