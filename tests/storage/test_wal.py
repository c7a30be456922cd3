"""The writing end of the log: what is written when, what is synced when, and what happens if neither works."""

import asyncio
import errno
from collections.abc import Callable
from functools import partial

import pytest

from topics.errors import CommitFailed
from topics.storage import frames, log_files, wal
from topics.storage.log_files import Replay, name_of
from topics.storage.wal import Wal, resolve, write_zeros_ahead
from topics.testing.clock import ManualClock
from topics.testing.disk import Crashed, Faulty, Hook, MemoryDisk, crash_points

START = frames.position_of(1, 0)
FIRST_FRAME = len(frames.encode_header(frames.FileHeader(1, "boot-1", 0)))  # its offset


@pytest.fixture(autouse=True)
def little_space_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files: the tests look at all of what they may become."""
    monkeypatch.setattr(wal, "AHEAD_BYTES", 4000)


def begun(*hooks: Hook, payload: bytes = b"") -> tuple[Wal, MemoryDisk]:
    disk = MemoryDisk()
    log = Wal(disk, ManualClock())
    log.begin(1, payload, 0)
    disk.operations.clear()
    disk.hooks.extend(hooks)
    return log, disk


def kinds(disk: MemoryDisk) -> list[str]:
    return [operation.kind for operation in disk.operations]


def payloads(disk: MemoryDisk) -> list[bytes]:
    """What the next process replays, empty frames left out."""
    return [bytes(frame.payload) for frame in Replay(disk, START).read() if len(frame.payload)]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def synced(log: Wal, payload: bytes) -> None:
    await log.wait_synced(log.append(payload, needs_sync=True))


def write_of(log: Wal) -> "asyncio.Future[None]":
    """Done when what was appended so far is written, or has failed."""
    waiting = asyncio.get_running_loop().create_future()
    log.when_written(partial(resolve, waiting))
    return waiting


def sync_of(log: Wal) -> "asyncio.Future[None]":
    """Done when what was appended so far is synced, or has failed."""
    waiting = asyncio.get_running_loop().create_future()
    log.when_synced(log.end, partial(resolve, waiting))
    return waiting


def text(disk: MemoryDisk) -> bytes:
    """What the next process replays; frames that were copied are one."""
    return b"".join(payloads(disk))


async def written(log: Wal, payload: bytes) -> None:
    log.append(payload, needs_sync=False)
    await write_of(log)


async def outcome(work: "asyncio.Future[None]") -> str:
    try:
        await work
    except CommitFailed:
        return "failed"
    return "acked"


# --- group commit


async def test_frames_of_one_turn_go_out_in_one_write() -> None:
    """ST3"""
    log, disk = begun()
    ends = [log.append(payload, needs_sync=False) for payload in (b"a", b"bb", b"ccc")]
    assert kinds(disk) == []
    await write_of(log)
    assert kinds(disk) == ["write"]
    assert (log.written, log.counters.batches, log.counters.frames) == (ends[-1], 1, 3)
    assert payloads(disk.kill()) == [b"a", b"bb", b"ccc"]


async def test_positions_are_known_at_once_and_lie_one_behind_the_other() -> None:
    """ST2"""
    log, disk = begun()
    start = log.end
    ends = [log.append(bytes(size), needs_sync=False) for size in (0, 1, 100)]
    assert ends == [start + 24, start + 24 + 25, start + 24 + 25 + 124]
    await write_of(log)
    replay = Replay(disk, START)
    assert [frame.position for frame in replay.read()][1:] == [start, *ends[:-1]]


async def test_a_lone_durable_write_is_synced_at_once_without_a_timer() -> None:
    """ST3, WR9: the manual clock stands still."""
    log, disk = begun()
    await synced(log, b"a")
    assert kinds(disk) == ["write", "sync"]
    assert payloads(disk.power_loss("lost")) == [b"a"]


async def test_a_written_frame_is_not_synced_by_itself() -> None:
    """DU3: and start_sync, the background's, does it."""
    log, disk = begun()
    await written(log, b"a")
    assert kinds(disk) == ["write"]
    assert payloads(disk.kill()) == [b"a"]
    assert payloads(disk.power_loss("lost")) == []
    log.start_sync()
    await until(lambda: log.synced == log.end)
    assert payloads(disk.power_loss("lost")) == [b"a"]


