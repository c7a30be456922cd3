"""Decisions about the jobs of a queue: who gets which, and what becomes of leases. Each gives the entries to commit.

Pure: a decision rests on the queue as it is `now` (`Queue.advance`), and changes nothing. The
caller knows how jobs are rendered, which of their texts are in memory, and what an answer says.

An ack is a delete. A node acks, gives back or keeps longer only what it holds, under the lease that it names, if it
names one; other jobs are skipped (QU9, QU20).
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import repeat
from typing import NamedTuple

from topics.core.decide import deletion
from topics.core.entries import AnyEntry, Freed, Leased, Released
from topics.core.queue.jobs import Queue
from topics.core.state import Topic

HAND_BYTES_MAX = 8 * 1024 * 1024  # texts of the jobs that one claimer gets in a pass; the first job always fits
LETTERS_MAX = 256  # exhausted jobs that one pass sees to; the next one goes on

Numbers = Sequence[int | None] | None  # of leases: one for each seq, None where any lease will do
Deleting = tuple[int, int, int]  # seq, lease number (0: none), deliveries of a job that is about to go


class Claimer:
    """Someone who wants jobs: a claim, or a stream of jobs."""

    __slots__ = ("lease_ms", "node", "wanted")

    def __init__(self, node: str, wanted: int, lease_ms: int | None = None) -> None:
        self.node = node
        self.wanted = wanted  # jobs it takes in the next pass
        self.lease_ms = lease_ms  # None = as the topic says


class Ack(NamedTuple):
    """Jobs that a node says it holds, and has done."""

    node: str
    seqs: Sequence[int]
    numbers: Numbers


class Change(NamedTuple):
    """What is decided about jobs that a node says it holds."""

    entries: Sequence[AnyEntry]  # none: it holds none of them
    done: list[int]
    skipped: list[int]
    deadline: int = 0  # of an extend


def hand(topic: Topic, claimer: Claimer, seqs: Iterable[int], now: int, number: int) -> Leased:
    """A lease of these jobs for a claimer; lease numbers count up from `number`."""
    deadline = now + (topic.config.lease_ms if claimer.lease_ms is None else claimer.lease_ms)
    counts = topic.queue.deliveries
    leases = [(seq, at, deadline, counts.get(seq, 0) + 1) for at, seq in enumerate(seqs, number)]
    return Leased(topic.id, claimer.node, leases)


def claim(topic: Topic, claimers: Sequence[Claimer], texts: Mapping[int, Sized], now: int, number: int) -> list[Leased]:
    """A lease of jobs for each claimer, which may be of none; lease numbers count up from `number`.

    `texts` are those of picked jobs, in the order of the pick. Each claimer in turn gets a job, while it wants more.
    """
    leased = []
    for claimer, dealt in zip(claimers, _dealt(list(texts), claimers), strict=True):
        seqs = _fitting(sorted(dealt), texts)
        leased.append(hand(topic, claimer, seqs, now, number))
        number += len(seqs)
    return leased


def due_letters(queue: Queue, picked: Sequence[int], count: int) -> list[int]:
    """The exhausted jobs that a pass for `count` jobs comes across when it has picked these; some of them."""
    letters = queue.exhausted.first(LETTERS_MAX)
    if len(picked) == count and picked[-1] in queue.returned:
        letters = [seq for seq in letters if seq < picked[-1]]
    return letters


def ack(topic: Topic, acks: Sequence[Ack]) -> tuple[list[AnyEntry], list[tuple[list[int], list[int]]]]:
    """Complete jobs, which are deleted together: the entries, and of each ack the jobs it completes and those it skips.

    One that two acks name goes to the first. Damaged: a page that the delete would have to look at cannot be read.
    """
    taken: set[int] = set()
    changes = [_held(topic.queue, *ack, taken) for ack in acks]
    return [deletion(topic, *[held for held, _ in changes if held])] if taken else [], changes


def nack(topic: Topic, node: str, seqs: Sequence[int], numbers: Numbers, start: int) -> Change:
    """Give jobs back: they are claimable again from `start` on (0 = at once)."""
    held, skipped = _held(topic.queue, node, seqs, numbers)
    leases = topic.queue.leases
    entry = Released(topic.id, [(seq, leases[seq][0] + seq, start) for seq in held])
    return Change([entry] if held else (), held, skipped)


def extend(topic: Topic, node: str, seqs: Sequence[int], numbers: Numbers, deadline: int) -> Change:
    """Keep jobs until another deadline."""
    held, skipped = _held(topic.queue, node, seqs, numbers)
    leases = topic.queue.leases
    entry = Leased(topic.id, node, [(seq, leases[seq][0] + seq, deadline, leases[seq][3]) for seq in held])
    return Change([entry] if held else (), held, skipped, deadline)


def release(topic: Topic, leases: Iterable[tuple[int, int]]) -> list[AnyEntry]:
    """End leases (seq, number) whose holder is gone. No entries: all have ended before."""
    own = [(seq, number, 0) for seq, number in leases if topic.queue.has_lease(seq, number)]
    return [Released(topic.id, own)] if own else []


def undelivered(topic: Topic, leases: Iterable[tuple[int, int]]) -> list[AnyEntry]:
    """End leases (seq, number) that their claimer was never told of: they do not count as deliveries."""
    queue = topic.queue
    own = [(seq, number, queue.leases[seq][3] - 1) for seq, number in leases if queue.has_lease(seq, number)]
    return [Freed(topic.id, own)] if own else []


def remembered(topic: Topic, jobs: Iterable[Deleting]) -> list[AnyEntry]:
    """Jobs were to go, and did not: how often they were handed out still counts. Who holds one is left alone."""
    handed_out, is_live = topic.queue.handed_out, topic.log.is_live
    known = [(seq, 0, count) for seq, _, count in jobs if is_live(seq) and handed_out(seq) < count]
    return [Freed(topic.id, known)] if known else []


def let_go(topic: Topic, leases: Iterable[tuple[int, int]]) -> list[AnyEntry]:
    """`release` where the log takes no entries: the leases end, but a restart has them until their deadlines."""
    queue = topic.queue
    own = [(seq, number, queue.leases[seq][3]) for seq, number in leases if queue.has_lease(seq, number)]
    return [Freed(topic.id, own)] if own else []


def _held(
    queue: Queue, node: str, seqs: Sequence[int], numbers: Numbers, taken: set[int] | None = None
) -> tuple[list[int], list[int]]:
    """Those of `seqs` that the node holds, under the leases that it names, and that are not `taken`; and the others."""
    leases = queue.leases
    held: list[int] = []
    others: list[int] = []
    taken = set() if taken is None else taken
    for seq, number in zip(seqs, repeat(None) if numbers is None else numbers, strict=False):
        lease = leases.get(seq)
        if lease is None or lease[1] != node or seq in taken or (number is not None and number != lease[0] + seq):
            others.append(seq)
        else:
            held.append(seq)
            taken.add(seq)
    return held, others


def _fitting(seqs: list[int], texts: Mapping[int, Sized]) -> list[int]:
    """As many of the jobs as one claimer gets at a time."""
    if sum(map(len, texts.values())) <= HAND_BYTES_MAX:
        return seqs
    size = 0
    for index, seq in enumerate(seqs):
        size += len(texts[seq])
        if size > HAND_BYTES_MAX and index:
            return seqs[:index]
    return seqs


def _dealt(seqs: list[int], claimers: Sequence[Claimer]) -> list[list[int]]:
    """One job for each in turn, while they want more."""
    hands: list[list[int]] = [[] for _ in claimers]
    wanting = [index for index, claimer in enumerate(claimers) if claimer.wanted]
    at = 0
    while at < len(seqs) and wanting:
        for index in wanting[: len(seqs) - at]:
            hands[index].append(seqs[at])
            at += 1
        wanting = [index for index in wanting if len(hands[index]) < claimers[index].wanted]
    return hands
