"""Streams: offsets, limits, AvailableNow, gaps, topics that come and go."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.rig import Collected, Rig, gaps, said_by, seqs
from topics.spark.options import read_options
from topics.spark.schema import Projection
from topics.spark.source import TopicsStreamReader
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile
from topics.testing.clock import ManualClock
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess

SEQS = Projection(pa.schema([("seq", pa.int64())]))


def test_a_stream_starts_at_the_head_and_follows(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=5)
    found = Collected()
    query = rig.start(rig.stream(topic=topic), found, tmp_path, {"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        assert found.rows == []
        rig.append(topic, [6, 7])
        assert seqs(found.wait(2, query)) == [6, 7]
        rig.append(topic, [8])
        assert seqs(found.wait(3, query)) == [6, 7, 8]
    finally:
        query.stop()
    query.awaitTermination()


def test_a_stream_goes_on_from_its_checkpoint(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=5)
    rows = rig.stream(topic=topic, startingSeq="earliest")
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    rig.append(topic, range(6, 9))
    rig.run(rows, second, tmp_path)
    assert (seqs(first.rows), seqs(second.rows)) == ([1, 2, 3, 4, 5], [6, 7, 8])


def test_available_now_ends_at_the_head_in_batches_of_the_limit(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=25)
    found = Collected()
    query = rig.run(rig.stream(topic=topic, startingSeq="earliest", maxRecordsPerTrigger=10), found, tmp_path)
    assert [len(rows) for _, rows in sorted(found.batches.items())] == [10, 10, 5]
    progress = [json.loads(p.json)["sources"][0] for p in query.recentProgress if p.numInputRows]
    state = rig.client.state(topic)
    epoch, written = state.epoch, state.last_write_ts
    assert [p["endOffset"][topic] for p in progress] == [
        {"epoch": epoch, "seq": seq, "ts": written, "since": {"epoch": epoch, "seq": since}}
        for since, seq in ((0, 10), (10, 20), (20, 25))
    ]
    assert {p["latestOffset"][topic]["seq"] for p in progress} == {25}, "what is above endOffset is the lag"


def test_a_limit_of_bytes_goes_by_the_average_size(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic()
    rig.append(topic, ["x" * 98] * 20)
    found = Collected()
    rig.run(rig.stream(topic=topic, startingSeq="earliest", maxBytesPerTrigger=500), found, tmp_path)
    assert [len(rows) for _, rows in sorted(found.batches.items())] == [5, 5, 5, 5]


def test_topics_that_come_later_are_read_from_their_beginning(rig: Rig, tmp_path: Path) -> None:
    rows = rig.stream(topicPattern=f"{rig.prefix}.*", startingSeq="latest")
    one = rig.topic("a", 3)
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    other = rig.topic("b", 2)
    rig.append(one, [4])
    rig.run(rows, second, tmp_path)
    assert first.rows == []
    assert sorted((row.topic, row.seq) for row in second.rows) == [(one, 4), (other, 1), (other, 2)]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_gap_is_told_with_its_exact_range(rig: Rig, tmp_path: Path, parts: int) -> None:
    """TM4"""
    topic = rig.topic(count=10, cap_records=10)
    rows = rig.stream(topic=topic, startingSeq="earliest", onGap="record", minPartitions=parts)
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    rig.append(topic, range(11, 36))
    rig.run(rows, second, tmp_path)
    assert gaps(first.rows) == [] and seqs(first.rows) == list(range(1, 11))
    assert gaps(second.rows) == [(11, 25, "cap")] and seqs(second.rows) == list(range(26, 36))


def test_a_gap_fails_a_stream_that_must_not_miss_anything(rig: Rig, tmp_path: Path) -> None:
    """TM4"""
    topic = rig.topic(count=10, cap_records=10)
    rows = rig.stream(topic=topic, startingSeq="earliest")
    rig.run(rows, Collected(), tmp_path)
    rig.append(topic, range(11, 36))
    assert f"topic {topic}, seqs 11 to 25 (cap)" in said_by(lambda: rig.run(rows, Collected(), tmp_path))


def test_a_gap_is_passed_over_by_a_stream_that_does_not_mind(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=30, cap_records=10)
    found = Collected()
    rig.run(rig.stream(topic=topic, startingSeq="0", onGap="ignore"), found, tmp_path)
    assert seqs(found.rows) == list(range(21, 31))


def test_a_deleted_stretch_is_no_gap_in_a_stream(rig: Rig, tmp_path: Path) -> None:
    """TM9"""
    topic = rig.topic(count=10)
    rows = rig.stream(topic=topic, startingSeq="0")
    rig.client.delete_records(topic, before_seq=4)
    found = Collected()
    rig.run(rows, found, tmp_path)
    assert seqs(found.rows) == list(range(4, 11))


def test_a_recreated_topic_is_known_by_its_epoch_even_if_it_is_longer_now(rig: Rig, tmp_path: Path) -> None:
    """TM11"""
    topic = rig.topic(count=5)
    rows = rig.stream(topic=topic, startingSeq="earliest", onGap="record")
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    rig.client.delete_topic(topic)
    rig.topic(count=8)
    rig.run(rows, second, tmp_path)
    assert seqs(first.rows) == [1, 2, 3, 4, 5]
    assert gaps(second.rows) == [(1, 8, "recreated")] and seqs(second.rows) == list(range(1, 9))


def test_a_recreated_or_deleted_topic_fails_a_stream_that_must_not_miss_anything(rig: Rig, tmp_path: Path) -> None:
    """TM11"""
    topic = rig.topic(count=5)
    rows = rig.stream(topic=topic, startingSeq="earliest")
    rig.run(rows, Collected(), tmp_path)
    rig.client.delete_topic(topic)
    assert f"topic {topic} was deleted; what it had above seq 5" in said_by(
        lambda: rig.run(rows, Collected(), tmp_path)
    )
    rig.topic(count=5)
    assert f"topic {topic} was deleted and created again" in said_by(lambda: rig.run(rows, Collected(), tmp_path))


def test_a_stream_waits_for_a_deleted_topic_if_it_may_miss_something(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=2)
    rows = rig.stream(topic=topic, startingSeq="earliest", onGap="record")
    rig.run(rows, Collected(), tmp_path)
    rig.client.delete_topic(topic)
    none, found = Collected(), Collected()
    rig.run(rows, none, tmp_path)
    rig.topic(count=1)
    rig.run(rows, found, tmp_path)
    assert none.rows == []
    assert gaps(found.rows) == [(1, 1, "recreated")] and seqs(found.rows) == [1]


def test_a_stream_starts_at_a_time(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    rig.append(topic, range(4, 6))
    moment = rig.client.diff(topic, 3, limit=1).records[0].ts
    expected = [seq for seq in range(1, 6) if rig.client.diff(topic, seq - 1, limit=1).records[0].ts >= moment]
    found = Collected()
    rig.run(rig.stream(topic=topic, startingTimestamp=moment), found, tmp_path)
    assert seqs(found.rows) == expected


def test_an_own_schema_narrows_a_stream(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    found = Collected()
    rig.run(rig.stream("data STRING", topic=topic, startingSeq="earliest"), found, tmp_path)
    assert sorted(tuple(row) for row in found.rows) == [("1",), ("2",), ("3",)]


def test_a_directory_is_followed_from_checkpoint_to_checkpoint(rig: Rig, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server") as server:
        with Rig(rig.spark, server) as there:
            there.append("t", range(1, 4))
        server.stop()
        rows = rig.stream(url=None, path=str(server.data), topic="t", startingSeq="earliest")
        first, second = Collected(), Collected()
        rig.run(rows, first, tmp_path / "checkpoint")
        server.start()
        with Rig(rig.spark, server) as there:
            there.append("t", range(4, 6))
        server.stop()
        rig.run(rows, second, tmp_path / "checkpoint")
    assert (seqs(first.rows), seqs(second.rows)) == ([1, 2, 3], [4, 5])


def test_a_stream_takes_sealed_records_from_the_directory_and_the_rest_from_the_server(
    rig: Rig, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "server") as server:
        with Rig(rig.spark, server) as there:
            there.append("t", range(1, 101))
        server.stop()
        server.start()
        with Rig(rig.spark, server) as there:
            there.append("t", range(101, 121))
            rows = there.stream(path=str(server.data), topic="t", startingSeq="earliest", minPartitions=3)
            found = Collected()
            there.run(rows, found, tmp_path / "checkpoint")
    assert seqs(found.rows) == list(range(1, 121))


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_batch_that_is_run_again_after_its_topic_is_gone_tells_of_it(
    rig: Rig, tmp_path: Path, comes_back: bool
) -> None:
    """TM11"""
    topic = rig.topic(count=6)
    limited = {"maxRecordsPerTrigger": 3, "minPartitions": 2}
    rows = rig.stream(topic=topic, startingSeq="earliest", onGap="record", **limited)
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    lose_commit(tmp_path, 1)
    rig.client.delete_topic(topic)
    if comes_back:
        rig.topic(count=3)
    rig.run(rows, second, tmp_path)
    assert seqs(first.rows) == [1, 2, 3, 4, 5, 6]
    assert gaps(second.batches[1]) == [(4, 6, "recreated")] and seqs(second.batches[1]) == []
    if comes_back:
        assert gaps(second.batches[2]) == [(1, 3, "recreated")] and seqs(second.batches[2]) == [1, 2, 3]


def lose_commit(checkpoint: Path, batch: int) -> None:
    """As if the query had died between the end of a batch and its commit."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink()


