"""Work on large topics is done in slices: no turn of the loop is long, and what is shown is of one moment."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tests.effort import stride, turns_measured
from tests.engine.running import begun, running
from topics.core.topic.blocks import BLOCK
from topics.engine import Engine
from topics.engine.queues import claims
from topics.model import TagMatch
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

T = TypeVar("T")

RECORDS = 100_000
TURN_S_MAX = 0.25  # of the loop; 0.05 is what is promised
ODD = TagMatch("Eq", "odd")


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[Engine]:
    engine = Engine.open(str(path), Settings())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def fill(engine: Engine, count: int) -> None:
    """Odd seqs are tagged `odd`."""
    while count:
        some = min(count, 10_000)
        await engine.append("t", [{"data": 1, "tag": "odd"}, {"data": 2, "tag": "even"}] * (some // 2))
        count -= some


async def exported(engine: Engine) -> list[int]:
    _, parts = await engine.export("t")
    stream = b"".join([part async for part in parts])
    seqs: list[int] = pa.ipc.open_stream(stream).read_all()["seq"].to_pylist()
    return seqs


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_every_second_record_deleted(tmp_path: Path, is_sealed: bool) -> None:
    """LM10: neither the delete, nor an export, nor a checkpoint of it is one long piece of work."""
    async with on_disk(tmp_path) as engine:
        await fill(engine, RECORDS)
        if is_sealed:
            await engine.checkpoint()
        with turns_measured() as turns:
            await engine.delete("t", match=ODD)
            assert await exported(engine) == list(range(2, RECORDS + 1, 2))
            await engine.checkpoint()
            assert await exported(engine) == list(range(2, RECORDS + 1, 2))
        assert turns.worst_s < TURN_S_MAX
        engine.state.topics["t"].log.check()


class Watched(MemoryDisk):
    """Knows how many pieces of work it is given at once."""

    under_way = most = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        try:
            return await super().run(work)
        finally:
            self.under_way -= 1


async def test_exports_have_one_piece_of_work_in_a_turn() -> None:
    """LM10: the thread does not go on with another one before others have had the loop."""
    disk = Watched()
    async with running(disk) as engine:
        await fill(engine, 10_000)
        disk.most = 0
        exports = await asyncio.gather(*[exported(engine) for _ in range(5)])
        assert exports == [list(range(1, 10_001))] * 5
        assert disk.most == 1


async def test_an_export_is_of_one_moment() -> None:
    """LM10, G4: whatever is written, deleted or sealed while it is read."""
    async with running() as engine:
        await fill(engine, 6000)
        await engine.delete("t", match=ODD)
        _, parts = await engine.export("t")
        stream = await anext(parts)
        await engine.delete("t", before_seq=5000)
        await fill(engine, 100)
        await engine.checkpoint()
        stream += b"".join([part async for part in parts])
        assert pa.ipc.open_stream(stream).read_all()["seq"].to_pylist() == list(range(2, 6001, 2))


async def test_an_export_reads_files_that_are_removed_and_no_longer_mapped_for_others() -> None:
    """G4, LM11: it holds on to those that it has not read yet."""
    disk = MemoryDisk()
    async with running(disk, settings=Settings(segment_max_events=1000)) as engine:
        await fill(engine, 6000)
        await engine.checkpoint()
        export, parts = await engine.export("t")
        stream = await anext(parts)
        await engine.delete("t", before_seq=6001)
        await engine.checkpoint()
        assert not [name for name in disk.names() if name.startswith("segment-")]
        held = []
        async for part in parts:
            engine.drop_maps()
            stream += part
            held.append(len(export.pinned))
        assert pa.ipc.open_stream(stream).read_all()["seq"].to_pylist() == list(range(1, 6001))
        assert held == [6, 5, 4, 3, 2, 1, 0]


class Meddling(MemoryDisk):
    """Begins something of the test's ahead of one piece of the storage thread's work."""

    works_left = 0
    meddle: Callable[[], Coroutine[Any, Any, object]]
    meddled: "list[asyncio.Task[object]]"

    async def run(self, work: Callable[[], T]) -> T:
        self.works_left -= 1
        if not self.works_left:
            self.meddled = await begun(self.meddle())
        return await super().run(work)


@pytest.mark.parametrize("before", [1, 2 * BLOCK + 5])
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_a_delete_at_any_step_of_a_checkpoint_holds(before: int, is_sealed: bool) -> None:
    """G4, DL3: what died before the capture has no row any more, what died since is dead in the new segment."""
    expected = [seq for seq in range(2, 3001, 2) if seq > before]
    step = 0
    while True:
        step, disk = step + min(3, stride()), Meddling()
        async with running(disk, settings=Settings(segment_max_events=800)) as engine:
            await fill(engine, 3000)
            if is_sealed:
                await engine.checkpoint()
            await engine.delete("t", match=ODD)
            disk.meddle, disk.works_left = partial(engine.delete, "t", before_seq=before + 1), step
            await engine.checkpoint()
            is_done = disk.works_left > 0
            if is_done:
                break
            await asyncio.gather(*disk.meddled)
            engine.state.topics["t"].log.check()
            assert await exported(engine) == expected
            await engine.checkpoint()
            assert await exported(engine) == expected
            left = disk.kill()
        async with running(left) as engine:
            engine.state.topics["t"].log.check()
            assert await exported(engine) == expected
    assert step > 5


class SlowClock(ManualClock):
    """Whenever somebody looks at it, some milliseconds have passed."""

    def monotonic(self) -> float:
        self._passed_ms += 6
        return super().monotonic()


async def test_reads_that_take_long_are_few_in_a_turn() -> None:
    """LM10: however many are asked for at once; each comes to its end, in the order of their coming."""
    async with running(clock=SlowClock()) as engine:
        await fill(engine, 2000)
        done: list[int] = []
        most = 0

        async def one(number: int) -> None:
            await engine.read("t", 0, 10, match=TagMatch("Eq", "none"))
            done.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(50)]
        while len(done) < 50:
            before = len(done)
            await asyncio.sleep(0)
            most = max(most, len(done) - before)
        await asyncio.gather(*tasks)
        assert most <= 4 and done == sorted(done)


async def test_a_filtered_read_of_scattered_records_ends_after_a_bounded_number_of_runs() -> None:
    """LM10, LM13: every live record is a run of its own, and costs more than one among others."""
    async with running() as engine:
        await fill(engine, 20_000)
        await engine.delete("t", match=ODD)
        cursor, reads = 0, 0
        while cursor < 20_000:
            answer = await engine.read("t", cursor, 100, match=TagMatch("Eq", "none"))
            assert cursor < answer.next_from_seq <= cursor + 4 * BLOCK or answer.caught_up
            cursor, reads = answer.next_from_seq, reads + 1
        assert reads >= 5


async def test_a_delete_that_selects_nothing_lets_others_have_their_turns() -> None:
    """LM10: every part of the topic is looked at, and a pause comes after each that takes long."""
    async with running(clock=SlowClock()) as engine:
        for _ in range(20):
            await fill(engine, 1000)
        before = asyncio.get_running_loop().create_task(engine.delete("t", match=TagMatch("Eq", "none")))
        turns = 0
        while not before.done():
            await asyncio.sleep(0)
            turns += 1
        assert before.result().deleted == 0
        assert turns >= len(engine.state.topics["t"].log.parts) > 5


async def test_leases_are_listed_in_turns_while_some_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """LM10: a page has what is held when it is shown, is full, and none is left out."""
    monkeypatch.setattr(claims, "LOOKED_AT", 10)
    async with running() as engine:
        await engine.put_topic("q", {"type": "queue"})
        await engine.append("q", [{"data": 1}] * 100)
        await engine.claim("q", "w", 100)
        (page,) = await begun_one_turn(engine.queues.leases("q", 20, 5))
        await engine.ack("q", "w", [21, 23, *range(31, 40)])
        leases, has_more = await page
        assert [one.seq for one in leases] == [22, 24, 25, 26, 27] and has_more
        assert [one.seq for one in (await engine.queues.leases("q", 95, 10))[0]] == [96, 97, 98, 99, 100]


async def begun_one_turn(work: Coroutine[Any, Any, T]) -> "list[asyncio.Task[T]]":
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return [task]
