"""A data directory, open for reading: its topics, and the batches of one.

Owned here: which snapshot is read, and what to do when its files go away meanwhile. `snapshot` knows what a snapshot
says, `pieces` what a segment holds.

Invariant: of every seq that `Batches` passes, its record was yielded, or was deleted on purpose, or the seq is in
`lost`.
"""

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from topics.core.dump import TopicItem
from topics.engine.durability.recovery import NONSENSE
from topics.errors import Damaged, TopicNotFound, UnusableDirectory
from topics.model import Gap, TopicConfig
from topics.reader.access import forbidden, open_disk
from topics.reader.checking import Check, Checker
from topics.reader.pieces import COLUMNS, live_rows, schema
from topics.reader.pinning import Pin
from topics.reader.snapshot import Lost, Snapshot, bounded, floor_of, lost_in, sealed_through_of
from topics.storage import frames, log_files, segments, snapshots
from topics.storage.disk import Disk
from topics.storage.processes import NO_DESCRIPTOR
from topics.storage.segments import LIVE, PieceRef, SegmentFile, SegmentPiece

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS_MAX: Final = 100  # readings of a directory that changes under the reader
FILES_MAX: Final = 256  # segments kept open; before Python 3.13 each costs a descriptor

T = TypeVar("T")


class TopicInfo(Struct, frozen=True):
    """A topic as of the snapshot in force."""

    name: str
    id: int
    epoch: int
    config: TopicConfig
    head: int
    floor: int  # one above the highest seq lost to a cap or to age
    evicted_last: int
    expired_last: int
    gaps: tuple[Gap, ...]  # stretches lost above the floor
    earliest: int  # lowest live seq in the segments; head + 1 if there is none
    sealed_through: int  # segments hold every live record up to here; 0 = an ephemeral topic, which has none
    records_live: int  # in the segments


class Piece(Struct, frozen=True):
    """A run of one topic's records in a segment file: its rows start .. start + count."""

    file: str
    start: int
    count: int
    first: int  # seqs of the first row and of the last
    last: int
    size_bytes: int  # sum of the record sizes


def open_directory(path: str | os.PathLike[str]) -> "Directory":
    """Open the data directory `path` for reading. A server may be running on it."""
    return Directory(open_disk(path))