def test_history_comes_from_the_lake(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=20, cap_records=20)
    rows = rig.load(topic=topic).drop("topic").coalesce(1)
    rows.write.parquet(str(tmp_path / "lake" / "records" / "0"))
    (name,) = (tmp_path / "lake" / "records" / "0").glob("*.parquet")
    file = LakeFile(str(name.relative_to(tmp_path / "lake")), 1, 20, 20)
    covered = Covered(topic, rig.client.state(topic).epoch, 1, 20, [file])
    Lake.load(str(tmp_path / "lake"), must_exist=False).commit(Commit(run="r", covered=[covered]))
    before = rig.load(topic=topic).collect()
    rig.append(topic, range(21, 36))
    options = {"topic": topic, "archive": str(tmp_path / "lake"), "startingSeq": "0", "minPartitions": 3}
    found = sorted(rig.load(**options).collect(), key=lambda row: row.seq)
    assert found[:20] == sorted(before, key=lambda row: row.seq) and seqs(found) == list(range(1, 36))
    streamed = Collected()
    rig.run(rig.stream(**options), streamed, tmp_path / "checkpoint")
    assert sorted(streamed.rows, key=lambda row: row.seq) == found
    timed = {name: value for name, value in options.items() if name != "startingSeq"}
    assert seqs(rig.load(**timed, startingTimestamp=0).collect()) == list(range(1, 36)), "times count in the lake, too"
    rig.append(topic, range(36, 61))
    said = said_by(rig.load(**options).collect)
    assert f"topic {topic}, seqs 21 to 40 (cap)" in said and "seqs 1 to" not in said


