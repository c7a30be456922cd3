"""The filesystem seam: the only place where topics touches files.

A data directory is flat. A `Disk` is one such directory, a `File` one file in it, named relative to the directory. All
code above is written against these two protocols; `RealDisk` is the machine's file system, and `topics.testing.disk`
has a disk that fails on demand.

What a caller may rely on:

- Nothing is durable before its sync: bytes by the file's sync, names (create, rename, remove) by `sync_directory`.
- A write is complete or raises OSError, and so is a sync. After a failed sync the bytes written since the last good
  sync stay in doubt for ever: they can still be read, and a later good sync does not cover them.
- Whatever `run` and `sync` were given happens, even if the caller is cancelled.
- Only their owner may read or write the files (ST13).

This module does not know what is in the files.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Literal, Protocol, TypeVar

from topics.errors import DirectoryLocked, UnusableDirectory
from topics.storage.processes import SpareDescriptors, WorkThread, map_file
from topics.storage.reserve import RESERVE_NAME, Reserve
from topics.storage.syncing import syncer
from topics.storage.syncing.syncs import Syncs
from topics.storage.syncing.ways import Done

T = TypeVar("T")

LOCK_NAME: Final = "lock"


class File(Protocol):
    """One open file. `name` is the one it was opened under; a rename does not change it."""

    name: str

    def read(self, offset: int, size: int) -> bytes:
        """Short only at the end of the file."""
        ...

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`, or raise OSError; then any part of it may have been written."""
        ...

    def sync(self) -> None:
        """fdatasync, blocking. Not on the event loop: see `Disk.sync`."""
        ...

    def size(self) -> int: ...

    def map(self) -> memoryview:
        """A read-only map of the whole file as it is now; later writes inside it show through.

        It stays valid after `close`. What a truncate cut off must not be touched any more.
        """
        ...

    def close(self) -> None:
        """Idempotent. Every other call then raises OSError."""
        ...


class Disk(Protocol):
    """One data directory."""

    path: str  # for messages
    boot_id: str  # of this boot of the machine: a new one means that unsynced bytes may be lost; "" = unknown

    def lock(self) -> None:
        """Take the directory for this process, or raise DirectoryLocked and leave it as it is (ST11)."""
        ...

    def unlock(self) -> None: ...

    def names(self) -> list[str]:
        """The files, sorted, without the lock file."""
        ...

    def create(self, name: str) -> File:
        """A new, empty file; FileExistsError if there is one."""
        ...

    def open(self, name: str, *, writable: bool = True) -> File: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""
        ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None: ...

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work on the one storage thread, in the order of the calls."""
        ...

    def start_sync(self, file: File, done: Done) -> None:
        """fdatasync of what was written before the call, off the event loop.

        `done` is told in a later turn of the loop, as the first thing in it.
        """
        ...

    async def sync(self, file: File) -> None:
        """As `start_sync`, awaited."""
        ...

    def missing(self, file: File) -> str:
        """What was removed while this process uses it: the directory, or this file in it; "" = nothing."""
        ...

    def set_space_aside(self) -> None:
        """Keep some space of the disk back for `use_reserved_space`. Blocking.

        OSError: there is not enough. Then what there is is kept back.
        """
        ...

    def use_reserved_space(self, kept_bytes: int = 0) -> bool:
        """The disk is full: release the space that was set aside, but for so much. False: there was no more."""
        ...

    @property
    def free_bytes(self) -> int:
        """What the file system has room for. OSError: it does not say."""
        ...

    @property
    def total_bytes(self) -> int:
        """How large the file system is. OSError: it does not say."""
        ...

    def close(self) -> None:
        """End what works beside the event loop, unlock. Idempotent."""
        ...


_NOT_DATA: Final = (LOCK_NAME, RESERVE_NAME)


def check_name(name: str) -> str:
    """The name of a data file: flat, and neither the lock nor the reserve."""
    if not name or "/" in name or "\0" in name or name in (".", "..", LOCK_NAME, RESERVE_NAME):
        raise ValueError(f"{name!r} cannot be the name of a data file")
    return name


class RealFile:
    """A file of a RealDisk. Its `number` names it to the helper and is never used twice."""

    _numbers = count(1)

    def __init__(
        self, name: str, descriptor: int, reserve: SpareDescriptors, on_close: Callable[["RealFile"], None]
    ) -> None:
        self.name = name
        self._reserve = reserve
        self.number = next(self._numbers)
        self._descriptor = descriptor  # -1 = closed
        self._on_close = on_close
        self._named = _Named(name)

    def read(self, offset: int, size: int) -> bytes:
        with self._named:
            data = os.pread(self._descriptor, size, offset)
            while 0 < len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
                data += more
            return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        with self._named:
            done = os.pwrite(self._descriptor, data, offset)
            if done < len(data):
                self._write_rest(offset + done, memoryview(data)[done:])

    def sync(self) -> None:
        with self._named:
            if self._descriptor < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            syncer.sync_data(self._descriptor)

    def size(self) -> int:
        with self._named:
            return os.fstat(self._descriptor).st_size

    def map(self) -> memoryview:
        size = self.size()
        if size == 0:
            return memoryview(b"")
        with self._named:
            return map_file(self._descriptor, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            self._reserve.fill()
            self._on_close(self)

    @property
    def is_linked(self) -> bool:
        """Whether the file still has a name."""
        with self._named:
            return os.fstat(self._descriptor).st_nlink > 0

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._descriptor

    def duplicate(self) -> int:
        """A second descriptor of the open file, which its receiver closes."""
        with self._named:
            return self._reserve.get(lambda: os.dup(self._descriptor))

    def _write_rest(self, offset: int, rest: memoryview) -> None:
        while rest:
            done = os.pwrite(self._descriptor, rest, offset)
            if done == 0:
                raise OSError(errno.EIO, "short write")
            offset, rest = offset + done, rest[done:]


class _Named:
    """Puts the file's name into every OSError that passes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            error.filename = self._name


