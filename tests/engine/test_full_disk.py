"""A disk that fills up, and gets free again, in every order: whenever the process dies, whatever frees space.

Two topics fill a small disk, while the background does what is due. The process is killed at some operation of a file,
and the next one starts on the full disk. Then enough is deleted, in one of four ways: within a few attempts writes must
be taken again, without a restart. All that was acked is there, nothing that was refused is, and the reserve is whole.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import pytest

from tests.crash.run import _ended, finished
from tests.effort import sampled, stride
from tests.engine.running import data, open_engine, running, texts, tick
from topics.engine import Engine
from topics.errors import StorageError
from topics.model import TagMatch
from topics.settings import Settings
from topics.storage.reserve import KEPT_FOR_FILES, KEPT_FOR_RELEASE, RESERVE_BYTES
from topics.testing.clock import ManualClock
from topics.testing.disk import Capacity, CrashAt, MemoryDisk

MIB = 1024 * 1024
RECORD_BYTES = 40_000
ATTEMPTS_MAX = 5  # a second apart
SIZES = [round(size * MIB) for size in (5.6, 6.1, 7, 8.3, 10, 13.5)]
SETTINGS = Settings(segment_max_events=100, cache_bytes=4 * MIB)

Freeing = Callable[["Small"], Awaitable[object]]


class Small:
    """A server on a small disk, and what its clients were told. `large` is what is deleted, `kept` what is not."""

    def __init__(self, size: int) -> None:
        self.capacity = Capacity(size)
        self.disk = MemoryDisk(hooks=[self.capacity])
        self.clock = ManualClock()
        self.acked: dict[str, list[bytes]] = {"large": [], "kept": []}
        self.refused: set[bytes] = set()
        self.doubtful: set[bytes] = set()  # the process died before it answered
        self._numbers = count()
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @property
    def reason(self) -> str:
        obstacle = self.engine.obstacle()
        return "" if obstacle is None else obstacle.reason

    async def start(self) -> None:
        self._engine = open_engine(self.disk, self.clock, SETTINGS)
        await finished(self._engine.start(), lambda: self.disk.is_dead)

    async def kill(self) -> None:
        """kill -9, and a start on what is left."""
        before, self.disk.is_dead = asyncio.all_tasks(), True
        await _ended(before)
        self.disk = self.disk.kill()
        self.disk.hooks.append(self.capacity)
        await self.start()

    async def write(self, name: str, size: int = RECORD_BYTES) -> bool:
        text = f"{next(self._numbers)} ".ljust(size, "x")
        kept = f'"{text}"'.encode()
        self.doubtful.add(kept)
        try:
            answer = await finished(self.engine.append(name, data(text)), lambda: self.disk.is_dead)
        except StorageError:
            self.refused.add(kept)
            self.doubtful.discard(kept)
            return False
        if answer is not None:
            self.acked[name].append(kept)
            self.doubtful.discard(kept)
        return answer is not None

    async def attempt(self) -> None:
        """Let a second pass, and the background do what is due."""
        self.clock.advance(1001)
        await finished(self._tick(), lambda: self.disk.is_dead)

    async def _tick(self) -> None:
        try:
            await tick(self.engine)
        except (StorageError, OSError):
            pass  # a checkpoint that finds no room; it will be tried again

    async def fill(self) -> None:
        """Write until the disk is full for good, or the process is dead."""
        refusals = 0
        for number in range(2000):
            if self.disk.is_dead or refusals > 3:
                return
            if await self.write("kept" if number % 4 == 0 else "large"):
                refusals = 0
            else:
                refusals += 1
                await self.attempt()
            if number % 5 == 0:
                self.clock.advance(200)
                await finished(self._tick(), lambda: self.disk.is_dead)
        raise AssertionError("the disk never became full")

    async def check(self, *names: str) -> None:
        """What was acked is there, and what was refused is not."""
        for name in names:
            found: list[bytes] = []
            while page := await texts(self.engine, name, len(found), limit=50):
                found += page
            assert [text for text in found if text not in self.doubtful] == self.acked[name]
            assert self.refused.isdisjoint(found)


async def delete_topic(small: Small) -> None:
    await small.engine.delete_topic("large")


async def delete_records(small: Small) -> None:
    await small.engine.delete("large", before_seq=(await small.engine.topic_state("large")).head_seq)


async def lower_cap(small: Small) -> None:
    await small.engine.put_topic("large", {"cap_records": 1})


async def expire(small: Small) -> None:
    await small.engine.put_topic("large", {"ttl_ms": 1})
    small.clock.advance(10)


FREEINGS = (delete_topic, delete_records, lower_cap, expire)


async def recovers(small: Small, free: Freeing) -> None:
    """Enough is deleted; writes are taken again before long, and the next process finds all of it."""
    await small.check("kept")
    await free(small)
    for _ in range(ATTEMPTS_MAX):
        if not small.reason:
            break
        await small.attempt()
    assert not small.reason, f"{small.engine.obstacle()}, {small.disk.free_bytes} free, {small.disk.sizes()}"
    for _ in range(5):
        assert await small.write("kept"), f"refused on {small.disk.free_bytes} free bytes, {small.disk.sizes()}"
    assert small.disk.reserved_bytes == RESERVE_BYTES
    await small.check("kept")
    await small.kill()
    await small.check("kept")
    small.disk.is_dead = True


async def filled(size: int, crash: CrashAt | None = None) -> Small:
    small = Small(size)
    await small.start()
    for name in ("large", "kept"):
        await small.engine.put_topic(name, {"durability": "fsync" if name == "kept" else "disk"})
    if crash is not None:
        small.disk.hooks.append(crash)
    await small.fill()
    return small


@pytest.mark.parametrize("free", FREEINGS)
@pytest.mark.parametrize("size", sampled(SIZES))
async def test_a_full_disk_takes_writes_again_when_enough_is_deleted(size: int, free: Freeing) -> None:
    """ST16, HM7, ER7, G1, G2"""
    small = await filled(size)
    assert small.reason == "disk_full"
    await small.check("large")
    await recovers(small, free)


@pytest.mark.parametrize("free", FREEINGS)
@pytest.mark.parametrize("size", sampled(SIZES))
async def test_it_does_so_after_starts_and_vain_attempts_on_the_full_disk(size: int, free: Freeing) -> None:
    """ST16, HM7, ST8: neither a start nor a checkpoint that fails may use up what the next attempt needs."""
    small = await filled(size)
    for _ in range(4):
        await small.kill()
        for _ in range(4):
            await small.attempt()
            await small.write("kept")
    assert small.disk.reserved_bytes >= KEPT_FOR_RELEASE
    await small.check("large")
    await recovers(small, free)


async def suddenly_full(room: int) -> Small:
    """Much lies in the log only, then somebody else takes all of the disk but so much."""
    small = Small(1024 * MIB)
    await small.start()
    for number in range(200):
        assert await small.write("kept" if number % 4 == 0 else "large")
        if number == 50:
            await small.engine.checkpoint()
    small.capacity.size = small.disk.used_bytes + room
    while await small.write("large"):
        pass
    return small


@pytest.mark.parametrize("free", FREEINGS)
@pytest.mark.parametrize("room", sampled([0, 100, 5000, 70_000, MIB, 2 * MIB]))
async def test_attempts_in_vain_leave_the_space_for_one_that_is_not(room: int, free: Freeing) -> None:
    """ST16, HM7, ST7: what is not sealed yet has no room as a segment, so every checkpoint fails until then."""
    small = await suddenly_full(room)
    for _ in range(3):
        for _ in range(6):
            await small.attempt()
            await small.engine.delete("large", before_seq=1)
            await small.write("kept")
        assert small.reason == "disk_full"
        await small.kill()
    await small.check("large", "kept")
    await recovers(small, free)


async def test_a_disk_without_room_for_a_checkpoint_is_full_and_nobody_waits_for_that() -> None:
    """ST16, HM7, PR5: there is room for the log and for the reserve, but not to seal what lies in the log."""
    small = await suddenly_full(2 * RESERVE_BYTES)
    small.capacity.size = small.disk.used_bytes + 2 * MIB
    small.clock.advance(60_001)
    for _ in range(3):
        await small.attempt()
        assert small.reason == "disk_full"
        assert small.engine.fill < 1
        assert not await small.write("kept")
    small.capacity.size += 16 * MIB
    for _ in range(ATTEMPTS_MAX):
        await small.attempt()
    assert not small.reason
    assert await small.write("kept")
    await small.check("kept", "large")
    small.disk.is_dead = True


async def test_on_a_full_disk_the_space_comes_back_of_a_topic_that_shared_its_files() -> None:
    """ST16, ST6: files that are partly dead are rewritten, one after the other, as each makes room for the next."""
    small = await filled(SIZES[5])
    await delete_topic(small)
    for _ in range(3):
        await small.attempt()
    assert not small.reason
    sealed = sum(size for name, size in small.disk.sizes().items() if name.startswith("segment-"))
    assert sealed < 1.4 * sum(map(len, small.acked["kept"]))
    await small.check("kept")
    small.disk.is_dead = True


async def test_a_segment_that_is_removed_is_no_longer_mapped() -> None:
    """ST16: a file has its space for as long as anybody maps it."""
    small = await filled(SIZES[4])
    await small.check("large")
    maps = small.engine._ledger.store.catalogue.maps
    assert maps.size_bytes
    await delete_topic(small)
    await small.attempt()
    await small.attempt()
    assert not small.reason
    assert not maps.size_bytes
    small.disk.is_dead = True


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["before", "torn", "after"])
@pytest.mark.parametrize("size", sampled([SIZES[1], SIZES[3]]))
async def test_it_does_so_wherever_the_process_was_killed(size: int, mode: str) -> None:
    """ST16, ST8, G1, G2, G4: in a write, a checkpoint, a roll of the log, or when a snapshot was written."""
    whole = await filled(size)
    operations = len(whole.disk.operations)
    whole.disk.is_dead = True
    step = 7 * stride()
    for n in range(operations // 2 % step, operations, step):
        small = await filled(size, CrashAt(n, mode))  # type: ignore[arg-type]
        try:
            await small.kill()
            await small.fill()
            await recovers(small, FREEINGS[n // step % len(FREEINGS)])
        except BaseException as error:
            error.add_note(f"killed {mode} operation {n} of {operations}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("size", sampled([SIZES[1], SIZES[3]]))
async def test_it_does_so_wherever_a_start_on_the_full_disk_was_killed(size: int) -> None:
    """ST16, ST8, G4"""
    full = await filled(size)
    full.disk.is_dead = True
    for n in range(0, 60, stride()):
        small = Small(size)
        small.acked, small.refused, small._numbers = (
            {name: list(texts) for name, texts in full.acked.items()},
            set(full.refused),
            count(10_000),
        )
        small.disk = full.disk.kill()
        small.disk.hooks += [small.capacity, CrashAt(n)]
        await small.start()
        for _ in range(3):
            await small.attempt()
        await small.kill()
        await recovers(small, FREEINGS[n % len(FREEINGS)])


@pytest.mark.parametrize("kept_bytes", [0, KEPT_FOR_RELEASE, KEPT_FOR_FILES])
async def test_the_space_of_another_that_fills_the_disk_is_used_when_it_is_free_again(kept_bytes: int) -> None:
    """ST16, HM7: somebody else fills the disk, takes what is left of the reserve, and goes."""
    small = await filled(SIZES[4])
    small.disk.use_reserved_space(kept_bytes)
    taken = small.disk.free_bytes
    small.capacity.size -= taken
    for _ in range(3):
        await small.attempt()
        assert small.reason == "disk_full"
        assert not await small.write("kept")
    small.capacity.size += taken + 2 * MIB
    for _ in range(ATTEMPTS_MAX):
        await small.attempt()
    assert not small.reason
    assert small.disk.reserved_bytes == RESERVE_BYTES
    assert await small.write("kept")
    await small.check("kept", "large")
    small.disk.is_dead = True


async def vain_attempt(engine: Engine, clock: ManualClock) -> None:
    """Let a second pass on a disk that is full, and a checkpoint find no room."""
    clock.advance(1001)
    with pytest.raises(OSError, match="space"):
        await tick(engine)


async def test_a_file_stays_while_the_snapshot_names_a_piece_of_it() -> None:
    """G7, ST16: a topic shares its file with one that is gone, and what it has in memory finds no room yet."""
    capacity, clock = Capacity(1 << 40), ManualClock()
    disk = MemoryDisk(hooks=[capacity])
    engine = open_engine(disk, clock, Settings(cache_bytes=64 * MIB))
    await engine.start()
    for name in ("gone", "kept"):
        await engine.append(name, data(1, 2, 3))
    sealing = asyncio.create_task(engine.checkpoint())
    while engine.state.unsaved:  # noqa: ASYNC110
        await asyncio.sleep(0)
    deleting = asyncio.create_task(engine.delete("kept", before_seq=4))
    await asyncio.gather(sealing, deleting)  # the piece of `kept` was dead when it was sealed
    many = ["x" * RECORD_BYTES] * 40
    await engine.append("kept", data(*many))
    await engine.delete_topic("gone")
    capacity.size = disk.used_bytes - RESERVE_BYTES + 200_000
    engine.wal.note_full(OSError(errno.ENOSPC, "full"))
    await vain_attempt(engine, clock)
    engine._ledger.store.catalogue.check()
    async with running(disk.kill(), clock) as again:
        assert (await again.topic_state("kept")).count == len(many)


async def test_a_disk_with_room_takes_writes_though_nothing_is_left_to_seal() -> None:
    """ST16, HM7: what was deleted is released, and then another program takes the space; later it gives it back."""
    capacity, clock = Capacity(1 << 40), ManualClock()
    disk = MemoryDisk(hooks=[capacity])
    async with running(disk, clock) as engine:
        await engine.append("one", data(1, 2, 3))
        await engine.append("two", data(*["x" * 50] * 30))
        await engine.checkpoint()
        await engine.delete("one", before_seq=4)
        capacity.size = disk.used_bytes - RESERVE_BYTES + 2500
        engine.wal.note_full(OSError(errno.ENOSPC, "full"))
        await vain_attempt(engine, clock)
        assert engine.obstacle() is not None
        capacity.size = 1 << 40
        for _ in range(3):
            clock.advance(60_001)
            await tick(engine)
        assert engine.obstacle() is None
        await engine.append("two", data(1))


async def test_writes_are_taken_while_half_dead_files_are_rewritten() -> None:
    """ST16: once there is room, nobody waits for what only saves space."""
    capacity, clock = Capacity(1 << 40), ManualClock()
    disk = MemoryDisk(hooks=[capacity])
    async with running(disk, clock, Settings(cache_bytes=64 * MIB, segment_max_events=100)) as engine:
        for _ in range(40):
            await engine.append("t", [{"data": "x" * 100, "tag": "ab"[n % 2]} for n in range(100)])
        await engine.checkpoint()
        await engine.delete("t", match=TagMatch("Eq", "a"))
        capacity.size = disk.used_bytes - RESERVE_BYTES + 2500
        engine.wal.note_full(OSError(errno.ENOSPC, "full"))
        await vain_attempt(engine, clock)
        capacity.size = 1 << 40
        clock.advance(60_001)
        catalogue = engine._ledger.store.catalogue
        before, ticking, taken = catalogue.next_segment, asyncio.create_task(tick(engine)), []
        while not ticking.done():
            with suppress(StorageError):
                await engine.append("other", data(1))
                taken.append(catalogue.next_segment - before)
            await asyncio.sleep(0)
        await ticking
        assert taken and taken[0] <= 1, "files were rewritten before a write was taken"
