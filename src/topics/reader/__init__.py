"""The public reader of a data directory: its sealed records as Arrow batches.

    with topics.reader.open_directory("topics-data") as directory:
        for batch in directory.batches("orders", after=0):
            ...  # a pyarrow.RecordBatch: seq, ts, node, tag, meta, data

It reads the snapshot in force and the segments that the snapshot names. It takes no lock and writes nothing, so a
server may be running on the directory. It shows the directory as of the last checkpoint, less what was deleted since:
records that only the log has, above a topic's `sealed_through`, are not read.

    directory   open_directory, Directory: topics, pieces, lost; Batches, an iterator
    pieces      read_piece: the live rows of one file, for processes that have no Directory
    checking    Directory.check: snapshot, segments and log against each other
    pinning     the directory as of one moment, beside a server that goes on
    accounts    what became of every seq
    snapshot    what a snapshot says of topics, pieces and losses
    access      the directory and its segments, opened for reading

Of the engine it uses recovery only, and no clock. pyarrow is imported only by what needs it.

Invariant: of every seq that a reader passes, its record was yielded or was deleted on purpose, or the seq is in `lost`.
"""

from topics.reader.checking import Check, Fault
from topics.reader.directory import Batches, Directory, Piece, TopicInfo, open_directory
from topics.reader.pieces import COLUMNS, read_piece, schema
from topics.reader.snapshot import Lost

__all__ = [
    "COLUMNS",
    "Batches",
    "Check",
    "Directory",
    "Fault",
    "Lost",
    "Piece",
    "TopicInfo",
    "open_directory",
    "read_piece",
    "schema",
]
