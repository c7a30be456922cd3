"""Parts: runs of a topic's records, in memory or sealed, and their rendered pages.

A topic's records lie in parts, sorted by seq. A `Chunk` keeps the bodies of
writes as they were received; a `Sealed` part stands for rows of a segment and
keeps nothing per record. Rows are numbered from 0 within their part.

A `Page` holds up to PAGE_ROWS records of a part as the JSON text that readers
get, for one projection; it is made on first use and kept in the `Cache`.
Reading is slicing pages. Nothing here does I/O: a page of a sealed part that
is not cached raises `ColdPage`, and whoever owns the files loads it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, product, repeat
from operator import sub
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from topics.core.topic.records import NO_META, Body, RecordIn, decode_body, meta_of
from topics.model import TagMatch

T = TypeVar("T")

PAGE_ROWS = 1024
CHUNK_BYTES = 1024 * 1024  # a chunk takes no further write beyond this size
PAGE_OVERHEAD_BYTES = 400
FOLDED_BODY_BYTES_MAX = 4096  # larger ones stay apart


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


Texts = list[str | None] | None  # one per row; None: no row has one


class Columns(NamedTuple):
    """Some rows of a part, decoded. `data` and `meta` are JSON texts."""

    seqs: Sequence[int]
    ts: Sequence[int]
    nodes: Texts
    tags: Texts
    metas: list[Raw | None] | None
    datas: list[Raw]

    def select(self, runs: Sequence[tuple[int, int]]) -> "Columns":
        """Only the rows in `runs`."""
        return Columns(*(None if column is None else _select(column, runs) for column in self))  # type: ignore[arg-type]


def _select(column: Sequence[Any], runs: Sequence[tuple[int, int]]) -> Sequence[Any]:
    return [value for start, stop in runs for value in column[start:stop]]


class Page:
    """Rendered records of rows `start` .. of a part: their texts joined by commas, and where each ends."""

    __slots__ = ("ends", "nodes", "start", "tags", "text")

    def __init__(self, start: int) -> None:
        self.start = start
        self.text = bytearray()  # "{…},{…}," : every record with its comma
        self.ends = array("I")  # end of each record's text, its comma included
        self.nodes: list[str | None] | None = None  # None: no record here has one
        self.tags: list[str | None] | None = None

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def size_bytes(self) -> int:
        return len(self.text) + 4 * len(self.ends) + PAGE_OVERHEAD_BYTES

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


class ChunkImage(Struct, array_like=True, frozen=True):
    """A chunk for another process, its bodies left out; the arrays are those of `Chunk`, as bytes."""

    first: int
    count: int
    has_tags: bool
    body_bytes: int
    ends: bytes
    firsts: bytes
    timestamps: bytes


class Chunk:
    """Records in memory: the bodies of consecutive writes, as received."""

    __slots__ = (
        "_ends",
        "_firsts",
        "_sizes",
        "_tag_order",
        "bodies",
        "body_bytes",
        "count",
        "first",
        "has_tags",
        "is_closed",
        "last",
        "live_bytes",
        "live_count",
        "timestamps",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.count = 0  # rows
        self.live_count = 0
        self.live_bytes = 0
        self.has_tags = False
        self.is_closed = False  # takes no further write
        self.bodies: list[bytes | memoryview] = []  # a single one, once they are folded
        self._ends: array[int] | None = None  # where each write's body ends in the folded one
        self.body_bytes = 0
        self._firsts = array("I")  # row of each body's first record
        self.timestamps = array("q")  # of each body
        self._sizes = array("I", [0])  # sum of the sizes of the rows before each row
        self._tag_order: list[tuple[str, int]] | None = None  # (tag, row) sorted, made for the first tag query

    def takes(self, count: int) -> bool:
        """Whether a write of `count` records may go in here."""
        if not self.count:
            return True
        return self.count + count <= PAGE_ROWS and self.body_bytes < CHUNK_BYTES and not self.is_closed

    def append(self, body: bytes, sizes: "array[int]", ts: int, has_tags: bool) -> None:
        count = len(sizes)
        before = self._sizes[-1]
        self.bodies.append(body)
        self.body_bytes += len(body)
        self._firsts.append(self.count)
        self.timestamps.append(ts)
        if count == 1:
            self._sizes.append(before + sizes[0])
        else:
            self._sizes.extend(accumulate(sizes[1:], initial=before + sizes[0]))
        self.count += count
        self.last += count
        self.live_count += count
        self.live_bytes += self._sizes[-1] - before
        if has_tags:
            self.has_tags = True
            self._tag_order = None

    def fold(self) -> None:
        """No further write comes: keep small bodies as one, a Python object costs more than many of them."""
        self.is_closed = True
        if self._ends is None and len(self.bodies) > 1 and self.body_bytes < FOLDED_BODY_BYTES_MAX * len(self.bodies):
            self._ends = array("I", accumulate(map(len, self.bodies)))
            self.bodies = [b"".join(self.bodies)]

    def image(self) -> ChunkImage:
        ends = self._ends or array("I", accumulate(map(len, self.bodies)))
        arrays = (ends.tobytes(), self._firsts.tobytes(), self.timestamps.tobytes())
        return ChunkImage(self.first, self.count, self.has_tags, self.body_bytes, *arrays)

    @classmethod
    def from_image(cls, image: ChunkImage, body: memoryview) -> "Chunk":
        """A chunk whose rows can be decoded, and no more than that; `body` is all its bodies, joined."""
        chunk = cls(image.first)
        chunk.count, chunk.has_tags, chunk.bodies, chunk.is_closed = image.count, image.has_tags, [body], True
        chunk._ends = array("I", image.ends)
        chunk._firsts, chunk.timestamps = array("I", image.firsts), array("q", image.timestamps)
        return chunk

    def _body(self, number: int) -> bytes | memoryview:
        """The body of the chunk's write `number`."""
        if self._ends is None:
            return self.bodies[number]
        return memoryview(self.bodies[0])[self._ends[number - 1] if number else 0 : self._ends[number]]

    def writes(self, start: int, stop: int) -> Iterator[tuple[bytes, int, int, int]]:
        """The bodies that hold rows start..stop: body, its start and stop row within these, how many rows it has."""
        firsts, number = self._firsts, bisect_right(self._firsts, start) - 1
        while number < len(firsts) and firsts[number] < stop:
            row = firsts[number]
            end = firsts[number + 1] if number + 1 < len(firsts) else self.count
            body = self._body(number)
            yield body if type(body) is bytes else bytes(body), max(0, start - row), min(stop, end) - row, end - row
            number += 1

    def sizes(self, start: int, stop: int) -> "array[int]":
        """The size of each of the rows start..stop."""
        sums = self._sizes
        return array("I", map(sub, sums[start + 1 : stop + 1], sums[start:stop]))

    def seq_at(self, row: int) -> int:
        return self.first + row

    def row_from(self, seq: int) -> int:
        """The first row whose seq is `seq` or above; `count` if there is none."""
        return max(0, min(self.count, seq - self.first))

    def bytes_before(self, row: int) -> int:
        """Sum of the sizes of the rows before `row`."""
        return self._sizes[row]

    def ts_at(self, row: int) -> int:
        return self.timestamps[bisect_right(self._firsts, row) - 1]

    def row_after_ts(self, ts: int) -> int:
        """The first row that is younger than `ts`; `count` if there is none. Timestamps never fall."""
        body = bisect_right(self.timestamps, ts)
        return self._firsts[body] if body < len(self._firsts) else self.count

    def columns(self, start: int, stop: int) -> Columns:
        """Decode rows start..stop."""
        records: list[RecordIn] = []
        timestamps: list[int] = []
        nodes: list[str | None] = []
        body = bisect_right(self._firsts, start) - 1
        while len(records) < stop - start:
            row = self._firsts[body]
            decoded: Body = decode_body(self._body(body))
            some = decoded.records[max(0, start - row) : stop - row]
            records += some
            timestamps += [self.timestamps[body]] * len(some)
            if decoded.node is None:
                nodes += [record.node for record in some]
            else:
                nodes += [decoded.node if record.node is None else record.node for record in some]
            body += 1
        return Columns(
            range(self.first + start, self.first + stop),
            timestamps,
            _column(nodes),
            _column([record.tag for record in records]) if self.has_tags else None,
            _metas(records),
            [record.data for record in records],
        )

    def matching(self, match: TagMatch) -> list[int]:
        """Rows whose tag matches, live or not; a search in the sorted tags."""
        if not self.has_tags:
            return []
        if self._tag_order is None:
            tags = self.columns(0, self.count).tags or ()
            self._tag_order = sorted((tag, row) for row, tag in enumerate(tags) if tag is not None)
        order = self._tag_order
        start = bisect_left(order, (match.value, -1))
        if match.operator == "Eq":
            stop = bisect_left(order, (match.value, self.count), start)
        else:
            stop = bisect_left(order, True, start, key=lambda item: not item[0].startswith(match.value))
        return [row for _, row in order[start:stop]]


