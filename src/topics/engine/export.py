"""Exports: a topic's live records as of one moment, as an Arrow stream, or only their seqs.

`capture` takes, on the loop and at once, the parts and the marks of their dead rows; `stream` finds the live rows and
encodes them afterwards, in a thread and in portions, however the topic changes meanwhile. What is captured may be shown
only behind the gate.

The stream has the columns `seq ts node tag meta data`, in the types of a segment. Rows of a segment go out as they lie
in the file: their buffers are sliced, not decoded; only where rows are left out are the rest gathered.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from topics.core.state import Topic
from topics.core.topic.live import LiveRows
from topics.core.topic.parts import Chunk, Part, fitting
from topics.core.topic.walk import Query, losses
from topics.model import Tombstone
from topics.ranges import Range
from topics.storage.arrays import Arrays, arrays_of, arrays_of_laid
from topics.storage.segments import Runs, SegmentPiece, schema

END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream
BATCH_BYTES: Final = 1024 * 1024
BATCH_ROWS: Final = 16_384
DECODED_ROWS: Final = 4_096  # the same of rows that are in memory, and have to be decoded
RUNS_MAX: Final = 8_192  # of one answer that lists runs of seqs
LOOKS_MAX: Final = 65_536  # stretches of up to 1,024 rows that are looked at for it

Worker = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class Export(Struct):
    """Live records of a topic as of one moment."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    after: int
    last: int  # every seq up to here is in it, in `lost`, or was deleted
    lost: list[Tombstone]
    pieces: list[tuple[Part, int, int]]  # with the first row of each, and the one behind the last
    rows: LiveRows
    pinned: dict[Part, memoryview] = {}

    def metadata(self) -> dict[str, str]:
        """What the stream's schema says of it."""
        numbers = {name: getattr(self, name) for name in ("epoch", "head_seq", "earliest_seq", "after", "last")}
        said = {"topic": self.topic, **numbers, "lost": msgspec.json.encode(self.lost).decode()}
        return {f"topics.{name}": str(value) for name, value in said.items()}

    def pin(self) -> None:
        """Open the files now, so that they stay readable even if they are removed. Blocking."""
        self.pinned = {part: part.file.view() for part, _, _ in self.pieces if isinstance(part, SegmentPiece)}

    def runs(self, count_max: int) -> tuple[list[Range], int]:
        """The seqs of the records as runs, at most `count_max`, and up to where they tell of every seq. Blocking."""
        found: list[Range] = []
        live = ((part, *run) for part, start, stop in self.pieces for run in self.rows.runs(part, start, stop))
        for looked, (first, last) in enumerate(run for some in live for run in _without_holes(*some)):
            is_next = bool(found) and found[-1][1] + 1 == first
            if looked >= LOOKS_MAX or (len(found) == count_max and not is_next):
                return found, first - 1
            if is_next:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
        return found, self.last

    async def stream(self, run: Worker) -> AsyncIterator[bytes]:
        """The Arrow stream in parts; `run` does the blocking work."""
        yield bytes(_schema(self.metadata()).serialize())
        for part, start, stop in self.pieces:
            portions = _portions(part, self.rows.runs(part, start, stop))
            while portion := await run(partial(_encode_next, part, portions)):
                yield portion
            self.pinned.pop(part, None)
        yield END


def capture(topic: Topic, after: int, last: int | None, epoch: int | None) -> Export:
    """The live records above `after` and up to `last`; what a diff would announce as lost is in `lost`."""
    log = topic.log
    last = log.head if last is None else min(last, log.head)
    lost, cursor = losses(log, Query(after, 1, 1, epoch=epoch), topic.epoch, last)
    pieces: list[tuple[Part, int, int]] = []
    for part in log.parts:
        if part.last > cursor and part.first <= last:
            if isinstance(part, Chunk):
                log.fold(part)  # it does not change any more, and may be read by another thread
            pieces.append((part, part.row_from(cursor + 1), part.row_from(last + 1)))
    return Export(topic.name, topic.epoch, log.head, log.earliest, after, last, lost, pieces, log.live_rows())


def _without_holes(part: Part, start: int, stop: int) -> Iterator[Range]:
    """Runs of seqs without a hole that the rows start..stop of a part have."""
    while start < stop:
        base = part.seq_at(start)
        rows = bisect_right(range(1, stop - start), 0, key=lambda n: part.seq_at(start + n) - base - n)
        yield base, base + rows
        start += rows + 1


def _portions(part: Part, runs: Iterable[tuple[int, int]]) -> Iterator[Runs]:
    """Runs of rows, in portions of about BATCH_BYTES and at most BATCH_ROWS, or DECODED_ROWS."""
    rows_max = DECODED_ROWS if isinstance(part, Chunk) and part.laid() is None else BATCH_ROWS
    some: Runs = []
    rows = size = 0
    for start, stop in runs:
        while start < stop:
            end = max(start + 1, fitting(part, start, min(stop, start + rows_max - rows), BATCH_BYTES - size))
            some.append((start, end))
            rows, size = rows + end - start, size + part.bytes_before(end) - part.bytes_before(start)
            if rows >= rows_max or size >= BATCH_BYTES or end < stop:
                yield some
                some, rows, size = [], 0, 0
            start = end
    if some:
        yield some


def _encode_next(part: Part, portions: Iterator[Runs]) -> bytes:
    """The next portion; empty at the end. Blocking."""
    runs = next(portions, None)
    if runs is None:
        return b""
    if isinstance(part, SegmentPiece):
        encoded = _encode_sealed(part, runs)
        part.file.release()
        return encoded
    laid = part.laid() if isinstance(part, Chunk) else None
    if laid is not None:
        return _encode_rows(arrays_of_laid(laid).select(runs))
    first = runs[0][0]
    rows = arrays_of(part.columns(first, runs[-1][1]))
    return _encode_rows(rows.select([(start - first, stop - first) for start, stop in runs]))


def _schema(metadata: dict[str, str] | None = None) -> Any:
    import pyarrow as pa

    whole = schema()
    return pa.schema([whole.field(name) for name in Arrays._fields], metadata=metadata)


def _encode_sealed(piece: SegmentPiece, runs: Runs) -> bytes:
    """A batch of rows of a segment."""
    import pyarrow as pa

    first, stop = runs[0][0], runs[-1][1]
    batch = piece.file.batch(_schema(), piece.ref.start + first, piece.ref.start + stop)
    if len(runs) > 1:
        batch = batch.take(pa.array([row - first for start, end in runs for row in range(start, end)], pa.uint32()))
    return bytes(batch.serialize())


def _encode_rows(rows: Arrays) -> bytes:
    """A batch of rows that are in memory."""
    import pyarrow as pa

    return bytes(pa.RecordBatch.from_arrays(list(rows), schema=_schema()).serialize())
