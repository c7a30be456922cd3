"""The layout of a lake: what the manifest says of files, and small files that become large ones."""

import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topics.errors import Damaged
from topics.reader import Lost
from topics.spark.tables import layout
from topics.spark.tables.lake import Commit, Covered, Lake, read_rows
from topics.spark.tables.layout import compact, described, remove_replaced
from topics.spark.tables.outputs import Place
from topics.testing.clock import ManualClock

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.string()),
        ("data", pa.string()),
    ]
)


def rows(first: int, last: int, **fixed: Any) -> pa.Table:
    """A record for each seq; its time is 1000 times its seq."""
    return pa.Table.from_pylist(
        [
            {
                "topic": "orders",
                "epoch": 1,
                "seq": seq,
                "ts": pa.scalar(1000 * seq, pa.timestamp("ms", "UTC")).as_py(),
                "tag": f"t.{seq:03}",
                "data": str(seq),
                **fixed,
            }
            for seq in range(first, last + 1)
        ],
        SCHEMA,
    )


class Small:
    """A lake of small files, ten rows each."""

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        self.place = Place(str(root))
        self.lake = Lake.load(str(root), must_exist=False)
        for n in range(files):
            self.add(10 * n + 1, 10 * n + 10, n)

    def add(
        self, first: int, last: int, batch: int, table: pa.Table | None = None, gaps: list[Lost] | None = None
    ) -> None:
        path = f"records/run=a/batch={batch}/part.parquet"
        (self.root / path).parent.mkdir(parents=True)
        pq.write_table(rows(first, last) if table is None else table, self.root / path)
        _, file = described(self.place, path)
        covered = Covered("orders", 1, first, last, [file], gaps or [])
        self.lake.commit(Commit(run="a", batch=batch, covered=[covered]))

    def seqs(self, lake: Lake | None = None) -> list[int]:
        lake = lake or Lake.load(str(self.root))
        files = lake.files("orders", 1, 1, 10**9)
        batches = read_rows(str(self.root), files, [(1, 10**9)], ["data", "meta"])
        return [seq for batch in batches for seq in batch["seq"].to_pylist()]

    def compact(self, now_ms: int = 0, **given: Any) -> int:
        return compact(self.lake, self.place, ManualClock(now_ms), **given)


def test_the_manifest_tells_times_and_tags_of_a_file(tmp_path: Path) -> None:
    Small(tmp_path, 1)
    (file,) = Lake.load(str(tmp_path)).files("orders", 1, 1, 10)
    assert (file.first, file.last, file.rows) == (1, 10, 10)
    assert (file.ts_first, file.ts_last) == (1000, 10_000)
    assert (file.has_tags, file.tag_first, file.tag_last) == (True, "t.001", "t.010")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda table: table.set_column(5, "tag", pa.nulls(10, pa.string())), (True, None, None)),
        (lambda table: table.drop(["tag"]), (True, None, None)),
    ],
)
def test_a_file_without_tags_says_so(tmp_path: Path, change: Any, expected: Any) -> None:
    small = Small(tmp_path, 0)
    small.add(1, 10, 0, change(rows(1, 10)))
    (file,) = small.lake.files("orders", 1, 1, 10)
    assert (file.has_tags, file.tag_first, file.tag_last) == expected


