"""The catalogue: which files of a data directory are in force.

Recovery fills it from the snapshot, a checkpoint changes it when its own snapshot is installed, and whatever the
catalogue does not name may be removed. It knows pieces and files, not what is in them, nor how they are made.

Invariants, while no checkpoint is under way
- A piece in force lies in a file that the snapshot names, and `pieces` has it under that file's number.
- An obsolete piece, which the snapshot still names, is not in force.
- `next_segment` is above the number of every file.
"""

import threading
from collections import deque

import msgspec
from msgspec.structs import replace

from topics.core import dump
from topics.core.topic.parts import Part
from topics.engine.durability.recovery import NONSENSE, Contents, Meta, Recovery, file_key, piece_key
from topics.errors import Damaged
from topics.storage import frames, log_files, segments
from topics.storage.disk import Disk
from topics.storage.segments import PieceRef, SegmentFile, SegmentPiece
from topics.storage.snapshots import Snapshots, names_in

REDUCIBLE_PART = (3, 4)  # on a full disk a file of which less than this is in force is rewritten, if that fits
SPARSE_FACTOR = 4  # a file this much larger than what is in force of it is rewritten
MAPPED_BYTES_MAX = 24 * 1024 * 1024  # of files that stay mapped


class Maps:
    """The mapped files, oldest first; beyond a limit the oldest are unmapped. For any thread."""

    def __init__(self) -> None:
        self._files: deque[SegmentFile] = deque()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def add(self, file: SegmentFile) -> None:
        with self._lock:
            self._files.append(file)
            self.size_bytes += file.ref.size_bytes
        self.shrink(max(MAPPED_BYTES_MAX, file.ref.size_bytes))

    def shrink(self, bytes_max: int = 0) -> None:
        with self._lock:
            while self.size_bytes > bytes_max:
                file = self._files.popleft()
                self.size_bytes -= file.ref.size_bytes
                file.let_go()


