"""The hostile disk itself: what survives what, and that faults strike where they are told to."""

import asyncio
import errno
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.clock import Clock
from topics.errors import DirectoryLocked
from topics.storage.disk import Disk
from topics.testing.clock import ManualClock
from topics.testing.disk import (
    SECTOR_BYTES,
    CrashAt,
    Crashed,
    Faulty,
    Hook,
    MemoryDisk,
    Operation,
    OrderMonitor,
    Rule,
    crash_points,
    entry_before_sync,
    installed_before_remove,
    successor_before_remove,
    synced_before_rename,
)

Files = dict[str, bytes]


def outcomes(disk: MemoryDisk) -> list[Files]:
    """Every distinct directory that a power loss can leave."""
    found: list[Files] = []
    for after in disk.power_losses():
        if after.files() not in found:
            found.append(after.files())
    return found


def contents(disk: MemoryDisk, name: str = "a") -> set[bytes]:
    return {files[name] for files in outcomes(disk)}


# What survives what.


def nothing(disk: Disk) -> None:
    pass


def write(disk: Disk) -> None:
    disk.open("a").write(3, b"new")


def write_and_sync(disk: Disk) -> None:
    write(disk)
    disk.open("a").sync()


def sync_and_write(disk: Disk) -> None:
    disk.open("a").sync()
    write(disk)


def truncate(disk: Disk) -> None:
    disk.open("a").truncate(1)


def truncate_and_sync(disk: Disk) -> None:
    truncate(disk)
    disk.open("a").sync()


def create(disk: Disk) -> None:
    disk.create("b")


def create_and_sync_the_file(disk: Disk) -> None:
    file = disk.create("b")
    file.write(0, b"B")
    file.sync()


def create_and_sync_the_directory(disk: Disk) -> None:
    disk.create("b").write(0, b"B")
    disk.sync_directory()


def create_and_sync_both(disk: Disk) -> None:
    create_and_sync_the_file(disk)
    disk.sync_directory()


def rename(disk: Disk) -> None:
    disk.rename("a", "b")


def rename_and_sync(disk: Disk) -> None:
    disk.rename("a", "b")
    disk.sync_directory()


def remove(disk: Disk) -> None:
    disk.remove("a")


def remove_and_sync(disk: Disk) -> None:
    disk.remove("a")
    disk.sync_directory()


@pytest.mark.parametrize(
    ("steps", "after_kill", "after_power_loss"),
    [
        (nothing, {"a": b"old"}, {"a": b"old"}),
        (write, {"a": b"oldnew"}, {"a": b"old"}),
        (write_and_sync, {"a": b"oldnew"}, {"a": b"oldnew"}),
        (sync_and_write, {"a": b"oldnew"}, {"a": b"old"}),
        (truncate, {"a": b"o"}, {"a": b"old"}),
        (truncate_and_sync, {"a": b"o"}, {"a": b"o"}),
        (create, {"a": b"old", "b": b""}, {"a": b"old"}),
        (create_and_sync_the_file, {"a": b"old", "b": b"B"}, {"a": b"old"}),
        (create_and_sync_the_directory, {"a": b"old", "b": b"B"}, {"a": b"old", "b": b""}),
        (create_and_sync_both, {"a": b"old", "b": b"B"}, {"a": b"old", "b": b"B"}),
        (rename, {"b": b"old"}, {"a": b"old"}),
        (rename_and_sync, {"b": b"old"}, {"b": b"old"}),
        (remove, {}, {"a": b"old"}),
        (remove_and_sync, {}, {}),
    ],
)
def test_a_kill_keeps_what_was_written_and_a_power_loss_what_was_synced(
    steps: Callable[[Disk], None], after_kill: Files, after_power_loss: Files
) -> None:
    """DU3, DU4, ST5: the two crashes that the classes tell apart."""
    disk = MemoryDisk({"a": b"old"})
    steps(disk)
    assert disk.files() == after_kill
    assert disk.kill().files() == after_kill
    assert disk.power_loss("lost").files() == after_power_loss
    assert disk.power_loss("kept").files() == after_kill
    assert disk.kill().power_loss("lost").files() == after_power_loss, "a kill syncs nothing"
    assert disk.power_loss("lost").power_loss("lost").files() == after_power_loss, "what survived is durable"


