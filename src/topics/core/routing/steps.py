"""One step of a router: what lies behind its cursor, and what of it goes into the dest.

`walk` looks at the source only, so that the routers of one source share what it finds; `place` holds it against the
dest. Pure: the entries that a step gives are logged and then applied. Rows of sealed parts come from the caller, who
owns the files; ones that are not at hand raise Cold.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from topics.core.decide import Caps, admit, check_total
from topics.core.entries import AnyEntry, Appended, Evicted, Forwarded, Forwarding, Stamp
from topics.core.routing.copies import Copier, HopRun, hops_between
from topics.core.routing.table import HOPS_MAX, Router, holes
from topics.core.state import State, Topic
from topics.core.topic.pages import Cold
from topics.core.topic.parts import PAGE_ROWS, Chunk, Part
from topics.core.topic.records import Batch
from topics.errors import Refusal
from topics.model import Columns, TagMatch

STEP_RECORDS: Final = 1024  # copied in one step
STEP_BYTES: Final = 1024 * 1024  # the same; a single record may be larger
STEP_ROWS: Final = 8192  # looked at in one step

NONE: Final = array("I")

Rows = Callable[[Part, int, int], Columns]  # some rows of a part, decoded
IsKnown = Callable[[int], bool]  # whether a seq of the source has a live copy in the dest


class Run(NamedTuple):
    """Rows of a part with consecutive seqs, to be copied."""

    part: Part
    start: int
    stop: int
    hops: int  # routers that the copies have passed

    @property
    def seqs(self) -> HopRun:
        return self.part.seq_at(self.start), self.part.seq_at(self.stop - 1), self.hops


class Walked(NamedTuple):
    """What lies behind a cursor: first what is lost, then what is copied."""

    lost: int
    lost_hops: int
    runs: list[HopRun]
    batches: list[Batch]
    sizes: "array[int]"  # of the records to be copied
    reached: int  # the cursor behind all this
    skipped: int  # records that have a live copy already

    @property
    def copied(self) -> int:
        return len(self.sizes)


class Step(NamedTuple):
    """What a router does next."""

    router: Router
    entries: list[AnyEntry]
    source: Topic
    dest: Topic
    losers: list[Topic]  # dests of routers behind the dest that get a hole, because the dest evicts


def stamp_of(state: State, router: Router) -> Stamp | None:
    if router.definition.guarantee == "at_least_once":
        return None
    source = state.by_id[router.source]
    return Stamp(router.name, source.name, source.epoch)


def walk(
    source: Topic, router: Router, last: int, stamp: Stamp | None, is_known: IsKnown, rows: Rows, records_max: int
) -> Walked:
    """What a router meets behind its cursor, up to seq `last` of the source, in one step."""
    log, after, lost, lost_hops = source.log, router.cursor, 0, 0
    if after + 1 < log.floor:  # nobody knows how many of these were live
        lost, lost_hops, after = log.floor - 1 - after, 1, log.floor - 1
    definition = router.definition
    while True:
        gap = next((gap for gap in log.gaps if gap.last > after), None)
        stop = last if gap is None else min(last, gap.first - 1)
        picker = Picker(source, definition.match, is_known if stamp is not None else None, rows, records_max)
        picker.pick(after, stop)
        if picker.runs or picker.skipped or picker.reached < stop or gap is None or gap.first > last:
            batches = copies_of(picker.runs, source.id, router, stamp, rows)
            runs = [run.seqs for run in picker.runs]
            return Walked(lost, lost_hops, runs, batches, _sizes(batches), picker.reached, picker.skipped)
        _, gap_last, hops = next(hops_between(source.hops, picker.reached + 1, gap.last))
        if hops < HOPS_MAX:
            if lost and lost_hops != hops + 1:
                return Walked(lost, lost_hops, [], [], NONE, picker.reached, 0)
            lost, lost_hops = lost + gap_last - picker.reached, hops + 1
        after = gap_last


def _sizes(batches: Sequence[Batch]) -> "array[int]":
    sizes = array("I")
    for batch in batches:
        sizes.extend(batch.sizes)
    return sizes


def copies_of(runs: Sequence[Run], source: int, router: Router, stamp: Stamp | None, rows: Rows) -> list[Batch]:
    definition = router.definition
    copier = Copier(source, not definition.preserve_node, not definition.preserve_tag, stamp)
    for part, start, stop, _ in runs:
        copier.take_part(part, start, stop, None if isinstance(part, Chunk) else rows(part, start, stop))
    return copier.batches()


class Picker:
    """Picks the rows of a source that one step copies."""

    def __init__(
        self, source: Topic, match: TagMatch | None, is_known: IsKnown | None, rows: Rows, records_max: int
    ) -> None:
        self.runs: list[Run] = []
        self.reached = 0
        self.skipped = 0
        self._source = source
        self._match = match
        self._is_known = is_known
        self._rows = rows
        self._records_left = records_max
        self._bytes_left = STEP_BYTES
        self._rows_left = STEP_ROWS

    def pick(self, after: int, stop: int) -> None:
        """Pick from the live records above `after`, up to seq `stop`; `reached` says how far that came.

        One step needs one page of a sealed part at hand, not more: it ends where it would need another.
        """
        self.reached = after
        for part, first, end in self._source.log.runs_between(after, stop):
            while first < end:
                upto = min(end, (first // PAGE_ROWS + 1) * PAGE_ROWS)
                try:
                    for run in self._wanted(part, first, upto):
                        if not self._take(run):
                            return
                except Cold:
                    if self.reached == after:
                        raise
                    return
                self.reached = part.seq_at(upto - 1)
                self._rows_left -= upto - first
                if self._rows_left <= 0 or (self.runs and not isinstance(part, Chunk)):
                    return
                first = upto
        self.reached = max(after, stop)

    def _take(self, run: Run) -> bool:
        """Take as much of a run as fits. False: that is the end of the step."""
        part, start, stop, hops = run
        until = min(stop, start + self._records_left)
        while until > start and part.bytes_before(until) - part.bytes_before(start) > self._bytes_left:
            until = start + (until - start) // 2
        if until == start and not self.runs and self._records_left:
            until = start + 1
        if until > start:
            self.runs.append(Run(part, start, until, hops))
            self._records_left -= until - start
            self._bytes_left = max(0, self._bytes_left - part.bytes_before(until) + part.bytes_before(start))
        if until < stop:
            self.reached = part.seq_at(until) - 1
        return until == stop

    def _wanted(self, part: Part, start: int, stop: int) -> Iterator[Run]:
        """Runs of live rows between start and stop that the router copies, consecutive in their seqs."""
        for first, last, hops in hops_between(self._source.hops, part.seq_at(start), part.seq_at(stop - 1)):
            if hops < HOPS_MAX:
                row, end = max(start, part.row_from(first)), min(stop, part.row_from(last + 1))
                for run_start, run_stop in self._chosen(part, row, end):
                    yield from _consecutive(Run(part, run_start, run_stop, hops + 1))

    def _chosen(self, part: Part, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if self._match is None and self._is_known is None:
            if start < stop:
                yield start, stop
            return
        tags: Sequence[str | None] | None = None
        if self._match is not None:
            tags = self._rows(part, start, stop).tags if start < stop and part.has_tags else None
            if tags is None:
                return
        run = start
        for row in range(start, stop):
            is_chosen = tags is None or (self._match is not None and self._match.matches(tags[row - start]))
            if is_chosen and self._is_known is not None and self._is_known(part.seq_at(row)):
                is_chosen = False
                self.skipped += 1
            if not is_chosen:
                if run < row:
                    yield run, row
                run = row + 1
        if run < stop:
            yield run, stop


def _consecutive(run: Run) -> Iterator[Run]:
    """A run of rows, cut where seqs are missing between them."""
    part, start, stop, hops = run
    while start < stop:
        end = stop
        if part.seq_at(stop - 1) - part.seq_at(start) != stop - 1 - start:
            end = start + 1
            while part.seq_at(end) == part.seq_at(end - 1) + 1:
                end += 1
        yield Run(part, start, end, hops)
        start = end


def place(
    state: State, router: Router, found: Callable[[int], Walked], now: int, caps: Caps, is_referable: bool
) -> Step | None:
    """The step that puts what a walk has `found`, with at most so many records, into the dest.

    None: there is nothing to do. A Refusal: the dest takes none of it now.
    """
    source, dest = state.by_id[router.source], state.by_id[router.dest]
    walked = found(STEP_RECORDS)
    refusal: Refusal | None = None
    evicted, config = 0, dest.config
    if walked.batches and (config.cap_records or config.cap_bytes or caps.max_total_bytes):
        room, refusal = _room(state, dest, walked.sizes, caps)
        if room < walked.copied:
            walked = found(room) if room else _before_copies(walked)
        if walked.batches:
            evicted = _evicted(dest, walked)
    if walked.reached == router.cursor and not walked.lost:
        if refusal is not None:
            raise refusal
        return None
    ts = max(now, dest.log.last_ts)
    entries = _entries(router, stamp_of(state, router), dest, walked, ts, is_referable)
    own = entries[0].entry  # type: ignore[union-attr]
    losers: list[Topic] = []
    if evicted:
        lost = holes(state, dest, evicted, own.first + own.lost, ts)
        losers = [state.by_id[entry.topic] for entry in lost if isinstance(entry, Forwarding)]
        entries = [*lost, *entries, Evicted(dest.id, evicted)]
    return Step(router, entries + dest.reservation.renewal(dest.id, config, own.last), source, dest, losers)


def _entries(
    router: Router, stamp: Stamp | None, dest: Topic, walked: Walked, ts: int, is_referable: bool
) -> list[AnyEntry]:
    definition, first = router.definition, dest.log.head + 1
    is_beside = dest.is_logged and not is_referable and bool(walked.batches)
    entry = Forwarded(
        router.id,
        router.source,
        router.dest,
        first,
        ts,
        walked.lost,
        walked.lost_hops,
        walked.runs,
        walked.reached,
        router.total + walked.lost + walked.copied + walked.skipped,
        is_beside,
        not definition.preserve_node,
        not definition.preserve_tag,
        stamp,
    )
    if not is_beside:
        return [Forwarding(entry, walked.batches)]
    entries: list[AnyEntry] = [Forwarding(entry, ())]
    at = first + walked.lost
    for batch in walked.batches:
        entries.append(Appended(dest.id, at, ts, batch))
        at += len(batch.sizes)
    return entries


def _before_copies(walked: Walked) -> Walked:
    """Only what comes before the first copy: a hole needs no room (RT12)."""
    return Walked(walked.lost, walked.lost_hops, [], [], NONE, walked.runs[0][0] - 1, 0)


def _room(state: State, dest: Topic, sizes: "array[int]", caps: Caps) -> tuple[int, Refusal | None]:
    """How many of the copies the dest takes now; and if not all, why."""
    config = dest.config
    if config.discard == "old" and not config.cap_bytes and not caps.max_total_bytes:
        return len(sizes), None
    if _refusal(state, dest, sizes, caps) is None:
        return len(sizes), None
    low, high = 0, len(sizes)  # the first `low` fit, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if _refusal(state, dest, sizes[:middle], caps) is None:
            low = middle
        else:
            high = middle
    return low, _refusal(state, dest, sizes[: low + 1], caps)


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


def _evicted(dest: Topic, walked: Walked) -> int:
    """The last seq that the dest's caps take for the copies; 0 if none."""
    config = dest.config
    if config.discard != "old" or not (config.cap_records or config.cap_bytes):
        return 0
    last = dest.log.overflow(config.cap_records, config.cap_bytes, walked.sizes)
    return last + walked.lost if last > dest.log.head else last
