"""A disk that fails: what it took is refused and leaves no trace, the rest stays, and work goes on or stops loudly."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.effort import stride
from tests.engine.running import begun, data, open_engine, running, seqs, texts, tick, turns, views
from topics.core.topic.walk import Query
from topics.engine import Engine
from topics.errors import CommitFailed, TopicNotFound, UnusableDirectory
from topics.model import TagMatch
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, Interruption, MemoryDisk, Operation

Change = Callable[[Engine], Awaitable[Any]]

NAMES = ["disk", "ephemeral", "fsync", "memory"]
EPHEMERAL_CHANGES: dict[str, Change] = {
    "lazy creation": lambda engine: engine.append("new", data(1), config={"durability": "ephemeral"}),
    "class change": lambda engine: engine.put_topic("ephemeral", {"durability": "disk"}),
    "config change": lambda engine: engine.put_topic("ephemeral", {"durability": "ephemeral", "cap_records": 1}),
}
FAULTS: dict[str, Callable[[], Faulty]] = {
    "failed write": lambda: Faulty("write", name="log-*"),
    "short write": lambda: Faulty("write", name="log-*", part=20),
    "failed sync": lambda: Faulty("sync", name="log-*"),
}


async def prepare(engine: Engine) -> None:
    """A topic of each class, with records that are acked and, on disk and memory, not synced."""
    for durability in NAMES:
        await engine.put_topic(durability, {"durability": durability, "cap_records": 8})
    for durability in NAMES:
        await engine.append(durability, data(1, 2, tag="x"), key="old")
        await engine.append(durability, data(3))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("change", EPHEMERAL_CHANGES.values(), ids=EPHEMERAL_CHANGES)
async def test_a_change_of_an_ephemeral_topic_that_fails_leaves_no_trace(
    change: Change, fault: Callable[[], Faulty]
) -> None:
    """ER7, ST4, TP13: its records are in memory only, and stay. The other changes are in tests/faults."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine)
        before = await views(engine, NAMES)
        disk.hooks.append(fault())
        with pytest.raises(CommitFailed):
            await change(engine)
        assert await views(engine, NAMES) == before
        await change(engine)
        after = await views(engine, [name for name in NAMES if name in await engine.topic_names()])
        assert after != before
        assert not engine.wal.is_read_only


async def test_a_key_is_forgotten_with_the_write_that_failed() -> None:
    """ID4, ID3: racing repeats fail with it; the next one appends, once."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("fsync", {"durability": "fsync"})
        disk.hooks.append(Faulty("sync", name="log-*"))
        racing = await begun(*[engine.append("fsync", data(1), key="k") for _ in range(3)])
        for attempt in racing:
            with pytest.raises(CommitFailed):
                await attempt
        answers = [await engine.append("fsync", data(1), key="k") for _ in range(2)]
        assert [(answer.first_seq, answer.deduped) for answer in answers] == [(1, False), (1, True)]
        assert await seqs(engine, "fsync") == [1]


async def test_keys_acked_before_a_failure_are_still_known_after_it() -> None:
    """ID8, ST4"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await prepare(engine)
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("fsync", data(4))
        for name in NAMES:
            answer = await engine.append(name, data(1, 2), key="old")
            assert (answer.first_seq, answer.last_seq, answer.deduped) == (1, 2, True)


