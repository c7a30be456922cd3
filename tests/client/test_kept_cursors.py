"""Consumers that keep their place: in a file, in a database, on the server; over kills; and typed values."""

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from tests.client.conftest import Connect
from topics.client import FileCursor, Lost, NamedCursor, NewRecord, Position, Record, SQLiteCursor, Tombstone
from topics.errors import InvalidRequest
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess, ServerThread


def kept_in(kind: str, path: Path) -> Any:
    if kind == "file":
        return FileCursor(path / "cursors.json")
    return SQLiteCursor(sqlite3.connect(path / "db", check_same_thread=False), "me") if kind == "sqlite" else None


@pytest.mark.parametrize("kind", ["file", "sqlite", "named"])
def test_the_next_run_goes_on_where_the_last_one_ended(client: Any, topic: str, tmp_path: Path, kind: str) -> None:
    """NC1, NC2"""
    client.append(topic, [{"data": n} for n in range(10)])
    seen: list[int] = []
    for stop_at in (3, 7, 99):
        with client.consume(topic, follow=False, cursor=kept_in(kind, tmp_path) or NamedCursor("me")) as items:
            for item in items:
                seen.append(item.value)
                if item.value == stop_at:
                    break
    assert seen == list(range(10))
    if kind == "named":
        assert client.cursor(topic, "me").seq == 10


@pytest.mark.parametrize("kind", ["file", "sqlite", "named"])
def test_an_item_whose_body_failed_comes_again(client: Any, topic: str, tmp_path: Path, kind: str) -> None:
    client.append(topic, [{"data": n} for n in range(5)])

    def run(fails: bool) -> list[int]:
        seen: list[int] = []
        with client.consume(topic, follow=False, cursor=kept_in(kind, tmp_path) or NamedCursor("me", every=1)) as items:
            for item in items:
                seen.append(item.value)
                if fails and item.value == 2:
                    raise ZeroDivisionError
        return seen

    with pytest.raises(ZeroDivisionError):
        run(True)
    assert run(False) == [2, 3, 4]


def test_a_topic_that_is_another_one_is_told(client: Any, topic: str, tmp_path: Path) -> None:
    """TM11"""
    client.append(topic, [{"data": n} for n in range(5)])
    assert len(list(client.consume(topic, follow=False, cursor=kept_in("file", tmp_path)))) == 5
    client.delete_topic(topic)
    client.append(topic, [{"data": "new"}])
    lost, record = client.consume(topic, follow=False, cursor=kept_in("file", tmp_path))
    assert isinstance(lost, Lost) and isinstance(lost, Tombstone) and (lost.topic, lost.reason) == (topic, "recreated")
    assert record.value == "new"


def test_a_named_cursor_whose_topic_went_away_does_not_end_the_loop(client: Any, topic: str) -> None:
    client.append(topic, [{"data": n} for n in range(3)])
    items = client.consume(topic, follow=False, limit=2, cursor=NamedCursor("me"))
    next(items)
    client.delete_topic(topic)
    client.append(topic, [{"data": "new"}])
    assert [getattr(item, "reason", None) or item.value for item in items] == [1, "recreated", "new"]


