"""`topics import`: every row of the files once, whatever happens in between."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.commands import Command
from tests.spark.rig import Rig, Watched, said_by
from topics.client import Client, Record
from topics.errors import InvalidRequest
from topics.spark.jobs import importing
from topics.spark.jobs.importing import Imported, Source, import_
from topics.spark.runs.marks import Ledger
from topics.spark.servers.connection import Connection
from topics.spark.tables.formats import Mapped
from topics.testing.clock import ManualClock
from topics.testing.server import ServerThread

Import = Callable[..., Imported]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Import:
    """Import into the topic of the test."""

    def run(path: Path | str, topic: str | None = None, *, clock: Any = None, name: str = "", **given: Any) -> Imported:
        flags = {key: given.pop(key) for key in ("at_least_once", "sets_window", "progress") if key in given}
        mapped = Mapped(**{key: given.pop(key) for key in tuple(given) if key in Mapped.__struct_fields__})
        source = Source(path=str(path), mapped=mapped, **given)
        server = Connection(url=rig.url)
        state = str(tmp_path / "state")
        topic = topic or f"{rig.prefix}.t"
        return import_(rig.spark, source, topic, server=server, state=state, name=name, clock=clock, **flags)

    return run


def records(rig: Rig, topic: str | None = None) -> list[Record]:
    found = rig.client.consume(topic or f"{rig.prefix}.t", follow=False, include_tags=True)
    return [record for record in found if isinstance(record, Record)]


def texts(rig: Rig) -> list[str]:
    return [bytes(record.data).decode() for record in records(rig)]


ODD = ['{"b": 1.0,"a":1e2}', "[1,  2]", '"é\\u00e9"', "12345678901234567890", "null", '{"a":{"$x":"\\ud83d\\ude00"}}']


def test_lines_are_imported_byte_for_byte(rig: Rig, run: Import, tmp_path: Path) -> None:
    lines = tmp_path / "rows.ndjson"
    lines.write_text("\r\n".join(ODD) + "\n\n  \n")
    assert run(lines) == Imported(topic=f"{rig.prefix}.t", files=1, rows=6, rows_now=6)
    assert texts(rig) == ODD


def test_fields_become_tag_node_and_meta(rig: Rig, run: Import, tmp_path: Path) -> None:
    rows = [
        {"id": 7, "kind": "a", "who": "n1", "more": {"x": [1]}, "body": {"v": 1}},
        {"body": "text", "kind": None, "id": 8},
    ]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    run(tmp_path / "rows.jsonl.gz", data="body", tag="kind", node="who", meta="more")
    assert [(r.value, r.tag, r.node, r.meta_value) for r in records(rig)] == [
        ({"v": 1}, "a", "n1", {"x": [1]}),
        ("text", None, None, None),
    ]


def test_a_json_file_is_a_row_or_an_array_of_rows(rig: Rig, run: Import, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[\n {"n": 1},\n {"n":2.0}\n]\n')
    (tmp_path / "b.json").write_text('{\n "n": 3\n}')
    run(str(tmp_path / "*.json"), is_ordered=True)
    assert sorted(texts(rig)) == ['{"n": 1}', '{"n":2.0}', '{"n":3}']


def test_a_row_of_a_csv_file_is_an_object_of_its_columns(rig: Rig, run: Import, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id;name;note\n1;"a ""b""";\n2;é;x\n')
    run(tmp_path / "rows.csv", options={"sep": ";"}, tag="id")
    assert [(r.value, r.tag) for r in records(rig)] == [
        ({"id": "1", "name": 'a "b"'}, "1"),
        ({"id": "2", "name": "é", "note": "x"}, "2"),
    ]