async def test_an_append_behind_a_config_change_that_fails_fails_with_it() -> None:
    """ER7, WR9, TP13: the class that it was written under never came."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        await engine.append("t", data(1))
        disk.hold_syncs()
        disk.hooks.append(Faulty("sync", name="log-*"))
        put, append = await begun(engine.put_topic("t"), engine.append("t", data(2)))  # type: ignore[arg-type]
        disk.release_syncs()
        for task in (put, append):
            with pytest.raises(CommitFailed):
                await task
        assert await seqs(engine, "t") == [1]
        assert (await engine.topic_state("t")).config.durability == "fsync"


async def test_a_class_change_of_an_ephemeral_topic_holds_once_it_is_synced() -> None:
    """ER7, WR9, TP13, DU5: until then the topic is ephemeral, and stays so if the sync fails"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.append("t", data(1), config={"durability": "ephemeral"})
        disk.hold_syncs()
        disk.hooks.append(Faulty("sync", name="log-*"))
        (put,) = await begun(engine.put_topic("t"))  # type: ignore[arg-type]
        await engine.append("t", data(2))
        disk.release_syncs()
        with pytest.raises(CommitFailed):
            await put
        assert await seqs(engine, "t") == [1, 2]
        assert (await engine.topic_state("t")).config.durability == "ephemeral"
        await engine.put_topic("t")
        await engine.append("t", data(3))
        await engine.checkpoint()
    async with running(disk.kill()) as engine:
        assert await seqs(engine, "t") == [1, 2, 3]


async def test_every_racing_creator_is_refused_when_the_creation_fails() -> None:
    """TP13, TP14, G15"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        disk.hooks.append(Faulty("sync", name="log-*"))
        racing = await begun(
            engine.put_topic("t"),
            engine.append("t", data(1)),
            engine.put_topic("t", {"ttl_ms": 5}),  # type: ignore[arg-type]
        )
        for attempt in racing:
            with pytest.raises(CommitFailed):
                await attempt
        with pytest.raises(TopicNotFound):
            await engine.read("t")
        assert (await engine.put_topic("t"))[0] is True


@pytest.mark.parametrize("turns_between", range(12))
async def test_a_write_is_acked_and_there_or_refused_and_not(turns_between: int) -> None:
    """ER7, WR9, G15: a disk write at any moment of a sync that fails."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("fsync", {"durability": "fsync"})
        await engine.put_topic("disk")
        disk.hold_syncs()
        disk.hooks.append(Faulty("sync", name="log-*"))
        [failing] = await begun(engine.append("fsync", data(1)))
        disk.release_syncs()
        await turns(turns_between)
        acked = []
        for value in range(3):
            try:
                await engine.append("disk", data(value))
                acked.append(b"%d" % value)
            except CommitFailed:
                pass
        with pytest.raises(CommitFailed):
            await failing
        assert await texts(engine, "disk") == acked


async def test_a_read_that_was_held_when_the_log_failed_is_made_anew() -> None:
    """ER7, WR10, G13"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        await engine.append("t", data(1))
        disk.hold_syncs()
        disk.hooks.append(Faulty("sync", name="log-*"))
        append, read, state = await begun(  # type: ignore[misc]
            engine.append("t", data(2)),
            engine.read("t"),
            engine.topic_state("t"),  # type: ignore[arg-type]
        )
        disk.release_syncs()
        with pytest.raises(CommitFailed):
            await append
        assert [record.seq for record in (await read).records] == [1]
        assert (await state).head_seq == 1


async def test_a_poll_outlives_a_failure_of_the_log() -> None:
    """DF8, ST4"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        [poll] = await begun(engine.read("t", wait_ms=1000))
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("t", data("failed"))
        await turns()
        assert not poll.done()
        await engine.append("t", data("there"))
        assert [bytes(record.data) for record in (await poll).records] == [b'"there"']


def latch(disk: MemoryDisk) -> None:
    """From now on no sync of a log file works, and no new one can be made."""
    disk.hooks += [Faulty("sync", name="log-*", times=None), Faulty("create", name="log-*", times=None)]


