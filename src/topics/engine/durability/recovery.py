"""Recovery: the snapshot, segments and log of a data directory, joined into the state that they describe.

One loader for everybody: the engine opens a directory with it, and reads the directory back after the log failed; the
accounts replay a directory that another process may be using. Owned here: what a snapshot says of the instance, its
files and pieces, which rows of a piece a topic's log gets, and how frames are replayed. Nothing is written or locked.
Who keeps the files, and what happens to pieces that no topic needs, is up to the caller.

    m                                 the instance: `Meta`
    f + number                        a segment file
    s + topic + first seq + file      a piece of a segment file

The other keys of a snapshot belong to `core.dump`.
"""

import struct
from collections import Counter
from collections.abc import Container, Iterator, Mapping

import msgspec
from msgspec import Struct

from topics.core import dump, entries
from topics.core.apply import apply, end_replay, replay
from topics.core.entries import AnyEntry, GapOpened, Reincarnated
from topics.core.routing.copies import MissingRecord
from topics.core.routing.table import lowered_cursors
from topics.core.state import State
from topics.core.topic.log import Log
from topics.engine.durability.singles import Singles
from topics.errors import Damaged, UnusableDirectory
from topics.storage import frames, log_files, segments
from topics.storage.disk import Disk
from topics.storage.log_files import Replay, Stretch
from topics.storage.segments import FileRef, PieceRef, SegmentFile, SegmentPiece
from topics.storage.snapshots import names_in

# What bytes with a right checksum raise that say nothing this program would have written.
NONSENSE = (
    msgspec.MsgspecError,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
)


class Meta(Struct, array_like=True):
    """The snapshot's item on the whole instance."""

    start: int = frames.position_of(1, 0)  # log position at which recovery starts
    next_id: int = 1
    next_segment: int = 1
    is_clean: bool = True  # taken at a graceful stop, or there never was a snapshot
    last_log: int = 0  # the log has come as far as the file of this number, at least; 0 = not known
    taken_ms: int = 0  # when the checkpoint had captured everything; 0 = not known


_decode_meta = msgspec.msgpack.Decoder(Meta).decode


def file_key(number: int) -> bytes:
    return b"f" + number.to_bytes(8, "big")


def piece_key(ref: PieceRef) -> bytes:
    return b"s" + ref.topic.to_bytes(8, "big") + ref.first.to_bytes(8, "big") + ref.file.to_bytes(8, "big")


class Contents:
    """What a snapshot says of the instance, its files and its pieces. `items` are empty if there is no snapshot."""

    def __init__(self, items: Mapping[bytes, bytes]) -> None:
        self.items = items
        self.meta = _decode_meta(items[dump.META]) if dump.META in items else Meta()
        self.files: dict[int, FileRef] = {}
        self.pieces: list[PieceRef] = []  # by topic, ascending
        for key in sorted([key for key in items if key[0] in b"fs"]):
            if key.startswith(b"f"):
                file = segments.decode_file(items[key])
                self.files[file.number] = file
            else:
                self.pieces.append(segments.decode_piece(items[key]))


