"""`topics transform`: topics through SQL or a Python function into topics, files or tables.

    transform(spark, "revenue.toml", once=True)
    transform(spark, "pipelines:revenue", checkpoint="state")

    def revenue(flow: Flow) -> None:
        orders = flow.read("orders", topic="orders", schema="price DECIMAL(12,2)")
        flow.write("out", orders.groupBy(…).agg(…), topic="revenue")

Every sink is a streaming query with a checkpoint of its own. Into topics each row goes once: where the plan keeps the
order of its source, by the keys of the streaming sink; where rows were shuffled, so that a batch that is run again may
have them in another order, each batch is put in order first and written under its own name.

Owned here: how views are made of sources, and how each sink is written exactly once. What a file may say is
`declaring`. As a service it says how it is in a file (`Pulse`): `progress_at` is when the query that has been silent
for longest last told of progress.
"""

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from topics.clock import SystemClock
from topics.errors import InvalidRequest, TopicsError
from topics.spark.jobs import declaring
from topics.spark.jobs.declaring import Declaration, Mode, Sink, Source, Watermark
from topics.spark.runs.failures import hidden, shortened
from topics.spark.runs.progress import POLL_S, Progress, lag_of
from topics.spark.runs.pulse import Pulse
from topics.spark.servers.connection import Surroundings
from topics.spark.session import is_connected, under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORD: Final = ("topic", "tag", "node", "meta")  # columns of a row for a topic, besides data
# Plans in which rows change places; a broadcast of the smaller side leaves the other one in order.
SHUFFLED: Final = re.compile(r"\b(?:Exchange|ReusedExchange|REPARTITION\w*|StateStoreSave|Sort) ")
NOT_CONNECTED: Final = "rows that are grouped, joined or sorted cannot be written into a topic by Spark Connect"
# Batches that are run again must be cut like the first time, so nothing may decide by sizes.
SETTINGS: Final = {"spark.sql.adaptive.enabled": "false"}


@dataclass
class Transformed:
    """What came of one run."""

    rows: int = 0  # taken in; what Spark reads again because a worker with shuffled rows was lost counts again
    batches: int = 0
    late: int = 0  # rows that came behind a watermark, and were left out of what it closed
    queries: dict[str, int] = field(default_factory=dict)  # rows taken in, by sink


def transform(
    spark: "SparkSession",
    file: str,
    *,
    once: bool = False,
    url: str | None = None,
    checkpoint: str | None = None,
    health: str | None = None,
    progress: Progress | None = None,
    is_over: threading.Event | None = None,
) -> Transformed:
    """Run a pipeline: over what there is now, or until `is_over` is set. `file` is a TOML file or `module:function`.

    `health` names a file that says how the job is.
    """
    pulse = Pulse(health, SystemClock())
    pulse.beat(rows=0, lag=None)
    try:
        flow = _flow(spark, file, once=once, url=url, checkpoint=checkpoint)
        with under(spark, SETTINGS):
            run = _Run(flow.start(), progress or Progress("transform"), is_over or threading.Event(), pulse)
            return run.follow()
    except Exception as error:
        pulse.beat(error=hidden(shortened(error), Surroundings.load().token), lag=None)
        raise


def _flow(spark: "SparkSession", file: str, *, once: bool, url: str | None, checkpoint: str | None) -> "Flow":
    """The pipeline, put together."""
    flow = Flow(spark, once=once, url=url, checkpoint=checkpoint)
    if is_function(file):
        flow.trigger = None
        _function(file)(flow)
    else:
        flow.build(declaring.load(file, url=url, checkpoint=checkpoint))
    if not flow.outputs:
        raise InvalidRequest(f"{file} writes nothing: it calls flow.write for no view")
    return flow


def is_function(file: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", file) is not None


def _function(name: str) -> Callable[["Flow"], None]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"{name}: there is no module {error.name}") from None
    except AttributeError:
        raise InvalidRequest(f"{name}: module {module} has no function {function}") from None
    if not callable(found):
        raise InvalidRequest(f"{name}: {function} cannot be called")
    return found  # type: ignore[no-any-return]