def test_the_next_process_finds_no_lock_and_tells_a_kill_from_a_power_loss() -> None:
    """DU10, ST11."""
    disk = MemoryDisk()
    disk.lock()
    with pytest.raises(DirectoryLocked):
        disk.lock()
    killed, lost = disk.kill(), disk.power_loss("lost")
    killed.lock()
    lost.lock()
    assert killed.boot_id == disk.boot_id != lost.boot_id
    assert lost.power_loss("lost").boot_id not in (disk.boot_id, lost.boot_id)


def test_disks_derived_from_one_moment_do_not_share_bytes() -> None:
    disk = MemoryDisk({"a": b"old"})
    write(disk)
    killed = disk.kill()
    disk.open("a").write(0, b"OLD")
    killed.open("a").sync()
    assert killed.files() == killed.power_loss("lost").files() == {"a": b"oldnew"}
    assert disk.files() == {"a": b"OLDnew"}
    assert disk.power_loss("lost").files() == {"a": b"old"}


def test_a_power_loss_leaves_any_size_between_and_bytes_or_zeros() -> None:
    """G5: the tail of a log after a power loss."""
    disk = MemoryDisk({"a": b""})
    disk.open("a").write(0, b"abc")
    assert contents(disk) == {b"", b"\0\0", b"ab", b"\0\0\0", b"abc"}


def test_writes_to_one_sector_survive_in_order() -> None:
    disk = MemoryDisk({"a": b"----"})
    for offset, data in ((0, b"1"), (1, b"2"), (0, b"3")):
        disk.open("a").write(offset, data)
    assert contents(disk) == {b"----", b"1---", b"12--", b"32--"}


def test_sectors_survive_in_any_order() -> None:
    """G2: a later frame may survive an earlier one that is lost; recovery must not believe it."""
    disk = MemoryDisk({"a": bytes(1024)})
    disk.open("a").write(510, b"1234")
    halves = {(content[510:512], content[512:514]) for content in contents(disk)}
    assert halves == {(one, two) for one in (b"\0\0", b"12") for two in (b"\0\0", b"34")}


def test_a_truncate_may_be_lost_and_what_it_cut_may_be_zeroed() -> None:
    disk = MemoryDisk({"a": b"abcd"})
    truncate(disk)
    assert contents(disk) == {b"abcd", b"a\0\0\0", b"a"}


def test_unsynced_directory_operations_on_different_names_are_lost_or_kept_independently() -> None:
    disk = MemoryDisk({"a": b"", "b": b""})
    disk.remove("a")
    disk.create("c")
    disk.rename("b", "d")
    found = {"".join(files) for files in outcomes(disk)}
    assert found == {"ab", "b", "ad", "d", "abc", "bc", "acd", "cd"}


def test_unsynced_directory_operations_on_one_name_are_kept_in_order() -> None:
    disk = MemoryDisk({"a": b"old"})
    disk.rename("a", "b")
    disk.create("a")
    disk.rename("a", "c")
    found = outcomes(disk)
    assert len(found) == 4
    for files in ({"a": b"old"}, {"b": b"old"}, {"a": b"", "b": b"old"}, {"b": b"old", "c": b""}):
        assert files in found


def test_a_rename_into_place_is_atomic_but_without_a_sync_may_show_an_empty_file() -> None:
    """G6: why a snapshot is synced before it is installed."""
    disk = MemoryDisk({"a": b"old"})
    file = disk.create("tmp")
    file.write(0, b"new")
    disk.rename("tmp", "a")
    assert contents(disk) >= {b"old", b"", b"new"}
    file.sync()
    assert contents(disk) == {b"old", b"new"}
    disk.sync_directory()
    assert outcomes(disk) == [{"a": b"new"}]


def test_a_seeded_power_loss_is_repeatable_and_one_of_the_possible_ones() -> None:
    disk = MemoryDisk({"a": bytes(600)})
    disk.open("a").write(500, b"x" * 30)
    disk.remove("a")
    possible = outcomes(disk)
    for seed in range(20):
        after = disk.power_loss(random.Random(seed)).files()
        assert after in possible
        assert after == disk.power_loss(random.Random(seed)).files()
    assert {name for name, _ in disk.aftermaths()} >= {"kill", "power loss, torn", "power loss, seed 0"}


def test_too_many_outcomes_are_an_error_and_not_a_silent_sample() -> None:
    disk = MemoryDisk({"a": b""})
    disk.open("a").write(0, bytes(100_000))
    with pytest.raises(ValueError, match="more than 50"):
        list(disk.power_losses(limit=50))


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 700)),
    st.tuples(st.just("overwrite"), st.integers(0, 700)),
    st.tuples(st.just("truncate"), st.integers(0, 1500)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("failed sync"), st.just(0)),
)


