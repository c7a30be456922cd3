"""A data directory held as it is at one moment, while a server goes on working in it.

The files of a snapshot, its segments and its log are opened; whatever a later checkpoint removes stays readable. The
delete flags are copied at once: a checkpoint sets them later for deletes that only later log files have. So one look is
enough, however long it takes.

Owned here: which files belong together. What is in them is up to others. A pin costs one descriptor per file.
"""

from contextlib import suppress
from typing import cast

from topics.engine.durability.catalogue import Maps
from topics.errors import Damaged
from topics.reader.snapshot import Snapshot
from topics.storage import frames, log_files, segments, snapshots
from topics.storage.disk import Disk, File
from topics.storage.segments import SegmentFile


class Pin:
    """The files of one snapshot, open. It is a `Disk` as far as readers need one."""

    def __init__(self, disk: Disk, snapshot: Snapshot) -> None:
        """OSError: there are too few descriptors for that; nothing is held."""
        self.path, self.boot_id = disk.path, disk.boot_id
        self._disk = disk
        self.snapshot = snapshot
        self._files: dict[str, File] = {}
        self.missing: set[str] = set()  # files of the snapshot that are not there
        self._first_log = frames.number_of(snapshot.meta.start)
        maps = Maps()
        self.segments = {number: SegmentFile(self.disk, ref, maps.add) for number, ref in snapshot.files.items()}
        try:
            self._hold([*snapshot.names, *map(segments.name_of, self.segments), *self._logs()])
            for segment in self.segments.values():
                with suppress(Damaged):  # whoever reads it will say so
                    segment.keep_flags()
            self._hold(self._logs())
        except BaseException:
            self.close()
            raise
        numbers = sorted(log_files.number_in(name) for name in self._files if name.startswith(log_files.PREFIX))
        follows = numbers == list(range(self._first_log, self._first_log + len(numbers)))  # none was removed unseen
        self.is_whole = follows and not self.missing and snapshots.names_in(self.disk) == snapshot.names

    @property
    def disk(self) -> Disk:
        return cast(Disk, self)

    def names(self) -> list[str]:
        return sorted(self._files)

    def open(self, name: str, *, writable: bool = False) -> File:
        assert not writable
        if name not in self._files:
            return self._disk.open(name, writable=False)
        return cast(File, _Held(self._files[name]))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _logs(self) -> list[str]:
        names = (name for name in self._disk.names() if name.startswith(log_files.PREFIX))
        return [name for name in names if log_files.number_in(name) >= self._first_log]

    def _hold(self, names: list[str]) -> None:
        for name in names:
            if name not in self._files:
                try:
                    self._files[name] = self._disk.open(name, writable=False)
                except FileNotFoundError:
                    self.missing.add(name)


class _Held:
    """A file that stays open when its reader closes it."""

    def __init__(self, file: File) -> None:
        self.name = file.name
        self.read, self.size, self.map = file.read, file.size, file.map

    def close(self) -> None:
        pass
