"""A topic as one file, or as lines on stdout: NDJSON, CSV or Parquet.

The records come as one Arrow stream, as of the moment of the call. The file gets its name when it is complete, and no
file is written over. Knows nothing of Spark.
"""

import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from msgspec import Struct

from topics.cli.shell import display
from topics.cli.shell.quantities import moment_ms, shown_moment
from topics.errors import InvalidRequest
from topics.spark.tables.file_formats import EXPORT_ENDINGS, ExportFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from topics.cli.shell.invoking import Call
    from topics.client import ExportInfo, Tombstone

COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "meta", "data")
STDOUT: Final = "-"


class Wanted(Struct, frozen=True):
    """Which records, and as what."""

    topic: str
    format: ExportFormat
    first: int | None = None
    last: int | None = None
    since: str | None = None
    until: str | None = None
    is_strict: bool = False


def format_of(destination: str, given: ExportFormat | None) -> ExportFormat | None:
    """The format of a file by its name; None if it is no file."""
    if destination == STDOUT:
        return given or "ndjson"
    return EXPORT_ENDINGS.get(Path(destination).suffix.lower())


def export_file(call: "Call", wanted: Wanted, destination: str) -> None:
    now = call.clock.now_ms()
    since = None if wanted.since is None else moment_ms(wanted.since, now)
    until = None if wanted.until is None else moment_ms(wanted.until, now)
    rows = 0
    after = max(0, (wanted.first or 1) - 1)
    with (
        _opened(destination, wanted.format) as out,
        call.client.export(wanted.topic, after, last=wanted.last) as export,
    ):
        lost = _lost(export.info, wanted)
        if lost and wanted.is_strict:
            said = "; ".join(f"seqs {gap.gap_from} to {gap.gap_to} ({gap.reason})" for gap in lost)
            raise InvalidRequest(f"records of {wanted.topic} were lost: {said}")
        with _writer(out, wanted.format, export.schema, wanted.topic) as write:
            for batch in export:
                kept = _between(batch, since, until)
                write(kept)
                rows += kept.num_rows
                if sys.stderr.isatty():
                    print(f"\r{rows:,} records", end="", file=sys.stderr, flush=True)
    for gap in lost:
        display.say(display.gap_line(wanted.topic, gap.gap_from, gap.gap_to, gap.reason))
    missing = sum(gap.gap_to - gap.gap_from + 1 for gap in lost)
    if destination == STDOUT:
        return
    found = {"topic": wanted.topic, "destination": destination, "rows": rows, "lost": missing, "gaps": len(lost)}
    call.show(found, f"{rows:,} records in {destination}" + (f"; {missing:,} were lost" if missing else ""))


def _lost(info: "ExportInfo", wanted: Wanted) -> "list[Tombstone]":
    """What is lost of the range that was asked for; without a first seq, that begins at the first live record."""
    first = info.earliest_seq if wanted.first is None else wanted.first
    return [gap for gap in info.lost if gap.gap_to >= first and (wanted.last is None or gap.gap_from <= wanted.last)]


@contextmanager
def _opened(destination: str, format: ExportFormat) -> Iterator[IO[bytes]]:
    """What is written to; a file appears under its name when it is complete and on the disk."""
    if destination == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    if os.path.lexists(destination):
        raise InvalidRequest(f"{destination} exists; give another name, or remove it")
    temporary = Path(f"{destination}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.link(temporary, destination)  # fails if somebody made the file meanwhile
    except FileExistsError:
        raise InvalidRequest(f"{destination} exists; give another name, or remove it") from None
    finally:
        temporary.unlink(missing_ok=True)


def _between(batch: "pa.RecordBatch", since: int | None, until: int | None) -> "pa.RecordBatch":
    if since is None and until is None:
        return batch
    import pyarrow as pa
    import pyarrow.compute as pc

    if since is not None:
        batch = batch.filter(pc.greater_equal(batch["ts"].cast(pa.int64()), since))
    if until is not None:
        batch = batch.filter(pc.less(batch["ts"].cast(pa.int64()), until))
    return batch


@contextmanager
def _writer(
    out: IO[bytes], format: ExportFormat, schema: "pa.Schema", topic: str
) -> "Iterator[Callable[[pa.RecordBatch], None]]":
    if format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([pa.field("topic", pa.string()), *schema])
        with pq.ParquetWriter(out, schema, compression="zstd") as parquet:
            yield lambda batch: parquet.write_batch(
                pa.RecordBatch.from_arrays(
                    [pa.array([topic] * batch.num_rows, pa.string()), *batch.columns], schema=schema
                )
            )
    elif format == "csv":
        yield _csv_writer(out, topic)
    else:
        yield lambda batch: out.write(b"".join(_lines(batch, topic)))  # type: ignore[misc]


def _csv_writer(out: IO[bytes], topic: str) -> "Callable[[pa.RecordBatch], None]":
    import io

    out.write((",".join(COLUMNS) + "\n").encode())

    def write(batch: "pa.RecordBatch") -> None:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for row in _rows(batch):
            cells = {**row, "topic": topic, "ts": shown_moment(row["ts"])}
            rows.writerow(["" if cells[name] is None else cells[name] for name in COLUMNS])
        out.write(text.getvalue().encode())

    return write


def _rows(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    columns = {name: batch[name] for name in batch.schema.names}
    columns["ts"] = columns["ts"].cast(pa.int64())
    texts = {name: column.to_pylist() for name, column in columns.items()}
    for values in zip(*texts.values(), strict=True):
        yield dict(zip(texts, values, strict=True))


def _lines(batch: "pa.RecordBatch", topic: str) -> Iterator[bytes]:
    """Records as JSON lines, `data` and `meta` byte for byte; what is null is left out."""
    import msgspec

    encode = msgspec.json.encode
    for row in _rows(batch):
        fields: dict[str, Any] = {"topic": topic, "seq": row["seq"], "ts": row["ts"]}
        fields |= {name: row[name] for name in ("node", "tag") if row[name] is not None}
        fields |= {name: msgspec.Raw(row[name].encode()) for name in ("meta", "data") if row[name] is not None}
        yield encode(fields) + b"\n"
