"""Accounts: what became of every seq of a data directory.

The state is put together as recovery does it, from snapshot, segments and log, and nothing is changed. Then each seq
that a topic has handed out must be live, deleted or lost, by the counts that its log has kept since its first record:
live + deleted + lost = head. A record that is missing without a delete or a loss breaks the sum, whatever took it.

Owned here: when an account is whole, and what is said of one that is not. Files and checksums are checked elsewhere.
"""

from collections.abc import Container, Mapping, Sequence

from msgspec import Struct

from topics.core import dump, entries
from topics.core.apply import replay
from topics.core.topic.log import Log
from topics.engine.durability.attaching import attach_part, begin_accounts, sealed_part
from topics.ranges import Range, subtract, total
from topics.storage import segments
from topics.storage.frames import Frame
from topics.storage.segments import SegmentFile

NAMED_MAX = 10  # ranges that a message names
FRAMES_MAPPED = 256  # frames replayed before segments that they touched are unmapped: a map holds a descriptor


class Account(Struct, frozen=True):
    """The seqs of a topic at the end of the log, each counted once."""

    topic: str
    epoch: int
    head: int
    live: int
    deleted: int
    lost: int
    fault: str  # "" = it is whole


class Accounts:
    """The accounts of a directory, under way. Attach before the log is read: flags may be ahead of a snapshot."""

    def __init__(self, items: Mapping[bytes, bytes], files: Mapping[int, SegmentFile], damaged: Container[int]) -> None:
        """`damaged` are ids of topics whose segments cannot be read; they get no account."""
        self._damaged = damaged
        self._files = files
        self._frames = 0
        self._state = dump.load(items)
        for key in sorted(items):
            if key.startswith(b"s"):
                ref = segments.decode_piece(items[key])
                topic = self._state.by_id.get(ref.topic)
                if topic is not None and topic.is_logged and ref.topic not in damaged:
                    attach_part(topic.log, sealed_part(ref, files[ref.file]))
                    files[ref.file].let_go()
        begin_accounts(self._state)

    def replay(self, frame: Frame) -> None:
        """Take one frame of the log in. UnknownEntry, MissingRecord: it cannot be."""
        for entry in entries.decode(frame.payload):
            replay(self._state, entry, frame.position)
        self._frames += 1
        if self._frames % FRAMES_MAPPED == 0:
            for file in self._files.values():
                file.let_go()

    def close(self) -> dict[int, Account]:
        """The accounts, by topic id. Ephemeral topics have none: their records are in no file."""
        topics = (topic for _, topic in sorted(self._state.topics.items()))
        return {
            topic.id: Account(
                topic.name,
                topic.epoch,
                topic.log.head,
                topic.log.count,
                topic.log.deleted,
                topic.log.lost,
                fault_of(topic.log),
            )
            for topic in topics
            if topic.is_logged and topic.id not in self._damaged
        }


def fault_of(log: Log) -> str:
    """What is wrong with the account of a log; "" if nothing is."""
    announced = _announced(log)
    sums = f"live {log.count} + deleted {log.deleted} + lost {log.lost}"
    for gap in log.gaps:
        if log.count_between(gap.first - 1, gap.last):
            return f"seqs {gap.first} to {gap.last} are announced as lost, and some of them are live"
    if log.unaccounted < 0:
        return f"{-log.unaccounted} records are there though they are gone: {sums} is more than the head {log.head}"
    if log.unaccounted:
        missing = _missing(log, announced, log.unaccounted)
        return f"{missing} neither live nor deleted nor announced as lost: {sums} is not the head {log.head}"
    silent = log.lost - total(announced)
    if silent > 0:
        return f"{_missing(log, announced, silent)} lost, and no loss is announced: {sums}"
    return ""


def _missing(log: Log, announced: Sequence[Range], count: int) -> str:
    """Where `count` seqs are missing, as far as that can be told: where nothing is announced, if that is enough."""
    absent = _absent(log)
    silent = subtract(absent, announced)
    places = silent if total(silent) >= count else absent
    longest = sorted(sorted(places, key=lambda place: place[0] - place[1])[:NAMED_MAX])
    named = ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in longest)
    more = f" and {len(places) - NAMED_MAX} ranges more" if len(places) > NAMED_MAX else ""
    return f"{'' if total(places) == count else f'{count} of '}seqs {named}{more} are"


def _announced(log: Log) -> list[Range]:
    """What a reader from the start is told to be lost."""
    below = [(1, log.floor - 1)] if log.floor > 1 else []
    return below + [(max(gap.first, log.floor), gap.last) for gap in log.gaps if gap.last >= log.floor]


def _absent(log: Log) -> list[Range]:
    """The seqs that are not live."""
    found: list[Range] = []
    expected = 1
    for seq in log.live_after(0):
        if seq > expected:
            found.append((expected, seq - 1))
        expected = seq + 1
    if expected <= log.head:
        found.append((expected, log.head))
    return found
