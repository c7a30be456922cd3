"""Pages: records of a part as the JSON text that readers get, and the cache that keeps them.

A `Page` holds up to PAGE_ROWS records of a part, and of a sealed one about PAGE_BYTES, rendered for one projection. It
is made on first use and kept in the `Cache`; reading is slicing pages. `page_around` alone says where one begins and
ends. What a filter looks at comes without rendering: of records in memory their `Labels`, of sealed ones the rows that
match a tag. Nothing here does I/O: what is needed of a sealed part and not known raises `Cold`, and whoever owns the
files loads it.

The cache counts what it makes (`made_us`), in microseconds as they are on a slow machine: so a walk knows when it has
had its share of a turn without a clock.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, product, repeat, takewhile
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from topics.core.topic.parts import PAGE_ROWS, Chunk, Part, Sealed, fitting
from topics.model import Columns, TagMatch, Texts

T = TypeVar("T")

PAGE_OVERHEAD_BYTES = 400
LABEL_BYTES: Final = 80  # of a row's tag and node, about
ROW_US: Final = 2  # to decode and render a row,
BYTES_PER_US: Final = 200  # and so many bytes of it
PAGE_BYTES: Final = 4 * 1024 * 1024  # of sealed records on one page, if these are two or more; a chunk has no more
RENDERED_BYTES: Final = 256 * 1024  # of sealed records, about, that are rendered in one step
MATCHES_MAX: Final = 256  # answers about which rows of a sealed part match that are kept


class Projection(NamedTuple):
    """Which optional fields a reader wants."""

    tags: bool = False
    meta: bool = True
    data: bool = True
    node: bool = True


class _Out(Struct, gc=False):
    """A record as readers get it, in the order of its fields."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    node: str | UnsetType = field(name="$node", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    data: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET


_encode_lines = msgspec.json.Encoder().encode_lines


class Page:
    """Rendered records of rows `start` .. of a part: their texts joined by commas, and where each ends."""

    __slots__ = ("ends", "nodes", "start", "tags", "text")

    def __init__(self, start: int) -> None:
        self.start = start
        self.text = bytearray()  # "{…},{…}," : every record with its comma
        self.ends = array("I")  # end of each record's text, its comma included
        self.nodes: Texts = None
        self.tags: Texts = None

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def size_bytes(self) -> int:
        labels = LABEL_BYTES * len(self.ends) if self.nodes or self.tags else 0
        return len(self.text) + 4 * len(self.ends) + labels + PAGE_OVERHEAD_BYTES

    def extend(self, columns: Columns, projection: Projection) -> None:
        """Render further rows at the end."""
        lines = _encode_lines(_rendered(columns, projection))
        base, count = len(self.text), len(self.ends)
        lengths = [len(line) + 1 for line in lines.split(b"\n")]
        lengths.pop()
        self.text += lines.replace(b"\n", b",")
        self.ends.extend(accumulate(lengths[1:], initial=base + lengths[0]))
        self.nodes = _extended(self.nodes, count, columns.nodes, len(columns.datas))
        self.tags = _extended(self.tags, count, columns.tags, len(columns.datas))

    def slice(self, start: int, stop: int) -> bytes:
        """Rows start..stop of the part, joined by commas, without a last one."""
        first, last = start - self.start, stop - self.start - 1
        begin = self.ends[first - 1] if first else 0
        with memoryview(self.text) as text:
            return bytes(text[begin : self.ends[last] - 1])


def render(address: "PageAddress") -> Page:
    """The page of a sealed part, some of its rows at a time. For any thread."""
    part, _, projection = address
    assert isinstance(projection, Projection), "rows that are not rendered are kept elsewhere"
    start, end = page_around(part, address.start)
    page = Page(start)
    while start < end:
        stop = max(start + 1, fitting(part, start, end, RENDERED_BYTES))
        page.extend(part.columns(start, stop), projection)
        start = stop
    return page


class Labels:
    """The nodes and tags of rows `start` .. of a part in memory, for those who look at nothing else."""

    __slots__ = ("count", "nodes", "start", "tags")

    def __init__(self, start: int) -> None:
        self.start = start
        self.count = 0
        self.nodes: Texts = None
        self.tags: Texts = None

    @property
    def size_bytes(self) -> int:
        return (LABEL_BYTES * self.count if self.nodes or self.tags else 0) + PAGE_OVERHEAD_BYTES

    def extend(self, columns: Columns, projection: Projection) -> None:
        """Take in further rows at the end."""
        added = len(columns.datas)
        self.nodes = _extended(self.nodes, self.count, columns.nodes, added)
        self.tags = _extended(self.tags, self.count, columns.tags, added)
        self.count += added


