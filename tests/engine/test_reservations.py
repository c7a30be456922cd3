"""Seqs beyond the reservation that is known to be synced: shown to nobody, and gone if the log fails (DU10)."""

import asyncio

import pytest

from tests.engine.running import begun, data, running, seqs, turns
from topics.core.topic import reservation
from topics.engine import Engine
from topics.errors import CommitFailed
from topics.testing.disk import Faulty, MemoryDisk

RESERVE = 8


@pytest.fixture(autouse=True)
def small_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "RESERVE", RESERVE)


async def beyond(engine: Engine, disk: MemoryDisk) -> "asyncio.Task[object]":
    """A topic whose last write lies beyond its reservation; the sync of the next one is held."""
    await engine.put_topic("t", {"durability": "disk"})
    disk.hold_syncs()
    for number in range(1, RESERVE + 1):
        await engine.append("t", data(number))
    (waiting,) = await begun(engine.append("t", data("beyond")))
    assert not waiting.done()
    return waiting


READS = {
    "read": lambda engine: engine.read("t"),
    "state": lambda engine: engine.topic_state("t"),
    "list": lambda engine: engine.overview.states_after("", 10),
    "delete": lambda engine: engine.delete("t", before_seq=2),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_nobody_sees_a_record_beyond_the_reservation_before_that_is_synced(read: object) -> None:
    """DU10, G13, WR10: a power loss may hand out its seq again."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        waiting = await beyond(engine, disk)
        (reading,) = await begun(read(engine))  # type: ignore[operator]
        assert not reading.done()
        disk.release_syncs()
        await turns()
        assert waiting.done() and reading.done()
        assert (await seqs(engine, "t"))[-1] == RESERVE + 1


async def test_a_record_beyond_the_reservation_is_gone_if_its_sync_fails_and_so_is_what_builds_on_it() -> None:
    """DU10, ER7, ST4"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        waiting = await beyond(engine, disk)
        (deleting,) = await begun(engine.delete("t", before_seq=3))
        disk.hooks.append(Faulty("sync", name="log-*"))
        disk.release_syncs()
        for failing in (waiting, deleting):
            with pytest.raises(CommitFailed):
                await failing
        assert await seqs(engine, "t") == list(range(1, RESERVE + 1))
        await engine.append("t", data("other"))
        assert await seqs(engine, "t") == list(range(1, RESERVE + 2))


async def test_what_waits_for_a_reservation_of_its_own_is_not_kept_by_an_earlier_one() -> None:
    """DU10, ER7, ST4: it is refused or kept as a whole, whichever sync fails."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "disk"})
        await engine.append("t", data(1, 2, 3, 4))
        await turns()
        disk.hold_syncs()
        await engine.append("t", data(5))
        (waiting,) = await begun(engine.append("t", data(6, 7, 8, 9, 10)))
        disk.release_syncs(1)
        await turns()
        disk.hooks.append(Faulty("sync", name="log-*"))
        disk.release_syncs()
        await turns()
        assert isinstance(waiting.exception(), CommitFailed)
        assert await seqs(engine, "t") == [1, 2, 3, 4, 5]
