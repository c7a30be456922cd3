"""The public reader of a data directory: its sealed records as Arrow batches.

    with topics.segments.open_directory("topics-data") as directory:
        for batch in directory.batches("orders", after=0):
            ...  # a pyarrow.RecordBatch: seq, ts, node, tag, meta, data

It reads the snapshot in force and the segments that it names. It takes no lock
and writes nothing, so a server may be running on the directory. What it shows
is the directory as of the last checkpoint, less what was deleted since: records
that are still in the log only, above a topic's `sealed_through`, are not read.

Owned here: which rows are live as of a snapshot, what to do when files go
away while they are read, and what must hold between a snapshot, its segments
and the log. What became of every seq, by all of these, is the business of
`accounts`. Nothing here knows the engine or the clock.

Invariant: of every seq that a reader passes, its record was yielded, or was
deleted on purpose, or the seq is in `lost`.
"""

import errno
import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from topics.accounts import Account, Accounts
from topics.core.copies import MissingRecord
from topics.core.dump import META, TopicItem
from topics.core.entries import UnknownEntry
from topics.errors import Damaged, InvalidRequest, TopicNotFound, UnusableDirectory
from topics.model import Gap, Reason, TopicConfig
from topics.storage import frames, replay, segments, snapshots
from topics.storage.files import Disk, RealDisk
from topics.storage.segments import DELETED, LIVE, Column, FileRef, PieceRef, SegmentFile, SegmentRows

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("seq", "ts", "node", "tag", "meta", "data")
ATTEMPTS_MAX: Final = 16  # readings of a directory that changes under the reader
FILES_MAX: Final = 256  # segments kept open; before Python 3.13 each costs a descriptor

T = TypeVar("T")
_decode_topic = msgspec.msgpack.Decoder(TopicItem).decode


class _Meta(Struct, array_like=True):
    """What a reader needs of the snapshot's item on the whole instance."""

    start: int  # log position at which recovery starts
    next_id: int
    next_segment: int
    is_clean: bool  # taken at a graceful stop


_decode_meta = msgspec.msgpack.Decoder(_Meta).decode


class TopicInfo(Struct, frozen=True):
    """A topic as of the snapshot in force."""

    name: str
    id: int
    epoch: int
    config: TopicConfig
    head: int
    floor: int  # one above the highest seq lost to a cap or to age
    cap_hi: int
    ttl_hi: int
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


class Lost(NamedTuple):
    """Seqs `first`..`last`, lost to a cap, to age or with a router's source; not deleted on purpose."""

    first: int
    last: int
    reason: Reason  # cap, ttl, mixed or source_trim


class Fault(Struct, frozen=True):
    """Something in a data directory that is not as it was written.

    `is_certain` is False where a delete leaves the same traces, and there is no account of the topic that tells: a
    piece that was deleted as a whole is taken out of the snapshot without a mark on its rows, if other topics still
    need the file.
    """

    file: str  # "" = what the snapshot says of a topic
    topic: str  # "" = not of one topic
    message: str
    is_certain: bool = True


class Check(Struct, frozen=True):
    """What `Directory.check` has looked at, and what it found."""

    faults: list[Fault]
    accounts: list[Account]  # of the topics that can be read as a whole, at the end of the log
    segments: int
    segment_bytes: int
    log_files: int
    log_frames: int


def open_directory(path: str | os.PathLike[str]) -> "Directory":
    """Open the data directory `path` for reading. A server may be running on it."""
    return Directory(_open_disk(path))


