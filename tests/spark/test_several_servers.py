"""Several servers: topics where they live, offsets with their server, servers that are down, come back and join."""

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.rig import Collected, said_by
from tests.spark.trio import COLUMNS, Trio
from topics import placement
from topics.client import Client, ClientError, Fleet, TopicOnSeveralServers
from topics.errors import InvalidRequest
from topics.spark.options import read_options, write_options
from topics.spark.plan import RecordsLost
from topics.spark.schema import Projection
from topics.spark.source import TopicsReader, TopicsStreamReader
from topics.testing.patience import PATIENCE_S, wait_until


def step(reader: TopicsStreamReader, start: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The next batch of a stream: where it ends, and its rows; offsets are read back from their text."""
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    if end == start:
        return end, []
    parts = reader.partitions(start, end)
    return end, [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["seq"]) for row in rows)


def all_of(topic: str, first: int, last: int) -> list[tuple[str, int]]:
    return [(topic, seq) for seq in range(first, last + 1)]


def test_a_batch_read_finds_topics_wherever_they_live(trio: Trio) -> None:
    for n, topic in enumerate(("t.a", "t.b", "t.c")):
        trio.put(n, topic, 3 + n)
    for selection in ({"topicPattern": r"t\..*"}, {"topics": "t.a,t.b,t.c"}):
        read = read_options(trio.options(**selection), is_stream=False, environ={})
        reader = TopicsReader(read, Projection(pa.schema(COLUMNS)))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert places(rows) == all_of("t.a", 1, 3) + all_of("t.b", 1, 4) + all_of("t.c", 1, 5)
        assert all(row["data"] == f'"{row["topic"]}-{row["seq"]}"' for row in rows)
    absent = read_options(trio.options(topic="nope"), is_stream=False, environ={})
    with pytest.raises(InvalidRequest) as caught:
        TopicsReader(absent, Projection(pa.schema(COLUMNS))).partitions()
    assert all(url in str(caught.value) for url in trio.urls)


def test_a_name_on_two_servers_is_an_error_that_names_both_also_if_it_comes_later(trio: Trio) -> None:
    trio.put(0, "twice", 2)
    for selection in ({"topic": "twice"}, {"topicPattern": "twice"}):
        reader = trio.stream(**selection)
        end, rows = step(reader, reader.initialOffset())
        end, rows = step(reader, end) if not rows else (end, rows)
        trio.put(2, "twice", 1)
        with pytest.raises(TopicOnSeveralServers) as caught:
            reader.latestOffset(end, ReadAllAvailable())
        assert trio.urls[0] in str(caught.value) and trio.urls[2] in str(caught.value)
        with Client(trio.urls[2], "") as client:
            client.delete_topic("twice")


def test_offsets_carry_the_server_and_a_killed_one_is_waited_for_while_the_others_go_on(trio: Trio) -> None:
    for n, topic in enumerate(("t.a", "t.b", "t.c")):
        trio.put(n, topic, 2)
    reader = trio.stream(topicPattern=r"t\..*", onServerDown="wait")
    first, rows = step(reader, reader.initialOffset())
    assert len(rows) == 6
    assert {name: at["server"] for name, at in first.items()} == dict(
        zip(("t.a", "t.b", "t.c"), trio.urls, strict=True)
    )
    trio.put(1, "t.b", 1)
    trio.kill(1)
    trio.put(0, "t.a", 2)
    second, rows = step(reader, first)
    assert places(rows) == all_of("t.a", 3, 4)
    assert second["t.b"] == {**first["t.b"], "since": second["t.b"]["since"]}, "it stays where it was"
    assert reader.reportLatestOffset()["t.b"]["seq"] == 2, "its head is the last that was seen"
    trio.servers[1].start()
    trio.put(1, "t.b", 1)
    third, rows = step(reader, second)
    assert places(rows) == all_of("t.b", 3, 4)
    assert step(reader, third) == (third, [])


def test_a_planned_batch_and_available_now_wait_for_the_server(trio: Trio) -> None:
    trio.put(0, "t.a", 2)
    trio.put(1, "t.b", 3)
    reader = trio.stream(topicPattern=r"t\..*", onServerDown="wait")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    trio.kill(1)
    found: list[Any] = []

    def read() -> None:
        parts = reader.partitions(start, end)
        found.extend(row for part in parts for batch in reader.read(part) for row in batch.to_pylist())
        found.append(reader.latestOffset(end, ReadAllAvailable()))

    task = threading.Thread(target=read)
    task.start()
    trio.servers[1].start()
    task.join(PATIENCE_S)
    assert found.pop() == end
    assert places(found) == all_of("t.a", 1, 2) + all_of("t.b", 1, 3)


def test_a_server_that_is_down_fails_the_read_and_is_named(trio: Trio) -> None:
    trio.put(0, "t.a", 2)
    reader = trio.stream(topicPattern=r"t\..*")
    start = reader.initialOffset()
    trio.kill(2)
    with pytest.raises(ClientError, match=trio.urls[2]):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_server_that_joins_is_read_from_the_beginning_and_the_rest_goes_on(trio: Trio) -> None:
    trio.put(0, "t.a", 2)
    alone = trio.stream(trio.urls[:1], topicPattern=r"t\..*")
    first, _ = step(alone, {})
    assert "server" not in first["t.a"], "the form of offsets with one server is the old one"
    trio.put(0, "t.a", 1)
    trio.put(1, "t.b", 2)
    joined = trio.stream(trio.urls[:2], topicPattern=r"t\..*")
    second, rows = step(joined, first)
    assert places(rows) == [("t.a", 3), *all_of("t.b", 1, 2)]
    assert (second["t.a"]["server"], second["t.b"]["server"]) == tuple(trio.urls[:2])


def test_a_topic_that_moved_to_another_server_is_another_instance(trio: Trio) -> None:
    trio.put(0, "t", 5)
    first, _ = step(trio.stream(topic="t"), {})
    with Client(trio.urls[0], "") as client:
        client.delete_topic("t")
    trio.put(1, "t", 5)  # the same epoch and the same head, by chance
    with Client(trio.urls[1], "") as client:
        assert client.state("t").epoch == first["t"]["epoch"]
    with pytest.raises(RecordsLost, match="recreated"):
        step(trio.stream(topic="t"), first)
    _, rows = step(trio.stream(topic="t", onGap="record"), first)
    gaps = [(row["gap_from"], row["gap_to"], row["reason"]) for row in rows if row["kind"] == "tombstone"]
    assert gaps == [(1, 5, "recreated")]
    assert [row["seq"] for row in rows if row["kind"] == "record"] == [1, 2, 3, 4, 5]


def test_a_checkpoint_of_a_server_that_is_not_listed_is_refused(trio: Trio) -> None:
    trio.put(0, "t", 5)
    first, _ = step(trio.stream(topic="t"), {})
    start = {"t": {**first["t"], "seq": 3}}
    for urls in (trio.urls[1:], trio.urls[1:2]):
        with pytest.raises(InvalidRequest, match=trio.urls[0]):
            trio.stream(urls, topicPattern="t").latestOffset(start, ReadAllAvailable())
    with pytest.raises(InvalidRequest, match=trio.urls[0]):
        trio.stream(trio.urls[1:], topic="t").partitions(start, first)


def test_options_of_several_servers() -> None:
    base = {"url": "http://a:4000, HTTP://B:4001/", "topic": "t"}
    server = read_options({**base, "token": "all", "token.b": "own"}, environ={}).server
    assert server is not None and server.urls == ("http://a:4000", "http://b:4001")
    assert [server.at(url).token for url in server.urls] == ["all", "own"]
    assert "own" not in repr(server) and "all" not in repr(server)
    assert read_options({**server.options(), "topic": "t"}, environ={}).server == server
    for wrong, message in (
        ({"token.c": "x"}, "'c', which is none of the servers"),
        ({"path": "/data"}, "belongs to one server"),
        ({"onServerDown": "hope"}, "it must be one of fail, wait"),
        ({"url": "http://a:1,http://a:1"}, "listed twice"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            read_options({**base, **wrong}, environ={})


def test_keys_of_servers_come_from_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("http://a:4000 one\nhttp://b:4000 two\nhttp://other:1 three\n")
    keys.chmod(0o600)
    given = {"url": "http://a:4000,http://b:4000", "topic": "t", "token.b": "own"}
    server = write_options({**given, "tokenFile": str(keys)}, {}).server
    assert [server.at(url).token for url in server.urls] == ["one", "own"]
    assert write_options(given, {"TOPICS_TOKEN_FILE": str(keys)}).server == server


# --- through Spark


def test_a_query_over_three_servers_survives_a_kill_and_writes_each_row_once(
    spark: SparkSession, trio: Trio, tmp_path: Path
) -> None:
    """ID1, ID9: three servers are read and written, one of them killed and restarted in mid-stream."""
    for n, topic in enumerate(("in.a", "in.b", "in.c")):
        trio.put(n, topic, 200)
    options = trio.options(retries="60", onServerDown="wait")
    rows = (
        spark.readStream.format("topics")
        .options(**options, topicPattern=r"in\..*", startingSeq="earliest", maxRecordsPerTrigger="150")
        .load()
        .select(F.concat(F.lit("out."), F.col("seq") % 5).alias("topic"), "data")
    )
    writer = rows.writeStream.format("topics").options(**options).option("checkpointLocation", str(tmp_path / "cp"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until("the first batches", lambda: len(query.recentProgress) > 1 or query.exception() is not None)
        trio.kill(1)
        trio.put(0, "in.a", 100)
        trio.servers[1].start()
        trio.put(1, "in.b", 100)
        with Fleet(trio.urls, "") as fleet:
            wait_until(
                "all rows",
                lambda: query.exception() is not None or sum(one.head_seq for _, one in fleet.topics("out.")) >= 800,
            )
            assert query.exception() is None, query.exception()
            query.processAllAvailable()
            found = [
                (one.topic, record.value)
                for url, one in fleet.topics("out.")
                for record in fleet.client(url).consume(one.topic, follow=False)
            ]
            for url, one in fleet.topics("out."):
                assert url == placement.home(one.topic, trio.urls)
    finally:
        query.stop()
    expected = [
        (f"out.{seq % 5}", f"{t}-{seq}")
        for t, n in (("in.a", 300), ("in.b", 300), ("in.c", 200))
        for seq in range(1, n + 1)
    ]
    assert sorted(found) == sorted(expected)


def test_a_failed_server_is_named_by_a_query(spark: SparkSession, trio: Trio, tmp_path: Path) -> None:
    trio.put(0, "t", 1)
    trio.kill(1)
    reading = spark.readStream.format("topics").options(**trio.options(topicPattern="t"))
    query = (
        reading.load().writeStream.foreachBatch(Collected().take).option("checkpointLocation", str(tmp_path)).start()
    )
    assert trio.urls[1] in said_by(lambda: query.awaitTermination(int(PATIENCE_S)))
