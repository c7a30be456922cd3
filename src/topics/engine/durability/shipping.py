"""What a backup is made of: the files of a data directory as of one log position, pinned, as one stream of parts.

    stream   part, part, …
    part     u32 length of the head, big endian | head, JSON | payload, `size` bytes

A *base* is what recovery needs: the files of a snapshot, the segments that it names, their delete flags, and the log
from the snapshot's start up to a position. Its part `base` is the inventory; then come the files that the receiver
lacks and the log, each with its checksum, then `ready`. Behind that, the log may go on: parts `log` and `beat`.

Files keep their names. The `identity` of a file says which one of its name it is, whatever flags were set since: a
receiver that has it is not sent it again. Delete flags are files of their own (`flags-…`), as they are the only bytes
of a segment that change.

Owned here: which bytes belong to a base, and the form of the stream. Who pins the files, when, and where the parts go
is up to others. Everything blocks.

Invariants: only frames are shipped that no failure of the log can take back; a part of the log lies in one log file,
and starts where the part before it ends, or at the start of the next file.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from struct import Struct as Layout
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_hexdigest

from topics.errors import TopicsError
from topics.storage import frames, log_files, segments
from topics.storage.disk import Disk, File
from topics.storage.segments import DELETED, LIVE, SegmentFile

FORMAT = 1
FLAGS_PREFIX = "flags-"
SLICE_BYTES = 1024 * 1024  # read at a time
LOG_PART_BYTES = 8 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024

_LENGTH = Layout(">I")
_PIECE = re.compile(r"log-([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{16}")


class LogGone(TopicsError):
    """A log file that was to be shipped was removed by a checkpoint; the next base has what was in it."""


class BadStream(TopicsError):
    """The bytes are no stream of a backup, or not what was sent."""


class FileName(NamedTuple):
    """A file of a base."""

    name: str
    identity: str


class Base(Struct):
    """The inventory of a base."""

    start: int  # position at which its log begins
    position: int  # it is consistent as of here
    flagged: int  # delete flags may be ahead of the snapshot, up to here; 0 = none is set
    ts: int  # the source's time at that position, epoch-milliseconds
    snapshot: list[FileName]
    segments: list[FileName]
    flags: list[FileName]  # of the segments that have any set
    log: list[str]  # pieces of the log that the receiver has, from the beginning of the base's log on
    format: int = FORMAT


class Head(Struct, omit_defaults=True):
    """What a part says of itself."""

    kind: Literal["base", "file", "log", "ready", "beat"]
    name: str = ""
    identity: str = ""
    size: int = 0
    xxh3: str = ""  # of the payload
    position: int = 0  # log: of the first byte; beat, ready: all below it was sent
    ts: int = 0  # beat, ready: the source's time when that was all there was; 0 = there is more, which is not synced


class Part(NamedTuple):
    head: Head
    payload: Iterable[bytes] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Head).decode


def encoded(part: Part) -> Iterator[bytes]:
    """A part as it is sent."""
    head = _encode(part.head)
    yield _LENGTH.pack(len(head)) + head
    yield from part.payload


def piece_name(position: int, data: bytes) -> str:
    """The name of a piece of the log: where it begins and ends, and its checksum."""
    return f"log-{position:016x}-{position + len(data):016x}-{xxh3_64_hexdigest(data)}"


def piece_in(name: str) -> tuple[int, int] | None:
    """Where a piece of the log begins and ends; None: the name is that of something else."""
    found = _PIECE.fullmatch(name)
    if found is None:
        return None
    first, end = int(found[1], 16), int(found[2], 16)
    is_in_one_file = first < end and frames.number_of(first) == frames.number_of(end)
    return (first, end) if is_in_one_file and end - first <= LOG_PART_BYTES else None


class Decoder:
    """Parts out of the bytes of a stream; a payload is kept until it is complete, and checked."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Head | None = None

    def feed(self, data: bytes) -> Iterator[tuple[Head, bytes]]:
        self._buffer += data
        while True:
            if self._head is None:
                if len(self._buffer) < _LENGTH.size:
                    return
                (size,) = _LENGTH.unpack_from(self._buffer)
                if size > HEAD_BYTES_MAX:
                    raise BadStream("this is not the stream of a backup")
                if len(self._buffer) < _LENGTH.size + size:
                    return
                try:
                    self._head = _decode(bytes(self._buffer[_LENGTH.size : _LENGTH.size + size]))
                except msgspec.DecodeError as error:
                    raise BadStream(f"this is not the stream of a backup: {error}") from None
                del self._buffer[: _LENGTH.size + size]
            head = self._head
            if len(self._buffer) < head.size:
                return
            payload = bytes(self._buffer[: head.size])
            del self._buffer[: head.size]
            self._head = None
            if head.size and xxh3_64_hexdigest(payload) != head.xxh3:
                raise BadStream(f"{head.name or head.kind} did not arrive as it was sent")
            yield head, payload


