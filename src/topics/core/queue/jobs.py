"""The jobs of a queue beyond their records: who holds which, until when, and what may be handed out next.

Owns leases, delays, delivery counts and the order in which jobs are handed out. Pure: the caller says what time it is.
Knows of records only which seqs are live, and nothing of names, commits or connections.

A live job is in exactly one of these places, or in none of them: then it is *fresh*, never handed out.

    leases      held by a node until a deadline
    delayed     written or given back with a delay, and not claimable before a time
    returned    to be handed out again
    overdue     fresh, but behind the pointer: its delay is over
    exhausted   handed out as often as it may be: it goes to the dead-letter topic, and to nobody else

Time ends leases and delays by itself; `advance` carries that out, before anyone looks at the queue. There is no timer
per job: heaps have what ends next, with stale items that are dropped when met or when they are the larger part. If very
many end at once, `advance` takes steps, in the order in which they end: between two of them the queue is as it was a
moment ago.

Invariants, which `check` asserts
- All seqs in here are live, and each is in one place.
- A job has a delivery count if it was ever handed out; then it is in a place. That of a held job is in its lease.
- Every live seq at or below the pointer is in a place.
- Every lease and every delay has an item in its heap.
So `len(leases) + len(delayed) + ready = live`.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, filterfalse, groupby, repeat, takewhile
from typing import Any, Protocol, TypeVar

from topics.core.queue.seqs import STALE_MAX, Seqs, heap_of
from topics.model import TopicConfig

MANY_MIN = 1000  # jobs that change place together, from which on that is done as a whole
TAKEN_MAX = 0.75  # of the jobs known: up to here, taking them out is less work than making a place anew
EACH_TIMES = 8  # the work of looking a job up among those that are gone, in those of noting one of them
STEP_JOBS_MAX = 10_000  # whose lease or delay ends in one piece of work; a claim's jobs end together

T = TypeVar("T", bound=Any)
Lease = tuple[int, str, int, int]  # number less seq, node, deadline, deliveries: jobs handed out together share one
Numbered = dict[int, tuple[int, str, int]]  # seq → number, node, deadline: as a snapshot has leases


def _with(place: dict[int, T], seqs: list[int]) -> dict[int, T]:
    """What is left of a place."""
    return place if len(seqs) == len(place) else dict(zip(seqs, map(place.__getitem__, seqs), strict=True))


class LiveSeqs(Protocol):
    """What a queue asks of its log."""

    def run_after(self, seq: int, count_max: int) -> range: ...
    def live_after(self, seq: int) -> Iterator[int]: ...
    def is_live(self, seq: int) -> bool: ...


class Queue:
    """The jobs of one queue."""

    __slots__ = (
        "_ends",
        "dead_lettered",
        "deadlines",
        "delayed",
        "deliveries",
        "deliveries_max",
        "dropped",
        "ended",
        "exhausted",
        "leases",
        "overdue",
        "pointer",
        "returned",
    )

    def __init__(self, config: TopicConfig | None = None) -> None:
        self.leases: dict[int, Lease] = {}
        self.delayed: dict[int, int] = {}  # seq → claimable from
        self.returned = Seqs()
        self.overdue = Seqs()
        self.exhausted = Seqs()
        self.deliveries: dict[int, int] = {}  # seq → times handed out, of jobs not held; 0 is left out
        self.dead_lettered = 0
        self.deliveries_max = 0  # 0 = no limit
        self.pointer = 0  # fresh jobs lie above it
        self.ended: list[int] | None = None  # numbers of leases that have ended, if someone asks for them
        self.dropped: list[dict[int, Any] | list[Any]] = []  # no longer needed; the owner of memory clears it away
        self.deadlines: list[tuple[int, int, tuple[int, ...]]] = []  # deadline, a number, seqs
        self._ends: list[tuple[int, int]] = []  # of delays: claimable from, seq
        if config is not None:
            self.configure(config)

    # --- asking

    def ready(self, live: int) -> int:
        """Jobs that are neither held nor delayed, of `live` ones."""
        return live - len(self.leases) - len(self.delayed)

    def has_lease(self, seq: int, number: int) -> bool:
        """Whether a job is held under the lease of this number."""
        lease = self.leases.get(seq)
        return lease is not None and lease[0] + seq == number

    def handed_out(self, seq: int) -> int:
        """How often a job was handed out."""
        lease = self.leases.get(seq)
        return self.deliveries.get(seq, 0) if lease is None else lease[3]

    @property
    def known(self) -> int:
        """Of how many jobs there is something to know."""
        return len(self.leases) + len(self.deliveries) + len(self.delayed) + len(self.overdue)

    def next_end(self) -> int | None:
        """The time at which some lease or delay may have ended; None = there is none."""
        ends = [self.deadlines[0][0] + 1] if self.deadlines else []
        if self._ends:
            ends.append(self._ends[0][0])
        return min(ends, default=None)

    def is_due(self, now: int) -> bool:
        """Whether some lease or delay may have ended by `now`."""
        deadlines, ends = self.deadlines, self._ends
        return (bool(deadlines) and deadlines[0][0] < now) or (bool(ends) and ends[0][0] <= now)

    def pick(self, log: LiveSeqs, count: int) -> list[int]:
        """Up to `count` jobs to be handed out: those given back first, each kind ascending (QU5).

        Changes nothing but the pointer, which is a memo of where a search may begin: what is not leased is picked
        again, and no answer depends on where the pointer is.
        """
        picked = self.returned.first(count) if self.returned else []
        if self.overdue and len(picked) < count:
            picked += self.overdue.first(count - len(picked))
        if len(picked) < count:
            picked += self._pick_fresh(log, count - len(picked))
        return picked

    def _pick_fresh(self, log: LiveSeqs, count: int) -> list[int]:
        leases, delayed = self.leases, self.delayed
        others = [place for place in (self.returned, self.overdue, self.exhausted) if place]
        run = log.run_after(self.pointer, count)
        if len(run) == count and all(place.isdisjoint(run) for place in (leases.keys(), delayed.keys(), *others)):
            self.pointer = run.start - 1
            return list(run)
        fresh: list[int] = []
        for seq in log.live_after(self.pointer):
            if seq in leases or seq in delayed or (others and any(seq in place for place in others)):
                if not fresh:
                    self.pointer = seq
                continue
            if not fresh:
                self.pointer = seq - 1
            fresh.append(seq)
            if len(fresh) == count:
                break
        return fresh

    # --- what time does

    def advance(self, now: int) -> None:
        """End the leases whose deadline lies before `now`, and the delays that are over (QU8, QU12).

        Those that end first come first, and STEP_JOBS_MAX of them at a time: if `is_due` is still true, the queue is
        one of a moment ago, and the next call goes on.
        """
        deadlines, ends = self.deadlines, self._ends
        leases, due = self.leases, list[int]()
        while deadlines and deadlines[0][0] < now and len(due) < STEP_JOBS_MAX:
            due += heappop(deadlines)[2]
        over = [seq for seq in dict.fromkeys(due) if seq in leases and leases[seq][2] < now]
        if self.ended is not None:
            self.ended += [leases[seq][0] + seq for seq in over]
        self.deliveries |= [(seq, leases.pop(seq)[3]) for seq in over]
        _return_many(self, over)
        ready: list[int] = []
        while ends and ends[0][0] <= now and len(due) + len(ready) < STEP_JOBS_MAX:
            start, seq = heappop(ends)
            if self.delayed.get(seq) == start:
                del self.delayed[seq]
                ready.append(seq)
        _return_many(self, ready)

    # --- what entries do

    def lease(self, node: str, leases: Iterable[tuple[int, int, int, int]]) -> None:
        """Hand out jobs, or move deadlines: seq, lease number, deadline, deliveries."""
        held, counts = self.leases, self.deliveries
        are_some_not_leased = bool(counts or self.delayed or self.overdue)
        number, pointer, end, seqs, lease = 0, self.pointer, -1, list[int](), (0, node, -1, 0)
        for seq, number, deadline, deliveries in leases:
            if held[seq][0] + seq != number if seq in held else are_some_not_leased:
                self._leave(seq)
                counts.pop(seq, None)
            if deadline != lease[2] or number - seq != lease[0] or deliveries != lease[3]:
                lease = (number - seq, node, deadline, deliveries)
            held[seq] = lease
            if deadline != end:  # most end together
                if seqs:
                    heappush(self.deadlines, (end, number, tuple(seqs)))
                end, seqs = deadline, []
            seqs.append(seq)
            if seq == pointer + 1:
                pointer = seq
        self.pointer = pointer
        if seqs:
            heappush(self.deadlines, (end, number, tuple(seqs)))
        if len(self.deadlines) > STALE_MAX + 2 * len(held):
            self.deadlines = heap_of((lease[2], lease[0], (seq,)) for seq, lease in held.items())

    def release(self, leases: Iterable[tuple[int, int, int]]) -> None:
        """End leases: seq, lease number, claimable from (0 = at once). A job under another lease stays held."""
        for seq, number, start in leases:
            if self.has_lease(seq, number):
                self._leave(seq)
                if start:
                    self.delay(seq, start)
                else:
                    self._return(seq)

    def free(self, jobs: Iterable[tuple[int, int, int]]) -> None:
        """Set right what is known of live jobs: seq, lease number, deliveries.

        A job that is held under this lease is nobody's. One that is held under another, or was given back with a delay,
        stays where it is.
        """
        for seq, number, deliveries in jobs:
            lease = self.leases.get(seq)
            if lease is not None and lease[0] + seq != number:
                self.leases[seq] = (*lease[:3], deliveries)
                continue
            is_given_back = seq in self.delayed and seq in self.deliveries
            if not is_given_back:
                self._leave(seq)
            self.deliveries.pop(seq, None)
            if deliveries:
                self.deliveries[seq] = deliveries
            if not is_given_back:
                self._return(seq)

    def delay(self, seq: int, start: int) -> None:
        """A job that is in no place is not claimable before `start`."""
        self.delayed[seq] = start
        heappush(self._ends, (start, seq))
        if len(self._ends) > STALE_MAX + 2 * len(self.delayed):
            self._ends = heap_of((start, seq) for seq, start in self.delayed.items())

    def forget_many(self, gone: Sequence[Sequence[int]]) -> None:
        """The jobs of these pieces, ascending, are gone. Costs what there are fewer of: seqs, or jobs known here."""
        known = self.known
        seqs = sum(map(len, gone))
        is_run = len(gone) == 1 and type(gone[0]) is range
        if seqs <= known and seqs < MANY_MIN:
            leases, ended = self.leases, self.ended
            for seq in chain.from_iterable(gone):
                lease = leases.pop(seq, None)
                if lease is None:
                    self._leave(seq)
                    self.deliveries.pop(seq, None)
                elif ended is not None:
                    ended.append(lease[0] + seq)
        elif is_run and seqs > TAKEN_MAX * known:
            first, last = gone[0][0], gone[0][-1]
            self._keep(lambda place: [seq for seq in place if seq > last or seq < first])
        elif seqs <= EACH_TIMES * known:
            _take(self, gone[0] if is_run else list(chain.from_iterable(gone)))
        else:
            lasts = [piece[-1] for piece in gone]

            def is_gone(seq: int) -> bool:
                at = bisect_left(lasts, seq)
                return at < len(lasts) and (piece := gone[at])[bisect_left(piece, seq)] == seq

            self._keep(lambda place: list(filterfalse(is_gone, place)))

    def _keep(self, left: Callable[[Collection[int]], list[int]]) -> None:
        """Forget all jobs but those that are left of a place: it is made anew, at a fraction of the work for each."""
        before, counts, deadlines = self.leases, self.deliveries, self.deadlines
        self.leases = _with(before, left(before))
        self.deliveries = _with(counts, left(counts))
        self.delayed = _with(self.delayed, left(self.delayed))
        if self.ended is not None:
            kept = self.leases
            self.ended += [lease[0] + seq for seq, lease in before.items() if seq not in kept]
        for place in (self.returned, self.overdue, self.exhausted):
            if place:
                place.keep(left)
        if len(self.deadlines) > STALE_MAX + 2 * len(self.leases):
            self.deadlines = heap_of((lease[2], lease[0], (seq,)) for seq, lease in self.leases.items())
        if len(self._ends) > STALE_MAX + 2 * len(self.delayed):
            self._ends = heap_of((start, seq) for seq, start in self.delayed.items())
        olds: list[dict[int, Any] | list[Any]] = [before, counts, deadlines]
        news = (self.leases, self.deliveries, self.deadlines)
        self.dropped = [old for old, new in zip(olds, news, strict=True) if old is not new]

    def configure(self, config: TopicConfig) -> None:
        """Go by another config: which jobs are exhausted may change."""
        most = config.max_deliveries if config.dead_letter is not None else 0
        if most == self.deliveries_max:
            return
        self.deliveries_max = most
        claimable = [*self.returned, *self.exhausted]
        self.returned, self.exhausted = Seqs(), Seqs()
        _return_many(self, claimable)

    # --- recovery

    def restore(
        self, deliveries: dict[int, int], leases: Numbered, delayed: dict[int, int], scheduled: dict[int, int]
    ) -> None:
        """Take over what a snapshot has."""
        for node, held in groupby(leases.items(), key=lambda lease: lease[1][1]):
            self.lease(node, [(seq, number, deadline, deliveries.pop(seq)) for seq, (number, _, deadline) in held])
        self.deliveries = deliveries
        for seq, start in (*delayed.items(), *scheduled.items()):
            self.delay(seq, start)
        for seq in deliveries.keys() - delayed.keys():
            self._return(seq)

    def recovered(self, log: LiveSeqs) -> None:
        """All was replayed: what is known of jobs that are not there is forgotten.

        A delete may have reached a segment before the snapshot that has it, and a queue that was ephemeral has lost
        jobs whose leases were logged later.
        """
        self._keep(lambda place: list(filter(log.is_live, place)))

    def drop_leases(self) -> None:
        """Leases and delays of jobs given back were not kept: those jobs are claimable (QU18)."""
        for seq in [*self.leases, *self.deliveries]:
            self._leave(seq)
            self._return(seq)

    def take_over(self, old: "Queue", log: LiveSeqs) -> None:
        """Keep what `old` knows and the log does not have, of jobs that are still there."""
        for seq in [*old.leases, *old.deliveries]:
            if log.is_live(seq):
                self._leave(seq)
                count = self.deliveries[seq] = max(old.handed_out(seq), self.handed_out(seq))
                if seq in old.leases:
                    offset, node, deadline, _ = old.leases[seq]
                    self.lease(node, [(seq, offset + seq, deadline, count)])
                elif seq in old.delayed:
                    self.delay(seq, old.delayed[seq])
                else:
                    self._return(seq)

    def check(self, log: LiveSeqs) -> None:
        """Assert the invariants. Costs what is known of jobs here, not what the log holds."""
        places = (self.leases, self.delayed, self.returned, self.overdue, self.exhausted)
        known = [seq for place in places for seq in place]
        assert len(known) == len(set(known)), "a job is in two places"
        assert all(map(log.is_live, known)), "a job is known that is not live"
        delivered, others = {*self.returned, *self.exhausted}, set(known) - self.leases.keys()
        assert delivered <= self.deliveries.keys() <= others, "a job in no place, or without a delivery count"
        assert all(map(self.handed_out, [*self.leases, *self.deliveries])), "a delivery count of 0"
        assert not any(seq in self.deliveries or seq > self.pointer for seq in self.overdue), "overdue, but not fresh"
        passed = takewhile(lambda seq: seq <= self.pointer, log.live_after(0))
        assert set(passed) <= set(known), "a job at or below the pointer is in no place"
        ends = {(end, seq) for end, _, seqs in self.deadlines for seq in seqs}
        assert all((lease[2], seq) in ends for seq, lease in self.leases.items()), "a lease never ends"
        assert {(start, seq) for seq, start in self.delayed.items()} <= set(self._ends), "a delay never ends"
        for place, is_exhausted in ((self.exhausted, True), (self.returned, False)):
            assert all(self._is_exhausted(seq) is is_exhausted for seq in place), "handed out too often, or not"

    # --- places

    def _is_exhausted(self, seq: int) -> bool:
        return 0 < self.deliveries_max <= self.deliveries[seq]

    def _leave(self, seq: int) -> None:
        """Take a job out of its place."""
        lease = self.leases.pop(seq, None)
        if lease is None:
            self.delayed.pop(seq, None)
            for place in (self.returned, self.overdue, self.exhausted):
                place.discard(seq)
            return
        self.deliveries[seq] = lease[3]
        if self.ended is not None:
            self.ended.append(lease[0] + seq)

    def _return(self, seq: int) -> None:
        """Make a job that is in no place claimable; one that was never handed out is fresh again."""
        if seq in self.deliveries:
            (self.exhausted if self._is_exhausted(seq) else self.returned).add(seq)
        elif seq <= self.pointer:
            self.overdue.add(seq)


def _return_many(queue: Queue, seqs: list[int]) -> None:
    """Make jobs claimable that are in no place."""
    if len(seqs) < MANY_MIN:
        for seq in seqs:
            queue._return(seq)
        return
    counts = queue.deliveries
    if not all(map(counts.__contains__, seqs)):
        queue.overdue.add_many([seq for seq in seqs if seq not in counts and seq <= queue.pointer])
        seqs = [seq for seq in seqs if seq in counts]
    if (most := queue.deliveries_max) != 0:
        exhausted = [seq for seq in seqs if counts[seq] >= most]
        if exhausted:
            queue.exhausted.add_many(exhausted)
            seqs = [] if len(exhausted) == len(seqs) else [seq for seq in seqs if counts[seq] < most]
    if seqs:
        queue.returned.add_many(seqs)


def _take(queue: Queue, gone: Sequence[int]) -> None:
    """Forget these jobs, most of which are known: a fraction of the work for each."""
    if queue.ended is not None:
        leases = queue.leases
        queue.ended += [leases[seq][0] + seq for seq in gone if seq in leases]
    for place in (queue.leases, queue.deliveries, queue.delayed):
        if place:
            deque(map(place.pop, gone, repeat(None)), 0)
    for seqs in (queue.returned, queue.overdue, queue.exhausted):
        if seqs:
            seqs.discard_many(gone)


def forget_all(queue: Queue) -> None:
    """No job is left."""
    queue._keep(lambda place: [])


def scheduled(queue: Queue) -> dict[int, int]:
    """The delays of jobs that were never handed out; not to be changed."""
    return _with(queue.delayed, list(filterfalse(queue.deliveries.__contains__, queue.delayed)))


def oldest_ready(queue: Queue, log: LiveSeqs) -> int | None:
    """The lowest seq that is neither held nor delayed; None: there is none."""
    places = (queue.returned, queue.overdue, queue.exhausted)
    return min((*(seq for place in places for seq in place.first(1)), *queue._pick_fresh(log, 1)), default=None)
