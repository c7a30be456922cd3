"""Python workers of Spark are killed with -9 while they read or write: tasks are tried again, each row counts once."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

import topics.spark
from tests.spark.rig import Rig
from topics.client import NewRecord
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.servers.connection import Connection
from topics.testing.patience import wait_until

ROWS = 300_000
TRIES = 5  # until the workers are killed before they are through


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def workers(rig: Rig) -> list[int]:
    """The workers of this session: the daemon is a child of the JVM, and they are its children."""
    jvm: Any = rig.spark._jvm
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    return [worker for daemon in children(java) for worker in children(daemon)]


def is_disturbed(rig: Rig, work: Callable[[], Any], is_under_way: Callable[[], bool]) -> bool:
    """Do the work, and kill all workers in its midst. False: it was over too soon."""
    is_over = threading.Event()
    victims: list[int] = []

    def kill() -> None:
        wait_until("the work begins", lambda: is_under_way() or is_over.is_set())
        if not is_over.is_set():
            victims.extend(workers(rig))
            for victim in victims:
                os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        work()
    finally:
        was_under_way = bool(victims)
        is_over.set()
        killer.join()
    return was_under_way


def test_a_write_whose_workers_are_killed_has_each_row_once(rig: Rig) -> None:
    """ID1: data, tag, node and meta, row by row."""
    rows = rig.spark.range(ROWS).select(
        F.col("id").cast("string").alias("data"),
        F.concat(F.lit("t."), F.col("id") % 7).alias("tag"),
        F.concat(F.lit("n"), F.col("id") % 3).alias("node"),
        F.to_json(F.struct("id")).alias("meta"),
    )
    for attempt in range(TRIES):
        topic = rig.topic(f"t{attempt}", idempotency_window_ms=86_400_000)
        done = is_disturbed(
            rig,
            lambda topic=topic: rig.save(rows.repartition(4), topic),  # type: ignore[misc]
            lambda topic=topic: rig.client.state(topic, touch=False).head_seq > 0,  # type: ignore[misc]
        )
        if done:
            break
    assert done, "it was never disturbed"
    assert rig.client.state(topic).head_seq == ROWS
    found = rig.load(topic=topic).select("data", "tag", "node", "meta")
    assert found.exceptAll(rows).isEmpty() and rows.exceptAll(found).isEmpty()


def fill(rig: Rig) -> str:
    """A topic of records of which each part matters."""
    topic = rig.topic("in")
    for first in range(0, ROWS, 5000):
        numbers = range(first, first + 5000)
        rig.client.append(
            topic, [NewRecord(n, f"t.{n % 7}", f"n{n % 3}", {"m": n} if n % 2 else None) for n in numbers]
        )
    return topic


def test_an_archive_whose_workers_are_killed_has_each_row_once(rig: Rig, tmp_path: Path) -> None:
    """All columns, row by row."""
    topic = fill(rig)
    plan = Plan(selection=topic, server=Connection(url=rig.url), is_once=True)
    for attempt in range(TRIES):
        root = tmp_path / f"lake{attempt}"
        done = is_disturbed(
            rig,
            lambda root=root: archive(rig.spark, plan, str(root)),  # type: ignore[misc]
            lambda root=root: any(root.glob("records/*/*/_temporary/**/*.parquet")),  # type: ignore[misc]
        )
        if done:
            break
    assert done, "it was never disturbed"
    found = topics.spark.table(rig.spark, topic, lake=str(root))
    expected = rig.load(topic=topic)
    assert found.count() == ROWS
    assert found.exceptAll(expected).isEmpty() and expected.exceptAll(found).isEmpty()


@pytest.mark.full
def test_a_stream_whose_workers_are_killed_has_each_row_once(rig: Rig, tmp_path: Path) -> None:
    """ID1: data, tag, node and meta, row by row. One of the workers plans for the driver: Spark gives the query up."""
    topic = fill(rig)
    options = {"startingSeq": "earliest", "maxRecordsPerTrigger": 100_000, "minPartitions": 2}
    rows = rig.stream(topic=topic, **options).select("data", "tag", "node", "meta")

    def copy(out: str, checkpoint: Path) -> None:
        try:
            rig.run(rows, out, checkpoint)
        except StreamingQueryException:
            rig.run(rows, out, checkpoint)

    for attempt in range(TRIES):
        out = rig.topic(f"out{attempt}", idempotency_window_ms=86_400_000)
        done = is_disturbed(
            rig,
            lambda out=out: copy(out, tmp_path / out),  # type: ignore[misc]
            lambda out=out: rig.client.state(out, touch=False).head_seq > 0,  # type: ignore[misc]
        )
        if done:
            break
    assert done, "it was never disturbed"
    assert rig.client.state(out).head_seq == ROWS
    copied, given = (rig.load(topic=name).select("data", "tag", "node", "meta") for name in (out, topic))
    assert copied.exceptAll(given).isEmpty() and given.exceptAll(copied).isEmpty()
