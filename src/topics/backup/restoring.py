"""Restoring: a point of a backup becomes a data directory.

Files are written into a directory within the target, recovered and audited there, and only then moved to their places.
Until the last of these steps is done, a file in the target says that it is unfinished: a server refuses to start on it,
and another restore begins anew. The target is locked all the while.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from msgspec import Struct

from topics.backup.points import Backup
from topics.clock import Clock
from topics.core.state import State
from topics.engine.durability.store import revive
from topics.errors import Damaged, UnusableDirectory
from topics.reader import Check, open_directory
from topics.storage.disk import LOCK_NAME, Disk, RealDisk, sync_directory
from topics.storage.log_files import UNFINISHED

WORK = "restoring"
IGNORED = (LOCK_NAME, "lost+found")
LEAP_MIN, LEAP_RANGE = 1 << 20, 1 << 22  # of epochs: topic ids come from the same count, and have 32 bits


class Restored(Struct, frozen=True):
    """What was restored."""

    point: str
    source: str
    position: int  # of the source's log
    ts: int  # of the last commit that is in it, epoch-milliseconds
    topics: int
    records: int
    raised: bool  # epochs
    check: Check


def restore(
    backup: Backup,
    path: str,
    clock: Clock,
    *,
    until: int | None = None,
    raises_epochs: bool = True,
    said: Callable[[str], None] = lambda step: None,
) -> Restored:
    """Restore the newest point, or what the backup has as of `until`, into `path`, which is empty or absent."""
    said("reading the log")
    source = backup.choose(until)
    point, end = source.point, source.end
    with _target(path) as work:
        with closing(RealDisk(work)) as disk:
            names = source.names()
            for count, file in enumerate(names, 1):
                said(f"writing file {count} of {len(names)}")
                _copy(source.disk, disk, file)
            disk.sync_directory()
            said("recovering")
            leap = LEAP_MIN + secrets.randbelow(LEAP_RANGE) if raises_epochs else 0
            state = _revived(disk, clock, leap, backup.place.name)
            disk.sync_directory()
        said("auditing")
        with open_directory(work) as directory:
            check = directory.check()
        faults = [fault for fault in check.faults if fault.is_certain]
        if faults:
            where = f"{backup.place.name}: {faults[0].file or faults[0].topic}"
            raise Damaged(where, 0, f"what was restored is not sound: {faults[0].message}")
    ts = max(end.ts, point.ts if until is None else min(point.ts, until))
    return Restored(source.name, point.source, end.position, ts, len(state.topics), state.records, raises_epochs, check)


def _copy(source: Disk, disk: Disk, name: str) -> None:
    with closing(source.open(name, writable=False)) as file:
        data = file.read(0, file.size())
    with closing(disk.create(name)) as target:
        target.write(0, data)
        target.sync()


def _revived(disk: RealDisk, clock: Clock, leap: int, backup: str) -> State:
    try:
        return revive(disk, clock, leap=leap)
    except Damaged as error:
        raise Damaged(backup, 0, f"what was restored cannot be recovered: {error}") from None


@contextmanager
def _target(path: str) -> Iterator[str]:
    """An empty directory in which to work, whose files then become those of `path`."""
    with closing(RealDisk(path)) as disk:
        _check_empty(path)
        disk.lock()
        try:
            found = _check_empty(path)
            marker, work = os.path.join(path, UNFINISHED), os.path.join(path, WORK)
            if not found:
                disk.create(UNFINISHED).close()
                disk.sync_directory()
            for name in found:
                if name != UNFINISHED:
                    _remove(os.path.join(path, name))
            os.mkdir(work, 0o700)
            try:
                yield work
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                os.unlink(marker)
                raise
            for name in os.listdir(work):
                os.rename(os.path.join(work, name), os.path.join(path, name))
            sync_directory(work)
            disk.sync_directory()
            os.rmdir(work)
            os.unlink(marker)
            disk.sync_directory()
        finally:
            disk.unlock()


def _check_empty(path: str) -> list[str]:
    """What a restore that was interrupted has left; refuses a directory that holds anything else."""
    found = sorted(name for name in os.listdir(path) if name not in IGNORED)
    if found and UNFINISHED not in found:
        raise UnusableDirectory(
            f"{path} is not empty ({found[0]}); restore into an empty or a new directory, and move it into place then"
        )
    return found


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