def read_piece(
    path: str | os.PathLike[str],
    file: str,
    start: int,
    count: int,
    *,
    after: int = 0,
    last: int | None = None,
    columns: Sequence[str] = COLUMNS,
) -> "pa.RecordBatch":
    """The live rows of one piece (`Directory.pieces`) with seqs above `after` and up to `last`.

    For processes that have no Directory: the file alone is read. It does not know the topic's
    floor, so `after` must be at least `floor - 1`. FileNotFoundError: a newer checkpoint has
    replaced the file; the same seqs are in other pieces now, if they are live.
    """
    disk = _open_disk(path)
    try:
        segment = SegmentFile(disk, _ref_in(disk, file))
        if not 0 <= start <= start + count <= segment.ref.count:
            raise InvalidRequest(f"{file} has {segment.ref.count} rows, not {start} to {start + count}")
        return _live_rows(segment, start, count, after, last, columns)
    except Damaged:
        if file not in disk.names():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from None
        raise
    finally:
        disk.close()


def schema(columns: Sequence[str] = COLUMNS) -> "pa.Schema":
    """The Arrow schema of batches with these columns."""
    import pyarrow as pa

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"there is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    whole = segments.schema()
    return pa.schema([whole.field(name) for name in columns])


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """All topics that the snapshot knows, sorted by name; one created since the last checkpoint it does not."""
        return self._steadily(lambda: [self._info(item) for _, item in sorted(self._snapshot.topics.items())])

    def topic(self, name: str) -> TopicInfo:
        return self._steadily(lambda: self._info(self._item(name)))

    @property
    def is_complete(self) -> bool:
        """Whether segments hold all there is: the server was stopped gracefully, and none has run here since.

        Otherwise a topic may have records above its `sealed_through`, which only the log has.
        """
        meta = self._snapshot.meta
        if meta is None or not meta.is_clean:
            return False
        logs = (name for name in self._disk.names() if name.startswith(replay.PREFIX))
        return all(replay.number_in(name) < frames.number_of(meta.start) for name in logs)

    def pieces(self, name: str) -> list[Piece]:
        """The pieces in which the live records of a topic lie, ascending; deleted ones may lie between them."""
        return [
            Piece(segments.name_of(ref.file), ref.start, ref.count, ref.first, ref.last, ref.size_bytes)
            for ref in self._snapshot.pieces(self._item(name))
        ]

    def batches(
        self, name: str, after: int = 0, last: int | None = None, columns: Sequence[str] = COLUMNS
    ) -> "Batches":
        """The live sealed records with seqs above `after`, up to `last` or else to `sealed_through`."""
        schema(columns)
        item = self._item(name)
        return Batches(self, item, after, _bounded(item, after, last), columns)

    def lost(self, name: str, after: int = 0, last: int | None = None) -> list[Lost]:
        """What `batches` with the same range would find lost."""
        item = self._item(name)
        return list(_lost(item, after, _bounded(item, after, last)))

    def check(self) -> Check:
        """Hold every segment and every log file against its checksums, and all of them against the snapshot."""
        for _ in range(ATTEMPTS_MAX):
            found = _Checker(self._disk, self._snapshot).run()
            if not found.faults or self._names() == self._snapshot.names:
                return found
            self.reload()  # a checkpoint was taken meanwhile, and files are gone
        return found

    # --- what Batches uses

    def _current(self, item: TopicItem) -> TopicItem:
        """The same topic instance in the snapshot loaded now."""
        found = self._snapshot.topics.get(item.name)
        if found is None or found.id != item.id:
            raise TopicNotFound(item.name)
        return found

    def _refs(self, item: TopicItem) -> list[PieceRef]:
        return self._snapshot.pieces(item)

    def _file(self, number: int) -> SegmentFile:
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = SegmentFile(self._disk, self._snapshot.files[number])
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return file

    def _steadily(self, work: Callable[[], T]) -> T:
        """Do `work`; once more on a newer snapshot, if the files of this one went away meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return work()
            except Damaged:
                if self._names() == self._snapshot.names:
                    raise
            except PermissionError as error:
                raise _forbidden(self.path, error) from None
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
        for ref in reversed(self._snapshot.pieces(item)):
            rows = SegmentRows(self._file(ref.file), ref)
            start = rows.row_from(_floor(item))
            flags = _flags(rows.file, ref.start + start, ref.start + ref.count)
            if LIVE in flags:
                live += flags.count(LIVE)
                earliest = rows.seq_at(start + flags.index(LIVE))
        return TopicInfo(
            item.name,
            item.id,
            item.epoch,
            item.config,
            item.head,
            _floor(item),
            item.cap_hi,
            item.ttl_hi,
            tuple(item.gaps),
            earliest,
            _sealed_through(item),
            live,
        )

    def _names(self) -> list[str]:
        """The snapshot files. They change whenever a snapshot is installed."""
        names = self._disk.names()
        return [n for n in names if n.startswith(snapshots.PREFIX) and not n.endswith(snapshots.TEMPORARY)]

    def _load(self) -> "_Snapshot":
        for attempt in range(ATTEMPTS_MAX):
            names = self._names()
            if not names:
                self._check_is_ours()
            try:
                return _Snapshot(names, snapshots.Snapshots(self._disk).load() or {})
            except PermissionError as error:
                raise _forbidden(self.path, error) from None
            except (FileNotFoundError, Damaged):
                if self._names() == names or attempt == ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("not reached")

    def _check_is_ours(self) -> None:
        """A directory without a snapshot may be one whose first checkpoint is still to come."""
        if not any(name.startswith(replay.PREFIX) for name in self._disk.names()):
            raise UnusableDirectory(f"{self.path} is not a data directory of topics: it has no snapshot and no log")


class Batches:
    """An iterator over record batches, one per piece that has live rows. While it goes on, `lost` grows."""

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
        self._last = min(self._last, _sealed_through(item))  # less than before if the topic is ephemeral now
        first = max(self.through + 1, _floor(item))
        refs = self._directory._refs(item)
        index = bisect_left(refs, first, key=lambda ref: ref.last)
        if index == len(refs) or refs[index].first > self._last:
            self._pass(item, max(self.through, self._last))
            return None
        ref = refs[index]
        last = min(ref.last, self._last)
        batch = _live_rows(self._directory._file(ref.file), ref.start, ref.count, first - 1, last, self._columns)
        self._pass(item, last)
        return batch

    def _pass(self, item: TopicItem, last: int) -> None:
        """Move on to `last`, and note what was lost on the way."""
        for lost in _lost(item, self.through, last):
            before = self.lost[-1] if self.lost else None
            if before is not None and before.last + 1 == lost.first and before.reason == lost.reason:
                self.lost[-1] = Lost(before.first, lost.last, lost.reason)
            else:
                self.lost.append(lost)
        self.through = last


class _Snapshot:
    """What a snapshot says of topics, pieces and files. `names` are the snapshot files that were there."""

    def __init__(self, names: list[str], items: dict[bytes, bytes]) -> None:
        self.names = names
        self.items = items
        self.meta = _decode_meta(items[META]) if META in items else None
        self.topics: dict[str, TopicItem] = {}
        self.files: dict[int, FileRef] = {}
        self._pieces: dict[int, list[PieceRef]] = {}  # by topic, ascending
        for key, value in sorted(items.items()):
            if key.startswith(b"t"):
                item = _decode_topic(value)
                self.topics[item.name] = item
            elif key.startswith(b"f"):
                file = segments.decode_file(value)
                self.files[file.number] = file
            elif key.startswith(b"s"):
                ref = segments.decode_piece(value)
                self._pieces.setdefault(ref.topic, []).append(ref)

    def all_pieces(self) -> Iterator[PieceRef]:
        for refs in self._pieces.values():
            yield from refs

    def pieces(self, item: TopicItem) -> list[PieceRef]:
        """The pieces of a topic that lie above its floor. What an ephemeral topic once sealed does not count."""
        if not _sealed_through(item):
            return []
        refs = self._pieces.get(item.id, [])
        return refs[bisect_left(refs, _floor(item), key=lambda ref: ref.last) :]


def _floor(item: TopicItem) -> int:
    return max(item.cap_hi, item.ttl_hi) + 1


def _lost(item: TopicItem, after: int, last: int) -> Iterator[Lost]:
    """The stretches of after + 1 .. last that were lost, ascending. Below the floor, all of it counts (TM4)."""
    first, floor = after + 1, _floor(item)
    if first < floor and first <= last:
        reason: Reason = "mixed"
        if item.ttl_hi < first:
            reason = "cap"
        elif item.cap_hi < first:
            reason = "ttl"
        yield Lost(first, min(last, floor - 1), reason)
    for gap in item.gaps:
        start, end = max(gap.first, first, floor), min(gap.last, last)
        if start <= end:
            yield Lost(start, end, gap.reason)


def _sealed_through(item: TopicItem) -> int:
    """A checkpoint seals all records of a topic, so segments reach as far as its item."""
    return 0 if item.config.durability == "ephemeral" else item.head


def _bounded(item: TopicItem, after: int, last: int | None) -> int:
    """The last seq of a range, within what is sealed."""
    if after < 0:
        raise InvalidRequest(f"after is {after}; a cursor is not negative")
    sealed_through = _sealed_through(item)
    return sealed_through if last is None else min(last, sealed_through)


# --- rows


def _live_rows(
    file: SegmentFile, start: int, count: int, after: int, last: int | None, columns: Sequence[str]
) -> "pa.RecordBatch":
    """Of the rows start .. start + count of a file, those not deleted with seqs above `after` and up to `last`.

    Where no row is deleted, the batch is a slice of the memory map; otherwise the live rows are copied.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    fields, view, stop = schema(columns), file.checked(), start + count
    offset, size = file.ref.columns["seq"].values
    seqs = view[offset : offset + size].cast("Q")
    start = bisect_right(seqs, after, start, stop)
    stop = stop if last is None else bisect_right(seqs, last, start, stop)
    whole = pa.py_buffer(view)
    batch = pa.RecordBatch.from_arrays([_array(whole, file.ref, field) for field in fields], schema=fields)
    batch = batch.slice(start, stop - start)
    flags = _flags(file, start, stop)
    if DELETED not in flags:
        return batch
    marks = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])
    return batch.filter(pc.equal(marks, pa.scalar(LIVE, pa.uint8())))