def _rendered(columns: Columns, projection: Projection) -> list[_Out]:
    seqs, timestamps, nodes, tags, metas, datas = columns
    if not projection.tags:
        tags = None
    if not projection.node:
        nodes = None
    if not projection.meta or not projection.data:
        metas = None
    if nodes is None and tags is None and metas is None and projection.data:
        return [_Out(seq, ts, UNSET, UNSET, data) for seq, ts, data in zip(seqs, timestamps, datas, strict=True)]
    return [
        _Out(seq, ts, node, tag, data, meta)
        for seq, ts, node, tag, data, meta in zip(
            seqs,
            timestamps,
            _or_unset(nodes),
            _or_unset(tags),
            datas if projection.data else repeat(UNSET),
            _or_unset(metas),
            strict=False,
        )
    ]


def _or_unset(column: Sequence[T | None] | None) -> Iterable[T | UnsetType]:
    return repeat(UNSET) if column is None else [UNSET if value is None else value for value in column]


def _extended(present: Texts, count: int, added: Texts, added_count: int) -> Texts:
    """A column of `count` rows with `added_count` more; it stays None as long as no row has a value."""
    if present is None and added is None:
        return None
    column: list[str | None] = [None] * count if present is None else present
    column += [None] * added_count if added is None else added
    return column


JOB = Projection(tags=True, node=False)  # what a worker gets of a record
_PROJECTIONS = [None, *(Projection(*flags) for flags in product((False, True), repeat=3)), JOB]
_IDLE: Final = (Chunk(1), 0, None)  # no page: those before it in the cache were not used since it was put there


class PageAddress(NamedTuple):
    """A page of a sealed part, rendered for a projection; without one, its rows as they are.

    With a match in the projection's place: which rows of the part have a tag that matches, asked for this row first.
    With NO_ROW as its start: where the pages of the part begin.
    """

    part: Sealed
    start: int  # its first row
    projection: Projection | TagMatch | None

    @property
    def place(self) -> tuple[int, int]:
        """Where in the topic it is: pages with higher seqs have higher places."""
        return self.part.first, self.start


PAUSE: Final = 0  # nothing is missing but a turn of the loop for others: the work goes on afterwards
NEXT_TURN: Final = -1  # the same: it has not begun, because others have had all of this turn
NO_ROW: Final = -1


class Cold(Exception):
    """What is needed is not in memory yet: a page, or copies that routers owe the topic with this id (DF9)."""

    def __init__(self, missing: PageAddress | int) -> None:
        super().__init__()
        self.missing = missing


def page_around(part: Part, row: int) -> tuple[int, int]:
    """The rows of the page that has `row`, as start and stop; those of a chunk as of now."""
    if isinstance(part, Chunk) or part.bytes_before(part.count) <= PAGE_BYTES:
        start = row - row % PAGE_ROWS
        return start, min(part.count, start + PAGE_ROWS)
    if part.borders is None:
        raise Cold(PageAddress(part, NO_ROW, None))
    at = bisect_right(part.borders, row)
    return part.borders[at - 1], part.borders[at]


def set_borders(part: Sealed) -> None:
    """Look where the pages of a part begin. For any thread."""
    borders = array("I", [0])
    while (start := borders[-1]) < part.count:
        borders.append(max(start + 1, fitting(part, start, min(part.count, start + PAGE_ROWS), PAGE_BYTES)))
    part.borders = borders


class _Shelf:
    """Pages, the least recently used dropped first when they exceed `bytes_max`, unless somebody keeps them."""

    def __init__(self, bytes_max: int, kept: Container[Hashable]) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.pages: OrderedDict[tuple[Part, int, Projection | None], Page | Labels] = OrderedDict()
        self._kept = kept  # addresses

    def put(self, key: tuple[Part, int, Projection | None], page: Page | Labels) -> None:
        self.pages[key] = page
        self.size_bytes += page.size_bytes

    def drop(self, key: tuple[Part, int, Projection | None]) -> None:
        page = self.pages.pop(key, None)
        if page is not None:
            self.size_bytes -= page.size_bytes

    def drop_idle(self) -> None:
        if _IDLE in self.pages:
            for key in list(takewhile(lambda key: key is not _IDLE, self.pages)):
                if key not in self._kept:
                    self.drop(key)
            self.pages.move_to_end(_IDLE)
        else:
            self.put(_IDLE, Labels(0))

    def shrink(self) -> None:
        kept = []
        while self.size_bytes > self.bytes_max and len(self.pages) > 1:
            key, page = self.pages.popitem(last=False)
            if key in self._kept:
                kept.append((key, page))
            else:
                self.size_bytes -= page.size_bytes
        self.pages.update(kept)


