"""A server driven beyond what it can do: slower, at times 429, but nothing is lost and everybody catches up."""

import json
import subprocess
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.clients.transcript import Client, ok
from tests.live import load
from tests.live.churn import Report
from tests.live.load import RING_CAP, Written, kind
from tests.live.processes import last_words, process
from topics.testing.patience import wait_until
from topics.testing.server import ServerProcess

KINDS = ("plain-{}", "shared-{}", "ring-{}", "plain-{}-low")
KINDS_PER_PROCESS = 8  # each topic has a connection of its own, which writes as fast as it is answered
BATCH = 100
ENVIRON = {"TOPICS_CACHE_BYTES": str(4 << 20)}  # so that little may wait to be sealed, and pressure rises soon


def overload(server: ServerProcess, writers: int, watchers: int, seconds: float) -> tuple[dict[str, int], Report]:
    """Write as fast as the server answers, for so long; then let every watcher get everything. The heads."""
    api = Client(server.address)
    numbers = [
        range(first, first + KINDS_PER_PROCESS) for first in range(0, writers * KINDS_PER_PROCESS, KINDS_PER_PROCESS)
    ]
    topics = [[name.format(number) for number in own for name in KINDS] for own in numbers]
    everything = list(chain.from_iterable(topics))
    for topic in everything:
        ok(api.put(f"/v0/topics/{topic}", load.config(topic)), 201)
    with ExitStack() as stack:
        watching = stack.enter_context(
            process("churn", address=server.address, topics=everything, clients=watchers, seed=watchers, is_calm=True)
        )
        assert watching.stdout is not None
        said = watching.stdout.readline()
        assert said == "all are there\n", said
        writing = [
            stack.enter_context(process("load", address=server.address, heads=dict.fromkeys(own, 0), batch=BATCH))
            for own in topics
        ]
        with pytest.raises(subprocess.TimeoutExpired):
            watching.wait(seconds)
        written = [msgspec.json.decode(last_words(one), type=Written) for one in writing]
        heads = {topic: head for one in written for topic, head in one.heads.items()}
        report = msgspec.json.decode(last_words(watching, json.dumps(heads) + "\n"), type=Report)
    longest_ms = max(one.longest_ms for one in written)
    throttled, writes = sum(one.throttled for one in written), sum(one.writes for one in written)
    print(f"{writes} writes in {seconds} s, {throttled} times 429, longest ack {longest_ms:.0f} ms; {report}")
    return heads, report


def check_stored(api: Client, topic: str, head: int) -> None:
    """What was acked is there, each record under its seq, less what the cap has taken."""
    cursor, floor = 0, max(0, head - RING_CAP) if kind(topic) == "ring" else 0
    while cursor < head:
        answer: dict[str, Any] = api.diff(topic, from_seq=cursor, limit=1000)
        lost = answer["tombstone"]
        if lost is not None:
            assert (lost["gap_from"], lost["gap_to"]) == (1, floor), (topic, lost)
            cursor = floor
        seqs = range(cursor + 1, answer["next_from_seq"] + 1)
        assert [record["$seq"] for record in answer["records"]] == list(seqs), topic
        assert [record["data"]["n"] for record in answer["records"]] == list(seqs), topic
        cursor = answer["next_from_seq"]
    assert cursor == head == answer["head_seq"], (topic, cursor, head)


def check(tmp_path: Path, writers: int, watchers: int, seconds: float) -> None:
    with ServerProcess(tmp_path, ENVIRON) as server:
        heads, report = overload(server, writers, watchers, seconds)
        assert (report.broken, report.late) == ([], [])
        assert report.counts["tombstones"], "no watcher fell behind a ring"
        api = Client(server.address)
        wait_until(
            "streams are left",
            lambda: api.get("/v0/metrics", "Accept: application/json").json["sse_connections"] == 0,
        )
        for topic, head in heads.items():
            check_stored(api, topic, head)
        server.kill()
        server.start()
        for topic, head in heads.items():
            check_stored(Client(server.address), topic, head)


def test_an_overloaded_server_loses_nothing_and_lets_everybody_catch_up(tmp_path: Path) -> None:
    """PR6, PR7, SS19, G1: a sample of the run below."""
    check(tmp_path, writers=3, watchers=60, seconds=3)


@pytest.mark.full
def test_a_server_overloaded_for_long_loses_nothing_and_lets_everybody_catch_up(tmp_path: Path) -> None:
    """PR6, PR7, SS19, G1"""
    check(tmp_path, writers=6, watchers=300, seconds=20)
