"""Producers: batches by themselves, in order, bounded, told what became of each record; nothing doubled over kills."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Script, answer
from topics.client import AsyncClient, Client, ClientClosed, ConnectionFailed
from topics.client.protocol.outbox import RECORD_BYTES, Outbox, OutboxPlan, parts_of
from topics.errors import InvalidRequest, RecordTooLarge
from topics.testing.patience import PATIENCE_MS, PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ServerThread


def written(first: int, last: int) -> bytes:
    body = b'{"topic":"t","first_seq":%d,"last_seq":%d,"head_seq":%d,"count":%d,"created":false,"deduped":false}'
    return answer(body % (first, last, last, last - first + 1))


@pytest.mark.parametrize("kind", ["one", "many"])
def test_one_record_is_sent_with_a_tag(client: Any, topic: str, kind: str) -> None:
    """WR1"""
    if kind == "one":
        assert client.send(topic, {"n": 1}, tag="eu", meta={"by": "me"}, node="a").first_seq == 1
    else:
        with client.producer(topic) as producer:
            producer.send({"n": 1}, tag="eu", meta={"by": "me"}, node="a")
    (record,) = client.diff(topic, include_tags=True).records
    assert (record.value, record.tag, record.meta_value, record.node) == ({"n": 1}, "eu", {"by": "me"}, "a")


def test_records_arrive_in_order_and_receipts_tell_their_seqs(server: ServerThread, topic: str) -> None:
    with Client("http://{}:{}".format(*server.address), "") as client:
        with client.producer(topic, max_records=7) as producer:
            receipts = [producer.send(n) for n in range(100)]
            producer.flush()
            assert all(receipt.done() for receipt in receipts)
        assert [receipt.result() for receipt in receipts] == list(range(1, 101))
        assert [record.value for record in client.diff(topic).records] == list(range(100))
        with pytest.raises(ClientClosed, match="the producer is closed"):
            producer.send(1)


async def test_an_async_producer_does_the_same(server: ServerThread, topic: str) -> None:
    async with AsyncClient("http://{}:{}".format(*server.address), "") as client:
        async with client.producer(topic) as producer:
            receipts = [await producer.send(n) for n in range(100)]
            assert await receipts[41] == 42
        assert [await receipt for receipt in receipts] == list(range(1, 101))


def test_a_record_that_is_refused_fails_alone(server: ServerThread, topic: str) -> None:
    with Client("http://{}:{}".format(*server.address), "") as client:
        producer = client.producer(topic, linger_ms=PATIENCE_MS)
        values: list[Any] = [*range(20), "x" * (2 << 20), *range(20, 40)]
        receipts = [producer.send(value) for value in values]
        with pytest.raises(RecordTooLarge):
            producer.flush()
        assert [type(r.exception()) is not type(None) for r in receipts].count(True) == 1
        assert isinstance(receipts[20].exception(), RecordTooLarge)
        producer.close()
        assert [record.value for record in client.diff(topic).records] == list(range(40))


def test_what_cannot_be_encoded_is_refused_at_once(server: ServerThread, connect: Connect, topic: str) -> None:
    client = connect(server.address)
    with client.producer(topic) as producer, pytest.raises(InvalidRequest, match="cannot be encoded"):
        producer.send(object())


def test_leaving_by_an_error_sends_what_was_taken_and_keeps_the_error(client: Any, topic: str) -> None:
    with pytest.raises(ZeroDivisionError), client.producer(topic, linger_ms=PATIENCE_MS) as producer:  # noqa: PT012
        producer.send(1)
        raise ZeroDivisionError
    assert client.state(topic).count == 1


def test_a_closed_client_fails_what_waits(script: Script) -> None:
    asked = threading.Event()

    def silent(connection: Any) -> None:
        server.read(connection)
        asked.set()
        assert connection.recv(1) == b""

    server = script(silent)
    client = Client("http://{}:{}".format(*server.address), "")
    producer = client.producer("t", linger_ms=0)
    receipt = producer.send(1)
    assert asked.wait(PATIENCE_S)
    client.close()
    assert isinstance(receipt.exception(PATIENCE_S), ClientClosed)
    with pytest.raises(ClientClosed):
        producer.close()


def test_send_waits_while_too_much_is_on_its_way(script: Script) -> None:
    go = threading.Event()

    def slow(connection: Any) -> None:
        server.read(connection)
        go.wait(PATIENCE_S)
        connection.sendall(written(1, 1))
        server.read(connection)
        connection.sendall(written(2, 2))

    server = script(slow)
    with Client("http://{}:{}".format(*server.address), "") as client:
        producer = client.producer("t", linger_ms=0, max_pending_bytes=RECORD_BYTES + 10)
        producer.send(1)
        sent = threading.Event()
        sending = threading.Thread(target=lambda: (producer.send(2), sent.set()))
        sending.start()
        wait_until("the first is not on its way", lambda: server.requests)
        assert not sent.is_set()
        go.set()
        sending.join(PATIENCE_S)
        producer.close()
        assert sent.is_set()


def test_a_batch_is_sent_again_under_its_key(script: Script) -> None:
    """ID1"""
    state = answer(
        b'{"topic":"t","epoch":1,"type":"log","head_seq":0,"earliest_seq":1,"next_seq":1,"count":0,"bytes":0,'
        b'"config":{"idempotency_window_ms":1000000},"effective_priority":0,"last_write_ts":null,"last_read_ts":null}'
    )
    server = script(lambda connection: server.read(connection), [state], [written(1, 2)])
    with Client("http://{}:{}".format(*server.address), "") as client, client.producer("t") as producer:
        producer.send(1)
        producer.send(2)
    first, _, again = server.requests
    assert first.partition(b"\r\n\r\n")[2] == again.partition(b"\r\n\r\n")[2] and b"idempotency_key" in first


def test_a_producer_gives_up_in_the_end() -> None:
    with Client("http://127.0.0.1:1", "") as client:
        producer = client.producer("t", give_up_ms=1)
        receipt = producer.send(1)
        with pytest.raises(ConnectionFailed):
            producer.close()
        assert isinstance(receipt.exception(), ConnectionFailed)


@pytest.mark.process
def test_kills_of_the_server_lose_and_double_nothing(tmp_path: Path) -> None:
    """G1: what was acked is there once, in order."""
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        with Client("http://{}:{}".format(*server.address), "") as client:
            client.put_topic("t", durability="fsync", idempotency_window_ms=PATIENCE_MS)
            with client.producer("t", max_records=50, linger_ms=1, give_up_ms=PATIENCE_MS) as producer:
                for n in range(3000):
                    receipt = producer.send(n)
                    if n % 1000 == 500:
                        receipt.result(PATIENCE_S)
                        server.kill()
                        server.start()
            assert [item.value for item in client.consume("t", follow=False)] == list(range(3000))


@pytest.mark.process
def test_a_program_that_ends_without_closing_its_producer_sends_what_is_left(tmp_path: Path) -> None:
    import subprocess
    import sys

    source = "import sys, topics\np = topics.Client(sys.argv[1]).producer('t', linger_ms=1e6)\np.send(1)"
    with ServerProcess(tmp_path) as server:
        url = "http://{}:{}".format(*server.address)
        subprocess.run([sys.executable, "-c", source, url], check=True, timeout=PATIENCE_S)
        with Client(url, "") as client:
            assert client.state("t").count == 1


# --- the outbox


def outbox(now: list[float], **plan: Any) -> Outbox[int]:
    fields = {"linger_ms": 5, "max_records": 3, "max_bytes": 100, "pending_bytes_max": 10**6} | plan
    return Outbox(OutboxPlan("t", None, **fields), lambda: now[0], lambda: "k")


def test_a_batch_is_due_when_it_is_full_or_has_lingered_or_is_flushed() -> None:
    now = [0.0]
    box = outbox(now)
    assert box.due_in_s() is None
    assert box.add(b"1", 1) is True and box.due_in_s() == 0.005
    assert box.add(b"2", 2) is False
    now[0] = 0.005
    assert box.due_in_s() == 0.0 and box.take().texts == [b"1", b"2"]
    for n in range(4):
        box.add(b"%d" % n, n)
    assert box.due_in_s() == 0.0 and len(box.take().texts) == 3 and box.due_in_s() == 0.005
    assert box.flush() == 6 and box.due_in_s() == 0.0
    big = outbox(now, max_records=100, max_bytes=10)
    for _ in range(3):
        big.add(b"x" * 9, 1)
    assert [len(big.take().texts) for _ in range(3)] == [1, 1, 1]


def test_room_comes_back_when_a_batch_is_settled() -> None:
    box = outbox([0.0], pending_bytes_max=RECORD_BYTES + 5)
    assert box.has_room(10**9)  # a single record may be of any size
    box.add(b"12345", 1)
    assert not box.has_room(1)
    box.answered(box.take())
    assert box.has_room(5) and (box.taken_total, box.answered_total) == (1, 1)


def test_a_list_is_cut_where_a_limit_is() -> None:
    assert parts_of([b"1"] * 5, 2, 100) == [range(2), range(2, 4), range(4, 5)]
    assert parts_of([b"x" * 60, b"x" * 60, b"x" * 200], 9, 100) == [range(1), range(1, 2), range(2, 3)]
    assert parts_of([], 2, 100) == [range(0)]


# --- an append that is split


def test_an_append_that_is_too_large_is_split_if_asked_to(start: Any, connect: Connect) -> None:
    """WR1, ID1"""
    client = connect(start(max_batch_records=7, max_body_bytes=5000).address)
    values = ["x" * 900 if n == 20 else n for n in range(50)]
    records = [{"data": value} for value in values]
    with pytest.raises(InvalidRequest):
        client.append("t", records)
    written = client.append("t", records, split=True, idempotency_key="k")
    assert (written.first_seq, written.last_seq, written.count, written.deduped) == (1, 50, 50, False)
    again = client.append("t", records, split=True, idempotency_key="k")
    assert (again.count, again.deduped, client.state("t").count) == (50, True, 50)
    assert [record.value for record in client.diff("t").records] == values
    assert client.append("t", iter(records[:3]), split=True, idempotent=False).count == 3
