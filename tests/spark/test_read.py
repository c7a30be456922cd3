"""Batch reads: what comes, from where, in how many parts."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, TimestampType

from tests.spark.rig import Rig, gaps, said_by, seqs
from topics import reader
from topics.client import Client
from topics.clock import SystemClock
from topics.testing.patience import wait_until
from topics.testing.server import ServerProcess


def test_a_record_comes_with_all_it_has(rig: Rig) -> None:
    """CV6, CV9"""
    topic = rig.topic()
    rig.client.append(topic, [{"data": {"b": 1, "a": [None, "é"]}, "tag": "x", "node": "n", "meta": {"k": "v"}}])
    rig.client.append(topic, [{"data": None}])
    rows = rig.load(topic=topic)
    assert rows.columns == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
    assert [rows.schema[name].dataType for name in ("topic", "seq", "ts")] == [
        StringType(),
        LongType(),
        TimestampType(),
    ]
    first, second = rows.orderBy("seq").collect()
    assert (first.topic, first.seq, first.node, first.tag) == (topic, 1, "n", "x")
    assert (first.meta, first.data) == ('{"k":"v"}', '{"b":1,"a":[null,"é"]}')
    assert (second.node, second.tag, second.meta, second.data) == (None, None, None, "null")
    written = rig.client.diff(topic).records[0].ts
    assert rows.select(F.unix_millis("ts").alias("ms")).first().ms == written  # type: ignore[union-attr]


def test_a_batch_read_goes_from_the_earliest_record_to_the_head(rig: Rig) -> None:
    topic = rig.topic(count=30, cap_records=20)
    assert seqs(rig.load(topic=topic).collect()) == list(range(11, 31))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingSeq": "4"}, range(5, 11)),
        ({"startingSeq": {"TOPIC": 8}}, range(9, 11)),
        ({"startingSeq": "latest"}, range(0)),
        ({"endingSeq": "3"}, range(1, 4)),
        ({"endingSeq": {"TOPIC": 99}}, range(1, 11)),
        ({"startingSeq": "4", "endingSeq": "6", "minPartitions": 5}, range(5, 7)),
    ],
)
def test_seqs_bound_a_read_as_cursors_do(rig: Rig, options: dict[str, object], expected: range) -> None:
    """The start is exclusive, the end inclusive. DF2"""
    topic = rig.topic(count=10)
    named = {k: {topic: v["TOPIC"]} if isinstance(v, dict) else v for k, v in options.items()}
    assert seqs(rig.load(topic=topic, **named).collect()) == list(expected)


def test_times_bound_a_read_by_ts(rig: Rig) -> None:
    """The start is inclusive, the end exclusive, so that windows join without overlap."""
    topic = rig.topic(count=4)
    rig.append(topic, range(5, 9))
    first, second = (rig.client.diff(topic, from_seq, limit=1).records[0].ts for from_seq in (0, 4))
    early = [seq for seq in range(1, 9) if rig.client.diff(topic, seq - 1, limit=1).records[0].ts < second]
    assert seqs(rig.load(topic=topic, startingTimestamp=second).collect()) == [s for s in range(1, 9) if s not in early]
    assert seqs(rig.load(topic=topic, startingTimestamp=first, endingTimestamp=second).collect()) == early
    assert seqs(rig.load(topic=topic, startingTimestamp="2099-01-01T00:00:00Z").collect()) == []


def test_several_topics_and_patterns_are_read_together(rig: Rig) -> None:
    one, two, other = rig.topic("in.a", 3), rig.topic("in.b", 2), rig.topic("out", 5)
    rows = rig.load(topics=f"{one}, {two}", startingSeq={one: 1}).collect()
    assert sorted((row.topic, row.seq) for row in rows) == [(one, 2), (one, 3), (two, 1), (two, 2)]
    rows = rig.load(topicPattern=f"{rig.prefix}[.]in[.].*").collect()
    assert {row.topic for row in rows} == {one, two} and len(rows) == 5
    assert other not in {row.topic for row in rows}


def test_a_topic_is_split_into_parts_of_seqs(rig: Rig) -> None:
    topic = rig.topic(count=1000)
    rows = rig.load(topic=topic, minPartitions=4).select("seq", F.spark_partition_id().alias("part"))
    found = rows.groupBy("part").agg(F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("n"))
    assert sorted((r.first, r.last, r.n) for r in found.collect()) == [
        (1, 250, 250),
        (251, 500, 250),
        (501, 750, 250),
        (751, 1000, 250),
    ]


def test_an_own_schema_narrows_what_is_read(rig: Rig) -> None:
    topic = rig.topic(count=5)
    assert [row.asDict() for row in rig.load("data STRING", topic=topic).collect()] == [
        {"data": str(n)} for n in range(1, 6)
    ]
    rows = rig.load("tag STRING, seq BIGINT", topic=topic)
    assert rows.columns == ["tag", "seq"] and seqs(rows.collect()) == [1, 2, 3, 4, 5]
    assert rig.load("data STRING", topic=topic, onGap="record").count() == 5


@pytest.mark.parametrize(
    ("schema", "message"),
    [("data STRING, value STRING", "there is no column 'value'"), ("seq INT", "column seq is BIGINT, not INT")],
)
def test_a_schema_that_cannot_be_had_is_refused(rig: Rig, schema: str, message: str) -> None:
    assert message in said_by(rig.load(schema, topic=rig.topic(count=1)).collect)


def test_meta_is_left_out_if_it_is_not_wanted(rig: Rig) -> None:
    topic = rig.topic()
    rig.client.append(topic, [{"data": 1, "meta": {"k": 1}}])
    rows = rig.load(topic=topic, includeMeta="false")
    assert "meta" not in rows.columns and rows.count() == 1
    assert rig.load("meta STRING", topic=topic, includeMeta="false").first() == (None,)


def test_own_records_are_left_out(rig: Rig) -> None:
    """ND1, ND2"""
    topic = rig.topic()
    rig.client.append(topic, [{"data": n, "node": node} for n, node in enumerate(("me", "you", None, "me"))])
    assert seqs(rig.load(topic=topic, node="me").collect()) == [2, 3]
    assert seqs(rig.load("seq BIGINT", topic=topic, node=["me", "you"]).collect()) == [3]


def test_an_empty_topic_and_an_empty_range_give_no_rows(rig: Rig) -> None:
    topic = rig.topic()
    assert rig.load(topic=topic).collect() == []
    rig.append(topic, range(3))
    assert rig.load(topic=topic, startingSeq="3").collect() == []


def test_json_is_parsed_by_spark(rig: Rig) -> None:
    topic = rig.topic()
    rig.append(topic, [{"sku": sku, "n": n} for n, sku in enumerate("abab")])
    orders = rig.load(topic=topic).select(F.from_json("data", "sku STRING, n INT").alias("o")).select("o.*")
    assert sorted(map(tuple, orders.groupBy("sku").sum("n").collect())) == [("a", 2), ("b", 4)]


# --- gaps


def test_a_gap_fails_a_read_with_its_exact_range(rig: Rig) -> None:
    """TM3, TM4"""
    topic = rig.topic(count=30, cap_records=20)
    assert f"topic {topic}, seqs 3 to 10 (cap)" in said_by(rig.load(topic=topic, startingSeq="2").collect)
    assert seqs(rig.load(topic=topic, startingSeq="10").collect()) == list(range(11, 31))


def test_a_gap_is_a_row_if_that_is_wanted(rig: Rig) -> None:
    """TM4, TM5"""
    topic = rig.topic(count=30, cap_records=20)
    rows = rig.load(topic=topic, startingSeq="0", onGap="record", minPartitions=4)
    assert rows.columns[-4:] == ["kind", "gap_from", "gap_to", "reason"]
    found = rows.collect()
    assert gaps(found) == [(1, 10, "cap")] and seqs(found) == list(range(11, 31))
    assert {row.kind for row in found if row.seq is not None} == {"record"}
    (told,) = (row for row in found if row.kind == "tombstone")
    assert (told.topic, told.seq, told.ts, told.data) == (topic, None, None, None)


def test_a_gap_is_passed_over_if_that_is_wanted(rig: Rig) -> None:
    topic = rig.topic(count=30, cap_records=20)
    assert seqs(rig.load(topic=topic, startingSeq="0", onGap="ignore").collect()) == list(range(11, 31))


def test_a_deleted_stretch_is_never_a_gap(rig: Rig) -> None:
    """TM9"""
    topic = rig.topic(count=10)
    rig.client.delete_records(topic, before_seq=5)
    assert seqs(rig.load(topic=topic, startingSeq="0").collect()) == list(range(5, 11))
    assert gaps(rig.load(topic=topic, startingSeq="0", onGap="record").collect()) == []


def test_a_cursor_of_an_earlier_instance_is_a_gap(rig: Rig) -> None:
    """TM11"""
    topic = rig.topic(count=20)
    rig.client.delete_topic(topic)
    rig.topic(count=5)
    found = rig.load(topic=topic, startingSeq="9", onGap="record").collect()
    assert gaps(found) == [(1, 5, "recreated")] and seqs(found) == [1, 2, 3, 4, 5]
    assert "was deleted and created again" in said_by(rig.load(topic=topic, startingSeq="9").collect)


# --- data directories


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A server that was stopped gracefully, with a topic of 2,500 records in segments of 500."""
    server = ServerProcess(tmp_path_factory.mktemp("stopped"), {"TOPICS_SEGMENT_MAX_EVENTS": "500"})
    with server:
        with Client("http://{}:{}".format(*server.address), "") as client:
            client.put_topic("orders", cap_records=2400)
            for first in range(1, 2501, 500):
                client.append("orders", [{"data": seq, "tag": f"t{seq % 5}"} for seq in range(first, first + 500)])
            client.delete_records("orders", match="t3")
        assert server.stop() == 0
    return server