def test_columns_of_parquet_become_records(rig: Rig, run: Import, tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ['say "hi"', None],
            "json": ['{"a":1.0}', "[2]"],
            "number": [1.5, None],
            "about": [{"k": 1}, {"k": 2}],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    for name, given in {
        "whole": {},
        "json": {"data": "json", "meta": "about"},
        "text": {"data": "text", "is_text": True},
        "number": {"data": "number"},
    }.items():
        run(tmp_path / "rows.parquet", f"{rig.prefix}.{name}", **given)
    assert rig.values(f"{rig.prefix}.whole") == [
        {"text": 'say "hi"', "json": '{"a":1.0}', "number": 1.5, "about": {"k": 1}},
        {"json": "[2]", "about": {"k": 2}},
    ]
    assert [bytes(r.data) for r in records(rig, f"{rig.prefix}.json")] == [b'{"a":1.0}', b"[2]"]
    assert [r.meta_value for r in records(rig, f"{rig.prefix}.json")] == [{"k": 1}, {"k": 2}]
    assert rig.values(f"{rig.prefix}.text") == ['say "hi"', None]
    assert rig.values(f"{rig.prefix}.number") == [1.5, None]


def test_files_that_come_later_are_imported_and_the_others_are_not_again(rig: Rig, run: Import, tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "1.ndjson").write_text("1\n2\n")
    assert run(directory).rows_now == 2
    (directory / "2.ndjson").write_text("3\n")
    (directory / "_ignored.ndjson").write_text("99\n")
    assert run(directory) == Imported(topic=f"{rig.prefix}.t", files=2, rows=3, rows_now=1)
    assert run(directory).rows_now == 0
    assert rig.values(f"{rig.prefix}.t") == [1, 2, 3]
    assert run(directory, name="once more").rows_now == 3


def test_a_file_that_changed_is_refused(rig: Rig, run: Import, tmp_path: Path) -> None:
    lines = tmp_path / "rows.ndjson"
    lines.write_text("1\n")
    run(lines)
    lines.write_text("1\n2\n")
    with pytest.raises(InvalidRequest, match=r"rows\.ndjson changed since its import began \(2 bytes then, 4 now\)"):
        run(lines)
    assert rig.values(f"{rig.prefix}.t") == [1]


def test_files_whose_format_is_not_clear_are_refused_before_anything_is_written(
    rig: Rig, run: Import, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ndjson").write_text("1\n")
    for name, said in (("b.csv", "has files of 2 formats"), ("b.dat", "its name does not tell the format")):
        (tmp_path / "in" / name).write_text("a\n1\n")
        with pytest.raises(InvalidRequest, match=said):
            run(tmp_path / "in")
        (tmp_path / "in" / name).unlink()
    with pytest.raises(InvalidRequest, match="there is no file to import"):
        run(tmp_path / "absent")
    assert not list(rig.client.topics(rig.prefix))


def test_a_bad_row_names_its_file_and_leaves_its_part_unwritten(rig: Rig, run: Import, tmp_path: Path) -> None:
    lines = tmp_path / "rows.ndjson"
    lines.write_text('{"a":1}\n[]\n')
    said = said_by(lambda: run(lines, tag="a"))
    assert "rows.ndjson: a row is not a JSON object" in said and ": []" in said
    lines.write_text("1\n2\n{\n")
    assert "row 2 of the partition is not a record" in said_by(lambda: run(lines, name="second"))
    assert rig.values(f"{rig.prefix}.t") == []


def test_a_topic_that_forgets_keys_soon_is_refused_or_set(rig: Rig, run: Import, tmp_path: Path) -> None:
    """ID1"""
    topic = rig.topic("t", cap_records=100)
    (tmp_path / "rows.ndjson").write_text("1\n")
    with pytest.raises(InvalidRequest, match="remembers idempotency keys for 120000 ms, too short"):
        run(tmp_path / "rows.ndjson")
    run(tmp_path / "rows.ndjson", sets_window=True)
    config = rig.client.state(topic).config
    assert (config.idempotency_window_ms, config.cap_records) == (7 * 86_400_000, 100)


def test_going_on_when_the_keys_are_forgotten_is_refused(rig: Rig, run: Import, tmp_path: Path) -> None:
    """ID1"""
    clock = ManualClock()
    lines = tmp_path / "rows.ndjson"
    lines.write_text("1\nx\n")
    said_by(lambda: run(lines, clock=clock))
    clock.advance(7 * 86_400_000)
    with pytest.raises(InvalidRequest, match="was interrupted 604800 s ago"):
        run(lines, clock=clock)
    assert "not a record" in said_by(lambda: run(lines, clock=clock, at_least_once=True))


def test_a_topic_created_again_is_not_taken_for_the_old_one(rig: Rig, run: Import, tmp_path: Path) -> None:
    (tmp_path / "rows.ndjson").write_text("1\n")
    run(tmp_path / "rows.ndjson")
    rig.client.delete_topic(f"{rig.prefix}.t")
    with pytest.raises(InvalidRequest, match="was deleted and created again"):
        run(tmp_path / "rows.ndjson")


def test_a_topic_on_a_server_that_was_set_up_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Its epoch is the same, and it has fewer records than the job has written."""
    ledger = Ledger.open(str(tmp_path), "job", {})
    with ServerThread() as server, Client("http://{}:{}".format(*server.address), "") as client:
        ledger.bind(client, "t")
        client.append("t", [{"data": n} for n in range(5)])
        ledger.begin("unit")
        ledger.finish("unit", 5)
        Ledger.open(str(tmp_path), "job", {}).bind(client, "t")
        epoch = client.state("t").epoch
    with ServerThread() as server, Client("http://{}:{}".format(*server.address), "") as client:
        with pytest.raises(InvalidRequest, match="was deleted and created again since this job wrote to it"):
            Ledger.open(str(tmp_path), "job", {}).bind(client, "t")
        assert client.state("t").epoch == epoch


def test_files_are_cut_alike_on_any_number_of_cores(
    rig: Rig, run: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun on many cores is found written when it is imported again as if on one. ID1"""
    monkeypatch.setitem(importing.CUTS, "spark.sql.files.maxPartitionBytes", "20000")
    monkeypatch.setitem(importing.CUTS, "spark.sql.files.openCostInBytes", "1000")
    directory = tmp_path / "in"
    directory.mkdir()
    for number in range(40):  # more than Spark lists one by one, most of one size
        (directory / f"{number}.ndjson").write_text("".join(f"1{1000 * number + n:05}\n" for n in range(1000)))
    (directory / "big.ndjson").write_text("".join(f"{n}\n" for n in range(200_000, 210_000)))
    run(directory)
    before = rig.client.state(f"{rig.prefix}.t").head_seq
    os.rename(tmp_path / "state", tmp_path / "lost")
    rig.spark.conf.set("spark.sql.leafNodeDefaultParallelism", "1")
    try:
        assert run(directory).rows_now == 50_000
    finally:
        rig.spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
    assert rig.client.state(f"{rig.prefix}.t").head_seq == before == 50_000


def test_killed_and_run_again_it_has_every_row_once(rig: Rig, run: Import, tmp_path: Path) -> None:
    """ID1"""
    directory, count, topic = tmp_path / "in", 400_000, f"{rig.prefix}.t"
    directory.mkdir()
    for number in range(4):
        numbers = range(number * count // 4, (number + 1) * count // 4)
        (directory / f"{number}.ndjson").write_text("".join(f'{{"n":{n},"x":"{"y" * 60}"}}\n' for n in numbers))
    rig.client.put_topic(topic, idempotency_window_ms=7 * 86_400_000)
    arguments = ("import", str(directory), topic, "--state", str(tmp_path / "state"))
    command = Command(tmp_path / "process", *arguments, url=rig.url)
    command.kill_once(lambda: rig.client.state(topic).head_seq > 0)
    assert 0 < rig.client.state(topic).head_seq < count, "it was killed in the middle"
    assert run(directory).rows == count
    assert sorted(value["n"] for value in rig.values(topic)) == list(range(count))


def test_rows_are_shown_as_they_arrive_not_when_a_unit_ends(
    rig: Rig, run: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "UNIT_FILES", 1)
    for n in range(2):
        (tmp_path / f"{n}.ndjson").write_text("7\n" * 30)
    progress = Watched("import")
    run(str(tmp_path / "*.ndjson"), progress=progress)
    assert [rows for rows, _ in progress.seen] == [30, 60]
    assert progress.seen[1][1] == 1.0, "files alike: as many rows as the first one had are all of it"
    assert (progress.rows, progress.share) == (60, 1.0)