# --- what is shipped


class Pinned(Struct):
    """The files of a base, held open: they stay readable when a checkpoint removes them."""

    start: int
    snapshot: dict[str, File]
    segments: dict[int, SegmentFile]
    flags: dict[str, tuple[str, bytes]]  # by name: identity, and the flags as they are shipped

    def inventory(self, position: int, flagged: int, ts: int, log: list[str]) -> Base:
        return Base(
            self.start,
            position,
            flagged if self.flags else 0,
            ts,
            [FileName(name, _snapshot_identity(file)) for name, file in self.snapshot.items()],
            [FileName(file.name, segment_identity(file)) for file in self.segments.values()],
            [FileName(name, identity) for name, (identity, _) in self.flags.items()],
            log,
        )

    def parts(self, base: Base, have: set[str], tail: "LogTail") -> Iterator[Part]:
        """A base: its inventory, the files whose identities the receiver does not have, and the log."""
        inventory = msgspec.json.encode(base)
        yield _whole(Head("base", position=base.position, ts=base.ts), inventory)
        for name, identity in base.flags:
            if identity not in have:
                yield _whole(Head("file", name=name, identity=identity), self.flags[name][1])
        by_name = {file.name: file for file in self.segments.values()}
        for name, identity in base.segments:
            if identity not in have:
                file = by_name[name]
                yield _sliced(Head("file", name=name, identity=identity, size=file.ref.size_bytes), _flagless(file))
                file.let_go()
        for name, identity in base.snapshot:
            if identity not in have:
                pinned = self.snapshot[name]
                yield _sliced(Head("file", name=name, identity=identity, size=pinned.size()), pinned.read)
        yield from tail.parts(base.position)
        yield Part(Head("ready", position=base.position, ts=base.ts))

    def close(self) -> None:
        for file in self.snapshot.values():
            file.close()


def keep_flags(file: SegmentFile, flags: dict[str, tuple[str, bytes]]) -> None:
    """Note the delete flags of a segment as they are at this moment, if any is set."""
    said = file.flags(0, file.ref.count)
    if DELETED in said:
        name = f"{FLAGS_PREFIX}{file.ref.number:010d}"
        flags[name] = (xxh3_64_hexdigest(said), zlib.compress(said, 1))


def segment_identity(file: SegmentFile) -> str:
    """Which segment of this name it is: by the checksums of its columns, which flags do not touch."""
    return xxh3_64_hexdigest(segments.encode_ref(file.ref))


def _snapshot_identity(file: File) -> str:
    """The head of a snapshot has the checksum of its content."""
    return xxh3_64_hexdigest(file.name.encode() + file.read(0, 64))


def _flagless(file: SegmentFile) -> Callable[[int, int], bytes]:
    """Reads a segment as it was written, before any delete flag was set."""
    base, count = file.ref.columns["deleted"].values

    def read(offset: int, size: int) -> bytes:
        return with_flags(file.read(offset, size), offset, base, bytes([LIVE]) * count)

    return read


def with_flags(data: bytes, offset: int, base: int, flags: bytes) -> bytes:
    """Bytes of a segment from `offset` on, with these delete flags, which lie at `base`."""
    start, stop = max(offset, base), min(offset + len(data), base + len(flags))
    if start >= stop:
        return data
    return data[: start - offset] + flags[start - base : stop - base] + data[stop - offset :]


def _whole(head: Head, payload: bytes) -> Part:
    head.size, head.xxh3 = len(payload), xxh3_64_hexdigest(payload)
    return Part(head, _slices(len(payload), lambda offset, size: payload[offset : offset + size]))


