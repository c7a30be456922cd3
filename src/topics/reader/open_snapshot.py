"""One snapshot of a data directory and the segments that it names, open, while a server goes on in the directory.

Owned here: which snapshot is read, and what to do when its files go away meanwhile: a checkpoint was taken, and a newer
snapshot takes its place. `snapshot` knows what a snapshot says. Must not know: what is read of the segments.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from topics.core.dump import TopicItem
from topics.engine.durability.recovery import NONSENSE
from topics.errors import Damaged, TopicNotFound, UnusableDirectory
from topics.reader.access import forbidden
from topics.reader.snapshot import Snapshot
from topics.storage import log_files, segments, snapshots
from topics.storage.disk import Disk
from topics.storage.segments import SegmentFile

ATTEMPTS_MAX: Final = 100  # readings of a directory that changes under the reader
FILES_MAX: Final = 256  # segments kept open; before Python 3.13 each costs a descriptor

T = TypeVar("T")


class OpenSnapshot:
    """The snapshot that is read. It stays the same until `reload`, or until its files are gone."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[int, SegmentFile] = OrderedDict()
        self.now = self._load()

    def reload(self) -> None:
        """Go on to the newest snapshot."""
        self.now = self._load()
        self._files = OrderedDict((n, file) for n, file in self._files.items() if n in self.now.files)

    def close(self) -> None:
        """Let go of the segments."""
        self._files.clear()

    @property
    def is_newest(self) -> bool:
        return snapshots.names_in(self._disk) == self.now.names

    def item(self, name: str) -> TopicItem:
        item = self.now.topics.get(name)
        if item is None:
            raise TopicNotFound(name)
        return item

    def file(self, number: int) -> SegmentFile:
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = SegmentFile(self._disk, self.now.files[number])
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return file

    def steadily(self, work: Callable[[], T]) -> T:
        """Do `work`, and do it again on a newer snapshot if the files of this one went away meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return work()
            except Damaged:
                if self.is_newest:
                    raise
            except PermissionError as error:
                raise forbidden(self._disk.path, error) from None
            self.reload()
        return work()

    def unsteady(self) -> UnusableDirectory:
        """The failure of whoever has tried too often."""
        return UnusableDirectory(
            f"the files of {self._disk.path} change faster than they can be held: try again while less is "
            "written, or with the server stopped"
        )

    def _load(self) -> Snapshot:
        for attempt in range(ATTEMPTS_MAX):
            names = snapshots.names_in(self._disk)
            if not names:
                self._check_is_ours()
            try:
                items = snapshots.Snapshots(self._disk).load() or {}
                try:
                    return Snapshot(names, items)
                except NONSENSE as error:
                    raise Damaged(f"{self._disk.path}/{names[-1]}", 0, f"its items make no sense: {error!r}") from error
            except PermissionError as error:
                raise forbidden(self._disk.path, error) from None
            except (FileNotFoundError, Damaged):
                if snapshots.names_in(self._disk) == names or attempt == ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("not reached")

    def _check_is_ours(self) -> None:
        """A directory without a snapshot may be one whose first checkpoint is still to come."""
        names = self._disk.names()
        if any(name.startswith(log_files.PREFIX) for name in names):
            return
        sealed = [name for name in names if segments.number_in(name) is not None]
        if sealed:
            raise Damaged(f"{self._disk.path}/{sealed[0]}", 0, "the snapshots and logs that it belongs to are missing")
        raise UnusableDirectory(f"{self._disk.path} is not a data directory of topics: it has no snapshot and no log")
