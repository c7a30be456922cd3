"""Records as an Arrow IPC stream, for downloads: the schema, then batches, then an end mark.

Columns `seq ts node tag meta data`, types as in a segment. Rows of a segment go out as they lie in the file: their
buffers are sliced, not decoded; only where rows are left out are the rest gathered. Knows nothing of topics or which
rows are live.
"""

from array import array
from collections.abc import Mapping
from typing import Any, Final

from topics.model import Columns
from topics.storage.segments import Runs, SegmentPiece, number_array, schema, text_array

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


def encode_rows(columns: Columns) -> bytes:
    """A batch of decoded rows."""
    import pyarrow as pa

    seqs, timestamps, *texts = columns
    count = len(seqs)
    arrays = [
        number_array(pa.uint64(), array("Q", seqs)),
        number_array(pa.timestamp("ms", "UTC"), array("q", timestamps)),
        *(text_array(column, count) for column in texts),
    ]
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=stream_schema()).serialize())
