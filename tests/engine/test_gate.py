"""Nothing is shown before it is as durable as its class asks, and nothing waits for more than that."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.core.engine_adapter import open_gap
from tests.engine.running import begun, data, running, seqs, tick, turns, views
from topics.engine import Engine
from topics.errors import TopicFull, TopicNotFound
from topics.model import Durability, TagMatch
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

Change = Callable[[Engine], Awaitable[Any]]

ALL: list[Durability] = ["ephemeral", "memory", "disk", "fsync"]
LOGGED: list[Durability] = ["memory", "disk", "fsync"]
UNSYNCED: list[Durability] = ["ephemeral", "memory", "disk"]

CHANGES: dict[str, Change] = {
    "append": lambda engine: engine.append("t", data(7)),
    "eviction": lambda engine: engine.append("t", data(7, 8, 9)),
    "delete before": lambda engine: engine.delete("t", before_seq=2),
    "delete by tag": lambda engine: engine.delete("t", match=TagMatch("Eq", "x")),
    "gap": lambda engine: open_gap(engine, "t", 5, "source_trim"),
}
changes = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


async def prepare(engine: Engine, durability: Durability) -> None:
    await engine.put_topic("t", {"durability": durability, "cap_records": 5, "ttl_ms": 1000})
    await engine.append("t", data(1, 2, 3, tag="x"))


@changes
async def test_a_change_of_an_fsync_topic_is_shown_to_nobody_before_it_is_synced(change: Change) -> None:
    """WR9, WR10, TM14, DL8, DU4: neither to the writer nor to readers."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine, "fsync")
        before = await views(engine, ["t"])
        disk.hold_syncs()
        held = await begun(change(engine), engine.read("t", 0), engine.topic_state("t"))  # type: ignore[arg-type]
        assert disk.held_syncs == 1
        assert [task.done() for task in held] == [False] * 3
        disk.release_syncs()
        for task in held:
            await task
        assert await views(engine, ["t"]) != before


@changes
@pytest.mark.parametrize("durability", UNSYNCED)
async def test_a_change_of_any_other_topic_is_shown_without_a_sync(change: Change, durability: Durability) -> None:
    """WR9, DU1, DU2, DU3, DL8"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine, durability)
        before = await views(engine, ["t"])
        disk.hold_syncs()
        held = await begun(change(engine), engine.read("t", 0), engine.topic_state("t"))  # type: ignore[arg-type]
        assert [task.done() for task in held] == [True] * 3
        assert await views(engine, ["t"]) != before


async def test_expiry_on_an_fsync_topic_is_shown_when_it_is_synced() -> None:
    """TM14, TM7"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await prepare(engine, "fsync")
        disk.hold_syncs()
        clock.advance(1001)
        read, state = await begun(engine.read("t", 0), engine.topic_state("t"))  # type: ignore[arg-type]
        assert not read.done() and not state.done()
        disk.release_syncs()
        assert (await read).tombstone is not None
        assert (await state).count == 0


@pytest.mark.parametrize("durability", UNSYNCED)
async def test_expiry_on_any_other_topic_is_shown_at_once(durability: Durability) -> None:
    """TM7, TM14"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await prepare(engine, durability)
        disk.hold_syncs()
        clock.advance(1001)
        before = len(disk.operations)
        [read] = await begun(engine.read("t"))
        assert (await read).tombstone is not None
        logged = [operation.kind for operation in disk.operations[before:]]
        assert logged == ([] if durability == "ephemeral" else ["write"])


@pytest.mark.parametrize("durability", ALL)
@pytest.mark.parametrize("is_lazy", [False, True], ids=["by PUT", "by a write"])
async def test_a_fresh_topic_is_shown_to_nobody_before_it_is_synced(durability: Durability, is_lazy: bool) -> None:
    """TP13, WR9, DU8: whatever its class."""
    disk = MemoryDisk()
    config = {"durability": durability}
    async with running(disk) as engine:
        disk.hold_syncs()
        creation = engine.append("t", data(1), config=config) if is_lazy else engine.put_topic("t", config)
        held = await begun(
            creation,  # type: ignore[arg-type]
            engine.topic_state("t"),
            engine.read("t"),
            engine.topic_names(),
            engine.append("t", data(2)),
            engine.put_topic("t", config),
        )
        assert [task.done() for task in held] == [False] * 6
        disk.release_syncs()
        names = [await task for task in held][3]
        assert names == ["t"]
        assert await seqs(engine, "t") == ([1, 2] if is_lazy else [1])


@pytest.mark.parametrize("durability", LOGGED)
async def test_a_config_change_is_shown_to_nobody_before_it_is_synced(durability: Durability) -> None:
    """TP13, TP7, DU8"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine, durability)
        disk.hold_syncs()
        held = await begun(
            engine.put_topic("t", {"durability": durability, "cap_records": 1}),  # type: ignore[arg-type]
            engine.read("t"),
            engine.topic_state("t"),
        )
        assert [task.done() for task in held] == [False] * 3
        disk.release_syncs()
        assert [record.seq for record in (await held[1]).records] == [3]  # type: ignore[attr-defined]