def _sliced(head: Head, read: Callable[[int, int], bytes]) -> Part:
    """A part that is read twice, for its checksum and to be sent."""
    digest = xxh3_64()
    for some in _slices(head.size, read):
        digest.update(some)
    head.xxh3 = digest.hexdigest()
    return Part(head, _slices(head.size, read))


def _slices(size: int, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    return (read(offset, min(SLICE_BYTES, size - offset)) for offset in range(0, size, SLICE_BYTES))


class LogTail:
    """The log from the file of a position on, whose files are held open until they are shipped."""

    def __init__(self, disk: Disk, start: int) -> None:
        self._disk = disk
        self.position = frames.position_of(frames.number_of(start), 0)  # of the next byte to be shipped
        self._held: dict[int, File] = {}

    def hold(self, through: int) -> None:
        """Open the files up to that of `through`, which is in force. LogGone: one of them was removed."""
        for number in range(frames.number_of(self.position), frames.number_of(through) + 1):
            if number not in self._held:
                name = log_files.name_of(number)
                try:
                    self._held[number] = self._disk.open(name, writable=False)
                except FileNotFoundError:
                    raise LogGone(f"{name} was removed before it was shipped") from None

    def skip(self, have: set[str], through: int) -> list[str]:
        """Pass over pieces of the log that the receiver has, as long as they are the same here; gives their names."""
        known: dict[int, list[tuple[int, str]]] = {}
        for name in have:
            if (found := piece_in(name)) is not None and found[1] <= through:
                known.setdefault(found[0], []).append((found[1], name))
        skipped = []
        if self.position < through:
            self.hold(through)
        while self.position < through:
            number = frames.number_of(self.position)
            for end, name in sorted(known.get(self.position, ()), reverse=True):
                data = self._held[number].read(frames.offset_of(self.position), end - self.position)
                if piece_name(self.position, data) == name:
                    skipped.append(name)
                    self.position = end
                    break
            else:
                if number == frames.number_of(through) or frames.offset_of(self.position) < self._end_of(number):
                    break
                self._next_file()
        return skipped

    def _next_file(self) -> None:
        number = frames.number_of(self.position)
        self._held.pop(number).close()
        self.position = frames.position_of(number + 1, 0)

    def parts(self, through: int) -> Iterator[Part]:
        """What is still to be shipped below `through`, a position up to which the log is synced."""
        if self.position >= through:
            return
        self.hold(through)
        last = frames.number_of(through)
        while self.position < through:
            number, offset = frames.number_of(self.position), frames.offset_of(self.position)
            file = self._held[number]
            end = frames.offset_of(through) if number == last else self._end_of(number)
            if offset < end:
                payload = file.read(offset, min(end - offset, LOG_PART_BYTES))
                yield _whole(Head("log", name=log_files.name_of(number), position=self.position), payload)
                self.position += len(payload)
            else:
                self._next_file()

    def _end_of(self, number: int) -> int:
        """Where the frames of a file end that count; the first frame of the next file says so."""
        following = self._held[number + 1]
        header, offset = frames.decode_header(following.read(0, 4096))
        first = next(iter(frames.scan(memoryview(following.read(0, following.size())), header.number, offset)))
        if not isinstance(first, frames.Frame) or frames.number_of(first.synced) != number:
            raise LogGone(f"{log_files.name_of(number + 1)} does not go on where the file before it ends")
        return frames.offset_of(first.synced)

    def close(self) -> None:
        for file in self._held.values():
            file.close()
        self._held = {}


def end_of_log(disk: Disk, start: int) -> int:
    """The end of the valid frames in the newest file from `start` on; `start` itself if there is no file."""
    names = [name for name in disk.names() if name.startswith(log_files.PREFIX)]
    numbers = sorted(number for number in map(log_files.number_in, names) if number >= frames.number_of(start))
    for number in reversed(numbers):
        with closing(disk.open(log_files.name_of(number), writable=False)) as file:
            data = memoryview(file.read(0, file.size()))
        try:
            _, offset = frames.decode_header(bytes(data[:4096]))
        except frames.BadHeader:
            continue  # it was being created
        found: frames.Frame | frames.End | None = None
        count = 0
        for found in frames.scan(data, number, offset):
            count += isinstance(found, frames.Frame)
        if count and isinstance(found, frames.End):
            return frames.position_of(number, found.offset)
    return start