def test_one_file_holds_the_cursors_of_many_topics(tmp_path: Path) -> None:
    kept = FileCursor(tmp_path / "c")
    assert kept.load("a") is None
    kept.save("a", Position(1, 2))
    kept.save("b", Position(3, None))
    assert (kept.load("a"), kept.load("b")) == (Position(1, 2), Position(3, None))
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a":1}', '{"a":["x",1]}', "{", '{"a":[1]}'])
def test_a_file_that_holds_no_cursors_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_text(text)
    with (
        pytest.raises(InvalidRequest, match=r"c is not a file of cursors")
        if text != "[]"
        else pytest.raises(InvalidRequest)
    ):
        FileCursor(tmp_path / "c").load("a")


PROGRAM = """
import sqlite3, sys
from topics import Client, SQLiteCursor
database = sqlite3.connect(sys.argv[2], timeout=1200)
database.execute("CREATE TABLE IF NOT EXISTS seen (value INTEGER)")
for item in Client(sys.argv[1]).consume("t", cursor=SQLiteCursor(database, "me"), limit=7):
    database.execute("INSERT INTO seen VALUES (?)", (item.value,))
    print(item.value, flush=True)
"""


@pytest.mark.process
def test_with_sqlite_each_item_takes_effect_once_whatever_is_killed(tmp_path: Path, connect: Connect) -> None:
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        url, database = "http://{}:{}".format(*server.address), str(tmp_path / "db")
        client = connect(server.address)
        client.append("t", [{"data": n} for n in range(100)])
        for until in (10, 35, 60, 99):
            with subprocess.Popen(
                [sys.executable, "-c", PROGRAM, url, database], stdout=subprocess.PIPE, text=True
            ) as running:
                assert running.stdout is not None
                for line in running.stdout:
                    if int(line) >= until:
                        break
                if until == 35:
                    server.kill()
                    server.start()
                if until == 99:  # it is done when the position is behind the last
                    with sqlite3.connect(database, timeout=PATIENCE_S) as reading:
                        while not reading.execute("SELECT 1 FROM topics_cursors WHERE seq = 100").fetchone():
                            pass
                    reading.close()
                running.send_signal(signal.SIGKILL)
        with sqlite3.connect(database, timeout=PATIENCE_S) as reading:
            assert [value for (value,) in reading.execute("SELECT value FROM seen")] == list(range(100))
        reading.close()


# --- typed values


class Struct(msgspec.Struct):
    sku: str
    n: int = 1


@dataclasses.dataclass
class Data:
    sku: str
    n: int = 1


class Model(pydantic.BaseModel):
    sku: str
    n: int = 1


@pytest.mark.parametrize("kind", [Struct, Data, Model])
def test_values_of_a_type_are_written_and_read(client: Any, topic: str, kind: Any) -> None:
    one = kind(sku="A", n=2)
    client.append(topic, [one, NewRecord(one, tag="eu"), {"data": {"order": one}}])
    client.send(topic, one)
    values = [item.value for item in client.consume(topic, follow=False, limit=2, filter="eu", type=kind)]
    assert values == [one] and type(values[0]) is kind
    records = client.diff(topic).records
    assert [record.value for record in records] == [
        {"sku": "A", "n": 2},
        {"sku": "A", "n": 2},
        {"order": {"sku": "A", "n": 2}},
        {"sku": "A", "n": 2},
    ]
    assert records[0].as_type(kind) == one


def test_a_value_that_does_not_fit_is_an_error_of_that_value_alone(client: Any, topic: str) -> None:
    client.append(topic, [{"data": 1}, {"data": {"sku": "A"}}])
    first, second = client.consume(topic, follow=False, type=Struct)
    with pytest.raises(ValueError):
        _ = first.value
    assert second.value == Struct("A")


def test_a_record_and_a_job_are_shown_readably(client: Any, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.append(topic, [{"data": {"a": "x" * 500}, "tag": "eu", "meta": {"k": 1}}])
    (record,) = client.diff(topic, include_tags=True).records
    assert repr(record).startswith('Record(seq=1, tag=\'eu\', meta={"k":1}, data={"a":"xxx')
    assert len(repr(record)) < 250 and isinstance(record, Record)
    (job,) = client.claim(topic, "w").claimed
    assert repr(job).startswith("Job(seq=1, tag='eu', meta={\"k\":1}, deliveries=1, deadline=")


def test_everything_that_is_needed_is_exported() -> None:
    import topics

    assert all(getattr(topics, name) is not None for name in topics.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = topics.nope


def test_a_gap_is_told_to_the_hook(server: ServerThread, connect: Connect, topic: str) -> None:
    told: list[Lost] = []
    client = connect(server.address, on_gap=told.append)
    client.put_topic(topic, cap_records=2)
    client.append(topic, [{"data": n} for n in range(5)])
    items = list(client.consume(topic, follow=False))
    with client.watch([topic]) as watching:
        event = next(watching)
    assert told == [items[0], event] and isinstance(event, Lost) and event.missed_estimate == 3