async def test_a_change_of_an_ephemeral_topic_happens_when_it_is_synced() -> None:
    """TP13, TP7, TP11: its records are in memory only, so nothing is taken before; changes of it wait their turn."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine, "ephemeral")
        disk.hold_syncs()
        [put, delete] = await begun(
            engine.put_topic("t", {"durability": "ephemeral", "cap_records": 1}),  # type: ignore[arg-type]
            engine.delete_topic("t"),
        )
        assert await seqs(engine, "t") == [1, 2, 3]
        await engine.append("t", data(4))
        disk.release_syncs(1)
        assert (await put)[0] is False
        assert await seqs(engine, "t") == [4]
        assert not delete.done()
        disk.release_syncs()
        assert await delete is True
        assert await engine.topic_names() == []


@pytest.mark.parametrize("durability", LOGGED)
async def test_a_topics_deletion_is_shown_to_nobody_before_it_is_synced(durability: Durability) -> None:
    """TP13, TP11: a refusal for want of the topic is a sign of it, too."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine, durability)
        disk.hold_syncs()
        held = await begun(
            engine.delete_topic("t"),  # type: ignore[arg-type]
            engine.read("t"),
            engine.read("t", wait_ms=1000),
            engine.topic_state("t"),
            engine.delete("t", before_seq=1),
            engine.append("t", data(1), create=False),
            engine.delete_topic("t"),
            engine.topic_names(),
        )
        assert [task.done() for task in held] == [False] * 8
        disk.release_syncs()
        assert await held[0] is True
        for task in held[1:6]:
            with pytest.raises(TopicNotFound):
                await task
        assert await held[6] is False
        assert await held[7] == []


async def test_a_refusal_tells_nothing_of_records_that_are_not_synced() -> None:
    """WR10: the topic is full of them."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync", "cap_records": 2, "discard": "reject"})
        disk.hold_syncs()
        held = await begun(engine.append("t", data(1, 2)), engine.append("t", data(3)))
        assert [task.done() for task in held] == [False, False]
        disk.release_syncs()
        await held[0]
        with pytest.raises(TopicFull):
            await held[1]


async def test_a_reader_who_may_not_be_shown_anything_leaves_the_loop_to_others() -> None:
    """G1: between a failure of the log and the turn that deals with it, a look fails at once, and so does the next."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        disk.hold_syncs()
        [write] = await begun(engine.append("t", data(1)))
        engine.wal.is_read_only = True
        [read, survey] = await begun(engine.read("t", 0), engine.survey.branches("", 10))
        await turns()  # others have them
        assert not read.done() and not survey.done()
        engine.wal.is_read_only = False
        disk.release_syncs()
        await write
        assert (await read).head_seq == 1
        await survey


async def test_a_disk_topic_never_waits_for_the_sync_of_an_fsync_topic() -> None:
    """DU3, WR9"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("slow", {"durability": "fsync"})
        await engine.put_topic("fast")
        disk.hold_syncs()
        [slow] = await begun(engine.append("slow", data(1)))
        for number in range(3):
            await engine.append("fast", data(number))
        assert await seqs(engine, "fast") == [1, 2, 3]
        assert not slow.done()


async def test_writes_that_gather_behind_a_sync_share_the_next_one() -> None:
    """ST3"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        disk.hold_syncs()
        [first] = await begun(engine.append("t", data(0)))
        rest = await begun(*[engine.append("t", data(number)) for number in range(20)])
        before = engine.wal.counters.fsyncs
        disk.release_syncs()
        answers = [await task for task in (first, *rest)]
        assert [answer.first_seq for answer in answers] == list(range(1, 22))
        assert engine.wal.counters.fsyncs == before + 2


async def test_frames_of_one_turn_are_one_write() -> None:
    """ST3, ST2"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t")
        before = len(disk.operations)
        answers = await begun(*[engine.append("t", data(number)) for number in range(50)])
        assert [(await answer).first_seq for answer in answers] == list(range(1, 51))
        assert [operation.kind for operation in disk.operations[before:]] == ["write"]


async def test_a_disk_topic_is_synced_in_the_background() -> None:
    """DU3"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t")
        await engine.append("t", data(1))
        assert engine.wal.synced < engine.wal.written
        await tick(engine)
        assert engine.wal.synced == engine.wal.written
        assert all(disk.is_durable(name) for name in disk.names())


async def test_an_ephemeral_topic_writes_nothing() -> None:
    """DU1"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await prepare(engine, "ephemeral")
        before = len(disk.operations)
        await engine.append("t", data(4, 5, 6))
        await engine.delete("t", before_seq=3)
        clock.advance(1001)
        assert (await engine.read("t")).tombstone is not None
        assert disk.operations[before:] == []


async def test_the_class_of_a_topic_changes_in_place() -> None:
    """DU5"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.append("t", data(1))
        await engine.put_topic("t", {"durability": "fsync"})
        disk.hold_syncs()
        [held] = await begun(engine.append("t", data(2)))
        assert not held.done()
        disk.release_syncs()
        await held
        await engine.put_topic("t", {"durability": "disk"})
        disk.hold_syncs()
        await engine.append("t", data(3))
        assert await seqs(engine, "t") == [1, 2, 3]