async def test_one_sync_runs_at_a_time_and_what_gathers_shares_the_next() -> None:
    """ST3"""
    log, disk = begun()
    disk.hold_syncs()
    first = asyncio.ensure_future(synced(log, b"a"))
    await until(lambda: disk.held_syncs == 1)
    rest = [asyncio.ensure_future(synced(log, bytes([n]))) for n in range(1, 6)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert disk.held_syncs == 1
    disk.release_syncs(1)
    await first
    assert not any(task.done() for task in rest)
    await until(lambda: disk.held_syncs == 1)
    disk.release_syncs()
    await asyncio.gather(*rest)
    assert log.counters.fsyncs == kinds(disk).count("sync") == 2
    assert sum(log.counters.fsync_buckets) == 2


async def test_much_that_is_unsynced_is_synced_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "UNSYNCED_BYTES_MAX", 1000)
    log, disk = begun()
    await written(log, bytes(500))
    assert "sync" not in kinds(disk)
    await written(log, bytes(500))
    await until(lambda: log.synced == log.written)


async def test_space_is_written_ahead_and_a_frame_never_ends_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "AHEAD_BYTES", 300)
    log, disk = begun()
    for size in (10, 200, 50, 1000, 10, 299, 301):
        await written(log, bytes([size % 256 or 1]) * size)
        file = disk.open(name_of(1))
        assert frames.offset_of(log.end) <= file.size()
    assert [len(payload) for payload in payloads(disk.kill())] == [10, 200, 50, 1000, 10, 299, 301]


async def test_a_full_disk_refuses_one_append_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """ER7: it is met before anything else happens, and the log goes on when there is space again."""
    monkeypatch.setattr(wal, "AHEAD_BYTES", 300)
    log, disk = begun()
    await written(log, b"a")
    disk.hooks.append(Faulty("write", error=errno.ENOSPC))
    before = log.end
    with pytest.raises(CommitFailed, match="no space"):
        log.append(bytes(400), needs_sync=False)
    assert (log.end, log.is_read_only) == (before, False)
    await written(log, b"b" * 400)
    assert payloads(disk.kill()) == [b"a", b"b" * 400]


async def test_a_log_that_was_told_to_refuses_frames() -> None:
    log, _ = begun()
    log.refuse("closed")
    with pytest.raises(CommitFailed, match="closed"):
        log.append(b"a", needs_sync=False)


async def test_the_queue_is_measured() -> None:
    """ST3: what waits for the disk shows, so that it can be bounded."""
    log, disk = begun()
    disk.hold_syncs()
    tasks = [asyncio.ensure_future(synced(log, bytes(1000))) for _ in range(3)]
    await asyncio.sleep(0)
    assert log.queue_depth == 3
    await until(lambda: disk.held_syncs == 1)
    assert log.counters.queue_depth_peak == 3
    disk.release_syncs()
    await asyncio.gather(*tasks)
    assert log.queue_depth == 0
    assert log.counters.bytes_written == 3 * 1024


# --- rolls


async def test_a_roll_goes_on_in_a_new_file_when_all_before_it_is_synced() -> None:
    """ST5, ST7"""
    log, disk = begun()
    await written(log, b"a")
    start = await log.roll()
    assert (frames.number_of(start), log.counters.rotations) == (2, 1)
    await written(log, b"b")
    assert payloads(disk.kill()) == [b"a", b"b"]
    assert payloads(disk.power_loss("lost")) == [b"a"]
    assert disk.is_entry_synced(name_of(2))


async def test_frames_appended_during_a_roll_lie_in_order_and_are_acked_once_they_are_safe() -> None:
    """ST2, ST7, WR9: whatever their number of turns into the roll."""
    for turns in range(12):
        log, disk = begun()
        early = asyncio.ensure_future(synced(log, b"early"))
        rolling = asyncio.ensure_future(log.roll())
        tasks = []
        for n in range(turns):
            tasks.append(asyncio.ensure_future(synced(log, b"late %d" % n)))
            await asyncio.sleep(0)
        await asyncio.gather(early, rolling, *tasks)
        assert payloads(disk.power_loss("lost")) == [b"early", *(b"late %d" % n for n in range(turns))]


