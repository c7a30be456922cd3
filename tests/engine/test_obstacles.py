"""What stands in the way of all writes: it is noticed, named and got over, and what was refused is never there."""

import asyncio
import errno

import pytest

from tests.engine.running import data, open_engine, running, seqs, texts, tick
from topics.engine import Engine
from topics.errors import CommitFailed
from topics.storage.reserve import RESERVE_BYTES
from topics.storage.wal import AHEAD_BYTES, ATTEMPT_SECONDS
from topics.testing.clock import ManualClock
from topics.testing.disk import Capacity, Faulty, MemoryDisk

FSYNC = {"durability": "fsync"}


def reason(engine: Engine) -> str:
    obstacle = engine.obstacle()
    return "" if obstacle is None else obstacle.reason


async def later(engine: Engine, clock: ManualClock) -> None:
    """Let so much time pass that what stands in the way is tried again."""
    clock.advance(round(ATTEMPT_SECONDS * 1000) + 1)
    await tick(engine)


def size_of(disk: MemoryDisk) -> int:
    return sum(map(len, disk.files().values())) + RESERVE_BYTES


async def test_a_directory_that_is_removed_is_noticed_and_writes_are_refused_from_then_on() -> None:
    """ST14, HM7: reads go on."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.append("t", data(1), config=FSYNC)
        assert not reason(engine)
        disk.is_removed = True
        await tick(engine)
        with pytest.raises(CommitFailed, match="memory was removed while the server was running"):
            await engine.append("t", data(2))
        assert reason(engine) == "directory_gone"
        assert await seqs(engine, "t") == [1]


async def test_a_log_file_that_is_removed_is_noticed_and_a_graceful_stop_keeps_everything() -> None:
    """ST14, HM7"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.append("t", data(1), config=FSYNC)
        disk.remove(max(name for name in disk.names() if name.startswith("log-")))
        await tick(engine)
        assert reason(engine) == "directory_gone"
        with pytest.raises(CommitFailed, match="log-0000000001 was removed"):
            await engine.append("t", data(2))
    async with running(disk.kill()) as engine:
        assert await seqs(engine, "t") == [1]


async def test_a_log_without_descriptors_is_read_only_goes_on_by_itself_and_forgets_what_it_refused() -> None:
    """HM7, ST4, ER7: not even a kill brings a refused write back, for the void mark needs no descriptor."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.append("t", data("acked"), config=FSYNC)
        disk.hooks.append(Faulty("sync", name="log-*"))
        disk.has_descriptors = False
        with pytest.raises(CommitFailed):
            await engine.append("t", data("refused"))
        assert reason(engine) == "state_unreadable"
        await later(engine, clock)
        with pytest.raises(CommitFailed):
            await engine.append("t", data("refused, too"))
        killed = disk.kill()
        disk.has_descriptors = True
        await later(engine, clock)
        assert not reason(engine) and not engine.wal.is_read_only
        assert await texts(engine, "t") == [b'"acked"']
        await engine.append("t", data("next"))
        assert await texts(engine, "t") == [b'"acked"', b'"next"']
    async with running(killed) as again:
        assert await texts(again, "t") == [b'"acked"']
    async with running(disk.kill()) as again:
        assert await texts(again, "t") == [b'"acked"', b'"next"']


async def test_a_read_only_log_says_why_and_goes_on_when_the_disk_does() -> None:
    """HM7, ST4: acked records that were not synced come along."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.append("disk", data("acked"), config={"durability": "disk"})
        await engine.append("t", data(1), config=FSYNC)
        await engine.append("disk", data("not synced"))
        faults = [Faulty("sync", times=None), Faulty("create", times=None, error=errno.EMFILE)]
        disk.hooks += faults
        with pytest.raises(CommitFailed):
            await engine.append("t", data(2))
        assert reason(engine) == "descriptors_exhausted"
        assert await texts(engine, "disk") == [b'"acked"', b'"not synced"']
        await later(engine, clock)
        assert reason(engine) == "descriptors_exhausted"
        disk.hooks.clear()
        await later(engine, clock)
        assert reason(engine) == ""
        assert await seqs(engine, "t") == [1]
        assert (await engine.append("t", data(2))).first_seq == 2
    async with running(disk.power_loss("lost"), clock) as again:
        assert await seqs(again, "t") == [1, 2]
        assert await texts(again, "disk") == [b'"acked"', b'"not synced"']


