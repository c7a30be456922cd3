"""Sealing: rows in memory become the bytes of segment files, in a process of its own if there are many.

Decoding bodies and building columns is pure Python, about as much work as taking the records in. In the server's
process it would halve the rate of writes, so a helper process does it. The helper gets bodies, gives back the image of
a file, and touches nothing but the segments that it is told to read. Small checkpoints are sealed on the spot, and so
are all others if no helper can be started.

Owned here: which rows go into which file, and both halves of the talk with the helper:

    request   u32 length · SealingTask in MessagePack · the bodies, one after the other
    answer    u32 length · SealingDone in MessagePack · the image

This file also runs as the helper's script; it is given the module search path before it imports anything of the
package.
"""

import socket
import struct
import sys

if __name__ == "__main__":  # before the package can be imported
    _connection = socket.socket(fileno=0)
    _paths = b""
    while not _paths.endswith(b"\n"):
        _paths += _connection.recv(1) or b"\n"
    sys.path[:] = _paths.decode()[:-1].split("\0")

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from topics.clock import Clock
from topics.core.topic.parts import PAGE_ROWS, Chunk, ChunkImage, Part
from topics.model import Columns
from topics.storage import segments
from topics.storage.disk import Disk, RealDisk
from topics.storage.processes import HelperProcess, WorkThread, buffer_of
from topics.storage.segments import FileRef, PieceBuilder, PieceRef, Runs, SegmentFile, SegmentPiece

PACKAGE_ROOT = str(Path(__file__).parents[3])
REST_SECONDS = 60.0  # after the helper has failed, before it is started again
SILENT_SECONDS_MAX = 60.0  # without a byte from the helper; then it hangs
LARGE_BYTES_MIN = 4 * 1024 * 1024  # a checkpoint of less is sealed on the spot, …
LARGE_ROWS_MIN = 20_000  # … if it has fewer rows: decoding these takes 3 µs each, however small they are
BUFFERS_MAX = 512  # given to one system call

logger = logging.getLogger("topics.engine.durability.sealing")

_LENGTH = struct.Struct("=I")


class PartRows(Struct):
    """Some rows of a part."""

    part: Part
    runs: Runs


class PiecePlan(Struct):
    """What goes into one piece of a segment."""

    topic: int
    rows: list[PartRows]
    count: int = 0
    size_bytes: int = 0


class SentRows(Struct, array_like=True):
    """`PartRows` for another process: either of a chunk, whose bodies follow, or of a piece of a file."""

    runs: Runs
    chunk: ChunkImage | None
    file: FileRef | None
    piece: PieceRef | None


class SealingTask(Struct, array_like=True):
    """What the helper is asked for: the image of one segment."""

    number: int  # of the segment
    pieces: list[tuple[int, list[SentRows]]]  # topic, rows
    bodies_bytes: int


class SealingDone(Struct, array_like=True):
    """The helper's answer; the image follows. `file` is None if it failed."""

    file: FileRef | None
    pieces: list[PieceRef]
    image_bytes: int
    failure: str = ""


Encoded = tuple[bytes | memoryview, FileRef, list[PieceRef]]


def plan(
    topic: int, parts: Iterable[tuple[Part, Iterable[tuple[int, int]]]], count_max: int, bytes_max: int
) -> Iterator[PiecePlan]:
    """Pieces of at most `count_max` rows, and not much above `bytes_max`, of the rows of one topic."""
    piece = PiecePlan(topic, [])
    for part, runs in parts:
        for start, stop in _steps(runs):
            while start < stop:
                end = min(stop, start + count_max - piece.count)
                _add(piece, part, start, end)
                start = end
                if piece.count >= count_max or piece.size_bytes >= bytes_max:
                    yield piece
                    piece = PiecePlan(topic, [])
    if piece.count:
        yield piece


