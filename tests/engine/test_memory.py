"""What records cost in memory: rendered pages are bounded, sealed and dead records are given back."""

import pytest

from tests.engine.running import data, running, seqs, tick
from topics.core.topic.parts import Chunk
from topics.settings import MIB, Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

RECORD = "x" * 10_000


@pytest.mark.parametrize("is_sealed", [False, True], ids=["in memory", "in segments"])
async def test_rendered_pages_stay_within_the_cache_bound(is_sealed: bool) -> None:
    """LM6: reading ten times as much as the cache holds."""
    async with running(settings=Settings(cache_bytes=2 * MIB, segment_max_events=100)) as engine:
        for _ in range(20):
            await engine.append("t", data(*[RECORD] * 100))
        if is_sealed:
            await engine.checkpoint()
            assert all(not isinstance(part, Chunk) for part in engine.state.topics["t"].log.parts)
        cursor = 0
        while cursor < 2000:
            answer = await engine.read("t", cursor, 50)
            assert [record.seq for record in answer.records] == list(range(cursor + 1, cursor + 51))
            cursor = answer.next_from_seq
            assert 0 < engine._cache.size_bytes <= 2 * MIB


async def test_a_page_larger_than_the_cache_is_read_all_the_same() -> None:
    async with running(settings=Settings(cache_bytes=1)) as engine:
        await engine.append("t", data(*[RECORD] * 100))
        assert len(await seqs(engine, "t")) == 100
        await engine.checkpoint()
        assert len(await seqs(engine, "t")) == 100


async def test_a_checkpoint_gives_back_the_memory_of_what_it_sealed() -> None:
    """ST6"""
    async with running() as engine:
        await engine.append("t", data(*range(3000)))
        assert await seqs(engine, "t", 2999) == [3000]
        await engine.checkpoint()
        while engine._upkeep.freeing.parts:
            await tick(engine)
        log = engine.state.topics["t"].log
        assert not [part for part in (*log.parts, *log.dropped) if isinstance(part, Chunk)]
        assert engine._cache.size_bytes == 0
        assert await seqs(engine, "t", 2999) == [3000]


async def test_deleted_records_are_given_back() -> None:
    """DL10"""
    async with running() as engine:
        for _ in range(4):
            await engine.append("t", data(*range(1000)))
        await seqs(engine, "t", limit=1000)
        await engine.delete("t", before_seq=9999)
        while engine._upkeep.freeing.parts or engine.state.topics["t"].log.dropped:
            await tick(engine)
        assert engine.state.topics["t"].log.parts == []
        assert engine._cache.size_bytes == 0


async def test_a_segment_whose_records_are_all_gone_is_removed() -> None:
    """DL9, ST6"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.append("t", data(*range(100)))
        await engine.checkpoint()
        assert [name for name in disk.names() if name.startswith("segment-")]
        await engine.delete("t", before_seq=101)
        await engine.checkpoint()
        assert not [name for name in disk.names() if name.startswith("segment-")]


async def test_a_checkpoint_is_due_after_a_minute_with_changes() -> None:
    """ST7"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.append("t", data(1))
        clock.advance(59_000)
        await tick(engine)
        assert not [name for name in disk.names() if name.startswith("segment-")]
        clock.advance(1000)
        await tick(engine)
        assert [name for name in disk.names() if name.startswith("segment-")]
        installed = disk.names()
        clock.advance(600_000)
        await tick(engine)
        assert disk.names() == installed, "nothing has changed"


async def test_the_cost_of_a_checkpoint_follows_what_changed() -> None:
    """ST7"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        for number in range(50):
            await engine.append(f"t{number}", data(*["x" * 1000] * 20))
        await engine.checkpoint()
        await engine.append("t7", data(1))
        before = len(disk.operations)
        await engine.checkpoint()
        written = [operation for operation in disk.operations[before:] if operation.kind == "write"]
        assert sum(operation.size for operation in written if not operation.name.startswith("log-")) < 20_000
