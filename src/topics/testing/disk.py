"""A disk in memory that knows what is durable, and fails on demand.

`MemoryDisk` is a `topics.storage.disk.Disk`. It keeps two states of
everything: what the running process sees, and what is on the platter. From
any moment of a run it gives the disk that the next process would find:

    disk.kill()              kill -9: all that was written; what was not synced still is not
    disk.power_loss(choose)  a new boot: what was not synced is lost, kept or torn, as `choose` says
    disk.power_losses()      every way in which that can go

Rules of power loss:

- A sector of 512 bytes holds the bytes of one moment since its last sync: of
  the writes to it a first part is kept, in order. Sectors do not depend on each other.
- A file's size is one that it had since its last sync, or lies between two of them.
- Each unsynced create, rename and remove is kept or lost; if one is lost, so
  are the later ones of the same name.
- Bytes of a failed sync are in doubt: they stay readable, and each is kept or
  lost on its own, until they are written again and that is synced (as on Linux).

Hooks see every mutating operation before it happens, and may interrupt it:
`CrashAt` (the process dies), `Faulty` (OSError), `OrderMonitor` (AssertionError).
They compose: `MemoryDisk(hooks=[CrashAt(7, "torn"), OrderMonitor([synced_before_rename()])])`.

Nothing here uses threads or time; a run is repeated exactly by running it again.
"""

import errno
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Final, Literal, TypeVar
from weakref import WeakValueDictionary

from topics.errors import DirectoryLocked
from topics.storage.disk import File, check_name
from topics.testing.held_syncs import HeldSyncs, completed
from topics.testing.space import Limit, Space

T = TypeVar("T")

SECTOR_BYTES: Final = 512
WHOLE_BYTES_MAX: Final = 8  # a write of so few bytes within a sector is done or not, never in part
EVERYTHING: Final = sys.maxsize

Kind = Literal["write", "sync", "truncate", "create", "rename", "remove", "sync_directory"]
Choose = Callable[[int], int]  # given n, one of 0 … n - 1: 0 keeps nothing, n - 1 keeps everything
Outcome = Literal["lost", "kept", "torn"]


