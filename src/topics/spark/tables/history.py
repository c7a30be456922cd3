"""A topic as one DataFrame: its history from the files of a lake, read by Spark itself, the rest from the server.

    topics.spark.table(spark, "orders", lake="/data/lake", url="http://127.0.0.1:4000").where("ts > '2026-11-01'")

The rows are those of `format("topics")` with `archive`: what is live, and what the lake has of what was lost or
trimmed. The driver asks once what was lost and what was deleted; up to the seam, where the lake ends, rows come from
Parquet files, above it from the server or the segments. So history has all that Spark can do with Parquet: column
pruning, pushed filters, statistics, no Python.

Invariant: each seq up to the seam is read from the lake or from nowhere, each seq above it not from the lake alone. The
seam never lies within a gap, so a gap is one row. All of it is as of the call, which reads few rows above the seam by
itself; more are read by each query, up to the same end.

Must not know: how the lake is written, or what a part of a read is.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from topics import reader
from topics.client import Client
from topics.errors import InvalidRequest, NotFound, TopicNotFound
from topics.model import SEQ_MAX, is_topic_name
from topics.ranges import Range, intersect, subtract, union
from topics.reader import Lost
from topics.spark.options import OnGap, bad, moment
from topics.spark.origins import another_log, clipped, is_log_of
from topics.spark.plan import Look, RecordsLost, describe, without
from topics.spark.schema import STORED, TYPES, declared
from topics.spark.servers.connection import Connection
from topics.spark.session import is_connected
from topics.spark.tables.lake import Lake, LakeFile, shown
from topics.spark.tables.outputs import Place, check_connector
from topics.spark.tables.tail import ROWS_MAX, fetched, handed_over

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

TAIL_RECORDS_MIN: Final = 25_000  # of a partition above the seam, if there is more than one
RANGES_MAX: Final = 64  # ranges of deleted seqs in a condition; more are joined
GLOB: Final = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which rows are wanted. Times are epoch-ms, `since` inclusive, `until` not; `tag` is one tag, or `prefix*`."""

    since: int | None = None
    until: int | None = None
    tag: str | None = None

    def may_hold(self, file: LakeFile) -> bool:
        """Whether the statistics of a file leave room for a row that is wanted."""
        if self.since is not None and file.ts_last and file.ts_last < self.since:
            return False
        if self.until is not None and file.ts_first and file.ts_first >= self.until:
            return False
        if self.tag is None or not file.has_tags:
            return True
        if file.tag_first is None or file.tag_last is None:
            return False
        prefix = self.tag.removesuffix("*")
        return file.tag_first[: len(prefix)] <= prefix <= file.tag_last

    def condition(self) -> "Column | None":
        from pyspark.sql import functions as F  # noqa: N812

        found = []
        if self.since is not None:
            found.append(F.col("ts") >= F.timestamp_millis(F.lit(self.since)))
        if self.until is not None:
            found.append(F.col("ts") < F.timestamp_millis(F.lit(self.until)))
        if self.tag is not None:
            tag = F.col("tag")
            found.append(tag.startswith(self.tag[:-1]) if self.tag.endswith("*") else tag == self.tag)
        return reduce(lambda some, other: some & other, found) if found else None


@dataclass(frozen=True)
class Known:
    """What there is of a topic up to the seam, and where reading goes on."""

    epoch: int
    files: Sequence[LakeFile] = ()
    hidden: Sequence[Range] = ()  # seqs of the lake that were deleted since
    gaps: Sequence[Lost] = ()  # up to the seam, and in no file
    seam: int = 0
    above: int = 0  # seqs above the seam, when it was asked