@given(st.lists(STEPS, max_size=12), st.integers(0, 2**32))
def test_no_power_loss_invents_bytes_or_touches_what_was_synced_and_left_alone(
    steps: list[tuple[str, int]], seed: int
) -> None:
    """G2. Every byte after the loss is one that stood there since the last good sync, or a zero where it grew."""
    disk = MemoryDisk({"a": b"start"})
    file = disk.open("a")
    possible: list[set[int]] = [{byte} for byte in b"start"]
    for number, (kind, size) in enumerate(steps, 1):
        if kind in ("append", "overwrite"):
            offset = file.size() if kind == "append" else size
            file.write(offset, bytes([number]) * max(size, 1))
        elif kind == "truncate":
            file.truncate(size)
        elif kind == "sync":
            file.sync()
        else:
            disk.hooks.append(Faulty("sync"))
            with pytest.raises(OSError):
                file.sync()
            disk.hooks.clear()
        now = file.read(0, file.size())
        is_all_durable = disk.is_synced("a")
        possible += [{0} for _ in range(len(now) - len(possible))]
        for at, seen in enumerate(possible):
            byte = now[at] if at < len(now) else 0
            possible[at] = {byte} if is_all_durable else seen | {byte}
    for after in (disk.power_loss(random.Random(seed)), disk.power_loss("torn"), disk.power_loss("lost")):
        content = after.files()["a"]
        assert all(byte in possible[at] for at, byte in enumerate(content))
        if disk.is_synced("a"):
            assert content == disk.files()["a"]
    assert disk.power_loss("kept").files() == disk.kill().files() == disk.files()


# Syncs.


def test_a_held_sync_covers_only_what_was_written_before_it() -> None:
    """G13: bytes written while a sync runs are not covered by it."""

    async def main() -> None:
        disk = MemoryDisk({"a": b""})
        file = disk.open("a")
        disk.hold_syncs()
        file.write(0, b"one")
        first = asyncio.ensure_future(disk.sync(file))
        await asyncio.sleep(0)
        file.write(3, b"two")
        second = asyncio.ensure_future(disk.sync(file))
        await asyncio.sleep(0)
        assert disk.held_syncs == 2
        assert disk.power_loss("lost").files() == {"a": b""}
        disk.release_syncs(1)
        await first
        assert not second.done()
        assert disk.power_loss("lost").files() == {"a": b"one"}
        disk.release_syncs()
        await second
        assert disk.power_loss("lost").files() == {"a": b"onetwo"}
        file.write(0, b"ONE")
        await disk.sync(file)
        assert disk.power_loss("lost").files() == {"a": b"ONEtwo"}

    asyncio.run(main())


def test_other_tasks_run_while_a_sync_or_work_is_under_way() -> None:
    async def main() -> None:
        disk = MemoryDisk({"a": b""})
        for under_way in (disk.sync(disk.open("a")), disk.run(lambda: None)):
            order: list[str] = []
            asyncio.get_running_loop().call_soon(order.append, "other")
            await under_way
            order.append("done")
            assert order == ["other", "done"]

    asyncio.run(main())


def test_bytes_of_a_failed_sync_stay_in_doubt_until_they_are_written_again() -> None:
    """ST4: the next good sync does not save them."""
    disk = MemoryDisk({"a": b"----"}, hooks=[Faulty("sync")])
    file = disk.open("a")
    file.write(0, b"ab")
    with pytest.raises(OSError):
        file.sync()
    file.write(2, b"c")
    file.sync()
    assert file.read(0, 4) == b"abc-"
    assert disk.kill().files() == {"a": b"abc-"}
    assert not disk.is_synced("a")
    assert contents(disk) == {b"--c-", b"abc-"}
    file.write(0, b"a")
    file.sync()
    assert contents(disk) == {b"a-c-", b"abc-"}
    file.write(0, b"ab")
    file.sync()
    assert contents(disk) == {b"abc-"}


def test_a_tail_in_doubt_is_gone_for_good_once_it_is_cut_off() -> None:
    """ST4: one way to make sure that a failed batch is never replayed."""
    disk = MemoryDisk({"a": b"good"}, hooks=[Faulty("sync")])
    file = disk.open("a")
    file.write(4, b"bad")
    with pytest.raises(OSError):
        file.sync()
    file.truncate(4)
    file.sync()
    file.write(4, b"new")
    file.sync()
    assert contents(disk) == {b"goodnew"}