@dataclass(frozen=True)
class Operation:
    """A mutating operation. `size` is the bytes of a write, or the new size of a truncate; `to` is of a rename."""

    kind: Kind
    name: str = ""
    offset: int = 0
    size: int = 0
    to: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is done or not, but never in part."""
        last = self.offset + self.size - 1
        return self.size <= WHOLE_BYTES_MAX and self.offset // SECTOR_BYTES == last // SECTOR_BYTES


@dataclass(frozen=True)
class Interruption:
    """What a hook does to an operation: `error` is raised after `part` bytes of it, 0 = before it."""

    error: BaseException
    part: int = 0


Hook = Callable[["MemoryDisk", Operation], Interruption | None]


class Crashed(BaseException):
    """The process is dead. Not an Exception, so that no handler keeps it alive."""


class MemoryDisk(HeldSyncs, Space):
    """A data directory in memory. `files` are in it from the start, durable."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, boot: int = 1, hooks: Iterable[Hook] = ()) -> None:
        HeldSyncs.__init__(self)
        Space.__init__(self)
        self.path = "memory"
        self.boot_id = f"boot-{boot}"
        self.hooks: list[Hook] = list(hooks)
        self.operations: list[Operation] = []
        self.is_dead = False
        self._boot = boot
        self._entries = {check_name(name): Inode(content) for name, content in (files or {}).items()}
        self._durable_entries = dict(self._entries)
        self._entry_changes: list[_EntryChange] = []  # since the last sync_directory, in order
        self.is_removed = False  # the directory was removed
        self.has_descriptors = True  # False: nothing can be opened (EMFILE)
        self._is_locked = False
        self._is_closed = False

    # The Disk.

    def lock(self) -> None:
        self._check_usable()
        if self._is_locked:
            raise DirectoryLocked(f"data directory {self.path} is in use")
        self._is_locked = True

    def unlock(self) -> None:
        self._is_locked = False

    def names(self) -> list[str]:
        self._check_usable()
        return sorted(self._entries)

    def create(self, name: str) -> "MemoryFile":
        self._check_usable()
        if check_name(name) in self._entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._check_descriptors(name)
        inode = Inode()
        self.perform(Operation("create", name), lambda _: self._change_entry(_EntryChange("", name, inode)))
        return MemoryFile(self, name, inode, is_writable=True)

    def open(self, name: str, *, writable: bool = True) -> "MemoryFile":
        self._check_descriptors(name)
        return MemoryFile(self, name, self._inode(name), is_writable=writable)

    def rename(self, old: str, new: str) -> None:
        inode = self._inode(old)
        change = _EntryChange(old, check_name(new), inode)
        self.perform(Operation("rename", old, to=new), lambda _: self._change_entry(change))

    def remove(self, name: str) -> None:
        inode = self._inode(name)
        self.perform(Operation("remove", name), lambda _: self._change_entry(_EntryChange(name, "", inode)))

    def sync_directory(self) -> None:
        self._check_usable()

        def act(_: int) -> None:
            self._durable_entries = dict(self._entries)
            self._entry_changes = []

        self.perform(Operation("sync_directory"), act)

    async def run(self, work: Callable[[], T]) -> T:
        self._check_usable()

        async def turn() -> T:
            return work()

        return await completed(turn())

    def begin_sync(self, file: File) -> Callable[[], None]:
        self._check_usable()
        assert isinstance(file, MemoryFile)
        file.check()
        covered = file.inode.newest

        def carry_out() -> None:
            self._check_usable()
            file.sync_changes(covered)

        return carry_out

    def missing(self, file: File) -> str:
        assert isinstance(file, MemoryFile)
        if self.is_removed:
            return self.path
        return "" if file.inode in self._entries.values() else f"{self.path}/{file.name}"

    def set_space_aside(self) -> None:
        self._check_usable()
        super().set_space_aside()

    def close(self) -> None:
        self._is_closed = True
        self.unlock()

    # What comes after.

    def kill(self) -> "MemoryDisk":
        """What the next process finds if this one ends now, in whatever way."""
        after = type(self)(boot=self._boot)
        after.boot_id, after.reserved_bytes = self.boot_id, self.reserved_bytes
        inodes = {*self._entries.values(), *self._durable_entries.values(), *(c.inode for c in self._entry_changes)}
        copies = {inode: inode.copy() for inode in inodes}
        after._entries = {name: copies[inode] for name, inode in self._entries.items()}
        after._durable_entries = {name: copies[inode] for name, inode in self._durable_entries.items()}
        after._entry_changes = [replace(change, inode=copies[change.inode]) for change in self._entry_changes]
        return after

    def power_loss(self, choose: Choose | random.Random | Outcome) -> "MemoryDisk":
        """What the next process finds if the machine loses power now."""
        chosen = _choose(choose)
        entries = dict(self._durable_entries)
        lost: set[str] = set()
        for change in self._entry_changes:
            names = {change.old, change.new} - {""}
            if names & lost or not chosen(2):
                lost |= names
            else:
                change.apply(entries)
        files = {name: entries[name].after_power_loss(chosen) for name in sorted(entries)}
        return type(self)(files, boot=self._boot + 1)

    def power_losses(self, limit: int = 10_000) -> Iterator["MemoryDisk"]:
        """Every outcome of a power loss now, the worst first; ValueError when there are more than `limit`."""
        script: list[int] = []
        for _ in range(limit):
            taken: list[tuple[int, int]] = []

            def choose(options: int, script: list[int] = script, taken: list[tuple[int, int]] = taken) -> int:
                pick = script[len(taken)] if len(taken) < len(script) else 0
                taken.append((pick, options))
                return pick

            yield self.power_loss(choose)
            while taken and taken[-1][0] == taken[-1][1] - 1:
                taken.pop()
            if not taken:
                return
            script = [pick for pick, _ in taken]
            script[-1] += 1
        raise ValueError(f"more than {limit} outcomes")

    def aftermaths(self, seeds: Iterable[int] = range(3)) -> Iterator[tuple[str, "MemoryDisk"]]:
        """A kill and a sample of power losses, each with a name for messages."""
        yield "kill", self.kill()
        outcomes: tuple[Outcome, ...] = ("lost", "kept", "torn")
        for outcome in outcomes:
            yield f"power loss, {outcome}", self.power_loss(outcome)
        for seed in seeds:
            yield f"power loss, seed {seed}", self.power_loss(random.Random(seed))

    # What tests ask and steer.

    def files(self) -> dict[str, bytes]:
        """Names and bytes as the process sees them."""
        return {name: bytes(self._entries[name].content) for name in sorted(self._entries)}

    def sizes(self) -> dict[str, int]:
        """Names and sizes as the process sees them."""
        return {name: len(inode.content) for name, inode in self._entries.items()}

    def is_synced(self, name: str) -> bool:
        """Whether all bytes of the file are durable, its name or not."""
        return not self._entries[name].changes

    def is_entry_synced(self, name: str) -> bool:
        """Whether this file durably has this name."""
        return name in self._entries and self._durable_entries.get(name) is self._entries[name]

    def is_durable(self, name: str) -> bool:
        return self.is_entry_synced(name) and self.is_synced(name)

    # The way of every operation.

    def perform(self, operation: Operation, act: Callable[[int], None]) -> None:
        """Log the operation, show it to the hooks, and do it: all, or the part that an interruption leaves."""
        self.check_alive()
        self.operations.append(operation)
        interruptions = [interruption for hook in self.hooks if (interruption := hook(self, operation))]
        if not interruptions:
            act(EVERYTHING)
            return
        if interruptions[0].part > 0:
            act(interruptions[0].part)
        self.is_dead = isinstance(interruptions[0].error, Crashed)
        raise interruptions[0].error

    def check_alive(self) -> None:
        if self.is_dead:
            raise Crashed("the process is dead")

    def _check_usable(self) -> None:
        self.check_alive()
        if self._is_closed:
            raise OSError(errno.EBADF, "the disk is closed")

    def _check_descriptors(self, name: str) -> None:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    def _inode(self, name: str) -> "Inode":
        self._check_usable()
        try:
            return self._entries[check_name(name)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _change_entry(self, change: "_EntryChange") -> None:
        change.apply(self._entries)
        self._entry_changes.append(change)


class MemoryFile:
    """An open file of a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, name: str, inode: "Inode", *, is_writable: bool) -> None:
        self.name = name
        self.inode = inode
        self._disk = disk
        self._is_writable = is_writable
        self._is_closed = False

    def read(self, offset: int, size: int) -> bytes:
        self.check()
        return bytes(self.inode.content[offset : offset + size])

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.check(writes=True)
        kept = bytes(data)
        operation = Operation("write", self.name, offset, len(kept))
        self._disk.perform(operation, lambda part: self.inode.change(offset, kept[:part]))

    def sync(self) -> None:
        self.check()
        self.sync_changes(self.inode.newest)

    def sync_changes(self, upto: int) -> None:
        """Sync what was written up to change number `upto`, even if the file has been closed since."""
        try:
            self._disk.perform(Operation("sync", self.name), lambda _: self.inode.sync(upto))
        except OSError:
            self.inode.fail_sync(upto)
            raise

    def truncate(self, size: int) -> None:
        self.check(writes=True)
        self._disk.perform(Operation("truncate", self.name, size=size), lambda _: self.inode.change(size, None))

    def size(self) -> int:
        self.check()
        return len(self.inode.content)

    def map(self) -> memoryview:
        self.check()
        return self.inode.map()

    def close(self) -> None:
        self._is_closed = True

    def check(self, *, writes: bool = False) -> None:
        self._disk.check_alive()
        if self._is_closed or (writes and not self._is_writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.name)


class _Map(bytearray):
    """The bytes behind one map. (A bytearray itself cannot be weakly referenced.)"""


@dataclass(frozen=True)
class Change:
    """A write of `data` at `offset`; or, without data, a truncate to `offset`."""

    number: int
    offset: int
    data: bytes | None
    is_in_doubt: bool = False

    @property
    def stop(self) -> int:
        return EVERYTHING if self.data is None else self.offset + len(self.data)

    def apply(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        if self.data is None:
            del content[self.offset :]
        else:
            content[self.offset : self.stop] = self.data

    def overlay(self, content: bytearray, start: int, stop: int) -> None:
        """Apply what lies in `start` … `stop`, and leave the length of `content` as it is."""
        start, stop = max(start, self.offset), min(stop, self.stop, len(content))
        if start < stop:
            content[start:stop] = (
                bytes(stop - start) if self.data is None else self.data[start - self.offset : stop - self.offset]
            )

    def without(self, newer: "Change") -> Iterator["Change"]:
        """The pieces of a write that `newer` did not touch."""
        assert self.data is not None
        before, after = max(newer.offset - self.offset, 0), max(newer.stop - self.offset, 0)
        if before:
            yield replace(self, data=self.data[:before])
        if after < len(self.data):
            yield replace(self, offset=self.offset + after, data=self.data[after:])


class Inode:
    """The bytes of a file, whatever names it has."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)  # what the process sees
        self.durable = bytearray(content)  # what survives anything
        self.changes: list[Change] = []  # what makes the one from the other, oldest first
        self.newest = 0  # number of the newest change
        self._maps: WeakValueDictionary[int, _Map] = WeakValueDictionary()
        self._map_numbers = count()

    def copy(self) -> "Inode":
        copy = Inode()
        copy.content, copy.durable = bytearray(self.content), bytearray(self.durable)
        copy.changes, copy.newest = list(self.changes), self.newest
        return copy

    def change(self, offset: int, data: bytes | None) -> None:
        self.newest += 1
        change = Change(self.newest, offset, data)
        change.apply(self.content)
        self.changes.append(change)
        for mapped in self._maps.values():
            if data is not None:
                change.overlay(mapped, 0, len(mapped))

    def map(self) -> memoryview:
        mapped = _Map(self.content)
        self._maps[next(self._map_numbers)] = mapped
        return memoryview(mapped).toreadonly()

    def sync(self, upto: int) -> None:
        """Changes up to this number become durable; those in doubt only where a newer one went over them."""
        in_doubt: list[Change] = []
        for change in (change for change in self.changes if change.number <= upto):
            if change.is_in_doubt:
                in_doubt.append(change)
            else:
                change.apply(self.durable)
                in_doubt = [piece for older in in_doubt for piece in older.without(change)]
        self.changes = in_doubt + [change for change in self.changes if change.number > upto]

    def fail_sync(self, upto: int) -> None:
        """Writes up to this number are in doubt. A truncate waits for the next sync: the journal has it."""
        self.changes = [
            replace(change, is_in_doubt=True) if change.number <= upto and change.data is not None else change
            for change in self.changes
        ]

    def after_power_loss(self, choose: Choose) -> bytes:
        sizes = self._sizes()
        image = bytearray(self.durable)
        image.extend(bytes(max(max(sizes) - len(image), 0)))
        for sector, changes in sorted(self._by_sector(len(image)).items()):
            start, stop = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
            kept = choose(1 + sum(not change.is_in_doubt for change in changes))
            for change in changes:
                if choose(2) if change.is_in_doubt else kept > 0:
                    change.overlay(image, start, stop)
                kept -= not change.is_in_doubt
        return bytes(image[: sizes[choose(len(sizes))]])

    def _by_sector(self, size: int) -> dict[int, list[Change]]:
        sectors: dict[int, list[Change]] = defaultdict(list)
        for change in self.changes:
            for sector in range(change.offset // SECTOR_BYTES, -(-min(change.stop, size) // SECTOR_BYTES)):
                sectors[sector].append(change)
        return sectors

    def _sizes(self) -> list[int]:
        """From the durable size to that of now, those that a power loss can leave."""
        size = len(self.durable)
        sizes = [size]
        for change in self.changes:
            new = change.offset if change.data is None else max(size, change.stop)
            edges = range(-(-(size + 1) // SECTOR_BYTES) * SECTOR_BYTES, new, SECTOR_BYTES)
            sizes += sorted({*edges, *range(max(size + 1, new - 1), new)})
            sizes += [new] if new != size else []
            size = new
        return sizes


@dataclass(frozen=True)
class _EntryChange:
    """A create has no old name, a remove no new one; a rename has both."""

    old: str
    new: str
    inode: Inode

    def apply(self, entries: dict[str, Inode]) -> None:
        if self.old:
            entries.pop(self.old, None)
        if self.new:
            entries[self.new] = self.inode


class CrashAt:
    """The process dies at mutating operation `n` (from 0), and every operation after that raises, too.

    `before` it; `after` it; or, for a write that can be, `torn`: after `part` of its bytes (None = half).
    """

    def __init__(self, n: int, mode: Literal["before", "torn", "after"] = "before", *, part: int | None = None) -> None:
        self.n, self.mode, self.part = n, mode, part
        self._seen = count()

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        if next(self._seen) != self.n:
            return None
        error = Crashed(f"{self.mode} operation {self.n}: {operation}")
        if self.mode == "after":
            return Interruption(error, EVERYTHING)
        if self.mode == "before" or operation.kind != "write" or operation.is_whole:
            return Interruption(error)
        return Interruption(error, operation.size // 2 if self.part is None else self.part)

    def __repr__(self) -> str:
        return f"CrashAt({self.n}, {self.mode!r}" + (")" if self.part is None else f", part={self.part})")


def crash_points(operations: Sequence[Operation]) -> Iterator[CrashAt]:
    """A crash before, inside and after each of these operations: those that a run without a crash made."""
    for n, operation in enumerate(operations):
        yield CrashAt(n, "before")
        if operation.kind == "write" and not operation.is_whole:
            for part in sorted({1, operation.size // 2, operation.size - 1} & set(range(1, operation.size))):
                yield CrashAt(n, "torn", part=part)
        yield CrashAt(n, "after")


class Faulty:
    """An OSError in operation `at` (from 0) of this kind and name, and in the `times - 1` that follow.

    `times=None` is for ever. `part` bytes of a failing write are written (a short write).

        Faulty("write", at=3)                                   one failed write
        Faulty("write", at=3, part=10)                          a short one
        Faulty("write", at=3, times=None, error=errno.ENOSPC)   the disk is full from then on
        Faulty("sync", name="log-*")                            the first sync of a log file fails
    """

    def __init__(
        self,
        kind: Kind,
        at: int = 0,
        *,
        times: int | None = 1,
        error: int = errno.EIO,
        part: int = 0,
        name: str = "*",
    ) -> None:
        self.kind, self.at, self.times, self.error, self.part, self.name = kind, at, times, error, part, name
        self.failed = 0  # how often it has struck
        self._seen = count()

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        if operation.kind != self.kind or not fnmatchcase(operation.name, self.name):
            return None
        since = next(self._seen) - self.at
        if since < 0 or (self.times is not None and since >= self.times):
            return None
        self.failed += 1
        part = min(self.part, operation.size - 1) if self.kind == "write" else 0
        return Interruption(OSError(self.error, os.strerror(self.error), operation.name), part)


class Capacity(Limit):
    """A disk of `size` bytes: of a write that makes a file longer, only what fits is done, and ENOSPC raised."""

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        if operation.kind != "write":
            return None
        grown = operation.offset + operation.size - disk.sizes().get(operation.name, 0)
        try:
            self.check(disk, grown)
        except OSError as error:
            return Interruption(error, max(0, operation.size - grown + self.room(disk)))
        return None


Rule = Callable[[MemoryDisk, Operation], str | None]  # what is wrong with doing this now; None = nothing


class OrderMonitor:
    """Raises AssertionError before an operation that breaks a rule.

    A caller may have swallowed that, so a test ends with `monitor.check()`.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = list(rules)
        self.violations: list[str] = []

    def __call__(self, disk: MemoryDisk, operation: Operation) -> None:
        found = [f"{operation}: {wrong}" for rule in self.rules if (wrong := rule(disk, operation))]
        self.violations += found
        assert not found, "; ".join(found)

    def check(self) -> None:
        assert not self.violations, "; ".join(self.violations)


def synced_before_rename(new: str = "*") -> Rule:
    """A file is renamed to `new` only when all its bytes are synced."""

    def rule(disk: MemoryDisk, operation: Operation) -> str | None:
        if operation.kind == "rename" and fnmatchcase(operation.to, new) and not disk.is_synced(operation.name):
            return f"{operation.name} has unsynced bytes"
        return None

    return rule


def installed_before_remove(installed: str, removed: str = "*") -> Rule:
    """Nothing like `removed` is removed while the directory entry of a file like `installed` is not synced."""

    def rule(disk: MemoryDisk, operation: Operation) -> str | None:
        if operation.kind != "remove" or not fnmatchcase(operation.name, removed):
            return None
        unsynced = [n for n in disk.names() if fnmatchcase(n, installed) and not disk.is_entry_synced(n)]
        return f"the directory was not synced since {unsynced[0]} came" if unsynced else None

    return rule


def successor_before_remove(successor: Callable[[str], str | None]) -> Rule:
    """A file is removed only when its successor, if it has one, is durable: bytes and name."""

    def rule(disk: MemoryDisk, operation: Operation) -> str | None:
        name = successor(operation.name) if operation.kind == "remove" else None
        return f"its successor {name} is not durable" if name is not None and not disk.is_durable(name) else None

    return rule


def entry_before_sync(name: str) -> Rule:
    """A file's sync promises nothing before its directory entry is synced (ST5)."""

    def rule(disk: MemoryDisk, operation: Operation) -> str | None:
        if operation.kind == "sync" and fnmatchcase(operation.name, name) and not disk.is_entry_synced(operation.name):
            return "the directory was not synced since it came"
        return None

    return rule


def _choose(choose: Choose | random.Random | Outcome) -> Choose:
    if isinstance(choose, random.Random):
        return choose.randrange
    if choose == "lost":
        return lambda options: 0
    if choose == "kept":
        return lambda options: options - 1
    if choose == "torn":
        turns = count()
        return lambda options: (0, options - 1, options // 2)[next(turns) % 3]
    return choose