async def test_a_log_that_cannot_go_on_is_read_only_and_reads_go_on() -> None:
    """ST4, ER7"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await prepare(engine)
        await engine.put_topic("ttl", {"ttl_ms": 1000})
        await engine.append("ttl", data(1))
        names = [*NAMES, "ttl"]
        before = await views(engine, names)
        latch(disk)
        with pytest.raises(CommitFailed):
            await engine.append("fsync", data(4))
        assert engine.wal.is_read_only
        assert await views(engine, names) == before
        for name in ("disk", "fsync", "memory", "new"):
            with pytest.raises(CommitFailed):
                await engine.append(name, data(4))
        with pytest.raises(CommitFailed):
            await engine.delete("disk", before_seq=2)
        with pytest.raises(CommitFailed):
            await engine.put_topic("disk", {"ttl_ms": 1})
        with pytest.raises(CommitFailed):
            await engine.delete_topic("disk")
        await engine.append("ephemeral", data(4))
        assert await seqs(engine, "ephemeral", 3) == [4]
        clock.advance(5000)
        assert await seqs(engine, "ttl") == [1], "a loss that cannot be logged is not shown (TM14)"
        await tick(engine)
        assert await seqs(engine, "ttl") == [1]


async def test_what_lives_in_memory_is_told_to_the_snapshot_of_a_stop_though_the_log_failed_before() -> None:
    """DU9, G3, G14: no seq of an ephemeral topic is given twice in one epoch, and nothing is copied into it twice."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("ephemeral", {"durability": "ephemeral"})
        await engine.put_topic("source", {"durability": "fsync"})
        await engine.put_router("r", "source", "copies")
        await engine.put_topic("copies", {"durability": "ephemeral"})
        await engine.checkpoint()
        await engine.append("ephemeral", data(1, 2))
        await engine.append("source", data(1, 2))
        assert await seqs(engine, "copies") == [1, 2]
        await engine.checkpoint()
        await engine.append("ephemeral", data(3))
        await engine.append("source", data(3))
        assert await seqs(engine, "copies") == [1, 2, 3]
        epochs = [(await engine.topic_state(name)).epoch for name in ("ephemeral", "copies")]
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("source", data(4))
        assert await seqs(engine, "ephemeral") == await seqs(engine, "copies") == [1, 2, 3]
    async with running(disk.kill()) as engine:
        assert [(await engine.topic_state(name)).epoch for name in ("ephemeral", "copies")] == epochs
        for name in ("ephemeral", "copies"):
            assert (await engine.topic_state(name)).head_seq == 3
            assert await seqs(engine, name) == []
        assert (await engine.append("ephemeral", data("next"))).first_seq == 4


class Full:
    """The disk is full: a file cannot grow. What was reserved can still be written."""

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        size = len(disk.files().get(operation.name, b""))
        if operation.kind == "create" or (operation.kind == "write" and operation.offset + operation.size > size):
            return Interruption(OSError(errno.ENOSPC, "no space left on device", operation.name))
        return None


async def test_a_full_disk_refuses_before_anything_changed_and_recovers() -> None:
    """ER7, ST4: a write that needs no new space still works."""
    disk = MemoryDisk()
    big = "x" * 900_000
    async with running(disk) as engine:
        await prepare(engine)
        before = await views(engine, NAMES)
        generation = engine.wal.generation
        disk.hooks.append(Full())
        for name in ("disk", "fsync", "memory"):
            for _ in range(2):
                with pytest.raises(CommitFailed):
                    await engine.append(name, data(big, big, big))
        assert await views(engine, NAMES) == before
        await engine.append("disk", data(4))
        assert await seqs(engine, "disk") == [1, 2, 3, 4]
        with pytest.raises(OSError, match="no space"):
            await engine.checkpoint()
        disk.hooks.clear()
        await engine.checkpoint()
        assert (await engine.append("disk", data(big, big))).last_seq == 6
        await engine.checkpoint()
        assert await seqs(engine, "disk", bytes_max=8_000_000) == [1, 2, 3, 4, 5, 6]
        assert engine.wal.generation == generation, "the log did not fail"


async def fill(engine: Engine) -> None:
    await prepare(engine)
    await engine.checkpoint()
    for name in NAMES:
        await engine.append(name, data(4, 5, 6, tag="y"), key="new")
        await engine.delete(name, match=TagMatch("Eq", "y"), before_seq=5)
        await engine.delete(name, before_seq=2)
    await engine.put_topic("gone")
    await engine.delete_topic("gone")


