"""The losses of one topic: which seqs went without being asked for, why and when (LS1).

A log has a list of them, ascending and disjoint; the functions here are the only ones that change it. Pure. Knows
nothing of records: what was live is told by the log that has the list (see log.py).

Invariants
- Their counts add up to all that the log has lost; a loss may cover more seqs, and those were deleted.
- Losses that adjoin, have one reason and come within a second of each other are one.
- The newest 1000 are kept as they are. Older ones may merge with a neighbour, unless something live lies between them.
"""

from bisect import bisect_left
from typing import Final, Literal

from msgspec import Struct

LOSSES_KEPT: Final = 1000
SLACK: Final = 200  # losses above that before old ones are merged
TOGETHER_MS: Final = 1000  # losses within this time of each other are one

LossReason = Literal["cap", "ttl", "mixed", "source_trim"]  # mixed: of a directory that did not tell them apart


class Loss(Struct, frozen=True, array_like=True, gc=False):
    """Seqs `first`..`last`, of which `count` were lost, the newest of them at `ts`."""

    first: int
    last: int
    reason: LossReason
    ts: int
    count: int


Losses = list[Loss]  # of one topic


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
    """Let the highest loss go on through first..last, if they are one: what a full topic does all the time."""
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
    """Assert the invariants, of a log with this head that has lost so many."""
    end = 0
    for loss in losses:
        assert end < loss.first <= loss.last <= head, f"{loss} is out of place"
        assert 0 <= loss.count <= loss.last - loss.first + 1, f"{loss} counts more than it covers"
        end = loss.last
    total = sum(loss.count for loss in losses)
    assert total == lost, f"{total} seqs are in losses, {lost} are lost"


def _is_one(lower: Loss, upper: Loss) -> bool:
    return lower.last + 1 == upper.first and lower.reason == upper.reason and abs(lower.ts - upper.ts) <= TOGETHER_MS


def _joined(lower: Loss, upper: Loss) -> Loss:
    newer = max(lower, upper, key=_age)
    return Loss(lower.first, upper.last, newer.reason, newer.ts, lower.count + upper.count)


def _age(loss: Loss) -> tuple[int, int]:
    return loss.ts, loss.first


def _first(loss: Loss) -> int:
    return loss.first


def _last(loss: Loss) -> int:
    return loss.last
