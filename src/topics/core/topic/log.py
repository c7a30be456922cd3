"""One topic's log: which seqs were handed out, and what became of each record.

Changes what is live (see live.py), the watermarks and the gaps, and is the only one who does; the account of what is
gone is kept in losses.py. Pure: no clock, no I/O. Knows nothing of names, configs, commands or durability.

Invariants, besides those of the live records
- 1 <= floor <= earliest <= head + 1; none of them ever falls.
- Each seq up to the head is live, was deleted on purpose, or is lost: count + deleted + lost = head. A log under
  recovery may lack rows whose delete it is still to replay; in any other, what is missing is a silent hole.
- Every lost seq is below the floor or in a gap, and in one of `losses`, which say why and when (see losses.py).
- `gaps` are sorted, do not touch a live record, and end above the floor.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from topics.core.memory import CHUNK, PIECE
from topics.core.topic.blocks import BLOCK, lowest, mask_of
from topics.core.topic.live import LiveRows, measured
from topics.core.topic.losses import AccountedRecords, Loss
from topics.core.topic.parts import Chunk, Part
from topics.core.topic.records import Batch
from topics.model import Gap


class Log(AccountedRecords):
    """The records of one topic instance."""

    __slots__ = ("_has_emptied", "dropped", "last_write_ts", "weight")

    def __init__(self) -> None:
        super().__init__()
        self.last_write_ts = 0  # `last_ts`, as durable as the records: 0 = none since a restart took them
        self.weight = 0  # what the parts weigh in memory
        self.dropped: list[Part] = []  # parts that died, for the owner of memory and files to clear away
        self._has_emptied = False  # some part in `parts` has no live record left

    @property
    def marked(self) -> int:
        """How many blocks of seqs have marks of dead rows."""
        return len(self._dead)

    # --- growing

    def append(self, batch: Batch, ts: int) -> None:
        """Add a batch at the head."""
        if batch.pieces is not None:
            for body, sizes in batch.pieces:
                self.append(Batch(body, sizes, batch.has_tags), ts)
            return
        sizes, head = batch.sizes, self.head
        count = len(sizes)
        tail = self.parts[-1] if self.parts else None
        if type(tail) is not Chunk or tail.last != head or not tail.takes(count):
            tail = _next_chunk(self, tail)
        if ts >= self._pace_due:
            self._sample(ts)
        before, weight = tail.live_bytes, tail.weight
        tail.append(batch.body, sizes, ts, batch.has_tags, batch.layout)
        self.weight += tail.weight - weight
        if not self.count:
            self.earliest, self._earliest_row = head + 1, 0
        self.head = head + count
        self.count += count
        self.bytes += tail.live_bytes - before
        self.last_ts = self.last_write_ts = ts

    def append_singles(self, bodies: list[bytes], sizes: list[int], timestamps: list[int], has_tags: bool) -> None:
        """Add writes of one record each at the head: the same as appending each, at a fraction of the cost."""
        if len(bodies) == 1 or timestamps != sorted(timestamps):  # the latter: no log of ours
            for body, size, ts in zip(bodies, sizes, timestamps, strict=True):
                self.append(Batch(body, array("I", (size,)), has_tags), ts)
            return
        start = 0
        while start < len(bodies):
            if timestamps[start] >= self._pace_due:
                self._sample(timestamps[start])
            tail = self.parts[-1] if self.parts else None
            if type(tail) is not Chunk or tail.last != self.head or not tail.takes(1):
                tail = _next_chunk(self, tail)
            stop = bisect_left(timestamps, self._pace_due, start)
            stop = tail.singles_taken(bodies, start, stop)
            before, weight = tail.live_bytes, tail.weight
            tail.append_singles(bodies[start:stop], sizes[start:stop], timestamps[start:stop], has_tags)
            self.weight += tail.weight - weight
            if not self.count:
                self.earliest, self._earliest_row = self.head + 1, 0
            self.head += stop - start
            self.count += stop - start
            self.bytes += tail.live_bytes - before
            start = stop
        self.last_ts = self.last_write_ts = timestamps[-1]

    def fold(self, chunk: Chunk) -> None:
        """Let a chunk take no further write."""
        self.weight -= chunk.fold()

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

    def inherit_head(self, head: int, lost: int, deleted: int = 0, ts: int = 0) -> None:
        """Take over a head whose records are not here: those up to `lost` are lost, `deleted` ones were deleted."""
        if head > self.head:
            known = self.head
            self._raise_head(head)
            self.deleted = max(self.deleted, deleted)
            if lost > known and lost - known == self.unaccounted:
                self._note_lost([(known + 1, lost)], lost - known, "cap", ts)
            self.lose_all(lost, ts)

    def attach(self, part: Part) -> None:
        """Add a sealed part above all that are here; its seqs were handed out before."""
        self.parts.append(part)
        self.weight += _weight(part)
        self.count += part.live_count
        self.bytes += part.live_bytes
        if len(self.parts) == 1:
            self.earliest, self._earliest_row = part.first, 0
            if part.live_count < part.count:
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
        self.weight += sum(map(_weight, living)) - sum(map(_weight, present))
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

    def delete_before(self, seq: int) -> None:
        before = self.count
        self._drop_through(seq - 1)
        self.deleted += before - self.count
        self._drop_emptied()

    def delete_blocks(self, blocks: Iterable[tuple[int, int]]) -> None:
        before = self.count
        for number, mask in blocks:
            stop = number * BLOCK + mask.bit_length()
            index = self.part_from(number * BLOCK + lowest(mask))
            while index < len(self.parts) and self.parts[index].first < stop:
                self._kill(self.parts[index], number, mask)
                index += 1
        self.deleted += before - self.count
        self._measured.clear()
        self._drop_emptied()

    def were_deleted(self, count: int) -> None:
        """Count deletes of rows that were flagged dead before their delete was replayed."""
        self.deleted += max(0, min(count, self.unaccounted))

    def drop_all(self) -> None:
        """Let go of all parts: the topic is gone."""
        self.dropped.extend(self.parts)
        self.parts = []
        self.count = self.bytes = self.weight = 0

    def _lose(self, last: int, reason: Literal["cap", "ttl"], ts: int) -> None:
        before, (leaving, shares) = self.count, self._leaving(last)
        self._drop_through(last)
        if self.gaps and self.gaps[0].last < self.floor:
            self.gaps = [gap for gap in self.gaps if gap.last >= self.floor]
        self._drop_emptied()
        if self.count < before:
            self._note_lost(leaving, before - self.count, reason, ts, shares)

    def _drop_through(self, last: int) -> None:
        """Make every live record up to `last` dead: whole parts at once, the rest by marks."""
        parts, whole = self.parts, 0
        while whole < len(parts) and parts[whole].last <= last:
            self.count -= parts[whole].live_count
            self.bytes -= parts[whole].live_bytes
            whole += 1
        if whole:
            self.weight -= sum(map(_weight, parts[:whole]))
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
            emptied = [part for part in self.parts if not part.live_count]
            self.weight -= sum(map(_weight, emptied))
            self.dropped.extend(emptied)
            self.parts = [part for part in self.parts if part.live_count]
        before = self.earliest
        if self.parts:
            part = self.parts[0]
            if type(part) is Chunk and part.first <= before:
                number, offset = divmod(before, BLOCK)
                seq = before + lowest(~(self._dead.get(number, 0) >> offset))
                if seq < (number + 1) * BLOCK and seq <= part.last:  # in the same block: its marks stay
                    self.earliest, self._earliest_row = seq, seq - part.first
                    return
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
        rows = self.live_rows()
        for part in self.parts:
            assert rows.totals(part) == (part.live_count, part.live_bytes), f"totals of the part at {part.first}"
        if self.parts:
            row, _ = next(rows.runs(self.parts[0], 0, self.parts[0].count))
            assert (self._earliest_row, self.earliest) == (row, self.parts[0].seq_at(row)), "the earliest record"
        for gap in self.gaps:
            assert not self.count_between(gap.first - 1, gap.last), f"a live record in the gap {gap}"
        for loss in self.losses:
            assert not self.count_between(loss.first - 1, loss.last), f"a live record in {loss}"

    def check_totals(self) -> None:
        """Assert the invariants that can be checked without reading rows."""
        parts, gaps, floor = self.parts, self.gaps, self.floor
        assert 1 <= floor <= self.earliest <= self.head + 1, f"floor {floor}, earliest {self.earliest}"
        assert all(part.first <= part.last <= self.head and part.live_count > 0 for part in parts), "an empty part"
        assert all(one.last < other.first for one, other in pairwise(parts)), "parts overlap"
        totals = sum(part.live_count for part in parts), sum(part.live_bytes for part in parts)
        assert totals == (self.count, self.bytes), f"{totals} live in the parts, {self.count, self.bytes} in all"
        assert self.weight == sum(map(_weight, parts)), f"the parts weigh {sum(map(_weight, parts))}, not {self.weight}"
        assert parts or self.earliest == self.head + 1, f"earliest {self.earliest} of nothing"
        assert not self.unaccounted, f"{self.unaccounted} seqs are not accounted for"
        assert all(gap.first <= gap.last <= self.head and gap.last >= floor for gap in gaps), "a gap out of place"
        assert all(one.last < other.first for one, other in pairwise(gaps)), "gaps overlap"
        announced = self._announced
        assert self.lost <= announced, f"{self.lost} seqs are lost, {announced} announced"
        self._check_losses()


def _weight(part: Part) -> int:
    """What a part weighs in memory."""
    return part.weight if type(part) is Chunk else PIECE


def _next_chunk(log: Log, tail: Part | None) -> Chunk:
    """A chunk for what the last part, `tail`, does not take."""
    if type(tail) is Chunk:
        log.fold(tail)
    chunk = Chunk(log.head + 1)
    log.parts.append(chunk)
    log.weight += CHUNK
    return chunk