def table(
    spark: "SparkSession",
    topic: str,
    *,
    lake: str,
    url: str | None = None,
    path: str | None = None,
    token: str = "",
    on_gap: OnGap = "fail",
    includes_meta: bool = True,
    since: str | int | None = None,
    until: str | int | None = None,
    tag: str | None = None,
) -> "DataFrame":
    """A topic as a DataFrame, with the columns of `format("topics")`, as of this call.

    `since`, `until` and `tag` select rows, and leave out files by their statistics before Spark opens any; gaps stay.
    Without `url` and `path` it is what the lake has of the topic's last instance, as it was archived.
    """
    if not is_topic_name(topic):
        raise bad("topic", topic, "it is not the name of a topic")
    if on_gap not in get_args(OnGap):
        raise bad("on_gap", on_gap, f"it must be one of {', '.join(get_args(OnGap))}")
    chosen = Chosen(since=_moment("since", since), until=_moment("until", until), tag=tag)
    server = None if url is None else Connection.load(url)
    if server is not None:
        server = (replace(server, token=token) if token else server).holding(topic)
    known = _known(Lake.load(lake), topic, server, path)
    if on_gap == "fail" and known.gaps:
        said = "; ".join(describe(topic, gap) for gap in known.gaps)
        raise RecordsLost(
            f"records were lost before they could be archived: {said}. Set on_gap to record to get a row for each such "
            "gap, or to ignore to continue without them"
        )
    shape = _Shape(topic, declared(includes_meta, on_gap == "record"), chosen.condition())
    place = Place(lake)
    check_connector(spark, place)
    given = {"topic": topic, "archive": lake, "onGap": on_gap, "includeMeta": str(includes_meta)}
    given |= ({} if server is None else server.options()) | ({} if path is None else {"path": path})
    above = _Above(spark, shape, known, given)
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(above.fetched)  # meanwhile Spark looks for the files
        parts = [shape.archived(rows) for rows in _history(spark, place, known, chosen)]
    parts += above.frames(fetching.result())
    if on_gap == "record" and known.gaps:
        parts.append(shape.gaps(spark, known.gaps))
    if not parts:
        return spark.createDataFrame([], shape.declared)
    return reduce(lambda some, more: some.unionAll(more), parts)


def register_table(spark: "SparkSession", name: str, topic: str, **given: Any) -> "DataFrame":
    """The same as a temporary view for SQL. Registered again, it goes on to what there is by then."""
    rows = table(spark, topic, **given)
    rows.createOrReplaceTempView(name)
    return rows


@dataclass(frozen=True)
class _Shape:
    """The columns of the result, and the rows that are wanted."""

    topic: str
    declared: str
    condition: "Column | None"

    @property
    def names(self) -> list[str]:
        return [column.split()[0] for column in self.declared.split(", ")]

    @property
    def has_gaps(self) -> bool:
        return "kind" in self.names

    def archived(self, rows: "DataFrame") -> "DataFrame":
        """The wanted ones of a lake's rows, with the columns that it lacks. As SQL: each Column is calls to the JVM."""
        if self.condition is not None:
            rows = rows.where(self.condition)
        same = {"topic": f"'{self.topic}'", "kind": "'record'"}
        return rows.selectExpr(
            *(
                name if name in STORED else f"CAST({same.get(name, 'NULL')} AS {TYPES[name]}) AS {name}"
                for name in self.names
            )
        )

    def live(self, rows: "DataFrame") -> "DataFrame":
        """The wanted ones of the source's rows, and all gaps among them; its columns are those of the result."""
        from pyspark.sql import functions as F  # noqa: N812

        if self.condition is None:
            return rows
        return rows.where((F.col("kind") == "tombstone") | self.condition if self.has_gaps else self.condition)

    def gaps(self, spark: "SparkSession", gaps: Iterable[Lost]) -> "DataFrame":
        rows = []
        for gap in gaps:
            said = {"topic": self.topic, "kind": "tombstone", "gap_from": gap.first, "gap_to": gap.last}
            rows.append(tuple({**said, "reason": gap.reason}.get(name) for name in self.names))
        return spark.createDataFrame(rows, self.declared)