class Flow:
    """A pipeline being put together: sources become views, views go to sinks. Nothing runs before `start`."""

    def __init__(
        self, spark: "SparkSession", *, once: bool = False, url: str | None = None, checkpoint: str | None = None
    ) -> None:
        self.spark = spark
        self.once = once
        self.trigger: str | None = None
        self.outputs: list[tuple[Sink, DataFrame]] = []
        self._url = url or Surroundings.load().url or None
        self._checkpoint = checkpoint

    # --- what a function calls

    def read(
        self,
        name: str,
        *,
        schema: str | None = None,
        watermark: tuple[str, str] | None = None,
        malformed: declaring.Malformed = "fail",
        **options: Any,
    ) -> "DataFrame":
        """A stream of topics, also as the view `name`. With `schema`, data is a struct of that form.

        `watermark` is a column and how late it may be; `options` are those of format("topics").
        """
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
        if self._url is not None and "path" not in texts:
            texts.setdefault("url", self._url)
        if "startingTimestamp" not in texts:
            texts.setdefault("startingSeq", "earliest")
        limit = None if watermark is None else Watermark(*watermark)
        return self._source(Source(name, texts, "topics", schema, malformed, limit), is_stream=True)

    def write(
        self,
        name: str,
        rows: "DataFrame",
        *,
        topic: str | None = None,
        path: str | None = None,
        table: str | None = None,
        format: str = "parquet",
        mode: Mode = "append",
        partition_by: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Let rows go to a topic, to files or to a table. The name belongs to the checkpoint."""
        texts = {key: str(value) for key, value in options.items()}
        is_topics = path is None and table is None
        if is_topics and self._url is not None:
            texts.setdefault("url", self._url)
        if is_topics and topic is not None:
            texts["topic"] = topic
        kind = "topics" if is_topics else format
        if not is_topics and mode != "append":
            raise InvalidRequest(f"sink {name}: mode is {mode!r}, and only append can be written to files and tables")
        if any(sink.name == name for sink, _ in self.outputs):
            raise InvalidRequest(f"sink {name} is there already")
        self.outputs.append((Sink(name, "", mode, topic, path, table, kind, texts, tuple(partition_by)), rows))

    # --- a declaration

    def build(self, found: Declaration) -> None:
        """Make the views of a declaration, in its order."""
        self.trigger, self._checkpoint = found.trigger, found.checkpoint
        for source in found.sources:
            self._source(source, is_stream=True)
        for table in found.tables:
            self._source(table, is_stream=False)
        for number, step in enumerate(found.steps):
            with _told(f"key steps[{number}].sql ({step.name})"):
                rows = self.spark.sql(step.sql)
            with _told(f"key steps[{number}].watermark ({step.name})"):
                _limited(rows, step.watermark).createOrReplaceTempView(step.name)
        self.outputs = [(sink, self.spark.table(sink.origin)) for sink in found.sinks]

    def _source(self, source: Source, *, is_stream: bool) -> "DataFrame":
        where = f"source {source.name}" if is_stream else f"table {source.name}"
        with _told(where):
            reader = self.spark.readStream if is_stream else self.spark.read
            reader = reader.format(source.format).options(**dict(source.options))
            if source.schema is not None and source.format != "topics":
                reader = reader.schema(source.schema)
            rows = reader.load()
            if source.schema is not None and source.format == "topics":
                rows = _parsed(rows, source.schema, source.malformed)
            rows = _limited(rows, source.watermark)
            rows.createOrReplaceTempView(source.name)
        return rows

    # --- running

    def start(self) -> "dict[str, StreamingQuery]":
        """Start a query for each sink."""
        if self._checkpoint is None:
            raise InvalidRequest("a checkpoint is missing: give the directory that remembers how far the pipeline is")
        queries: dict[str, StreamingQuery] = {}
        try:
            for sink, rows in self.outputs:
                with _told(f"sink {sink.name}"):
                    queries[sink.name] = self._started(sink, rows)
        except BaseException:
            for query in queries.values():
                query.stop()
            raise
        return queries

    def _started(self, sink: Sink, rows: "DataFrame") -> "StreamingQuery":
        if not rows.isStreaming:
            raise InvalidRequest("its rows come from no stream; a pipeline starts at a source")
        if sink.is_topics:
            rows = as_records(rows, sink)
        trigger: dict[str, Any] = {"availableNow": True} if self.once else {}
        if not self.once and self.trigger is not None:
            trigger = {"processingTime": self.trigger}
        writer = rows.writeStream.queryName(sink.name).outputMode(sink.mode)
        writer = writer.option("checkpointLocation", f"{self._checkpoint}/{sink.name}")
        if trigger:
            writer = writer.trigger(**trigger)
        if sink.is_topics:
            if sink.mode == "append" and not is_shuffled(rows):
                return writer.format("topics").options(**dict(sink.options)).start()
            if is_connected(self.spark):  # a batch is written by a process of that server, which has no such keys
                raise InvalidRequest(f"{NOT_CONNECTED}; this works with --master, and on a cluster")
            batches = _Batches(sink)
            query = writer.foreachBatch(batches.write).start()
            batches.is_of(str(query.id))
            return query
        writer = writer.format(sink.format).options(**dict(sink.options))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        return writer.toTable(sink.table) if sink.table is not None else writer.start(sink.path)


class _Batches:
    """Writes the batches of a query one by one, each under a name that it has in every attempt."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._query = ""
        self._is_known = threading.Event()

    def is_of(self, query: str) -> None:
        self._query = query
        self._is_known.set()

    def write(self, rows: "DataFrame", batch: int) -> None:
        """In an order that depends on the rows alone: the keys of a write are made of the places of its rows."""
        from pyspark.sql import functions as F  # noqa: N812

        self._is_known.wait()
        ordered = rows.sortWithinPartitions(F.to_json(F.struct(*rows.columns)))
        writer = ordered.write.format("topics").options(**dict(self._sink.options))
        writer.option("writeId", f"{self._query}/{batch}").mode("append").save()


def is_shuffled(rows: "DataFrame") -> bool:
    """Whether rows may come in another order when a batch is run again."""
    with redirect_stdout(StringIO()) as said:  # what is public about a plan is how it is printed
        rows.explain(extended=True)
    return SHUFFLED.search(said.getvalue()) is not None


def as_records(rows: "DataFrame", sink: Sink) -> "DataFrame":
    """The rows as records: without a column data, all that is not of the record itself becomes its data."""
    from pyspark.sql import functions as F  # noqa: N812

    names = rows.columns
    if "data" not in names:
        fields = [name for name in names if name not in RECORD]
        if not fields:
            raise InvalidRequest(f"its rows have no column for data, only {', '.join(names)}")
        kept = [name for name in names if name in RECORD]
        rows = rows.select(F.struct(*(F.col(f"`{name}`") for name in fields)).alias("data"), *kept)
    if sink.topic is None and "topic" not in rows.columns:
        raise InvalidRequest("it names no topic, and its rows have no column topic")
    return rows


def _parsed(rows: "DataFrame", schema: str, malformed: str) -> "DataFrame":
    """With data in the form of `schema`: columns and their types, or the one type of a plain value."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, DataType, MapType, StructType

    mode = {"mode": "FAILFAST" if malformed == "fail" else "PERMISSIVE"}
    kind = DataType.fromDDL(schema)
    if isinstance(kind, StructType | ArrayType | MapType):
        return rows.withColumn("data", F.from_json("data", kind, mode))
    wrapped = F.concat(F.lit('{"value":'), "data", F.lit("}"))
    return rows.withColumn("data", F.from_json(wrapped, StructType().add("value", kind), mode)["value"])


def _limited(rows: "DataFrame", watermark: Watermark | None) -> "DataFrame":
    if watermark is None:
        return rows
    column = watermark.column
    if "." in column:  # of data: a watermark is kept by a column of the row itself
        name = column.rpartition(".")[2]
        rows, column = rows.selectExpr("*", f"{column} AS `{name}`"), name
    return rows.withWatermark(column, watermark.delay)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """What Spark says against a part of the pipeline, with the name of the part."""
    try:
        yield
    except TopicsError as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except Exception as error:
        raise InvalidRequest(f"{where}: {shortened(error)}") from error


class _Run:
    """The queries of a pipeline, followed to their end."""

    def __init__(
        self, queries: "Mapping[str, StreamingQuery]", progress: Progress, is_over: threading.Event, pulse: Pulse
    ) -> None:
        self._queries = queries
        self._progress = progress
        self._is_over = is_over
        self._pulse = pulse
        self._seen: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in queries}  # rows, late ones; by batch

    def follow(self) -> Transformed:
        """Wait for the end of all; the failure of one ends the others, too."""
        try:
            while True:
                active = [query for query in self._queries.values() if query.isActive]
                self._look()
                if not active or self._is_over.is_set():
                    break
                active[0].awaitTermination(POLL_S)  # type: ignore[arg-type]
                for query in self._queries.values():
                    if query.exception() is not None:
                        query.awaitTermination()  # raises it
        finally:
            for query in self._queries.values():
                query.stop()
        for query in self._queries.values():
            if query.exception() is not None and not self._is_over.is_set():  # what is cut short may say so
                query.awaitTermination()
        return self._look(ended=True)

    def _look(self, **more: Any) -> Transformed:
        found, lag, told = Transformed(), None, []
        for name, query in self._queries.items():
            seen = self._seen[name]
            for progress in query.recentProgress:
                late = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
                if late and progress["batchId"] not in seen:
                    self._progress.note(
                        f"sink {name}: {late} rows came later than the watermark allows and were left out", late=late
                    )
                rows = sum(source["numInputRows"] for source in progress["sources"])  # Connect has no sum of them
                seen[progress["batchId"]] = (rows, late)
            found.queries[name] = sum(count for count, _ in seen.values())
            found.late += sum(late for _, late in seen.values())
            found.batches += len(seen)
            last = query.lastProgress
            behind = None if last is None else lag_of(last)
            lag = lag if behind is None else max(lag or 0, behind)
            told.append(None if last is None else _epoch_ms(last["timestamp"]))
        found.rows = sum(found.queries.values())
        self._progress.update(rows=found.rows, lag=lag)
        at = None if None in told else min(told)  # type: ignore[type-var]
        self._pulse.beat(rows=found.rows, batches=found.batches, lag=lag, progress_at=at, **more)
        return found


def _epoch_ms(timestamp: str) -> int:
    """A time as Spark tells it: `2026-11-17T14:00:00.000Z`."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
