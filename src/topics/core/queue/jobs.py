"""The jobs of a queue beyond their records: who holds which, until when, and what may be handed out next.

Owns leases, delays, delivery counts and the order in which jobs are handed out. Pure: it is told the time. Knows of
records only which seqs are live, and nothing of names, commits or connections.

A live job is in exactly one of these places; those in none of them are *fresh*: never handed out.

    leases      held by a node until a deadline
    delayed     given back, and not claimable before a time
    scheduled   written with a delay, and not claimable before a time
    returned    to be handed out again
    late        fresh, but behind the pointer: its delay is over
    exhausted   handed out as often as it may be: it goes to the dead-letter topic, and to nobody else

Time ends leases and delays by itself; `settle` finds those that have ended, and every question about a moment starts
with it. There is no timer per job: a heap has what ends next, with stale items that are dropped when met or when they
are the larger part.

Invariants: all seqs in here are live; every job that was ever handed out has a delivery count; every live seq at or
below the pointer is in one of the places; `len(leases) + delayed_count + ready = live`.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from topics.errors import InvalidRequest
from topics.model import TopicConfig

LETTERS_MAX = 256  # exhausted jobs that one pass sees to; the next one goes on
LEASE_ID = re.compile(r"lease_[0-9a-f]+", re.ASCII)
STALE_MAX = 64  # stale items that a heap may hold beside as many as it needs

Lease = tuple[int, str, int]  # number, node, deadline


def lease_id(number: int) -> str:
    """What a worker knows a lease by."""
    return f"lease_{number:x}"


def lease_number(text: str, field: str) -> int | None:
    """The number of a lease; None for no lease at all (""), -1 for one that cannot be."""
    if not text:
        return None
    if LEASE_ID.fullmatch(text) is None:
        raise InvalidRequest(f'{field} is "{text[:40]}", which is not a lease_id')
    number = int(text[6:22], 16)
    return number if lease_id(number) == text else -1


class LiveSeqs(Protocol):
    """What a queue asks of its log."""

    def live_after(self, seq: int) -> Iterator[int]: ...
    def is_live(self, seq: int) -> bool: ...


class Seqs:
    """A set of seqs that knows its smallest ones."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._heap: list[int] = []  # all members, and some that have left

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, seq: int) -> bool:
        return seq in self._members

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def add(self, seq: int) -> None:
        if seq not in self._members:
            self._members.add(seq)
            heappush(self._heap, seq)

    def discard(self, seq: int) -> None:
        members = self._members
        if seq in members:
            members.discard(seq)
            if len(self._heap) > STALE_MAX + 2 * len(members):
                self._heap = list(members)
                heapify(self._heap)

    def first(self, count: int) -> list[int]:
        """The smallest ones, ascending, at most `count`."""
        heap, found = self._heap, list[int]()
        while heap and len(found) < count:
            seq = heappop(heap)
            if seq in self._members and (not found or seq != found[-1]):
                found.append(seq)
        for seq in found:
            heappush(heap, seq)
        return found


