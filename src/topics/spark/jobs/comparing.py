"""A lake held against its topics, seq by seq, in Spark tasks: what `topics audit LAKE` does.

The seqs that a lake covers are cut into stretches; a task reads one from both sides, ascending, and compares. Where
both have a record they must be equal in every column; what is live in the topic must be in the lake; a record that
only the lake has was lost, trimmed or deleted from the topic since. Nothing is shuffled, and a task holds one stretch.

Owned here: when a lake and a topic agree. What a lake says it has is `topics.spark.tables.lake`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from topics import reader
from topics.errors import Damaged, TopicNotFound, TopicsError
from topics.ranges import Range, split, subtract, union
from topics.reader import Lost
from topics.spark.origins import clipped
from topics.spark.schema import STORED, as_type
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import MANIFEST, Instance, Lake, LakeFile, checksum_of, open_root, read_rows, shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

STRETCH_SEQS: Final = 50_000
NAMED_MAX: Final = 10  # differences of one stretch that are named; the others are counted
TASKS_MAX: Final = 10_000


class Stretch(Struct, frozen=True):
    """Seqs `first`..`last` of an instance, all of them covered by the lake."""

    topic: str
    epoch: int
    first: int
    last: int
    files: list[LakeFile]
    gaps: list[Lost]  # that the lake announces
    trimmed: int
    head: int  # of the topic's instance; -1 = there is none any more, so there is nothing to compare with


class Outcome(Struct):
    """What came out of one stretch. A fault is a file, which may be empty, and a sentence."""

    topic: str
    epoch: int
    covered: int = 0
    rows: int = 0
    equal: int = 0
    deleted_since: int = 0
    faults: list[tuple[str, str]] = msgspec.field(default_factory=list)

    def counts(self) -> tuple[str, int, int, int, int, int]:
        return self.topic, self.epoch, self.covered, self.rows, self.equal, self.deleted_since

    def add(self, other: "Outcome") -> None:
        self.covered += other.covered
        self.rows += other.rows
        self.equal += other.equal
        self.deleted_since += other.deleted_since
        self.faults += other.faults


@dataclass(frozen=True)
class Sides:
    """Where tasks read. What a directory has sealed is read there only if there is no server."""

    lake: str
    path: str | None
    server: Connection | None
    homes: Mapping[Instance, str] = field(default_factory=dict)  # the server of each instance, where there are several

    def server_of(self, instance: Instance) -> Connection:
        assert self.server is not None
        return self.server.at(self.homes[instance]) if self.server.is_several else self.server


def compare(
    spark: "SparkSession", lake: Lake, instances: Sequence[Instance], heads: Mapping[Instance, int], sides: Sides
) -> list[Outcome]:
    """The outcome of each instance. `heads` are those of the instances that topics have now."""
    work = [stretch for instance in instances for stretch in stretches(lake, instance, heads.get(instance, -1))]
    whole = {instance: Outcome(*instance) for instance in instances}
    if work:
        texts = [(msgspec.json.encode(stretch).decode(),) for stretch in work]
        rows = spark.createDataFrame(texts, "stretch string").repartition(min(len(work), TASKS_MAX))
        for row in rows.mapInArrow(_Task(sides), "outcome string").collect():
            outcome = msgspec.json.decode(row["outcome"], type=Outcome)
            whole[outcome.topic, outcome.epoch].add(outcome)
    for outcome in whole.values():
        outcome.faults = sorted(set(outcome.faults))  # a file may reach into two stretches
    return list(whole.values())


def check_manifest(lake: Lake) -> Iterator[tuple[str, str]]:
    """What the manifest alone shows, by topic: commits that are missing, ranges that are."""
    import pyarrow.fs as fs

    system, path = open_root(lake.root)
    infos = system.get_file_info(fs.FileSelector(f"{path}/{MANIFEST}"))
    numbers = {int(info.base_name[:-5]) for info in infos if info.base_name.removesuffix(".json").isdigit()}
    for number in range(max(1, lake.base), lake.number):
        if number not in numbers:
            yield "", f"{MANIFEST}/{number:020d}.json is missing"
    for (topic, epoch), entries in lake.entries.items():
        whole = union((entry.first, entry.last) for entry in entries)
        for first, last in subtract([(whole[0][0], whole[-1][1])], whole) if whole else ():
            yield topic, f"seqs {first} to {last} of epoch {epoch} are missing between ranges that it covers"


def stretches(lake: Lake, instance: Instance, head: int) -> Iterator[Stretch]:
    """The seqs that a lake covers of an instance, in stretches."""
    entries = lake.entries.get(instance, [])
    gaps = [gap for entry in entries for gap in entry.gaps]
    trimmed = lake.trimmed_through(*instance)
    for first, last in union((entry.first, entry.last) for entry in entries):
        parts = -(-(last - first + 1) // STRETCH_SEQS)
        for after, end in split(first - 1, last, parts):
            files = lake.files(*instance, after + 1, end)
            here = [gap for gap in gaps if gap.last > after and gap.first <= end]
            yield Stretch(*instance, after + 1, end, files, here, trimmed, head)


# --- in a task


@dataclass(frozen=True)
class _Task:
    sides: Sides

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            texts = batch.column("stretch").to_pylist()
            outcomes = [examined(msgspec.json.decode(text, type=Stretch), self.sides) for text in texts]
            said = pa.array([msgspec.json.encode(outcome).decode() for outcome in outcomes], pa.string())
            yield pa.RecordBatch.from_arrays([said], ["outcome"])


def examined(stretch: Stretch, sides: Sides) -> Outcome:
    """One stretch, read from both sides and compared."""
    outcome = Outcome(stretch.topic, stretch.epoch, stretch.last - stretch.first + 1)
    archived = _archived(stretch, sides.lake, outcome)
    outcome.rows = archived.num_rows
    live, lost = _live(stretch, sides, outcome)
    if live is None:
        return outcome
    _compare_rows(stretch, archived, live, lost, outcome)
    return outcome


def _archived(stretch: Stretch, root: str, outcome: Outcome) -> "pa.Table":
    """The lake's rows of a stretch, in the types of Spark. A file that is broken is a fault, and has no rows."""
    import pyarrow as pa

    wanted, tables = [(stretch.first, stretch.last)], []
    for file in stretch.files:
        try:
            _check_rows(root, file)
            if stretch.first <= file.first and (said := _changed(root, file)):  # a file is read once for that
                outcome.faults.append((file.path, said))
            batches = [_normal(batch) for batch in read_rows(root, [file], wanted, STORED)]
        except (Damaged, OSError, pa.ArrowException) as error:
            outcome.faults.append((file.path, str(error).replace("\n", " ")))
            continue
        tables.append(pa.Table.from_batches(batches, _schema()))
    return pa.concat_tables(tables) if tables else _schema().empty_table()


