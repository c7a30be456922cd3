"""The filesystem seam: one table of behaviour for every Disk, then what only a real one can show."""

import asyncio
import errno
import fcntl
import os
import resource
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.storage.outside import LOOPS, descriptors, python, run
from topics.errors import DirectoryLocked, UnusableDirectory
from topics.storage.disk import LOCK_NAME, Disk, RealDisk
from topics.storage.reserve import KEPT_FOR_FILES, KEPT_FOR_RELEASE, RESERVE_BYTES, RESERVE_NAME
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S

DISKS = ["memory", "process", "kernel"]


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk: Disk = MemoryDisk() if request.param == "memory" else RealDisk(tmp_path / "data", sync=request.param)
    yield disk
    disk.close()


@pytest.fixture(params=["process", "kernel"])
def real_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(tmp_path / "data", sync=request.param)
    yield disk
    disk.close()


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user may enter; tmp_path is its owner's only."""
    directory = Path(tempfile.mkdtemp(prefix="topics-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def tree(directory: Path) -> list[tuple[str, int, int, int]]:
    return sorted(
        (str(path), path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in [directory, *directory.rglob("*")]
    )


# Every Disk.


def test_a_file_gives_back_what_was_written(disk: Disk) -> None:
    file = disk.create("a")
    file.write(0, b"hello")
    file.write(5, bytearray(b" world"))
    file.write(0, memoryview(b"J"))
    file.write(11, b"")
    assert file.read(0, 100) == b"Jello world"
    assert file.read(6, 3) == b"wor"
    assert file.read(11, 1) == b"" and file.read(50, 1) == b""
    assert file.size() == 11


def test_a_write_past_the_end_leaves_zeros(disk: Disk) -> None:
    file = disk.create("a")
    file.write(3, b"x")
    assert file.read(0, 10) == b"\0\0\0x"


def test_a_new_file_must_be_new_and_an_opened_one_must_be_there(disk: Disk) -> None:
    disk.create("a")
    with pytest.raises(FileExistsError):
        disk.create("a")
    with pytest.raises(FileNotFoundError):
        disk.open("b")
    with pytest.raises(FileNotFoundError):
        disk.remove("b")
    with pytest.raises(FileNotFoundError):
        disk.rename("b", "c")
    assert disk.names() == ["a"]


def test_names_are_sorted_and_leave_the_lock_out(disk: Disk) -> None:
    disk.lock()
    for name in ("b", "a", "c-1"):
        disk.create(name)
    assert disk.names() == ["a", "b", "c-1"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b", LOCK_NAME])
def test_a_name_that_leads_elsewhere_is_refused(disk: Disk, name: str) -> None:
    disk.create("a")
    for attempt in (disk.create, disk.open, disk.remove, lambda n: disk.rename("a", n)):
        with pytest.raises(ValueError):
            attempt(name)
    assert disk.names() == ["a"]


def test_rename_replaces_and_open_files_follow(disk: Disk) -> None:
    old, new = disk.create("a"), disk.create("a.new")
    old.write(0, b"old")
    new.write(0, b"new")
    disk.rename("a.new", "a")
    assert disk.names() == ["a"]
    assert disk.open("a").read(0, 9) == b"new"
    assert old.read(0, 9) == b"old"
    new.write(0, b"NEW")
    assert disk.open("a").read(0, 9) == b"NEW"


def test_a_removed_file_can_be_read_until_it_is_closed(disk: Disk) -> None:
    file = disk.create("a")
    file.write(0, b"x")
    disk.remove("a")
    assert disk.names() == []
    assert file.read(0, 1) == b"x"


def test_a_file_opened_to_read_cannot_be_changed(disk: Disk) -> None:
    disk.create("a").write(0, b"x")
    file = disk.open("a", writable=False)
    with pytest.raises(OSError):
        file.write(0, b"y")
    assert file.read(0, 9) == b"x"


def test_a_closed_file_answers_with_an_error_that_names_it(disk: Disk) -> None:
    file = disk.create("a")
    file.close()
    file.close()
    for attempt in (
        lambda: file.read(0, 1),
        lambda: file.write(0, b"x"),
        file.sync,
        file.size,
        file.map,
    ):
        with pytest.raises(OSError) as caught:
            attempt()
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "a")


def test_a_map_shows_later_writes_and_outlives_the_file(disk: Disk) -> None:
    """DL9: a delete flag is one byte written into a mapped segment."""
    file = disk.create("a")
    file.write(0, b"abc")
    mapped = file.map()
    file.write(1, b"B")
    file.write(2, b"Cdef")
    assert bytes(mapped) == b"aBC"
    assert mapped.readonly
    file.close()
    disk.open("a").write(0, b"A")
    disk.remove("a")
    assert bytes(mapped) == b"ABC"


def test_an_empty_file_has_an_empty_map(disk: Disk) -> None:
    assert bytes(disk.create("a").map()) == b""


def test_a_directory_has_one_holder(disk: Disk) -> None:
    """ST11."""
    disk.lock()
    with pytest.raises(DirectoryLocked):
        disk.lock()
    disk.unlock()
    disk.unlock()
    disk.lock()


def test_work_runs_in_the_order_of_the_calls_and_gives_its_result_or_error(disk: Disk) -> None:
    order: list[int] = []

    def work(n: int) -> int:
        order.append(n)
        return n if n != 3 else 1 // 0

    async def main() -> list[Any]:
        return await asyncio.gather(*(disk.run(partial(work, n)) for n in range(5)), return_exceptions=True)

    results = run(main())
    assert order == [0, 1, 2, 3, 4]
    assert [r for r in results if not isinstance(r, Exception)] == [0, 1, 2, 4]
    assert isinstance(results[3], ZeroDivisionError)


def test_work_and_syncs_happen_even_if_the_caller_is_cancelled(disk: Disk) -> None:
    """G15: a cancelled request leaves no work half queued."""
    done: list[str] = []

    async def main() -> None:
        first = asyncio.ensure_future(disk.run(lambda: done.append("first")))
        second = asyncio.ensure_future(disk.run(lambda: done.append("second")))
        sync = asyncio.ensure_future(disk.sync(disk.create("a")))
        await asyncio.sleep(0)
        for task in (first, second, sync):
            task.cancel()
        await asyncio.gather(first, second, sync, return_exceptions=True)
        await disk.run(lambda: done.append("third"))
        await disk.sync(disk.open("a"))

    run(main())
    assert done == ["first", "second", "third"]


@pytest.mark.parametrize("loop", LOOPS)
def test_syncs_of_many_files_at_once_all_end(disk: Disk, loop: str) -> None:
    """G15."""

    async def main() -> None:
        files = [disk.create(f"f{n}") for n in range(10)]
        for file in files:
            file.write(0, b"x")
        await asyncio.gather(*(disk.sync(file) for file in files * 3))
        disk.sync_directory()

    run(main(), loop)


def test_a_file_may_be_closed_while_its_sync_runs(disk: Disk) -> None:
    async def main() -> None:
        files = [disk.create(f"f{n}") for n in range(10)]
        syncs = [asyncio.ensure_future(disk.sync(file)) for file in files]
        await asyncio.sleep(0)
        for file in files:
            file.close()
        await asyncio.gather(*syncs)

    run(main())


def test_a_sync_of_a_closed_file_is_an_error(disk: Disk) -> None:
    async def main() -> None:
        file = disk.create("a")
        file.close()
        with pytest.raises(OSError):
            await disk.sync(file)

    run(main())


def test_one_disk_serves_event_loops_in_sequence(disk: Disk) -> None:
    file = disk.create("a")
    for loop in ("asyncio", "uvloop", "asyncio"):
        run(disk.sync(file), loop)
        assert run(disk.run(lambda: 7), loop) == 7


def test_a_closed_disk_does_no_more_and_closes_twice(disk: Disk) -> None:
    file = disk.create("a")
    disk.close()
    disk.close()
    for attempt in (disk.names, disk.sync_directory, lambda: disk.create("b"), lambda: disk.open("a")):
        with pytest.raises(OSError):
            attempt()
    with pytest.raises(OSError):
        run(disk.sync(file))
    with pytest.raises(OSError):
        run(disk.run(lambda: None))
    file.write(0, b"x")
    assert file.read(0, 1) == b"x"


# A real directory.


def test_the_directory_and_its_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """ST13, whatever the umask allows."""
    before = os.umask(0)
    try:
        disk = RealDisk(tmp_path / "above" / "data")
        disk.lock()
        disk.create("a")
        disk.rename("a", "b")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "above").rglob("*")}
    assert modes == {"data": 0o700, LOCK_NAME: 0o600, "b": 0o600}
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o700
    disk.close()


def test_opening_creates_nothing_but_the_directory(tmp_path: Path) -> None:
    RealDisk(tmp_path / "data").close()
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_a_directory_among_the_files_is_not_a_file(tmp_path: Path) -> None:
    """`lost+found`, when a file system is mounted as the data directory."""
    (tmp_path / "lost+found").mkdir()
    disk = RealDisk(tmp_path)
    assert disk.names() == []
    disk.close()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(UnusableDirectory, match=f"{path}.*not a directory.*TOPICS_DATA_DIR"):
        RealDisk(path)
    with pytest.raises(UnusableDirectory, match=f"{path}/below.*: {path}: it is not a directory"):
        RealDisk(path / "below" / "data")
    assert tree(tmp_path) == before


def test_a_missing_directory_is_refused_when_it_may_not_be_created(tmp_path: Path) -> None:
    with pytest.raises(UnusableDirectory, match="does not exist"):
        RealDisk(tmp_path / "data", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_opening_takes_back_the_directories_it_made(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnusableDirectory, match="File name too long"):
        RealDisk(tmp_path / "a" / "b" / ("c" * 300))
    assert sorted(tmp_path.rglob("*")) == before


OPEN_AND_LOCK = """
import os, sys
from topics.errors import TopicsError
from topics.storage.disk import RealDisk
path, is_dropped, create = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
if is_dropped and os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    disk = RealDisk(path, create=create)
    print("opened", disk.names())
    disk.lock()
    print("locked")
except TopicsError as error:
    print(type(error).__name__, error)
"""


def open_and_lock(
    path: Path, *, is_dropped: bool = False, create: bool = True, launcher: tuple[str, ...] = ()
) -> list[str]:
    with python(OPEN_AND_LOCK, path, is_dropped, create, launcher=launcher) as process:
        return process.communicate(timeout=PATIENCE_S)[0].splitlines()


def test_a_directory_without_permission_is_refused(public_directory: Path) -> None:
    data = public_directory / "data"
    data.mkdir()
    (data / "log-1").write_bytes(b"x")
    data.chmod(0o555)
    before = tree(public_directory)
    (refusal,) = open_and_lock(data, is_dropped=True)
    assert refusal.startswith(f"UnusableDirectory cannot use data directory {data}: user ")
    assert "may not read and write it; give it to that user (chown -R)" in refusal
    assert tree(public_directory) == before


def test_a_directory_that_may_not_be_created_is_refused(public_directory: Path) -> None:
    public_directory.chmod(0o555)
    (refusal,) = open_and_lock(public_directory / "data", is_dropped=True)
    assert "UnusableDirectory" in refusal and "may not read and write it" in refusal
    assert list(public_directory.iterdir()) == []


def test_a_reader_needs_no_right_to_write_until_it_locks(public_directory: Path) -> None:
    (public_directory / "seg-1").write_bytes(b"x")
    public_directory.chmod(0o555)
    opened, refused = open_and_lock(public_directory, is_dropped=True, create=False)
    assert opened == "opened ['seg-1']"
    assert refused.startswith("UnusableDirectory")


def test_a_read_only_file_system_is_refused(public_directory: Path) -> None:
    script = 'mount -t tmpfs none "$1" && mkdir "$1/data" && mount -o remount,ro "$1" && shift && exec "$@"'
    launcher = ("unshare", "-rm", "sh", "-c", script, "sh", str(public_directory))
    if subprocess.run([*launcher, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    for path in (public_directory / "data", public_directory / "other"):
        (refusal,) = open_and_lock(path, launcher=launcher)
        assert f"data directory {path}: it lies on a read-only file system; mount that writable" in refusal


def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """ST11."""
    disk = RealDisk(tmp_path)
    disk.lock()
    disk.create("log-1").write(0, b"x")
    before = tree(tmp_path)
    opened, refused = open_and_lock(tmp_path)
    assert opened == "opened ['log-1']"
    assert refused.startswith(f"DirectoryLocked data directory {tmp_path} is in use by another server")
    assert f"(process {os.getpid()})" in refused
    assert tree(tmp_path) == before
    disk.close()
    assert open_and_lock(tmp_path)[-1] == "locked"


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    """ST11: the lock is the kernel's, not the file's existence."""
    holder = "import sys; from topics.storage.disk import RealDisk; d = RealDisk(sys.argv[1]); d.lock(); print(1)"
    with python(holder + "; sys.stdout.flush(); sys.stdin.read()", tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert open_and_lock(tmp_path)[-1].startswith("DirectoryLocked")
        process.kill()
        process.wait()
        assert open_and_lock(tmp_path)[-1] == "locked"


def test_the_helper_does_not_hold_the_lock(helped: RealDisk) -> None:
    """ST11: a helper that lingers must not keep the next server out."""
    helped.lock()
    run(helped.sync(helped.create("a")))
    helped.unlock()
    other = RealDisk(helped.path)
    other.lock()
    other.close()


def test_a_short_write_is_carried_on_and_ends_as_an_error(real_disk: RealDisk) -> None:
    """ST4: a write is complete, or it is an OSError."""
    file = real_disk.create("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            file.write(0, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, "a")
    assert file.size() == 1000


def test_a_failed_sync_is_an_error_that_names_the_file(real_disk: RealDisk) -> None:
    """ST4. A fifo cannot be synced: the kernel refuses it."""
    os.mkfifo(Path(real_disk.path) / "fifo", 0o600)
    fifo, file = real_disk.open("fifo"), real_disk.create("a")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                await real_disk.sync(fifo)
            assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "fifo")
            await real_disk.sync(file)
        results = await asyncio.gather(*(real_disk.sync(f) for f in (fifo, fifo, file)), return_exceptions=True)
        assert [isinstance(result, OSError) for result in results] == [True, True, False]

    run(main())


def test_work_is_off_the_event_loop_and_on_one_thread(real_disk: RealDisk) -> None:
    async def main() -> set[int]:
        return {await real_disk.run(threading.get_ident) for _ in range(3)}

    threads = run(main())
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_work_that_waits_for_the_thread_is_done_even_if_the_caller_is_cancelled(real_disk: RealDisk) -> None:
    """G15."""
    may_end = threading.Event()
    done: list[str] = []

    async def main() -> None:
        first = asyncio.ensure_future(real_disk.run(may_end.wait))
        second = asyncio.ensure_future(real_disk.run(lambda: done.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        may_end.set()
        assert await first
        await real_disk.run(lambda: done.append("third"))

    run(main())
    assert done == ["second", "third"]


def test_closing_the_disk_lets_work_end_that_was_given_before(real_disk: RealDisk) -> None:
    async def main() -> None:
        created = asyncio.ensure_future(real_disk.run(lambda: real_disk.create("a")))
        await asyncio.sleep(0)
        real_disk.close()
        await created

    run(main())
    assert (Path(real_disk.path) / "a").exists()


def test_nothing_stays_open_after_close(tmp_path: Path) -> None:
    run(asyncio.sleep(0))
    before, threads = descriptors(), set(threading.enumerate())
    modes: tuple[Literal["process"], Literal["kernel"]] = ("process", "kernel")
    for mode in modes:
        disk = RealDisk(tmp_path, sync=mode)
        disk.lock()
        file = disk.create(mode)
        file.write(0, b"x")
        mapped = file.map()
        run(disk.sync(file))
        file.close()
        disk.close()
        assert bytes(mapped) == b"x"
        del mapped
    assert descriptors() == before
    assert set(threading.enumerate()) <= threads


def test_the_boot_id_is_that_of_the_machine(helped: RealDisk) -> None:
    """DU10 tells a kill from a power loss by it."""
    assert helped.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_lock_is_one_that_other_programs_can_see(helped: RealDisk) -> None:
    """ST11: flock on the file `lock`, so that a backup script can take it, too."""
    helped.lock()
    with open(Path(helped.path) / LOCK_NAME) as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_reserve_that_is_used_while_it_is_made_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ST16: by another thread; whoever makes it is told that the disk is full, and tries again."""
    disk = RealDisk(tmp_path)
    disk.set_space_aside()
    looks, look = count(), os.fstat

    def looked(descriptor: int) -> os.stat_result:
        if next(looks) == 1:
            disk.use_reserved_space()
            os.ftruncate(descriptor, 0)
        return look(descriptor)

    monkeypatch.setattr(os, "fstat", looked)
    with pytest.raises(OSError, match="space"):
        disk.set_space_aside()
    monkeypatch.undo()
    disk.set_space_aside()
    disk.close()


def test_the_reserve_is_used_in_steps_and_made_again(tmp_path: Path) -> None:
    """ST16: no use of it leaves nothing for the next, unless it may have all."""
    disk, reserve = RealDisk(tmp_path), tmp_path / RESERVE_NAME
    disk.set_space_aside()
    assert reserve.stat().st_size == RESERVE_BYTES
    assert disk.use_reserved_space(KEPT_FOR_FILES)
    assert not disk.use_reserved_space(KEPT_FOR_FILES)
    assert disk.use_reserved_space(KEPT_FOR_RELEASE)
    assert reserve.stat().st_size == KEPT_FOR_RELEASE
    disk.set_space_aside()
    assert reserve.stat().st_size == RESERVE_BYTES
    assert disk.use_reserved_space()
    assert not disk.use_reserved_space()
    assert not reserve.exists()
    disk.close()


def test_of_a_reserve_that_does_not_fit_a_part_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ST16"""

    def allocate(descriptor: int, offset: int, size: int) -> None:
        if size > RESERVE_BYTES // 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    disk = RealDisk(tmp_path)
    with pytest.raises(OSError, match="No space"):
        disk.set_space_aside()
    assert (tmp_path / RESERVE_NAME).stat().st_size == RESERVE_BYTES // 4
    disk.close()