async def test_an_ack_during_a_roll_is_only_given_for_what_is_synced() -> None:
    """WR9, DU4: at every turn of a roll, what was acked survives a power loss."""
    for lead in range(8):
        log, disk = begun()
        acked: list[bytes] = []

        async def write(payload: bytes, log: Wal = log, acked: list[bytes] = acked) -> None:
            await synced(log, payload)
            acked.append(payload)

        tasks = [asyncio.ensure_future(write(b"%d" % n)) for n in range(lead)]
        tasks.append(asyncio.ensure_future(log.roll()))  # type: ignore[arg-type]
        number = 100
        while not all(task.done() for task in tasks):
            if number < 120:
                number += 1
                tasks.append(asyncio.ensure_future(write(b"%d" % number)))
            await asyncio.sleep(0)
            assert set(acked) <= set(payloads(disk.power_loss("lost")))


async def test_a_crash_at_any_operation_of_a_roll_loses_nothing_acked() -> None:
    """ST5, ST7, G1"""

    async def work(log: Wal, acked: list[bytes]) -> None:
        await synced(log, b"a")
        acked.append(b"a")
        await log.roll()
        await synced(log, b"b")
        acked.append(b"b")
        await log.roll()
        await synced(log, b"c")
        acked.append(b"c")

    calm, disk = begun()
    await work(calm, [])
    for point in crash_points(disk.operations):
        log, dying = begun(point)
        acked: list[bytes] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        task = asyncio.ensure_future(work(log, acked))
        await until(lambda task=task, dying=dying: task.done() or dying.is_dead)  # type: ignore[misc]
        task.cancel()
        await asyncio.wait([task])
        for name, after in dying.aftermaths():
            found = payloads(after)
            assert found == [b"a", b"b", b"c"][: len(found)], (point, name)
            assert len(found) >= len(acked), (point, name)


# --- large frames

STEP = 1000
LARGE = [b"large-%d" % n * 300 for n in range(4)]  # parts, each of several steps


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "STEP_BYTES", STEP)


def test_a_frame_in_parts_is_the_frame_of_them_joined() -> None:
    """LM10: seeds of any size; parts may be empty."""
    for parts in ([b""], [b"a", b"", b"bc"], [bytes(5000), b"x" * 300]):
        for position, synced in ((0, 0), (START + 7, 3), (1 << 62, (1 << 63) + 5)):
            joined = frames.encode_frame(b"".join(parts), position, synced)
            assert b"".join(frames.encode_parts(parts, position, synced)) == joined


@pytest.mark.usefixtures("small_steps")
async def test_a_large_frame_is_written_in_steps_and_holds_up_nobody_behind_it() -> None:
    """LM10, ST3: it counts as written when all of it is; frames that come meanwhile wait for it, not it for them."""
    log, disk = begun()
    await write_zeros_ahead(log, sum(map(len, LARGE)))
    disk.operations.clear()
    log.append(LARGE, needs_sync=False)
    first = write_of(log)
    await asyncio.sleep(0)
    assert not first.done() and log.written == START + FIRST_FRAME + frames.FRAME_OVERHEAD_BYTES
    behind = []
    while not first.done():
        log.append([b"more" * 500], needs_sync=False)
        behind.append(write_of(log))
        await asyncio.sleep(0)
    assert len(behind) > 5 and not behind[-1].done()
    assert kinds(disk).count("write") > sum(map(len, LARGE)) // STEP
    await asyncio.gather(*behind)
    assert text(disk.kill()) == b"".join(LARGE) + b"more" * 500 * len(behind)


@pytest.mark.usefixtures("small_steps")
async def test_a_step_that_fails_fails_the_whole_frame() -> None:
    """LM10, ST4: at any of them; what was acked before is kept, and the log goes on."""
    for n in range(11):
        log, disk = begun()
        await written(log, b"before")
        await write_zeros_ahead(log, sum(map(len, LARGE)))
        disk.hooks.append(Faulty("write", at=n))
        log.append(LARGE, needs_sync=False)
        large = write_of(log)
        assert await outcome(large) == "failed"
        disk.hooks.clear()
        await written(log, b"after")
        assert text(disk.kill()) == b"beforeafter", n


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("turns", range(12))
async def test_a_flush_or_a_roll_amid_the_steps_writes_the_rest(turns: int) -> None:
    """LM10, ST7"""
    for work in (Wal.flush, Wal.roll):
        log, disk = begun()
        log.append(LARGE, needs_sync=False)
        large = write_of(log)
        for _ in range(turns):
            await asyncio.sleep(0)
        done = work(log)
        if done is None:
            assert log.written == log.end
        else:
            await done
        log.append(b"after", needs_sync=False)
        await asyncio.gather(large, write_of(log))
        assert text(disk.kill()) == b"".join(LARGE) + b"after"


