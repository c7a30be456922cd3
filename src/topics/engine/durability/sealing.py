"""Sealing: rows in memory become the bytes of segment files, in a process of its own if there are many.

Decoding bodies and building columns is pure Python, about as much work as taking the records in. In the server's
process it would halve the rate of writes, so a helper process does it. The helper gets bodies, gives back the image of
a file, and touches nothing but the segments that it is told to read. Small checkpoints are sealed on the spot, and so
are all others if no helper can be started.

Owned here: which rows go into which file, and both halves of the talk with the helper. Over the socket go the sizes of
what lies in shared memory:

    request   u32, u64: sizes of SealingTask and bodies · u8: which memory    there: the task in MessagePack, the bodies
    answer    u64, u32: sizes of image and SealingDone                        there: the image, what was done

Answers come in the order of the requests. The event loop talks to the helper, and asks for files ahead: a thread would
wait for the interpreter's lock at every step, and the helper for a turn of a busy loop.

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

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from topics.clock import Clock
from topics.core.topic.parts import PAGE_ROWS, Chunk, ChunkImage, Part
from topics.storage import segments
from topics.storage.arrays import Arrays, arrays_of, arrays_of_laid
from topics.storage.disk import Disk, RealDisk
from topics.storage.processes import HelperProcess, SharedMemory
from topics.storage.segments import FileRef, PieceBuilder, PieceRef, Runs, SegmentFile, SegmentPiece

PACKAGE_ROOT = str(Path(__file__).parents[3])
REST_SECONDS = 60.0  # after the helper has failed, before it is started again
SILENT_SECONDS_MAX = 60.0  # without a byte from the helper; then it hangs
LARGE_BYTES_MIN = 4 * 1024 * 1024  # a checkpoint of less is sealed on the spot, …
LARGE_ROWS_MIN = 20_000  # … if it has fewer rows: decoding these takes 3 µs each, however small they are
FILES_MAX = 4  # of a checkpoint that are under way at once

logger = logging.getLogger("topics.engine.durability.sealing")

_REQUEST = struct.Struct("=IQB")
_ANSWER = struct.Struct("=QI")


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


class SealingDone(Struct, array_like=True):
    """The helper's answer. `file` is None if it failed."""

    file: FileRef | None
    pieces: list[PieceRef]
    failure: str = ""


Image = bytes | memoryview  # of a file
Encoded = tuple[Image, FileRef, list[PieceRef]]


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
            for arrays in _arrays(some):
                piece.extend(arrays)
        built.append(piece)
    return segments.encode(number, built)