def _array(whole: "pa.Buffer", file: FileRef, field: "pa.Field") -> "pa.Array":
    """A column of a file, over the bytes as they are in it."""
    import pyarrow as pa

    column = file.columns[field.name]
    places = [column.offsets, column.values] if column.offsets[1] else [column.values]
    validity = whole.slice(*column.validity) if column.validity[1] else None
    buffers = [whole.slice(offset, size) if size else pa.py_buffer(b"") for offset, size in places]
    return pa.Array.from_buffers(field.type, file.count, [validity, *buffers])


def _flags(file: SegmentFile, start: int, stop: int) -> bytes:
    """The delete flags of rows start..stop, as they are at this moment."""
    base = file.ref.columns["deleted"].values[0]
    flags = bytes(file.view()[base + start : base + stop])
    if flags.count(LIVE) + flags.count(DELETED) != len(flags):
        row = next(row for row, flag in enumerate(flags) if flag not in (LIVE, DELETED))
        raise Damaged(file.path, base + start + row, f"a delete flag is {flags[row]}")
    return flags


# --- checking


class _Checker:
    """One check of a directory against one of its snapshots."""

    def __init__(self, disk: Disk, snapshot: _Snapshot) -> None:
        self._disk = disk
        self._snapshot = snapshot
        self._names = {item.id: item.name for item in snapshot.topics.values()}
        self._faults: list[Fault] = []
        self._files: dict[int, SegmentFile] = {}  # that are whole
        self._damaged: set[int] = set()  # topics, by id, whose pieces are not what the snapshot says
        self._unnamed: list[tuple[SegmentFile, int, list[int]]] = []  # rows in no piece: segment, topic, seqs

    def run(self) -> Check:
        by_file: dict[int, list[PieceRef]] = {number: [] for number in self._snapshot.files}
        for ref in self._snapshot.all_pieces():
            if ref.file in by_file:
                by_file[ref.file].append(ref)
            else:
                self._fault_of_piece(ref, "a piece names this segment, and the snapshot does not know it")
        for number, refs in by_file.items():
            self._check_file(self._snapshot.files[number], sorted(refs, key=lambda ref: ref.start))
        for item in self._snapshot.topics.values():
            self._check_topic(item)
        self._check_history()
        accounts, log_files, log_frames = self._check_log()
        self._judge(accounts)
        size_bytes = sum(file.size_bytes for file in self._snapshot.files.values())
        return Check(self._faults, list(accounts.values()), len(by_file), size_bytes, log_files, log_frames)

    def _fault(self, file: int | str, topic: int | str, message: str, *, is_certain: bool = True) -> None:
        name = segments.name_of(file) if isinstance(file, int) else file
        owner = self._names.get(topic, "") if isinstance(topic, int) else topic
        self._faults.append(Fault(name, owner, message, is_certain))

    def _fault_of_piece(self, ref: PieceRef, message: str) -> None:
        self._damaged.add(ref.topic)
        self._fault(ref.file, ref.topic, message)

    def _check_file(self, file: FileRef, refs: list[PieceRef]) -> None:
        segment = SegmentFile(self._disk, file)
        try:
            view = segment.checked()
            _flags(segment, 0, file.count)
        except Damaged as error:
            self._fault(file.number, "", str(error))
            self._damaged.update(ref.topic for ref in refs)
            return
        self._files[file.number] = segment
        if not refs:
            self._fault(file.number, "", f"the snapshot has this segment and none of its {file.count} records")
        topics, seqs = _numbers(view, file, "topic", "I"), _numbers(view, file, "seq", "Q")
        covered = 0
        for ref in refs:
            self._check_unnamed(segment, topics, seqs, covered, ref.start)
            covered = ref.start + ref.count
            self._check_piece(file, ref, topics, seqs)
        self._check_unnamed(segment, topics, seqs, covered, file.count)
        segment.let_go()

    def _check_piece(self, file: FileRef, ref: PieceRef, topics: "memoryview[int]", seqs: "memoryview[int]") -> None:
        """Whether the rows of a piece are what the snapshot says of them."""
        start, stop = ref.start, ref.start + ref.count
        rows = f"rows {start} to {stop}"
        if not 0 <= start < stop <= file.count:
            self._fault_of_piece(ref, f"a piece has {rows} of {file.count}")
        elif set(topics[start:stop]) != {ref.topic}:
            self._fault_of_piece(ref, f"{rows} belong to another topic")
        elif (seqs[start], seqs[stop - 1]) != (ref.first, ref.last):
            seqs_said = f"seqs {seqs[start]} to {seqs[stop - 1]}; the snapshot says {ref.first} to {ref.last}"
            self._fault_of_piece(ref, f"{rows} have {seqs_said}")
        elif any(b <= a for a, b in pairwise(seqs[start:stop])):
            self._fault_of_piece(ref, f"{rows} are not ascending by seq")

    def _check_unnamed(
        self, segment: SegmentFile, topics: "memoryview[int]", seqs: "memoryview[int]", start: int, stop: int
    ) -> None:
        """Rows in no piece: of a topic that is gone, lost, deleted, in a newer segment; or a silent hole."""
        flags = _flags(segment, start, stop) if stop > start else b""
        unnamed: dict[int, list[int]] = {}
        for row, flag in enumerate(flags, start):
            if flag == LIVE and topics[row] in self._names:
                unnamed.setdefault(topics[row], []).append(seqs[row])
        for topic, missing in unnamed.items():
            item = self._snapshot.topics[self._names[topic]]
            refs = self._snapshot.pieces(item)
            missing = [seq for seq in missing if _is_unexplained(seq, item, refs)]
            if missing:
                self._unnamed.append((segment, topic, missing))

    def _judge(self, accounts: dict[int, Account]) -> None:
        """Say which accounts are not whole, and of the rows in no piece those whose topic's account is not."""
        for account in accounts.values():
            if account.fault:
                self._fault("", account.topic, account.fault)
        for segment, topic, missing in self._unnamed:
            told = accounts.get(topic)
            if told is not None and not told.fault:
                continue  # they were deleted, as a whole piece
            message = (
                f"seqs {missing[0]} to {missing[-1]} ({len(missing)} records) are in this segment and not marked "
                "as deleted, but in no piece of the snapshot, and no loss is announced"
            )
            is_only = not any(ref.file == segment.ref.number for ref in self._snapshot.all_pieces())
            self._fault(segment.name, topic, message, is_certain=is_only or told is not None)

    def _check_topic(self, item: TopicItem) -> None:
        refs = self._snapshot.pieces(item)
        for one, other in pairwise(refs):
            if other.first <= one.last:
                self._fault_of_piece(other, f"pieces overlap at seq {other.first}")
        if refs and refs[-1].last > item.head:
            self._fault_of_piece(refs[-1], f"a piece ends at seq {refs[-1].last}, above the head {item.head}")
        if _floor(item) > item.head + 1:
            self._fault("", item.name, f"the floor {_floor(item)} lies above the head {item.head}")
        for gap in item.gaps:
            if not gap.first <= gap.last <= item.head:
                self._fault("", item.name, f"the gap {gap.first} to {gap.last} is none below the head {item.head}")

    def _check_history(self) -> None:
        """Watermarks and gaps do not go back: hold each snapshot against the one before, as far as they are kept."""
        before: dict[int, TopicItem] = {}
        bases = [name for name in self._snapshot.names if name.endswith(snapshots.BASE)]
        for name in self._snapshot.names:
            if not bases or name < bases[-1]:
                continue
            past = _Past(self._disk.path, name)
            try:
                snapshot = _Snapshot([], snapshots.Snapshots(past).load() or {})
            except (Damaged, FileNotFoundError) as error:
                self._fault(name, "", str(error))
                return
            finally:
                past.close()
            now = {item.id: item for item in snapshot.topics.values()}
            for id, item in now.items():
                if id in before and (said := _gone_back(before[id], item)):
                    self._fault(name, item.name, said)
            before = now

    def _check_log(self) -> tuple[dict[int, Account], int, int]:
        """Read all frames that recovery would read. A torn end is none of damage: what was acked lies before it."""
        meta = self._snapshot.meta
        log, count = replay.Replay(self._disk, frames.position_of(1, 0) if meta is None else meta.start), 0
        try:
            accounts = Accounts(self._snapshot.items, self._files, self._damaged)
            for frame in log.read():
                accounts.replay(frame)
                count += 1
        except (Damaged, UnusableDirectory, UnknownEntry, MissingRecord) as error:
            self._fault(replay.PREFIX + "*", "", str(error))
        except FileNotFoundError as error:
            self._fault(str(error.filename), "", "this log file went away")
        else:
            if meta is None or meta.is_clean or log.files:
                return accounts.close(), len(log.files), count
            self._fault(replay.name_of(frames.number_of(meta.start)), "", "this log file is missing")
        return {}, len(log.files), count