class Recovery:
    """The state of a directory on its way up: that of the snapshot at first, of the log's end when all is replayed."""

    def __init__(
        self,
        disk: Disk,
        contents: Contents,
        files: Mapping[int, SegmentFile],
        *,
        void: frozenset[int] = frozenset(),
        unreadable: Container[int] = (),
    ) -> None:
        """Load the snapshot and attach the pieces; the log is not read yet. Flags may be ahead of the snapshot.

        `void` are the positions of frames that do not count, `unreadable` the ids of topics that get no pieces.
        """
        self._disk = disk
        self._meta = contents.meta
        self.state = dump.load(contents.items)
        self.state.next_id = max(self.state.next_id, contents.meta.next_id)
        self.log = Replay(disk, contents.meta.start, void)
        self.frames = 0  # replayed
        self.attached: list[SegmentPiece] = []
        self.unattached: list[PieceRef] = []  # pieces that no topic needs
        try:
            self._attach_pieces(contents.pieces, files, unreadable)
        finally:
            for file in files.values():
                file.hold_flags(False)
        _count_from_here(self.state)
        self.state.count_records()

    def _attach_pieces(
        self, pieces: list[PieceRef], files: Mapping[int, SegmentFile], unreadable: Container[int]
    ) -> None:
        identified: set[int] = set()
        unseen = Counter(ref.file for ref in pieces)
        for ref in pieces:
            unseen[ref.file] -= 1
            topic = self.state.by_id.get(ref.topic)
            if topic is None or not topic.is_logged or ref.topic in unreadable:
                self.unattached.append(ref)
                continue
            if ref.file not in files:
                path = f"{self._disk.path}/{segments.name_of(ref.file)}"
                raise Damaged(path, 0, "a snapshot names a piece of this segment only")
            file = files[ref.file]
            if ref.file not in identified:
                identified.add(ref.file)
                file.identify()
            if unseen[ref.file]:
                file.hold_flags(True)
            piece = SegmentPiece(file, ref)
            if _attach(topic.log, piece):
                self.attached.append(piece)
            else:
                self.unattached.append(ref)
            if not unseen[ref.file]:
                file.hold_flags(False)

    def replay(self) -> Iterator[None]:
        """Replay the log, a little with each step. The state is complete when all is replayed."""
        singles = Singles(self.state)
        for frame in self.log.read_taking(singles.take):
            if isinstance(frame, Stretch):
                self.frames += frame.frames
                yield
                continue
            singles.apply()
            try:
                for entry in entries.decode(frame.payload):
                    replay(self.state, entry, frame.position)
            except entries.UnknownEntry as error:
                path, offset = self._place(frame.position)
                raise UnusableDirectory(f"{path}: offset {offset}: {error}") from None
            except MissingRecord as error:
                raise Damaged(*self._place(frame.position), str(error)) from None
            except NONSENSE as error:
                raise Damaged(
                    *self._place(frame.position), f"the entries of this frame make no sense: {error!r}"
                ) from error
            self.frames += 1
            yield
        singles.apply()
        end_replay(self.state)
        self._check_routers()

    def _check_routers(self) -> None:
        """Refuse routers between topics that are not there: a topic goes with its routers, in one frame."""
        for router in self.state.routers.by_id.values():
            if router.source not in self.state.by_id or router.dest not in self.state.by_id:
                path = f"{self._disk.path}/{names_in(self._disk)[-1]}"
                raise Damaged(path, 0, f"router {router.name} leads from or to a topic that is not there")

    @property
    def missing_log(self) -> str:
        """The log file that the snapshot needs and that was not there when the log was replayed; "" if none is."""
        first = frames.number_of(self._meta.start)
        next_number = self.log.next_number if self.log.files else first
        is_missing = not self._meta.is_clean and next_number <= max(first, self._meta.last_log)
        return log_files.name_of(next_number) if is_missing else ""

    def check_log(self) -> None:
        """Refuse a log of which a file is missing, once it is replayed."""
        if self.missing_log:
            raise Damaged(f"{self._disk.path}/{self.missing_log}", 0, "this log file is missing")

    def announce_losses(self, now: int, *, has_lost_power: bool | None = None) -> list[AnyEntry]:
        """Apply what the stop took without being asked. Gives the entries that announce it, for the log.

        `has_lost_power`: whether the log may have had more than is here; by default the boot id tells.
        """
        log, state = self.log, self.state
        is_clean = self._meta.is_clean and log.boot_id is None
        if has_lost_power is None:
            has_lost_power = not self._disk.boot_id or log.boot_id != self._disk.boot_id
        losses = list(_losses(state, now, is_clean, has_lost_power=not is_clean and has_lost_power))
        for entry in losses:
            apply(state, entry)
        lowered = list(lowered_cursors(state))
        for entry in lowered:
            apply(state, entry)
        return [*losses, *lowered]

    def _place(self, position: int) -> tuple[str, int]:
        """The file of a position, and the offset in it."""
        name = log_files.name_of(frames.number_of(position))
        return f"{self._disk.path}/{name}", frames.offset_of(position)


def _attach(log: Log, piece: SegmentPiece) -> bool:
    """Add a piece to a log under recovery, less its dead rows. False: it has no live row."""
    if piece.last < log.floor:
        return False
    flagged = piece.flagged_rows()
    below = piece.row_from(log.floor) if piece.first < log.floor else 0
    if flagged:
        piece.flagged = -1  # not known to be synced: set again with the next one that is set
    if flagged or below:
        dead = sorted({*flagged, *range(below)})
        piece.live_count -= len(dead)
        piece.live_bytes -= sum(piece.bytes_before(row + 1) - piece.bytes_before(row) for row in dead)
        log.mark_dead(piece.seq_at(row) for row in dead)
    if piece.live_count:
        log.attach(piece)
    return piece.live_count > 0


def _count_from_here(state: State) -> None:
    """Derive what an older version neither counted nor listed, once all pieces are attached."""
    for topic in state.topics.values():
        if topic.log.expired < 0 or topic.log.deleted < 0:
            topic.log.derive_losses()


def _losses(state: State, now: int, is_clean: bool, has_lost_power: bool) -> Iterator[AnyEntry]:
    """What a stop took without being asked (DU9, DU10)."""
    next_id = state.next_id
    for topic in state.topics.values():
        if not topic.is_logged and not is_clean:
            yield Reincarnated(topic.id, next_id, now)
            next_id += 1
        elif topic.reserves and has_lost_power and topic.reservation.last > topic.log.head:
            yield GapOpened(topic.id, topic.reservation.last, "cap", now)  # the next write makes a new reservation