def _steps(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in runs:
        for first in range(start, stop, PAGE_ROWS):
            yield first, min(stop, first + PAGE_ROWS)


def _add(piece: PiecePlan, part: Part, start: int, stop: int) -> None:
    if not piece.rows or piece.rows[-1].part is not part:
        piece.rows.append(PartRows(part, []))
    runs = piece.rows[-1].runs
    if runs and runs[-1][1] == start:
        runs[-1] = (runs[-1][0], stop)
    else:
        runs.append((start, stop))
    piece.count += stop - start
    piece.size_bytes += part.bytes_before(stop) - part.bytes_before(start)


def encode(number: int, pieces: Iterable[tuple[int, Sequence[PartRows]]]) -> Encoded:
    """The image of segment `number`, and references to it and to its pieces."""
    built = []
    for topic, rows in pieces:
        piece = PieceBuilder(topic)
        for some in rows:
            for columns in _columns(some):
                piece.extend(columns)
        built.append(piece)
    return segments.encode(number, built)


def _columns(rows: PartRows) -> Iterator[Columns]:
    """The rows, decoded a page at a time: a body is decoded once, however many of its rows are left out."""
    part, runs = rows.part, rows.runs
    index = 0
    for first in range(runs[0][0] // PAGE_ROWS * PAGE_ROWS, runs[-1][1], PAGE_ROWS):
        stop = min(part.count, first + PAGE_ROWS)
        within: Runs = []
        while index < len(runs) and runs[index][0] < stop:
            start, end = runs[index]
            within.append((max(start, first) - first, min(end, stop) - first))
            if end > stop:
                break
            index += 1
        if within:
            low, high = within[0][0], within[-1][1]
            columns = part.columns(first + low, first + high)
            is_whole = within == [(low, high)]
            yield columns if is_whole else columns.select([(start - low, end - low) for start, end in within])


class Sealer:
    """Makes images of segments: in a helper process if that pays, else on the storage thread."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._thread: WorkThread | None = None
        self._helper: HelperProcess | None = None
        self._rests_until = 0.0  # when the helper may be started again after a failure

    @property
    def helper_pid(self) -> int | None:
        return None if self._helper is None else self._helper.pid

    async def encode(self, number: int, pieces: Sequence[PiecePlan], *, is_large: bool) -> Encoded:
        """The image of segment `number`. `is_large`: it is part of a large checkpoint."""
        if is_large and isinstance(self._disk, RealDisk) and self._clock.monotonic() >= self._rests_until:
            if self._thread is None:
                self._thread = WorkThread("topics-sealing")
            try:
                return await self._thread.run(lambda: self._ask(number, pieces))
            except OSError as error:
                logger.warning("the sealing helper failed: %s; records are sealed without it for a minute", error)
                self._rests_until = self._clock.monotonic() + REST_SECONDS
                await self._thread.run(self._end_helper)
        return await self._disk.run(lambda: encode(number, [(piece.topic, piece.rows) for piece in pieces]))

    def close(self) -> None:
        """End the helper. No task may be under way."""
        if self._thread is not None:
            self._thread.close()
        self._end_helper()

    def kill_if_silent(self) -> None:
        """Kill the helper if it owes the answer that it owed at the last call; records are sealed without it."""
        if self._helper is not None:
            self._helper.kill_if_silent()

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.end()
            self._helper = None

    def _ask(self, number: int, pieces: Sequence[PiecePlan]) -> Encoded:
        """Let the helper make the image. Blocking."""
        if self._helper is None:
            self._helper = HelperProcess(["-I", __file__, self._disk.path])
            self._helper.socket.settimeout(SILENT_SECONDS_MAX)
            self._helper.socket.sendall("\0".join([*filter(None, sys.path), PACKAGE_ROOT]).encode() + b"\n")
        helper, connection = self._helper, self._helper.socket
        helper.asked += 1
        bodies: list[bytes | memoryview] = []
        sent = [(piece.topic, [_sent(rows, bodies) for rows in piece.rows]) for piece in pieces]
        task = _encode_message(SealingTask(number, sent, sum(map(len, bodies))))
        _send(connection, [_LENGTH.pack(len(task)), task, *bodies])
        done = _decode_done(_received(connection, _length(connection)))
        helper.answered += 1
        if done.file is None:
            raise OSError(f"segment {number}: {done.failure}")
        return _received(connection, done.image_bytes), done.file, done.pieces


def _sent(rows: PartRows, bodies: list[bytes | memoryview]) -> SentRows:
    part = rows.part
    if isinstance(part, Chunk):
        bodies.extend(part.bodies)
        return SentRows(rows.runs, part.image(), None, None)
    assert isinstance(part, SegmentPiece)
    return SentRows(rows.runs, None, part.file.ref, part.ref)


# --- the talk


_encode_message = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(SealingTask).decode
_decode_done = msgspec.msgpack.Decoder(SealingDone).decode


def _send(connection: socket.socket, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Send buffers without joining them."""
    for first in range(0, len(buffers), BUFFERS_MAX):
        some = [memoryview(buffer) for buffer in buffers[first : first + BUFFERS_MAX]]
        while some:
            sent = connection.sendmsg(some)
            while some and sent >= len(some[0]):
                sent -= len(some.pop(0))
            if sent:
                some[0] = some[0][sent:]


def _length(connection: socket.socket) -> int:
    (length,) = _LENGTH.unpack(_received(connection, _LENGTH.size))
    return int(length)


def _received(connection: socket.socket, size: int) -> memoryview:
    view, done = buffer_of(size), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionError("the other process has ended")
        done += count
    return view


# --- the helper's half


def serve(connection: socket.socket, disk: Disk) -> None:
    """Do tasks until the other end is closed."""
    while True:
        try:
            task = _decode_task(_received(connection, _length(connection)))
            bodies = _received(connection, task.bodies_bytes)
        except ConnectionError:
            return
        try:
            image, file, pieces = encode(task.number, _rows(task, bodies, disk))
        except Exception as error:
            message = _encode_message(SealingDone(None, [], 0, f"{type(error).__name__}: {error}"))
            _send(connection, [_LENGTH.pack(len(message)), message])
        else:
            message = _encode_message(SealingDone(file, pieces, len(image)))
            _send(connection, [_LENGTH.pack(len(message)), message, image])


def _rows(task: SealingTask, bodies: memoryview, disk: Disk) -> Iterator[tuple[int, list[PartRows]]]:
    start = 0
    for topic, sent in task.pieces:
        rows = []
        for one in sent:
            if one.chunk is not None:
                stop = start + one.chunk.body_bytes
                rows.append(PartRows(Chunk.from_image(one.chunk, bodies[start:stop]), one.runs))
                start = stop
            else:
                assert one.file is not None and one.piece is not None
                rows.append(PartRows(SegmentPiece(SegmentFile(disk, one.file), one.piece), one.runs))
        yield topic, rows


if __name__ == "__main__":
    serve(_connection, RealDisk(sys.argv[1], create=False))
