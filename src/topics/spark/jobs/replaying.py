"""`topics replay`: what a lake has of a topic, appended to a topic again, in the order of the seqs, each record once.

The history is taken in units, ranges of seqs, one after the other; each is one write under a name made of the range
and the filters. What a lake has of a range never changes, so a unit that is written again has the same keys. The
ledger keeps the plan of the first run: where it ends, and how long a unit is.

A unit is one task, which reads the files one after the other, as their seqs ascend, and sends the rows while it reads
on. They were records before, so nothing but the server checks them. Spark's own scan would take the files as it likes,
and then sort all rows of a unit before the first is sent.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from topics.clock import Clock, SystemClock
from topics.errors import InvalidRequest
from topics.ranges import Range, intersect, subtract, union
from topics.reader import Lost
from topics.spark.options import WriteOptions, write_options
from topics.spark.reader import keep_worker_memory
from topics.spark.runs import marks
from topics.spark.runs.arrivals import Arrivals
from topics.spark.runs.marks import Ledger
from topics.spark.runs.progress import Progress
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake, LakeFile, read_rows, shown
from topics.spark.tables.outputs import Place
from topics.spark.writer import Sender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

UNIT_SEQS: Final = 1_000_000  # a unit is a job of Spark, which takes a while to plan
UNIT_SEQS_MIN: Final = 1_000
RECORD: Final = ("data", "tag", "node", "meta")


@dataclass(frozen=True, kw_only=True)
class History:
    """What to replay. Seqs are inclusive; times are epoch-ms, `since` inclusive, `until` not. None = no bound."""

    topic: str
    epoch: int | None = None  # None = the last one that the lake has
    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None
    tag: str | None = None  # one tag, or `prefix*`


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came of a replay, all runs together. `gaps` were lost before they were archived, `missing` never was."""

    rows: int
    rows_now: int
    gaps: Sequence[Lost]
    missing: Sequence[Range]


def replay(
    spark: "SparkSession",
    lake: str,
    history: History,
    topic: str,
    *,
    server: Connection,
    rate: int | None = None,
    state: str | None = None,
    name: str = "",
    sets_window: bool = False,
    at_least_once: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    wait: Callable[[float], object] | None = None,
) -> Replayed:
    """Append what is not in the topic yet; at most `rate` records per second, None = as fast as it goes."""
    progress, clock, server = progress or Progress("replay"), clock or SystemClock(), server.holding(topic)
    place = Place(lake)
    about = {"lake": place.path, "history": asdict(history), "topic": topic, "url": server.url, "name": name}
    id = marks.identity("replay", about)
    ledger = Ledger.open(state or marks.default_directory(), f"replay-{id}", about, clock)
    chosen = Chosen.of(Lake.load(lake), history, ledger, rate)
    with server.open() as client:
        ledger.bind(client, topic, sets_window=sets_window, at_least_once=at_least_once)
    before = ledger.rows
    job = _Job(spark, chosen, topic, server, f"replay/{marks.identity(name, about['lake'], about['history'])}")
    progress.update(total=max(0, chosen.rows - before))
    began, written = clock.monotonic(), 0
    with Arrivals(server, topic) as arrivals:
        for unit in chosen.units():
            if ledger.is_done(_name(unit)):
                continue
            ledger.begin(_name(unit))
            arrivals.mark()
            with progress.polling(lambda written=written: progress.update(rows=written + arrivals.count())):  # type: ignore[misc]
                rows = job.write(unit)
            ledger.finish(_name(unit), rows)
            written += rows
            progress.update(rows=written)
            if rate is not None:
                (wait or threading.Event().wait)(max(0.0, began + written / rate - clock.monotonic()))
    return Replayed(rows=ledger.rows, rows_now=ledger.rows - before, gaps=chosen.gaps, missing=chosen.missing)