EXPECTED = [seq for seq in range(101, 2501) if seq % 5 != 3]


def test_a_directory_is_read_without_a_server(rig: Rig, stopped: ServerProcess) -> None:
    rows = rig.load(url=None, path=str(stopped.data), topic="orders")
    found = rows.collect()
    assert seqs(found) == EXPECTED
    assert {row.data for row in found} == {str(seq) for seq in EXPECTED} and {row.tag for row in found} == {
        "t0",
        "t1",
        "t2",
        "t4",
    }
    assert rows.filter("tag = 't1'").count() == 480


def test_parts_of_a_directory_end_where_segments_end(rig: Rig, stopped: ServerProcess) -> None:
    rows = rig.load(url=None, path=str(stopped.data), topicPattern="ord.*", minPartitions=2)
    parts = rows.groupBy(F.spark_partition_id()).agg(F.min("seq"), F.max("seq")).collect()
    with reader.open_directory(stopped.data) as directory:
        pieces = directory.pieces("orders")
    assert len(parts) == 2 and len(pieces) > 2
    assert {row[2] for row in parts} <= {piece.last for piece in pieces}


def test_a_directory_tells_its_gaps_and_knows_times(rig: Rig, stopped: ServerProcess) -> None:
    base = {"url": None, "path": str(stopped.data), "topic": "orders"}
    assert "topic orders, seqs 1 to 100 (cap)" in said_by(rig.load(**base, startingSeq="0").collect)
    found = rig.load(**base, startingSeq="0", endingSeq="150", onGap="record").collect()
    assert gaps(found) == [(1, 100, "cap")] and seqs(found) == [s for s in EXPECTED if s <= 150]
    times = sorted((row.ts, row.seq) for row in rig.load(**base).collect())
    moment = times[len(times) // 2][0]
    since = rig.load(**base, startingTimestamp=moment.isoformat() + "+00:00").collect()
    until = rig.load(**base, endingTimestamp=moment.isoformat() + "+00:00").collect()
    assert seqs(since) == [seq for ts, seq in times if ts >= moment]
    assert seqs(until) == [seq for ts, seq in times if ts < moment]


def test_what_is_not_sealed_comes_from_the_server_or_is_named(rig: Rig, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        with Rig(rig.spark, server) as there:
            there.append("t", range(1, 11))
        server.stop()
        server.start()
        with Rig(rig.spark, server) as there:
            there.append("t", range(11, 15))
            path = str(server.data)
            assert seqs(there.load(path=path, topic="t", minPartitions=3).collect()) == list(range(1, 15))
            alone = {"url": None, "path": path}
            said = said_by(there.load(**alone, topic="t").collect)
            assert "seqs above 10, if there are any, of topic t are not sealed" in said and "Give option url" in said
            said = said_by(there.load(**alone, topic="t", endingSeq="12").collect)
            assert "seqs 11 to 12 of topic t are not sealed" in said
            assert seqs(there.load(**alone, topic="t", endingSeq="sealed").collect()) == list(range(1, 11))
            assert seqs(there.load(**alone, topic="t", endingSeq="7").collect()) == list(range(1, 8))
            said = said_by(there.load(**alone, topic="nowhere").collect)
            assert "there is no topic 'nowhere'" in said and "last checkpoint" in said


def test_a_directory_that_is_none_is_named(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = said_by(rig.load(url=None, path=str(tmp_path / "empty"), topic="t").collect)
    assert "is not a data directory of topics" in said


# --- what is said when it fails


def test_errors_name_what_is_wrong(rig: Rig) -> None:
    assert "option onGap is 'loud'" in said_by(lambda: rig.load(topic="t", onGap="loud").collect())
    assert "there is no topic 'never-created'" in said_by(rig.load(topic="never-created").collect)
    assert "no topic matches" in said_by(rig.load(topicPattern="never-.*").collect)
    refused = {"url": "http://127.0.0.1:1", "retries": "0"}
    assert "cannot connect to http://127.0.0.1:1" in said_by(rig.load(topic="t", **refused).collect)


FILTERS = [
    "seq > 40 AND seq <= 50",
    "seq = 7",
    "ts >= TIMESTAMP '{middle}'",
    "ts < TIMESTAMP '{middle}' AND tag = 'b'",
    "tag IN ('a', 'c') AND seq < 20",
    "tag IS NULL OR seq > 55",
    "topic = 'nowhere'",
    "seq > 1000",
]


@pytest.mark.parametrize("place", ["server", "segments"])
def test_filters_that_are_pushed_give_the_same_rows_and_read_fewer(rig: Rig, tmp_path: Path, place: str) -> None:
    with ServerProcess(tmp_path) as server, Rig(rig.spark, server) as there:
        there.client.put_topic("t")
        for first in range(0, 60, 20):
            there.client.append("t", [{"data": n, "tag": "abc"[n % 3]} for n in range(first, first + 20)])
            now = there.client.state("t").last_write_ts
            wait_until("time passes", lambda now=now: SystemClock().now_ms() > (now or 0))  # type: ignore[misc]
        server.stop()
        server.start()
        options = {"url": there.url, "topic": "t", **({"path": str(server.data)} if place == "segments" else {})}
        middle = there.load(**options).where("seq = 21").first()
        assert middle is not None
        conf = rig.spark.conf
        conf.set("spark.sql.python.filterPushdown.enabled", True)
        try:
            for text in FILTERS:
                condition = text.format(middle=middle.ts)
                pushed = there.load(**options, pushFilters=True).where(condition)
                expected = there.load(**options).where(condition)
                assert sorted(pushed.collect()) == sorted(expected.collect()), condition
            narrow = there.load(**options, pushFilters=True).where("seq > 40 AND tag = 'a'")
            assert {row.tag for row in narrow.collect()} == {"a"}
            assert scanned(narrow) == narrow.count() < scanned(there.load(**options).where("seq > 40 AND tag = 'a'"))
        finally:
            conf.unset("spark.sql.python.filterPushdown.enabled")
        assert "filterPushdown.enabled" in said_by(lambda: there.load(**options, pushFilters=True).collect())


def scanned(rows: DataFrame) -> int:
    """The rows that the source has handed to Spark."""
    rows.collect()
    plan: Any = rows._jdf.queryExecution().executedPlan()
    while not plan.nodeName().startswith("BatchScan"):
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


def test_offsets_of_a_stream_start_a_batch_read(rig: Rig) -> None:
    topic = rig.topic(count=6)
    offset = json.dumps({topic: {"epoch": rig.client.state(topic).epoch, "seq": 4}})
    assert seqs(rig.load(topic=topic, startingSeq=offset).collect()) == [5, 6]


def test_a_directory_beside_its_server_gives_what_the_server_gives_after_a_delete(rig: Rig, tmp_path: Path) -> None:
    """LV1: the segments are as old as the last checkpoint, and the delete is younger."""
    with ServerProcess(tmp_path / "server") as server:
        with Rig(rig.spark, server) as there:
            there.client.append("t", [{"data": n, "tag": "abc"[n % 3]} for n in range(900)])
        server.stop()
        server.start()
        with Rig(rig.spark, server) as there:
            there.client.delete_records("t", match="b")
            there.append("t", range(10))
            both = there.load(topic="t", path=str(server.data), minPartitions=4).orderBy("seq").collect()
            assert both == there.load(topic="t").orderBy("seq").collect()
    assert len(both) == 610
