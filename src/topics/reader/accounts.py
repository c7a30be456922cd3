"""Accounts: what became of every seq of a data directory.

Recovery puts the state together, from snapshot, segments and log. Then each seq that a topic has handed out must be
live, deleted or lost, by the counts that its log has kept since its first record: live + deleted + lost = head. A
record that is missing without a delete or a loss breaks the sum, whatever took it.

Owned here: when an account is whole, and what is said of one that is not. Files and checksums are checked elsewhere.
"""

from collections.abc import Container, Sequence

from msgspec import Struct

from topics.core.state import State
from topics.core.topic.log import Log
from topics.ranges import Range, subtract, total

NAMED_MAX = 10  # ranges that a message names


class Account(Struct, frozen=True):
    """The seqs of a topic at the end of the log, each counted once."""

    topic: str
    epoch: int
    head: int
    live: int
    deleted: int
    lost: int
    fault: str  # "" = it is whole


def accounts_of(state: State, unreadable: Container[int]) -> dict[int, Account]:
    """The accounts of a state that recovery has put together, by topic id.

    Ephemeral topics have none, for their records are in no file; nor have those whose segments cannot be read.
    """
    logs = {
        topic.id: (topic, topic.log)
        for _, topic in sorted(state.topics.items())
        if topic.is_logged and topic.id not in unreadable
    }
    return {
        id: Account(topic.name, topic.epoch, log.head, log.count, log.deleted, log.lost, fault_of(log))
        for id, (topic, log) in logs.items()
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
    try:
        log.check_totals()
    except AssertionError as broken:
        return f"its counts do not agree: {broken}"
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
