"""`topics import`: files into a topic, each row once.

Files are taken in units, in the order of their names. A unit is one write under a name made of its files and the
options, and Spark cuts files by their sizes alone here, whatever the number of cores: so a unit that is written again
has the same rows in the same partitions, and the same keys. The ledger knows which files are done.

Invariant: a file is imported as it was when the job first saw it, or the job refuses; never a bit of both.
"""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from topics.clock import Clock
from topics.errors import InvalidRequest
from topics.spark.runs import marks
from topics.spark.runs.arrivals import Arrivals
from topics.spark.runs.marks import Ledger
from topics.spark.runs.progress import Progress, share_of_tasks
from topics.spark.servers.connection import Connection
from topics.spark.session import under
from topics.spark.tables.file_formats import ENDINGS, ImportFormat
from topics.spark.tables.formats import Mapped, rows_of
from topics.spark.tables.lake import shown
from topics.spark.tables.outputs import Place, check_connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPRESSED: Final = (".gz", ".bz2", ".zst", ".zstd", ".lz4", ".snappy")

UNIT_BYTES: Final = 256 * 1024 * 1024  # files of a unit, unless one alone is larger; as the next part of the keys
UNIT_FILES: Final = 1000
CUTS: Final = {  # how Spark cuts files, by nothing but their sizes
    "spark.sql.files.maxPartitionBytes": str(32 * 1024 * 1024),
    "spark.sql.files.openCostInBytes": str(4 * 1024 * 1024),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}