class Directory:
    """A data directory, open for reading. It stays at one snapshot until `reload`, or until its files are gone."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[int, SegmentFile] = OrderedDict()
        try:
            self._snapshot = self._load()
        except BaseException:
            disk.close()
            raise

    @property
    def path(self) -> str:
        return self._disk.path

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files. Batches that were handed out stay valid."""
        self._files.clear()
        self._disk.close()

    def reload(self) -> None:
        """Go on to the newest snapshot."""
        self._snapshot = self._load()
        self._files = OrderedDict((n, file) for n, file in self._files.items() if n in self._snapshot.files)

    def topics(self) -> list[TopicInfo]:
        """All topics that the snapshot knows, sorted by name; topics created since the last checkpoint are missing."""
        return self._steadily(lambda: [self._info(item) for _, item in sorted(self._snapshot.topics.items())])

    def topic(self, name: str) -> TopicInfo:
        return self._steadily(lambda: self._info(self._item(name)))

    @property
    def is_complete(self) -> bool:
        """Whether segments hold all there is: the server was stopped gracefully, and none has run here since.

        Otherwise a topic may have records above its `sealed_through`, which only the log has.
        """
        meta = self._snapshot.meta
        if not self._snapshot.items or not meta.is_clean:
            return False
        logs = (name for name in self._disk.names() if name.startswith(log_files.PREFIX))
        return all(log_files.number_in(name) < frames.number_of(meta.start) for name in logs)

    def pieces(self, name: str) -> list[Piece]:
        """The pieces in which the live records of a topic lie, ascending; deleted ones may lie between them."""
        return [
            Piece(segments.name_of(ref.file), ref.start, ref.count, ref.first, ref.last, ref.size_bytes)
            for ref in self._snapshot.pieces_of(self._item(name))
        ]

    def batches(
        self, name: str, after: int = 0, last: int | None = None, columns: Sequence[str] = COLUMNS
    ) -> "Batches":
        """The live sealed records with seqs above `after`, up to `last` or else to `sealed_through`."""
        schema(columns)
        item = self._item(name)
        return Batches(self, item, after, bounded(item, after, last), columns)

    def lost(self, name: str, after: int = 0, last: int | None = None) -> list[Lost]:
        """What `batches` with the same range would find lost."""
        item = self._item(name)
        return list(lost_in(item, after, bounded(item, after, last)))

    def check(self) -> Check:
        """Hold every segment and every log file against its checksums, and all of them against the snapshot."""
        for _ in range(ATTEMPTS_MAX):
            try:
                pin = Pin(self._disk, self._snapshot)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                found, is_certain = Checker(self._disk, self._snapshot).run(), False
            else:
                with closing(pin):
                    found, is_certain = Checker(pin.disk, self._snapshot, pin.segments).run(), pin.is_whole
            if is_certain or not found.faults or snapshots.names_in(self._disk) == self._snapshot.names:
                return found
            self.reload()  # a checkpoint was taken before all files were held, and some are gone
        raise self._unsteady()

    def pin(self) -> Pin:
        """Hold the files of the newest snapshot, and the log behind it, as they are now. The caller closes it."""
        for _ in range(ATTEMPTS_MAX):
            try:
                pin = Pin(self._disk, self._snapshot)
            except PermissionError as error:
                raise forbidden(self.path, error) from None
            if pin.is_whole:
                return pin
            pin.close()
            if snapshots.names_in(self._disk) == self._snapshot.names:
                missing = sorted(pin.missing) or [log_files.name_of(frames.number_of(self._snapshot.meta.start))]
                raise Damaged(f"{self.path}/{missing[0]}", 0, "this file is missing")
            self.reload()
        raise self._unsteady()

    def _unsteady(self) -> UnusableDirectory:
        return UnusableDirectory(
            f"the files of {self.path} change faster than they can be held: try again while less is written, or with "
            "the server stopped"
        )

    # --- what Batches uses

    def _current(self, item: TopicItem) -> TopicItem:
        """The same topic instance in the snapshot loaded now."""
        found = self._snapshot.topics.get(item.name)
        if found is None or found.id != item.id:
            raise TopicNotFound(item.name)
        return found

    def _refs(self, item: TopicItem) -> list[PieceRef]:
        return self._snapshot.pieces_of(item)

    def _file(self, number: int) -> SegmentFile:
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = SegmentFile(self._disk, self._snapshot.files[number])
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return file

    def _steadily(self, work: Callable[[], T]) -> T:
        """Do `work`, and do it again on a newer snapshot if the files of this one went away meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return work()
            except Damaged:
                if snapshots.names_in(self._disk) == self._snapshot.names:
                    raise
            except PermissionError as error:
                raise forbidden(self.path, error) from None
            self.reload()
        return work()

    # --- the snapshot

    def _item(self, name: str) -> TopicItem:
        item = self._snapshot.topics.get(name)
        if item is None:
            raise TopicNotFound(name)
        return item

    def _info(self, item: TopicItem) -> TopicInfo:
        live, earliest = 0, item.head + 1
        for ref in reversed(self._snapshot.pieces_of(item)):
            piece = SegmentPiece(self._file(ref.file), ref)
            start = piece.row_from(floor_of(item))
            flags = piece.file.flags(ref.start + start, ref.start + ref.count)
            if LIVE in flags:
                live += flags.count(LIVE)
                earliest = piece.seq_at(start + flags.index(LIVE))
        return TopicInfo(
            item.name,
            item.id,
            item.epoch,
            item.config,
            item.head,
            floor_of(item),
            item.evicted_last,
            item.expired_last,
            tuple(item.gaps),
            earliest,
            sealed_through_of(item),
            live,
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
                    raise Damaged(f"{self.path}/{names[-1]}", 0, f"its items make no sense: {error!r}") from error
            except PermissionError as error:
                raise forbidden(self.path, error) from None
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
            raise Damaged(f"{self.path}/{sealed[0]}", 0, "the snapshots and logs that it belongs to are missing")
        raise UnusableDirectory(f"{self.path} is not a data directory of topics: it has no snapshot and no log")


class Batches:
    """An iterator over record batches, one per piece that has live rows. `lost` grows as it goes on."""

    def __init__(self, directory: Directory, item: TopicItem, after: int, last: int, columns: Sequence[str]) -> None:
        self.lost: list[Lost] = []  # what was passed and could not be yielded, ascending
        self.through = after  # the seq reached: the cursor to go on from
        self._directory = directory
        self._topic = item
        self._last = last
        self._columns = tuple(columns)

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self

    def __next__(self) -> "pa.RecordBatch":
        while self.through < self._last:
            batch = self._directory._steadily(self._step)
            if batch is not None and batch.num_rows:
                return batch
        raise StopIteration

    def _step(self) -> "pa.RecordBatch | None":
        """Read the next piece, or go to the end if there is none."""
        item = self._topic = self._directory._current(self._topic)
        self._last = min(self._last, sealed_through_of(item))  # less than before if the topic is ephemeral now
        first = max(self.through + 1, floor_of(item))
        refs = self._directory._refs(item)
        index = bisect_left(refs, first, key=lambda ref: ref.last)
        if index == len(refs) or refs[index].first > self._last:
            self._pass(item, max(self.through, self._last))
            return None
        ref = refs[index]
        last = min(ref.last, self._last)
        batch = live_rows(self._directory._file(ref.file), ref.start, ref.count, first - 1, last, self._columns)
        self._pass(item, last)
        return batch

    def _pass(self, item: TopicItem, last: int) -> None:
        """Move on to `last`, and note what was lost on the way."""
        for lost in lost_in(item, self.through, last):
            before = self.lost[-1] if self.lost else None
            if before is not None and before.last + 1 == lost.first and before.reason == lost.reason:
                self.lost[-1] = Lost(before.first, lost.last, lost.reason)
            else:
                self.lost.append(lost)
        self.through = last