def _column(values: list[T | None]) -> list[T | None] | None:
    """The column, or None if it has no value at all."""
    return values if values.count(None) < len(values) else None


def _metas(records: Sequence[RecordIn]) -> list[Raw | None] | None:
    metas = [r.meta for r in records]
    return None if metas.count(NO_META) == len(metas) else _column([meta_of(r) for r in records])


class SealedRows(Protocol):
    """What a segment offers of its rows; the storage side has it. Rows are those sealed, dead ones left out."""

    @property
    def count(self) -> int: ...
    @property
    def has_tags(self) -> bool: ...
    def seq_at(self, row: int) -> int: ...
    def row_from(self, seq: int) -> int: ...
    def bytes_before(self, row: int) -> int: ...
    def ts_at(self, row: int) -> int: ...
    def row_after_ts(self, ts: int) -> int: ...
    def columns(self, start: int, stop: int) -> tuple[Any, ...]: ...  # in the order of Columns
    def matching(self, match: TagMatch) -> list[int]: ...


class Sealed:
    """Records in a segment. Keeps nothing per record."""

    __slots__ = ("first", "flagged", "last", "live_bytes", "live_count", "sealed")

    def __init__(self, first: int, last: int, sealed: SealedRows, live_count: int, live_bytes: int) -> None:
        self.first = first
        self.last = last
        self.sealed = sealed
        self.live_count = live_count
        self.live_bytes = live_bytes
        self.flagged = 0  # rows that were dead when delete flags were last set in the segment; -1 = not known

    @property
    def count(self) -> int:
        return self.sealed.count

    @property
    def has_tags(self) -> bool:
        return self.sealed.has_tags

    def seq_at(self, row: int) -> int:
        return self.sealed.seq_at(row)

    def row_from(self, seq: int) -> int:
        return self.sealed.row_from(seq)

    def bytes_before(self, row: int) -> int:
        return self.sealed.bytes_before(row)

    def ts_at(self, row: int) -> int:
        return self.sealed.ts_at(row)

    def row_after_ts(self, ts: int) -> int:
        return self.sealed.row_after_ts(ts)

    def columns(self, start: int, stop: int) -> Columns:
        return Columns(*self.sealed.columns(start, stop))

    def matching(self, match: TagMatch) -> list[int]:
        return self.sealed.matching(match)


