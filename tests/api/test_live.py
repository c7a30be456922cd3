"""Which seqs are live: runs of them, as of one moment, that an export would have."""

from itertools import pairwise
from typing import Any

import pytest

from tests.api.clients.transcript import PERFORMANCE, Client, ok, refused
from tests.api.conftest import Start
from topics.client import Client as PythonClient
from topics.engine.export import RUNS_MAX
from topics.testing.server import ServerThread


def live(api: Client, topic: str, query: str = "") -> dict[str, Any]:
    answer = ok(api.get(f"/v0/topics/{topic}/live{query}"), 200, PERFORMANCE)
    assert list(answer) == ["topic", "epoch", "head_seq", "earliest_seq", "after", "last", "live", "lost"]
    return answer


def runs(api: Client, topic: str, query: str = "") -> list[list[int]]:
    found: list[list[int]] = live(api, topic, query)["live"]
    return found


def fill(api: Client, topic: str, count: int) -> None:
    for start in range(1, count + 1, 1000):
        seqs = range(start, min(start + 1000, count + 1))
        records = [{"data": seq, "tag": "odd" if seq % 2 else "even"} for seq in seqs]
        ok(api.post(f"/v0/topics/{topic}", {"records": records}))


def test_what_is_not_live_was_deleted_or_is_told_as_lost(api: Client, topic: str) -> None:
    """LV1"""
    api.create(topic, cap_records=8)
    assert runs(api, topic) == [] and live(api, topic)["last"] == 0
    fill(api, topic, 10)
    api.post(f"/v0/topics/{topic}/delete", {"match": ["tag", "Eq", "even"], "before_seq": 9})
    found = live(api, topic)
    assert found["live"] == [[3, 3], [5, 5], [7, 7], [9, 10]]
    assert [(lost["gap_from"], lost["gap_to"], lost["reason"]) for lost in found["lost"]] == [(1, 2, "cap")]
    assert (found["after"], found["last"], found["head_seq"], found["earliest_seq"]) == (0, 10, 10, 3)
    assert runs(api, topic, "?after=3&last=9") == [[5, 5], [7, 7], [9, 9]]
    assert live(api, topic, "?after=3&last=99")["last"] == 10
    assert ok(api.get(f"/v0/topics/{topic}?touch=false"))["last_read_ts"] is None


def test_a_cursor_of_another_instance_is_told_so(api: Client, topic: str) -> None:
    """LV1, TM11"""
    api.create(topic)
    fill(api, topic, 3)
    epoch = live(api, topic)["epoch"]
    found = live(api, topic, f"?after=2&epoch={epoch + 1}")
    assert [(lost["gap_to"], lost["reason"]) for lost in found["lost"]] == [(3, "recreated")]
    assert found["live"] == [[1, 3]] and found["epoch"] == epoch


@pytest.mark.parametrize("query", ["?after=x", "?last=-1", "?epoch=1.5", f"?after={2**64}"])
def test_what_is_no_seq_is_refused(api: Client, topic: str, query: str) -> None:
    """LV1"""
    api.create(topic)
    refused(api.get(f"/v0/topics/{topic}/live{query}"), 400, "invalid_request")
    refused(api.get(f"/v0/topics/{topic}.none/live"), 404, "topic_not_found")


def test_the_runs_are_those_of_an_export_before_and_after_each_checkpoint(start: Start) -> None:
    """LV1: also where files were merged without the records that had been deleted."""
    server = start(segment_max_events=10)
    api = Client(server.address)
    client = PythonClient("http://{}:{}".format(*server.address), "")
    api.create("t")
    for round_ in range(12):
        fill(api, "t", 20)
        checkpointed(server)
        api.post("/v0/topics/t/delete", {"match": ["tag", "Eq", "even"], "before_seq": 20 * round_ + 11})
        for _ in range(2):
            found = runs(api, "t")
            seqs = [seq for first, last in found for seq in range(first, last + 1)]
            with client.export("t") as export:
                assert seqs == export.read_all()["seq"].to_pylist()
            assert all(left[1] + 1 < right[0] for left, right in pairwise(found))
            checkpointed(server)
    client.close()


def checkpointed(server: ServerThread) -> None:
    server.do(server.server.engine.checkpoint())


def test_an_answer_has_so_many_runs_and_the_next_goes_on(start: Start) -> None:
    """LV1"""
    api = Client(start().address)
    api.create("t")
    count = 2 * RUNS_MAX + 10
    fill(api, "t", count)
    api.post("/v0/topics/t/delete", {"match": ["tag", "Eq", "even"]})
    first = live(api, "t")
    assert len(first["live"]) == RUNS_MAX and first["last"] == 2 * RUNS_MAX
    assert live(api, "t", f"?after={first['last']}")["live"] == [
        [seq, seq] for seq in range(first["last"] + 1, count, 2)
    ]


def test_lists_have_epochs_if_they_are_asked_for(api: Client, topic: str) -> None:
    """TP10, TM11"""
    api.create(topic)
    (listed,) = ok(api.get(f"/v0/topics?prefix={topic}&epochs=true"))["topics"]
    assert listed["epoch"] == api.state(topic)["epoch"]
    (listed,) = ok(api.get(f"/v0/topics?prefix={topic}"))["topics"]
    assert "epoch" not in listed
