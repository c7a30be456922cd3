"""The public reader: what `topics.reader` shows of directories that the engine has written."""

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars
import pyarrow as pa
import pytest
from msgspec import Raw

from topics import reader
from topics.core.topic.records import RecordIn
from topics.engine import Engine
from topics.errors import Damaged, InvalidRequest, TopicNotFound, UnusableDirectory
from topics.model import Gap, TagMatch
from topics.reader import COLUMNS, Lost, Piece, open_directory, read_piece
from topics.settings import Settings
from topics.storage import snapshots
from topics.storage.disk import RealDisk
from topics.testing.clock import ManualClock

TEN = Settings(segment_max_events=10)


@asynccontextmanager
async def engine_on(
    path: Path, settings: Settings = TEN, clock: ManualClock | None = None, boot_id: str | None = None
) -> AsyncIterator[Engine]:
    disk = RealDisk(path)
    disk.boot_id = boot_id or disk.boot_id
    async with Engine.open(str(path), settings, clock=clock or ManualClock(), disk=disk, background=False) as engine:
        yield engine


def numbers(count: int, start: int = 1) -> list[dict[str, Any]]:
    """Records whose data is their seq, if `start` is the seq of the first one."""
    return [{"data": seq} for seq in range(start, start + count)]


def seqs(batches: Iterable[Any]) -> list[int]:
    return [seq for batch in batches for seq in batch["seq"].to_pylist()]


async def shown_by(engine: Engine, topic: str) -> list[tuple[Any, ...]]:
    """The records as the engine gives them to readers."""
    answer = await engine.read(topic, limit=1000, include_tags=True)
    return [
        (r.seq, r.ts, r.node, r.tag, bytes(r.meta).decode() or None, bytes(r.data).decode()) for r in answer.records
    ]


