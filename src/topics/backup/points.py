"""The points of a backup: which there are, what is in one, and whether it is whole.

Owned here: which log belongs to a point, where it ends for a point in time, and the message about an object that is
missing or is not what was put. Nothing is written.

Invariant: every byte that leaves here was held against the checksum in its object's name.
"""

import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from topics.backup import layout
from topics.backup.layout import Chunk, Entry, Point
from topics.backup.places import Place
from topics.core import dump, entries
from topics.engine.durability.shipping import with_flags
from topics.errors import Damaged, TopicsError, UnusableDirectory
from topics.reader.checking import Check, Checker
from topics.reader.snapshot import Snapshot
from topics.storage import frames, log_files, segments, snapshots
from topics.storage.disk import Disk, File

PADDING_BYTES = 4096  # zeros behind the last frame of a log file


class NoSuchPoint(TopicsError):
    """The backup has no point that was asked for."""


class Backup:
    """What lies at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sizes = place.sizes()
        self.points: dict[str, str] = {}  # name → path of the description; by time
        self._chunks: dict[str, list[Chunk]] = {}  # by point
        for path in sorted(self.sizes):
            if (point := layout.point_in(path)) is not None:
                self.points[point] = path
            elif (found := layout.chunk_in(path)) is not None:
                self._chunks.setdefault(found[0], []).append(found[1])
        if not self.points:
            what = "no point of it is complete" if self._chunks or self.sizes else "there is nothing"
            raise UnusableDirectory(f"there is no backup at {place.name}: {what}")

    def get(self, path: str) -> bytes:
        """An object, checked."""
        where = f"{self.place.name}/{path}"
        try:
            data = self.place.get(path)
        except FileNotFoundError:
            raise Damaged(where, 0, "this object is missing") from None
        if xxh3_64_hexdigest(data) != layout.xxh3_in(path):
            raise Damaged(where, 0, f"the object does not match its checksum; it has {len(data)} bytes")
        return data

    def point(self, name: str) -> Point:
        try:
            point = msgspec.json.decode(self.get(self.points[name]), type=Point)
        except msgspec.DecodeError as error:
            raise Damaged(f"{self.place.name}/{self.points[name]}", 0, f"it describes no point: {error}") from None
        if point.format > layout.FORMAT:
            raise UnusableDirectory(f"{self.points[name]} is of format {point.format}; use a newer version of topics")
        return point

    def damaged(self, name: str) -> list[str]:
        """The objects of a point that are missing, or are not what was put."""
        found = []
        point = self.point(name)
        for path in (*objects_of(point), *(chunk.path for chunk in self._chunks.get(name, [])), *point.log):
            try:
                self.get(path)
            except Damaged:
                found.append(path)
        return found

    def choose(self, until: int | None = None) -> "PointDisk":
        """The newest point as a whole or, as of `until`, the first one after it whose log reaches back so far, else
        the newest one before it with what its log has.
        """
        names = sorted(self.points, reverse=True)
        later: tuple[str, Point] | None = None
        for name in names:
            point = self.point(name)
            if until is not None and point.ts > until:
                later = name, point
                continue
            found = self._as_of(later, until)
            return self.open(name, point, until) if found is None else found
        assert until is not None
        if (found := self._as_of(later, until)) is not None:
            return found
        first = layout.time_text(self.point(names[-1]).ts)
        raise NoSuchPoint(f"{self.place.name} begins at {first}; nothing of {layout.time_text(until)} can be restored")

    def _as_of(self, later: tuple[str, Point] | None, until: int | None) -> "PointDisk | None":
        """A point after `until`, if that time lies behind its checkpoint."""
        if later is None:
            return None
        found = self.open(*later, until)
        taken_ms = found.snapshot.meta.taken_ms
        is_behind = found.end.timed >= found.earliest or bool(taken_ms and until and taken_ms <= until)
        return found if found.end.position >= found.earliest and is_behind else None

    def open(self, name: str, point: Point, until: int | None = None) -> "PointDisk":
        chunks = self.log_of(name, point)
        return PointDisk(self, name, point, chunks, end_of(self, chunks, until))

    def log_of(self, name: str, point: Point) -> list[Chunk]:
        """The log of a point, and what was shipped behind it; without holes, or refused."""
        first = frames.number_of(point.start)
        own = [chunk for chunk in self._chunks.get(name, []) if chunk.number >= first]
        named = [found[1] for path in point.log if (found := layout.chunk_in(path)) is not None]
        chunks = sorted({*named, *own})
        if not chunks:
            return []
        if chunks[0].first != frames.position_of(first, 0):
            raise Damaged(f"{self.place.name}/{layout.POINTS}/{name}", 0, "the first of its log is missing")
        for before, after in pairwise(chunks):
            if not layout.follows(before, after):
                missing = f"{layout.POINTS}/{name}/log-{before.end:016x}-…"
                raise Damaged(f"{self.place.name}/{missing}", 0, "this object is missing: the log has a hole")
        for path in point.log:
            if path not in self.sizes:
                raise Damaged(f"{self.place.name}/{path}", 0, "this object is missing")
        return chunks


def objects_of(point: Point) -> list[str]:
    """The objects of a point but those of its log."""
    entries = (*point.snapshot, *point.segments)
    return [path for entry in entries for path in (entry.path, entry.flags) if path]


class End(Struct, frozen=True):
    """Where the log of a restore ends."""

    position: int  # 0: there is no log
    timed: int  # of the last frame that says when it was committed; 0: none does
    ts: int  # what that frame says; 0: not known


def end_of(backup: Backup, chunks: Iterable[Chunk], until: int | None) -> End:
    """The end of the last frame that is whole and, if `until` is given, of the last one not after that."""
    end, newest, timed = End(0, 0, 0), 0, 0
    for number, data in files_of(backup, chunks):
        _, offset = _header(backup, number, data)
        for found in frames.scan(memoryview(data), number, offset):
            if isinstance(found, frames.Frame):
                stop = found.position + frames.FRAME_OVERHEAD_BYTES + len(found.payload)
                said = entries.committed_ms(found.payload)
                newest = said or newest
                if until is None or newest <= until:
                    timed = stop if said else timed
                    end = End(stop, timed, newest)
    return end


def _header(backup: Backup, number: int, data: bytes) -> tuple[frames.FileHeader, int]:
    try:
        return frames.decode_header(data[:4096])
    except (frames.BadHeader, frames.NewerVersion) as error:
        raise Damaged(f"{backup.place.name}: {log_files.name_of(number)}", 0, str(error)) from None


def files_of(backup: Backup, chunks: Iterable[Chunk]) -> Iterable[tuple[int, bytes]]:
    """The bytes of each log file, one file after the other."""
    some: list[Chunk] = []
    for chunk in chunks:
        if some and some[0].number != chunk.number:
            yield some[0].number, b"".join(backup.get(one.path) for one in some)
            some = []
        some.append(chunk)
    if some:
        yield some[0].number, b"".join(backup.get(one.path) for one in some)


class PointDisk:
    """The data directory that a point describes, for reading. It is a `Disk` as far as readers need one."""

    def __init__(self, backup: Backup, name: str, point: Point, chunks: list[Chunk], end: End) -> None:
        self.path, self.boot_id = backup.place.name, ""
        self.name = name
        self.point = point
        self.end = end
        self._backup = backup
        self._entries = {entry.name: entry for entry in (*point.snapshot, *point.segments)}
        self._logs: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            if chunk.first < end.position:
                self._logs.setdefault(log_files.name_of(chunk.number), []).append(chunk)
        self._kept: tuple[str, bytes] = ("", b"")  # the last object that was read
        items = snapshots.Snapshots(self.disk).load() or {}
        self.snapshot = Snapshot([entry.name for entry in point.snapshot], items)
        self._files = self.snapshot.files
        positions = [item.position for item in self.snapshot.topics.values()]
        positions += [position for key, value in items.items() if (position := dump.router_position(key, value))]
        self.earliest = max(point.flagged, self.snapshot.meta.start, *positions, 0)  # what can be restored begins here

    @property
    def disk(self) -> Disk:
        return cast(Disk, self)

    def names(self) -> list[str]:
        return sorted([*self._entries, *self._logs])

    def open(self, name: str, *, writable: bool = False) -> File:
        assert not writable
        if name in self._logs:
            return cast(File, _MemoryFile(name, self._log(name)))
        if name not in self._entries:
            raise FileNotFoundError(2, "No such file or directory", name)
        return cast(File, _MemoryFile(name, self._data(self._entries[name])))

    def _log(self, name: str) -> bytes:
        data = next(data for _, data in files_of(self._backup, self._logs[name]))
        if log_files.number_in(name) == frames.number_of(self.end.position):
            data = data[: frames.offset_of(self.end.position)]
        return data + bytes(PADDING_BYTES)

    def _data(self, entry: Entry) -> bytes:
        if self._kept[0] != entry.name:
            data = self._backup.get(entry.path)
            number = segments.number_in(entry.name)
            if number is not None and number in self._files and entry.flags:
                flags = self._flags(entry.flags)
                data = with_flags(data, 0, self._files[number].columns["deleted"].values[0], flags)
            self._kept = (entry.name, data)
        return self._kept[1]

    def _flags(self, path: str) -> bytes:
        try:
            return zlib.decompress(self._backup.get(path))
        except zlib.error as error:
            raise Damaged(f"{self.path}/{path}", 0, str(error)) from None

    def check(self) -> Check:
        """The audit of the point, as it is there."""
        return Checker(self.disk, self.snapshot).run()


class _MemoryFile:
    """A file whose bytes are at hand."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def size(self) -> int:
        return len(self._data)

    def map(self) -> memoryview:
        return memoryview(self._data)

    def close(self) -> None:
        pass