class Catalogue:
    """Snapshot, segments and pieces in force, and from where the log counts."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.maps = Maps()
        self.snapshots = Snapshots(disk)
        self.installing = threading.Lock()  # a snapshot is installed off the loop, and loaded after a failure on it
        self.meta = Meta()  # as of the snapshot, while no checkpoint is under way
        self.start = frames.position_of(1, 0)  # of the log
        self.sealed_bytes = 0  # of the log appended in this run, behind a checkpoint
        self.flagged_at = 0  # delete flags may be ahead of the snapshot, up to this position of the log
        self.next_segment = 1
        self.files: dict[int, SegmentFile] = {}  # that the snapshot names
        self.pieces: dict[int, set[SegmentPiece]] = {}  # in force, by file
        self.obsolete: list[PieceRef] = []  # pieces in the snapshot that nothing refers to any more

    def load(self, void: frozenset[int] = frozenset()) -> Recovery:
        """Start over from the snapshot on the disk. The log is still to be replayed, without the frames in `void`."""
        with self.installing:
            items = self.snapshots.load() or {}
            if not items:
                self._check_is_new()
            try:
                return self._load(items, void)
            except NONSENSE as error:
                name = names_in(self._disk)[-1] if items else "no snapshot"
                raise Damaged(f"{self._disk.path}/{name}", 0, f"its items make no sense: {error!r}") from error

    def _check_is_new(self) -> None:
        """Refuse segments that neither a snapshot nor a log is there to explain: somebody removed both (G5)."""
        names = self._disk.names()
        sealed = [name for name in names if segments.number_in(name) is not None]
        if sealed and not any(name.startswith(log_files.PREFIX) for name in names):
            raise Damaged(f"{self._disk.path}/{sealed[0]}", 0, "the snapshots and logs that it belongs to are missing")

    def _load(self, items: dict[bytes, bytes], void: frozenset[int]) -> Recovery:
        contents = Contents(items)
        self.meta = contents.meta
        self.start = contents.meta.start
        self.next_segment = max(self.next_segment, contents.meta.next_segment, *(n + 1 for n in contents.files))
        self.files = {number: SegmentFile(self._disk, ref, self.maps.add) for number, ref in contents.files.items()}
        self.pieces = {}
        recovery = Recovery(self._disk, contents, self.files, void=void)
        for piece in recovery.attached:
            self.put_in_force(piece)
        self.obsolete = recovery.unattached
        return recovery

    def announce_log(self, number: int) -> None:
        """Say in the snapshot that the log has come to file `number`: should the file get lost, it is missed. Blocking.

        Nothing that was written to that file may be acked before.
        """
        with self.installing:
            meta = replace(self.meta, is_clean=False, last_log=number)
            self.snapshots.install({dump.META: msgspec.msgpack.encode(meta)})
            self.meta = meta

    @property
    def announced_log(self) -> int:
        """The number of the newest log file that the snapshot knows."""
        return 0 if self.meta.is_clean else max(self.meta.last_log, frames.number_of(self.meta.start))

    def put_in_force(self, piece: SegmentPiece) -> None:
        self.pieces.setdefault(piece.ref.file, set()).add(piece)

    def adopt(self, parts: list[Part]) -> None:
        """Keep the pieces among `parts` in force: their topic was not rebuilt and goes on reading them."""
        for part in parts:
            if isinstance(part, SegmentPiece):
                self.put_in_force(part)
                self.obsolete = [ref for ref in self.obsolete if ref != part.ref]

    def is_in_force(self, part: Part) -> bool:
        """Whether `part` is what its topic's records are read from, not one that a checkpoint replaced."""
        return isinstance(part, SegmentPiece) and part in self.pieces.get(part.ref.file, ())

    def sparse_files(self) -> set[int]:
        """Files of which little is in force."""
        live = {number: sum(piece.live_count for piece in pieces) for number, pieces in self.pieces.items()}
        return {number for number, count in live.items() if count * SPARSE_FACTOR < self.files[number].ref.count}

    def reducible_files(self, bytes_max: float) -> set[int]:
        """Files of which a good part is dead, the cheapest to rewrite first, as many as fit: for a full disk."""
        cheapest = sorted((sum(piece.live_bytes for piece in self.pieces[number]), number) for number in self.pieces)
        found = set()
        for size, number in cheapest:
            live, count = sum(piece.live_count for piece in self.pieces[number]), self.files[number].ref.count
            if live * REDUCIBLE_PART[1] < count * REDUCIBLE_PART[0] and size <= bytes_max:
                found.add(number)
                bytes_max -= size
        return found

    def ending(self, refs: list[PieceRef]) -> dump.Items:
        """The items that end pieces, and the files that nothing but these refers to."""
        items: dump.Items = {piece_key(ref): None for ref in refs}
        named = [*self.obsolete, *(piece.ref for ref in refs for piece in self.pieces.get(ref.file, ()))]
        kept = {ref.file for ref in named if piece_key(ref) not in items}
        items |= {file_key(ref.file): None for ref in refs if ref.file not in kept}
        return items

    def forget(self, refs: list[PieceRef]) -> None:
        """The snapshot does not name these pieces any more, nor their files if it names no other piece of them."""
        ended = set(refs)
        self.obsolete = [ref for ref in self.obsolete if ref not in ended]
        kept = {ref.file for ref in self.obsolete}
        for ref in refs:
            pieces = self.pieces.get(ref.file, set())
            pieces -= {piece for piece in pieces if piece.ref == ref}
            if not pieces:
                self.pieces.pop(ref.file, None)
                if ref.file not in kept:
                    self.files.pop(ref.file, None)

    def superfluous(self, *, keeps_last_log: bool = False) -> list[str]:
        """Log and segment files on the disk that are not in force. Blocking.

        A graceful stop keeps the last log file although it is empty: if the snapshot gets lost, it tells.
        """
        first_log = frames.number_of(self.start) - keeps_last_log
        names = self._disk.names()
        logs = [name for name in names if name.startswith(log_files.PREFIX) and log_files.number_in(name) < first_log]
        numbers = {name: segments.number_in(name) for name in names}
        return [*logs, *(name for name, number in numbers.items() if number is not None and number not in self.files)]

    def check(self) -> None:
        """Assert the invariants."""
        for number, pieces in self.pieces.items():
            assert number in self.files, f"segment {number} has pieces in force, and the snapshot does not name it"
            assert all(piece.ref.file == number and piece.file.ref.number == number for piece in pieces)
        in_force = {piece.ref for pieces in self.pieces.values() for piece in pieces}
        assert in_force.isdisjoint(self.obsolete), "a piece is in force and obsolete"
        assert all(ref.file in self.files for ref in self.obsolete), "a file that the snapshot names is gone"
        assert self.next_segment > max(self.files, default=0), "a segment would be written over"
