"""`topics replay`: what a lake has of a topic, appended to a topic again, in the order of the seqs, each record once.

The history is taken in units, ranges of seqs, one after the other; each is one write under a name made of the range
and the filters. What a lake has of a range never changes, so a unit that is written again has the same keys. The
ledger keeps the plan of the first run: where it ends, and how long a unit is. Rows of a lake were records before, so
they are sent as they are read, and not kept until all are checked.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from topics.clock import Clock, SystemClock
from topics.errors import InvalidRequest
from topics.model import TagMatch
from topics.ranges import Range, intersect, subtract, union
from topics.reader import Lost
from topics.spark.runs import marks
from topics.spark.runs.arrivals import Arrivals
from topics.spark.runs.marks import Ledger
from topics.spark.runs.progress import Progress
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake, shown
from topics.spark.tables.outputs import Place, check_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNIT_SEQS: Final = 1_000_000  # a unit is a job of Spark, which takes a while to plan
UNIT_SEQS_MIN: Final = 1_000


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
    check_connector(spark, place)
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
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        place = Place(self._chosen.lake.root)
        paths = [place.uri(file.path) for file in self._chosen.files(*unit)]
        rows = self._spark.read.parquet(*paths).filter(F.col("seq").between(*unit))
        rows = _filtered(rows, self._chosen.history).coalesce(1).sortWithinPartitions("seq")
        seen = Observation()
        writer = rows.select("data", "tag", "node", "meta").observe(seen, F.count(F.lit(1)).alias("rows")).write
        name = f"{self._prefix}/{_name(unit)}"
        writer = writer.format("topics").options(**self._server.options(), topic=self._topic, writeId=name)
        writer = writer.option("checkFirst", "false")
        writer.mode("append").save()
        return int(seen.get["rows"])


def _filtered(rows: "DataFrame", history: History) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    if history.since is not None:
        rows = rows.filter(F.unix_millis("ts") >= history.since)
    if history.until is not None:
        rows = rows.filter(F.unix_millis("ts") < history.until)
    if history.tag is not None:
        is_glob = history.tag.endswith("*")
        match = TagMatch("Glob" if is_glob else "Eq", history.tag.removesuffix("*") if is_glob else history.tag)
        column = F.col("tag")
        rows = rows.filter(column.startswith(match.value) if is_glob else column == match.value)
    return rows
