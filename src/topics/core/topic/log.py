"""One topic's log: which seqs were handed out, and what became of each record.

Adds to the live records (see live.py) the watermarks and the gaps, and is the only one who changes them. Pure: no
clock, no I/O. Knows nothing of names, configs, commands or durability.

Invariants, besides those of the live records
- 1 <= floor <= earliest <= head + 1; none of them ever falls.
- Each seq up to the head is live, was deleted on purpose, or is lost: count + deleted + lost = head. A log under
  recovery may lack rows whose delete it is still to replay; in any other, what is missing is a silent hole.
- Every lost seq is below the floor or in a gap, and in one of `losses`, which say why and when (see losses.py).
- `gaps` are sorted, do not touch a live record, and end above the floor.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal

from msgspec import structs

from topics.core.rates import Pace
from topics.core.topic import losses
from topics.core.topic.blocks import BLOCK, mask_of
from topics.core.topic.live import LiveRecords, LiveRows, measured
from topics.core.topic.losses import Loss, LossReason
from topics.core.topic.parts import Chunk, Part
from topics.core.topic.records import Batch
from topics.model import Gap
from topics.ranges import Range, subtract, total

RUNS_KEPT: Final = 64  # stretches of one loss that are told apart; of more, one loss is made with what was deleted


class Log(LiveRecords):
    """The records of one topic instance."""

    __slots__ = (
        "_has_emptied",
        "_pace",
        "_pace_due",
        "deleted",
        "dropped",
        "evicted_last",
        "expired",
        "expired_last",
        "gaps",
        "last_write_ts",
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
        self.losses: losses.Losses = []
        self.last_write_ts = 0  # `last_ts`, as durable as the records: 0 = none since a restart took them
        self.dropped: list[Part] = []  # parts that died, for the owner of memory and files to clear away
        self._has_emptied = False  # some part in `parts` has no live record left
        self._pace: Pace | None = None  # of the head; nobody has written so far
        self._pace_due = 0  # when the next sample is to be taken

    @property
    def floor(self) -> int:
        return max(self.evicted_last, self.expired_last) + 1

    @property
    def unaccounted(self) -> int:
        """How many seqs are neither live nor deleted nor lost; below 0: some are two of these."""
        return self.head - self.count - self.deleted - self.lost

    # --- growing

    def append(self, batch: Batch, ts: int) -> None:
        """Add a batch at the head."""
        if batch.pieces is not None:
            for body, sizes in batch.pieces:
                self.append(Batch(body, sizes, batch.has_tags), ts)
            return
        tail = self.parts[-1] if self.parts else None
        count = len(batch.sizes)
        if type(tail) is not Chunk or tail.last != self.head or not tail.takes(count):
            if type(tail) is Chunk:
                tail.fold()
            tail = Chunk(self.head + 1)
            self.parts.append(tail)
        if ts >= self._pace_due:
            self._sample(ts)
        before = tail.live_bytes
        tail.append(batch.body, batch.sizes, ts, batch.has_tags)
        if not self.count:
            self.earliest, self._earliest_row = self.head + 1, 0
        self.head += count
        self.count += count
        self.bytes += tail.live_bytes - before
        self.last_ts = self.last_write_ts = ts

    def _sample(self, ts: int) -> None:
        if self._pace is None:
            self._pace = Pace()
        self._pace_due = self._pace.sample(ts, self.head)

    def written_lately(self, now: int) -> int:
        """How many records were written in the last minute."""
        return 0 if self._pace is None else self._pace.grown(now, self.head)

    def open_gap(self, last: int, reason: Literal["cap", "source_trim"], ts: int = 0) -> None:
        """Hand out the seqs up to `last` to nobody (TM12)."""
        first = self.head + 1
        if last < first:
            return
        newest = self.gaps[-1] if self.gaps else None
        if newest is not None and newest.last == self.head and newest.reason == reason:
            self.gaps[-1] = Gap(newest.first, last, reason)
        else:
            self.gaps.append(Gap(first, last, reason))
        self._raise_head(last)
        self._note_lost([(first, last)], last - first + 1, reason, ts)
        if not self.count:
            self.earliest = self.head + 1

    def _raise_head(self, head: int) -> None:
        """Seqs up to `head` were handed out, and no record was written."""
        if self._pace is not None:
            self._pace.shift(head - self.head)
        self.head = head

    def inherit_head(self, head: int, lost: int, deleted: int = 0, ts: int = 0) -> None:
        """Take over a head whose records are not here: those up to `lost` are lost, `deleted` ones were deleted."""
        if head > self.head:
            known = self.head
            self._raise_head(head)
            self.deleted = max(self.deleted, deleted)
            if lost > known and lost - known == self.unaccounted:
                self._note_lost([(known + 1, lost)], lost - known, "cap", ts)
            self.lose_all(lost, ts)

    def inherit_losses(self, inherited: Sequence[Loss], expired: int, trimmed: int) -> None:
        """Take over what is known of the losses of a log that this one follows; all of its records are lost."""
        if sum(loss.count for loss in inherited) == self.lost:
            self.losses, self.expired, self.trimmed = list(inherited), expired, trimmed

    def attach(self, part: Part) -> None:
        """Add a sealed part above all that are here; its seqs were handed out before."""
        self.parts.append(part)
        self.count += part.live_count
        self.bytes += part.live_bytes
        if len(self.parts) == 1:
            self.earliest = part.first
            self._earliest_row, _ = next(self.live_runs(part, 0, part.count))
            self.earliest = part.seq_at(self._earliest_row)

    def mark_dead(self, seqs: Iterable[int]) -> None:
        """Note rows, of parts about to be attached, as dead."""
        for seq in seqs:
            self._dead[seq // BLOCK] = self._dead.get(seq // BLOCK, 0) | 1 << seq % BLOCK

    def replace(self, old: Sequence[Part], new: Sequence[Part], rows: LiveRows) -> list[Part]:
        """Let `new` stand for `old`: consecutive parts, less what was dead when `new` was made, as `rows` say.

        Gives those of `new` that are in the log now; the rest holds nothing live any more.
        """
        replaced = set(old)
        present = [part for part in self.parts if part in replaced]
        if not present:
            return []
        index = self.parts.index(present[0])
        for part in new:
            part.live_count, part.live_bytes = self._totals_since(part, rows)
        living = [part for part in new if part.live_count]
        assert sum(part.live_count for part in living) == sum(part.live_count for part in present)
        self.parts[index : index + len(present)] = living
        for part in present:
            self._unmark(part, rows)
        if index == 0:
            self._earliest_row = self.parts[0].row_from(self.earliest)
        return living

    def _totals_since(self, part: Part, rows: LiveRows) -> tuple[int, int]:
        """How many rows are live, and their sizes, of a part that was made of live rows only. Looks at marks alone."""
        first = max(part.first, self.earliest)
        row = part.row_from(first)
        count, size = part.count - row, part.bytes_before(part.count) - part.bytes_before(row)
        for number in range(first // BLOCK, part.last // BLOCK + 1):
            died = self._dead.get(number, 0) & ~rows.dead.get(number, 0) & mask_of(number, first, part.last)
            if died:
                died_count, died_size = measured(part, number, died)
                count, size = count - died_count, size - died_size
        return count, size

    def _unmark(self, part: Part, rows: LiveRows) -> None:
        """Forget the marks of those rows of a part that its replacement does not have."""
        for number in range(part.first // BLOCK, part.last // BLOCK + 1):
            marks = self._dead.get(number, 0)
            if marks:
                marks &= ~(rows.dead.get(number, 0) & mask_of(number, part.first, part.last))
                if marks:
                    self._dead[number] = marks
                else:
                    del self._dead[number]

    # --- shrinking

    def evict(self, last: int, ts: int = 0) -> None:
        """Lose the live records up to `last` to a cap."""
        self.evicted_last = max(self.evicted_last, last)
        self._lose(last, "cap", ts)

    def expire(self, last: int, ts: int = 0) -> None:
        """Lose the live records up to `last` to their age."""
        self.expired_last = max(self.expired_last, last)
        self._lose(last, "ttl", ts)

    def lose_all(self, last: int, ts: int = 0) -> None:
        """Lose every record; `last` is the last that was live, here or in a log that this one follows."""
        self.evict(last, ts)
        lost = self.head - self.count - self.deleted
        if lost != self.lost:  # some are lost of which nobody knows more than that
            self.lost = lost
            self.expired, self.trimmed = min(self.expired, lost), 0
            self.losses = [Loss(1, max(last, min(lost, self.head)), "cap", ts or self.last_ts, lost)] if lost else []

    def losses_of_all(self, ts: int) -> losses.Losses:
        """What the losses would be if all records that are live were lost."""
        found = list(self.losses)
        for loss in self._counted(self._leaving(self.head), self.count, "cap", ts):
            losses.note(found, loss)
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

    def delete_before(self, seq: int) -> None:
        before = self.count
        self._drop_through(seq - 1)
        self.deleted += before - self.count
        self._drop_emptied()

    def delete_blocks(self, blocks: Iterable[tuple[int, int]]) -> None:
        before = self.count
        for number, mask in blocks:
            first = number * BLOCK
            index = self.part_from(first)
            while index < len(self.parts) and self.parts[index].first < first + BLOCK:
                self._kill(self.parts[index], number, mask)
                index += 1
        self.deleted += before - self.count
        self._measured.clear()
        self._drop_emptied()

    def were_deleted(self, count: int) -> None:
        """Note deletes of rows that were dead before their delete was replayed: their flags came first."""
        self.deleted += max(0, min(count, self.unaccounted))

    def drop_all(self) -> None:
        """Let go of all parts: the topic is gone."""
        self.dropped.extend(self.parts)
        self.parts = []
        self.count = self.bytes = 0

    def _lose(self, last: int, reason: Literal["cap", "ttl"], ts: int) -> None:
        before, leaving = self.count, self._leaving(last)
        self._drop_through(last)
        if self.gaps and self.gaps[0].last < self.floor:
            self.gaps = [gap for gap in self.gaps if gap.last >= self.floor]
        self._drop_emptied()
        if self.count < before:
            self._note_lost(leaving, before - self.count, reason, ts)

    def _leaving(self, last: int) -> list[Range]:
        """The stretches that the live records up to `last` lie in; what else is in them was deleted."""
        if not self.count or last < self.earliest:
            return []
        if self.count == self.head - self.earliest + 1:  # all from the earliest on are live
            return [(self.earliest, min(last, self.head))]
        found = self.living_ranges(last, RUNS_KEPT)
        if len(found) > RUNS_KEPT:
            found = [(found[0][0], last)]
        if found and self.losses and self.losses[-1].last >= found[0][0]:
            found = subtract(found, [(loss.first, loss.last) for loss in self.losses if loss.last >= found[0][0]])
        return found

    def _note_lost(self, ranges: Sequence[Range], count: int, reason: LossReason, ts: int) -> None:
        """`count` seqs in `ranges` are lost."""
        self.lost += count
        if reason == "ttl":
            self.expired += count
        elif reason == "source_trim":
            self.trimmed += count
        first, last = ranges[0]
        ts = ts or self.last_ts
        if len(ranges) == 1 and last - first + 1 == count and losses.grow(self.losses, first, last, reason, ts):
            return
        for loss in self._counted(ranges, count, reason, ts):
            losses.note(self.losses, loss)
        losses.shorten(self.losses, self.earliest)

    def _counted(self, ranges: Sequence[Range], count: int, reason: LossReason, ts: int) -> Iterator[Loss]:
        """`ranges` as losses, in which `count` seqs are lost; if others were deleted, it may not be known which."""
        if (
            len(ranges) > 1
            and total(ranges) != count
            and not any(ranges[0][0] <= loss.first <= ranges[-1][1] for loss in self.losses)
        ):
            ranges = [(ranges[0][0], ranges[-1][1])]
        for first, last in ranges:
            own = min(count, last - first + 1)
            count -= own
            yield Loss(first, last, reason, ts, own)

    def _drop_through(self, last: int) -> None:
        """Make every live record up to `last` dead: whole parts at once, the rest by marks."""
        parts, whole = self.parts, 0
        while whole < len(parts) and parts[whole].last <= last:
            self.count -= parts[whole].live_count
            self.bytes -= parts[whole].live_bytes
            whole += 1
        if whole:
            self.dropped.extend(parts[:whole])
            del parts[:whole]
        if parts and parts[0].first <= last:
            first = max(parts[0].first, self.earliest)
            for number in range(first // BLOCK, last // BLOCK + 1):
                self._kill(parts[0], number, mask_of(number, first, last))

    def _kill(self, part: Part, number: int, mask: int) -> None:
        """Mark the rows of `part` dead whose bits are in `mask`."""
        mask = self._living(part, number, mask)
        if not mask:
            return
        count, size = self._measured.get((part, number, mask)) or measured(part, number, mask)
        self._dead[number] = self._dead.get(number, 0) | mask
        part.live_count -= count
        part.live_bytes -= size
        self.count -= count
        self.bytes -= size
        if not part.live_count:
            self._has_emptied = True

    def _drop_emptied(self) -> None:
        """Drop parts without a live record, and bring `earliest` up to date."""
        if self._has_emptied:
            self._has_emptied = False
            self.dropped.extend(part for part in self.parts if not part.live_count)
            self.parts = [part for part in self.parts if part.live_count]
        before = self.earliest
        if self.parts:
            part = self.parts[0]
            self._earliest_row, _ = next(self.live_runs(part, part.row_from(before), part.count))
            self.earliest = part.seq_at(self._earliest_row)
        else:
            self.earliest = self.head + 1
        stale = range(before // BLOCK, self.earliest // BLOCK)
        if len(stale) > len(self._dead):
            self._dead = {number: mask for number, mask in self._dead.items() if number >= stale.stop}
        else:
            for number in stale:
                self._dead.pop(number, None)

    # --- checking

    def check(self) -> None:
        """Assert the invariants. The cost is that of parts and marks, not of records; rows of sealed parts are read."""
        self.check_totals()
        for part in self.parts:
            assert self._live_totals(part) == (part.live_count, part.live_bytes), f"totals of the part at {part.first}"
        if self.parts:
            row, _ = next(self._marked_runs(self.parts[0], 0, self.parts[0].count))
            assert (self._earliest_row, self.earliest) == (row, self.parts[0].seq_at(row)), "the earliest record"
        for gap in self.gaps:
            assert not self.count_between(gap.first - 1, gap.last), f"a live record in the gap {gap}"
        for loss in self.losses:
            assert not self.count_between(loss.first - 1, loss.last), f"a live record in {loss}"

    def check_totals(self) -> None:
        """Assert the invariants that can be told without looking at rows."""
        parts, gaps, floor = self.parts, self.gaps, self.floor
        assert 1 <= floor <= self.earliest <= self.head + 1, f"floor {floor}, earliest {self.earliest}"
        assert all(part.first <= part.last <= self.head and part.live_count > 0 for part in parts), "an empty part"
        assert all(one.last < other.first for one, other in pairwise(parts)), "parts overlap"
        totals = sum(part.live_count for part in parts), sum(part.live_bytes for part in parts)
        assert totals == (self.count, self.bytes), f"{totals} live in the parts, {self.count, self.bytes} in all"
        assert parts or self.earliest == self.head + 1, f"earliest {self.earliest} of nothing"
        assert not self.unaccounted, f"{self.unaccounted} seqs are not accounted for"
        assert all(gap.first <= gap.last <= self.head and gap.last >= floor for gap in gaps), "a gap out of place"
        assert all(one.last < other.first for one, other in pairwise(gaps)), "gaps overlap"
        announced = self._announced
        assert self.lost <= announced, f"{self.lost} seqs are lost, {announced} announced"
        self._check_losses()

    @property
    def _announced(self) -> int:
        """How many seqs a reader from the start is told to be lost."""
        return self.floor - 1 + sum(gap.last - max(gap.first, self.floor) + 1 for gap in self.gaps)

    def _check_losses(self) -> None:
        losses.check(self.losses, self.head, self.lost)
        assert min(self.expired, self.trimmed) >= 0, f"{self.expired} expired, {self.trimmed} trimmed"
        assert self.expired + self.trimmed <= self.lost, (
            f"{self.expired} expired, {self.trimmed} trimmed of {self.lost}"
        )
        covered = sum(loss.last - loss.first + 1 for loss in self.losses)
        silent = self.head - covered - self.count - self.deleted
        assert silent <= 0, f"{silent} seqs are neither live nor deleted nor in a loss"