class _Past(RealDisk):
    """A directory as if the snapshot files behind `last` were not there."""

    def __init__(self, path: str, last: str) -> None:
        super().__init__(path, create=False)
        self._last = last

    def names(self) -> list[str]:
        return [name for name in super().names() if not name.startswith(snapshots.PREFIX) or name <= self._last]


def _gone_back(before: TopicItem, now: TopicItem) -> str:
    """What a newer snapshot no longer says of a topic, though nothing takes it back (TM14)."""
    for name in ("head", "cap_hi", "ttl_hi"):
        was, has = getattr(before, name), getattr(now, name)
        if has < was:
            return f"{name} was {was} in the snapshot before, and is {has}: an announced loss is taken back"
    for gap in before.gaps:
        if gap.last >= _floor(now) and not any(a.first <= gap.first and gap.last <= a.last for a in now.gaps):
            return f"the gap {gap.first} to {gap.last} was announced in the snapshot before, and is not any more"
    return ""


def _numbers(view: memoryview, file: FileRef, name: str, code: Literal["I", "Q"]) -> "memoryview[int]":
    offset, size = file.columns[name].values
    return view[offset : offset + size].cast(code)


def _is_unexplained(seq: int, item: TopicItem, refs: list[PieceRef]) -> bool:
    """Whether a record that is in no piece should be: it is not lost, not sealed anew, and not still in the log."""
    if not _floor(item) <= seq <= _sealed_through(item) or any(gap.first <= seq <= gap.last for gap in item.gaps):
        return False
    index = bisect_left(refs, seq, key=lambda ref: ref.last)
    return index == len(refs) or refs[index].first > seq


