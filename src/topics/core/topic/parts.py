"""Parts: runs of a topic's records, in memory or sealed.

A topic's records lie in parts, sorted by seq. A `Chunk` keeps the bodies of writes as they were received; a `Sealed`
part, a piece of a segment, keeps nothing per record: storage has the class, here is the protocol that both sides know.
Rows are numbered from 0 within their part. A part has the totals of its live records; which those are, the log knows.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import Protocol, TypeVar

from msgspec import Struct

from topics.core.memory import CHUNK, FOLDED_WRITE, ROW, TAGGED_ROW, WRITE
from topics.core.topic.records import (
    BARE_BETWEEN,
    BARE_END,
    BARE_HEAD,
    NO_META,
    Body,
    Layout,
    RecordIn,
    bare_bytes,
    decode_body,
    meta_of,
)
from topics.model import Columns, LaidRows, TagMatch

T = TypeVar("T")

PAGE_ROWS = 1024
CHUNK_BYTES = 1024 * 1024  # a chunk takes no further write beyond this size
FOLDED_BODY_BYTES_MAX = 4096  # larger ones stay apart
_NO_ROWS, _NO_TIMES, _NO_SIZES = array("I"), array("q"), array("I", [0])  # to copy is faster than to make


class ChunkImage(Struct, array_like=True, frozen=True):
    """A chunk for another process, its bodies left out; the arrays are those of `Chunk`, as bytes."""

    first: int
    count: int
    has_tags: bool
    body_bytes: int
    ends: bytes
    firsts: bytes
    timestamps: bytes
    sizes: bytes
    layout: Layout | None


class Chunk:
    """Records in memory: the bodies of consecutive writes, as received."""

    __slots__ = (
        "_ends",
        "_firsts",
        "_layout",
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
        "weight",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.count = 0  # rows
        self.live_count = 0
        self.live_bytes = 0
        self.has_tags = False
        self.weight = CHUNK  # what it weighs in memory
        self.is_closed = False  # takes no further write
        self.bodies: list[bytes | memoryview] = []  # a single one, once they are folded
        self._ends: array[int] | None = None  # where each write's body ends in the folded one
        self.body_bytes = 0
        self._firsts = _NO_ROWS[:]  # row of each body's first record
        self.timestamps = _NO_TIMES[:]  # of each body
        self._sizes = _NO_SIZES[:]  # sum of the sizes of the rows before each row
        self._layout: Layout | None = None  # of its body, if that is the only one
        self._tag_order: _TagOrder | None = None  # made for the first tag query

    def takes(self, count: int) -> bool:
        """Whether a write of `count` records may go in here."""
        if not self.count:
            return True
        return self.count + count <= PAGE_ROWS and self.body_bytes < CHUNK_BYTES and not self.is_closed

    def append(self, body: bytes, sizes: "array[int]", ts: int, has_tags: bool, layout: Layout | None = None) -> None:
        count, sums, body_bytes = len(sizes), self._sizes, len(body)
        before = sums[-1]
        if layout is not None or self._layout is not None:
            self._set_layout(None if self.count else layout)
        self.bodies.append(body)
        self.body_bytes += body_bytes
        self._firsts.append(self.count)
        self.timestamps.append(ts)
        if count == 1:
            sums.append(before + sizes[0])
            self.live_bytes += sizes[0]
        else:
            sums.extend(accumulate(sizes[1:], initial=before + sizes[0]))
            self.live_bytes += sums[-1] - before
        self.count += count
        self.last += count
        self.live_count += count
        self.weight += body_bytes + WRITE + ROW * count
        if has_tags:
            self.has_tags = True
            self.weight += TAGGED_ROW * count
            self._tag_order = None

    def _set_layout(self, layout: Layout | None) -> None:
        for old, sign in ((self._layout, -1), (layout, 1)):
            if old is not None:
                self.weight += sign * old.weight
        self._layout = layout

    def singles_taken(self, bodies: Sequence[bytes], start: int, stop: int) -> int:
        """Up to which of the writes start..stop, of one record each, this chunk takes them; it takes the first."""
        stop = min(stop, start + PAGE_ROWS - self.count)
        ends = list(accumulate(map(len, bodies[start:stop]), initial=self.body_bytes))
        return start + max(1, min(bisect_left(ends, CHUNK_BYTES), stop - start))

    def append_singles(self, bodies: list[bytes], sizes: list[int], timestamps: list[int], has_tags: bool) -> None:
        """Add writes of one record each."""
        count, before, body_bytes = len(bodies), self._sizes[-1], sum(map(len, bodies))
        self._set_layout(None)
        self.bodies += bodies
        self.body_bytes += body_bytes
        self._firsts.extend(range(self.count, self.count + count))
        self.timestamps.extend(timestamps)
        self._sizes.extend(accumulate(sizes[1:], initial=before + sizes[0]))
        self.count += count
        self.last += count
        self.live_count += count
        self.live_bytes += self._sizes[-1] - before
        self.weight += body_bytes + (WRITE + ROW) * count
        if has_tags:
            self.has_tags = True
            self.weight += TAGGED_ROW * count
            self._tag_order = None

    def fold(self) -> int:
        """Take no further write, and keep small bodies as one: a Python object costs more than many of them.

        Gives how much lighter that has made it.
        """
        self.is_closed = True
        writes = len(self.bodies)
        if self._ends is not None or writes < 2 or self.body_bytes >= FOLDED_BODY_BYTES_MAX * writes:
            return 0
        self._ends = array("I", accumulate(map(len, self.bodies)))
        self.bodies = [b"".join(self.bodies)]
        self.weight -= writes * (WRITE - FOLDED_WRITE)
        return writes * (WRITE - FOLDED_WRITE)

    def image(self) -> ChunkImage:
        ends = self._ends or array("I", accumulate(map(len, self.bodies)))
        arrays = (ends.tobytes(), self._firsts.tobytes(), self.timestamps.tobytes(), self._sizes.tobytes())
        return ChunkImage(self.first, self.count, self.has_tags, self.body_bytes, *arrays, self._layout)

    @classmethod
    def from_image(cls, image: ChunkImage, body: memoryview) -> "Chunk":
        """A chunk that can only decode its rows; `body` is all its bodies, joined."""
        chunk = cls(image.first)
        chunk.count, chunk.has_tags, chunk.bodies, chunk.is_closed = image.count, image.has_tags, [body], True
        chunk._ends = array("I", image.ends)
        chunk._firsts, chunk.timestamps = array("I", image.firsts), array("q", image.timestamps)
        chunk._sizes, chunk.body_bytes, chunk._layout = array("I", image.sizes), image.body_bytes, image.layout
        return chunk

    def laid(self) -> LaidRows | None:
        """Its rows, undecoded, if its bodies are one and it is known where the texts are: by a layout, or because there
        is nothing but data."""
        firsts, sums, layout = self._firsts, self._sizes, self._layout
        is_bare = len(self.bodies) == 1 and self.body_bytes == bare_bytes(len(firsts), self.count, sums[-1])
        if layout is None and not is_bare:
            return None
        others, timestamps, before = array("I"), array("q"), BARE_HEAD
        for number, ts in enumerate(self.timestamps):
            count = (firsts[number + 1] if number + 1 < len(firsts) else self.count) - firsts[number]
            others.extend(range(before, before + count * BARE_BETWEEN, BARE_BETWEEN))
            timestamps.extend((ts,) * count)
            before = others[-1] + BARE_END + BARE_HEAD
        tags, nodes = (b"", b"") if layout is None else (layout.tags, layout.nodes)
        return LaidRows(self.first, timestamps, self.bodies[0], sums, others, tags, nodes)

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
        timestamps = array("q")
        nodes: list[str | None] = []
        body = bisect_right(self._firsts, start) - 1
        while len(records) < stop - start:
            row = self._firsts[body]
            decoded: Body = decode_body(self._body(body))
            some = decoded.records[max(0, start - row) : stop - row]
            records += some
            timestamps += self.timestamps[body : body + 1] * len(some)
            if decoded.node is None:
                nodes += [record.node for record in some]
            else:
                nodes += [decoded.node if record.node is None else record.node for record in some]
            body += 1
        metas = [record.meta for record in records]
        return Columns(
            range(self.first + start, self.first + stop),
            timestamps,
            _column(nodes),
            _column([record.tag for record in records]) if self.has_tags else None,
            None if metas.count(NO_META) == len(metas) else _column([meta_of(record) for record in records]),
            [record.data for record in records],
        )

    def matching(self, match: TagMatch) -> list[int]:
        """Rows whose tag matches, live or not; a search in the sorted tags."""
        if not self.has_tags:
            return []
        if self._tag_order is None:
            self._tag_order = _TagOrder(self.columns(0, self.count).tags or ())
        return self._tag_order.matching(match)


class _TagOrder:
    """The rows that have a tag, by their tags: one text and two arrays, which weigh less than an object for each.

    In UTF-8 texts have the order, and the beginnings, that they have as characters.
    """

    __slots__ = ("_ends", "_rows", "_text")

    def __init__(self, tags: Sequence[str | None]) -> None:
        known = [tag or "" for tag in tags]
        rows = sorted([row for row, tag in enumerate(tags) if tag is not None], key=known.__getitem__)
        texts = [known[row].encode() for row in rows]
        self._text = b"".join(texts)
        self._ends = array("I", accumulate(map(len, texts), initial=0))
        self._rows = array("I", rows)

    def matching(self, match: TagMatch) -> list[int]:
        places, wanted = range(len(self._rows)), match.value.encode()
        start = bisect_left(places, wanted, key=self._tag)
        if match.operator == "Eq":
            stop = bisect_right(places, wanted, start, key=self._tag)
        else:
            stop = bisect_left(places, True, start, key=lambda place: not self._tag(place).startswith(wanted))
        return self._rows[start:stop].tolist()

    def _tag(self, place: int) -> bytes:
        return self._text[self._ends[place] : self._ends[place + 1]]


def _column(values: list[T | None]) -> list[T | None] | None:
    """The column, or None if it has no value at all."""
    return values if values.count(None) < len(values) else None


class Sealed(Protocol):
    """Records in a segment; the storage side has them. Its rows are all that were sealed, including dead ones."""

    first: int
    last: int
    count: int
    live_count: int
    live_bytes: int
    borders: "array[int] | None"  # the rows at which its pages begin, and its end; None: not known yet

    @property
    def has_tags(self) -> bool: ...
    def seq_at(self, row: int) -> int: ...
    def row_from(self, seq: int) -> int: ...
    def bytes_before(self, row: int) -> int: ...
    def ts_at(self, row: int) -> int: ...
    def row_after_ts(self, ts: int) -> int: ...
    def columns(self, start: int, stop: int) -> Columns: ...
    def matching(self, match: TagMatch) -> list[int]: ...


Part = Chunk | Sealed


def fitting(part: Part, start: int, stop: int, bytes_max: int) -> int:
    """Up to which of the rows start..stop of a part their sizes sum to at most `bytes_max`."""
    most = part.bytes_before(start) + bytes_max
    if part.bytes_before(stop) <= most:
        return stop
    return bisect_right(range(stop), most, start, key=part.bytes_before) - 1
