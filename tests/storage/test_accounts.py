"""Accounts: of every seq of a data directory it is known whether it is live, was deleted or is lost."""

import asyncio
import os
import random
import resource
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.effort import tries
from topics.core.dump import TopicItem
from topics.engine import Engine
from topics.model import TagMatch
from topics.reader import Check, open_directory
from topics.reader.accounts import fault_of
from topics.settings import Settings
from topics.storage import snapshots
from topics.storage.disk import RealDisk
from topics.storage.snapshots import Snapshots
from topics.testing.clock import ManualClock

SMALL = Settings(segment_max_events=10)
LOGGED = ["fsync", "disk", "memory"]


@asynccontextmanager
async def engine_on(path: Path, clock: ManualClock | None = None) -> AsyncIterator[Engine]:
    disk = RealDisk(path)
    async with Engine.open(str(path), SMALL, clock=clock or ManualClock(), disk=disk, background=False) as engine:
        yield engine


def check(path: Path) -> Check:
    with open_directory(path) as directory:
        return directory.check()


def counted(engine: Engine) -> list[tuple[str, int, int, int, int]]:
    """What the engine itself has counted of the topics that are logged."""
    topics = sorted((name, topic.log) for name, topic in engine.state.topics.items() if topic.is_logged)
    return [(name, log.head, log.count, log.deleted, log.lost) for name, log in topics]


def found(result: Check) -> list[tuple[str, int, int, int, int]]:
    return [(a.topic, a.head, a.live, a.deleted, a.lost) for a in result.accounts]


async def do_something(engine: Engine, clock: ManualClock, chance: random.Random, classes: list[str]) -> None:
    name = chance.choice("abcd")
    step = chance.randrange(9)
    if step < 3:
        await engine.append(name, [{"data": n, "tag": f"t{n % 3}"} for n in range(chance.randrange(1, 9))])
    elif step == 3 and name in engine.state.topics:
        await engine.delete(name, match=TagMatch("Eq", f"t{chance.randrange(3)}"))
    elif step == 4 and name in engine.state.topics:
        log = engine.state.topics[name].log
        await engine.delete(name, before_seq=log.earliest + chance.randrange(5))
    elif step == 5:
        config = {"cap_records": chance.choice([0, 5, 30]), "ttl_ms": chance.choice([0, 0, 50])}
        await engine.put_topic(name, {**config, "durability": chance.choice(classes)})
    elif step == 6:
        clock.advance(chance.randrange(30))
    elif step == 7 and chance.random() < 0.1:
        await engine.delete_topic(name)
    else:
        await engine.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("classes", [LOGGED, [*LOGGED, "ephemeral", "ephemeral"]], ids=["logged", "all"])
@pytest.mark.parametrize("seed", range(tries(4)))
async def test_the_accounts_of_a_directory_are_those_of_its_engine(
    tmp_path: Path, seed: int, classes: list[str]
) -> None:
    """TM1, ST9: running, stopped, and behind any number of checkpoints and restarts

    Records of a topic that was ephemeral are in no file before the next checkpoint; a crash would lose them.
    """
    chance, clock = random.Random(seed), ManualClock()
    for _ in range(4):
        async with engine_on(tmp_path, clock) as engine:
            for step in range(40):
                await do_something(engine, clock, chance, classes)
                if step % 8 == 0:
                    await engine.wal.wait_synced(engine.wal.end)
                    result = check(tmp_path)
                    assert result.faults == []
                    assert found(result) == counted(engine) or classes != LOGGED
        result = check(tmp_path)
        assert result.faults == [] and found(result) == counted(engine)


@pytest.mark.slow
async def test_a_check_beside_a_busy_engine_finds_nothing_wrong(tmp_path: Path) -> None:
    """Checkpoints set marks, replace segments and remove logs under it."""
    results: list[Check] = []
    has_begun, is_over = threading.Event(), threading.Event()

    def audit() -> None:
        while not is_over.is_set():
            results.append(check(tmp_path))
            has_begun.set()

    async with engine_on(tmp_path) as engine:
        await engine.put_topic("a", {"cap_records": 80})
        await engine.checkpoint()
        auditor = asyncio.create_task(asyncio.to_thread(audit))
        await asyncio.to_thread(has_begun.wait)
        for first in range(1, 400, 7):
            await engine.append("a", [{"data": n, "tag": f"t{n % 3}"} for n in range(first, first + 7)])
            await engine.delete("a", match=TagMatch("Eq", "t1"), before_seq=max(0, first - 20))
            await engine.checkpoint()
        is_over.set()
        await auditor
    assert [result.faults for result in results if result.faults] == []
    assert len(results) > 1


