"""Reading a part, in a task: batches from segments, then from the server, with what the lake has in between.

Everything here gets all it needs with the part, and runs on executors, or on the driver. What was planned may have
changed meanwhile: records may be lost since, segments merged, a topic created again, the server restarted. Each of that
is either read around or told as a gap; nothing is passed over in silence. Where there is a server, it says which sealed
records are still live, so that segments and exports give the same rows.
"""

import gc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from topics import reader
from topics.client import CannotConnect, ClientError, ExportInfo
from topics.errors import InvalidRequest, NotFound, TopicNotFound
from topics.ranges import Range, intersect, subtract, union
from topics.reader import Lost
from topics.spark.options import ReadOptions
from topics.spark.origins import clipped
from topics.spark.plan import Part, RecordsLost, describe, without
from topics.spark.schema import Projection, Shape, own_left_out, tagged
from topics.spark.tables.lake import read_rows
from topics.tuning import keep_memory

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES: Final = 64 * 1024 * 1024  # of free memory, in a worker
BATCH_ROWS: Final = 32_768  # of one batch for Spark
RESUMED_MAX: Final = 5  # times that an export is taken up again without having brought anything


@dataclass(frozen=True)
class Insert:
    """Batches that belong before the record `first`."""

    first: int
    batches: "Callable[[], Iterable[pa.RecordBatch]]"


