"""The layout of a lake's files: what their statistics say, and the merging of small files into large ones.

A file holds rows of one topic instance, ascending by seq, no seq in two files. Its statistics are taken from its own
footer, so that the manifest can leave files out without opening them. Small neighbours become one file of up to
FILE_BYTES, row group by row group, in the columns that any of them has. One commit puts it in their place; they stay
on the disk for KEPT_MS, for readers that have begun with them.

Must not know: servers, Spark, or when a lake is to be compacted.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from topics.clock import Clock
from topics.errors import Damaged
from topics.spark.tables.lake import (
    Commit,
    Covered,
    Instance,
    Lake,
    LakeFile,
    Replaced,
    checksum_of,
    make_folder,
    shown,
)
from topics.spark.tables.outputs import Place

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES: Final = 256 * 1024 * 1024  # of a file that is large enough
FILES_MIN: Final = 16  # small neighbours that are worth a merge; fewer if together they make a large file
GROUP_ROWS: Final = 131_072  # of a row group: what Parquet can leave out
KEPT_MS: Final = 24 * 3_600_000  # how long files that were merged stay

Statistics = tuple[Any, Any] | None  # the smallest and the largest value, of all row groups; None = not told


# --- statistics


def described(place: Place, path: str, metadata: Any = None) -> tuple[str, LakeFile]:
    """A file as the manifest has it, with the topic of its rows."""
    import pyarrow.parquet as pq

    full = f"{place.path}/{path}"
    if metadata is None:
        metadata = pq.read_metadata(full, filesystem=place.system)
    topics, seqs = _statistics(metadata, "topic"), _statistics(metadata, "seq")
    for name, found in (("topic", topics), ("seq", seqs)):
        if found is None or found[0] is None:
            raise Damaged(path, 0, f"it has no statistics of {name}")
    assert topics is not None and seqs is not None
    if topics[0] != topics[1]:
        raise Damaged(path, 0, f"it has rows of {topics[0]} and of {topics[1]}: more than one topic")
    times, tags = _statistics(metadata, "ts"), _statistics(metadata, "tag")
    first, last = (_millis(value) for value in times or (None, None))
    size = place.system.get_file_info(full).size
    file = LakeFile(
        path=path,
        first=seqs[0],
        last=seqs[1],
        rows=metadata.num_rows,
        size_bytes=size,
        xxh3=checksum_of(place.system, full),
        ts_first=first,
        ts_last=last,
        has_tags=tags is not None,
        tag_first=None if tags is None else tags[0],
        tag_last=None if tags is None else tags[1],
    )
    return topics[0], file


def _statistics(metadata: Any, name: str) -> Statistics:
    """Over all row groups; (None, None) if all values are null."""
    least = most = None
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(n) for n in range(group.num_columns))
        column = next((column for column in columns if column.path_in_schema == name), None)
        if column is None:  # a file of before or after this column: all null
            continue
        found = column.statistics
        if found is None or not (found.has_min_max or (found.has_null_count and found.null_count == group.num_rows)):
            return None
        if found.has_min_max:
            least = found.min if least is None else min(least, found.min)
            most = found.max if most is None else max(most, found.max)
    return least, most


def _millis(value: Any) -> int:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else 0


# --- merging


def compact(lake: Lake, place: Place, clock: Clock, *, files_min: int = FILES_MIN, file_bytes: int = FILE_BYTES) -> int:
    """Merge what is worth it, a commit for each new file; how many files went into others."""
    merged = 0
    for instance in list(lake.entries):
        for entries in list(_runs(lake.entries[instance], files_min, file_bytes)):
            merged += _merge(lake, place, instance, entries, clock)
    return merged


def remove_replaced(lake: Lake, place: Place, now_ms: int, *, kept_ms: int = KEPT_MS) -> int:
    """Remove the files that were merged long ago; how many."""
    old = [path for path, at in lake.replaced.items() if at + kept_ms <= now_ms]
    for path in old:
        place.remove(path)
        del lake.replaced[path]
    return len(old)


def _runs(entries: Sequence[Covered], files_min: int, file_bytes: int) -> Iterator[list[Covered]]:
    """Entries that adjoin, whose files are small and together make one file."""
    run: list[Covered] = []
    for entry in sorted(entries, key=lambda entry: entry.first):
        size = sum(file.size_bytes for file in entry.files)
        adjoins = not run or run[-1].last + 1 == entry.first
        is_small = size <= file_bytes // 2 and all(file.size_bytes for file in entry.files)
        if run and not (adjoins and is_small and _size(run) + size <= file_bytes):
            if _is_worth_it(run, files_min, file_bytes):
                yield run
            run = []
        if is_small:
            run.append(entry)
    if run and _is_worth_it(run, files_min, file_bytes):
        yield run


def _size(entries: Sequence[Covered]) -> int:
    return sum(file.size_bytes for entry in entries for file in entry.files)


def _is_worth_it(entries: Sequence[Covered], files_min: int, file_bytes: int) -> bool:
    count = sum(len(entry.files) for entry in entries)
    return count >= files_min or (count > 1 and _size(entries) > file_bytes // 2)


def _merge(lake: Lake, place: Place, instance: Instance, entries: Sequence[Covered], clock: Clock) -> int:
    topic, epoch = instance
    files = sorted((file for entry in entries for file in entry.files), key=lambda file: file.first)
    first, last = entries[0].first, entries[-1].last
    path = f"records/merged/{lake.number + 1:020d}{place.own}.parquet"
    _write(place, path, files)
    place.make_durable([path])
    found, file = described(place, path)
    rows = sum(one.rows for one in files)
    if (found, file.rows, file.first, file.last) != (topic, rows, files[0].first, files[-1].last):
        place.remove(path)
        raise Damaged(
            f"{shown(lake.root)}/{path}", 0, f"{len(files)} files of {rows} rows made {file.rows} rows of {found}"
        )
    gaps = [gap for entry in entries for gap in entry.gaps]
    at = clock.now_ms()
    lake.commit(
        Commit(
            format=2,
            merged=[Covered(topic, epoch, first, last, [file], gaps, lake.server(topic, epoch))],
            replaced=[Replaced(one.path, at) for one in files],
        )
    )
    return len(files)


def _write(place: Place, path: str, files: Sequence[LakeFile]) -> None:
    """The rows of files, one after the other, in one, which is there whole or not at all: a local one is moved."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.unify_schemas([_schema(place, file) for file in files])
    full = f"{place.path}/{path}"
    make_folder(place.system, full.rpartition("/")[0])
    aside = f"{full}.tmp" if place.is_local else full
    with pq.ParquetWriter(aside, schema, filesystem=place.system, compression="zstd", version="2.6") as writer:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in _batches(place, files, schema):
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=GROUP_ROWS)
                waiting, rows = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=GROUP_ROWS)
    if place.is_local:
        place.system.move(aside, full)


def _schema(place: Place, file: LakeFile) -> "pa.Schema":
    import pyarrow.parquet as pq

    found = pq.read_schema(f"{place.path}/{file.path}", filesystem=place.system)
    return found.remove_metadata()


def _batches(place: Place, files: Sequence[LakeFile], schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        with pq.ParquetFile(f"{place.path}/{file.path}", filesystem=place.system) as parquet:
            for batch in parquet.iter_batches(GROUP_ROWS):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
