"""The sink: what is written, where to, and what is refused."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.rig import Collected, Rig, said_by
from topics.spark.options import write_options
from topics.spark.writer import CHUNK_RECORDS, WINDOW_MS, TopicsStreamWriter, TopicsWriter
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess


def test_rows_become_records(rig: Rig) -> None:
    topic = rig.topic()
    rows = rig.spark.createDataFrame(
        [('{"b": 1, "a": 2}', "x", "n1", '{"k": 1}'), ("null", None, None, None)],
        "data STRING, tag STRING, node STRING, meta STRING",
    ).coalesce(1)
    rig.save(rows, topic)
    first, second = rig.client.diff(topic, include_tags=True).records
    assert (bytes(first.data), first.tag, first.node, bytes(first.meta)) == (
        b'{"b": 1, "a": 2}',
        "x",
        "n1",
        b'{"k": 1}',
    )
    assert (bytes(second.data), second.tag, second.node, bytes(second.meta)) == (b"null", None, None, b"")


def test_structs_are_written_as_to_json_would(rig: Rig) -> None:
    topic = rig.topic()
    value = F.struct(
        "id", F.lit(None).cast("string").alias("x"), F.array(F.lit(1.5)).alias("a"), F.lit('é"\n').alias("s")
    )
    rows = rig.spark.range(3).select(value.alias("data"), F.to_json(value).alias("tag")).coalesce(1)
    rig.save(rows, topic)
    records = rig.client.diff(topic, include_tags=True).records
    assert [record.value for record in records] == [json.loads(record.tag or "") for record in records]


def test_variants_and_maps_are_converted(rig: Rig) -> None:
    topic = rig.topic()
    variant = F.parse_json(F.lit('{"a": [1, {"b": null}], "t": "x"}'))
    rig.save(rig.spark.range(1).select(variant.alias("data"), F.create_map(F.lit("k"), F.lit(7)).alias("meta")), topic)
    (record,) = rig.client.diff(topic).records
    assert record.value == {"a": [1, {"b": None}], "t": "x"} and record.meta_value == {"k": 7}


def test_rows_go_to_the_topics_that_they_name(rig: Rig) -> None:
    one, two = rig.topic("a"), f"{rig.prefix}.new"
    topic = F.when(F.col("id") % 2 == 0, F.lit(one)).when(F.col("id") < 8, F.lit(two))
    rows = rig.spark.range(10).select(F.col("id").cast("string").alias("data"), topic.alias("topic")).coalesce(1)
    rig.save(rows, rig.topic("rest"))
    assert rig.values(one) == [0, 2, 4, 6, 8]
    assert rig.values(two) == [1, 3, 5, 7]
    assert rig.values(f"{rig.prefix}.rest") == [9]


def test_a_topic_that_the_sink_creates_remembers_keys_for_long(rig: Rig) -> None:
    """WR7, ID1"""
    topic = f"{rig.prefix}.new"
    rig.save(rig.spark.range(20_000).select(F.col("id").cast("string").alias("data")).repartition(2), topic)
    state = rig.client.state(topic)
    assert (state.count, state.config.idempotency_window_ms) == (20_000, WINDOW_MS)
    assert sorted(rig.values(topic)) == list(range(20_000))


def test_the_node_of_the_sink_is_that_of_rows_without_one(rig: Rig) -> None:
    """WR2"""
    topic = rig.topic()
    rows = rig.spark.createDataFrame([("1", "own"), ("2", None)], "data STRING, node STRING").coalesce(1)
    rig.save(rows, topic, node="sink")
    assert [record.node for record in rig.client.diff(topic).records] == ["own", "sink"]


def test_a_bad_row_is_named_and_nothing_of_its_partition_is_written(rig: Rig) -> None:
    topic = rig.topic()
    text = F.when(F.col("id") == 17_001, F.lit("{bad")).otherwise(F.col("id").cast("string"))
    said = said_by(lambda: rig.save(rig.spark.range(20_000).coalesce(1).select(text.alias("data")), topic))
    assert "row 17001 of the partition is not a record: data is '{bad', which is not JSON" in said
    assert rig.client.state(topic).head_seq == 0


def test_what_only_the_server_refuses_is_named_by_its_row_too(rig: Rig) -> None:
    """WR3"""
    topic = rig.topic()
    tag = F.when(F.col("id") == 7, F.lit("x" * 300)).otherwise(F.lit("x"))
    rows = rig.spark.range(10).coalesce(1).select(F.lit("1").alias("data"), tag.alias("tag"))
    said = said_by(lambda: rig.save(rows, topic))
    assert "row 7 of the partition was refused" in said and "nothing of this partition was written" in said
    assert rig.client.state(topic).head_seq == 0


def test_a_server_that_takes_less_at_a_time_gets_smaller_chunks(rig: Rig, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"TOPICS_MAX_BATCH_RECORDS": "700"}) as server, Rig(rig.spark, server) as there:
        there.save(there.spark.range(5000).coalesce(1).select(F.col("id").cast("string").alias("data")), "t")
        assert there.values("t") == list(range(5000))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id AS value", "columns value cannot be written"),
        ("id AS data", "column data is of type long"),
        ("'x' AS tag", "there is no column data"),
    ],
)
def test_frames_that_have_no_records_are_refused(rig: Rig, columns: str, message: str) -> None:
    assert message in said_by(lambda: rig.save(rig.spark.range(1).selectExpr(columns), rig.topic()))


def test_a_write_id_that_comes_again_with_other_rows_is_refused(rig: Rig) -> None:
    """ID9: the topic, the id, the key and the seqs are named; the same rows are written once."""
    topic = rig.topic(idempotency_window_ms=WINDOW_MS)
    numbers = rig.spark.range(10).selectExpr("CAST(id AS STRING) AS data").coalesce(1)
    for _ in range(2):
        rig.save(numbers, topic, writeId="monday")
    others = rig.spark.range(10, 20).selectExpr("CAST(id AS STRING) AS data").coalesce(1)
    message = said_by(lambda: rig.save(others, topic, writeId="monday"))
    assert f"other rows were written to topic {topic} under writeId monday before" in message
    assert "key monday/0/0 stands for its seqs 1 to 10" in message
    assert rig.values(topic) == [*range(10)]
    rig.save(others, topic, writeId="tuesday")
    assert rig.values(topic) == [*range(20)]


@pytest.mark.parametrize("change", ["a row more", "a row less", "other partitions"])
def test_a_write_id_that_comes_again_with_more_or_fewer_rows_doubles_none(rig: Rig, change: str) -> None:
    """ID9"""
    topic = rig.topic(idempotency_window_ms=WINDOW_MS)
    rig.save(rig.spark.range(100).repartition(2).selectExpr("CAST(id AS STRING) AS data"), topic, writeId="monday")
    counts = {"a row more": (101, 2), "a row less": (99, 2), "other partitions": (100, 3)}
    count, parts = counts[change]
    again = rig.spark.range(count).repartition(parts).selectExpr("CAST(id AS STRING) AS data")
    assert "other rows were written" in said_by(lambda: rig.save(again, topic, writeId="monday"))
    found = rig.values(topic)
    assert set(found[:100]) == set(range(100)), "what was written first stays as it was"


def test_batches_of_one_query_are_told_apart_under_one_write_id(rig: Rig, tmp_path: Path) -> None:
    """ID9: and so are two writes of one batch whose columns differ; the same write twice is done once."""
    topic = rig.topic(idempotency_window_ms=WINDOW_MS)

    def write(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            rig.save(rows.select("data"), topic, writeId="mine")
        rig.save(rows.selectExpr("concat('-', data) AS data", "'t' AS tag"), topic, writeId="mine")

    rows = rig.stream(topic=rig.topic("in", 6), startingSeq="0", maxRecordsPerTrigger=3)
    query = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(PATIENCE_S)
    values = rig.values(f"{rig.prefix}.in")
    assert sorted(rig.values(topic)) == sorted([*values, *(-value for value in values)])


def test_two_writes_of_one_batch_under_one_write_id_are_refused(rig: Rig, tmp_path: Path) -> None:
    """ID9: where they cannot be told apart, nothing is left out in silence."""
    topic = rig.topic(idempotency_window_ms=WINDOW_MS)

    def write(rows: DataFrame, batch: int) -> None:
        rig.save(rows.select("data"), topic, writeId="mine")
        rig.save(rows.where("seq > 1").selectExpr("concat('-', data) AS data"), topic, writeId="mine")

    rows = rig.stream(topic=rig.topic("in", 3), startingSeq="0")
    writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    message = said_by(lambda: query.awaitTermination(PATIENCE_S))
    assert "other rows were written" in message and topic in message


def test_modes_that_would_replace_a_topic_are_refused(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=1)
    rows = rig.spark.range(1).selectExpr("'1' AS data")
    writer = rows.write.format("topics").option("url", rig.url).option("topic", topic)
    assert "use mode append" in said_by(lambda: writer.mode("overwrite").save())
    counts = rig.stream(topic=topic, startingSeq="0").groupBy("data").count().selectExpr("to_json(struct(*)) AS data")
    stream = counts.writeStream.format("topics").option("url", rig.url).option("topic", topic).outputMode("complete")
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert "use output mode append" in said_by(query.awaitTermination)
    assert rig.client.state(topic).head_seq == 1


def test_a_topic_full_by_its_own_rule_fails_the_write(rig: Rig) -> None:
    """WR11"""
    topic = rig.topic(cap_records=5, discard="reject")
    rows = rig.spark.range(10).coalesce(1).select(F.lit("1").alias("data"))
    said = said_by(lambda: rig.save(rows, topic))
    assert "topic_full" in said or "record_too_large" in said
    assert rig.client.state(topic).head_seq == 0


def test_a_short_memory_for_keys_is_warned_of(rig: Rig) -> None:
    """ID1"""
    schema = StructType([StructField("data", StringType())])
    for kind in (TopicsWriter, TopicsStreamWriter):
        topic = rig.topic(kind.__name__, idempotency_window_ms=1000)
        with pytest.warns(UserWarning, match=f"topic {topic} remembers idempotency keys for 1000 ms only"):
            kind.of(write_options({"url": rig.url, "topic": topic}, {}), schema)
        rig.client.put_topic(topic, idempotency_window_ms=WINDOW_MS)
        kind.of(write_options({"url": rig.url, "topic": topic}, {}), schema)


def test_what_a_stream_writes_can_be_read_as_a_stream(rig: Rig, tmp_path: Path) -> None:
    source, target = rig.topic("in", 50), f"{rig.prefix}.out"
    rig.run(rig.stream(topic=source, startingSeq="0").select("data"), target, tmp_path / "one")
    found = Collected()
    rig.run(rig.stream(topic=target, startingSeq="0"), found, tmp_path / "two")
    assert [row.data for row in found.rows] == [str(n) for n in range(1, 51)]


# --- order, and rows that are sent as they come


def test_rows_of_a_partition_come_in_their_order_chunk_after_chunk(rig: Rig) -> None:
    topic, count = rig.topic(idempotency_window_ms=3_600_000), 6 * CHUNK_RECORDS + 7
    for check_first in (True, False):
        rows = rig.spark.range(0, count, 1, 1).selectExpr("to_json(struct(id)) AS data")
        rig.save(rows, topic, checkFirst=check_first)
    assert [value["id"] for value in rig.values(topic)] == [*range(count), *range(count)]


def test_a_bad_row_that_is_not_looked_for_first_finds_the_chunks_before_it_written(rig: Rig) -> None:
    topic, bad = rig.topic(idempotency_window_ms=3_600_000), 2 * CHUNK_RECORDS + 1_000
    rows = rig.spark.range(0, bad + 1, 1, 1).selectExpr(f"if(id = {bad}, 'no JSON', string(id)) AS data")
    said = said_by(lambda: rig.save(rows, topic))
    assert f"row {bad} of the partition" in said and "nothing of this partition was written" in said
    assert rig.client.state(topic).head_seq == 0
    said = said_by(lambda: rig.save(rows, topic, checkFirst=False, writeId="once"))
    assert f"row {bad} of the partition" in said and "nothing of this partition" not in said
    written = rig.client.state(topic).head_seq
    assert written % CHUNK_RECORDS == 0 and f"the {written // CHUNK_RECORDS} chunks before it were written" in said
    good = rig.spark.range(0, bad + 1, 1, 1).selectExpr("string(id) AS data")
    rig.save(good, topic, checkFirst=False, writeId="once")
    assert rig.values(topic) == list(range(bad + 1)), "the same rows under the same id go on behind them"


def test_a_refusal_of_the_server_ends_what_would_follow(rig: Rig) -> None:
    topic = rig.topic(idempotency_window_ms=3_600_000)
    long = "t" * 10_000
    rows = rig.spark.range(0, 4 * CHUNK_RECORDS, 1, 1).selectExpr(
        "string(id) AS data", f"if(id = {CHUNK_RECORDS + 5}, '{long}', 'tag') AS tag"
    )
    for check_first in (True, False):
        said = said_by(lambda first=check_first: rig.save(rows, topic, checkFirst=first, writeId="refused"))
        assert f"row {CHUNK_RECORDS + 5} of the partition was refused" in said
        assert "the 1 chunks before it were written" in said
        assert rig.values(topic) == list(range(CHUNK_RECORDS))