Part = Chunk | Sealed
JOB = Projection(tags=True, node=False)  # what a worker gets of a record
_PROJECTIONS = [*(Projection(*flags) for flags in product((False, True), repeat=3)), JOB]


class ColdPage(Exception):
    """A page of a sealed part that is not cached; `Cache.load` brings it in."""

    def __init__(self, part: Sealed, number: int, projection: Projection) -> None:
        super().__init__()
        self.part = part
        self.number = number
        self.projection = projection

    @property
    def page(self) -> tuple[Sealed, int]:
        """Which page it is."""
        return self.part, self.number

    @property
    def key(self) -> Hashable:
        """The same for all that lack the same."""
        return self.part, self.number, self.projection

    @property
    def place(self) -> tuple[int, int]:
        """Where in the topic it is: pages with higher seqs have higher places."""
        return self.part.first, self.number

    def rows(self) -> tuple[int, int]:
        """The rows of the page, as start and stop."""
        start = self.number * PAGE_ROWS
        return start, min(self.part.count, start + PAGE_ROWS)


class Cache:
    """Rendered pages, the least recently used dropped first when they exceed `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._pages: OrderedDict[tuple[Part, int, Projection], Page] = OrderedDict()

    def page(self, part: Part, row: int, projection: Projection) -> Page:
        """The page of `part` that holds `row`, complete as of now."""
        number = row // PAGE_ROWS
        key = (part, number, projection)
        page = self._pages.get(key)
        if page is None:
            if isinstance(part, Sealed):
                raise ColdPage(part, number, projection)
            page = self._pages[key] = Page(number * PAGE_ROWS)
            self.size_bytes += page.size_bytes
        else:
            self._pages.move_to_end(key)
        stop = min(part.count, page.start + PAGE_ROWS)
        if page.start + page.count < stop:
            before = page.size_bytes
            page.extend(part.columns(page.start + page.count, stop), projection)
            self.size_bytes += page.size_bytes - before
            self._shrink()
        return page

    def load(self, cold: ColdPage, columns: Columns) -> None:
        """Take in the rows of a page that was cold."""
        key = (cold.part, cold.number, cold.projection)
        if key not in self._pages:
            page = Page(cold.number * PAGE_ROWS)
            page.extend(columns, cold.projection)
            self._pages[key] = page
            self.size_bytes += page.size_bytes
            self._shrink()

    def forget(self, part: Part) -> None:
        """Drop the pages of a part that is no longer read."""
        for number in range(part.count // PAGE_ROWS + 1):
            for projection in _PROJECTIONS:
                page = self._pages.pop((part, number, projection), None)
                if page is not None:
                    self.size_bytes -= page.size_bytes

    def clear(self) -> None:
        self._pages.clear()
        self.size_bytes = 0

    def _shrink(self) -> None:
        while self.size_bytes > self.bytes_max and len(self._pages) > 1:
            _, page = self._pages.popitem(last=False)
            self.size_bytes -= page.size_bytes