# --- one file alone


def _ref_in(disk: Disk, name: str) -> FileRef:
    """What a snapshot would keep of a segment, taken from the file's own Arrow metadata."""
    import pyarrow as pa

    number = segments.number_in(name)
    if number is None:
        raise InvalidRequest(f"{name!r} is not the name of a segment")
    path = f"{disk.path}/{name}"
    try:
        file = disk.open(name, writable=False)
    except PermissionError as error:
        raise _forbidden(disk.path, error) from None
    image = pa.py_buffer(file.map())
    file.close()
    try:
        with pa.ipc.open_file(image) as reader:
            if reader.num_record_batches != 1:
                raise Damaged(path, 0, f"it has {reader.num_record_batches} record batches, not one")
            found, batch = reader.schema, reader.get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(path, 0, f"it cannot be read as an Arrow file: {error}") from None
    checksums = _checksums(path, found)
    columns = {name: _column(batch.column(name), image.address, checksums.get(name, "")) for name in found.names}
    _check_sizes(path, columns, batch.num_rows)
    return FileRef(number, image.size, batch.num_rows, columns)


def _checksums(path: str, found: "pa.Schema") -> dict[str, str]:
    """The checksums by column, of a file whose schema is that of a segment."""
    pairs = (found.metadata or {}).items()
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}
    version = metadata.get("topics.format", "")
    if version.isdigit() and int(version) > int(segments.FORMAT_VERSION):
        raise UnusableDirectory(
            f"{path} is of version {version}; this program reads up to version {segments.FORMAT_VERSION}"
        )
    if version != segments.FORMAT_VERSION or not found.equals(segments.schema()):
        raise Damaged(path, 0, "its schema is not that of a segment")
    return {key.removeprefix("topics.xxh3."): value for key, value in metadata.items()}


