"""The end of an engine has a time: what is not done by then is left to the next start, and nothing is lost by it."""

import pytest

from tests.engine.running import begun, data, open_engine, running, seqs
from topics.errors import CommitFailed
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

OVER = -1.0  # seconds that are left


def segments(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.files() if name.startswith("segment")]


async def test_a_last_checkpoint_that_takes_too_long_is_left_out() -> None:
    """SC3, LM10, G1"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.append("t", data(*range(100)))
    await engine.close(OVER)
    assert not segments(disk), "no file is begun any more"
    disk = disk.kill()
    async with running(disk) as engine:
        assert await seqs(engine, "t") == list(range(1, 101))
    assert segments(disk), "with time, there is a checkpoint"


async def test_a_checkpoint_that_is_under_way_ends_when_the_time_is_over() -> None:
    """SC3, LM10, G1: however much it still has to write."""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.append("t", data(*range(100)))
    disk.hold_syncs()
    (checkpoint,) = await begun(engine.checkpoint())
    (stop,) = await begun(engine.close(OVER))
    assert not stop.done() and not checkpoint.done()
    disk.release_syncs()
    await stop
    with pytest.raises(CommitFailed):
        await checkpoint
    disk = disk.kill()
    async with running(disk) as engine:
        assert await seqs(engine, "t") == list(range(1, 101))


async def test_copies_that_take_too_long_are_made_by_the_next_start() -> None:
    """SC3, RT15, G14"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.put_router("r", "s", "d")
    engine.forwarder._is_running = False  # it is behind
    await engine.append("s", data(*range(100)))
    assert engine.state.topics["d"].log.count == 0
    await engine.close(OVER)
    disk = disk.kill()
    async with running(disk) as engine:
        assert await seqs(engine, "d") == list(range(1, 101))


async def test_what_is_in_memory_only_is_lost_when_the_engine_stops() -> None:
    """LS1, DU9: not when its topic was last captured by a checkpoint."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock=clock) as engine:
        await engine.put_topic("t", {"durability": "ephemeral"})
        await engine.append("t", data(1, 2))
        await engine.checkpoint()
        clock.advance(3_600_000)
        stopped_at = clock.now_ms()
    async with running(disk.kill(), clock=clock) as engine:
        (loss,) = await engine.reading.losses("t", 10)
    assert (loss.first, loss.last, loss.reason, loss.ts) == (1, 2, "cap", stopped_at)
