"""One topic's log: which seqs were handed out, and which records are live.

Owns the parts, the watermarks, the gaps and the marks of dead records. Pure:
no clock, no I/O. Knows nothing of names, configs, commands or durability.

Invariants
- 1 <= floor <= earliest <= head + 1; none of them ever falls.
- `parts` are sorted by seq, do not overlap, and each holds a live record.
- A row is live unless its bit in `_dead` is set. Seqs in no part are not live.
- `count`, `bytes` and the live totals of each part are exact at all times.
- Each seq up to the head is live, was deleted on purpose, or is lost: count + deleted + lost = head. A log under
  recovery may lack rows whose delete it is still to replay; in any other, what is missing is a silent hole.
- Every lost seq is below the floor or in a gap.
- `gaps` are sorted, do not touch a live record, and end above the floor.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from topics.core.topic.blocks import BLOCK, Blocks, blocks_of, mask_of, runs_of
from topics.core.topic.parts import Chunk, Part
from topics.core.topic.records import Batch
from topics.model import Gap, TagMatch


class Log:
    """The records of one topic instance."""

    __slots__ = (
        "_dead",
        "_earliest_row",
        "_has_emptied",
        "_measured",
        "bytes",
        "cap_hi",
        "count",
        "deleted",
        "dropped",
        "earliest",
        "gaps",
        "head",
        "last_ts",
        "last_write_ts",
        "lost",
        "parts",
        "ttl_hi",
    )

    def __init__(self) -> None:
        self.head = 0
        self.cap_hi = 0  # highest seq that was live when a cap took it
        self.ttl_hi = 0  # highest seq that was live when it expired
        self.gaps: list[Gap] = []
        self.count = 0  # live records
        self.bytes = 0  # sum of their sizes
        self.deleted = 0  # records deleted on purpose, ever
        self.lost = 0  # seqs whose records went otherwise, or that nobody got
        self.earliest = 1
        self.last_ts = 0  # ts of the newest record ever
        self.last_write_ts = 0  # the same, as durable as the records: 0 = none since a restart took them
        self.parts: list[Part] = []
        self.dropped: list[Part] = []  # parts that died, for the owner of memory and files to clear away
        self._dead: Blocks = {}
        self._earliest_row = 0  # of the first part
        self._measured: dict[tuple[Part, int, int], tuple[int, int]] = {}  # count and bytes of rows about to go
        self._has_emptied = False  # some part in `parts` has no live record left

    @property
    def floor(self) -> int:
        return max(self.cap_hi, self.ttl_hi) + 1

    @property
    def unaccounted(self) -> int:
        """How many seqs are neither live nor deleted nor lost; below 0: some are two of these."""
        return self.head - self.count - self.deleted - self.lost

    @property
    def earliest_ts(self) -> int:
        """The ts of the earliest live record; there must be one."""
        return self.parts[0].ts_at(self._earliest_row)

    @property
    def has_sealed(self) -> bool:
        """Whether some records lie in segments; those come before all others."""
        return bool(self.parts) and type(self.parts[0]) is not Chunk

    # --- growing

    def append(self, batch: Batch, ts: int) -> None:
        """Add a batch at the head."""
        tail = self.parts[-1] if self.parts else None
        count = len(batch.sizes)
        if type(tail) is not Chunk or tail.last != self.head or not tail.takes(count):
            if type(tail) is Chunk:
                tail.fold()
            tail = Chunk(self.head + 1)
            self.parts.append(tail)
        before = tail.live_bytes
        tail.append(batch.body, batch.sizes, ts, batch.has_tags)
        if not self.count:
            self.earliest, self._earliest_row = self.head + 1, 0
        self.head += count
        self.count += count
        self.bytes += tail.live_bytes - before
        self.last_ts = self.last_write_ts = ts

    def open_gap(self, last: int, reason: Literal["cap", "source_trim"]) -> None:
        """Hand out the seqs up to `last` to nobody (TM12)."""
        first = self.head + 1
        if last < first:
            return
        newest = self.gaps[-1] if self.gaps else None
        if newest is not None and newest.last == self.head and newest.reason == reason:
            self.gaps[-1] = Gap(newest.first, last, reason)
        else:
            self.gaps.append(Gap(first, last, reason))
        self.lost += last - self.head
        self.head = last
        if not self.count:
            self.earliest = self.head + 1

    def keep_head(self, head: int, lost: int, deleted: int = 0) -> None:
        """Take over a head whose records are not here: those up to `lost` are lost, `deleted` ones were deleted."""
        if head > self.head:
            self.head = head
            self.deleted = max(self.deleted, deleted)
            self.lose_all(lost)

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

    def replace(self, old: Sequence[Part], new: Sequence[Part]) -> list[Part]:
        """Let `new` stand for `old`: consecutive parts, less what was dead when `new` was made of them.

        Gives those of `new` that are in the log now; the rest holds nothing live any more.
        """
        present = [part for part in self.parts if part in old]
        if not present:
            return []
        index = self.parts.index(present[0])
        for part in new:
            part.live_count = -1  # not known: makes live_runs look at the marks
            runs = list(self.live_runs(part, 0, part.count))
            part.live_count = sum(stop - start for start, stop in runs)
            part.live_bytes = sum(part.bytes_before(stop) - part.bytes_before(start) for start, stop in runs)
        living = [part for part in new if part.live_count]
        assert sum(part.live_count for part in living) == sum(part.live_count for part in present)
        self.parts[index : index + len(present)] = living
        if index == 0:
            self._earliest_row = self.parts[0].row_from(self.earliest)
        return living

    # --- shrinking

    def evict(self, last: int) -> None:
        """Lose the live records up to `last` to a cap."""
        self.cap_hi = max(self.cap_hi, last)
        self._lose(last)

    def expire(self, last: int) -> None:
        """Lose the live records up to `last` to their age."""
        self.ttl_hi = max(self.ttl_hi, last)
        self._lose(last)

    def lose_all(self, last: int) -> None:
        """Lose every record; `last` is the last that was live, here or in a log that this one follows."""
        self.evict(last)
        self.lost = self.head - self.count - self.deleted

    def delete_before(self, seq: int) -> None:
        before = self.count
        self._drop_through(seq - 1)
        self.deleted += before - self.count
        self._settle()

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
        self._settle()

    def were_deleted(self, count: int) -> None:
        """Note deletes of rows that were dead before their delete was replayed: their flags came first."""
        self.deleted += max(0, min(count, self.unaccounted))

    def drop_all(self) -> None:
        """Let go of all parts: the topic is gone."""
        self.dropped.extend(self.parts)
        self.parts = []
        self.count = self.bytes = 0

    def _lose(self, last: int) -> None:
        before = self.count
        self._drop_through(last)
        self.lost += before - self.count
        if self.gaps and self.gaps[0].last < self.floor:
            self.gaps = [gap for gap in self.gaps if gap.last >= self.floor]
        self._settle()

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
        count, size = self._measured.get((part, number, mask)) or _measure(part, number, mask)
        self._dead[number] = self._dead.get(number, 0) | mask
        part.live_count -= count
        part.live_bytes -= size
        self.count -= count
        self.bytes -= size
        if not part.live_count:
            self._has_emptied = True

    def _living(self, part: Part, number: int, mask: int) -> int:
        """Those bits of `mask` that are in the range of `part` and not marked dead."""
        return mask & ~self._dead.get(number, 0) & mask_of(number, max(part.first, self.earliest), part.last)

    def _settle(self) -> None:
        """Clear away parts that have died and bring `earliest` up to date."""
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

    # --- asking

    def part_at(self, seq: int) -> Part | None:
        """The part that holds `seq`, if any."""
        index = self.part_from(seq)
        part = self.parts[index] if index < len(self.parts) else None
        return part if part is not None and part.first <= seq else None

    def is_live(self, seq: int) -> bool:
        part = self.part_at(seq)
        if part is None or seq < self.earliest or self._dead.get(seq // BLOCK, 0) >> seq % BLOCK & 1:
            return False
        row = part.row_from(seq)
        return row < part.count and part.seq_at(row) == seq

    def live_after(self, seq: int) -> Iterator[int]:
        """The live seqs above `seq`, ascending."""
        first = max(seq + 1, self.earliest)
        for index in range(self.part_from(first), len(self.parts)):
            part = self.parts[index]
            if type(part) is Chunk:
                yield from self._live_seqs(max(first, part.first), part.last)
            else:
                for start, stop in self.live_runs(part, part.row_from(first), part.count):
                    yield from map(part.seq_at, range(start, stop))

    def _live_seqs(self, first: int, last: int) -> Iterator[int]:
        """Those of first..last, all of them in one chunk, that are live."""
        while first <= last:
            number, offset = divmod(first, BLOCK)
            stop = min(last + 1, (number + 1) * BLOCK)
            dead = self._dead.get(number, 0) >> offset
            if not dead:
                yield from range(first, stop)
            else:
                for start, end in runs_of(~dead & ((1 << (stop - first)) - 1)):
                    yield from range(first + start, first + end)
            first = stop

    def runs_between(self, after: int, last: int) -> Iterator[tuple[Part, int, int]]:
        """Runs of live rows with seqs above `after` and up to `last`: part, start and stop row."""
        for index in range(self.part_from(after + 1), len(self.parts)):
            part = self.parts[index]
            if part.first > last:
                return
            for start, stop in self.live_runs(part, part.row_from(after + 1), part.row_from(last + 1)):
                yield part, start, stop

    def count_between(self, after: int, last: int) -> int:
        """How many records are live above `after` and up to `last`."""
        return sum(stop - start for _, start, stop in self.runs_between(after, last))

    def highest_live(self, last: int) -> int:
        """The highest live seq up to `last`; 0 if there is none."""
        for part in reversed(self.parts[: self.part_from(last) + 1]):
            if part.first <= last:
                runs = list(self.live_runs(part, 0, part.row_from(last + 1)))
                if runs:
                    return part.seq_at(runs[-1][1] - 1)
        return 0

    def bytes_through(self, last: int) -> int:
        """Sum of the sizes of the live records up to `last`."""
        size = 0
        for part in self.parts:
            if part.last <= last:
                size += part.live_bytes
            elif part.first <= last:
                runs = self.live_runs(part, 0, part.row_from(last + 1))
                size += sum(part.bytes_before(stop) - part.bytes_before(start) for start, stop in runs)
        return size

    def count_through(self, last: int) -> int:
        """How many records are live up to `last`."""
        count = 0
        for part in self.parts:
            if part.first > last:
                break
            if part.last <= last:
                count += part.live_count
            else:
                count += sum(stop - start for start, stop in self.live_runs(part, 0, part.row_from(last + 1)))
        return count

    def expired_through(self, before_ts: int) -> int:
        """The highest live seq whose ts is below `before_ts`; 0 if there is none."""
        if not self.count or self.earliest_ts >= before_ts:
            return 0
        index = 0
        while index < len(self.parts) and self.parts[index].row_after_ts(before_ts - 1) == self.parts[index].count:
            index += 1
        if index == len(self.parts):
            return self.highest_live(self.head)
        part = self.parts[index]
        return self.highest_live(part.seq_at(part.row_after_ts(before_ts - 1)) - 1)

    def cursor_before(self, ts: int) -> int:
        """The cursor behind which all records not older than `ts` lie; 0 if lost ones may be among them."""
        if ts <= (self.earliest_ts if self.count else self.last_ts):
            return 0
        index = bisect_left(self.parts, ts, key=lambda part: part.ts_at(part.count - 1))
        if index == len(self.parts):
            return self.head
        part = self.parts[index]
        return part.seq_at(part.row_after_ts(ts - 1)) - 1

    def overflow(self, cap_records: int, cap_bytes: int, incoming: "array[int] | None" = None) -> int:
        """The last seq that must go so that the rest, with `incoming` sizes added, fits the caps; 0 if all fits."""
        added = sum(incoming) if incoming is not None else 0
        records = self.count + len(incoming or ()) - cap_records if cap_records else 0
        size = self.bytes + added - cap_bytes if cap_bytes else 0
        if records <= 0 and size <= 0:
            return 0
        for part in self.parts:
            if part.live_count >= records and part.live_bytes >= size:
                return self._overflow_within(part, records, size)
            records, size = records - part.live_count, size - part.live_bytes
        return self.head + _taken(incoming or (), records, size)

    def _overflow_within(self, part: Part, records: int, size: int) -> int:
        """The seq of the live row of `part` with which `records` rows and `size` bytes are gone."""
        for start, stop in self.live_runs(part, part.row_from(self.earliest), part.count):
            base = part.bytes_before(start)
            taken = part.bytes_before(stop) - base
            if stop - start < records or taken < size:
                records, size = records - (stop - start), size - taken
                continue
            rows = bisect_left(range(stop - start), size, key=lambda n: part.bytes_before(start + n) - base)
            return part.seq_at(start + max(rows, records) - 1)
        raise AssertionError("live totals of a part do not agree with its rows")

    def measure(self, before: int, blocks: Iterable[tuple[int, int]]) -> int:
        """How many live records a delete of these seqs takes.

        All is looked at that the delete will look at: damage shows now, not when the delete is logged.
        """
        part = self.part_at(before - 1)
        if part is not None:
            part.bytes_before(part.row_from(before))
        count = self.count_through(before - 1)
        for number, mask in blocks:
            index = self.part_from(number * BLOCK)
            while index < len(self.parts) and self.parts[index].first < (number + 1) * BLOCK:
                count += self._measure(self.parts[index], number, mask)
                index += 1
        return count

    def _measure(self, part: Part, number: int, mask: int) -> int:
        mask = self._living(part, number, mask)
        if not mask:
            return 0
        measured = self._measured.get((part, number, mask))
        if measured is None:
            measured = self._measured[part, number, mask] = _measure(part, number, mask)
        return measured[0]

    def matching(self, match: TagMatch, before: int) -> Iterator[Blocks]:
        """The seqs below `before` whose tag matches, part by part, as blocks; dead ones may be among them.

        Each step also measures what it selects, so that the delete itself is quick however much it takes.
        """
        self._measured.clear()
        for part in list(self.parts):
            if part.first >= before:
                return
            if not part.has_tags:
                continue
            blocks = blocks_of(seq for seq in map(part.seq_at, part.matching(match)) if seq < before)
            for number, mask in blocks.items():
                self._measure(part, number, mask)
            if blocks:
                yield blocks

    def live_runs(self, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of live rows of `part` between rows start and stop."""
        if part.live_count == part.count:
            if start < stop:
                yield start, stop
            return
        start = max(start, part.row_from(self.earliest))
        if start >= stop:
            return
        for number in range(part.seq_at(start) // BLOCK, part.seq_at(stop - 1) // BLOCK + 1):
            first = max(start, part.row_from(number * BLOCK))
            end = min(stop, part.row_from((number + 1) * BLOCK))
            dead = self._dead.get(number, 0)
            if not dead:
                if first < end:
                    yield first, end
                continue
            live = ~dead & mask_of(number, part.first, part.last)
            for run_start, run_stop in runs_of(live):
                run = max(first, part.row_from(number * BLOCK + run_start))
                run_end = min(end, part.row_from(number * BLOCK + run_stop))
                if run < run_end:
                    yield run, run_end

    def part_from(self, seq: int) -> int:
        """Index of the first part that ends at `seq` or above."""
        parts = self.parts
        if parts and parts[-1].first <= seq:
            return len(parts) - 1 if parts[-1].last >= seq else len(parts)
        return bisect_left(parts, seq, key=_last)


def _last(part: Part) -> int:
    return part.last


def _measure(part: Part, number: int, mask: int) -> tuple[int, int]:
    """How many rows of `part` the mask of a block takes, and their bytes."""
    count = size = 0
    for start, stop in runs_of(mask):
        first_row = part.row_from(number * BLOCK + start)
        stop_row = part.row_from(number * BLOCK + stop)
        count += stop_row - first_row
        size += part.bytes_before(stop_row) - part.bytes_before(first_row)
    return count, size


def _taken(sizes: Iterable[int], records: int, size: int) -> int:
    """How many of `sizes` must go until `records` of them and `size` bytes are gone."""
    taken = 0
    for own in sizes:
        if records <= 0 and size <= 0:
            break
        records, size, taken = records - 1, size - own, taken + 1
    return taken
