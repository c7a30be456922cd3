"""A data directory, open for reading: its topics, and the batches of one.

`open_snapshot` knows which snapshot is read and what to do when its files go away meanwhile, `snapshot` what it says,
`pieces` what a segment holds.

Invariant: of every seq that `Batches` passes, its record was yielded, or was deleted on purpose, or the seq is in
`lost`.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct

from topics.core.dump import TopicItem
from topics.errors import Damaged, TopicNotFound
from topics.model import Gap, TopicConfig
from topics.reader.access import forbidden, open_disk
from topics.reader.checking import Check, Checker
from topics.reader.open_snapshot import ATTEMPTS_MAX, OpenSnapshot
from topics.reader.pieces import COLUMNS, live_rows, schema
from topics.reader.pinning import Pin
from topics.reader.snapshot import Lost, bounded, floor_of, lost_in, sealed_through_of
from topics.storage import frames, log_files, segments
from topics.storage.disk import Disk
from topics.storage.processes import NO_DESCRIPTOR
from topics.storage.segments import LIVE, SegmentPiece

if TYPE_CHECKING:
    import pyarrow as pa


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
        try:
            self._open = OpenSnapshot(disk)
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
        self._open.close()
        self._disk.close()

    def reload(self) -> None:
        """Go on to the newest snapshot."""
        self._open.reload()

    def topics(self) -> list[TopicInfo]:
        """All topics that the snapshot knows, sorted by name; topics created since the last checkpoint are missing."""
        return self._open.steadily(lambda: [self._info(item) for _, item in sorted(self._open.now.topics.items())])

    def topic(self, name: str) -> TopicInfo:
        return self._open.steadily(lambda: self._info(self._open.item(name)))

    @property
    def is_complete(self) -> bool:
        """Whether segments hold all there is: the server was stopped gracefully, and none has run here since.

        Otherwise a topic may have records above its `sealed_through`, which only the log has.
        """
        meta = self._open.now.meta
        if not self._open.now.items or not meta.is_clean:
            return False
        logs = (name for name in self._disk.names() if name.startswith(log_files.PREFIX))
        return all(log_files.number_in(name) < frames.number_of(meta.start) for name in logs)

    def pieces(self, name: str) -> list[Piece]:
        """The pieces in which the live records of a topic lie, ascending; deleted ones may lie between them."""
        return [
            Piece(segments.name_of(ref.file), ref.start, ref.count, ref.first, ref.last, ref.size_bytes)
            for ref in self._open.now.pieces_of(self._open.item(name))
        ]

    def batches(
        self, name: str, after: int = 0, last: int | None = None, columns: Sequence[str] = COLUMNS
    ) -> "Batches":
        """The live sealed records with seqs above `after`, up to `last` or else to `sealed_through`."""
        schema(columns)
        item = self._open.item(name)
        return Batches(self._open, item, after, bounded(item, after, last), columns)

    def lost(self, name: str, after: int = 0, last: int | None = None) -> list[Lost]:
        """What `batches` with the same range would find lost."""
        item = self._open.item(name)
        return list(lost_in(item, after, bounded(item, after, last)))

    def check(self) -> Check:
        """Hold every segment and every log file against its checksums, and all of them against the snapshot."""
        for _ in range(ATTEMPTS_MAX):
            try:
                pin = Pin(self._disk, self._open.now)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                found, is_certain = Checker(self._disk, self._open.now).run(), False
            else:
                with closing(pin):
                    found, is_certain = Checker(pin.disk, self._open.now, pin.segments).run(), pin.is_whole
            if is_certain or not found.faults or self._open.is_newest:
                return found
            self.reload()  # a checkpoint was taken before all files were held, and some are gone
        raise self._open.unsteady()

    def pin(self) -> Pin:
        """Hold the files of the newest snapshot, and the log behind it, as they are now. The caller closes it."""
        for _ in range(ATTEMPTS_MAX):
            try:
                pin = Pin(self._disk, self._open.now)
            except PermissionError as error:
                raise forbidden(self.path, error) from None
            if pin.is_whole:
                return pin
            pin.close()
            if self._open.is_newest:
                missing = sorted(pin.missing) or [log_files.name_of(frames.number_of(self._open.now.meta.start))]
                raise Damaged(f"{self.path}/{missing[0]}", 0, "this file is missing")
            self.reload()
        raise self._open.unsteady()

    def _info(self, item: TopicItem) -> TopicInfo:
        live, earliest = 0, item.head + 1
        for ref in reversed(self._open.now.pieces_of(item)):
            piece = SegmentPiece(self._open.file(ref.file), ref)
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


class Batches:
    """An iterator over record batches, one per piece that has live rows. `lost` grows as it goes on."""

    def __init__(self, snapshot: OpenSnapshot, item: TopicItem, after: int, last: int, columns: Sequence[str]) -> None:
        self.lost: list[Lost] = []  # what was passed and could not be yielded, ascending
        self.through = after  # the seq reached: the cursor to go on from
        self._open = snapshot
        self._topic = item
        self._last = last
        self._columns = tuple(columns)

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self

    def __next__(self) -> "pa.RecordBatch":
        while self.through < self._last:
            batch = self._open.steadily(self._step)
            if batch is not None and batch.num_rows:
                return batch
        raise StopIteration

    def _step(self) -> "pa.RecordBatch | None":
        """Read the next piece, or go to the end if there is none."""
        item = self._topic = self._present()
        self._last = min(self._last, sealed_through_of(item))  # less than before if the topic is ephemeral now
        first = max(self.through + 1, floor_of(item))
        refs = self._open.now.pieces_of(item)
        index = bisect_left(refs, first, key=lambda ref: ref.last)
        if index == len(refs) or refs[index].first > self._last:
            self._pass(item, max(self.through, self._last))
            return None
        ref = refs[index]
        last = min(ref.last, self._last)
        batch = live_rows(self._open.file(ref.file), ref.start, ref.count, first - 1, last, self._columns)
        self._pass(item, last)
        return batch

    def _present(self) -> TopicItem:
        """The same topic instance in the snapshot that is read now."""
        found = self._open.item(self._topic.name)
        if found.id != self._topic.id:
            raise TopicNotFound(found.name)
        return found

    def _pass(self, item: TopicItem, last: int) -> None:
        """Move on to `last`, and note what was lost on the way."""
        for lost in lost_in(item, self.through, last):
            before = self.lost[-1] if self.lost else None
            if before is not None and before.last + 1 == lost.first and before.reason == lost.reason:
                self.lost[-1] = Lost(before.first, lost.last, lost.reason)
            else:
                self.lost.append(lost)
        self.through = last
