"""Streams: offsets, limits, AvailableNow, gaps, topics that come and go."""

import json
from pathlib import Path

import pytest

from tests.spark.rig import Collected, Rig, gaps, said_by, seqs
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile
from topics.testing.server import ServerProcess


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
    epoch = rig.client.state(topic).epoch
    assert [p["endOffset"][topic] for p in progress] == [
        {"epoch": epoch, "seq": seq, "since": {"epoch": epoch, "seq": since}}
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
