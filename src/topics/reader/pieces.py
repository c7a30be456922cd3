"""The live rows of a segment as an Arrow batch.

Owned here: the columns that readers get. Nothing here knows snapshots: the caller says which rows are a topic's, and
from which seq on they count.
"""

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topics.errors import Damaged, InvalidRequest
from topics.reader.access import open_disk, ref_in
from topics.storage import segments
from topics.storage.segments import DELETED, LIVE, SegmentFile

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("seq", "ts", "node", "tag", "meta", "data")


def schema(columns: Sequence[str] = COLUMNS) -> "pa.Schema":
    """The Arrow schema of batches with these columns."""
    import pyarrow as pa

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"there is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    whole = segments.schema()
    return pa.schema([whole.field(name) for name in columns])


def read_piece(
    path: str | os.PathLike[str],
    file: str,
    start: int,
    count: int,
    *,
    after: int = 0,
    last: int | None = None,
    columns: Sequence[str] = COLUMNS,
) -> "pa.RecordBatch":
    """The live rows of one piece (`Directory.pieces`) with seqs above `after` and up to `last`.

    For processes that have no Directory: only the file is read. The file does not know the topic's floor, so `after`
    must be at least `floor - 1`. FileNotFoundError: a newer checkpoint has replaced the file; its seqs are in other
    pieces now, if they are live.
    """
    disk = open_disk(path)
    try:
        segment = SegmentFile(disk, ref_in(disk, file))
        if not 0 <= start <= start + count <= segment.ref.count:
            raise InvalidRequest(f"{file} has {segment.ref.count} rows, not {start} to {start + count}")
        return live_rows(segment, start, count, after, last, columns)
    except Damaged:
        if file not in disk.names():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from None
        raise
    finally:
        disk.close()


def live_rows(
    file: SegmentFile, start: int, count: int, after: int, last: int | None, columns: Sequence[str]
) -> "pa.RecordBatch":
    """Of the rows start .. start + count of a file, those not deleted with seqs above `after` and up to `last`.

    Where no row is deleted, the batch is a slice of the memory map; otherwise the live rows are copied.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    seqs, stop = file.numbers("seq", "Q"), start + count
    start = bisect_right(seqs, after, start, stop)
    stop = stop if last is None else bisect_right(seqs, last, start, stop)
    batch = file.batch(schema(columns), start, stop)
    flags = file.flags(start, stop)
    if DELETED not in flags:
        return batch
    marks = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])
    return batch.filter(pc.equal(marks, pa.scalar(LIVE, pa.uint8())))