@pytest.mark.usefixtures("small_steps")
async def test_a_crash_amid_the_steps_leaves_nothing_of_the_frame() -> None:
    """LM10, G1, ST8: at any operation."""
    whole = b"before" + b"".join(LARGE)

    async def work(log: Wal, disk: MemoryDisk) -> None:
        await synced(log, b"before")
        await write_zeros_ahead(log, len(whole))
        log.append(LARGE, needs_sync=True)
        await sync_of(log)

    log, disk = begun()
    await work(log, disk)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    seen = set()
    for point in crash_points(disk.operations):
        log, dying = begun(point)
        task = asyncio.ensure_future(work(log, dying))
        await until(lambda task=task, dying=dying: task.done() or dying.is_dead)  # type: ignore[misc]
        task.cancel()
        await asyncio.wait([task])
        seen.add(text(dying.kill()))
    assert seen <= {b"", b"before", whole} and b"before" in seen


# --- failures


async def test_a_failed_write_fails_what_was_in_it_and_the_log_goes_on_in_a_fresh_file() -> None:
    """ST4, ER7"""
    log, disk = begun()
    await written(log, b"acked")
    await synced(log, b"synced")
    voids: list[frozenset[int]] = []
    log.on_failure = voids.append
    disk.hooks.append(Faulty("write", part=30))
    log.append(b"x", needs_sync=False)
    log.append(b"y", needs_sync=True)
    waits = [write_of(log), sync_of(log)]
    assert [await outcome(wait) for wait in waits] == ["failed", "failed"]
    assert [len(void) for void in voids] == [2]
    assert not log.is_read_only
    assert frames.number_of(log.end) == 2
    await synced(log, b"later")
    for after in (disk.kill(), disk.power_loss("lost"), disk.power_loss("kept")):
        assert payloads(after) == [b"acked", b"synced", b"later"]


async def test_a_failed_sync_fails_those_that_waited_and_keeps_what_was_acked() -> None:
    """ST4: disk frames were acked by their write; they are copied, and synced there."""
    log, disk = begun()
    await written(log, b"disk 1")
    disk.hooks.append(Faulty("sync"))
    waiting = asyncio.ensure_future(synced(log, b"fsync"))
    await asyncio.sleep(0)
    log.append(b"disk 2", needs_sync=False)
    assert await outcome(waiting) == "failed"
    for after in (disk.kill(), disk.power_loss("lost"), disk.power_loss("kept")):
        assert text(after) == b"disk 1disk 2"


async def test_a_frame_that_depends_on_an_unsynced_one_fails_with_it() -> None:
    """ER7: such as a write to a topic whose creation is not synced yet."""
    log, disk = begun()
    disk.hold_syncs()
    disk.hooks.append(Faulty("sync"))
    end = log.append(b"creation", needs_sync=True)
    creation = asyncio.ensure_future(log.wait_synced(end))
    await until(lambda: disk.held_syncs == 1)
    log.append(b"depends", needs_sync=False, depends_on=end)
    log.append(b"does not", needs_sync=False)
    await write_of(log)
    disk.release_syncs()
    assert await outcome(creation) == "failed"
    assert payloads(disk.kill()) == [b"does not"]


async def test_a_frame_whose_dependency_was_synced_before_the_failure_is_kept() -> None:
    log, disk = begun()
    end = log.append(b"creation", needs_sync=True)
    log.append(b"depends", needs_sync=False, depends_on=end)
    await log.wait_synced(end)
    log.append(b"depends, too", needs_sync=False, depends_on=end)
    await write_of(log)
    disk.hooks.append(Faulty("sync"))
    assert await outcome(asyncio.ensure_future(synced(log, b"x"))) == "failed"
    assert text(disk.power_loss("lost")) == b"creationdependsdepends, too"