def _column(array: "pa.Array", base: int, checksum: str) -> Column:
    places = [(buffer.address - base, buffer.size) if buffer is not None else (0, 0) for buffer in array.buffers()]
    return Column(places[0], places[1] if len(places) == 3 else (0, 0), places[-1], checksum)


def _check_sizes(path: str, columns: dict[str, Column], count: int) -> None:
    """Refuse columns that do not have `count` rows: their checksums would not cover every row."""
    import pyarrow as pa

    for field in segments.schema():
        column, is_text = columns[field.name], pa.types.is_string(field.type)
        offset, size = column.offsets if is_text else column.values
        wanted = 4 * (count + 1) if is_text else field.type.byte_width * count
        if size != wanted:
            raise Damaged(path, offset, f"column {field.name} has {size} bytes where {count} rows have {wanted}")


# --- opening


def _open_disk(path: str | os.PathLike[str]) -> Disk:
    try:
        return RealDisk(path, create=False)
    except UnusableDirectory as error:
        cause = error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else str(error)
        raise UnusableDirectory(f"cannot read data directory {os.fspath(path)}: {why}") from None


def _forbidden(path: str, error: PermissionError) -> UnusableDirectory:
    return UnusableDirectory(
        f"cannot read {path}/{error.filename}: user {os.geteuid()} may not; files of a data directory are for "
        "their owner only, so read as that user"
    )
