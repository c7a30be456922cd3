"""What lies where in a backup, and what the names of its objects say.

    segments/segment-0000000007-IDENTITY-XXH3.arrow    sealed records, without delete flags
    flags/flags-0000000007-IDENTITY-XXH3               the delete flags of a segment, one byte per row, zlib
    snapshots/snapshot-0000000012-IDENTITY-XXH3.base   the files of a snapshot
    points/20261117T061522123Z-POSITION-5f3a9c01/
        log-FROM-TO-XXH3                               bytes of the log between two positions, in one log file
        point-XXH3.json                                the description: written last

XXH3 is the checksum of the object's bytes, IDENTITY says which file of its name it is (see `shipping`). Points share
segments, flags and snapshots, and may share log. A point can be restored to any position from its checkpoint on, up to
the end of the log in its own directory.

Knows neither places nor what is in the files.
"""

import re
import secrets
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from topics.engine.durability.shipping import FLAGS_PREFIX, piece_in, piece_name
from topics.storage import frames, segments, snapshots

FORMAT = 1
POINTS = "points"

_OBJECT = re.compile(r"(?:segments|flags|snapshots)/([a-z]+-\d{10})-([0-9a-f]{16})-([0-9a-f]{16})(\.[a-z]+)?")
_CHUNK = re.compile(rf"{POINTS}/([^/]+)/(log-[0-9a-f]{{16}}-[0-9a-f]{{16}}-[0-9a-f]{{16}})")
_POINT = re.compile(rf"{POINTS}/([^/]+)/point-([0-9a-f]{{16}})\.json")


class Entry(Struct):
    """A file of a point, and the objects that hold it."""

    name: str  # in the data directory
    path: str
    flags: str = ""  # of a segment: the object with its delete flags, if any is set


class Point(Struct):
    """The description of a point."""

    source: str  # where it comes from, as its maker called it
    ts: int  # the source's time as of `position`, epoch-milliseconds
    position: int
    flagged: int  # delete flags may be ahead of the snapshot, up to this position
    start: int  # position at which the log begins that belongs to it
    snapshot: list[Entry]
    segments: list[Entry]
    log: list[str]  # objects with the log from `start` to `position`
    format: int = FORMAT


class Chunk(NamedTuple):
    """An object with bytes of the log."""

    first: int  # positions
    end: int
    path: str

    @property
    def number(self) -> int:
        """Of the log file."""
        return frames.number_of(self.first)


def object_path(name: str, identity: str, xxh3: str) -> str:
    stem, dot, suffix = name.partition(".")
    if name.startswith(FLAGS_PREFIX):
        folder = "flags"
    else:
        folder = "segments" if segments.number_in(name) is not None else "snapshots"
    if folder == "snapshots" and not name.startswith(snapshots.PREFIX):
        raise ValueError(f"{name!r} is no file of a backup")
    return f"{folder}/{stem}-{identity}-{xxh3}{dot}{suffix}"


def identity_in(path: str) -> str | None:
    """The identity of the file in an object; None: it is another object."""
    found = _OBJECT.fullmatch(path)
    return found[2] if found else None


def chunk_path(point: str, first: int, data: bytes) -> str:
    return f"{POINTS}/{point}/{piece_name(first, data)}"


def chunk_in(path: str) -> tuple[str, Chunk] | None:
    """The point in whose directory it lies, and the chunk; None: it is another object."""
    found = _CHUNK.fullmatch(path)
    place = None if found is None else piece_in(found[2])
    return (found[1], Chunk(*place, path)) if found is not None and place is not None else None


def point_path(point: str, xxh3: str) -> str:
    return f"{POINTS}/{point}/point-{xxh3}.json"


def point_in(path: str) -> str | None:
    found = _POINT.fullmatch(path)
    return found[1] if found else None


def xxh3_in(path: str) -> str:
    """The checksum that an object's name has."""
    return path.rpartition("-")[2].partition(".")[0]


def new_point(ts: int, position: int) -> str:
    """A name for a point: they sort by time, then by position, and no two makers choose the same."""
    moment = datetime.fromtimestamp(ts / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{ts % 1000:03d}Z-{position:016x}-{secrets.token_hex(4)}"


def follows(before: Chunk, after: Chunk) -> bool:
    """Whether a chunk goes on where another one ends: behind it, or at the start of the next log file."""
    return after.first in (before.end, frames.position_of(before.number + 1, 0))


def time_text(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