def shown_in(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    rows = [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    return [(seq, round(ts.timestamp() * 1000), *texts) for seq, ts, *texts in rows]


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}


def image_of(path: Path, copy: Path) -> Path:
    """What a killed process would leave behind."""
    return Path(shutil.copytree(path, copy))


# --- what is read


async def test_records_of_a_closed_directory_come_back_as_they_were_written(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", [RecordIn(Raw(b'{"b":1.0,"a":12345678901234567890, "b":1e400}'), "t", "n")])
        await engine.append("a", [{"data": "ä\n€", "meta": {"k": "ü"}}, {"data": None}], node="other")
        expected = await shown_by(engine, "a")
    with open_directory(tmp_path) as directory:
        assert shown_in(directory.batches("a")) == expected
        info = directory.topic("a")
    assert (info.name, info.epoch, info.head, info.earliest, info.floor, info.records_live) == ("a", 1, 3, 1, 1, 3)
    assert (info.config.type, info.config.durability, info.gaps) == ("log", "disk", ())


async def test_a_running_directory_is_read_up_to_its_last_checkpoint(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(3))
        with open_directory(tmp_path) as directory:
            assert directory.topics() == []
            await engine.checkpoint()
            assert directory.topics() == []
            directory.reload()
            await engine.append("a", numbers(2, start=4))
            assert directory.topic("a").sealed_through == 3
            assert seqs(directory.batches("a")) == [1, 2, 3]
            await engine.checkpoint()
            assert seqs(directory.batches("a")) == [1, 2, 3]
            directory.reload()
            batches = directory.batches("a", after=3)
            assert (seqs(batches), batches.through, batches.lost) == ([4, 5], 5, [])


async def test_deleted_records_are_left_out_silently(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", [{"data": seq, "tag": "odd" if seq % 2 else "even"} for seq in range(1, 31)])
        await engine.checkpoint()
        files = {piece.file for piece in open_directory(tmp_path).pieces("a")}
        assert len(files) == 3
        await engine.delete("a", before_seq=11)
        await engine.delete("a", match=TagMatch("Eq", "odd"), before_seq=20)
        await engine.delete("a", match=TagMatch("Eq", "even"), before_seq=31)
    with open_directory(tmp_path) as directory:
        batches = directory.batches("a")
        assert (seqs(batches), batches.lost, batches.through) == ([21, 23, 25, 27, 29], [], 30)
        info = directory.topic("a")
        assert (info.earliest, info.floor, info.head, info.records_live) == (21, 1, 30, 5)
    assert {name for name in os.listdir(tmp_path) if name.endswith(".arrow")} < files
    async with engine_on(tmp_path) as engine:
        assert [record.seq for record in (await engine.read("a")).records] == [21, 23, 25, 27, 29]


async def test_what_a_cap_and_age_took_is_left_out_and_told(tmp_path: Path) -> None:
    clock = ManualClock()
    async with engine_on(tmp_path, clock=clock) as engine:
        await engine.put_topic("a", {"cap_records": 20})
        await engine.append("a", numbers(24))
        await engine.checkpoint()
        with open_directory(tmp_path) as directory:
            batches = directory.batches("a")
            assert (seqs(batches), batches.lost) == (list(range(5, 25)), [Lost(1, 4, "cap")])
        await engine.put_topic("a", {"ttl_ms": 1000})
        clock.advance(1001)
        await engine.append("a", numbers(2, start=25))
    with open_directory(tmp_path) as directory:
        batches = directory.batches("a")
        assert (seqs(batches), batches.lost) == ([25, 26], [Lost(1, 24, "mixed")])
        assert directory.lost("a", after=4) == [Lost(5, 24, "ttl")]
        assert directory.lost("a", after=2, last=10) == [Lost(3, 10, "mixed")]
        assert directory.lost("a", after=24) == []
        info = directory.topic("a")
        assert (info.evicted_last, info.expired_last, info.floor, info.earliest) == (4, 24, 25, 25)


async def test_a_gap_is_told_where_it_lies(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "before") as engine:
        await engine.append("a", numbers(3))
        image_of(tmp_path / "before", tmp_path / "after")
    async with engine_on(tmp_path / "after", boot_id="the next boot") as engine:
        await engine.append("a", numbers(2, start=65_537))
    with open_directory(tmp_path / "after") as directory:
        assert directory.topic("a").gaps == (Gap(4, 65_536, "cap"),)
        batches = directory.batches("a")
        assert (seqs(batches), batches.lost) == ([1, 2, 3, 65_537, 65_538], [Lost(4, 65_536, "cap")])
        batches = directory.batches("a", after=10, last=100)
        assert (seqs(batches), batches.lost, batches.through) == ([], [Lost(11, 100, "cap")], 100)


async def test_topics_that_share_a_file_are_kept_apart(tmp_path: Path) -> None:
    async with engine_on(tmp_path, Settings()) as engine:
        for name in ("c", "a", "b"):
            await engine.append(name, [{"data": f"{name}{n}"} for n in range(5)])
        await engine.put_topic("empty")
    with open_directory(tmp_path) as directory:
        assert [info.name for info in directory.topics()] == ["a", "b", "c", "empty"]
        assert len({piece.file for name in "abc" for piece in directory.pieces(name)}) == 1
        for name in "abc":
            assert [row[-1] for row in shown_in(directory.batches(name))] == [f'"{name}{n}"' for n in range(5)]
        assert (directory.pieces("empty"), list(directory.batches("empty"))) == ([], [])
        assert directory.topic("empty").earliest == 1


async def test_an_ephemeral_topic_has_nothing_sealed(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("was", numbers(5))
        await engine.append("is", numbers(5), config={"durability": "ephemeral"})
        await engine.checkpoint()
        await engine.put_topic("was", {"durability": "ephemeral"})
    with open_directory(tmp_path) as directory:
        for name in ("is", "was"):
            info = directory.topic(name)
            assert (info.head, info.sealed_through, info.earliest, info.records_live) == (5, 0, 6, 0)
            assert (list(directory.batches(name)), directory.pieces(name)) == ([], [])


async def test_after_and_last_bound_what_is_read(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(35))
    with open_directory(tmp_path) as directory:
        for after in range(0, 40, 3):
            for last in (None, 0, after, 7, 10, 11, 34, 35, 1000):
                batches = directory.batches("a", after, last)
                end = 35 if last is None else min(35, last)
                assert seqs(batches) == list(range(after + 1, end + 1))
                assert batches.through == max(after, end)
        with pytest.raises(InvalidRequest, match="after is -1"):
            directory.batches("a", after=-1)


async def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(3))
    with open_directory(tmp_path) as directory:
        (batch,) = directory.batches("a", columns=["data", "seq"])
        assert batch.schema == reader.schema(["data", "seq"])
        assert batch.to_pydict() == {"data": ["1", "2", "3"], "seq": [1, 2, 3]}
        with pytest.raises(InvalidRequest, match="no column 'deleted'"):
            directory.batches("a", columns=["deleted"])
        (batch,) = directory.batches("a")
        assert batch.schema.names == list(COLUMNS)


async def test_nothing_is_copied_where_nothing_is_deleted(tmp_path: Path) -> None:
    async with engine_on(tmp_path, Settings()) as engine:
        await engine.append("a", [{"data": "x" * 1000} for _ in range(1000)])
        await engine.checkpoint()
        with open_directory(tmp_path) as directory:
            before = pa.total_allocated_bytes()
            batches = list(directory.batches("a", after=10))
            assert pa.total_allocated_bytes() == before
            assert [batch.num_rows for batch in batches] == [990]
            await engine.delete("a", before_seq=500)
            await engine.checkpoint()
            assert [batch.num_rows for batch in directory.batches("a")] == [501]


async def test_batches_outlive_the_directory_and_its_files(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(25))
    with open_directory(tmp_path) as directory:
        batches = list(directory.batches("a"))
    shutil.rmtree(tmp_path)
    assert seqs(batches) == list(range(1, 26))


async def test_reading_takes_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(25))
        await engine.checkpoint()
        before = contents(tmp_path)
        with open_directory(tmp_path) as directory:
            list(directory.batches("a"))
            directory.topics()
        assert contents(tmp_path) == before
    with open_directory(tmp_path) as directory:
        async with engine_on(tmp_path):
            assert seqs(directory.batches("a")) == list(range(1, 26))


def test_importing_the_reader_does_not_load_pyarrow() -> None:
    code = "import sys, topics.reader; print('pyarrow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


# --- pieces


async def test_pieces_read_one_by_one_are_the_topic(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("b", numbers(4))
        await engine.append("a", numbers(34))
        await engine.checkpoint()
        await engine.put_topic("a", {"cap_records": 26})
        await engine.delete("a", before_seq=13)
        await engine.append("b", numbers(4, start=5))
    with open_directory(tmp_path) as directory:
        info, pieces = directory.topic("a"), pickle.loads(pickle.dumps(directory.pieces("a")))
        assert [(piece.first, piece.last) for piece in pieces] == [(1, 10), (11, 20), (21, 30), (31, 34)][1:]
        batches = [read_piece(tmp_path, piece.file, piece.start, piece.count, after=info.floor - 1) for piece in pieces]
        assert seqs(batches) == seqs(directory.batches("a")) == list(range(13, 35))
        assert shown_in(batches) == shown_in(directory.batches("a"))
    last: Piece = pieces[-1]
    assert seqs([read_piece(tmp_path, last.file, last.start, last.count, after=31, last=33)]) == [32, 33]
    (only,) = [read_piece(tmp_path, last.file, last.start, last.count, columns=["data"])]
    assert only.to_pydict() == {"data": ["31", "32", "33", "34"]}


async def test_a_piece_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(4))
    with pytest.raises(FileNotFoundError, match=r"segment-0000000099\.arrow"):
        read_piece(tmp_path, "segment-0000000099.arrow", 0, 4)
    with pytest.raises(InvalidRequest, match="has 4 rows, not 2 to 5"):
        read_piece(tmp_path, "segment-0000000001.arrow", 2, 3)
    with pytest.raises(InvalidRequest, match="not the name of a segment"):
        read_piece(tmp_path, "../segment-0000000001.arrow", 0, 4)


# --- a directory that changes while it is read


async def test_files_that_went_away_are_looked_for_in_the_next_snapshot(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(50))
        await engine.checkpoint()
        with open_directory(tmp_path) as directory:
            batches = directory.batches("a")
            assert seqs([next(batches)]) == list(range(1, 11))
            await engine.delete("a", before_seq=25)
            await engine.checkpoint()
            assert seqs([next(batches)]) == list(range(25, 31))
            await engine.put_topic("a", {"cap_records": 8})
            await engine.append("a", numbers(1, start=51))
            await engine.checkpoint()
            assert (seqs(batches), batches.lost, batches.through) == (list(range(44, 51)), [Lost(31, 43, "cap")], 50)
            assert directory.topic("a").sealed_through == 51


async def test_a_topic_that_went_away_is_not_found(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(30))
        await engine.checkpoint()
        with open_directory(tmp_path) as directory:
            batches = directory.batches("a")
            next(batches)
            epoch = (await engine.topic_state("a")).epoch
            await engine.delete_topic("a")
            await engine.append("a", numbers(30))
            await engine.checkpoint()
            with pytest.raises(TopicNotFound):
                next(batches)
            assert directory.topic("a").epoch > epoch
            assert seqs(directory.batches("a")) == list(range(1, 31))
            with pytest.raises(TopicNotFound):
                directory.batches("b")


async def test_a_topic_that_became_ephemeral_ends_where_the_reader_stands(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(30))
        await engine.checkpoint()
        with open_directory(tmp_path) as directory:
            batches = directory.batches("a")
            next(batches)
            await engine.put_topic("a", {"durability": "ephemeral"})
            await engine.delete("a", before_seq=25)
            await engine.checkpoint()
            assert (list(batches), batches.through, batches.lost) == ([], 10, [])


class ChangingDisk(RealDisk):
    """A directory that turns into `later` when the file named by `when` is about to be opened."""

    def __init__(self, path: Path, later: Path, when: str) -> None:
        super().__init__(path, create=False)
        self.later, self.when = later, when

    def open(self, name: str, *, writable: bool = True) -> Any:
        if name == self.when:
            self.when = ""
            shutil.rmtree(self.path)
            shutil.copytree(self.later, self.path, copy_function=os.link)
            self.__init__(Path(self.path), self.later, "")  # type: ignore[misc]
        return super().open(name, writable=writable)


@pytest.mark.slow
async def test_a_snapshot_replaced_while_it_is_loaded_is_loaded_anew(tmp_path: Path) -> None:
    now, later = tmp_path / "now", tmp_path / "later"
    async with engine_on(now) as engine:
        await engine.append("a", numbers(1))
        await engine.checkpoint()
        await engine.append("a", numbers(1, start=2))
        await engine.checkpoint()
        image_of(now, later)
    async with engine_on(later) as engine:
        for seq in range(3, 3 + snapshots.DELTAS_MAX):
            await engine.append("a", numbers(1, start=seq))
            await engine.checkpoint()
    names = [name for name in sorted(os.listdir(now)) if name.startswith(snapshots.PREFIX)]
    assert not set(names) & set(os.listdir(later))
    for when in names:
        path = image_of(now, tmp_path / f"read-{when}")
        with reader.Directory(ChangingDisk(path, later, when)) as directory:
            assert directory.topic("a").sealed_through == snapshots.DELTAS_MAX + 2


class BusyReader:
    """Reads topic "a" over and over, on a thread of its own. Data is the seq; multiples of 3 are never deleted."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.readings = 0
        self.failure: BaseException | None = None
        self._path, self._engine = path, engine
        self._has_begun, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    async def __aenter__(self) -> "BusyReader":
        self._thread.start()
        await asyncio.to_thread(self._has_begun.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            with open_directory(self._path) as directory:
                while not self._is_over.is_set():
                    self._read(directory)
                    self.readings += 1
                    self._has_begun.set()
        except BaseException as error:
            self.failure = error
        finally:
            self._has_begun.set()

    def _read(self, directory: reader.Directory) -> None:
        directory.reload()
        batches = directory.batches("a")
        rows = [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
        found = [seq for seq, *_ in rows]
        assert found == sorted(set(found))
        assert [data for *_, data in rows] == [str(seq) for seq in found]
        told = {seq for lost in batches.lost for seq in range(lost.first, lost.last + 1)}
        missing = set(range(3, batches.through + 1, 3)) - set(found) - told
        # A checkpoint flags evicted rows a moment before its snapshot has the new floor.
        assert all(seq < self._engine.state.topics["a"].log.floor for seq in missing)


@pytest.mark.slow
async def test_a_reader_beside_a_busy_engine_sees_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.put_topic("a", {"cap_records": 80})
        await engine.checkpoint()
        async with BusyReader(tmp_path, engine) as reader:
            for first in range(1, 280, 7):
                batch = [{"data": seq, "tag": None if seq % 3 == 0 else "x"} for seq in range(first, first + 7)]
                await engine.append("a", batch)
                await engine.delete("a", match=TagMatch("Eq", "x"), before_seq=max(0, first - 20))
                await engine.checkpoint()
        assert reader.failure is None
        assert reader.readings > 1


# --- directories that cannot be read


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableDirectory, match=r"data directory .*/none: No such file or directory"):
        open_directory(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UnusableDirectory, match="file: Not a directory"):
        read_piece(tmp_path / "file", "segment-0000000001.arrow", 0, 1)


def test_a_directory_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(UnusableDirectory, match="is not a data directory of topics"):
        open_directory(tmp_path)


class ForbiddenDisk(RealDisk):
    def open(self, name: str, *, writable: bool = True) -> Any:
        raise PermissionError(13, "Permission denied", name)


async def test_files_of_another_user_are_named(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(1))
    with pytest.raises(UnusableDirectory, match=r"snapshot-0000000001\.base: user \d+ may not"):
        reader.Directory(ForbiddenDisk(tmp_path, create=False))


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(3))
    path = tmp_path / "segment-0000000001.arrow"
    with pa.ipc.open_file(path.read_bytes()) as reader:
        schema, batch = reader.schema, reader.get_batch(0)
    newer = schema.with_metadata({**schema.metadata, b"topics.format": b"2"})
    with pa.ipc.new_file(str(path), newer) as writer:
        writer.write_batch(batch.replace_schema_metadata(newer.metadata))
    with pytest.raises(UnusableDirectory, match=r"arrow is of version 2; this program reads up to version 1"):
        read_piece(tmp_path, path.name, 0, 3)
    path = tmp_path / "snapshot-0000000001.base"
    changed = bytearray(path.read_bytes())
    changed[8] = 3
    path.write_bytes(changed)
    with pytest.raises(UnusableDirectory, match=r"base is of version 3; this program reads up to version 2"):
        open_directory(tmp_path)


async def test_a_damaged_snapshot_is_named_with_its_offset(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", numbers(3))
        await engine.checkpoint()
        await engine.append("a", numbers(3, start=4))
    base, delta = tmp_path / "snapshot-0000000001.base", tmp_path / "snapshot-0000000002.delta"
    whole = base.read_bytes()
    for damaged, offset in ((whole[:10], 10), (b"x" + whole[1:], 0), (whole[:-1] + b"x", 28)):
        base.write_bytes(damaged)
        with pytest.raises(Damaged) as raised:
            open_directory(tmp_path)
        assert (raised.value.file, raised.value.offset) == (str(base), offset)
    base.unlink()
    with pytest.raises(Damaged, match=rf"{delta.name}: .* its base file is missing"):
        open_directory(tmp_path)


async def test_a_damaged_segment_is_named_with_its_offset(tmp_path: Path) -> None:
    async with engine_on(tmp_path, Settings()) as engine:
        await engine.append("a", [{"data": "findme", "tag": "t"}] * 3)
    path = tmp_path / "segment-0000000001.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"findme", b"findmy"))
    reads: list[Callable[[], object]] = [
        lambda: list(open_directory(tmp_path).batches("a")),
        lambda: read_piece(tmp_path, path.name, 0, 3),
    ]
    for read in reads:
        with pytest.raises(Damaged, match="column data does not match its checksum") as raised:
            read()
        assert raised.value.file == str(path)
        assert 0 < raised.value.offset <= whole.index(b"findme")
    path.write_bytes(whole[:100])
    for read in reads:
        with pytest.raises(Damaged):
            read()
    path.unlink()
    with pytest.raises(Damaged, match="this segment is missing"):
        reads[0]()


def flips(data: bytes, step: int) -> Iterable[bytes]:
    """`data` with one bit flipped, at every `step`th bit."""
    for bit in range(0, len(data) * 8, step):
        yield data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.full)])
async def test_a_flipped_bit_of_a_segment_is_never_misread(tmp_path: Path, step: int) -> None:
    async with engine_on(tmp_path, Settings()) as engine:
        await engine.append("a", [{"data": 7, "tag": "t"}, {"data": 8, "meta": {}}, {"data": 9}], node="n")
    path = tmp_path / "segment-0000000001.arrow"
    whole = path.read_bytes()
    expected = read_piece(tmp_path, path.name, 0, 3)
    refused = 0
    for flipped in flips(whole, step):
        path.write_bytes(flipped)
        with open_directory(tmp_path) as directory:
            for read in (lambda: next(directory.batches("a")), lambda: read_piece(tmp_path, path.name, 0, 3)):
                try:
                    assert read().equals(expected)
                except (Damaged, UnusableDirectory):
                    refused += 1
    assert refused


# --- other readers of the same file


async def test_anything_that_reads_arrow_reads_a_segment(tmp_path: Path) -> None:
    async with engine_on(tmp_path, Settings()) as engine:
        await engine.append("a", [{"data": {"n": n}, "tag": f"t{n}", "meta": {"k": n}} for n in range(3)], node="me")
        await engine.append("b", numbers(2))
        await engine.checkpoint()
        await engine.delete("a", before_seq=2)
    path = str(tmp_path / "segment-0000000001.arrow")
    with open_directory(tmp_path) as directory:
        topic = directory.topic("a").id
    expected = [(2, "me", "t1", '{"k":1}', '{"n":1}'), (3, "me", "t2", '{"k":2}', '{"n":2}')]

    with pa.memory_map(path) as source:
        segment = pa.ipc.open_file(source).read_all()
    assert segment["deleted"].to_pylist() == [255, 0, 0, 0, 0]
    assert segment["tag_order"].to_pylist() == [0, 1, 2, 0, 1]

    query = "SELECT seq, node, tag, meta, data FROM segment WHERE topic = ? AND deleted = 0 ORDER BY seq"
    assert duckdb.sql(query, params=[topic]).fetchall() == expected

    frame = polars.scan_ipc(path).filter(topic=topic, deleted=0).select("seq", "node", "tag", "meta", "data")
    assert frame.collect().rows() == expected


async def test_records_go_straight_into_duckdb_and_polars(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("a", [{"data": {"price": n}} for n in range(35)])
    with open_directory(tmp_path) as directory:
        records = pa.Table.from_batches(directory.batches("a", columns=["seq", "ts", "data"]))
    assert duckdb.sql("SELECT sum((data->>'price')::INT) FROM records").fetchall() == [(595,)]
    frame = polars.from_arrow(records)
    assert isinstance(frame, polars.DataFrame) and frame["seq"].sum() == 630
    assert msgspec.json.decode(frame["data"][34]) == {"price": 34}


class BusyDisk(RealDisk):
    """A directory in which a server takes checkpoint after checkpoint: one whenever a log file has been opened."""

    def __init__(self, path: Path, checkpoint: Callable[[], None]) -> None:
        super().__init__(path, create=False)
        self.checkpoint, self.snapshots_read = checkpoint, 0

    def open(self, name: str, *, writable: bool = True) -> Any:
        file = super().open(name, writable=writable)
        self.snapshots_read += name.startswith(snapshots.PREFIX)
        if name.startswith("log-"):
            self.checkpoint()
        return file


def test_a_check_beside_a_server_that_takes_checkpoints_all_the_time_holds_what_it_reads(tmp_path: Path) -> None:
    """ST15: it reads one snapshot, and finds nothing wrong, though every file of it is replaced meanwhile."""
    seqs = iter(range(31, 60))

    async def write(engine: Engine, seq: int) -> None:
        await engine.append("a", numbers(1, start=seq))
        await engine.delete("a", before_seq=seq - 20)
        await engine.checkpoint()

    with asyncio.Runner() as runner:
        engine = Engine.open(str(tmp_path), background=False)
        runner.run(engine.start())
        runner.run(engine.append("a", numbers(30)))
        runner.run(engine.checkpoint())
        disk = BusyDisk(tmp_path, lambda: runner.run(write(engine, next(seqs))))
        with reader.Directory(disk) as directory:
            before, names = disk.snapshots_read, set(disk.names())
            assert directory.check().faults == []
            assert disk.snapshots_read == before * 2, "it started over"
            assert not {name for name in names if name.startswith("log-")} & set(disk.names())
        runner.run(engine.close())