async def test_frames_acked_are_safe_at_every_step_of_going_on_in_a_fresh_file() -> None:
    """ST4, G1: a kill, and a second failure, at any operation while the first one is handled."""

    async def work(log: Wal, disk: MemoryDisk) -> None:
        await synced(log, b"synced")
        for n in range(20):
            await written(log, b"disk %d" % n)
        disk.hooks.insert(0, Faulty("sync"))
        await outcome(asyncio.ensure_future(synced(log, b"fails")))

    acked = [b"synced", *(b"disk %d" % n for n in range(20))]
    calm, disk = begun()
    await work(calm, disk)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    first = kinds(disk).index("create") - 1
    for point in crash_points(disk.operations):
        if point.n < first:
            continue
        log, dying = begun(point)
        task = asyncio.ensure_future(work(log, dying))
        await until(lambda task=task, dying=dying: task.done() or dying.is_dead)  # type: ignore[misc]
        task.cancel()
        await asyncio.wait([task])
        assert text(dying.kill()).removesuffix(b"fails") == b"".join(acked), point
        for name, after in dying.aftermaths():
            assert text(after).startswith(b"synced"), (point, name)
    for n in range(first + 1, len(disk.operations)):
        log, failing = begun(CountedFault(n))
        await work(log, failing)
        assert text(failing.kill()) == b"".join(acked), n