@dataclass(frozen=True)
class _Above:
    """The rows above the seam: few are read by the driver, now; many by the source, in each query."""

    spark: "SparkSession"
    shape: _Shape
    known: Known
    given: Mapping[str, str]  # options of the source

    def fetched(self) -> "pa.Table | None":
        """The rows, if they are few."""
        if not 0 < self.known.above <= ROWS_MAX or is_connected(self.spark):
            return None
        names = self.shape.names
        return fetched(self._options(), names if self.shape.has_gaps else [name for name in names if name in STORED])

    def frames(self, rows: "pa.Table | None") -> "Iterator[DataFrame]":
        parts = max(1, min(_cores(self.spark), self.known.above // TAIL_RECORDS_MIN))
        if rows is not None:
            found = handed_over(self.spark, rows, parts)
            yield self.shape.live(found) if self.shape.has_gaps else self.shape.archived(found)
        elif self.known.above:
            source = self.spark.read.format("topics").options(**self._options())
            yield self.shape.live(source.option("minPartitions", parts).load())

    def _options(self) -> dict[str, str]:
        """From the seam on, up to the end as it was when it was asked."""
        topic, known = self.given["topic"], self.known
        start = msgspec.json.encode({topic: {"epoch": known.epoch, "seq": known.seam}}).decode()
        return {**self.given, "startingSeq": start, "endingSeq": str(known.seam + known.above)}


# --- what there is


def _known(lake: Lake, topic: str, server: Connection | None, path: str | None) -> Known:
    if server is not None:
        with server.open() as client:
            return _joined(lake, _asked(client, lake, topic))
    if path is not None:
        with reader.open_directory(path) as directory:
            return _joined(lake, _sealed(directory, lake, topic))
    epochs = [epoch for name, epoch in lake.entries if name == topic]
    if not epochs:
        raise InvalidRequest(f"{shown(lake.root)} has nothing of topic {topic}, and neither url nor path is given")
    epoch = max(epochs)
    entries = lake.entries[topic, epoch]
    gaps = [gap for entry in entries for gap in entry.gaps]
    first = min((start for start, _ in lake.covered(topic, epoch)), default=0)
    files = lake.files(topic, epoch, 1, SEQ_MAX)
    return Known(epoch, files, gaps=[gap for gap in _merged(gaps) if gap.last >= first])


@dataclass(frozen=True)
class _Seen:
    """A topic at one moment; `live` are its seqs from `earliest` up to the end of the lake, None = none was deleted."""

    topic: str
    epoch: int
    head: int
    earliest: int
    lost: Sequence[Lost]
    live: Sequence[Range] | None


def _joined(lake: Lake, seen: _Seen) -> Known:
    """Lake and topic: what is hidden, what is lost, and the seam."""
    topic, epoch = seen.topic, seen.epoch
    end = _end(lake, topic, epoch)
    covered = intersect(lake.covered(topic, epoch), [(1, end)])
    lost = union((a.first, a.last) for a in seen.lost)
    absent = union([*lost, (1, min(seen.earliest - 1, lake.trimmed_through(topic, epoch)))])
    hidden = subtract(intersect(covered, [(1, seen.earliest - 1)]), absent)
    if seen.live is not None:
        hidden = union([*hidden, *subtract(subtract(intersect(covered, [(seen.earliest, end)]), lost), seen.live)])
    start = min([seen.earliest, *(first for first, _ in covered[:1])]) - 1
    gaps = [gap for gap in _merged(without(seen.lost, covered)) if gap.last > start and gap.first <= end]
    seam = max([end, start, *(gap.last for gap in gaps)])
    return Known(epoch, lake.files(topic, epoch, 1, end), hidden, gaps, seam, max(0, seen.head - seam))


def _end(lake: Lake, topic: str, epoch: int) -> int:
    """Up to here the lake knows of every seq; 0 = nothing."""
    whole = union((entry.first, entry.last) for entry in lake.entries.get((topic, epoch), ()))
    return whole[0][1] if whole and whole[0][0] == 1 else 0


def _merged(gaps: Iterable[Lost]) -> list[Lost]:
    """What adjoins and has one reason is one gap."""
    found: list[Lost] = []
    for gap in sorted(gaps, key=lambda gap: gap.first):
        if found and found[-1].last + 1 == gap.first and found[-1].reason == gap.reason:
            gap = Lost(found.pop().first, gap.last, gap.reason)
        found.append(gap)
    return found


def _asked(client: Client, lake: Lake, topic: str) -> _Seen:
    """The server's word: which seqs of the lake are live and which are lost, without a record (LV1)."""
    try:
        state = client.state(topic, touch=False)
        look = Look(topic, state.epoch, state.head_seq, state.earliest_seq)
        if look.head < lake.end(topic, look.epoch) or not is_log_of(client, lake, look):
            raise another_log(lake.root, look)
        end, cursor, earliest = _end(lake, topic, state.epoch), 0, state.earliest_seq
        live: list[Range] = []
        lost: list[Lost] = []
        # A gap that reaches across the end of the lake is followed to its own end.
        while cursor < state.head_seq and (cursor < end or (lost and lost[-1].last == cursor)):
            found = client.live(topic, cursor, last=state.head_seq, epoch=state.epoch)
            if found.epoch != state.epoch:
                raise InvalidRequest(f"topic {topic} was deleted and created again meanwhile; try again")
            live += found.live
            lost += clipped(found.lost, cursor, found.last)
            earliest = found.earliest_seq
            if found.last <= cursor:
                break
            cursor = found.last
    except TopicNotFound:
        raise InvalidRequest(f"there is no topic {topic!r}; without url, the lake alone is read") from None
    except NotFound:
        raise InvalidRequest(
            f"the server at {client.url} is too old to say which records are live: update it"
        ) from None
    return _Seen(topic, state.epoch, state.head_seq, earliest, lost, union(live))


def _sealed(directory: reader.Directory, lake: Lake, topic: str) -> _Seen:
    """The directory's word, as of its last checkpoint; what the lake has beyond that counts as live."""
    try:
        info = directory.topic(topic)
    except TopicNotFound:
        raise InvalidRequest(f"there is no topic {topic!r} in {directory.path}") from None
    end = _end(lake, topic, info.epoch)
    batches = directory.batches(topic, 0, min(end, info.sealed_through), ("seq",))
    live = [run for batch in batches for run in _runs(batch["seq"])]
    live.append((info.sealed_through + 1, end))
    lost = directory.lost(topic, 0, info.sealed_through)
    return _Seen(topic, info.epoch, info.sealed_through, info.earliest, lost, union(live))


def _runs(column: "pa.Array") -> Iterator[Range]:
    """Ascending seqs as ranges."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(column)
    if count:
        steps = pc.subtract(column.slice(1), column.slice(0, count - 1))
        breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
        firsts = column.take(pa.array([0, *(place + 1 for place in breaks)])).to_pylist()
        lasts = column.take(pa.array([*breaks, count - 1])).to_pylist()
        yield from zip(firsts, lasts, strict=True)


# --- the lake's rows


def _history(spark: "SparkSession", place: Place, known: Known, chosen: Chosen) -> "Iterator[DataFrame]":
    """The files that nothing was deleted from, and the others with what to leave out."""
    whole: list[LakeFile] = []
    cut: list[LakeFile] = []
    ends = [last for _, last in known.hidden]
    for file in known.files:
        if not chosen.may_hold(file):
            continue
        n = bisect_left(ends, file.first)  # the first range that does not end before the file
        if n == len(ends) or known.hidden[n][0] > file.last:
            whole.append(file)
        elif known.hidden[n][0] > file.first or known.hidden[n][1] < file.last:
            cut.append(file)
    if whole:
        yield _read(spark, place, whole)
    if cut:
        yield _left(spark, _read(spark, place, cut), intersect(known.hidden, [(cut[0].first, cut[-1].last)]))


def _read(spark: "SparkSession", place: Place, files: Iterable[LakeFile]) -> "DataFrame":
    """Columns by name, as files have them: one that a file lacks is null."""
    kinds = ", ".join(f"{name} {TYPES[name]}" for name in STORED)
    paths = [GLOB.sub(r"\\\1", place.uri(file.path)) for file in files]
    return spark.read.schema(kinds).parquet(*paths)


def _left(spark: "SparkSession", rows: "DataFrame", hidden: Sequence[Range]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    if len(hidden) <= RANGES_MAX:
        return rows.where(reduce(lambda some, other: some & other, (~F.col("seq").between(*one) for one in hidden)))
    dead = spark.createDataFrame(hidden, "first bigint, last bigint").select(
        F.expr("explode(sequence(first, last)) AS seq")
    )
    return rows.join(F.broadcast(dead), "seq", "left_anti")


def _moment(name: str, given: str | int | None) -> int | None:
    return None if given is None else moment(name, str(given))


def _cores(spark: "SparkSession") -> int:
    """So many tasks run at a time: the rows above the seam come last, and should keep all of them busy."""
    if is_connected(spark):
        return 1  # Spark Connect does not tell
    return int(spark.sparkContext.defaultParallelism)