async def test_a_record_deleted_after_others_fell_below_the_floor_stays_deleted(tmp_path: Path) -> None:
    """DL5, DL9: as many marks are due as were set before, and they are others"""
    async with engine_on(tmp_path) as engine:
        await engine.put_topic("t", {"cap_records": 10})
        await engine.append("t", [{"data": n, "tag": f"t{n}"} for n in range(1, 11)])
        await engine.checkpoint()
        await engine.delete("t", match=TagMatch("Eq", "t3"))
        await engine.checkpoint()
        await engine.append("t", [{"data": n} for n in range(11, 16)])
        assert engine.state.topics["t"].log.floor == 6
        await engine.delete("t", match=TagMatch("Eq", "t9"))
    async with engine_on(tmp_path) as engine:
        log = engine.state.topics["t"].log
        assert not log.is_live(9) and (log.count, log.deleted, log.lost, log.unaccounted) == (9, 2, 4, 0)


def edited(path: Path, change: Callable[[TopicItem], None]) -> None:
    """Install a snapshot in which the items of topics are changed."""
    disk = RealDisk(path, create=False)
    try:
        shots = Snapshots(disk)
        items = shots.load() or {}
        topics = {key: msgspec.msgpack.decode(items[key], type=TopicItem) for key in items if key.startswith(b"t")}
        for item in topics.values():
            change(item)
        shots.install({key: msgspec.msgpack.encode(item) for key, item in topics.items()})
    finally:
        disk.close()


async def test_a_snapshot_that_did_not_count_is_taken_as_whole(tmp_path: Path) -> None:
    """LS2: what lies below the floor counts as lost, what else is gone as deleted."""
    async with engine_on(tmp_path) as engine:
        await engine.put_topic("t", {"cap_records": 20})
        await engine.append("t", [{"data": n} for n in range(30)])
        await engine.delete("t", before_seq=16)

    def uncount(item: TopicItem) -> None:
        item.deleted, item.lost = -1, 0

    edited(tmp_path, uncount)
    result = check(tmp_path)
    assert result.faults == [] and found(result) == [("t", 30, 15, 5, 10)]
    async with engine_on(tmp_path) as engine:
        await engine.delete("t", before_seq=21)
        assert engine.state.topics["t"].log.unaccounted == 0
    assert found(check(tmp_path)) == [("t", 30, 10, 10, 10)]


async def test_the_counts_survive_in_bases_and_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ST7"""
    monkeypatch.setattr(snapshots, "DELTAS_MAX", 2)
    async with engine_on(tmp_path) as engine:
        for n in range(1, 8):
            await engine.append("t", [{"data": n}] * 10)
            await engine.delete("t", before_seq=10 * n - 3)
            await engine.checkpoint()
            await engine.append("other", [{"data": n}])
            await engine.checkpoint()
        assert counted(engine)[1] == ("t", 70, 4, 66, 0)
    async with engine_on(tmp_path) as engine:
        assert counted(engine)[1] == ("t", 70, 4, 66, 0)


@pytest.mark.slow
async def test_a_directory_of_many_segments_is_checked_with_few_files_open(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("t", [{"data": n, "tag": f"t{n % 10}"} for n in range(2000)])
        await engine.checkpoint()
        await engine.delete("t", match=TagMatch("Eq", "t4"))
        await engine.checkpoint()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        result = check(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert result.segments > 50 and result.faults == [] and found(result) == [("t", 2000, 1800, 200, 0)]


async def test_counts_that_do_not_agree_are_a_fault(tmp_path: Path) -> None:
    async with engine_on(tmp_path) as engine:
        await engine.append("t", [{"data": n} for n in range(20)])
        log = engine.state.topics["t"].log
        assert fault_of(log) == ""
        log.bytes += 1
        assert "its counts do not agree" in fault_of(log)
        log.bytes -= 1
