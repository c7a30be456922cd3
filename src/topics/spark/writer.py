"""The sink: rows of a partition become chunks, each appended under a key that the same rows have in every attempt.

A task first takes in all rows of its partition and checks them, and only then sends the first chunk: a row that is
no record fails the task, by its number, before anything of the partition is written. Limits that only the server
knows are met when a chunk is sent; the chunks before it then stay. With `checkFirst=false` rows are sent as they come,
and a bad one finds the chunks before it written.

Chunks are sent by a thread of their own, one after the other, while the next ones are made: the order of the rows is
that of the topic. Never two at a time: the server may refuse one for the moment and take the next.

Invariant: chunks depend on the rows and their order alone. So a task that is tried again, a batch that is run again
from a checkpoint and a commit that got lost give the same keys, and the server appends each chunk once (ID1). A key
is the place where a chunk begins among the partition's rows for its topic, and not how long it is: rows that are not
those of the first attempt begin at the same place, are refused by the server, and fail the task (ID9). They are neither
left out nor doubled in silence.
"""

import threading
import uuid
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Queue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Raw
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from xxhash import xxh3_64_hexdigest

from topics.client import ApiError, Client, NewRecord
from topics.errors import (
    BatchTooLarge,
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    PayloadTooLarge,
    TopicNotFound,
)
from topics.spark.options import WriteOptions, bad
from topics.spark.reader import freeze_modules, keep_worker_memory
from topics.spark.rows import NOTHING_WRITTEN, BadRow, RowChecker, Spool

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CHUNK_RECORDS: Final = 5_000  # as CHUNK_BYTES part of the keys: changed, a batch that is run again would be doubled
CHUNK_BYTES: Final = 4 * 1024 * 1024
AHEAD_MAX: Final = 3  # chunks that are made while one is sent
WINDOW_MS: Final = 7 * 86_400_000  # how long a topic made here remembers keys: as long as a checkpoint may lag
WINDOW_SHORT_MS: Final = 3_600_000  # less than this is warned of


@dataclass(frozen=True)
class TaskWrote(WriterCommitMessage):
    """What a task has written."""

    records: int
    chunks: int
    deduped: int  # chunks that an earlier attempt had written


