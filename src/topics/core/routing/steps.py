"""One step of a router: what lies behind its cursor, and what of it goes into the dest.

A step is three plain calls: `walk` looks at the source only, so that the routers of one source share what it finds;
`fit` keeps what the dest takes now; `place` makes entries of it, which the caller logs and applies. Pure. Rows of
sealed parts come from the caller, who owns the files; rows that are not in memory raise Cold.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct, field

from topics.core.decide import Caps, admit, check_memory, check_total
from topics.core.entries import AnyEntry, Appended, Evicted, Forwarded, Forwarding, Stamp
from topics.core.routing.copies import Copier, HopRun, hops_between
from topics.core.routing.table import HOPS_MAX, Router, holes
from topics.core.state import State, Topic
from topics.core.topic.pages import Cold, page_around
from topics.core.topic.parts import Chunk, Part, fitting
from topics.core.topic.records import Batch
from topics.errors import Refusal
from topics.model import Columns

STEP_RECORDS: Final = 1024  # the most records that one step copies
STEP_BYTES: Final = 1024 * 1024  # the most bytes that one step copies, unless a single record is larger
STEP_ROWS: Final = 8192  # the most rows that one step looks at

GetRows = Callable[[Part, int, int], Columns]  # decoded rows of a part, all of one page


class Pick(NamedTuple):
    """Rows of a part with consecutive seqs, to be copied."""

    part: Part
    start: int
    stop: int
    hops: int  # routers that the copies have passed


class Found(Struct, frozen=True):
    """What lies behind a cursor: either what is lost, or what is copied."""

    reached: int  # the cursor behind all this
    lost: int = 0
    lost_hops: int = 0
    runs: list[HopRun] = []  # of the records to be copied
    batches: list[Batch] = []
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    skipped: list[int] = []  # seqs of records that have a live copy already

    def first(self, count: int) -> "Found":
        """What comes before the copy that follows the first `count` ones."""
        runs: list[HopRun] = []
        left, reached = count, self.reached
        for first, last, hops in self.runs:
            stop = min(last + 1, first + left)
            left -= stop - first
            if stop > first:
                runs.append((first, stop - 1, hops))
            if stop <= last:
                reached = stop - 1
                break
        copier, left = Copier(), count
        for batch in self.batches:
            stop = min(left, len(batch.sizes))
            left -= stop
            if stop:
                copier.take_body(batch.body, 0, stop, len(batch.sizes), batch.sizes[:stop], batch.has_tags, 0)
        skipped = [seq for seq in self.skipped if seq <= reached]
        return Found(reached, 0, 0, runs, copier.batches(), self.sizes[:count], skipped)


class Step(NamedTuple):
    """What a router does next."""

    router: Router
    entries: list[AnyEntry]
    source: Topic
    dest: Topic
    losers: list[Topic]  # dests of routers behind the dest that get a hole, because the dest evicts


# --- walking


def reach(source: Topic, router: Router, last: int) -> int:
    """How far a step may go that could go to `last`: copies are made by reference or with records, never both."""
    is_below = source.is_logged and router.cursor < source.referable_after
    return min(last, source.referable_after) if is_below else last


def stamp_of(state: State, router: Router) -> Stamp | None:
    if router.definition.guarantee == "at_least_once":
        return None
    source = state.by_id[router.source]
    return Stamp(router.name, source.name, source.epoch)


def walk(state: State, router: Router, last: int, rows: GetRows) -> Found:
    """What a router meets behind its cursor, up to seq `last` of the source, in one step."""
    source, stamp = state.by_id[router.source], stamp_of(state, router)
    log, after = source.log, router.cursor
    if after + 1 < log.floor:  # nobody knows how many of these were live
        return Found(log.floor - 1, log.floor - 1 - after, 1)
    while True:
        gap = next((gap for gap in log.gaps if gap.last > after), None)
        stop = last if gap is None else min(last, gap.first - 1)
        picker = Picker(source, router, None if stamp is None else state.by_id[router.dest], rows)
        picker.pick(after, stop)
        reached = picker.reached
        if picker.picks or picker.skipped or reached < stop or gap is None or gap.first > last:
            break
        _, after, hops = next(hops_between(source.hops, reached + 1, min(gap.last, last)))
        if hops < HOPS_MAX:
            return Found(after, after - reached, hops + 1)
    definition = router.definition
    copier = Copier(source.id, not definition.preserve_node, not definition.preserve_tag, stamp)
    for part, start, end, _ in picker.picks:
        copier.take_part(part, start, end, None if isinstance(part, Chunk) else rows(part, start, end))
    batches, sizes = copier.batches(), array("I")
    for batch in batches:
        sizes.extend(batch.sizes)
    runs = [(part.seq_at(start), part.seq_at(end - 1), hops) for part, start, end, hops in picker.picks]
    skipped = [seq for seq in picker.skipped if seq <= reached]
    return Found(reached, 0, 0, runs, batches, sizes, skipped)


class Picker:
    """Picks the rows of a source that one step copies."""

    def __init__(self, source: Topic, router: Router, stamped: Topic | None, rows: GetRows) -> None:
        self.picks: list[Pick] = []
        self.reached = 0
        self.skipped: list[int] = []  # seqs of records that have a live copy in the dest
        self._source = source
        self._router = router
        self._stamped = stamped  # the dest, if records that have a live copy there are skipped
        self._rows = rows
        self._records_left = STEP_RECORDS
        self._bytes_left = STEP_BYTES

    def pick(self, after: int, stop: int) -> None:
        """Pick from the live records above `after`, up to seq `stop`; `reached` says how far that came.

        A step needs one page of a sealed part in memory, and ends where it would need another.
        """
        self.reached, rows_left = after, STEP_ROWS
        for part, first, end in self._source.log.runs_between(after, stop):
            while first < end:
                try:
                    upto = min(end, page_around(part, first)[1])
                    if not all(self._take(*pick) for pick in self._wanted(part, first, upto)):
                        return
                except Cold:
                    if self.reached == after:
                        raise
                    return
                self.reached = part.seq_at(upto - 1)
                rows_left -= upto - first
                if rows_left <= 0 or (self.picks and not isinstance(part, Chunk)):
                    return
                first = upto
        self.reached = max(after, stop)

    def _take(self, part: Part, start: int, stop: int, hops: int) -> bool:
        """Take as much of a pick as a step may copy. False: that is the end of the step."""
        until = fitting(part, start, min(stop, start + self._records_left), self._bytes_left)
        if until == start and not self.picks:
            until = start + 1
        if until > start:
            self.picks.append(Pick(part, start, until, hops))
            self._records_left -= until - start
            self._bytes_left = max(0, self._bytes_left - part.bytes_before(until) + part.bytes_before(start))
        if until < stop:
            self.reached = part.seq_at(until) - 1
        return until == stop

    def _wanted(self, part: Part, start: int, stop: int) -> Iterator[Pick]:
        """What the router copies of the live rows between start and stop."""
        for first, last, hops in hops_between(self._source.hops, part.seq_at(start), part.seq_at(stop - 1)):
            if hops < HOPS_MAX:
                row, end = max(start, part.row_from(first)), min(stop, part.row_from(last + 1))
                for run_start, run_stop in self._chosen(part, row, end):
                    yield from _consecutive(part, run_start, run_stop, hops + 1)

    def _chosen(self, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of rows that match, and have no live copy if that is asked."""
        match = self._router.definition.match
        if start >= stop or (match is not None and not part.has_tags):
            return
        if match is None and self._stamped is None:
            yield start, stop
            return
        tags = None if match is None else self._rows(part, start, stop).tags
        if match is not None and tags is None:
            return
        run = start
        for row in range(start, stop):
            is_match = match is None or tags is None or match.matches(tags[row - start])
            if not is_match or self._is_copied(part.seq_at(row)):
                if run < row:
                    yield run, row
                run = row + 1
        if run < stop:
            yield run, stop

    def _is_copied(self, seq: int) -> bool:
        """Whether a record of the source has a live copy in the dest (RT14)."""
        dest, source = self._stamped, self._source
        copy = 0 if dest is None else dest.stamps.find(self._router.name, source.id, source.epoch, seq)
        if not copy or dest is None or not dest.log.is_live(copy):
            return False
        self.skipped.append(seq)
        return True