def test_options_of_batch_reads_are_refused(rig: Rig, tmp_path: Path) -> None:
    rows = rig.stream(topic=rig.topic(count=1), endingSeq="1")
    assert "option endingSeq is '1': it is for batch reads only" in said_by(
        lambda: rig.run(rows, Collected(), tmp_path)
    )


# --- gaps, subscriptions, instances


def test_a_gap_is_one_row_whatever_the_limit_of_a_batch(rig: Rig, tmp_path: Path) -> None:
    """TM4: sums and counts over tombstones are right."""
    topic = rig.topic(count=10, cap_records=10)
    rows = rig.stream(topic=topic, startingSeq="earliest", onGap="record", maxRecordsPerTrigger=3)
    rig.run(rows, Collected(), tmp_path)
    rig.append(topic, range(11, 46))
    found = Collected()
    rig.run(rows, found, tmp_path)
    assert gaps(found.rows) == [(11, 35, "cap")] and seqs(found.rows) == list(range(36, 46))
    assert max(len(seqs(batch)) for batch in found.batches.values()) == 3


def test_a_hole_between_records_is_one_row_whatever_the_limit_of_a_batch(rig: Rig, tmp_path: Path) -> None:
    """TM12: what a router's source lost is a gap in the dest."""
    source, dest = rig.topic("source", cap_records=2), rig.topic("dest", 2)
    rig.client.put_router(f"{rig.prefix}.r", source, dest)
    rig.append(source, range(12))
    wait_until("the router copies", lambda: rig.client.state(dest, touch=False).head_seq == 14)
    whole, limited = Collected(), Collected()
    rig.run(rig.stream(topic=dest, startingSeq="0", onGap="record"), whole, tmp_path / "whole")
    rig.run(rig.stream(topic=dest, startingSeq="0", onGap="record", maxRecordsPerTrigger=2), limited, tmp_path / "few")
    for found in (whole, limited):
        assert gaps(found.rows) == [(3, 12, "source_trim")] and seqs(found.rows) == [1, 2, 13, 14]


