"""`topics export`: records of topics as files, and what was lost beside them.

    DST/part-*.parquet | .ndjson | .csv     the records, parts ascending by seq within a topic
    DST/_gaps.ndjson                        a line for each gap in the range, if there is any
    DST/_export.json                        what was asked for, and what came out once it is done

The file `_export.json` is there before the first record: a directory is written to only if it is empty or has one
that asks for the same. So a killed export is run again, and a directory of somebody else is never emptied.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.errors import InvalidRequest
from topics.model import is_topic_name
from topics.spark.runs.progress import Progress, share_of_tasks
from topics.spark.servers.connection import Connection
from topics.spark.tables.file_formats import ExportFormat
from topics.spark.tables.formats import record_lines
from topics.spark.tables.lake import shown
from topics.spark.tables.outputs import Place, check_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARKER: Final = "_export.json"
GAPS: Final = "_gaps.ndjson"
LEFT_BY_SPARK: Final = ("part-", "_temporary", "_SUCCESS", "._SUCCESS", ".part-")
COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "meta", "data")


@dataclass(frozen=True)
class Gap:
    """Seqs of a topic that were lost before they could be taken."""

    topic: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What came out of an export."""

    rows: int
    gaps: Sequence[Gap]
    files: int

    @property
    def lost(self) -> int:
        return sum(gap.last - gap.first + 1 for gap in self.gaps)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to export. Seqs are inclusive; `since` is so, `until` is not. None = from the first one, to the last one."""

    selection: str  # the name of a topic, or a pattern of names
    first: int | None = None
    last: int | None = None
    since: str | None = None
    until: str | None = None
    path: str | None = None  # a data directory
    archive: str | None = None  # a lake
    is_strict: bool = False  # fail if anything was lost

    def options(self) -> dict[str, str]:
        given = {
            "startingSeq": None if self.first is None else str(max(0, self.first - 1)),
            "endingSeq": None if self.last is None else str(self.last),
            "startingTimestamp": self.since,
            "endingTimestamp": self.until,
            "path": self.path,
            "archive": self.archive,
        }
        return {**selected(self.selection), **{name: text for name, text in given.items() if text is not None}}


def selected(text: str) -> dict[str, str]:
    """A topic by its name, or else all topics whose names match."""
    return {"topic": text} if is_topic_name(text) else {"topicPattern": text}


def export(
    spark: "SparkSession",
    wanted: Wanted,
    destination: str,
    *,
    server: Connection | None,
    format: ExportFormat = "parquet",
    is_single: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the records as files. Run again, it takes what there is then. Without a server, `wanted.path` is read."""
    progress = progress or Progress("export")
    place = Place(destination)
    check_connector(spark, place)
    given = {} if server is None else server.options()
    url = {} if server is None else {"url": server.url}
    asked = {"format": format, **url, **{name: value for name, value in asdict(wanted).items() if value}}
    _take(place, asked)
    rows = spark.read.format("topics").options(**given, **wanted.options(), onGap="record").load()
    with progress.polling(lambda: progress.update(share=share_of_tasks(spark))):
        count, gaps = _write(rows.coalesce(1) if is_single else rows, place, format)
    if gaps and wanted.is_strict:
        raise InvalidRequest(f"records were lost: {'; '.join(_said(gap) for gap in gaps)}")
    progress.update(rows=count, share=1.0)
    files = _finish_files(place, format)
    if gaps:
        place.put(GAPS, b"".join(msgspec.json.encode(gap) + b"\n" for gap in gaps))
    exported = Exported(rows=count, gaps=gaps, files=files)
    _mark(place, asked, {"rows": count, "lost": exported.lost, "files": files})
    return exported


def _said(gap: Gap) -> str:
    return f"topic {gap.topic}, seqs {gap.first} to {gap.last} ({gap.reason})"


def _write(rows: "DataFrame", place: Place, format: ExportFormat) -> tuple[int, list[Gap]]:
    records, seen = split_gaps(rows)
    records = records.select(*COLUMNS)
    writer = (record_lines(records, COLUMNS) if format == "ndjson" else records).write.mode("append")
    if format == "parquet":
        writer.option("compression", "zstd").parquet(place.uri(""))
    elif format == "ndjson":
        writer.text(place.uri(""))
    else:
        writer.options(header=True, escape='"', timestampFormat="yyyy-MM-dd'T'HH:mm:ss.SSSXXX").csv(place.uri(""))
    return gaps_of(seen)


def split_gaps(rows: "DataFrame") -> "tuple[DataFrame, Any]":
    """The records of a read with onGap=record, and an observation that has the tombstones once they are written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    seen = Observation()
    is_gap = F.col("kind") == "tombstone"
    gap = F.struct("topic", "gap_from", "gap_to", "reason")
    observed = rows.observe(
        seen, F.count(F.when(~is_gap, 1)).alias("rows"), F.collect_list(F.when(is_gap, gap)).alias("gaps")
    )
    return observed.filter(~is_gap), seen


def gaps_of(seen: Any) -> tuple[int, list[Gap]]:
    """How many records there were, and the gaps in their order."""
    found = seen.get
    gaps = [Gap(row["topic"], row["gap_from"], row["gap_to"], row["reason"]) for row in found["gaps"]]
    return int(found["rows"]), sorted(gaps, key=lambda gap: (gap.topic, gap.first))


# --- the directory


def _take(place: Place, asked: dict[str, Any]) -> None:
    """Make the directory ours and empty; refuse one that is not."""
    names = place.names()
    marker = place.read(MARKER)
    if marker is None and names:
        raise InvalidRequest(f"{shown(place.root)} is not empty: give a new directory, or remove what is in it")
    if marker is not None and msgspec.json.decode(marker).get("asked") != asked:
        raise InvalidRequest(f"{shown(place.root)} has an export that was asked for differently: give a new directory")
    _mark(place, asked, None)
    for name in names:
        if name.startswith(LEFT_BY_SPARK) or name == GAPS:
            place.remove(name)


def _mark(place: Place, asked: dict[str, Any], result: dict[str, Any] | None) -> None:
    text = msgspec.json.encode({"asked": asked, "is_done": result is not None, **(result or {})})
    place.put(MARKER, msgspec.json.format(text, indent=1) + b"\n")


def _finish_files(place: Place, format: ExportFormat) -> int:
    """Name the files after what is in them; their number."""
    parts = [info for info in place.listing() if info.base_name.startswith("part-")]
    if format == "ndjson":
        for info in parts:
            place.system.move(info.path, info.path.replace(".txt", ".ndjson"))
        for name in place.names():
            if name.startswith(".part-"):
                place.remove(name)  # checksums under the old names
    place.make_durable([name for name in place.names() if name.startswith("part-")])
    return len(parts)
