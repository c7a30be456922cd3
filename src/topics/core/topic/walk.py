"""How a reader walks a log: what it is told first, which records it gets, and where it then stands.

A walk does a bounded amount of work. One with a filter ends with what it has, be it nothing but a cursor that moved,
when it has examined EXAMINED_MIN seqs or had its share of a turn (LM13); any other that has had its share pauses
(`Cold`), and is walked again over the pages that it has made. Filters look at tags and nodes before anything is
rendered.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from topics.core.topic.log import Log
from topics.core.topic.pages import PAUSE, Cache, Cold, Labels, Page, Projection
from topics.core.topic.parts import PAGE_ROWS, Chunk, Part, fitting
from topics.model import EXAMINED_MIN, Reason, TagMatch, Tombstone

NO_NODES: frozenset[str] = frozenset()
SHARE_US: Final = 10_000  # of a turn: what one walk may cost, in the microseconds of pages.py
FILTERED_SHARE_US: Final = 5_000  # the same with a filter: it ends there, and is asked again and again
RUN_US: Final = 6  # to look at a run of live rows,
ROWS_PER_US: Final = 4  # and at so many of its labels


class Query(Struct, frozen=True, gc=False):
    """What a reader asks of a log."""

    after: int
    limit: int
    bytes_max: int
    nodes: frozenset[str] = frozenset()  # records of these nodes are left out
    match: TagMatch | None = None  # records whose tag does not match are left out
    epoch: int | None = None  # the instance the cursor belongs to; None = not known
    projection: Projection = Projection()
    stops_at_cold: bool = False  # end at a page that must be loaded, if anything was examined before it

    @property
    def is_filtered(self) -> bool:
        return self.match is not None or bool(self.nodes)


class Plan(Struct, gc=False):
    """The answer to a Query: which rows of which pages, and where the reader then stands."""

    pieces: list[tuple[Page, int, int]]  # page, start row, stop row
    count: int  # records delivered
    next: int
    scanned: int  # seqs examined, skipped ones included
    head: int
    earliest: int
    tombstone: Tombstone | None

    def texts(self) -> list[bytes]:
        """The records' JSON, joined by commas within each text."""
        return [page.slice(start, stop) for page, start, stop in self.pieces]

    def nodes(self) -> frozenset[str]:
        """The nodes of the records."""
        found: set[str | None] = set()
        for page, start, stop in self.pieces:
            if page.nodes is not None:
                found.update(page.nodes[start - page.start : stop - page.start])
        return frozenset(node for node in found if node is not None) if found else NO_NODES


def read(log: Log, query: Query, epoch: int, cache: Cache) -> Plan:
    """Walk from the query's cursor. Raises Cold if a page must be loaded first."""
    tombstone, cursor = _opening(log, query, epoch)
    plan = Plan([], 0, cursor, 0, log.head, log.earliest, tombstone)
    gap = next((gap for gap in log.gaps if gap.last > cursor), None)
    stop = log.head if gap is None else gap.first - 1
    _walk(log, query, plan, stop, cache)
    plan.scanned = plan.next - cursor
    return plan


def losses(log: Log, query: Query, epoch: int, last: int) -> tuple[list[Tombstone], int]:
    """Everything that a reader of all records up to `last` has missed, and the cursor behind the first of it."""
    opening, cursor = _opening(log, query, epoch)
    gaps = [gap for gap in log.gaps if gap.first > cursor and gap.first <= last]
    lost = [Tombstone(g.first, g.last, g.reason, g.last - g.first + 1, g.last + 1, log.head) for g in gaps]
    return ([] if opening is None else [opening]) + lost, cursor


def _opening(log: Log, query: Query, epoch: int) -> tuple[Tombstone | None, int]:
    """The tombstone that a read opens with, if any, and the cursor behind it (TM3-TM6, TM11, TM16)."""
    after, earliest, head = query.after, log.earliest, log.head
    if after > head or (query.epoch is not None and query.epoch != epoch):
        return Tombstone(1, head, "recreated", head, earliest, head), earliest - 1
    first = after + 1
    if first < log.floor:
        reason: Reason = "mixed"
        if log.expired_last < first:
            reason = "cap"
        elif log.evicted_last < first:
            reason = "ttl"
        return Tombstone(first, earliest - 1, reason, earliest - first, earliest, head), earliest - 1
    for gap in log.gaps:
        if gap.first <= first <= gap.last:
            return Tombstone(first, gap.last, gap.reason, gap.last - after, gap.last + 1, head), gap.last
    return None, after