# Crashes.


def install(disk: Disk, version: bytes) -> None:
    """A snapshot put in place as it should be (ST7)."""
    for name in set(disk.names()) & {"tmp"}:
        disk.remove(name)
    file = disk.create("tmp")
    file.write(0, version)
    file.sync()
    disk.rename("tmp", "snapshot")
    disk.sync_directory()


def install_without_sync(disk: Disk, version: bytes) -> None:
    disk.create("tmp").write(0, version)
    disk.rename("tmp", "snapshot")
    disk.sync_directory()


def install_by_removing_first(disk: Disk, version: bytes) -> None:
    disk.remove("snapshot")
    file = disk.create("snapshot")
    disk.sync_directory()
    file.write(0, version)
    file.sync()


def sweep(steps: Callable[[Disk, bytes], None], seeds: Iterable[int] = range(5)) -> set[bytes | None]:
    """Crash at every operation, in every mode, and look what the snapshot is afterwards."""
    fine = MemoryDisk({"snapshot": b"old"})
    steps(fine, b"new")
    found: set[bytes | None] = set()
    for crash in crash_points(fine.operations):
        disk = MemoryDisk({"snapshot": b"old"}, hooks=[crash])
        with pytest.raises(Crashed):
            steps(disk, b"new")
        for _, after in disk.aftermaths(seeds):
            found.add(after.files().get("snapshot"))
    return found


def test_a_sweep_finds_one_snapshot_in_force_when_the_order_is_right() -> None:
    """G6."""
    assert sweep(install) == {b"old", b"new"}


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        (install_without_sync, {b"", b"n\0", b"n\0\0", b"\0\0\0", b"\0\0"}),
        (install_by_removing_first, {None, b""}),
    ],
)
def test_a_sweep_finds_a_wrong_order(steps: Callable[[Disk, bytes], None], wrong: set[bytes | None]) -> None:
    """G6: the disk is hostile enough to show the mistake."""
    assert sweep(steps) & wrong


def test_a_crashed_process_does_nothing_more() -> None:
    disk = MemoryDisk({"a": b"old"}, hooks=[CrashAt(1)])
    file = disk.open("a")
    file.write(0, b"1")
    for _ in range(2):
        for attempt in (
            lambda: file.write(0, b"2"),
            lambda: file.truncate(0),
            lambda: file.read(0, 1),
            file.sync,
            file.size,
            file.map,
            disk.sync_directory,
            disk.names,
            disk.lock,
            lambda: disk.create("b"),
            lambda: disk.open("a"),
            lambda: disk.rename("a", "b"),
            lambda: disk.remove("a"),
            lambda: asyncio.run(disk.sync(file)),
            lambda: asyncio.run(disk.run(lambda: None)),
        ):
            with pytest.raises(Crashed):
                attempt()
    file.close()
    disk.unlock()
    disk.close()
    assert disk.kill().files() == {"a": b"1ld"}


def test_no_handler_of_exceptions_survives_a_crash() -> None:
    disk = MemoryDisk(hooks=[CrashAt(0)])

    def careful() -> None:
        try:
            disk.create("a")
        except Exception:
            pytest.fail("the process went on")

    with pytest.raises(Crashed):
        careful()


def test_a_crash_reaches_whoever_awaits_the_disk() -> None:
    async def main() -> None:
        disk = MemoryDisk({"a": b""}, hooks=[CrashAt(0)])
        task = asyncio.ensure_future(disk.run(disk.sync_directory))
        with pytest.raises(Crashed):
            await task

    asyncio.run(main())


@pytest.mark.parametrize(
    ("crash", "content"),
    [
        (CrashAt(0, "before"), b"----------"),
        (CrashAt(0, "torn"), b"abcde-----"),
        (CrashAt(0, "torn", part=3), b"abc-------"),
        (CrashAt(0, "after"), b"abcdefghij"),
    ],
)
def test_a_crash_comes_before_inside_or_after_a_write(crash: CrashAt, content: bytes) -> None:
    disk = MemoryDisk({"a": b"----------"}, hooks=[crash])
    with pytest.raises(Crashed):
        disk.open("a").write(0, b"abcdefghij")
    assert disk.kill().files() == {"a": content}