class Living:
    """The seqs of a part that are live, as runs."""

    def __init__(self) -> None:
        self._runs: list[Range] = []  # ascending

    def add(self, runs: Iterable[Range]) -> None:
        """Add runs above all that are there."""
        for first, last in runs:
            if self._runs and self._runs[-1][1] + 1 >= first:
                self._runs[-1] = (self._runs[-1][0], last)
            else:
                self._runs.append((first, last))

    def of(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """The rows of a batch that are live. Copied only if some are not."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column, count = batch["seq"], batch.num_rows
        if not count:
            return batch
        seqs = memoryview(column.buffers()[1]).cast("Q")[column.offset : column.offset + count]
        index = max(0, bisect_right(self._runs, seqs[0], key=lambda run: run[0]) - 1)
        marks, row, kept = bytearray(count), 0, 0
        while row < count and index < len(self._runs):
            first, last = self._runs[index]
            start = bisect_left(seqs, first, row)
            row = bisect_right(seqs, last, start)
            marks[start:row] = b"\x01" * (row - start)
            kept += row - start
            index += 1
        if kept == count:
            return batch
        flags = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(marks)])
        return batch.filter(pc.equal(flags, pa.scalar(1, pa.uint8())))


@cache
def keep_worker_memory() -> None:
    """Once in a process: batches and bodies of a megabyte come and go."""
    keep_memory(KEPT_BYTES)


@cache
def freeze_modules() -> None:
    """Once in a process, when all modules are loaded: let the garbage collector pass over what is there by now.

    Spark runs it after every task, and the worker does nothing else meanwhile: over what Spark and pyarrow have loaded
    it takes 15 to 30 ms.
    """
    gc.freeze()


def in_worker(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The same, in a process that is there for such reads, whose memory and collector are set up for them."""
    keep_worker_memory()
    yield from batches
    freeze_modules()


class PartReader:
    """One reading of one part."""

    def __init__(self, part: Part, options: ReadOptions, projection: Projection) -> None:
        self._part = part
        self._options = options
        self._projection = projection
        self._server = options.server if options.server is None or not part.server else options.server.at(part.server)
        self._shape = Shape(projection, part.topic)
        self._absent = list(part.absent)
        self._inserts: list[Insert] = []  # ascending; grows while the part is read
        self._nodes = options.nodes if part.filters_nodes else ()
        self._tags = options.tags
        names = {"seq", *projection.stored, *(("node",) if self._nodes else ())}
        names |= {"tag"} if self._tags is not None else set()
        self._columns = tuple(name for name in reader.COLUMNS if name in names)

    def batches(self) -> "Generator[pa.RecordBatch, None, None]":
        """All of it, in the order of the seqs."""
        for gap in self._part.announced:
            self._insert_tombstone(gap)
        self._insert_history(self._part.absent)
        for batch in self._live():
            while self._inserts and self._inserts[0].first <= batch["seq"][-1].as_py():
                insert = self._inserts.pop(0)
                count = bisect_left(range(batch.num_rows), insert.first, key=lambda row: batch["seq"][row].as_py())
                yield from self._shown(batch.slice(0, count))
                yield from insert.batches()
                batch = batch.slice(count)
            yield from self._shown(batch)
        for insert in self._inserts:
            yield from insert.batches()

    def _shown(self, batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
        if self._nodes:
            batch = own_left_out(batch, self._nodes)
        if self._tags is not None:
            batch = tagged(batch, self._tags)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield self._shape.records(batch.slice(start, BATCH_ROWS))

    def _live(self) -> "Iterator[pa.RecordBatch]":
        part = self._part
        sealed = min(part.sealed, part.last)
        if sealed > part.after:
            if self._options.server is None:
                yield from self._sealed(sealed)
            else:
                living = self._ask_living(sealed)
                if living is None:
                    return
                batches = (living.of(batch) for batch in self._sealed(sealed))
                yield from (batch for batch in batches if batch.num_rows)
        if part.last > max(sealed, part.after) and self._options.server is not None:
            yield from self._served(max(sealed, part.after))

    # --- from segments

    def _sealed(self, last: int) -> "Iterator[pa.RecordBatch]":
        """What the pieces have up to `last`. If a checkpoint has replaced them, what has come in their place."""
        part, path = self._part, self._options.path
        assert path is not None
        cursor = part.after
        if part.absent and part.absent[0][0] == cursor + 1:  # rows below the floor may still be in a file
            cursor = part.absent[0][1]
        for piece in part.pieces:
            end = min(piece.last, last)
            if end <= cursor:
                continue
            try:
                batch = reader.read_piece(
                    path, piece.file, piece.start, piece.count, after=cursor, last=end, columns=self._columns
                )
            except FileNotFoundError:
                yield from self._sealed_anew(cursor, last)
                return
            cursor = end
            if batch.num_rows:
                yield batch

    def _sealed_anew(self, cursor: int, last: int) -> "Iterator[pa.RecordBatch]":
        part, path = self._part, self._options.path
        assert path is not None
        with reader.open_directory(path) as directory:
            try:
                if directory.topic(part.topic).epoch != part.epoch:
                    raise TopicNotFound(part.topic)
                batches = directory.batches(part.topic, cursor, last, self._columns)
                for batch in batches:
                    self._note(batches.lost)
                    yield batch
                self._note(batches.lost)
            except TopicNotFound:
                self._note([Lost(cursor + 1, last, "recreated")])

    # --- from the server

    def _ask_living(self, last: int) -> "Living | None":
        """Which seqs up to `last` the server has now: segments are as old as the last checkpoint. None: it has
        another instance by now."""
        part, server = self._part, self._server
        assert server is not None
        cursor, living = part.after, Living()
        with server.open() as client:
            while cursor < last:
                try:
                    answer = server.until_answered(
                        partial(client.live, part.topic, cursor, last=last, epoch=part.epoch)
                    )
                except TopicNotFound:
                    answer = None
                except NotFound:
                    raise InvalidRequest(
                        f"the server at {server.url} is older than this reader and cannot say which sealed records are "
                        "live: update it, or leave out option path"
                    ) from None
                if answer is None or answer.epoch != part.epoch:
                    self._note([Lost(part.after + 1, part.last, "recreated")])
                    return None
                trimmed = (cursor + 1, min(answer.earliest_seq - 1, part.trimmed, last))
                self._note(clipped(answer.lost, cursor, last), trimmed)
                living.add(answer.live)
                if answer.last <= cursor:
                    break
                cursor = answer.last
        return living

    def _served(self, after: int) -> "Iterator[pa.RecordBatch]":
        """What an export has; one that breaks off is taken up behind its last batch."""
        part, server = self._part, self._server
        assert server is not None
        cursor, resumed = after, 0
        with server.open() as client:
            while cursor < part.last:
                try:
                    with closing(client.export(part.topic, cursor, last=part.last, epoch=part.epoch)) as export:
                        if not self._is_same(export.info, cursor):
                            return
                        for batch in export:
                            if batch.num_rows:
                                cursor, resumed = batch["seq"][-1].as_py(), 0
                                yield batch
                    return
                except TopicNotFound:
                    self._note([Lost(cursor + 1, part.last, "recreated")])
                    return
                except ClientError as error:
                    resumed += 1
                    if isinstance(error, CannotConnect) or (resumed > RESUMED_MAX and not server.waits):
                        raise
                    if server.waits:
                        server.until_answered(client.health)

    def _is_same(self, info: ExportInfo, cursor: int) -> bool:
        """Note what an export says was lost. False: it is of another instance, and what was planned is gone."""
        part = self._part
        if info.epoch != part.epoch:
            self._note([Lost(cursor + 1, part.last, "recreated")])
            return False
        trimmed = (cursor + 1, min(info.earliest_seq - 1, part.trimmed, part.last))
        self._note(clipped(info.lost, cursor, part.last), trimmed)
        return True

    # --- what is not there

    def _note(self, lost: list[Lost], trimmed: Range = (1, 0)) -> None:
        """Take note of seqs that are gone since the plan was made: what is not in the lake is a gap if it is lost."""
        absent = union([*((a.first, a.last) for a in lost), trimmed])
        self._insert_history(subtract(absent, self._absent))
        gaps = without(lost, union([*self._absent, *self._part.covered]))
        self._absent = union([*self._absent, *absent])
        if gaps and self._options.on_gap == "fail":
            said = "; ".join(describe(self._part.topic, gap) for gap in gaps)
            raise RecordsLost(f"records were lost while they were read: {said}")
        for gap in gaps if self._options.on_gap == "record" else ():
            self._insert_tombstone(gap)

    def _insert_tombstone(self, gap: Lost) -> None:
        self._insert(gap.first, lambda: [self._projection.tombstone(self._part.topic, gap)])

    def _insert_history(self, absent: Iterable[Range]) -> None:
        """Let the lake stand in where it can."""
        for wanted in intersect(list(absent), self._part.covered):
            self._insert(wanted[0], lambda wanted=wanted: self._history(wanted))  # type: ignore[misc]

    def _history(self, wanted: Range) -> "Iterator[pa.RecordBatch]":
        root = self._options.archive
        assert root is not None
        for batch in read_rows(root, self._part.files, [wanted], self._columns):
            yield from self._shown(batch)

    def _insert(self, first: int, batches: "Callable[[], Iterable[pa.RecordBatch]]") -> None:
        index = bisect_left(self._inserts, first, key=lambda insert: insert.first)
        self._inserts.insert(index, Insert(first, batches))