class CountedFault:
    """Operation `n`, of whatever kind, fails."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, disk: MemoryDisk, operation: object) -> object:
        self.n -= 1
        return Faulty(operation.kind)(disk, operation) if self.n == -1 else None  # type: ignore[attr-defined, arg-type]


async def test_when_no_fresh_file_can_be_had_the_log_is_read_only() -> None:
    """ST4: every later frame is refused; what failed is marked, and never replayed."""
    log, disk = begun()
    await written(log, b"acked")
    disk.hooks.append(Faulty("create", times=None, error=errno.ENOSPC))
    disk.hooks.append(Faulty("sync"))
    waits = [asyncio.ensure_future(synced(log, payload)) for payload in (b"x", b"y")]
    assert [await outcome(wait) for wait in waits] == ["failed", "failed"]
    assert log.is_read_only
    with pytest.raises(CommitFailed, match="read-only"):
        log.append(b"z", needs_sync=False)
    with pytest.raises(CommitFailed, match="read-only"):
        await log.roll()
    await write_of(log)
    for after in (disk.kill(), disk.power_loss("kept")):
        assert payloads(after) == [b"acked"]


@pytest.mark.parametrize("turns", range(10))
@pytest.mark.parametrize("kind", ["sync", "write", "create", "sync_directory"])
async def test_a_failure_during_a_roll_ends_every_wait_and_the_log_goes_on(kind: str, turns: int) -> None:
    """ST4, G15"""
    for at in range(4):
        log, disk = begun()
        await synced(log, b"first")
        disk.hooks.append(Faulty(kind, at))  # type: ignore[arg-type]
        rolling = asyncio.ensure_future(log.roll())
        names = [b"%d" % n for n in range(turns)]
        waits = []
        for name in names:
            waits.append(asyncio.ensure_future(synced(log, name)))
            await asyncio.sleep(0)
        await until(lambda waits=waits, rolling=rolling: all(w.done() for w in [rolling, *waits]))  # type: ignore[misc]
        rolling.exception()
        outcomes = [await outcome(wait) for wait in waits]
        assert not log.is_read_only
        disk.hooks.clear()
        await synced(log, b"last")
        await log.roll()
        acked = [name for name, ended in zip(names, outcomes, strict=True) if ended == "acked"]
        for after in (disk.kill(), disk.power_loss("lost")):
            assert payloads(after) == [b"first", *acked, b"last"]


async def test_a_sync_of_a_file_that_failed_meanwhile_says_nothing_about_the_next() -> None:
    """ST4, G15: the late answer is ignored, and those who wait for the new file are served."""
    log, disk = begun()
    disk.hold_syncs()
    first = asyncio.ensure_future(synced(log, b"a"))
    await until(lambda: disk.held_syncs == 1)
    disk.hooks.append(Faulty("write"))
    log.append(b"b", needs_sync=False)
    assert await outcome(write_of(log)) == "failed"
    assert await outcome(first) == "failed"
    second = asyncio.ensure_future(synced(log, b"c"))
    await asyncio.sleep(0)
    disk.release_syncs()
    assert await outcome(second) == "acked"
    assert payloads(disk.power_loss("lost")) == [b"c"]


async def test_the_first_file_is_in_force_only_when_its_first_frame_is_whole() -> None:
    """ST8, G4"""
    calm = MemoryDisk()
    Wal(calm, ManualClock()).begin(1, b"closing entries", 0)
    for point in crash_points(calm.operations):
        disk = MemoryDisk(hooks=[point])
        with pytest.raises(Crashed):
            Wal(disk, ManualClock()).begin(1, b"closing entries", 0)
        for name, after in disk.aftermaths():
            assert payloads(after) in ([], [b"closing entries"]), (point, name)


# --- who is called back when


async def test_nobody_is_called_back_within_a_call() -> None:
    """ST17: whoever flushes may be in the middle of a change."""
    log, _ = begun()
    heard: list[str] = []
    log.append(b"a", needs_sync=False)
    log.when_written(lambda failure: heard.append("written"))
    log.on_progress = lambda: heard.append("progress")
    log.flush()
    assert (log.written, heard) == (log.end, [])
    await until(lambda: heard[:2] == ["written", "progress"])


async def test_a_failure_is_dealt_with_in_a_later_turn_and_no_frame_is_taken_before() -> None:
    """ST17, ST4, ER7"""
    log, disk = begun(Faulty("write", name="log-*"))
    rebuilt: list[frozenset[int]] = []
    log.on_failure = rebuilt.append
    position, generation = log.end, log.generation
    log.append(b"a", needs_sync=False)
    failed = write_of(log)
    log.flush()
    assert (rebuilt, failed.done(), log.generation) == ([], False, generation)
    with pytest.raises(CommitFailed, match="the disk failed"):
        log.append(b"refused", needs_sync=False)
    assert await outcome(failed) == "failed"
    assert rebuilt == [frozenset([position])]
    await synced(log, b"b")
    assert payloads(disk.kill()) == [b"b"]


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_whoever_hears_of_a_failure_finds_the_state_rebuilt(kind: str) -> None:
    """ST17, ST4: what it then appends builds on the state that holds."""
    log, disk = begun(Faulty(kind, name="log-*"))  # type: ignore[arg-type]
    heard: list[str] = []
    log.on_failure = lambda void: heard.append("rebuilt")

    def refused(failure: CommitFailed | None) -> None:
        heard.append("failed" if failure else "acked")
        log.append(b"next", needs_sync=True)

    log.when_synced(log.append(b"a", needs_sync=True), refused)
    await until(lambda: len(heard) == 2)
    assert heard == ["rebuilt", "failed"]
    await until(lambda: log.written == log.end)
    assert payloads(disk.kill()) == [b"next"]


async def test_what_was_written_is_acked_though_the_log_fails_before_its_turn_comes() -> None:
    """ST17, ST4: it is kept, so its writer must not be told that it failed."""
    log, disk = begun()
    log.append(b"a", needs_sync=False)
    first = write_of(log)
    log.flush()
    disk.hooks.append(Faulty("write", name="log-*"))
    log.append(b"b", needs_sync=False)
    second = write_of(log)
    log.flush()
    assert [await outcome(first), await outcome(second)] == ["acked", "failed"]
    assert text(disk.kill()) == b"a"


async def test_one_who_breaks_down_when_called_back_keeps_nobody_else_from_hearing() -> None:
    """G15"""
    log, _ = begun()
    end = log.append(b"a", needs_sync=True)

    def broken(failure: CommitFailed | None) -> None:
        raise RuntimeError("broken on purpose")

    log.when_written(broken)
    log.when_synced(end, broken)
    waits = [write_of(log), sync_of(log)]
    await until(lambda: all(wait.done() for wait in waits))
    assert [await outcome(wait) for wait in waits] == ["acked", "acked"]


SENT_MAX = 2000  # more than any test needs


class Pipelining:
    """Someone who appends the next frame within the ack of the one before, some of them at a time."""

    def __init__(self, log: Wal, name: bytes, needs_sync: bool, in_flight: int) -> None:
        self._log, self._name, self._needs_sync = log, name, needs_sync
        self.sent: list[bytes] = []
        self.acked: list[bytes] = []
        self.is_over = False
        for _ in range(in_flight):
            self._send()

    def _send(self) -> None:
        payload = b"%b%d" % (self._name, len(self.sent))
        self.sent.append(payload)
        end = self._log.append(payload, self._needs_sync)
        if self._needs_sync:
            self._log.when_synced(end, partial(self._heard, payload))
        else:
            self._log.when_written(partial(self._heard, payload))

    def _heard(self, payload: bytes, failure: CommitFailed | None) -> None:
        if failure is None:
            self.acked.append(payload)
        if not self.is_over and len(self.sent) < SENT_MAX:
            self._send()


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("in_flight", [1, 2, 5])
async def test_whatever_is_appended_within_an_ack_is_where_it_was_encoded_for(in_flight: int, flushes: bool) -> None:
    """ST17, ST2, G1: rolls fall between, and others flush; whatever was acked is replayed."""
    log, disk = begun()
    clients = [Pipelining(log, b"w", False, in_flight), Pipelining(log, b"s", True, in_flight)]
    for rolls in range(1, 12):
        rolling = asyncio.ensure_future(log.roll())
        await until(lambda rolling=rolling: rolling.done() or (flushes and log.flush()))  # type: ignore[misc]
        assert (await rolling, log.counters.rotations) == (frames.position_of(1 + rolls, FIRST_FRAME), rolls)
        replayed = payloads(disk.kill())
        for client in clients:
            own = [payload for payload in replayed if payload.startswith(client._name)]
            assert own == client.sent[: len(own)], "a frame is missing, or another one is in its place"
            assert len(own) >= len(client.acked), "what was acked is not there"
    for client in clients:
        client.is_over = True
        assert len(client.acked) > 11


@pytest.mark.parametrize("kind", ["write", "sync", "create"])
async def test_whatever_is_appended_within_a_refusal_is_where_it_was_encoded_for(kind: str) -> None:
    """ST17, ST4, G1: the disk fails at each of the operations in turn, and rolls go on."""
    for at in range(12):
        log, disk = begun()
        clients = [Pipelining(log, b"w", False, 3), Pipelining(log, b"s", True, 3)]
        disk.hooks.append(Faulty(kind, at, name="log-*"))  # type: ignore[arg-type]
        for _ in range(4):
            rolling = asyncio.ensure_future(log.roll())
            await until(rolling.done)
            rolling.exception()
        replayed = text(disk.kill())
        assert not log.is_read_only
        for client in clients:
            client.is_over = True
            assert all(payload in replayed for payload in client.acked), f"{kind} {at}"


async def test_what_was_replayed_stays_even_if_an_earlier_process_failed_to_sync_it() -> None:
    """ST8, G4: a sync that says nothing of bytes that failed before must not be trusted with them (as on Linux)."""
    log, disk = begun()
    await synced(log, b"a")
    log.append(b"b", needs_sync=False)
    await write_of(log)
    disk.hooks.append(Faulty("sync", name="log-*"))
    with pytest.raises(OSError):
        disk.open(name_of(1)).sync()
    after = disk.kill()
    replay = Replay(after, START)
    assert b"".join([frame.payload for frame in replay.read()]) == b"ab"
    replay.repair()
    assert text(after.power_loss("lost")) == b"ab"


async def test_a_log_that_failed_twice_while_it_rolled_goes_on_and_misses_no_file() -> None:
    """ST4, HM7: the file that it was about to go on in was taken away by itself, not by somebody else."""
    clock, disk = ManualClock(), MemoryDisk()
    log = Wal(disk, clock)
    log.begin(1, b"", 0)
    log.append(b"a", needs_sync=False)
    await write_of(log)
    disk.hooks.append(Faulty("sync", at=2, times=2, name="log-*"))  # of the old file to its end, and of the fresh file
    with pytest.raises(CommitFailed):
        await log.roll()
    assert log.is_read_only
    clock.advance(1001)
    log.attend()
    assert log.obstacle() is None
    await synced(log, b"b")
    assert text(disk.kill()) == b"ab"


async def test_whoever_waits_for_less_hears_first_though_he_came_later() -> None:
    """ST4, ER7: else the log could fail before he hears, and refuse what it keeps."""
    log, disk = begun()
    disk.hold_syncs()
    low = log.append(b"a", needs_sync=True)
    await until(lambda: disk.held_syncs == 1)
    high = log.append(b"b", needs_sync=True)
    heard: list[str] = []
    log.when_synced(high, lambda failure: heard.append("failed" if failure else "high"))
    log.append(b"c", needs_sync=False, depends_on=low)
    log.when_synced(low, lambda failure: heard.append("failed" if failure else "low"))
    await write_of(log)
    disk.hooks.append(Faulty("sync", at=1, name="log-*"))
    disk.release_syncs()
    await until(lambda: len(heard) == 2)
    assert heard == ["low", "failed"]
    assert text(disk.kill()) == b"ac"