def test_a_topic_that_is_no_longer_subscribed_is_left_alone_and_taken_up_later(rig: Rig, tmp_path: Path) -> None:
    one, other = rig.topic("a", 3), rig.topic("b", 3)
    both = rig.stream(topics=f"{one},{other}", startingSeq="earliest")
    rig.run(both, Collected(), tmp_path)
    rig.append(one, [4])
    rig.append(other, [4])
    found, again = Collected(), Collected()
    rig.run(rig.stream(topics=one, startingSeq="earliest"), found, tmp_path)
    assert [(row.topic, row.seq) for row in found.rows] == [(one, 4)]
    rig.run(both, again, tmp_path)
    assert [(row.topic, row.seq) for row in again.rows] == [(other, 4)]


def test_a_batch_that_is_run_again_has_its_topics_even_if_they_are_no_longer_subscribed(
    rig: Rig, tmp_path: Path
) -> None:
    one, other = rig.topic("a", 3), rig.topic("b", 3)
    first, second = Collected(), Collected()
    rig.run(rig.stream(topics=f"{one},{other}", startingSeq="earliest"), first, tmp_path)
    lose_commit(tmp_path, 0)
    rig.run(rig.stream(topics=one, startingSeq="earliest"), second, tmp_path)
    assert sorted(second.batches[0]) == sorted(first.batches[0])


# --- limits that wait


def test_a_batch_waits_for_enough_records_or_for_its_time(rig: Rig) -> None:
    topic = rig.topic(count=2)
    options = {"url": rig.url, "topic": topic, "minRecordsPerTrigger": "5", "maxTriggerDelay": "60s"}
    reader = TopicsStreamReader(read_options({**options, "startingSeq": "0"}, is_stream=True, environ={}), SEQS)
    clock = reader._clock = ManualClock()
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    assert first[topic]["seq"] == 2, "the first batch does not wait"
    rig.append(topic, [3, 4])
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    rig.append(topic, [5, 6, 7])
    second = reader.latestOffset(first, ReadAllAvailable())
    assert second[topic]["seq"] == 7
    rig.append(topic, [8])
    clock.advance(59_999)
    assert reader.latestOffset(second, ReadAllAvailable()) == second
    clock.advance(1)
    third = reader.latestOffset(second, ReadAllAvailable())
    assert third[topic]["seq"] == 8
    clock.advance(600_000)
    assert reader.latestOffset(third, ReadAllAvailable()) == third, "without news there is no batch"
    reader.stop()