class RealDisk:
    """A directory of the machine's file system.

    With `create` the directory is made if absent, and must be writable; without, a reader's rights are enough.
    `sync` says who calls fdatasync for `Disk.sync`: the kernel, where it has a queue for that, or a helper process.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, sync: Literal["kernel", "process"] = "kernel"
    ) -> None:
        self.path = os.path.abspath(path)
        self.boot_id = _read_boot_id()
        self._descriptor = _open_directory(self.path, create)
        self._reserve = SpareDescriptors(self._descriptor if create else -1)
        self._space = Reserve(self._descriptor, self._reserve)
        self._lock: int | None = None
        self._thread = WorkThread("topics-storage")
        self._syncs = Syncs(self.path, by_kernel=sync == "kernel")
        self._is_closed = False

    @property
    def helper_pid(self) -> int | None:
        """The process that syncs; None = the kernel does, or it has not been needed yet."""
        return self._syncs.helper_pid

    def kill_if_silent(self) -> None:
        """Give up the sync that was under way at the last call, if it still is; a helper that owes it is killed."""
        self._syncs.kill_if_silent()

    def lock(self) -> None:
        """The directory itself is locked: whatever happens to the files in it, it stays the same one.

        The lock file says who has it. It is locked as well, for programs and file systems that know no other lock.
        """
        try:
            descriptor = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self._directory)
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # else the file system cannot lock a directory
                if isinstance(error, BlockingIOError):
                    raise
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise _unusable(self.path, error) from error
            raise DirectoryLocked(
                f"data directory {self.path} is in use by another server (process {holder}); "
                "stop that one, or choose another directory with TOPICS_DATA_DIR"
            ) from None
        self._lock = descriptor
        with suppress(OSError):  # the process id only serves the message above; a full disk need not stop the start
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def names(self) -> list[str]:
        with self._reserve.get(lambda: os.scandir(self._directory)) as entries:
            found = sorted(entry.name for entry in entries if entry.name not in _NOT_DATA and entry.is_file())
        self._reserve.fill()
        return found

    def create(self, name: str) -> RealFile:
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, name: str, *, writable: bool = True) -> RealFile:
        return self._open(name, os.O_RDWR if writable else os.O_RDONLY)

    def rename(self, old: str, new: str) -> None:
        os.rename(check_name(old), check_name(new), src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def remove(self, name: str) -> None:
        os.unlink(check_name(name), dir_fd=self._directory)

    def sync_directory(self) -> None:
        os.fsync(self._directory)

    async def run(self, work: Callable[[], T]) -> T:
        return await self._thread.run(work)

    def start_sync(self, file: File, done: Done) -> None:
        assert isinstance(file, RealFile)
        self._syncs.start(file, done)

    async def sync(self, file: File) -> None:
        assert isinstance(file, RealFile)
        await self._syncs.sync(file)

    def missing(self, file: File) -> str:
        assert isinstance(file, RealFile)
        self._reserve.fill()
        if not os.fstat(self._directory).st_nlink:
            return self.path
        return "" if file.is_linked else f"{self.path}/{file.name}"

    def set_space_aside(self) -> None:
        self._space.fill()

    def use_reserved_space(self, kept_bytes: int = 0) -> bool:
        return self._space.use(kept_bytes)

    def close(self) -> None:
        if not self._is_closed:
            self._thread.close()
            self._syncs.close()
            self.unlock()
            self._is_closed = True
            self._reserve.close()
            os.close(self._descriptor)

    @property
    def free_bytes(self) -> int:
        whole = os.statvfs(self._directory)
        return whole.f_bavail * whole.f_frsize

    @property
    def total_bytes(self) -> int:
        whole = os.statvfs(self._directory)
        return whole.f_blocks * whole.f_frsize

    @property
    def _directory(self) -> int:
        if self._is_closed:
            raise OSError(errno.EBADF, "the disk is closed")
        return self._descriptor

    def _open(self, name: str, flags: int) -> RealFile:
        check_name(name)
        descriptor = self._reserve.get(lambda: os.open(name, flags, 0o600, dir_fd=self._directory))
        return RealFile(name, descriptor, self._reserve, self._syncs.forget)


def _open_directory(path: str, create: bool) -> int:
    try:
        if create:
            _make_directory(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(path, error) from error
    if create and not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        is_read_only = os.statvfs(descriptor).f_flag & os.ST_RDONLY
        os.close(descriptor)
        raise _unusable(path, OSError(errno.EROFS if is_read_only else errno.EACCES, "not writable"))
    return descriptor


def _make_directory(path: str) -> None:
    """Make the directory and what is missing above it, durably; or leave nothing behind."""
    missing: list[str] = []
    existing = path
    while not os.path.lexists(existing):
        missing.append(existing)
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), existing)
    made: list[str] = []
    try:
        for directory in reversed(missing):
            with suppress(FileExistsError):  # another process was faster
                os.mkdir(directory, 0o700)
                made.append(directory)
            sync_directory(os.path.dirname(directory))
    except OSError:
        for directory in reversed(made):
            os.rmdir(directory)
        raise


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Blocking."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: str, error: OSError) -> UnusableDirectory:
    """What is wrong with the directory, and what to do."""
    no_permission = (
        f"user {os.geteuid()} may not read and write it",
        "give it to that user (chown -R), or start the server as its owner",
    )
    what, advice = {
        errno.ENOENT: ("it does not exist", "create it"),
        errno.ENOTDIR: ("it is not a directory", "move the file away"),
        errno.EACCES: no_permission,
        errno.EPERM: no_permission,
        errno.EROFS: ("it lies on a read-only file system", "mount that writable"),
        errno.ENOSPC: ("the disk is full", "free some space"),
    }.get(error.errno or 0, (str(error), "fix that"))
    culprit = error.filename if isinstance(error.filename, str) and error.filename.startswith("/") else path
    subject = "" if culprit == path else f"{culprit}: "
    return UnusableDirectory(
        f"cannot use data directory {path}: {subject}{what}; {advice}, or choose another with TOPICS_DATA_DIR"
    )


def _read_boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