class Cache:
    """Rendered pages: those of records in memory, and apart from them, and fewer, those of sealed records."""

    def __init__(self, bytes_max: int, sealed_bytes_max: int | None = None) -> None:
        self.made_us = 0  # what all that was made here has cost, about
        self._kept: dict[Hashable, int] = {}  # addresses of pages that someone waits for → by how many
        self._fresh = _Shelf(bytes_max, self._kept)
        self._sealed = _Shelf(bytes_max if sealed_bytes_max is None else sealed_bytes_max, self._kept)
        self.shelves = (self._fresh, self._sealed)
        self._matches: OrderedDict[tuple[Sealed, TagMatch], array[int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(shelf.size_bytes for shelf in self.shelves)

    def page(self, part: Part, row: int, projection: Projection) -> Page:
        """The page of `part` that holds `row`, complete as of now."""
        page = self._around(part, row, projection)
        assert type(page) is Page
        return page

    def labels(self, part: Part, row: int, projection: Projection) -> Page | Labels:
        """The nodes and tags around `row`: of the page if it is there or sealed, or else without making it."""
        is_page = not isinstance(part, Chunk) or (part, row - row % PAGE_ROWS, projection) in self._fresh.pages
        return self._around(part, row, projection if is_page else None)

    def _around(self, part: Part, row: int, projection: Projection | None) -> Page | Labels:
        start, stop = page_around(part, row)
        key = (part, start, projection)
        shelf = self._fresh if isinstance(part, Chunk) else self._sealed
        page = shelf.pages.get(key)
        if page is None:
            if not isinstance(part, Chunk):
                raise Cold(PageAddress(part, start, projection))
            page = (Labels if projection is None else Page)(start)
            shelf.put(key, page)
        else:
            shelf.pages.move_to_end(key)
        start += page.count
        if start < stop:
            before = page.size_bytes
            page.extend(part.columns(start, stop), projection or JOB)
            shelf.size_bytes += page.size_bytes - before
            size = part.bytes_before(stop) - part.bytes_before(start)
            self.made_us += ROW_US * (stop - start) + size // BYTES_PER_US
            shelf.shrink()
        return page

    def load(self, address: PageAddress, page: Page) -> None:
        """Take in a page that was cold."""
        part, start, projection = address
        assert isinstance(projection, Projection), "rows that are not rendered are kept elsewhere"
        key = (part, start, projection)
        if key not in self._sealed.pages:
            self._sealed.put(key, page)
            self._sealed.shrink()

    def matching(self, part: Sealed, match: TagMatch, start: int, stop: int) -> "array[int]":
        """Those of the rows start..stop whose tag matches, ascending; live or not."""
        rows = self._matches.get((part, match))
        if rows is None:
            raise Cold(PageAddress(part, start, match))
        self._matches.move_to_end((part, match))
        return rows[bisect_left(rows, start) : bisect_left(rows, stop)]

    def load_matches(self, part: Sealed, match: TagMatch, rows: "array[int]") -> None:
        """Take in which rows of a part match, ascending."""
        self._matches[part, match] = rows
        if len(self._matches) > MATCHES_MAX:
            self._matches.popitem(last=False)

    def keep(self, address: Hashable) -> None:
        """Do not drop this page, which may be on its way, until `let_go` was called as often."""
        self._kept[address] = self._kept.get(address, 0) + 1

    def let_go(self, address: Hashable) -> None:
        """Undo one `keep`; of an address that nobody keeps, nothing happens."""
        count = self._kept.pop(address, 0)
        if count > 1:
            self._kept[address] = count - 1

    def forget(self, part: Part) -> None:
        """Drop the pages of a part that is no longer read."""
        shelf = self._fresh if isinstance(part, Chunk) else self._sealed
        row = 0
        with suppress(Cold):  # nobody has looked where its pages are
            while row < part.count:
                start, row = page_around(part, row)
                for projection in _PROJECTIONS:
                    shelf.drop((part, start, projection))
        for key in [key for key in self._matches if key[0] is part]:
            del self._matches[key]

    def drop_idle(self) -> None:
        """Drop the pages that nobody has used since the last call."""
        for shelf in self.shelves:
            shelf.drop_idle()

    def clear(self) -> None:
        self._matches.clear()
        for shelf in self.shelves:
            shelf.pages.clear()
            shelf.size_bytes = 0