class Sink:
    """What both writers do. It is made on the driver and goes to the executors."""

    def __init__(self, options: WriteOptions, checker: RowChecker, run: str) -> None:
        self._options = options
        self._checker = checker
        self._run = run

    def write(self, rows: "Iterator[pa.RecordBatch]") -> TaskWrote:
        context = TaskContext.get()
        assert context is not None, "a sink writes within a task"
        keep_worker_memory()
        run, checked = self._batch_of(context), self._checked(rows)
        with closing(Sender(self._options, run, context.partitionId())) as sender, closing(Spool()) as spool:
            if self._options.checks_first:
                for batch in checked:
                    spool.add(batch)
                checked = spool.batches()
            wrote = sender.send(checked)
        freeze_modules()
        return wrote

    def _checked(self, rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        count = 0
        for batch in rows:
            yield self._checker.check(batch, count)
            count += batch.num_rows

    def _batch_of(self, context: TaskContext) -> str:
        return self._run


class TopicsWriter(Sink, DataSourceArrowWriter):
    """A batch write. Its keys begin with option writeId, so that the write can be done again, or with a new id."""

    @classmethod
    def of(cls, options: WriteOptions, schema: "StructType") -> "TopicsWriter":
        checker = RowChecker.of(schema, options.topic)
        _warn_of_short_window(options, lasts="this job")
        return cls(options, checker, options.write_id or uuid.uuid4().hex)

    def _batch_of(self, context: TaskContext) -> str:
        """In a foreachBatch the same writeId comes with every batch: what tells the writes apart belongs to the key.

        That is the query, the batch, and the columns of what is written. A writeId that names the query itself is
        taken as it is.
        """
        query, batch = _query_and_batch(context)
        if self._options.write_id is None or not query or query in self._run:
            return self._run
        mark = xxh3_64_hexdigest(f"{query}/{batch}/{sorted(self._checker.kinds.items())}".encode())
        return f"{self._run}/{mark}"


class TopicsStreamWriter(Sink, DataSourceStreamArrowWriter):
    """A streaming write, exactly once: its key begins with the query and the batch, as the checkpoint has them."""

    @classmethod
    def of(cls, options: WriteOptions, schema: "StructType") -> "TopicsStreamWriter":
        if options.write_id is not None:
            raise bad("writeId", options.write_id, "a stream has the ids of its query and batches instead")
        checker = RowChecker.of(schema, options.topic)
        _warn_of_short_window(options, lasts="the time between a failure and the restart of this query")
        return cls(options, checker, "")

    def _batch_of(self, context: TaskContext) -> str:
        """Spark gives a writer no batch id; its tasks have it among their properties."""
        query, batch = _query_and_batch(context)
        if not query or batch is None:
            raise InvalidRequest(
                "this Spark does not tell tasks the id of the query and of the batch, without which rows could be "
                "written twice; use PySpark 4.3"
            )
        return f"{query}/{batch}"


def _query_and_batch(context: TaskContext) -> tuple[str | None, str | None]:
    """The streaming query and its batch that a task works for, if it does."""
    query = context.getLocalProperty("sql.streaming.queryId")
    return query, context.getLocalProperty("streaming.sql.batchId")


class Sender:
    """Sends the rows of one partition, in chunks of one topic each, to the server that has the topic, or its home."""

    def __init__(self, options: WriteOptions, run: str, partition: int) -> None:
        self._server = options.server
        self._fleet = options.server.fleet()
        self._node = options.node
        self._run = run  # the write that the partition belongs to
        self._prefix = f"{run}/{partition}"
        self._records = self._chunks = self._deduped = 0

    def close(self) -> None:
        self._fleet.close()

    def _client(self, topic: str) -> Client:
        if not self._server.is_several:
            return self._fleet.home(topic)
        return self._server.until_answered(lambda: self._fleet.of(topic))

    def send(self, batches: "Iterator[pa.RecordBatch]") -> TaskWrote:
        with _Ahead(self._send) as ahead:
            try:
                for chunk in chunks(batches):
                    ahead.add(chunk)
            except BadRow as error:  # rows are sent as they come
                ahead.finish()
                raise InvalidRequest(f"{str(error).removesuffix(NOTHING_WRITTEN)}{_before(self._chunks)}") from error
        return TaskWrote(self._records, self._chunks, self._deduped)

    def _send(self, chunk: "Chunk") -> None:
        key = f"{self._prefix}/{chunk.place}"
        try:
            answer = self._append(chunk, key)
        except (BatchTooLarge, PayloadTooLarge):
            if chunk.count == 1:
                raise
            for half in chunk.halves():  # this server takes less at a time; refused in every attempt
                self._send(half)
            return
        except IdempotencyMismatch as error:
            raise _mismatched(error, chunk, self._run, key) from error
        except ApiError as error:
            raise _placed(error, chunk, self._chunks) from error
        self._records += chunk.count
        self._chunks += 1
        self._deduped += answer.deduped

    def _append(self, chunk: "Chunk", key: str) -> Any:
        return self._server.until_answered(lambda: self._append_or_create(chunk, key), is_harmless=False)

    def _append_or_create(self, chunk: "Chunk", key: str) -> Any:
        client = self._client(chunk.topic)
        try:
            return client.append_arrow(chunk.topic, chunk.rows(), node=self._node, idempotency_key=key, create=False)
        except TopicNotFound:
            return self._create(client, chunk, key)

    def _create(self, client: Client, chunk: "Chunk", key: str) -> Any:
        """Create the topic with its first chunk. If another task does so meanwhile, the config is left alone (WR7)."""
        try:
            return client.append(
                chunk.topic,
                chunk.records(),
                node=self._node,
                idempotency_key=key,
                create=True,
                config={"idempotency_window_ms": WINDOW_MS},
            )
        except Forbidden as error:
            raise InvalidRequest(
                f"there is no topic {chunk.topic}, and the token may not create it, which needs the scope admin: "
                f"create it before, with an idempotency_window_ms of {WINDOW_MS}"
            ) from error


class _Ahead:
    """Does the work on chunks in a thread, one after the other, while others are made. Use as a context manager."""

    def __init__(self, send: "Callable[[Chunk], None]") -> None:
        self._send = send
        self._waiting: Queue[Chunk | None] = Queue(AHEAD_MAX)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="topics-sink", daemon=True)

    def add(self, chunk: "Chunk") -> None:
        """Hand over the next one; raises what became of one before it."""
        if self._failure is not None:
            raise self._failure
        self._waiting.put(chunk)

    def finish(self) -> None:
        """Wait for all; raises what became of them."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (chunk := self._waiting.get()) is not None:
            if self._failure is None:  # what follows a failure is not sent
                try:
                    self._send(chunk)
                except BaseException as error:
                    self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:  # what is not sent yet stays so
            self._failure = self._failure or error
            with suppress(BaseException):
                self.finish()


class Chunk:
    """Rows of one topic, in their order; the partition may have rows of others between them."""

    def __init__(self, topic: str, place: int, table: "pa.Table", numbers: "pa.Array") -> None:
        self.topic = topic
        self.place = place  # how many rows of the topic the partition has before it
        self._table = table
        self._numbers = numbers  # of the rows, in the partition

    @property
    def count(self) -> int:
        return len(self._numbers)

    def row(self, n: int) -> int:
        return int(self._numbers[n].as_py())

    def halves(self) -> "tuple[Chunk, Chunk]":
        middle = self.count // 2
        return (
            Chunk(self.topic, self.place, self._table.slice(0, middle), self._numbers.slice(0, middle)),
            Chunk(self.topic, self.place + middle, self._table.slice(middle), self._numbers.slice(middle)),
        )

    def records(self) -> list[NewRecord]:
        rows = self._table.select(["data", "tag", "node", "meta"]).to_pylist()
        return [
            NewRecord(
                Raw(row["data"].encode()),
                row["tag"],
                row["node"],
                None if row["meta"] is None else Raw(row["meta"].encode()),
            )
            for row in rows
        ]

    def rows(self) -> "pa.Table":
        """As a request carries them: Arrow, without a copy, less the columns that say nothing."""
        names = [name for name in ("tag", "node", "meta") if self._table[name].null_count < self.count]
        return self._table.select(["data", *names])


def chunks(batches: "Iterator[pa.RecordBatch]") -> Iterator[Chunk]:
    """The rows of a partition in chunks of one topic each, bounded in records and bytes; by nothing but the rows."""
    waiting: dict[str, _Waiting] = {}
    row = 0
    for batch in batches:
        for topic, rows, numbers in _by_topic(batch, row):
            one = waiting.setdefault(topic, _Waiting(topic))
            yield from one.add(rows, numbers)
        row += batch.num_rows
    for one in waiting.values():
        yield from one.rest()


def _by_topic(batch: "pa.RecordBatch", row: int) -> "Iterator[tuple[str, pa.RecordBatch, pa.Array]]":
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column("topic")
    topics = pc.unique(column).to_pylist()
    places = pa.py_buffer(array("q", range(row, row + batch.num_rows)))  # half the time that pa.array takes
    numbers = pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, places])
    if len(topics) == 1:
        yield topics[0], batch, numbers
        return
    for topic in topics:
        chosen = pc.indices_nonzero(pc.equal(column, topic))
        yield topic, batch.take(chosen), numbers.take(chosen)


class _Waiting:
    """The rows of one topic that do not make a chunk yet."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._place = 0  # rows of the topic in earlier chunks
        self._batches: list[pa.RecordBatch] = []
        self._numbers: list[pa.Array] = []
        self._count = 0
        self._size_bytes = 0

    def add(self, batch: "pa.RecordBatch", numbers: "pa.Array") -> Iterator[Chunk]:
        """A chunk ends before the row that would make it too long or, unless it has none, too large."""
        ends = _sizes(batch)  # of the rows, added up
        start = 0
        while start < batch.num_rows:
            base = int(ends[start - 1]) if start else 0
            fitting = int(ends.searchsorted(base + CHUNK_BYTES - self._size_bytes, side="right"))
            stop = min(start + CHUNK_RECORDS - self._count, fitting, batch.num_rows)
            if not self._count:
                stop = max(stop, start + 1)
            if stop > start:
                self._batches.append(batch.slice(start, stop - start))
                self._numbers.append(numbers.slice(start, stop - start))
                self._count += stop - start
                self._size_bytes += int(ends[stop - 1]) - base
                start = stop
            if start < batch.num_rows:
                yield from self.rest()

    def rest(self) -> Iterator[Chunk]:
        import pyarrow as pa

        if self._count:
            rows, numbers = pa.Table.from_batches(self._batches), pa.concat_arrays(self._numbers)
            yield Chunk(self._topic, self._place, rows, numbers)
            self._place += self._count
        self._batches, self._numbers, self._count, self._size_bytes = [], [], 0, 0