class File(NamedTuple):
    """A file of the source, as it was when it was looked at."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What came of an import, all runs of it together; `rows_now` are those of this one."""

    topic: str
    files: int
    rows: int
    rows_now: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to import and how its rows become records."""

    path: str
    format: ImportFormat | None = None  # None = by the names of the files
    mapped: Mapped = field(default_factory=Mapped)
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader
    is_ordered: bool = False  # rows keep the order of the files, at the speed of one task


def import_(
    spark: "SparkSession",
    source: Source,
    topic: str,
    *,
    server: Connection,
    state: str | None = None,
    name: str = "",
    sets_window: bool = False,
    at_least_once: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Imported:
    """Import what is not in the topic yet. `name` tells apart imports of the same files into the same topic."""
    progress = progress or Progress("import")
    server = server.holding(topic)
    check_connector(spark, Place(source.path))
    job = _Job(spark, source, topic, server, name, progress)
    about = {"source": _absolute(source.path), "topic": topic, "url": server.url, "name": name, "by": job.options_id}
    id = marks.identity("import", about)
    ledger = Ledger.open(state or marks.default_directory(), f"import-{id}", about, clock)
    files = found(source.path)
    format_of(files, source)
    with server.open() as client:
        ledger.bind(client, topic, sets_window=sets_window, at_least_once=at_least_once)
    units = [*_taken_up(ledger, files), *_planned(files, _known(ledger, files))]
    rows_before = ledger.rows
    with under(spark, CUTS):
        job.run(units, ledger)
    return Imported(
        topic=topic,
        files=sum(len(unit.what) for unit in ledger.contents.units.values()),
        rows=ledger.rows,
        rows_now=ledger.rows - rows_before,
    )


@dataclass
class _Job:
    """Writes units."""

    _spark: "SparkSession"
    _source: Source
    _topic: str
    _server: Connection
    _name: str
    _progress: Progress

    @property
    def options_id(self) -> str:
        source = self._source
        return marks.identity(source.format, source.mapped, dict(source.options), source.is_ordered)

    def run(self, units: Sequence[list[File]], ledger: Ledger) -> None:
        total = sum(file.size_bytes for unit in units for file in unit) or 1
        done = rows_done = 0
        self._progress.update(share=0.0)
        with Arrivals(self._server, self._topic) as arrivals:
            for unit in units:
                size = sum(file.size_bytes for file in unit)
                id = marks.identity(self.options_id, self._name, unit)
                ledger.begin(id, unit)
                arrivals.mark()

                def look(done: int = done, rows_done: int = rows_done, size: int = size) -> None:
                    here = arrivals.count()
                    share = share_of_tasks(self._spark)
                    if rows_done:  # files alike: as many bytes per row as before
                        share = max(share, min(1.0, here * done / rows_done / (size or 1)))
                    self._progress.update(rows=rows_done + here, share=(done + size * share) / total)

                with self._progress.polling(look):
                    rows = self._write(unit, id)
                ledger.finish(id, rows)
                done, rows_done = done + size, rows_done + rows
                self._progress.update(rows=rows_done, share=done / total)

    def _write(self, unit: Sequence[File], id: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        source = self._source
        rows = rows_of(
            self._spark, [file.path for file in unit], format_of(unit, source), source.mapped, source.options
        )
        if source.is_ordered:
            rows = rows.coalesce(1)
        seen = Observation()
        writer = rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("topics")
        writer = writer.options(**self._server.options(), topic=self._topic, writeId=f"import/{id}")
        writer.mode("append").save()
        return int(seen.get["rows"])


# --- which files


def found(path: str) -> list[File]:
    """The files of a source, by name: a file, all in a directory and those below it, or a pattern."""
    files = _found_remotely(path) if "://" in path else _found_locally(path)
    wanted = [file for file in files if not _is_hidden(file.path, path)]
    if not wanted:
        raise InvalidRequest(f"{shown(path)}: there is no file to import")
    return sorted(wanted)


def _found_locally(path: str) -> list[File]:
    names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    files: list[File] = []
    for name in names:
        below = [p for p in Path(name).rglob("*") if p.is_file()] if os.path.isdir(name) else [Path(name)]
        for place in below:
            status = place.stat()
            files.append(File(str(place.absolute()), status.st_size, status.st_mtime_ns))
    return files


def _found_remotely(path: str) -> list[File]:
    import pyarrow.fs as fs

    place = Place(path)
    scheme = _absolute(path).partition("://")[0]
    info = place.system.get_file_info(place.path)
    below = fs.FileSelector(place.path, recursive=True, allow_not_found=True)
    infos = [info] if info.is_file else place.system.get_file_info(below)
    return [File(f"{scheme}://{i.path}", i.size, i.mtime_ns or 0) for i in infos if i.is_file]


def _is_hidden(path: str, root: str) -> bool:
    """As Spark has it: what begins with _ or . below the source is no data."""
    return any(part.startswith(("_", ".")) for part in path.removeprefix(_absolute(root)).split("/") if part)


def _absolute(path: str) -> str:
    """As Spark is told of it: without keys, and S3 by the name that it has for Hadoop."""
    if "://" not in path:
        return os.path.abspath(path)
    named = shown(path)
    return f"s3a://{named.removeprefix('s3://')}" if named.startswith("s3://") else named


def format_of(files: Sequence[File], source: Source) -> ImportFormat:
    """As given, or as the names say; they must agree."""
    if source.format is not None:
        return source.format
    formats = {_format_by_name(file.path) for file in files}
    if len(formats) > 1:
        raise InvalidRequest(
            f"{shown(source.path)} has files of {len(formats)} formats: say which ones, or give --format"
        )
    return formats.pop()


def _format_by_name(path: str) -> ImportFormat:
    stem, ending = os.path.splitext(path.lower())
    if ending in COMPRESSED:
        ending = os.path.splitext(stem)[1]
    if ending not in ENDINGS:
        raise InvalidRequest(
            f"{path}: its name does not tell the format; give --format {'|'.join(get_args(ImportFormat))}"
        )
    return ENDINGS[ending]


# --- which of them are left


def _known(ledger: Ledger, files: Sequence[File]) -> set[str]:
    """The paths that the ledger has. A file that is not what it was when it was imported is refused."""
    taken = {file.path: file for unit in ledger.contents.units.values() for file in _files(unit.what)}
    for file in files:
        before = taken.get(file.path)
        if before is not None and before != file:
            raise InvalidRequest(
                f"{file.path} changed since its import began ({before.size_bytes} bytes then, {file.size_bytes} now): "
                "which of its rows are in the topic cannot be told. Import new rows as files of their own"
            )
    return set(taken)


def _taken_up(ledger: Ledger, files: Sequence[File]) -> list[list[File]]:
    """The units that were begun, as they were."""
    there = {file.path for file in files}
    units = [_files(unit.what) for unit in ledger.unfinished().values()]
    missing = [file.path for unit in units for file in unit if file.path not in there]
    if missing:
        raise InvalidRequest(f"{missing[0]} is gone, and its import was interrupted: restore it to continue")
    return units


def _planned(files: Sequence[File], known: set[str]) -> list[list[File]]:
    units: list[list[File]] = []
    size = 0
    for file in files:
        if file.path in known:
            continue
        if not units or size + file.size_bytes > UNIT_BYTES or len(units[-1]) == UNIT_FILES:
            units.append([])
            size = 0
        units[-1].append(file)
        size += file.size_bytes
    return units


def _files(what: Any) -> list[File]:
    return [File(*file) for file in what]