def _consecutive(part: Part, start: int, stop: int, hops: int) -> Iterator[Pick]:
    """A run of rows, cut where seqs are missing between them."""
    while start < stop:
        end = stop
        if part.seq_at(stop - 1) - part.seq_at(start) != stop - 1 - start:
            end = start + 1
            while part.seq_at(end) == part.seq_at(end - 1) + 1:
                end += 1
        yield Pick(part, start, end, hops)
        start = end


# --- placing


def fit(state: State, router: Router, found: Found, caps: Caps) -> Found:
    """What the dest takes now of what was found. A Refusal: none of it. A hole needs no room (RT12)."""
    dest = state.by_id[router.dest]
    config = dest.config
    if found.batches:
        check_memory(state, caps)
    is_bounded = config.cap_bytes or caps.max_total_bytes or (config.cap_records and config.discard != "old")
    refusal = _refusal(state, dest, found.sizes, caps) if is_bounded and found.batches else None
    if refusal is None:
        return found
    low, high = 0, len(found.sizes)  # the first `low` fit, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if _refusal(state, dest, found.sizes[:middle], caps) is None:
            low = middle
        else:
            high = middle
    fitting = found.first(low)
    if fitting.reached == router.cursor:
        raise _refusal(state, dest, found.sizes[:high], caps) or refusal
    return fitting


