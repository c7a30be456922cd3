"""Watching queries: their lag, and the listener that tells a topic and Prometheus of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import topics.spark
from tests.spark.rig import Collected, Rig
from topics.errors import InvalidRequest
from topics.spark.runs.arrivals import Arrivals
from topics.spark.runs.listening import METRICS, metrics_of, told_of
from topics.spark.runs.progress import lag_of, lags_of
from topics.spark.servers.connection import Connection
from topics.testing.patience import wait_until


@contextmanager
def listening(rig: Rig, **given: Any) -> Iterator[None]:
    listener = topics.spark.listen(rig.spark, **given)
    try:
        yield
    finally:
        rig.spark.streams.removeListener(listener)


def progress(**given: Any) -> dict[str, Any]:
    def offsets(epoch: int, **seqs: int) -> str:
        return json.dumps({topic: {"epoch": epoch, "seq": seq} for topic, seq in seqs.items()})

    return {
        "id": "i",
        "runId": "r",
        "name": None,
        "batchId": 3,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 10,
        "inputRowsPerSecond": float("nan"),
        "processedRowsPerSecond": 12.34,
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {"endOffset": offsets(1, a=5, b=7), "latestOffset": offsets(1, a=9, b=7)},
            {"endOffset": offsets(1, a=8), "latestOffset": offsets(2, a=9)},
            {"endOffset": None, "latestOffset": '{"other": 1}'},
        ],
        **given,
    }


def test_the_lag_of_a_topic_is_the_largest_and_another_instance_is_unread() -> None:
    """TM11"""
    assert lags_of(progress()) == {"a": 9, "b": 0}
    assert lag_of(progress()) == 4 + 0 + 9


def test_metrics_are_prometheus_text() -> None:
    told = told_of(progress(name='a "b"\\\n'))
    text = metrics_of([told], {"r": 42})
    label = 'query="a \\"b\\"\\\\\\n",run="r"'
    assert f'topics_spark_lag{{{label},topic="a"}} 9\n' in text
    assert f"topics_spark_rows_total{{{label}}} 42\n" in text
    assert f"topics_spark_input_rows_per_second{{{label}}} 0.0\n" in text
    assert f"topics_spark_batch_seconds{{{label}}} 1.5\n" in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")] == list(METRICS)
    assert metrics_of([], {}) == ""


def test_a_listener_needs_somewhere_to_tell(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="give topic, metrics_file, or both"):
        topics.spark.listen(rig.spark)


def test_progress_goes_to_a_topic_and_to_a_file(rig: Rig, tmp_path: Path) -> None:
    source, told, metrics = rig.topic("source", 25), rig.topic("told"), tmp_path / "metrics.prom"
    rows = rig.stream(topic=source, startingSeq="earliest", maxRecordsPerTrigger=10)
    with listening(rig, url=rig.url, topic=told, metrics_file=str(metrics)):
        query = rig.start(rows, Collected(), tmp_path / "checkpoint", {"processingTime": "0 seconds"})
        try:
            wait_until("three batches are told", lambda: len(rig.values(told)) >= 3)
            assert topics.spark.lag(query) == {source: 0}
            wait_until("the metrics have no lag", lambda: f'topic="{source}"}} 0\n' in metrics.read_text())
            assert "topics_spark_rows_total" in metrics.read_text()
        finally:
            query.stop()
        wait_until("its end is told", lambda: rig.values(told)[-1]["event"] == "terminated")
        wait_until("it is out of the metrics", lambda: metrics.read_text() == "")
    first, second, third, last = rig.values(told)
    assert [one["rows"] for one in (first, second, third)] == [10, 10, 5]
    assert [one["lag"] for one in (first, second, third)] == [{source: 15}, {source: 5}, {source: 0}]
    assert (last["rows"], last["error"], last["id"]) == (25, None, first["id"])


def test_a_listener_that_cannot_tell_fails_no_query(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    found = Collected()
    with listening(rig, url="http://127.0.0.1:1", topic="told", metrics_file=str(tmp_path / "none" / "m.prom")):
        rig.run(rig.stream(topic=topic, startingSeq="earliest"), found, tmp_path / "checkpoint")
    assert len(found.rows) == 3


def test_a_query_is_not_told_of_its_own_progress(rig: Rig, tmp_path: Path) -> None:
    told = rig.topic(count=3)
    other = rig.topic("other", 1)
    with listening(rig, url=rig.url, topic=told):
        rig.run(rig.stream(topic=told, startingSeq="earliest"), Collected(), tmp_path / "one")
        rig.run(rig.stream(topic=other, startingSeq="earliest"), Collected(), tmp_path / "two")
        wait_until("the other is told", lambda: rig.client.state(told, touch=False).head_seq >= 4)
    assert {tuple(one["lag"]) for one in rig.values(told)[3:]} == {(other,)}


def test_arrivals_count_what_came_to_a_topic_since(rig: Rig) -> None:
    with Arrivals(Connection(url=rig.url), f"{rig.prefix}.t") as arrivals:
        assert arrivals.count() == 0
        arrivals.mark()
        topic = rig.topic(count=4)
        assert arrivals.count() == 4
        arrivals.mark()
        rig.append(topic, [5])
        rig.client.delete_records(topic, before_seq=6)
        assert arrivals.count() == 1
    with Arrivals(Connection(url="http://127.0.0.1:1"), "t") as arrivals:
        arrivals.mark()
        assert arrivals.count() == 0