def test_available_now_waits_for_nothing(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    rows = rig.stream(topic=topic, startingSeq="earliest", minRecordsPerTrigger=100)
    first, second = Collected(), Collected()
    rig.run(rows, first, tmp_path)
    rig.append(topic, [4])
    rig.run(rows, second, tmp_path)
    assert (seqs(first.rows), seqs(second.rows)) == ([1, 2, 3], [4])


def test_times_per_topic_bound_a_batch_read(rig: Rig) -> None:
    one, other = rig.topic("a", 3), rig.topic("b", 3)
    ts = rig.client.diff(other, 2, limit=1).records[0].ts
    expected = [(one, seq) for seq in (1, 2, 3)]
    expected += [(other, record.seq) for record in rig.client.diff(other).records if record.ts >= ts]
    rows = rig.load(topics=f"{one},{other}", startingTimestamp={one: 0, other: ts})
    assert sorted((row.topic, row.seq) for row in rows.collect()) == expected


def test_partitions_have_no_more_records_than_they_may(rig: Rig) -> None:
    rows = rig.load(topic=rig.topic(count=25), maxRecordsPerPartition=10)
    assert rows.rdd.glom().map(len).collect() == [8, 8, 9]


# --- bytes


def test_binary_data_goes_in_and_out(rig: Rig) -> None:
    values = [bytes([0, 255, n]) for n in range(3)]
    rows = rig.spark.createDataFrame([(value,) for value in values], "data BINARY").coalesce(1)
    topic = rig.topic()
    rig.save(rows, topic, binary="base64")
    assert rig.values(topic) == ["AP8A", "AP8B", "AP8C"]
    back = rig.load("seq BIGINT, data BINARY", topic=topic, binary="base64").orderBy("seq").collect()
    assert [bytes(row.data) for row in back] == values
    plain = rig.load("data BINARY", topic=topic).collect()
    assert sorted(bytes(row.data) for row in plain) == [b'"AP8A"', b'"AP8B"', b'"AP8C"']
    rig.append(topic, [{"no": "bytes"}])
    assert f"topic {topic}, seq 4: data is no JSON string of base64" in said_by(
        rig.load("data BINARY", topic=topic, binary="base64").collect
    )


# --- foreachBatch and the mode complete


def test_a_table_that_is_rewritten_goes_through_foreach_batch(rig: Rig, tmp_path: Path) -> None:
    """Complete: each batch writes the whole table, once, even if it is run again."""
    source, target = rig.topic("source"), rig.topic("target")
    counts = (
        rig.stream("tag STRING, data STRING", topic=source, startingSeq="earliest")
        .groupBy("data")
        .count()
        .selectExpr("data AS tag", "to_json(struct(count)) AS data")
    )

    def write(rows: DataFrame, batch: int) -> None:
        rig.save(rows.orderBy("tag").coalesce(1), target, writeId="counts")

    def run() -> None:
        query = (
            counts.writeStream.outputMode("complete")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .foreachBatch(write)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    rig.append(source, ["a", "b", "a"])
    run()
    rig.append(source, ["b", "c"])
    run()
    lose_commit(tmp_path, 1)
    run()
    assert rig.values(target) == [{"count": n} for n in (2, 1, 2, 2, 1)]


def test_spark_offers_no_real_time_mode_to_sources_in_python(rig: Rig, tmp_path: Path) -> None:
    """As the page for users of Kafka says; the day this fails, there is something to build."""
    topic = rig.topic(count=3)
    writer = rig.stream(topic=topic, startingSeq="earliest").writeStream.format("console").outputMode("update")

    def run() -> None:
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(realTime="5 minutes").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert "STREAMING_REAL_TIME_MODE" in said_by(run)