def _sizes(batch: "pa.RecordBatch") -> Any:
    """The bytes of data and meta of the rows up to each, as a numpy array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.binary_length(batch["data"]).cast(pa.int64())
    if batch["meta"].null_count < batch.num_rows:
        sizes = pc.add(sizes, pc.coalesce(pc.binary_length(batch["meta"]), 0).cast(pa.int64()))
    return pc.cumulative_sum(sizes).to_numpy(zero_copy_only=False)


def _mismatched(error: IdempotencyMismatch, chunk: Chunk, run: str, key: str) -> InvalidRequest:
    first, last = error.detail.get("first_seq"), error.detail.get("last_seq")
    return InvalidRequest(
        f"other rows were written to topic {chunk.topic} under writeId {run} before: key {key} stands for its seqs "
        f"{first} to {last}; these {chunk.count} rows were not written. Give each write a writeId of its own, or none; "
        "a write or batch that is run again must have the same rows, in the same order and the same partitions"
    )


def _placed(error: ApiError, chunk: Chunk, sent: int) -> InvalidRequest | ApiError:
    """A refusal of the server, with the number of the row if it names one."""
    place = error.message.partition("records[")[2].partition("]")[0]
    if error.status != 400 or not place.isdigit() or int(place) >= chunk.count:
        return error
    return InvalidRequest(f"row {chunk.row(int(place))} of the partition was refused: {error.message}; {_before(sent)}")


def _before(sent: int) -> str:
    return NOTHING_WRITTEN if not sent else f"the {sent} chunks before it were written"


def _warn_of_short_window(options: WriteOptions, lasts: str) -> None:
    """Exactly once holds for as long as the topic remembers keys."""
    if options.topic is None:
        return
    with options.server.holding(options.topic).open() as client:
        try:
            state = options.server.until_answered(partial(client.state, options.topic, touch=False))
            window_ms = state.config.idempotency_window_ms
        except (TopicNotFound, Forbidden):
            return
    if window_ms < WINDOW_SHORT_MS:
        warnings.warn(
            f"topic {options.topic} remembers idempotency keys for {window_ms} ms only; rows are written exactly once "
            f"if that is longer than {lasts}. Set its idempotency_window_ms to {WINDOW_MS}",
            stacklevel=2,
        )
