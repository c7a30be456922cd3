"""`topics export`: the records of a range as files, and what was lost of it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.commands import Command
from tests.spark.rig import Rig
from topics.client import NewRecord
from topics.errors import InvalidRequest
from topics.spark.jobs.exporting import Exported, Gap, Wanted, export
from topics.spark.jobs.importing import Source, import_
from topics.spark.servers.connection import Connection
from topics.spark.tables.formats import Mapped

Export = Callable[..., Exported]
ODD = [
    NewRecord({"b": 1.0, "a": 'x,"y"'}, tag='t"1', node="n", meta={"k": [1]}),
    NewRecord("é\n😀"),
    NewRecord(None, tag="", meta={}),
]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Export:
    def run(topic: str, *, to: str = "out", format: Any = "parquet", single: bool = False, **given: Any) -> Exported:
        wanted, server = Wanted(selection=topic, **given), Connection(url=rig.url)
        return export(rig.spark, wanted, str(tmp_path / to), server=server, format=format, is_single=single)

    return run


def lines(directory: Path) -> list[dict[str, Any]]:
    """The rows of all NDJSON files."""
    texts = [file.read_text() for file in sorted(directory.glob("part-*.ndjson"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_records_are_exported_in_each_format(rig: Rig, run: Export, tmp_path: Path) -> None:
    topic = rig.topic()
    rig.client.append(topic, ODD)
    first = rig.client.diff(topic, include_tags=True).records[0]
    for format in ("parquet", "ndjson", "csv"):
        assert run(topic, to=format, format=format) == Exported(rows=3, gaps=[], files=1)
    row = pq.read_table(tmp_path / "parquet").to_pylist()[0]
    assert (row["topic"], row["seq"], row["tag"], row["node"], row["meta"]) == (topic, 1, 't"1', "n", '{"k":[1]}')
    assert row["data"] == bytes(first.data).decode() and int(row["ts"].timestamp() * 1000) == first.ts
    assert lines(tmp_path / "ndjson")[0] == {
        "topic": topic,
        "seq": 1,
        "ts": first.ts,
        "tag": 't"1',
        "node": "n",
        "meta": {"k": [1]},
        "data": {"b": 1.0, "a": 'x,"y"'},
    }
    assert [set(line) for line in lines(tmp_path / "ndjson")[1:]] == [
        {"topic", "seq", "ts", "data"},
        {"topic", "seq", "ts", "data", "tag", "meta"},
    ]
    with next((tmp_path / "csv").glob("part-*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["data"] for row in rows] == ['{"b":1.0,"a":"x,\\"y\\""}', '"é\\n😀"', "null"]


def test_what_is_exported_can_be_imported_byte_for_byte(rig: Rig, run: Export, tmp_path: Path) -> None:
    topic, again = rig.topic(), f"{rig.prefix}.again"
    rig.client.append(topic, ODD)
    run(topic, format="ndjson")
    mapped = Mapped(data="data", tag="tag", node="node", meta="meta")
    source = Source(path=str(tmp_path / "out"), mapped=mapped)
    import_(rig.spark, source, again, server=Connection(url=rig.url), state=str(tmp_path / "state"))
    one, other = (rig.client.diff(name, include_tags=True).records for name in (topic, again))
    assert [(r.tag, r.node, r.data, r.meta) for r in one] == [(r.tag, r.node, r.data, r.meta) for r in other]


def test_ranges_are_inclusive_and_times_half_open(rig: Rig, run: Export, tmp_path: Path) -> None:
    topic = rig.topic(count=20)
    assert run(topic, format="ndjson", first=5, last=9).rows == 5
    assert [line["seq"] for line in lines(tmp_path / "out")] == [5, 6, 7, 8, 9]
    ts = rig.client.diff(topic, limit=1).records[0].ts
    assert run(topic, to="early", until=str(ts)).rows == 0
    assert run(topic, to="late", since=str(ts)).rows == 20


def test_a_pattern_exports_all_topics_that_match(rig: Rig, run: Export, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        rig.topic(name, 3)
    assert run(f"{rig.prefix}[.]a.*", format="ndjson", single=True).files == 1
    found = {(line["topic"].rpartition(".")[2], line["seq"]) for line in lines(tmp_path / "out")}
    assert found == {(name, seq) for name in ("a1", "a2") for seq in (1, 2, 3)}


def test_gaps_are_counted_and_listed(rig: Rig, run: Export, tmp_path: Path) -> None:
    """TM2"""
    topic = rig.topic(cap_records=10)
    rig.append(topic, range(1, 101))
    done = run(topic, first=1)
    assert (done.rows, done.gaps, done.lost) == (10, [Gap(topic, 1, 90, "cap")], 90)
    gap = {"topic": topic, "first": 1, "last": 90, "reason": "cap"}
    assert json.loads((tmp_path / "out" / "_gaps.ndjson").read_text()) == gap
    assert json.loads((tmp_path / "out" / "_export.json").read_text())["lost"] == 90
    with pytest.raises(InvalidRequest, match=r"seqs 1 to 90 \(cap\)"):
        run(topic, to="strict", first=1, is_strict=True)
    assert run(topic, to="live").gaps == []


def test_a_directory_of_somebody_else_is_left_alone(rig: Rig, run: Export, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-precious").write_text("x")
    with pytest.raises(InvalidRequest, match="is not empty"):
        run(topic)
    run(topic, to="mine")
    with pytest.raises(InvalidRequest, match="asked for differently"):
        run(topic, to="mine", first=2)
    assert (tmp_path / "out" / "part-precious").read_text() == "x"


@pytest.mark.full
def test_killed_and_run_again_it_has_every_record_once(rig: Rig, run: Export, tmp_path: Path) -> None:
    topic, count, out = rig.topic(), 300_000, tmp_path / "out"
    rig.append(topic, ["x" * 100] * count)
    command = Command(tmp_path / "process", "export", topic, str(out), "--format", "ndjson", url=rig.url)
    command.kill_once(lambda: any(path.stat().st_size for path in out.glob("_temporary/**/part-*")))
    assert not json.loads((out / "_export.json").read_text())["is_done"], "it was killed in the middle"
    assert run(topic, format="ndjson").rows == count
    assert [line["seq"] for line in lines(out)] == list(range(1, count + 1))
    assert json.loads((out / "_export.json").read_text())["is_done"]
    assert not list(out.glob("_temporary"))


def test_the_command_says_what_came_out_and_what_went_wrong(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(count=5)
    token = "zQ7-secret-of-the-tests"
    command = Command(tmp_path / "one", "export", topic, str(tmp_path / "out"), url=rig.url, TOPICS_TOKEN=token)
    assert command.run() == 0, command.errors
    assert (command.summary["event"], command.summary["rows"], command.summary["gaps"]) == ("done", 5, 0)
    absent = Command(tmp_path / "two", "export", "absent", str(tmp_path / "none"), url=rig.url, TOPICS_TOKEN=token)
    assert absent.run() == 1
    said = absent.errors.split("topics export: ")[1]
    assert said.startswith(f"there is no topic 'absent' in {rig.url}\nThe full trace is in ")
    trace = Path(said.splitlines()[1].removeprefix("The full trace is in "))
    assert "Traceback" in trace.read_text() and token not in trace.read_text() + absent.errors + command.errors
    trace.unlink()
