"""Records as an Arrow IPC stream, for downloads: the schema, then batches, then an end mark.

Columns `seq ts node tag meta data`, types as in a segment. Rows of a segment go out as they lie in the file: their
buffers are sliced, not decoded; only where rows are left out are the rest gathered. Knows nothing of topics or which
rows are live.
"""

from collections.abc import Mapping
from typing import Any, Final

from topics.storage.arrays import Arrays
from topics.storage.segments import Runs, SegmentPiece, schema

NAMES: Final = ("seq", "ts", "node", "tag", "meta", "data")
END: Final = b"\xff\xff\xff\xff\0\0\0\0"


def stream_schema(metadata: Mapping[str, str] | None = None) -> Any:
    import pyarrow as pa

    whole = schema()
    return pa.schema([whole.field(name) for name in NAMES], metadata=metadata)


def encode_sealed(piece: SegmentPiece, runs: Runs) -> bytes:
    """A batch of rows of a segment."""
    import pyarrow as pa

    first, stop = runs[0][0], runs[-1][1]
    batch = piece.file.batch(stream_schema(), piece.ref.start + first, piece.ref.start + stop)
    if len(runs) > 1:
        batch = batch.take(pa.array([row - first for start, end in runs for row in range(start, end)], pa.uint32()))
    return bytes(batch.serialize())


def encode_rows(rows: Arrays) -> bytes:
    """A batch of rows that are in memory."""
    import pyarrow as pa

    return bytes(pa.RecordBatch.from_arrays(list(rows), schema=stream_schema()).serialize())
