"""Exports and imports without Spark."""

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Shell
from topics.cli.files import file_import
from topics.client import Client

RECORDS = [
    {"data": msgspec.Raw(b'{"b": 1,  "a":"\xc3\xa9"}'), "tag": "eu", "node": "n1", "meta": {"k": [1]}},
    {"data": 'a,"b"\nc'},
    {"data": None},
]


@pytest.mark.parametrize("suffix", ["ndjson", "jsonl", "csv", "parquet"])
def test_a_topic_comes_back_from_its_file_as_it_was(shell: Shell, client: Client, suffix: str) -> None:
    client.append(f"out.{suffix}", RECORDS)
    shell.ok("export", f"out.{suffix}", f"file.{suffix}")
    options = ("--data", "data", "--tag", "tag", "--node", "node", "--meta", "meta")
    shell.ok("import", f"file.{suffix}", f"back.{suffix}", *options)

    def kept(topic: str) -> list[tuple[bytes, bytes, str | None, str | None]]:
        records = client.diff(topic, include_tags=True).records
        return [(bytes(one.data), bytes(one.meta), one.tag, one.node) for one in records]

    assert kept(f"back.{suffix}") == kept(f"out.{suffix}")


def test_a_range_is_exported_and_what_is_lost_of_it_is_said(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.put_topic("ranged", cap_records=5)
    client.append("ranged", [{"data": n} for n in range(1, 11)])
    answer = shell.ok("export", "ranged", "a.parquet", "--first-seq", "1", "--last-seq", "8", "--json")
    assert answer.lines == [{"topic": "ranged", "destination": "a.parquet", "rows": 3, "lost": 5, "gaps": 1}]
    assert "!!! ranged: 5 lost, seqs 1 to 5: cap" in answer.err
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
    assert table["seq"].to_pylist() == [6, 7, 8]
    assert [line["seq"] for line in shell.ok("export", "ranged", "-", "--first-seq", "9").lines] == [9, 10]
    assert shell.ok("export", "ranged", "-", "--since", "2100-01-01", "--format", "csv").out.count("\n") == 1
    assert shell.run("export", "ranged", "b.csv", "--first-seq", "2", "--strict").code == 1
    assert shell.ok("export", "ranged", "-", "--strict").err == ""  # from the first live record on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]


def test_no_file_is_written_over_and_none_is_left_half(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.append("precious", [{"data": 1}])
    (tmp_path / "mine.csv").write_text("mine")
    answer = shell.run("export", "precious", "mine.csv")
    assert answer.code == 1 and "exists" in answer.err and (tmp_path / "mine.csv").read_text() == "mine"
    assert shell.run("export", "absent", "new.csv").code == 4
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    assert shell.run("export", "precious", "x.csv", "--format", "parquet").code == 2


def test_an_import_is_done_once_and_goes_on_where_it_was(shell: Shell, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_text("".join(f"{n}\n" for n in range(2500)))
    assert shell.ok("import", "rows.ndjson", "once", "--json").lines[0]["rows"] == 2500
    assert shell.ok("import", "rows.ndjson", "once", "--json").lines[0]["rows"] == 0
    assert client.state("once").count == 2500
    assert shell.ok("import", "rows.ndjson", "once", "--name", "again", "--json").lines[0]["rows"] == 2500
    file.write_text("1\n")
    answer = shell.run("import", "rows.ndjson", "once")
    assert answer.code == 1 and "has changed" in answer.err
    shell.ok("import", "rows.ndjson", "anew")
    client.delete_topic("anew")
    answer = shell.run("import", "rows.ndjson", "anew")
    assert answer.code == 1 and "was deleted" in answer.err


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize("window_ms", [0, 120_000])
def test_a_batch_that_may_have_arrived_is_not_doubled(
    shell: Shell, client: Client, tmp_path: Path, is_sent: bool, window_ms: int
) -> None:
    """The process was killed between sending a batch and noting it. With no window, the topic is searched."""
    topic = f"killed.{is_sent}.{window_ms}"
    file = tmp_path / "rows.ndjson"
    file.write_text("".join(f"{n}\n" for n in range(1500)))
    client.put_topic(topic, idempotency_window_ms=window_ms)
    shell.ok("import", "rows.ndjson", topic)
    (ledger,) = (tmp_path / ".topics" / "imports").iterdir()
    client.append(topic, [{"data": "of somebody else"}])
    state = client.state(topic)
    now = state.last_write_ts or 0
    pending = file_import.Pending(rows=500, head_seq=1000, epoch=state.epoch, at_ms=now if window_ms else 0)
    if not is_sent:
        client.delete_topic(topic)
        client.put_topic(topic, idempotency_window_ms=window_ms)
        client.append(topic, [{"data": n} for n in range(1000)])
    stat = file.stat()
    epoch = client.state(topic).epoch
    noted = file_import.Ledger(1000, pending, epoch, stat.st_size, stat.st_mtime_ns)
    ledger.write_bytes(msgspec.json.encode(noted))
    shell.ok("import", "rows.ndjson", topic)
    numbers = [item.value for item in client.consume(topic, follow=False) if item.value != "of somebody else"]
    assert numbers == list(range(1500))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ndjson", "1\n{oops\n", "line 2 is not JSON"),
        ("a.json", "[1,", "is not JSON"),
        ("a.csv", "x,y\n1,2\n", "has no column 'data'; the columns are x, y"),
        ("a.parquet", "no parquet", "is not Parquet"),
        ("b.ndjson", '{"data":1}\n{"n":1}\n', "line 2 has no field 'data'"),
    ],
)
def test_a_bad_row_is_named(shell: Shell, tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    options = () if "not JSON" in said else ("--data", "data")
    answer = shell.run("import", name, "bad", *options)
    assert answer.code == 1 and said in answer.err, answer


def test_tables_become_objects(shell: Shell, client: Client, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\n1\t\n2\tx\n")
    shell.ok("import", "t.tsv", "tabled", "--tag", "a")
    assert [(one.value, one.tag) for one in client.diff("tabled", include_tags=True).records] == [
        ({"a": "1"}, "1"),
        ({"a": "2", "b": "x"}, "2"),
    ]
    (tmp_path / "t.json").write_text(json.dumps([1, {"a": 2}]))
    shell.ok("import", "t.json", "documents")
    assert [one.value for one in client.diff("documents").records] == [1, {"a": 2}]


def test_a_file_that_is_not_there_is_told_at_once(shell: Shell) -> None:
    answer = shell.run("import", "missing.csv", "topic")
    assert answer.code == 2 and "missing.csv" in answer.err