def test_a_crash_tears_a_few_bytes_only_where_a_sector_ends() -> None:
    found = {}
    for offset in (0, SECTOR_BYTES - 3, SECTOR_BYTES - 1, SECTOR_BYTES):
        disk = MemoryDisk({"a": bytes(2 * SECTOR_BYTES)}, hooks=[CrashAt(0, "torn")])
        with pytest.raises(Crashed):
            disk.open("a").write(offset, b"ab")
        found[offset] = disk.kill().files()["a"].strip(b"\0")
    assert found == {0: b"", SECTOR_BYTES - 3: b"", SECTOR_BYTES - 1: b"a", SECTOR_BYTES: b""}


@pytest.mark.parametrize("mode", ["before", "torn", "after"])
def test_a_crash_at_a_sync_leaves_it_done_or_not(mode: str) -> None:
    disk = MemoryDisk({"a": b""}, hooks=[CrashAt(1, mode)])  # type: ignore[arg-type]
    file = disk.open("a")
    file.write(0, b"x")
    with pytest.raises(Crashed):
        file.sync()
    assert disk.power_loss("lost").files() == {"a": b"x" if mode == "after" else b""}


def test_the_sweep_stands_before_inside_and_after_every_operation() -> None:
    operations = [Operation("write", "a", 0, 10), Operation("write", "a", 0, 1), Operation("sync", "a")]
    assert [repr(crash) for crash in crash_points(operations)] == [
        "CrashAt(0, 'before')",
        "CrashAt(0, 'torn', part=1)",
        "CrashAt(0, 'torn', part=5)",
        "CrashAt(0, 'torn', part=9)",
        "CrashAt(0, 'after')",
        "CrashAt(1, 'before')",
        "CrashAt(1, 'after')",
        "CrashAt(2, 'before')",
        "CrashAt(2, 'after')",
    ]


def test_the_log_of_operations_says_what_was_done() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    file.write(5, b"xyz")
    file.truncate(6)
    file.sync()
    file.read(0, 5)
    disk.rename("a", "b")
    disk.sync_directory()
    disk.remove("b")
    assert disk.operations == [
        Operation("create", "a"),
        Operation("write", "a", offset=5, size=3),
        Operation("truncate", "a", size=6),
        Operation("sync", "a"),
        Operation("rename", "a", to="b"),
        Operation("sync_directory"),
        Operation("remove", "b"),
    ]


# Faults.


def write_five(disk: MemoryDisk) -> list[int]:
    """Write two bytes into each of five places; the errnos of those that failed, 0 for the others."""
    file = disk.open("a")
    results = []
    for n in range(5):
        try:
            file.write(n * 2, f"{n}{n}".encode())
            results.append(0)
        except OSError as error:
            results.append(error.errno or -1)
    return results


@pytest.mark.parametrize(
    ("fault", "results", "content"),
    [
        (Faulty("write", at=1), [0, errno.EIO, 0, 0, 0], b"00--223344"),
        (Faulty("write", at=1, times=2), [0, errno.EIO, errno.EIO, 0, 0], b"00----3344"),
        (Faulty("write", at=1, part=1), [0, errno.EIO, 0, 0, 0], b"001-223344"),
        (Faulty("write", at=1, part=9), [0, errno.EIO, 0, 0, 0], b"001-223344"),
        (Faulty("write", at=3, times=None, error=errno.ENOSPC), [0, 0, 0, errno.ENOSPC, errno.ENOSPC], b"001122----"),
        (Faulty("write", name="b*"), [0, 0, 0, 0, 0], b"0011223344"),
        (Faulty("sync"), [0, 0, 0, 0, 0], b"0011223344"),
    ],
)
def test_a_fault_strikes_the_operations_it_is_meant_for_and_the_process_goes_on(
    fault: Faulty, results: list[int], content: bytes
) -> None:
    """ST4."""
    disk = MemoryDisk({"a": b"----------"}, hooks=[fault])
    assert write_five(disk) == results
    assert disk.files() == {"a": content}
    assert fault.failed == sum(map(bool, results))


@pytest.mark.parametrize(
    ("kind", "attempt"),
    [
        ("create", lambda disk: disk.create("b")),
        ("rename", lambda disk: disk.rename("a", "b")),
        ("remove", lambda disk: disk.remove("a")),
        ("truncate", lambda disk: disk.open("a").truncate(0)),
        ("sync_directory", lambda disk: disk.sync_directory()),
    ],
)
def test_any_kind_of_operation_can_fail_and_then_has_done_nothing(
    kind: str, attempt: Callable[[MemoryDisk], object]
) -> None:
    disk = MemoryDisk({"a": b"old"}, hooks=[Faulty(kind)])  # type: ignore[arg-type]
    with pytest.raises(OSError):
        attempt(disk)
    assert disk.files() == disk.power_loss("lost").files() == {"a": b"old"}
    attempt(disk)


