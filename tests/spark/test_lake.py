"""The lake's manifest and files."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topics.errors import Damaged, InvalidRequest
from topics.reader import Lost
from topics.spark.tables import lake as lakes
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, Trimmed, read_rows


def covered(first: int, last: int, *, epoch: int = 1, gaps: list[Lost] | None = None, files: int = 0) -> Covered:
    named = [LakeFile(f"records/{first}.parquet", first, last, files)] if files else []
    return Covered("orders", epoch, first, last, named, gaps or [])


def test_a_lake_is_what_its_commits_say(tmp_path: Path) -> None:
    lake = Lake.load(str(tmp_path), must_exist=False)
    lake.commit(Commit(run="q", batch=0, covered=[covered(1, 100)]))
    lake.commit(Commit(run="q", batch=1, covered=[covered(101, 200, gaps=[Lost(120, 130, "cap")])]))
    lake.commit(Commit(run="q", batch=2, covered=[covered(300, 400), covered(1, 5, epoch=2)]))
    lake.commit(Commit(trimmed=[Trimmed("orders", 1, 90)]))
    for view in (lake, Lake.load(str(tmp_path))):
        assert view.covered("orders", 1) == [(1, 119), (131, 200), (300, 400)]
        assert view.covered("orders", 2) == [(1, 5)] and view.covered("other", 1) == []
        assert (view.trimmed_through("orders", 1), view.trimmed_through("orders", 2)) == (90, 0)


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    lake = Lake.load(str(tmp_path), must_exist=False)
    assert lake.commit(Commit(run="q", batch=0, covered=[covered(1, 10)]))
    again = Lake.load(str(tmp_path))
    assert not again.commit(Commit(run="q", batch=0, covered=[covered(1, 10)]))
    assert again.commit(Commit(run="another", batch=0, covered=[covered(11, 20)]))
    assert len(list((tmp_path / "manifest").iterdir())) == 2


def test_a_base_stands_for_the_commits_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lakes, "DELTAS_MAX", 3)
    lake = Lake.load(str(tmp_path), must_exist=False)
    for n in range(10):
        lake.commit(Commit(run="q", batch=n, covered=[covered(10 * n + 1, 10 * n + 10)]))
    names = sorted((tmp_path / "manifest").iterdir())
    bases = [name for name in names if '"is_base": true' in name.read_text()]
    for name in names[: names.index(bases[-1])]:
        name.unlink()
    found = Lake.load(str(tmp_path))
    assert found.covered("orders", 1) == [(1, 100)] and found.runs == {"q": 9}


def test_a_second_writer_does_not_overwrite_a_commit(tmp_path: Path) -> None:
    one, other = (Lake.load(str(tmp_path), must_exist=False) for _ in range(2))
    one.commit(Commit(run="a", batch=0, covered=[covered(1, 10)]))
    with pytest.raises(InvalidRequest, match="another job writes to this lake"):
        other.commit(Commit(run="b", batch=0, covered=[covered(1, 20)]))
    assert Lake.load(str(tmp_path)).covered("orders", 1) == [(1, 10)]
    assert [name.name for name in (tmp_path / "manifest").iterdir()] == ["00000000000000000001.json"]


def test_what_is_no_lake_or_no_commit_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not a lake"):
        Lake.load(str(tmp_path))
    (tmp_path / "manifest").mkdir()
    name = tmp_path / "manifest" / "00000000000000000001.json"
    for text, message in (("{", "not a commit"), ('{"format": 99}', "of format 99")):
        name.write_text(text)
        with pytest.raises(Damaged, match=message):
            Lake.load(str(tmp_path))


def write(root: Path, path: str, seqs: list[int], **options: Any) -> LakeFile:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"seq": seqs, "data": [str(seq) for seq in seqs]}), root / path, **options)
    return LakeFile(path, seqs[0], seqs[-1], len(seqs))


def test_only_wanted_seqs_and_columns_are_read(tmp_path: Path) -> None:
    files = [write(tmp_path, "records/a.parquet", list(range(1, 101)), row_group_size=10)]
    files.append(write(tmp_path, "records/b.parquet", list(range(150, 200, 2))))
    found = list(read_rows(str(tmp_path), files, [(5, 7), (95, 152)], ["data"]))
    assert [seq for batch in found for seq in batch["seq"].to_pylist()] == [5, 6, 7, *range(95, 101), 150, 152]
    assert found[0].schema.names == ["seq", "data"]


def test_times_are_found_in_the_files(tmp_path: Path) -> None:
    lake = Lake.load(str(tmp_path), must_exist=False)
    (tmp_path / "records").mkdir()
    for n in range(5):
        seqs = list(range(10 * n + 1, 10 * n + 11))
        times = pa.array([100 * seq for seq in seqs], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"seq": seqs, "ts": times}), tmp_path / "records" / f"{n}.parquet")
        file = LakeFile(f"records/{n}.parquet", seqs[0], seqs[-1], 10)
        lake.commit(Commit(run="q", batch=n, covered=[Covered("t", 1, seqs[0], seqs[-1], [file])]))
    found = {ts: lake.cursor_before("t", 1, ts) for ts in (0, 100, 101, 1000, 1001, 2550, 5000, 5001)}
    assert found == {0: 0, 100: 0, 101: 1, 1000: 9, 1001: 10, 2550: 25, 5000: 49, 5001: None}
    assert lake.cursor_before("t", 2, 0) is None


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"records/x\.parquet.*is missing"):
        list(read_rows(str(tmp_path), [LakeFile("records/x.parquet", 1, 2, 2)], [(1, 2)], ["data"]))