def _arrays(rows: PartRows) -> Iterator[Arrays]:
    """The rows, decoded: a body once, however many of its rows are left out, and those of a segment by pages."""
    part, runs = rows.part, rows.runs
    laid = part.laid() if isinstance(part, Chunk) else None
    if laid is not None:
        yield arrays_of_laid(laid).select(runs)
        return
    index = 0
    rows_max = part.count if isinstance(part, Chunk) else PAGE_ROWS  # more than a page of a chunk are in one body
    for first in range(runs[0][0] // rows_max * rows_max, runs[-1][1], rows_max):
        stop = min(part.count, first + rows_max)
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
            yield arrays_of(
                columns if is_whole else columns.select([(start - low, end - low) for start, end in within])
            )


class Sealer:
    """Makes images of segments: in a helper process if that pays, else on the storage thread."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._helper: SealingHelper | None = None
        self._rests_until = 0.0  # when the helper may be started again after a failure

    @property
    def helper_pid(self) -> int | None:
        return None if self._helper is None else self._helper.process.pid

    async def encode(self, number: int, pieces: Sequence[PiecePlan], *, is_large: bool) -> Encoded:
        """The image of segment `number`. `is_large`: it is part of a large checkpoint.

        An image is there until `let_go`, or until `FILES_MAX` more were asked for.
        """
        if is_large and (helper := self.started()) is not None:
            try:
                return await helper.encode(number, pieces)
            except OSError as error:
                if self._helper is helper:
                    self._helper = None
                    self._rest(error)
                    helper.end_talk()
                    await self._disk.run(helper.process.end)
        return await self._disk.run(lambda: encode(number, [(piece.topic, piece.rows) for piece in pieces]))

    def started(self) -> "SealingHelper | None":
        """The helper, which takes half a second to start; None if there can be none now."""
        if self._helper is None and isinstance(self._disk, RealDisk) and self._clock.monotonic() >= self._rests_until:
            try:
                self._helper = SealingHelper(self._disk.path, asyncio.get_running_loop())
            except OSError as error:
                self._rest(error)
        return self._helper

    def _rest(self, error: OSError) -> None:
        logger.warning("the sealing helper failed: %s; records are sealed without it for a minute", error)
        self._rests_until = self._clock.monotonic() + REST_SECONDS

    def let_go(self) -> None:
        """Give back the memory of the images."""
        if self._helper is not None:
            self._helper.clear()

    def close(self) -> None:
        """End the helper. What it was asked for fails."""
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.end_talk()
            helper.process.end()

    def kill_if_silent(self) -> None:
        """Kill the helper if it owes the answer that it owed at the last call; records are sealed without it."""
        if self._helper is not None:
            self._helper.process.kill_if_silent()


class SealingHelper:
    """The helper process, and the server's half of the talk with it. After an OSError the talk is over.

    The memories are used and closed on the event loop only: a number of a descriptor that another thread has closed
    could be that of another file by then.
    """

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._memories: list[SharedMemory] = []  # each for a task, then for its image
        try:
            for _ in range(FILES_MAX):
                self._memories.append(SharedMemory())
            descriptors = [memory.descriptor for memory in self._memories]
            self.process = HelperProcess(["-I", __file__, path, *map(str, descriptors)], descriptors)
        except OSError:
            self._close_memories()
            raise
        self._socket = self.process.socket
        self._socket.sendall("\0".join([*filter(None, sys.path), PACKAGE_ROOT]).encode() + b"\n")
        self._socket.setblocking(False)
        self._asked = 0
        self._waiting: deque[asyncio.Future[tuple[int, int]]] = deque()  # for the sizes of an image and what was done
        loop.add_reader(self._socket.fileno(), self._receive)

    async def encode(self, number: int, pieces: Sequence[PiecePlan]) -> Encoded:
        """Let it make the image."""
        if self._socket.fileno() < 0:
            raise ConnectionError("it has ended")
        place = self._asked % FILES_MAX
        self._asked += 1
        bodies: list[bytes | memoryview] = []
        task = _encode_message(SealingTask(number, [(p.topic, [_sent(r, bodies) for r in p.rows]) for p in pieces]))
        size = 0
        for size in self._memories[place].put([task, *bodies]):  # noqa: B007
            await asyncio.sleep(0)
        answer: asyncio.Future[tuple[int, int]] = self._loop.create_future()
        self._waiting.append(answer)  # with the request: others may have been faster
        self.process.asked += 1
        self._socket.send(_REQUEST.pack(len(task), size - len(task), place))
        try:
            async with asyncio.timeout(SILENT_SECONDS_MAX):
                image_bytes, done_bytes = await answer
        except TimeoutError:
            raise OSError("it does not answer") from None
        view = self._memories[place].view(image_bytes + done_bytes)
        done = _decode_done(view[image_bytes:])
        if done.file is None:
            raise OSError(f"segment {number}: {done.failure}")
        return view[:image_bytes], done.file, done.pieces

    def _receive(self) -> None:
        answers = self.process.answers(_ANSWER)
        if answers is None:
            self.end_talk()
            return
        for image_bytes, done_bytes in answers:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result((image_bytes, done_bytes))

    def end_talk(self) -> None:
        """Fail what it was asked for, and let go of the memories. Idempotent."""
        if not self._loop.is_closed() and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._close_memories()
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(ConnectionError("it has ended"))
                answer.exception()  # whoever asked may have failed before waiting for it

    def clear(self) -> None:
        for memory in self._memories:
            memory.clear()

    def _close_memories(self) -> None:
        for memory in self._memories:
            memory.close()


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


# --- the helper's half


def serve(connection: socket.socket, disk: Disk, memories: Sequence[SharedMemory]) -> None:
    """Do tasks until the other end is closed."""
    while len(request := connection.recv(_REQUEST.size, socket.MSG_WAITALL)) == _REQUEST.size:
        task_bytes, bodies_bytes, place = _REQUEST.unpack(request)
        view = memories[place].view(task_bytes + bodies_bytes)
        image: Image = b""
        try:
            task = _decode_task(view[:task_bytes])
            image, file, pieces = encode(task.number, _rows(task, view[task_bytes:], disk))
            done = SealingDone(file, pieces)
        except Exception as error:
            done = SealingDone(None, [], f"{type(error).__name__}: {error}")
        message = _encode_message(done)
        for _ in memories[place].put([image, message]):
            pass
        connection.sendall(_ANSWER.pack(len(image), len(message)))


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
    serve(_connection, RealDisk(sys.argv[1], create=False), [SharedMemory(int(number)) for number in sys.argv[2:]])