class FailAt:
    """The nth operation of any kind fails."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        self.left -= 1
        return Interruption(OSError(errno.EIO, f"failed: {operation}")) if self.left == -1 else None


async def test_a_checkpoint_that_fails_at_any_operation_loses_nothing() -> None:
    """ST7, ST10, G6: the next one is complete."""
    small, clock = Settings(segment_max_events=4), ManualClock()
    is_over, failures, n = False, 0, 0
    while not is_over:
        disk = MemoryDisk()
        async with running(disk, clock, small) as engine:
            await fill(engine)
            before = await views(engine, NAMES)
            fault = FailAt(n)
            disk.hooks.append(fault)
            try:
                await engine.checkpoint()
            except (OSError, CommitFailed):
                failures += 1
            is_over = fault.left >= 0
            disk.hooks.clear()
            assert await views(engine, NAMES) == before, f"after failure {n}"
            async with running(disk.kill(), clock, small) as again:
                assert (await views(again, NAMES))[0:3] == before[0:3], f"killed after failure {n}"
            if not engine.wal.is_read_only:
                await engine.append("disk", data(7))
                await engine.checkpoint()
                assert (await engine.append("disk", data(4, 5, 6), key="new")).deduped
        async with running(disk.kill(), clock, small) as again:
            assert await texts(again, "disk") == [b"2", b"3", b"5", b"6", b"7"], f"restarted after failure {n}"
            assert (await again.append("memory", data(4, 5, 6), key="new")).deduped
        n += stride()
    assert n > 25 and failures


async def test_a_log_that_fails_in_the_midst_of_a_checkpoint_loses_nothing() -> None:
    """ST4, ST7, G1, G2, G6: writes and a checkpoint at once, every operation failing in turn."""
    small, clock = Settings(segment_max_events=4), ManualClock()
    is_over, n = False, 0
    while not is_over:
        disk = MemoryDisk()
        async with running(disk, clock, small) as engine:
            await fill(engine)
            fault = FailAt(n)
            disk.hooks.append(fault)
            acked: dict[str, list[bytes]] = {"disk": [], "fsync": []}

            async def write(name: str, engine: Engine = engine, acked: dict[str, list[bytes]] = acked) -> None:
                for value in range(100, 108):
                    try:
                        await engine.append(name, data(value))
                        acked[name].append(b"%d" % value)
                    except CommitFailed:
                        pass

            await asyncio.gather(engine.checkpoint(), write("fsync"), write("disk"), return_exceptions=True)
            is_over = fault.left >= 0
            disk.hooks.clear()
            for name, values in acked.items():
                expected = [b"2", b"3", b"5", b"6", *values][-8:]
                assert await texts(engine, name) == expected, f"{name} after failure {n}"
        async with running(disk.kill(), clock, small) as again:
            for name, values in acked.items():
                expected = [b"2", b"3", b"5", b"6", *values][-8:]
                assert await texts(again, name) == expected, f"{name} restarted after failure {n}"
        n += stride()
    assert n > 20


async def test_nothing_is_served_when_the_state_cannot_be_read_back() -> None:
    """ST4, ST12: the log fails, and the snapshot that the state would be read from is damaged."""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await prepare(engine)
    await engine.checkpoint()
    for name in disk.names():
        if name.startswith("snapshot-"):
            file = disk.open(name)
            file.write(file.size() // 2, b"\xff" * 8)
            file.close()
    disk.hooks.append(Faulty("sync", name="log-*"))
    with pytest.raises(CommitFailed):
        await engine.append("fsync", data(9))
    for name in NAMES:
        with pytest.raises(UnusableDirectory):
            await engine.read(name)
        with pytest.raises(UnusableDirectory):
            engine.read_now(name, Query(0, 10, 1000))