def test_hooks_compose_and_each_sees_every_operation() -> None:
    seen: list[Operation] = []
    hooks: list[Hook] = [Faulty("write", at=1), CrashAt(2), lambda _, operation: seen.append(operation)]
    disk = MemoryDisk({"a": b""}, hooks=hooks)
    file = disk.open("a")
    file.write(0, b"1")
    with pytest.raises(OSError):
        file.write(0, b"2")
    with pytest.raises(Crashed):
        file.write(0, b"3")
    assert seen == disk.operations and len(seen) == 3


# The order monitor.


def two_generations(disk: Disk, without: str = "") -> None:
    """A new snapshot and log replace the old ones, in the right order; or without one of the steps."""
    log = disk.create("log-2")
    if without != "first directory sync":
        disk.sync_directory()
    log.write(0, b"x")
    log.sync()
    snapshot = disk.create("tmp")
    snapshot.write(0, b"2")
    if without != "snapshot sync":
        snapshot.sync()
    if without != "rename":
        disk.rename("tmp", "snapshot-2")
    if without != "second directory sync":
        disk.sync_directory()
    disk.remove("snapshot-1")
    disk.remove("log-1")


SUCCESSOR = {"snapshot-1": "snapshot-2"}.get


@pytest.mark.parametrize(
    ("rule", "without", "complaint"),
    [
        (synced_before_rename("snapshot-*"), "snapshot sync", "tmp has unsynced bytes"),
        (installed_before_remove("snapshot-*"), "second directory sync", "not synced since snapshot-2 came"),
        (successor_before_remove(SUCCESSOR), "second directory sync", "successor snapshot-2 is not durable"),
        (successor_before_remove(SUCCESSOR), "snapshot sync", "successor snapshot-2 is not durable"),
        (successor_before_remove(SUCCESSOR), "rename", "successor snapshot-2 is not durable"),
        (entry_before_sync("log-*"), "first directory sync", "the directory was not synced since it came"),
    ],
)
def test_the_monitor_stops_an_operation_that_comes_too_early(rule: Rule, without: str, complaint: str) -> None:
    """ST5, ST7, G6."""
    start = {"snapshot-1": b"1", "log-1": b"x"}
    good = OrderMonitor([rule])
    disk = MemoryDisk(start, hooks=[good])
    two_generations(disk)
    good.check()
    assert disk.names() == ["log-2", "snapshot-2"]

    bad = OrderMonitor([rule])
    with pytest.raises(AssertionError, match=complaint):
        two_generations(MemoryDisk(start, hooks=[bad]), without)
    with pytest.raises(AssertionError, match=complaint):
        bad.check()


# The clock.


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1_000)
    as_clock: Clock = clock
    assert (as_clock.now_ms(), as_clock.monotonic()) == (1_000, 0.0)
    clock.advance(1_500)
    assert (clock.now_ms(), clock.monotonic()) == (2_500, 1.5)
    with pytest.raises(ValueError):
        clock.advance(-1)


@pytest.mark.parametrize("now_ms", [0, 9_999])
def test_a_step_of_the_wall_clock_leaves_durations_alone(now_ms: int) -> None:
    clock = ManualClock(now_ms=5_000)
    clock.advance(10)
    clock.set(now_ms)
    assert (clock.now_ms(), clock.monotonic()) == (now_ms, 0.01)
    clock.advance(1)
    assert (clock.now_ms(), clock.monotonic()) == (now_ms + 1, 0.011)


def test_a_wait_ends_when_its_future_is_done_or_the_time_is_over() -> None:
    async def main() -> None:
        clock, loop = ManualClock(), asyncio.get_running_loop()
        never, soon = loop.create_future(), loop.create_future()
        late, early = (asyncio.ensure_future(clock.wait(future, 100)) for future in (never, soon))
        await asyncio.sleep(0)
        assert clock.waits == 2
        soon.set_result(None)
        await early
        assert clock.waits == 1
        clock.advance(99)
        clock.set(0)
        await asyncio.sleep(0)
        assert not late.done()
        clock.advance(1)
        await late
        await clock.wait(never, 0)
        assert clock.waits == 0 and not never.done()

    asyncio.run(main())
