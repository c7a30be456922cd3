"""Consumers and exports: everything in order, losses announced, cursors that go on without a hole."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.client.conftest import Connect, Script, Skipping, answer
from topics.client import Client, ConnectionFailed, Record, Tombstone, UnexpectedAnswer
from topics.errors import InvalidRequest, TopicNotFound
from topics.testing.server import ServerThread


def fill(client: Any, topic: str, *numbers: int) -> None:
    client.append(topic, [{"data": n} for n in numbers])


def shown(items: Any) -> list[Any]:
    """Seqs of records, ranges and reasons of tombstones."""
    return [item.seq if isinstance(item, Record) else (item.gap_from, item.gap_to, item.reason) for item in items]


def test_a_consumer_reads_all_pages_up_to_the_head(client: Any, topic: str) -> None:
    """DF2, DF3, DF4"""
    fill(client, topic, *range(25))
    consumer = client.consume(topic, follow=False, limit=10)
    assert [item.value for item in consumer] == list(range(25))
    assert (consumer.cursor, consumer.epoch) == (25, client.state(topic).epoch)


def test_a_consumer_hands_out_losses_in_their_place(client: Any, topic: str) -> None:
    """TM3, TM4, TM6"""
    client.put_topic(topic, cap_records=3)
    fill(client, topic, *range(5))
    consumer = client.consume(topic, follow=False)
    lost = next(consumer)
    assert isinstance(lost, Tombstone) and (lost.gap_from, lost.gap_to, lost.reason) == (1, 2, "cap")
    assert consumer.cursor == 2
    assert shown(consumer) == [3, 4, 5]


def test_a_cursor_stands_behind_the_last_item_and_goes_on_from_there(client: Any, topic: str) -> None:
    """DF3, TP16"""
    fill(client, topic, *range(6))
    consumer = client.consume(topic, follow=False, limit=4)
    assert [next(consumer).seq for _ in range(3)] == [1, 2, 3]
    rest = client.consume(topic, consumer.cursor, epoch=consumer.epoch, follow=False)
    assert shown(rest) == [4, 5, 6]


def test_records_that_are_left_out_move_the_cursor(client: Any, topic: str) -> None:
    """DF3, ND2"""
    fill(client, topic, 1)
    client.append(topic, [{"data": 2}] * 5, node="me")
    consumer = client.consume(topic, follow=False, node="me")
    assert shown(consumer) == [1]
    assert consumer.cursor == 6


def test_a_topic_made_again_is_announced_to_its_consumer(client: Any, topic: str) -> None:
    """TM11"""
    fill(client, topic, 1, 2, 3)
    consumer = client.consume(topic, wait_ms=0, limit=1)
    assert shown([next(consumer)]) == [1]
    client.delete_topic(topic)
    fill(client, topic, *range(9))
    old = consumer.epoch
    assert shown([next(consumer) for _ in range(3)]) == [(1, 9, "recreated"), 1, 2]
    assert (consumer.epoch > old, consumer.cursor) == (True, 2)


def test_a_consumer_waits_for_what_comes_next(server: ServerThread, client: Any, topic: str) -> None:
    """DF8"""
    fill(client, topic, 1)
    consumer = client.consume(topic)
    assert next(consumer).seq == 1

    def write_later() -> None:
        server.until(lambda: server.clock.waits)
        with Client("http://{}:{}".format(*server.address), "") as other:
            fill(other, topic, 2)

    writer = threading.Thread(target=write_later)
    writer.start()
    assert next(consumer).seq == 2
    writer.join()


def test_a_consumer_may_be_asked_again_after_an_error(client: Any, topic: str) -> None:
    """DF7"""
    consumer = client.consume(topic, follow=False)
    with pytest.raises(TopicNotFound):
        next(consumer)
    fill(client, topic, 1, 2)
    assert shown(consumer) == [1, 2]


def test_a_start_by_time_counts_for_the_first_read_only(server: ServerThread, client: Any, topic: str) -> None:
    """A.16, TM3: what is lost later is announced."""
    client.put_topic(topic, cap_records=4)
    fill(client, topic, 1, 2)
    server.advance(1000)
    fill(client, topic, 3, 4)
    consumer = client.consume(topic, from_ts=server.clock.now_ms(), wait_ms=0, limit=1)
    assert shown([next(consumer)]) == [3]
    fill(client, topic, *range(5, 11))
    assert shown([next(consumer) for _ in range(5)]) == [(4, 6, "cap"), 7, 8, 9, 10]


def test_an_export_has_the_live_records_and_says_what_it_covers(client: Any, topic: str) -> None:
    """A.16"""
    client.put_topic(topic, cap_records=4)
    fill(client, topic, *range(1, 7))
    client.delete_records(topic, before_seq=4)
    with client.export(topic) as export:
        table = export.read_all()
        info = export.info
        assert export.schema.names == ["seq", "ts", "node", "tag", "meta", "data"]
    assert table["seq"].to_pylist() == [4, 5, 6]
    assert table["data"].to_pylist() == ["4", "5", "6"]
    assert (info.topic, info.after, info.last, info.head_seq, info.earliest_seq) == (topic, 0, 6, 6, 4)
    assert [(lost.gap_from, lost.gap_to, lost.reason) for lost in info.lost] == [(1, 3, "cap")]
    assert info.epoch == client.state(topic).epoch


def test_an_export_is_read_batch_by_batch_and_may_be_left(client: Any, topic: str) -> None:
    text = "x" * 300_000
    for _ in range(3):
        client.append(topic, [{"data": text}] * 10)
    with client.export(topic, after=5, last=25) as export:
        batches = list(export)
    assert len(batches) > 3
    assert pa.Table.from_batches(batches)["seq"].to_pylist() == list(range(6, 26))
    with client.export(topic) as export:
        assert next(export).num_rows > 0
    assert client.state(topic).head_seq == 30


def test_an_export_of_a_blocking_client_is_open_at_once(server: ServerThread, topic: str) -> None:
    """It needs no `with`, and a `with` opens it no second time."""
    with Client("http://{}:{}".format(*server.address), "") as client:
        fill(client, topic, 1, 2)
        export = client.export(topic)
        assert export.info.last == 2
        fill(client, topic, 3)
        with export:
            assert export.read_all()["seq"].to_pylist() == [1, 2]
        with pytest.raises(TopicNotFound):
            client.export(f"{topic}.absent")


def test_an_export_of_an_empty_topic_has_no_batches(client: Any, topic: str) -> None:
    client.put_topic(topic)
    with client.export(topic) as export:
        assert (export.read_all().num_rows, export.info.last) == (0, 0)


def test_an_export_of_no_topic_is_an_error(client: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound), client.export(topic):
        pass


def schema_message(metadata: dict[str, str] | None = None) -> bytes:
    return pa.schema([("data", pa.string())], metadata=metadata).serialize().to_pybytes()


def batch_message() -> bytes:
    return pa.record_batch([["1"]], names=["data"]).serialize().to_pybytes()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"this is no Arrow stream at all", "does not start like one"),
        (schema_message() + b"\xff\xff\xff\xff\0\0\0\0", "does not say what it covers"),
        (b"\xff\xff\xff\xff\x10\0\0\0" + b"\xff" * 16, "it is not Arrow"),
        (b"\xff\xff\xff\xff\x10\0\0\0", "ends too early"),
        (schema_message()[:40], "ends too early"),
        (batch_message(), "a message of type 'record batch' is out of place"),
        (b"", "ends too early"),
    ],
)
def test_an_export_that_is_not_one_is_told(script: Script, connect: Connect, body: bytes, message: str) -> None:
    server = script([answer(body)])
    with pytest.raises(UnexpectedAnswer, match=message), connect(server.address, clock=Skipping()).export("t"):
        pass


COVERED = {f"topics.{name}": "0" for name in ("epoch", "head_seq", "earliest_seq", "after", "last")}


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (schema_message(), "a message of type 'schema' is out of place"),
        (batch_message()[:-8], "ends too early"),
        (batch_message(), "ends too early"),
    ],
)
def test_an_export_that_goes_wrong_later_is_told_too(
    script: Script, connect: Connect, rest: bytes, message: str
) -> None:
    schema = schema_message({"topics.topic": "t", "topics.lost": "[]", **COVERED})
    server = script([answer(schema + rest)])
    client = connect(server.address, clock=Skipping())
    with pytest.raises(UnexpectedAnswer, match=message), client.export("t") as export:
        export.read_all()


def test_an_export_cut_off_between_two_batches_is_told(script: Script, connect: Connect) -> None:
    """Where the Arrow stream alone would look whole."""
    schema = schema_message({"topics.topic": "t", "topics.lost": "[]", **COVERED})
    part = schema + batch_message()
    server = script([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(part), part)])
    with connect(server.address, clock=Skipping()).export("t") as export:
        assert next(export).num_rows == 1
        with pytest.raises(ConnectionFailed, match="closed within the answer"):
            next(export)


def test_an_option_that_no_read_has_is_refused_before_anything_is_sent(client: Any, topic: str) -> None:
    for read in (client.diff, client.consume):
        with pytest.raises(InvalidRequest, match=r"include_tag.*did you mean include_tags"):
            read(topic, include_tag=True)
