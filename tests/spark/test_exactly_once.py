"""Every row once: after a killed task, a lost commit, a restart from the checkpoint, and kill -9 of the server."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tests.spark.rig import Rig
from topics.client import Client
from topics.spark.source import TopicsSource
from topics.spark.writer import WINDOW_MS
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

ROWS = 30_000  # six chunks of one partition


def register_killed(spark: SparkSession, name: str, deaths: int, *, is_acked: bool) -> None:
    """A sink whose worker kills itself at its third chunk, in the first `deaths` attempts of a task.

    With `is_acked` the server's answer has come by then, else the chunk was sent in vain.
    """

    class Killed(TopicsSource):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return deadly(super().writer(schema, overwrite))

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            return deadly(super().streamWriter(schema, overwrite))

    def deadly(writer: Any) -> Any:
        write = writer.write

        def kill_then_write(rows: Iterator[pa.RecordBatch]) -> Any:
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() < deaths:
                append, sent = Client.append_arrow, [0]

                def kill_at_third(self: Client, *arguments: Any, **named: Any) -> Any:
                    sent[0] += 1
                    if sent[0] == 3 and not is_acked:
                        os.kill(os.getpid(), signal.SIGKILL)
                    answer = append(self, *arguments, **named)
                    if sent[0] == 3:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return answer

                Client.append_arrow = kill_at_third  # type: ignore[method-assign]
            return write(rows)

        writer.write = kill_then_write
        return writer

    spark.dataSource.register(Killed)


def numbers(rig: Rig, count: int = ROWS) -> DataFrame:
    return rig.spark.range(count).coalesce(1).select(F.col("id").cast("string").alias("data"))


def target(rig: Rig) -> str:
    return rig.topic("out", idempotency_window_ms=WINDOW_MS)


@pytest.mark.parametrize("is_acked", [True, False])
def test_a_killed_task_of_a_batch_write_leaves_every_row_once(rig: Rig, is_acked: bool) -> None:
    """ID1, ID3"""
    topic = target(rig)
    register_killed(rig.spark, "topics-killed", 2, is_acked=is_acked)
    numbers(rig).write.format("topics-killed").option("url", rig.url).option("topic", topic).mode("append").save()
    assert rig.values(topic) == list(range(ROWS))


def source(rig: Rig, parts: int = 1, **options: Any) -> DataFrame:
    return rig.stream(topic=rig.topic("in", ROWS), startingSeq="0", minPartitions=parts, **options).select("data")


def into(rig: Rig, rows: DataFrame, sink: str, topic: str, checkpoint: Path) -> Any:
    writer = rows.writeStream.format(sink).option("url", rig.url).option("topic", topic)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), "the query hangs"


def test_a_killed_task_of_a_stream_leaves_every_row_once(rig: Rig, tmp_path: Path) -> None:
    """ID1"""
    topic = target(rig)
    register_killed(rig.spark, "topics-killed", 2, is_acked=True)
    into(rig, source(rig, maxRecordsPerTrigger=ROWS // 2), "topics-killed", topic, tmp_path)
    assert rig.values(topic) == list(range(1, ROWS + 1))


def test_a_query_that_died_in_a_batch_goes_on_from_its_checkpoint(rig: Rig, tmp_path: Path) -> None:
    """ID1"""
    topic, rows = target(rig), source(rig)
    register_killed(rig.spark, "topics-killed", 99, is_acked=True)
    with pytest.raises(Exception, match=r"crashed|exited|aborted|failed"):
        into(rig, rows, "topics-killed", topic, tmp_path)
    assert rig.client.state(topic).head_seq == 15_000, "three chunks were written before each death, once"
    into(rig, rows, "topics", topic, tmp_path)
    assert rig.values(topic) == list(range(1, ROWS + 1))


def test_a_lost_commit_leaves_every_row_once(rig: Rig, tmp_path: Path) -> None:
    """ID1"""
    topic, rows = target(rig), source(rig, 3, maxRecordsPerTrigger=20_000)
    into(rig, rows, "topics", topic, tmp_path)
    commits = sorted((tmp_path / "commits").glob("[0-9]*"))
    assert [commit.name for commit in commits] == ["0", "1"]
    commits[-1].unlink()
    (tmp_path / "commits" / ".1.crc").unlink()
    into(rig, rows, "topics", topic, tmp_path)
    assert (tmp_path / "commits" / "1").exists()
    assert sorted(rig.values(topic)) == list(range(1, ROWS + 1))


def test_the_keys_of_a_stream_are_its_query_batch_partition_and_rows(rig: Rig, tmp_path: Path) -> None:
    """Spark does not document that its tasks know the query and the batch. ID1"""
    topic, rows = target(rig), source(rig)
    into(rig, rows, "topics", topic, tmp_path)
    query = (tmp_path / "metadata").read_text().split('"id":"')[1].split('"')[0]
    for place, first_seq in ((0, 1), (25_000, 25_001)):
        key = f"{query}/0/0/{place}"
        answer = rig.client.append(topic, [{"data": "again"}], idempotency_key=key, on_mismatch=None)
        assert (answer.deduped, answer.mismatch, answer.first_seq) == (True, True, first_seq)


def test_writing_the_same_frame_again_appends_it_again(rig: Rig) -> None:
    topic = target(rig)
    for _ in range(2):
        rig.save(numbers(rig, 10), topic)
    assert rig.values(topic) == [*range(10), *range(10)]


def test_a_write_that_is_named_is_done_once(rig: Rig) -> None:
    """ID1"""
    topic = target(rig)
    for name in ("monday", "monday", "tuesday"):
        rig.save(numbers(rig, 10), topic, writeId=name)
    assert rig.values(topic) == [*range(10), *range(10)]


def test_a_batch_that_has_other_rows_when_it_is_run_again_is_refused_and_doubles_none(rig: Rig, tmp_path: Path) -> None:
    """ID9: a record was deleted after it had been copied, and before the batch was committed."""
    topic, given = target(rig), rig.topic("in")
    rig.client.append(given, [{"data": n, "tag": f"t.{n}"} for n in range(100)])
    rows = rig.stream(topic=given, startingSeq="0").select("data")
    into(rig, rows, "topics", topic, tmp_path)
    for commit in (tmp_path / "commits").iterdir():
        commit.unlink()
    rig.client.delete_records(given, match="t.50")
    with pytest.raises(Exception, match=rf"other rows were written to topic {re.escape(topic)}"):
        into(rig, rows, "topics", topic, tmp_path)
    assert rig.values(topic) == list(range(100))


def test_batches_that_are_written_one_by_one_are_named_by_their_ids(rig: Rig, tmp_path: Path) -> None:
    """For what a sink cannot do by itself, such as aggregates that change. ID1"""
    topic = target(rig)
    counts = rig.stream(topic=rig.topic("in", 9), startingSeq="0", maxRecordsPerTrigger=5).groupBy().count()

    def write(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            rig.save(rows.selectExpr("struct(*) AS data"), topic, writeId=f"counts/{batch}")

    writer = counts.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(PATIENCE_S)
    assert rig.values(topic) == [{"count": 5}, {"count": 9}]


# --- kill -9


class Killing:
    """Kills the server once a topic has come far enough, and starts it again on the same port."""

    def __init__(self, server: ServerProcess, has_come: Callable[[], bool]) -> None:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        self._server = server
        self._has_come = has_come
        self._is_over = threading.Event()
        self.is_done = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._has_come():
            if self._is_over.wait(0.002):
                return
        self._server.kill()
        self._server.start()
        self.is_done = True

    def __enter__(self) -> "Killing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def mortal(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    with ServerProcess(tmp_path / "server") as server, Rig(spark, server) as rig:
        yield rig


def test_a_stream_outlives_kill_9_of_the_server(mortal: Rig, tmp_path: Path) -> None:
    """G1, ID8"""
    topic, rows = target(mortal), source(mortal, 2, maxRecordsPerTrigger=5000)
    with Killing(mortal.server, lambda: mortal.client.state(topic).head_seq > ROWS // 3) as killing:
        into(mortal, rows, "topics", topic, tmp_path / "checkpoint")
    assert killing.is_done, "the server was killed in the middle"
    assert sorted(mortal.values(topic)) == list(range(1, ROWS + 1))


def test_a_batch_write_outlives_kill_9_of_the_server(mortal: Rig) -> None:
    """G1, ID8"""
    topic, count = target(mortal), 200_000
    with Killing(mortal.server, lambda: mortal.client.state(topic).head_seq > count // 10) as killing:
        mortal.save(numbers(mortal, count), topic)
    assert killing.is_done, "the server was killed in the middle"
    assert mortal.values(topic) == list(range(count))


def test_a_batch_read_outlives_kill_9_of_the_server(mortal: Rig, tmp_path: Path) -> None:
    """G1"""
    topic = mortal.topic("in")
    mortal.append(topic, ["x" * 2000] * ROWS)
    begun = tmp_path / "begun"

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            yield batch.select(["seq"])

    rows = mortal.load(topic=topic).mapInArrow(note, "seq BIGINT")
    with Killing(mortal.server, begun.exists) as killing:
        assert sorted(row.seq for row in rows.collect()) == list(range(1, ROWS + 1))
    assert killing.is_done