def _check_rows(root: str, file: LakeFile) -> None:
    import pyarrow.parquet as pq

    system, path = open_root(root)
    try:
        with pq.ParquetFile(f"{path}/{file.path}", filesystem=system) as parquet:
            found = parquet.metadata.num_rows
    except FileNotFoundError:
        raise Damaged(f"{shown(root)}/{file.path}", 0, "the manifest names this file, and it is missing") from None
    if found != file.rows:
        raise Damaged(f"{shown(root)}/{file.path}", 0, f"it has {found} rows; the manifest says {file.rows}")


def _changed(root: str, file: LakeFile) -> str:
    """Whether a file is not the one that was archived; this finds what no topic can be asked about any more."""
    system, path = open_root(root)
    if file.xxh3 and checksum_of(system, f"{path}/{file.path}") != file.xxh3:
        return "it is not as it was archived: its bytes do not match the checksum in the manifest"
    return ""


def _live(stretch: Stretch, sides: Sides, outcome: Outcome) -> "tuple[pa.Table | None, list[Range]]":
    """The topic's records of a stretch, and what it has lost of it; None if its instance is gone."""
    import pyarrow as pa

    last = min(stretch.last, stretch.head)
    if last < stretch.first:
        return None, []
    try:
        batches, lost = (_served if sides.server is not None else _sealed)(stretch, sides, last)
    except TopicNotFound:
        return None, []
    except TopicsError as error:
        outcome.faults.append(("", f"seqs {stretch.first} to {last} cannot be read from the topic: {error}"))
        return None, []
    table = pa.Table.from_batches([_normal(batch) for batch in batches], _schema())
    return table, union((a.first, a.last) for a in lost)