def test_a_file_without_statistics_is_not_guessed_at(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    pq.write_table(rows(1, 10), tmp_path / "a.parquet", write_statistics=["topic", "seq"])
    _, file = described(place, "a.parquet")
    assert (file.ts_first, file.ts_last, file.has_tags) == (0, 0, False)
    pq.write_table(rows(1, 10), tmp_path / "b.parquet", write_statistics=["topic"])
    with pytest.raises(Damaged, match="it has no statistics of seq"):
        described(place, "b.parquet")
    pq.write_table(pa.concat_tables([rows(1, 5), rows(6, 9, topic="other")]), tmp_path / "c.parquet")
    with pytest.raises(Damaged, match="more than one topic"):
        described(place, "c.parquet")


def test_small_files_become_one_and_the_lake_says_the_same(tmp_path: Path) -> None:
    small = Small(tmp_path, 20)
    small.add(201, 215, 20, rows(201, 210), gaps=[Lost(211, 215, "cap")])
    before, covered = small.seqs(), small.lake.covered("orders", 1)
    assert small.compact() == 21 and small.compact() == 0
    for lake in (small.lake, Lake.load(str(tmp_path))):
        (file,) = lake.files("orders", 1, 1, 10**9)
        assert (file.first, file.last, file.rows) == (1, 210, 210)
        assert (file.ts_first, file.ts_last, file.tag_first, file.tag_last) == (1000, 210_000, "t.001", "t.210")
        assert lake.covered("orders", 1) == covered and small.seqs(lake) == before
        assert lake.entries["orders", 1][0].gaps == [Lost(211, 215, "cap")]
        assert lake.runs == {"a": 20}, "the next batch is the next one"
    small.add(216, 225, 21)
    assert small.seqs() == [*before, *range(216, 226)]


def test_only_neighbours_that_are_small_are_merged(tmp_path: Path) -> None:
    small = Small(tmp_path, 6)
    small.add(81, 90, 8)
    sizes = [file.size_bytes for file in small.lake.files("orders", 1, 1, 100)]
    assert small.compact(files_min=8) == 0, "too few, and too small"
    assert small.compact(file_bytes=3 * max(sizes)) == 6, "what makes a large file is merged at once"
    assert [(file.first, file.last) for file in Lake.load(str(tmp_path)).files("orders", 1, 1, 100)] == [
        (1, 30),
        (31, 60),
        (81, 90),
    ]
    assert small.compact(files_min=2, file_bytes=max(sizes)) == 0, "a large file is left alone"
    assert small.seqs() == [*range(1, 61), *range(81, 91)]


def test_files_that_were_merged_stay_for_a_while(tmp_path: Path) -> None:
    small = Small(tmp_path, 16)
    old = small.lake.files("orders", 1, 1, 10**9)
    small.compact(now_ms=1000)
    assert remove_replaced(small.lake, small.place, 1000 + layout.KEPT_MS - 1) == 0
    assert all((tmp_path / file.path).exists() for file in old), "a reader that began with them goes on"
    lake = Lake.load(str(tmp_path))
    assert remove_replaced(lake, small.place, 1000 + layout.KEPT_MS) == 16
    assert not any((tmp_path / file.path).exists() for file in old)
    again = Lake.load(str(tmp_path))
    assert remove_replaced(again, small.place, 1000 + layout.KEPT_MS) == 16, "nobody minds a second time"
    assert small.seqs() == list(range(1, 161))


def test_columns_that_came_later_are_null_before(tmp_path: Path) -> None:
    small = Small(tmp_path, 0)
    small.add(1, 10, 0, rows(1, 10).drop(["meta"]))
    small.add(11, 20, 1, rows(11, 20, meta="{}").append_column("later", pa.array(range(10))))
    assert small.compact(files_min=2) == 2
    (file,) = small.lake.files("orders", 1, 1, 20)
    found = pq.read_table(tmp_path / file.path)
    assert found["later"].to_pylist() == [None] * 10 + list(range(10))
    assert found["meta"].to_pylist() == [None] * 10 + ["{}"] * 10


def test_what_a_killed_merge_left_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the move, and between the move and the commit: nothing counts, and the next run does it again."""
    small = Small(tmp_path, 16)
    for place in ("described", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(layout, place, killed if place == "described" else half_written)
            with pytest.raises(KeyboardInterrupt):
                small.compact()
        assert small.seqs() == list(range(1, 161))
    small.lake = Lake.load(str(tmp_path))
    assert small.compact() == 16
    assert small.seqs() == list(range(1, 161))
    assert [name for name in os.listdir(tmp_path / "records" / "merged") if not name.endswith(".tmp")] == [
        f"{17:020d}.parquet"
    ]


def killed(*_: Any) -> Any:
    raise KeyboardInterrupt


def half_written(place: Place, path: str, files: Any) -> None:
    (Path(place.path) / f"{path}.tmp").write_bytes(b"PAR1 and no more")
    raise KeyboardInterrupt


def test_a_merge_that_does_not_have_the_rows_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Small(tmp_path, 16)
    write = layout._write
    monkeypatch.setattr(layout, "_write", lambda place, path, files: write(place, path, files[:-1]))
    with pytest.raises(Damaged, match="16 files of 160 rows made 150 rows"):
        small.compact()
    assert small.seqs() == list(range(1, 161))


@pytest.mark.parametrize("is_merged", [False, True])
def test_duckdb_and_polars_read_the_files_of_a_lake(tmp_path: Path, is_merged: bool) -> None:
    small = Small(tmp_path, 16)
    if is_merged:
        small.compact()
    lake = Lake.load(str(tmp_path))
    paths = lake.paths("orders")
    assert len(paths) == (1 if is_merged else 16)
    sql = "SELECT count(*), sum(CAST(data AS BIGINT)), max(ts) < now() FROM read_parquet($paths) WHERE seq > 50"
    assert duckdb.execute(sql, {"paths": paths}).fetchone() == (110, sum(range(51, 161)), True)
    found = pl.scan_parquet(paths).filter(pl.col("tag") < "t.011").select("seq", "ts", "data").collect()
    assert found["seq"].to_list() == list(range(1, 11))
    assert found["ts"].dt.epoch("ms").to_list() == [1000 * seq for seq in range(1, 11)]
