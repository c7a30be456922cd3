"""The live records of one topic: its parts, the marks of dead rows, and all that can be asked of them.

Pure, and nothing here changes what is live: the log that has these records does (see log.py), and knows what became of
those that are not live. Which rows are live is told by the marks; the totals of each part only make that quick.

Invariants
- `parts` are sorted by seq, do not overlap, and each holds a live record.
- A row is live unless its bit in `_dead` is set. Seqs in no part are not live.
- `count`, `bytes` and the live totals of each part are exact at all times.
- `earliest` is the lowest live seq, in row `_earliest_row` of the first part; head + 1 if nothing is live.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from topics.core.topic.blocks import BLOCK, Blocks, blocks_of, lowest, mask_of, run_of, runs_of
from topics.core.topic.parts import Chunk, Part
from topics.model import TagMatch
from topics.ranges import Range

MATCHED_ROWS = 2048  # that are selected in one step, and the rest of their last block


class LiveRecords:
    """The records of one topic instance that are live."""

    __slots__ = ("_dead", "_earliest_row", "_measured", "bytes", "count", "earliest", "head", "last_ts", "parts")

    def __init__(self) -> None:
        self.head = 0
        self.count = 0  # live records
        self.bytes = 0  # sum of their sizes
        self.earliest = 1
        self.last_ts = 0  # ts of the newest record ever
        self.parts: list[Part] = []
        self._dead: Blocks = {}
        self._earliest_row = 0  # of the first part
        self._measured: dict[tuple[Part, int, int], tuple[int, int]] = {}  # count and bytes of rows about to go

    @property
    def earliest_ts(self) -> int:
        """The ts of the earliest live record; there must be one."""
        return self.parts[0].ts_at(self._earliest_row)

    @property
    def has_sealed(self) -> bool:
        """Whether some records lie in segments; those come before all others."""
        return bool(self.parts) and type(self.parts[0]) is not Chunk

    def part_at(self, seq: int) -> Part | None:
        """The part that holds `seq`, if any."""
        index = self.part_from(seq)
        part = self.parts[index] if index < len(self.parts) else None
        return part if part is not None and part.first <= seq else None

    def part_from(self, seq: int) -> int:
        """Index of the first part that ends at `seq` or above."""
        parts = self.parts
        if parts and parts[-1].first <= seq:
            return len(parts) - 1 if parts[-1].last >= seq else len(parts)
        return bisect_left(parts, seq, key=_last)

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
                yield from _live_seqs(self._dead, max(first, part.first), part.last)
            else:
                for start, stop in self.live_runs(part, part.row_from(first), part.count):
                    yield from map(part.seq_at, range(start, stop))

    def run_after(self, seq: int, count_max: int) -> range:
        """The first live seqs above `seq`, if they lie in a row and in memory: at most `count_max`, perhaps fewer."""
        first = max(seq + 1, self.earliest)
        part = self.part_at(first)
        if type(part) is not Chunk:
            return range(0)
        number, offset = divmod(first, BLOCK)
        stop = min(part.last + 1, (number + 1) * BLOCK)
        dead = self._dead.get(number, 0) >> offset
        if dead:
            skip = lowest(~dead)
            first, dead = first + skip, dead >> skip
            stop = min(stop, first + lowest(dead)) if dead else stop
        return range(first, min(stop, first + count_max))

    def live_runs(self, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of live rows of `part` between rows start and stop."""
        if part.live_count == part.count:
            return iter([(start, stop)] if start < stop else ())
        return _runs_without(self._dead, self.earliest, part, start, stop)

    def live_rows(self) -> "LiveRows":
        """Which rows are live now. Costs a copy of the marks, not a look at rows."""
        return LiveRows(self._dead.copy(), self.earliest)

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

    def living_ranges(self, last: int, count_max: int) -> list[Range]:
        """The stretches that the live records up to `last` lie in, by marks alone: no row of a segment is looked at.

        A row that its segment never had is not marked, so it may lie in a stretch. Ends early if these are too many.
        """
        found: list[Range] = []
        for part in self.parts:
            first, end = max(part.first, self.earliest), min(part.last, last)
            if first > end or len(found) > count_max:
                break
            if part.live_count == part.last - part.first + 1:
                _extend(found, first, end)
                continue
            for number in range(first // BLOCK, end // BLOCK + 1):
                for start, stop in runs_of(mask_of(number, first, end) & ~self._dead.get(number, 0)):
                    _extend(found, number * BLOCK + start, number * BLOCK + stop - 1)
                if len(found) > count_max:
                    break
        return found

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

        Touches everything that the delete will touch, so that damage shows now, not when the delete is logged.
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

    def after_delete(self, before: int, blocks: Blocks) -> tuple[int, int]:
        """What a delete of these seqs, below `before` or in the blocks, does: the bytes that go, and `earliest`."""
        if before:
            return self.bytes_through(before - 1), next(self.live_after(before - 1), self.head + 1)
        size = 0
        for number, mask in blocks.items():
            index = self.part_from(number * BLOCK)
            while index < len(self.parts) and self.parts[index].first < (number + 1) * BLOCK:
                part = self.parts[index]
                living = self._living(part, number, mask)
                size += (self._measured.get((part, number, living)) or measured(part, number, living))[1]
                index += 1
        self._measured.clear()
        lefts = (
            (part, number, self._living(part, number, ~blocks.get(number, 0) & (1 << BLOCK) - 1))
            for part in self.parts
            for number in range(max(part.first, self.earliest) // BLOCK, part.last // BLOCK + 1)
        )
        return size, next((seq for left in lefts for seq in _first_of(*left)), self.head + 1)

    def _measure(self, part: Part, number: int, mask: int) -> int:
        mask = self._living(part, number, mask)
        if not mask:
            return 0
        known = self._measured.get((part, number, mask))
        if known is None:
            known = self._measured[part, number, mask] = measured(part, number, mask)
        return known[0]

    def matching(self, match: TagMatch, before: int) -> Iterator[Blocks]:
        """The seqs below `before` whose tag matches, in steps, as whole blocks of a part; dead ones may be among them.

        Each step also measures what it selects, so the delete itself is quick, however much it takes.
        """
        self._measured.clear()
        for part in list(self.parts):
            if part.first >= before:
                return
            if not part.has_tags:
                continue
            rows, start = sorted(part.matching(match)), 0
            yield {}  # also if nothing matches: the caller pauses here
            while start < len(rows) and part.seq_at(rows[start]) < before:
                end = (part.seq_at(rows[min(start + MATCHED_ROWS, len(rows)) - 1]) // BLOCK + 1) * BLOCK
                stop = bisect_left(rows, min(end, before), start, key=part.seq_at)
                blocks = blocks_of(map(part.seq_at, rows[start:stop]))
                for number, mask in blocks.items():
                    self._measure(part, number, mask)
                yield blocks
                start = stop

    def _living(self, part: Part, number: int, mask: int) -> int:
        """Those bits of `mask` that are in the range of `part` and not marked dead."""
        return mask & ~self._dead.get(number, 0) & mask_of(number, max(part.first, self.earliest), part.last)


def _live_seqs(dead: Blocks, first: int, last: int) -> Iterator[int]:
    """Those of first..last, all of them in one chunk, that are not marked dead."""
    while first <= last:
        number, offset = divmod(first, BLOCK)
        stop = min(last + 1, (number + 1) * BLOCK)
        marks = dead.get(number, 0) >> offset
        if not marks:
            yield from range(first, stop)
        else:
            for start, end in runs_of(~marks & ((1 << (stop - first)) - 1)):
                yield from range(first + start, first + end)
        first = stop


def _extend(ranges: list[Range], first: int, last: int) -> None:
    """Add a range above all others."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))


class LiveRows(NamedTuple):
    """Which rows of a log were live at one moment, whatever becomes of the log.

    Rows that were appended since do not count. It never changes, so any thread may look.
    """

    dead: Blocks
    earliest: int

    def runs(self, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of live rows of `part` between rows start and stop."""
        return _runs_without(self.dead, self.earliest, part, start, stop)

    def totals(self, part: Part) -> tuple[int, int]:
        """How many rows of `part` are live, and the sum of their sizes."""
        count = size = 0
        for start, stop in self.runs(part, 0, part.count):
            count += stop - start
            size += part.bytes_before(stop) - part.bytes_before(start)
        return count, size


def _runs_without(dead: Blocks, earliest: int, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Runs of rows of `part`, of seqs from `earliest` on, that are not marked dead."""
    start = max(start, part.row_from(earliest))
    if start >= stop:
        return
    for number in range(part.seq_at(start) // BLOCK, part.seq_at(stop - 1) // BLOCK + 1):
        first = max(start, part.row_from(number * BLOCK))
        end = min(stop, part.row_from((number + 1) * BLOCK))
        marked = dead.get(number, 0)
        if not marked:
            if first < end:
                yield first, end
            continue
        live = ~marked & mask_of(number, part.first, part.last)
        for run_start, run_stop in runs_of(live):
            run = max(first, part.row_from(number * BLOCK + run_start))
            run_end = min(end, part.row_from(number * BLOCK + run_stop))
            if run < run_end:
                yield run, run_end


def _last(part: Part) -> int:
    return part.last


def _first_of(part: Part, number: int, mask: int) -> Iterator[int]:
    """The seq of the first row of `part` among the mask of a block; none if it has none of them."""
    for start, stop in runs_of(mask):
        row = part.row_from(number * BLOCK + start)
        if row < part.count and part.seq_at(row) < number * BLOCK + stop:
            yield part.seq_at(row)
            return


def measured(part: Part, number: int, mask: int) -> tuple[int, int]:
    """How many rows of `part` the mask of a block takes, and their bytes."""
    count = size = 0
    if type(part) is Chunk and (run := run_of(mask)):
        row = part.row_from(number * BLOCK + run.start)
        stop_row = part.row_from(number * BLOCK + run.stop)
        return stop_row - row, part.bytes_before(stop_row) - part.bytes_before(row)
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