async def test_on_a_full_disk_deletes_are_taken_and_make_the_space_for_writes() -> None:
    """ST16, HM7, ST6"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        for name in ("large", "small"):
            await engine.append(name, data("x"), config=FSYNC)
        for _ in range(10):
            await engine.append("large", data("y" * 900_000))
        await engine.checkpoint()
        disk.hooks.append(Capacity(size_of(disk) + 4096))
        while not reason(engine):
            await asyncio.gather(engine.append("large", data("z" * 300_000)), return_exceptions=True)
        assert reason(engine) == "disk_full"
        with pytest.raises(CommitFailed, match="the disk is full"):
            await engine.append("small", data("refused" * 100_000, "refused" * 100_000))
        await engine.delete("small", before_seq=2)
        await engine.delete_topic("large")
        await later(engine, clock)
        await later(engine, clock)
        assert reason(engine) == ""
        await engine.append("small", data("taken"))
        assert await texts(engine, "small") == [b'"taken"']


@pytest.mark.parametrize("is_clean", [True, False])
async def test_no_seq_of_an_epoch_is_given_twice_by_a_start_without_a_log(is_clean: bool) -> None:
    """DU9, TP16, ST16: an epoch that no log has is raised again by the next start, so nothing is written in it."""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.append("t", data(1), config={"durability": "ephemeral"})
    await engine.checkpoint()
    await engine.append("t", data(2))
    if is_clean:
        await engine.close()
    seen = (await engine.topic_state("t")).epoch if not is_clean else 0
    full = disk.kill()
    full.reserved_bytes = 0
    full.hooks.append(capacity := Capacity(0))
    async with running(full, clock) as again:
        assert reason(again) == "disk_full"
        found = await again.topic_state("t")
        assert found.epoch > seen and found.count == 0
        with pytest.raises(CommitFailed):
            await again.append("t", data(3))
        capacity.size = 4 * RESERVE_BYTES
        await later(again, clock)
        assert (await again.append("t", data(4))).first_seq == found.head_seq + 1
        assert (await again.topic_state("t")).epoch == found.epoch
        full.hooks.clear()
        async with running(full.kill(), clock) as third:
            assert (await third.topic_state("t")).epoch > found.epoch


@pytest.mark.parametrize("has_reserve", [True, False])
async def test_a_start_on_a_full_disk_succeeds_and_writes_are_taken_once_there_is_space(has_reserve: bool) -> None:
    """ST16, HM7"""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.append("t", data(1, 2, 3), config=FSYNC)
    full = disk.kill()
    full.reserved_bytes = RESERVE_BYTES * has_reserve
    full.hooks.append(capacity := Capacity(sum(map(len, full.files().values())) + RESERVE_BYTES * has_reserve + 100))
    async with running(full, clock) as again:
        assert await seqs(again, "t") == [1, 2, 3]
        assert reason(again) == "disk_full"
        with pytest.raises(CommitFailed):
            await again.append("t", data(4))
        if has_reserve:
            await again.delete("t", before_seq=2)
        capacity.size += 2 * RESERVE_BYTES + 4 * AHEAD_BYTES
        await later(again, clock)
        assert reason(again) == ""
        assert (await again.append("t", data(4))).first_seq == 4
        assert await seqs(again, "t") == ([2, 3, 4] if has_reserve else [1, 2, 3, 4])
    full.hooks.clear()
    async with running(full.kill(), clock) as third:
        assert await seqs(third, "t") == ([2, 3, 4] if has_reserve else [1, 2, 3, 4])
    await engine.close()