class Chosen:
    """The part of a lake that is replayed."""

    def __init__(self, lake: Lake, history: History, epoch: int, first: int, last: int, unit_seqs: int) -> None:
        self.lake, self.history, self.epoch = lake, history, epoch
        self.first, self.last, self._unit_seqs = first, last, unit_seqs

    @classmethod
    def of(cls, lake: Lake, history: History, ledger: Ledger, rate: int | None) -> "Chosen":
        """As the first run saw it."""
        epochs = sorted(epoch for topic, epoch in lake.entries if topic == history.topic)
        if not epochs or history.epoch not in (None, *epochs):
            wanted = history.topic if history.epoch is None else f"{history.topic}, epoch {history.epoch}"
            there = sorted({topic for topic, _ in lake.entries})
            raise InvalidRequest(
                f"{shown(lake.root)} has nothing of topic {wanted}; it has {', '.join(there) or 'no topic'}"
            )
        plan = ledger.contents.about.setdefault("plan", {})
        epoch = plan.setdefault("epoch", history.epoch or epochs[-1])
        entries = lake.entries[(history.topic, epoch)]
        first = max(min(entry.first for entry in entries), history.first or 1)
        last = plan.setdefault("last", min(max(e.last for e in entries), history.last or max(e.last for e in entries)))
        unit_seqs = plan.setdefault("unit_seqs", _unit_seqs(rate))
        return cls(lake, history, epoch, first, last, unit_seqs)

    @property
    def gaps(self) -> list[Lost]:
        entries = self.lake.entries[(self.history.topic, self.epoch)]
        found = [gap for entry in entries for gap in entry.gaps if gap.last >= self.first and gap.first <= self.last]
        clipped = (Lost(max(gap.first, self.first), min(gap.last, self.last), gap.reason) for gap in found)
        return sorted(clipped)

    @property
    def missing(self) -> list[Range]:
        known = union((e.first, e.last) for e in self.lake.entries[(self.history.topic, self.epoch)])
        return subtract([(self.first, self.last)], known)

    @property
    def rows(self) -> int:
        """At most so many; filters take less."""
        return sum(file.rows for file in self.files(self.first, self.last))

    def files(self, first: int, last: int) -> Sequence[Any]:
        return self.lake.files(self.history.topic, self.epoch, first, last)

    def units(self) -> list[Range]:
        """Ranges with rows in them, ascending; cut by arithmetic alone."""
        have = union((file.first, file.last) for file in self.files(self.first, self.last))
        cuts = range(self.first, self.last + 1, self._unit_seqs)
        units = ((start, min(start + self._unit_seqs - 1, self.last)) for start in cuts)
        return [unit for unit in units if intersect([unit], have)]


def _unit_seqs(rate: int | None) -> int:
    """About a second's worth, so that a rate is kept from second to second."""
    return UNIT_SEQS if rate is None else max(UNIT_SEQS_MIN, min(UNIT_SEQS, rate))


def _name(unit: Range) -> str:
    return f"{unit[0]}-{unit[1]}"


class _Job:
    """Writes units."""

    def __init__(self, spark: "SparkSession", chosen: Chosen, topic: str, server: Connection, prefix: str) -> None:
        self._spark = spark
        self._chosen = chosen
        self._topic = topic
        self._server = server
        self._prefix = prefix  # of the names of the writes

    def write(self, unit: Range) -> int:
        """Append the records of a unit, in order; how many there are."""
        chosen = self._chosen
        given = {**self._server.options(), "topic": self._topic, "writeId": f"{self._prefix}/{_name(unit)}"}
        place = Place(chosen.lake.root)
        root = place.path if place.is_local else place.root  # a task may run elsewhere
        task = _Task(root, chosen.files(*unit), unit, chosen.history, write_options(given))
        (row,) = self._spark.range(0, 1, 1, numPartitions=1).mapInArrow(task, "rows bigint").collect()
        return int(row.rows)


@dataclass(frozen=True)
class _Task:
    """Reads the rows of a unit, and sends them under the keys that a partition of a sink has."""

    root: str
    files: Sequence[LakeFile]
    unit: Range
    history: History
    options: WriteOptions

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        keep_worker_memory()
        for _ in batches:
            pass
        assert self.options.write_id is not None
        with closing(Sender(self.options, self.options.write_id, 0)) as sender:
            wrote = sender.send(self._rows())
        yield pa.RecordBatch.from_pydict({"rows": pa.array([wrote.records], pa.int64())})

    def _rows(self) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in read_rows(self.root, self.files, [self.unit], ("ts", *RECORD)):
            chosen = _filtered(batch, self.history)
            if chosen.num_rows:
                columns = [chosen.column(name).cast(pa.string()) for name in RECORD]
                topics = pa.repeat(pa.scalar(self.options.topic, pa.string()), chosen.num_rows)
                yield pa.RecordBatch.from_arrays([topics, *columns], ["topic", *RECORD])


def _filtered(batch: "pa.RecordBatch", history: History) -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    conditions = []
    if history.since is not None or history.until is not None:
        micros = batch.column("ts").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        if history.since is not None:
            conditions.append(pc.greater_equal(micros, history.since * 1000))
        if history.until is not None:
            conditions.append(pc.less(micros, history.until * 1000))
    if history.tag is not None:
        tags, prefix = batch.column("tag"), history.tag.removesuffix("*")
        conditions.append(pc.starts_with(tags, prefix) if prefix != history.tag else pc.equal(tags, prefix))
    return batch.filter(reduce(pc.and_, conditions)) if conditions else batch