class Queue:
    """The jobs of one queue."""

    __slots__ = (
        "_deadlines",
        "_ends",
        "_fresh",
        "dead_lettered",
        "delayed",
        "deliveries",
        "deliveries_max",
        "ended",
        "exhausted",
        "late",
        "leases",
        "pointer",
        "returned",
        "scheduled",
    )

    def __init__(self, config: TopicConfig | None = None) -> None:
        self.leases: dict[int, Lease] = {}
        self.delayed: dict[int, int] = {}  # seq → claimable from
        self.scheduled: dict[int, int] = {}  # seq → claimable from
        self.returned = Seqs()
        self.late = Seqs()
        self.exhausted = Seqs()
        self.deliveries: dict[int, int] = {}  # seq → times handed out; 0 is left out
        self.dead_lettered = 0
        self.deliveries_max = 0  # 0 = no limit
        self.pointer = 0  # live seqs above it that are in no place are fresh
        self.ended: list[int] | None = None  # numbers of leases that have ended, if someone asks for them
        self._deadlines: list[tuple[int, int, tuple[int, ...]]] = []  # deadline, a number, seqs
        self._fresh: list[int] = []  # picked last: all that is fresh from the pointer up to the last of them
        self._ends: list[tuple[int, int]] = []  # of delays: claimable from, seq
        if config is not None:
            self.configure(config)

    # --- asking

    @property
    def delayed_count(self) -> int:
        return len(self.delayed) + len(self.scheduled)

    def ready(self, live: int) -> int:
        """Jobs that are neither held nor delayed, of `live` ones."""
        return live - len(self.leases) - len(self.delayed) - len(self.scheduled)

    def next_end(self) -> int | None:
        """The time at which some lease or delay may have ended; None = there is none."""
        ends = [self._deadlines[0][0] + 1] if self._deadlines else []
        if self._ends:
            ends.append(self._ends[0][0])
        return min(ends, default=None)

    def pick(self, log: LiveSeqs, count: int) -> list[int]:
        """Up to `count` jobs to be handed out: those given back first, each kind ascending (QU5)."""
        picked = self.returned.first(count) if self.returned else []
        if self.late and len(picked) < count:
            picked += self.late.first(count - len(picked))
        if len(picked) < count:
            self._pick_fresh(log, count, picked)
        return picked

    def _pick_fresh(self, log: LiveSeqs, count: int, picked: list[int]) -> None:
        leases, scheduled, others = self.leases, self.scheduled, self._others()
        fresh: list[int] = []
        is_passing = True  # nothing fresh was met yet
        for seq in log.live_after(self.pointer):
            if seq in leases or seq in scheduled or (others and any(seq in other for other in others)):
                if is_passing:
                    self.pointer = seq
                continue
            is_passing = False
            fresh.append(seq)
            if len(picked) + len(fresh) == count:
                break
        self._fresh = fresh
        picked += fresh

    def _others(self) -> list[dict[int, int] | Seqs]:
        return [place for place in (self.returned, self.delayed, self.exhausted, self.late) if place]

    def due_letters(self, picked: Sequence[int], count: int) -> list[int]:
        """The exhausted jobs that a pass for `count` jobs comes across when it has picked these; some of them."""
        if not self.exhausted:
            return []
        letters = self.exhausted.first(LETTERS_MAX)
        if len(picked) == count and picked[-1] in self.returned:
            letters = [seq for seq in letters if seq < picked[-1]]
        return letters

    def held(self, node: str, seqs: Sequence[int], numbers: Sequence[int | None] | None) -> tuple[list[int], list[int]]:
        """Those of `seqs` that the node holds, under these leases if given; and the others (QU9, QU20)."""
        leases, held, others = self.leases, dict[int, None](), list[int]()
        for index, seq in enumerate(seqs):
            lease, number = leases.get(seq), None if numbers is None else numbers[index]
            if lease is None or lease[1] != node or seq in held or (number is not None and number != lease[0]):
                others.append(seq)
            else:
                held[seq] = None
        return list(held), others

    # --- what time does

    def settle(self, now: int) -> None:
        """End the leases whose deadline lies before `now`, and the delays that are over (QU8, QU12)."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now:
            for seq in heappop(deadlines)[2]:
                lease = self.leases.get(seq)
                if lease is not None and lease[2] < now:
                    self._end(seq)
                    self._return(seq)
        ends = self._ends
        while ends and ends[0][0] <= now:
            start, seq = heappop(ends)
            if self.delayed.get(seq) == start:
                del self.delayed[seq]
                self._return(seq)
            elif self.scheduled.get(seq) == start:
                del self.scheduled[seq]
                if seq <= self.pointer:
                    self.late.add(seq)

    # --- what entries do

    def lease(self, node: str, leases: Iterable[tuple[int, int, int, int]]) -> None:
        """Hand out jobs, or move deadlines: seq, lease number, deadline, deliveries."""
        deadlines: dict[int, list[int]] = {}
        number = 0
        held, counts, are_aside = self.leases, self.deliveries, self._has_some_aside()
        for seq, number, deadline, deliveries in leases:
            if seq in held:
                if held[seq][0] != number:
                    self._end(seq)
            elif are_aside:
                self._leave(seq)
            held[seq] = (number, node, deadline)
            counts[seq] = deliveries
            if deadline in deadlines:
                deadlines[deadline].append(seq)
            else:
                deadlines[deadline] = [seq]
        self._pass_fresh()
        for deadline, seqs in deadlines.items():
            heappush(self._deadlines, (deadline, number, tuple(seqs)))
        if len(self._deadlines) > STALE_MAX + 2 * len(self.leases):
            self._deadlines = [(lease[2], lease[0], (seq,)) for seq, lease in self.leases.items()]
            heapify(self._deadlines)

    def _pass_fresh(self) -> None:
        """Move the pointer over the jobs that were picked last, if all of them are leased."""
        for seq in self._fresh:
            if seq not in self.leases:
                return
        if self._fresh:
            self.pointer, self._fresh = self._fresh[-1], []

    def release(self, leases: Iterable[tuple[int, int, int]]) -> None:
        """End leases: seq, lease number, claimable from (0 = at once). Of another lease than named nothing ends."""
        for seq, number, start in leases:
            lease = self.leases.get(seq)
            if lease is None or lease[0] != number:
                continue
            self._end(seq)
            if start:
                self.delayed[seq] = start
                self._push_end(start, seq)
            else:
                self._return(seq)

    def schedule(self, seq: int, start: int) -> None:
        """A job was written that is not claimable before `start`."""
        self.scheduled[seq] = start
        self._push_end(start, seq)

    def forget(self, seq: int) -> None:
        """The job is gone."""
        if seq in self.leases:
            self._end(seq)
        elif seq in self.deliveries or seq in self.scheduled or seq in self.late:
            self._leave(seq)
        self.deliveries.pop(seq, None)

    def forget_between(self, first: int, last: int) -> None:
        """The jobs of these seqs are gone. Costs what there is of the two: seqs, or jobs known here."""
        if last - first < len(self.deliveries) + len(self.scheduled) + len(self.late):
            for seq in range(first, last + 1):
                self.forget(seq)
        else:
            self._forget_if(lambda seq: first <= seq <= last)

    def forget_runs(self, runs: Sequence[range]) -> None:
        """The same for runs of seqs, ascending."""
        if sum(map(len, runs)) <= len(self.deliveries) + len(self.scheduled) + len(self.late):
            for run in runs:
                for seq in run:
                    self.forget(seq)
        else:
            stops = [run.stop for run in runs]
            self._forget_if(lambda seq: (at := bisect_right(stops, seq)) < len(runs) and seq in runs[at])

    def _forget_if(self, is_gone: Callable[[int], bool]) -> None:
        for seq in [seq for place in (self.deliveries, self.scheduled, self.late) for seq in place if is_gone(seq)]:
            self.forget(seq)

    def configure(self, config: TopicConfig) -> None:
        """Go by another config: which jobs are exhausted may change."""
        self.deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        for seq in [*self.returned, *self.exhausted]:
            self._leave(seq)
            self._return(seq)

    # --- recovery

    def restore(
        self, deliveries: dict[int, int], leases: dict[int, Lease], delayed: dict[int, int], scheduled: dict[int, int]
    ) -> None:
        """Take over what a snapshot has."""
        self.deliveries = deliveries
        for seq, lease in leases.items():
            self.leases[seq] = lease
            heappush(self._deadlines, (lease[2], lease[0], (seq,)))
        self.delayed, self.scheduled = delayed, scheduled
        self._ends = [(start, seq) for place in (delayed, scheduled) for seq, start in place.items()]
        heapify(self._ends)
        for seq in deliveries:
            if seq not in leases and seq not in delayed:
                self._return(seq)

    def recovered(self, log: LiveSeqs) -> None:
        """All was replayed: what is known of jobs that are not there is forgotten.

        A delete may have reached a segment before the snapshot that has it, and a queue that was ephemeral has lost
        jobs whose leases were logged later.
        """
        self._forget_if(lambda seq: not log.is_live(seq))

    def drop_leases(self) -> None:
        """Leases and delays of jobs given back were not kept: those jobs are claimable (QU18)."""
        for seq in [*self.leases, *self.delayed]:
            if seq in self.leases:
                self._end(seq)
            self.delayed.pop(seq, None)
            self._return(seq)

    def take_over(self, old: "Queue", log: LiveSeqs) -> None:
        """Keep what `old` knows and the log does not have, of jobs that are still there."""
        for seq, count in old.deliveries.items():
            if log.is_live(seq):
                self._leave(seq)
                self.deliveries[seq] = max(count, self.deliveries.get(seq, 0))
                if seq in old.leases:
                    number, node, deadline = old.leases[seq]
                    self.lease(node, [(seq, number, deadline, self.deliveries[seq])])
                elif seq in old.delayed:
                    self.delayed[seq] = old.delayed[seq]
                    self._push_end(old.delayed[seq], seq)
                else:
                    self._return(seq)

    def undeliver(self, seq: int, number: int) -> None:
        """A delivery did not take place: its lease is void, and it does not count."""
        lease = self.leases.get(seq)
        if lease is None or lease[0] != number:
            return
        self._end(seq)
        self.deliveries[seq] -= 1
        if self.deliveries[seq]:
            self._return(seq)
        else:
            del self.deliveries[seq]
            if seq <= self.pointer:
                self.late.add(seq)

    def remember(self, seq: int, deliveries: int, log: LiveSeqs) -> None:
        """A job that was thought to be gone is there: it was handed out so often."""
        if log.is_live(seq) and self.deliveries.get(seq, 0) < deliveries:
            self.deliveries[seq] = deliveries
            if seq not in self.leases and seq not in self.delayed:
                self._leave(seq)
                self._return(seq)

    # --- places

    def _end(self, seq: int) -> None:
        number, _, _ = self.leases.pop(seq)
        if self.ended is not None:
            self.ended.append(number)

    def _return(self, seq: int) -> None:
        is_exhausted = self.deliveries_max and self.deliveries.get(seq, 0) >= self.deliveries_max
        (self.exhausted if is_exhausted else self.returned).add(seq)

    def _has_some_aside(self) -> bool:
        """Whether some job is in a place other than leases."""
        return bool(self.delayed or self.scheduled or self.returned or self.late or self.exhausted)

    def _leave(self, seq: int) -> None:
        """Take a job that is not leased out of its place."""
        if self.returned:
            self.returned.discard(seq)
        if self.delayed:
            self.delayed.pop(seq, None)
        if self.scheduled:
            self.scheduled.pop(seq, None)
        if self.exhausted:
            self.exhausted.discard(seq)
        if self.late:
            self.late.discard(seq)

    def _push_end(self, start: int, seq: int) -> None:
        heappush(self._ends, (start, seq))
        if len(self._ends) > STALE_MAX + 2 * self.delayed_count:
            self._ends = [(at, seq) for place in (self.delayed, self.scheduled) for seq, at in place.items()]
            heapify(self._ends)