def _walk(log: Log, query: Query, plan: Plan, last: int, cache: Cache) -> None:
    """Collect live rows above plan.next and up to `last`, within the query's bounds."""
    cursor, room, is_filtered = plan.next, query.bytes_max, query.match is not None or bool(query.nodes)
    examined_left = EXAMINED_MIN if is_filtered else max(EXAMINED_MIN, 10 * query.limit)
    spent_us, made_before, share_us = 0, cache.made_us, FILTERED_SHARE_US if is_filtered else SHARE_US
    index = log.part_from(cursor + 1)
    while index < len(log.parts) and log.parts[index].first <= last:
        part = log.parts[index]
        row, stop = part.row_from(plan.next + 1), part.row_from(last + 1)
        while row < stop:
            step_stop = min(stop, (row // PAGE_ROWS + 1) * PAGE_ROWS)
            if spent_us + cache.made_us - made_before > share_us:
                if is_filtered or query.stops_at_cold:
                    return
                raise Cold(PAUSE)
            try:
                room, work_us = _collect(log, query, plan, part, row, step_stop, room, cache)
            except Cold:
                if query.stops_at_cold and plan.next > cursor:
                    return
                raise
            examined_left -= step_stop - row
            if room < 0 or examined_left <= 0:
                return
            spent_us += work_us
            row = step_stop
        index += 1
    plan.next = max(plan.next, last)


def _collect(
    log: Log, query: Query, plan: Plan, part: Part, start: int, stop: int, room: int, cache: Cache
) -> tuple[int, int]:
    """Deliver from rows start..stop of a part and move plan.next.

    Gives the room left, -1 if the walk ends; and what its filter has cost, beside what the cache made.
    """
    work_us, match = 0, query.match
    is_filtered = match is not None or query.nodes
    if match is not None and not part.has_tags:
        plan.next = part.seq_at(stop - 1)
        return room, RUN_US
    for run_start, run_stop in log.live_runs(part, start, stop):
        if is_filtered:
            work_us += RUN_US + (run_stop - run_start) // ROWS_PER_US
        for first, end in _wanted(part, query, run_start, run_stop, cache) if is_filtered else ((run_start, run_stop),):
            while first < end:
                page = cache.page(part, first, query.projection)
                page_stop = min(end, page.start + page.count)
                until = fitting(part, first, min(page_stop, first + query.limit - plan.count), room)
                if until == first and not plan.count:
                    until = first + 1
                if until > first:
                    plan.pieces.append((page, first, until))
                    plan.count += until - first
                    room = max(0, room - part.bytes_before(until) + part.bytes_before(first))
                    plan.next = part.seq_at(until - 1)  # now: the next page may be cold
                if plan.count == query.limit:
                    return -1, work_us
                if until < page_stop:
                    plan.next = part.seq_at(until) - 1
                    return -1, work_us
                first = until
    plan.next = part.seq_at(stop - 1)
    return room, work_us


def _wanted(part: Part, query: Query, start: int, stop: int, cache: Cache) -> Iterator[tuple[int, int]]:
    """Runs of the rows start..stop that pass the query's filters. Renders nothing."""
    match = query.match
    if match is not None and not isinstance(part, Chunk):
        runs = _runs_in(cache.matching(part, match, start, stop))
        if not query.nodes:
            yield from runs
            return
        match = None
    else:
        runs = iter(((start, stop),))
    for first, end in runs:
        while first < end:
            labels = cache.labels(part, first, query.projection)
            labels_stop = min(end, labels.start + labels.count)
            yield from _passing(labels, first, labels_stop, query.nodes, match)
            first = labels_stop


def _passing(
    labels: Page | Labels, start: int, stop: int, without: frozenset[str], match: TagMatch | None
) -> Iterator[tuple[int, int]]:
    """Runs of the rows start..stop whose labels pass the filters."""
    nodes, run = labels.nodes if without else None, start
    if nodes is not None or match is not None:
        for row in range(start, stop):
            at = row - labels.start
            is_wanted = nodes is None or nodes[at] is None or nodes[at] not in without
            if is_wanted and match is not None:
                is_wanted = labels.tags is not None and match.matches(labels.tags[at])
            if not is_wanted:
                if run < row:
                    yield run, row
                run = row + 1
    if run < stop:
        yield run, stop


def _runs_in(rows: "array[int]") -> Iterator[tuple[int, int]]:
    """Ascending numbers as runs of consecutive ones."""
    at = 0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1:
            end += 1
        yield rows[at], rows[end - 1] + 1
        at = end
