"""Reads of records that are in segments only, with a cache that is too small for them."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.engine.running import data, running
from topics.core.topic import pages, walk
from topics.core.topic.pages import Cache, PageAddress, Projection, page_around, render, set_borders
from topics.core.topic.parts import Chunk
from topics.core.topic.walk import Query
from topics.settings import Settings
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S

T = TypeVar("T")


class CountingDisk(MemoryDisk):
    """Counts what is asked of the storage thread."""

    works = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.works += 1
        return await super().run(work)


async def test_a_read_that_needs_more_pages_than_the_cache_keeps_comes_to_an_end() -> None:
    """DF5, DF6: each page alone is larger than the cache."""
    async with running(settings=Settings(cache_bytes=1 << 20)) as engine, asyncio.timeout(PATIENCE_S):
        for n in range(30):
            await engine.append("t", data(*[[n, "x" * 800]] * 100, node="me"))
        await engine.append("t", data("last"))
        await engine.checkpoint()
        seqs, after = [], 900
        while after < 3001:
            answer = await engine.read("t", after)
            assert answer.next_from_seq > after
            seqs += [record.seq for record in answer.records]
            after = answer.next_from_seq
        assert seqs == list(range(901, 3002))
        found, after = [], 0
        while after < 3001:
            answer = await engine.read("t", after, nodes=["me"])
            assert answer.next_from_seq > after
            found += [record.seq for record in answer.records]
            after = answer.next_from_seq
        assert found == [3001]


async def test_readers_of_one_page_wait_for_one_load_of_it() -> None:
    """DF5"""
    disk = CountingDisk()
    async with running(disk) as engine:
        await engine.append("t", data(*range(100)))
        await engine.checkpoint()
        before = disk.works
        answers = await asyncio.gather(*(engine.read("t", after) for after in range(50)))
        assert [len(answer.records) for answer in answers] == list(range(100, 50, -1))
        assert disk.works == before + 1


async def test_a_page_that_was_loaded_and_dropped_at_once_is_loaded_again() -> None:
    """G15: whoever asks for it in that very turn must not be told that it is there, again and again."""
    disk = CountingDisk()
    async with running(disk) as engine:
        await engine.append("t", data(*range(100)))
        await engine.checkpoint()
        cold = PageAddress(engine.state.topics["t"].log.parts[0], 0, Projection())
        before = disk.works
        first = asyncio.ensure_future(engine.load(cold))
        await asyncio.sleep(0)
        (loading,) = engine._loader._loading.values()
        while not loading.done():  # noqa: ASYNC110 - the turn in which it is done is meant
            await asyncio.sleep(0)
        engine._cache.clear()
        await engine.load(cold)
        await first
        assert disk.works == before + 2
        assert engine._cache.page(cold.part, 0, Projection()).count == 100


async def test_readers_and_claimers_who_cannot_all_be_served_from_a_small_cache_come_to_an_end() -> None:
    """DF5, G15: a page stays until whoever waited for it has looked, or they would drop it for each other for ever."""
    async with running(settings=Settings(cache_bytes=1 << 20)) as engine, asyncio.timeout(PATIENCE_S):
        for name in "abc":
            await engine.put_topic(name, {"type": "queue"})
            for n in range(6):
                await engine.append(name, data(*[[n, "x" * 1000]] * 100))
        await engine.checkpoint()
        works: list[asyncio.Future[object]] = [asyncio.ensure_future(engine.claim("c", "w", 10))]
        for name, turns in (("a", 1), ("b", 3), ("c", 1)):
            for _ in range(turns):
                await asyncio.sleep(0)
            works.append(asyncio.ensure_future(engine.read(name, 0)))
        claimed, *answers = await asyncio.gather(*works)
        assert len(claimed.jobs) == 10  # type: ignore[attr-defined]
        assert all(answer.count for answer in answers)  # type: ignore[attr-defined]
        assert not engine._cache._kept


async def test_a_read_gets_all_it_asks_for_however_many_pages_that_takes() -> None:
    """DF5: as long as the cache keeps them."""
    disk, settings = MemoryDisk(), Settings(segment_max_events=2)
    async with running(disk, settings=settings) as engine:
        for n in range(40):
            await engine.append("t", data(n, n))
            await engine.checkpoint()
    async with running(disk.kill(), settings=settings) as engine:
        assert len((await engine.read("t", 0)).records) == 80


async def test_a_read_that_ends_at_a_cold_page_goes_on_behind_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """DF2, SS9: nothing comes twice, also where that page is not the first one of its part."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 30)
    async with running(settings=Settings(segment_max_events=4)) as engine:
        await engine.append("t", data(*["x" * 12] * 8))
        await engine.checkpoint()
        log = engine.state.topics["t"].log
        cache = Cache(1 << 20)
        for part, row in ((log.parts[0], 0), (log.parts[0], 2), (log.parts[1], 0)):
            assert not isinstance(part, Chunk)
            set_borders(part)
            assert page_around(part, row) == (row, row + 2)
            address = PageAddress(part, row, Projection())
            cache.load(address, render(address))
        plan = walk.read(log, Query(0, 100, 1 << 20, stops_at_cold=True), engine.state.topics["t"].epoch, cache)
        assert (plan.count, plan.next) == (6, 6)
