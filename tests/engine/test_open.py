"""Opening a data directory, for real: what cannot be opened is refused, with a reason, and left as it is."""

from collections import Counter
from pathlib import Path

import pytest

from tests.engine.running import data, seqs
from topics.engine import Engine
from topics.errors import DirectoryLocked, UnusableDirectory
from topics.storage.disk import File, RealDisk
from topics.testing.clock import ManualClock


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock"}


def remove(path: Path, pattern: str) -> None:
    for file in path.glob(pattern):
        file.unlink()


def make_newer(path: Path, pattern: str) -> None:
    """Write another version number into the newest of these files."""
    newest = max(path.glob(pattern))
    image = bytearray(newest.read_bytes())
    image[8:12] = (99).to_bytes(4, "little")
    newest.write_bytes(image)


def open_engine(path: Path) -> Engine:
    return Engine.open(str(path), clock=ManualClock(), background=False)


async def fill(path: Path) -> None:
    async with open_engine(path) as engine:
        await engine.append("t", data(1, 2, 3))


async def test_a_directory_is_made_and_found_again(tmp_path: Path) -> None:
    """DU3, TP8"""
    path = tmp_path / "a" / "b"
    await fill(path)
    async with open_engine(path) as engine:
        state = await engine.topic_state("t", touch=False)
        assert (state.last_write_ts, state.last_read_ts) == (ManualClock().now_ms(), None)
        assert await seqs(engine, "t") == [1, 2, 3]


async def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """ST13, CV13: and no name of a topic is in theirs."""
    await fill(tmp_path / "data")
    files = list((tmp_path / "data").iterdir())
    assert len(files) > 2
    assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert {file.name.partition("-")[0] for file in files} <= {"log", "snapshot", "segment", "lock", "reserve"}


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(UnusableDirectory, match="not a directory"):
        open_engine(path)
    assert path.read_bytes() == b"mine"


async def test_a_second_engine_on_a_directory_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """ST11"""
    async with open_engine(tmp_path) as engine:
        await engine.append("t", data(1))
        before = content(tmp_path)
        second = open_engine(tmp_path)
        with pytest.raises(DirectoryLocked, match="in use"):
            await second.start()
        assert content(tmp_path) == before
        await engine.append("t", data(2))
        assert await seqs(engine, "t") == [1, 2]
    await fill(tmp_path)


@pytest.mark.parametrize("pattern", ["lock", "*"])
async def test_a_second_engine_is_refused_whatever_files_were_removed(tmp_path: Path, pattern: str) -> None:
    """ST14, ST11: the directory is locked, not a file in it; and the second one makes no log."""
    engine = open_engine(tmp_path)
    await engine.start()
    await engine.append("t", data(1))
    remove(tmp_path, pattern)
    before = content(tmp_path)
    with pytest.raises(DirectoryLocked, match="in use"):
        await open_engine(tmp_path).start()
    assert content(tmp_path) == before
    await engine.close()


@pytest.mark.parametrize("pattern", ["log-*", "snapshot-*"])
async def test_a_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path, pattern: str) -> None:
    """ST12, G5"""
    await fill(tmp_path)
    if pattern == "log-*":
        engine = open_engine(tmp_path)
        await engine.start()
        await engine.append("t", data(4))
        engine._disk.unlock()
        engine._disk.close()
    make_newer(tmp_path, pattern)
    before = content(tmp_path)
    with pytest.raises(UnusableDirectory, match="version 99"):
        await open_engine(tmp_path).start()
    assert content(tmp_path) == before


async def test_the_background_of_an_engine_ends_with_it(tmp_path: Path) -> None:
    async with Engine.open(str(tmp_path)) as engine:
        await engine.append("t", data(1), config={"durability": "fsync"})
        assert await seqs(engine, "t") == [1]
        background = engine._upkeep._background
    assert background is not None and background.done()


class CountingDisk(RealDisk):
    """Counts how often each file is opened."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.opened: Counter[str] = Counter()

    def open(self, name: str, *, writable: bool = True) -> File:
        self.opened[name] += 1
        return super().open(name, writable=writable)


async def test_a_restart_does_little_for_a_topic_that_nobody_asks_for(tmp_path: Path) -> None:
    """ST6: a file is opened as often for 100 topics as for a few, and only queues have jobs; deletes stay."""
    names = [f"t{n}" for n in range(100)]
    async with open_engine(tmp_path) as engine:
        await engine.put_topic("jobs", {"type": "queue"})
        for name in (*names, "jobs"):
            await engine.append(name, data(1, 2, 3))
    async with open_engine(tmp_path) as engine:
        for name in names[::7]:
            await engine.delete(name, before_seq=3)
    disk = CountingDisk(str(tmp_path))
    async with Engine.open(str(tmp_path), clock=ManualClock(), disk=disk, background=False) as engine:
        segments = [name for name in disk.opened if name.startswith("seg")]
        assert segments
        assert max(disk.opened[name] for name in segments) < 10
        assert [topic.name for topic in engine.state.topics.values() if topic.has_queue] == ["jobs"]
        for n, name in enumerate(names):
            assert await seqs(engine, name) == ([1, 2, 3] if n % 7 else [3])
        claimed = await engine.claim("jobs", "w", 2)
        assert [job.seq for job in claimed.jobs] == [1, 2]
