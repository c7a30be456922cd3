"""What a topic has lost: which seqs went without being asked for, why and when (LS1), and how many (LS2).

`AccountedRecords` adds to the live records (see live.py) the account of those that are gone; the log (see log.py)
removes records, and has that noted here. A log's losses are a list, ascending and disjoint; the functions here are the
only ones that change it. Pure.

Invariants
- The counts of the losses add up to all that the log has lost; a loss may cover more seqs, and those were deleted.
- Losses that adjoin, have one reason and come within a second of each other are one.
- The newest 1000 are kept as they are. Older ones may merge with a neighbour, unless something live lies between them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Final, Literal

from msgspec import Struct, structs

from topics.core.rates import SECONDS, Pace
from topics.core.topic.live import LiveRecords
from topics.errors import Damaged
from topics.model import Gap
from topics.ranges import Range, subtract, total

LOSSES_KEPT: Final = 1000
SLACK: Final = 200  # losses above that before old ones are merged
TOGETHER_MS: Final = 1000  # losses within this time of each other are one

RUNS_KEPT: Final = 64  # stretches of one loss that are told apart; of more, one loss is made with what was deleted

LossReason = Literal["cap", "ttl", "mixed", "source_trim"]  # mixed: of a directory that did not tell them apart


class Loss(Struct, frozen=True, array_like=True, gc=False):
    """Seqs `first`..`last`, of which `count` were lost, the newest of them at `ts`."""

    first: int
    last: int
    reason: LossReason
    ts: int
    count: int


Losses = list[Loss]  # of one topic

_age, _first, _last = attrgetter("ts", "first"), attrgetter("first"), attrgetter("last")


def note(losses: Losses, loss: Loss) -> None:
    """Add a loss that overlaps none that is there."""
    at = len(losses)
    if losses and losses[-1].first > loss.first:
        at = bisect_left(losses, loss.first, key=_first)
    if at and _is_one(losses[at - 1], loss):
        at -= 1
        losses[at] = loss = _joined(losses[at], loss)
    else:
        losses.insert(at, loss)
    if at + 1 < len(losses) and _is_one(loss, losses[at + 1]):
        losses[at : at + 2] = [_joined(loss, losses[at + 1])]


def grow(losses: Losses, first: int, last: int, reason: LossReason, ts: int) -> bool:
    """Extend the highest loss through first..last, if they are one loss: what a full topic does all the time."""
    if not losses:
        return False
    newest = losses[-1]
    if newest.last + 1 != first or newest.reason != reason or not -TOGETHER_MS <= ts - newest.ts <= TOGETHER_MS:
        return False
    count = newest.count + last - first + 1
    losses[-1] = Loss(newest.first, last, reason, ts if ts > newest.ts else newest.ts, count)
    return True


def shorten(losses: Losses, earliest: int) -> None:
    """Merge old losses if there are too many; `earliest` is the lowest live seq."""
    if len(losses) <= LOSSES_KEPT + SLACK:
        return
    newest = sorted(losses, key=_age, reverse=True)
    bound = _age(newest[LOSSES_KEPT])
    merged: Losses = []
    is_old = False  # the last of `merged`
    for loss in losses:
        was_old, is_old = is_old, _age(loss) <= bound and loss.last < earliest
        if was_old and is_old:
            merged[-1] = _joined(merged[-1], loss)
        else:
            merged.append(loss)
    losses[:] = merged


def reason_of(losses: Losses, seq: int) -> LossReason | None:
    """Why a seq is lost; None: it is in no loss."""
    at = bisect_left(losses, seq, key=_last)
    return losses[at].reason if at < len(losses) and losses[at].first <= seq else None


def lost_above(losses: Losses, seq: int) -> int:
    """How many seqs above `seq` are lost."""
    at = bisect_left(losses, seq + 1, key=_last)
    return sum([min(loss.count, loss.last - seq) for loss in losses[at : at + 1]]) + sum(
        [loss.count for loss in losses[at + 1 :]]
    )


def newest_first(losses: Losses, limit: int) -> Losses:
    """The newest losses, at most `limit`."""
    return sorted(losses, key=_age, reverse=True)[:limit]


def check(losses: Losses, head: int, lost: int) -> None:
    """Assert the invariants, for a log with this head and this many lost seqs."""
    end = 0
    for loss in losses:
        assert end < loss.first <= loss.last <= head, f"{loss} is out of place"
        assert 0 <= loss.count <= loss.last - loss.first + 1, f"{loss} counts more than it covers"
        end = loss.last
    counted = sum(loss.count for loss in losses)
    assert counted == lost, f"{counted} seqs are in losses, {lost} are lost"


def _counted(ranges: Sequence[Range], shares: Sequence[int], count: int, reason: LossReason, ts: int) -> Iterator[Loss]:
    """`ranges` as losses of `count` seqs; where a share is not known, as many as there can be."""
    for (first, last), share in zip_longest(ranges, shares):
        own = min(count, last - first + 1) if share is None else share
        count -= own
        if own:
            yield Loss(first, last, reason, ts, own)


def _is_one(lower: Loss, upper: Loss) -> bool:
    return lower.last + 1 == upper.first and lower.reason == upper.reason and abs(lower.ts - upper.ts) <= TOGETHER_MS


def _joined(lower: Loss, upper: Loss) -> Loss:
    newer = max(lower, upper, key=_age)
    return Loss(lower.first, upper.last, newer.reason, newer.ts, lower.count + upper.count)


class AccountedRecords(LiveRecords):
    """Live records, and the account of those that are gone: watermarks, gaps, counts and losses."""

    __slots__ = (
        "_pace",
        "_pace_due",
        "_pace_total",
        "deleted",
        "evicted_last",
        "expired",
        "expired_last",
        "gaps",
        "losses",
        "lost",
        "trimmed",
    )

    def __init__(self) -> None:
        super().__init__()
        self.evicted_last = 0  # highest seq that was live when a cap took it: the contract's cap_hi
        self.expired_last = 0  # highest seq that was live when it expired: the contract's ttl_hi
        self.gaps: list[Gap] = []
        self.deleted = 0  # records deleted on purpose, ever
        self.lost = 0  # seqs whose records went otherwise, or that nobody got …
        self.expired = 0  # … of these the ones that went by age …
        self.trimmed = 0  # … and those that a router left out because its source had lost them
        self.losses: Losses = []
        self._pace: Pace | None = None  # of the head, once there are two samples; of 100,000 topics few get so far
        self._pace_total = 0  # the only sample until then: the head before the second that ends at `_pace_due`
        self._pace_due = 0  # when the next sample is to be taken; 0: nobody has written so far

    @property
    def floor(self) -> int:
        return max(self.evicted_last, self.expired_last) + 1

    @property
    def unaccounted(self) -> int:
        """How many seqs are neither live nor deleted nor lost; below 0: some are two of these."""
        return self.head - self.count - self.deleted - self.lost

    def _sample(self, ts: int) -> None:
        if self._pace is None:
            second = ts // 1000
            if self._pace_due // 1000 - 1 <= second - SECONDS or not self._pace_due:
                self._pace_total, self._pace_due = self.head, (second + 1) * 1000
                return
            self._pace = Pace()
            self._pace.sample(self._pace_due - 1000, self._pace_total)
        self._pace_due = self._pace.sample(ts, self.head)

    def written_lately(self, now: int) -> int:
        """How many records were written in the last minute."""
        if self._pace is not None:
            return self._pace.grown(now, self.head)
        is_lately = self._pace_due and self._pace_due // 1000 - 1 > now // 1000 - SECONDS
        return self.head - self._pace_total if is_lately else 0

    def _raise_head(self, head: int) -> None:
        """Seqs up to `head` were handed out, and no record was written."""
        if self._pace is not None:
            self._pace.shift(head - self.head)
        self._pace_total += head - self.head
        self.head = head

    def inherit_losses(self, inherited: Sequence[Loss], expired: int, trimmed: int) -> None:
        """Take over what is known of the losses of a log that this one follows; all of its records are lost."""
        if sum(loss.count for loss in inherited) == self.lost:
            self.losses, self.expired, self.trimmed = list(inherited), expired, trimmed

    def losses_of_all(self, ts: int) -> Losses:
        """What the losses would be if all records that are live were lost."""
        found = list(self.losses)
        ranges, shares = self._leaving(self.head)
        for loss in _counted(ranges, shares, self.count, "cap", ts):
            note(found, loss)
        return found

    def derive_losses(self) -> None:
        """Make up for a snapshot that did not list losses: one is what the floor tells, the others are the gaps."""
        if self.deleted < 0:
            self.lost = self._announced
            self.deleted = self.head - self.count - self.lost
        ts, floor = self.last_ts, self.floor
        above = [Loss(max(gap.first, floor), gap.last, gap.reason, ts, 0) for gap in self.gaps]
        above = [structs.replace(loss, count=loss.last - loss.first + 1) for loss in above]
        below = self.lost - sum(loss.count for loss in above)
        reason: LossReason = "mixed" if self.evicted_last and self.expired_last else "cap"
        if self.expired_last and not self.evicted_last:
            reason = "ttl"
        self.losses = [Loss(1, floor - 1, reason, ts, below), *above] if below > 0 else above
        self.expired = below if reason == "ttl" else 0
        self.trimmed = sum(loss.count for loss in above if loss.reason == "source_trim")

    def _leaving(self, last: int) -> tuple[list[Range], list[int]]:
        """The stretches that the live records up to `last` lie in; what else is there was deleted. And their shares."""
        if not self.count or last < self.earliest:
            return [], []
        if self.count == self.head - self.earliest + 1:  # all from the earliest on are live
            return [(self.earliest, min(last, self.head))], []
        found = self.living_ranges(last, RUNS_KEPT)
        is_rough = len(found) > RUNS_KEPT
        if is_rough:
            found = [(found[0][0], last)]
        if found and self.losses and self.losses[-1].last >= found[0][0]:
            found = subtract(found, [(loss.first, loss.last) for loss in self.losses if loss.last >= found[0][0]])
        return found, [] if is_rough else self._shares(found, last)

    def _shares(self, ranges: Sequence[Range], last: int) -> list[int]:
        """How many live records lie in each of the stretches but the last; none: in the first as many as there can be.

        Rows of segments are looked at only where marks do not tell: beside a gap, if something was deleted.
        """
        try:
            if len(ranges) < 2 or total(ranges) == self.count_through(last):
                return []
            return [self.count_between(first - 1, end) for first, end in ranges[:-1]]
        except (Damaged, OSError):
            return []

    def _note_lost(
        self, ranges: Sequence[Range], count: int, reason: LossReason, ts: int, shares: Sequence[int] = ()
    ) -> None:
        """`count` seqs in `ranges` are lost: `shares` of them in the first ones."""
        self.lost += count
        if reason == "ttl":
            self.expired += count
        elif reason == "source_trim":
            self.trimmed += count
        first, last = ranges[0]
        ts = ts or self.last_ts
        if len(ranges) == 1 and last - first + 1 == count and grow(self.losses, first, last, reason, ts):
            return
        for loss in _counted(ranges, shares, count, reason, ts):
            note(self.losses, loss)
        shorten(self.losses, self.earliest)

    @property
    def _announced(self) -> int:
        """How many seqs a reader from the start is told to be lost."""
        return self.floor - 1 + sum(gap.last - max(gap.first, self.floor) + 1 for gap in self.gaps)

    def _check_losses(self) -> None:
        check(self.losses, self.head, self.lost)
        assert min(self.expired, self.trimmed) >= 0, f"{self.expired} expired, {self.trimmed} trimmed"
        assert self.expired + self.trimmed <= self.lost, (
            f"{self.expired} expired, {self.trimmed} trimmed of {self.lost}"
        )
        covered = sum(loss.last - loss.first + 1 for loss in self.losses)
        silent = self.head - covered - self.count - self.deleted
        assert silent <= 0, f"{silent} seqs are neither live nor deleted nor in a loss"
