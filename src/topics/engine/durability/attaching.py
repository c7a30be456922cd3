"""Segments joined with a state that was loaded from a snapshot: the way back of a checkpoint.

Owned here: which rows of a segment a topic's log gets. Which pieces there are is the snapshot's business, what lies
behind it in the log that of `replay`.
"""

from topics.core.state import State
from topics.core.topic.log import Log
from topics.core.topic.parts import Sealed
from topics.storage.segments import PieceRef, SegmentFile, SegmentRows


def sealed_part(ref: PieceRef, file: SegmentFile) -> Sealed:
    """A piece as a part of a log, all its rows live."""
    return Sealed(ref.first, ref.last, SegmentRows(file, ref), ref.count, ref.size_bytes)


def attach_part(log: Log, part: Sealed) -> bool:
    """Add a sealed part to a log under recovery, less its dead rows. False: it has no live row."""
    rows = part.sealed
    assert isinstance(rows, SegmentRows)
    if part.last < log.floor:
        return False
    flagged = rows.flagged_rows()
    part.flagged = -1 if flagged else 0  # not known to be synced: set again with the next one that is set
    below = part.row_from(log.floor)
    if flagged or below:
        dead = sorted({*flagged, *range(below)})
        part.live_count -= len(dead)
        part.live_bytes -= sum(part.bytes_before(row + 1) - part.bytes_before(row) for row in dead)
        log.mark_dead(part.seq_at(row) for row in dead)
    if part.live_count:
        log.attach(part)
    return part.live_count > 0


def begin_accounts(state: State) -> None:
    """Take logs whose snapshot did not count what was deleted as whole; all parts are attached."""
    for topic in state.topics.values():
        log = topic.log
        if log.deleted < 0:
            log.deleted, log.lost = log.head - log.count, 0