def _refusal(state: State, dest: Topic, sizes: "array[int]", caps: Caps) -> Refusal | None:
    """Why the dest does not take records of these sizes."""
    batch = Batch(b"", sizes, False)
    try:
        evicted = admit(dest.name, dest.config, dest, batch)
        if caps.max_total_bytes:
            check_total(state, dest, batch, evicted, caps)
    except Refusal as refusal:
        return refusal
    return None


def place(state: State, router: Router, found: Found, now: int) -> Step:
    """The step that puts what was found into the dest, which takes all of it. Losses have the time of now (LS1)."""
    source, dest = state.by_id[router.source], state.by_id[router.dest]
    definition, first = router.definition, dest.log.head + 1
    ts = max(now, dest.log.last_ts) if found.batches else now
    is_referable = source.is_logged and router.cursor >= source.referable_after
    carries_records = dest.is_logged and not is_referable and bool(found.batches)
    own = Forwarded(
        router.id,
        router.source,
        router.dest,
        first,
        ts,
        found.lost,
        found.lost_hops,
        found.runs,
        found.reached,
        router.total + found.lost + len(found.sizes) + len(found.skipped),
        carries_records,
        not definition.preserve_node,
        not definition.preserve_tag,
        stamp_of(state, router),
    )
    entries: list[AnyEntry] = [Forwarding(own, () if carries_records else found.batches)]
    at = first
    for batch in found.batches if carries_records else ():
        entries.append(Appended(dest.id, at, ts, batch))
        at += len(batch.sizes)
    losers: list[Topic] = []
    config = dest.config
    is_capped = config.discard == "old" and (config.cap_records or config.cap_bytes)
    evicted = dest.log.overflow(config.cap_records, config.cap_bytes, found.sizes) if is_capped and found.sizes else 0
    if evicted:
        lost = holes(state, dest, evicted, first, now)
        losers = [state.by_id[entry.topic] for entry in lost if isinstance(entry, Forwarding)]
        entries = [*lost, *entries, Evicted(dest.id, evicted, now)]
    return Step(router, entries + dest.reservation.renewal(dest.id, dest.config, own.last), source, dest, losers)