def _served(stretch: Stretch, sides: Sides, last: int) -> "tuple[list[pa.RecordBatch], list[Lost]]":
    with (
        sides.server_of((stretch.topic, stretch.epoch)).open() as client,
        closing(client.export(stretch.topic, stretch.first - 1, last=last, epoch=stretch.epoch)) as export,
    ):
        if export.info.epoch != stretch.epoch:
            raise TopicNotFound(stretch.topic)
        return list(export), clipped(export.info.lost, stretch.first - 1, last)


def _sealed(stretch: Stretch, sides: Sides, last: int) -> "tuple[list[pa.RecordBatch], list[Lost]]":
    assert sides.path is not None
    with reader.open_directory(sides.path) as directory:
        if directory.topic(stretch.topic).epoch != stretch.epoch:
            raise TopicNotFound(stretch.topic)
        batches = directory.batches(stretch.topic, stretch.first - 1, last)
        return list(batches), batches.lost


def _schema() -> "pa.Schema":
    import pyarrow as pa

    texts = [pa.field(name, pa.string()) for name in STORED[2:]]
    return pa.schema([pa.field("seq", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC")), *texts])


def _normal(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    import pyarrow as pa

    schema = _schema()
    return pa.RecordBatch.from_arrays([as_type(batch.column(one.name), one.type) for one in schema], schema=schema)


# --- comparing


def _compare_rows(
    stretch: Stretch, archived: "pa.Table", live: "pa.Table", lost: Sequence[Range], outcome: Outcome
) -> None:
    first, last = stretch.first, min(stretch.last, stretch.head)
    seqs, ours = archived["seq"].to_pylist(), live["seq"].to_pylist()
    if any(b <= a for a, b in pairwise(seqs)):
        outcome.faults.append(("", f"rows of seqs {first} to {stretch.last} are not ascending, or are there twice"))
        return
    if seqs == ours and archived.combine_chunks().equals(live.combine_chunks()):
        outcome.equal = len(seqs)
    else:
        _compare_each(archived, live, outcome)
    for gap in stretch.gaps:
        if any(gap.first <= seq <= gap.last for seq in ours):
            outcome.faults.append(("", f"seqs {gap.first} to {gap.last} are lost for the lake, and live in the topic"))
    missing = _runs(sorted(set(ours) - set(seqs)))
    for start, end in missing[:NAMED_MAX]:
        outcome.faults.append(("", f"seqs {start} to {end} are live in the topic and missing in the lake"))
    if len(missing) > NAMED_MAX:
        outcome.faults.append(("", f"and {len(missing) - NAMED_MAX} ranges more below seq {last}"))
    explained = union([*lost, (first, min(stretch.trimmed, last)), (last + 1, stretch.last)])
    gone = _runs(sorted(set(seqs) - set(ours)))
    outcome.deleted_since = sum(b - a + 1 for a, b in subtract(gone, explained))


def _compare_each(archived: "pa.Table", live: "pa.Table", outcome: Outcome) -> None:
    ours = {row["seq"]: row for row in live.to_pylist()}
    changed = 0
    for row in archived.to_pylist():
        other = ours.get(row["seq"])
        if other is None:
            continue
        differing = [name for name in STORED if row[name] != other[name]]
        if not differing:
            outcome.equal += 1
        elif (changed := changed + 1) <= NAMED_MAX:
            outcome.faults.append(("", f"seq {row['seq']} differs from the topic in {', '.join(differing)}"))
    if changed > NAMED_MAX:
        outcome.faults.append(("", f"and {changed - NAMED_MAX} records more differ from the topic"))


def _runs(seqs: Sequence[int]) -> list[Range]:
    return union((seq, seq) for seq in seqs)
