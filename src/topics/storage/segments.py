"""Segments: sealed records as Arrow IPC files, memory-mapped, readable by anything that reads Arrow.

A file holds one record batch, up to a bound of rows and bytes:

    topic      uint32                the topic's id
    seq        uint64
    ts         timestamp[ms, UTC]
    node, tag, meta, data   utf8     meta and data are JSON text; node, tag, meta may be null
    deleted    uint8                 0 = live, 255 = deleted; the only bytes that ever change
    tag_order  uint32                a piece's rows in the order of their tags, untagged ones last

A run of rows of one topic, ascending by seq, is a *piece*; small topics share a file. Arrow has no checksums, so the
schema's metadata has one per column (xxh3, `deleted` left out). The `FileRef` in the snapshot has them too, along with
the offsets of all buffers: the server reads by offset and never parses Arrow metadata. A file is checked when it is
first touched; a mismatch is `Damaged`.

A file is complete and synced before a snapshot names it; a file that no snapshot names is an orphan. This module owns
the bytes of the files, not which of them are in force.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, pairwise
from typing import Any, Literal
from weakref import ref as weak

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64

from topics.errors import Damaged
from topics.model import Columns, TagMatch
from topics.storage.arrays import Arrays, number_array, plain, row_numbers
from topics.storage.disk import Disk, File
from topics.storage.processes import release

PREFIX, SUFFIX = "segment-", ".arrow"
LIVE, DELETED = 0, 255
FORMAT_VERSION = "1"
STEP_BYTES = 1024 * 1024  # of a file, that are in memory at a time when it is checked
ENDS_MIN = 100  # rows with a tag: of fewer, a search costs little, and such pieces may be very many

Runs = list[tuple[int, int]]  # of rows, start and stop

_TEXTS = ("node", "tag", "meta", "data")
_CHECKED = ("topic", "seq", "ts", *_TEXTS, "tag_order")


class Column(Struct, frozen=True, array_like=True):
    """Where a column's buffers lie in the file: (offset, size) each; (0, 0) if there is none."""

    validity: tuple[int, int]
    offsets: tuple[int, int]
    values: tuple[int, int]
    checksum: str


class FileRef(Struct, frozen=True, array_like=True):
    """What the snapshot keeps of a segment file."""

    number: int
    size_bytes: int
    count: int  # rows
    columns: dict[str, Column]


class PieceRef(Struct, frozen=True, array_like=True):
    """What the snapshot keeps of a piece: rows start .. start + count of a file."""

    file: int
    topic: int
    first: int
    last: int
    start: int
    count: int
    size_bytes: int  # sum of the record sizes
    tagged: int  # rows with a tag


def name_of(number: int) -> str:
    return f"{PREFIX}{number:010d}{SUFFIX}"


def number_in(name: str) -> int | None:
    """The number of a segment file; None for another name."""
    text = name.removeprefix(PREFIX).removesuffix(SUFFIX)
    return int(text) if name == f"{PREFIX}{text}{SUFFIX}" and text.isdigit() else None


# --- writing


class PieceBuilder:
    """A run of one topic's records on its way into a segment."""

    def __init__(self, topic: int) -> None:
        self.topic = topic
        self.first = self.last = self.count = self.size_bytes = self.tagged = 0
        self.columns: dict[str, list[Any]] = {name: [] for name in ("seq", "ts", *_TEXTS)}  # Arrow arrays

    def extend(self, rows: Arrays) -> None:
        """Add rows, at least one, ascending by seq."""
        count = len(rows.seq)
        self.first, self.last = self.first or rows.seq[0].as_py(), rows.seq[count - 1].as_py()
        self.count += count
        self.tagged += count - rows.tag.null_count
        for name, column in rows._asdict().items():
            self.columns[name].append(column)
        self.size_bytes += _text_bytes(rows.data) + _text_bytes(rows.meta)

    def tag_order(self) -> Any:
        """The rows in the order of their tags, which is stable, by bytes, and has those without a tag last.

        Tags are sorted, and rows by the place of their tag: many rows have few tags, and numbers are compared faster.
        """
        import pyarrow as pa
        from pyarrow import compute

        if not self.tagged:
            return plain(row_numbers(self.count).cast("uint32"))
        tags = pa.concat_arrays(self.columns["tag"]).dictionary_encode()
        sort = compute.get_function("array_sort_indices")
        places = sort.call([sort.call([tags.dictionary])])
        return plain(sort.call([places.take(tags.indices)]).cast("uint32"))

    def ref(self, file: int, start: int) -> PieceRef:
        return PieceRef(file, self.topic, self.first, self.last, start, self.count, self.size_bytes, self.tagged)


def schema(metadata: Mapping[str, str] | None = None) -> Any:
    """The Arrow schema of a segment."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("topic", pa.uint32(), nullable=False),
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", "UTC"), nullable=False),
            *(pa.field(name, pa.string(), nullable=name != "data") for name in _TEXTS),
            pa.field("deleted", pa.uint8(), nullable=False),
            pa.field("tag_order", pa.uint32(), nullable=False),
        ],
        metadata=metadata,
    )


def encode(number: int, pieces: Sequence[PieceBuilder]) -> tuple[memoryview, FileRef, list[PieceRef]]:
    """The bytes of segment file `number`, and references to it and to each piece in it."""
    import pyarrow as pa

    arrays = _arrays(pieces)
    names = schema().names
    checksums = {name: _checksum_of(_buffers(array)) for name, array in zip(names, arrays, strict=True)}
    metadata = {f"topics.xxh3.{name}": checksums[name] for name in _CHECKED}
    batch = pa.record_batch(arrays, schema=schema({"topics.format": FORMAT_VERSION, **metadata}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    image = sink.getvalue()
    with pa.ipc.open_file(image) as reader:
        written = zip(names, reader.get_batch(0).columns, strict=True)
        columns = {name: column_of(some, image.address, _checksum_of(_buffers(some))) for name, some in written}
    assert all(columns[name].checksum == checksums[name] for name in _CHECKED), "Arrow wrote other bytes"
    starts = accumulate((piece.count for piece in pieces), initial=0)
    refs = [piece.ref(number, start) for piece, start in zip(pieces, starts, strict=False)]
    return memoryview(image), FileRef(number, image.size, batch.num_rows, columns), refs


def _arrays(pieces: Sequence[PieceBuilder]) -> list[Any]:
    import pyarrow as pa

    def joined(name: str) -> Any:
        return plain(pa.concat_arrays([some for piece in pieces for some in piece.columns[name]]))

    topics = array("I")
    for piece in pieces:
        topics += array("I", (piece.topic,)) * piece.count
    return [
        number_array(pa.uint32(), topics),
        *(joined(name) for name in ("seq", "ts", *_TEXTS)),
        number_array(pa.uint8(), bytes([LIVE]) * len(topics)),
        pa.concat_arrays([piece.tag_order() for piece in pieces]),
    ]


def column_of(array: Any, base: int, checksum: str) -> Column:
    """Where an Arrow array lies in the file image at address `base`."""
    buffers = array.buffers()
    places = [(buffer.address - base, buffer.size) if buffer and buffer.size else (0, 0) for buffer in buffers]
    return Column(places[0], places[1] if len(places) == 3 else (0, 0), places[-1], checksum)


def _text_bytes(texts: Any) -> int:
    from pyarrow import compute

    return compute.call_function("sum", [compute.call_function("binary_length", [texts])]).as_py() or 0


def _buffers(array: Any) -> Iterator[memoryview]:
    return (memoryview(buffer) for buffer in array.buffers() if buffer is not None)


def _checksum_of(buffers: Iterable[memoryview]) -> str:
    digest = xxh3_64()
    for buffer in buffers:
        for start in range(0, len(buffer), STEP_BYTES):
            digest.update(buffer[start : start + STEP_BYTES])
            release(buffer)
    return digest.hexdigest()


# --- reading


class SegmentFile:
    """A segment file, mapped and checked when first touched."""

    def __init__(self, disk: Disk, ref: FileRef, note: "Callable[[SegmentFile], None] | None" = None) -> None:
        self._disk = disk
        self.ref = ref
        self.name = name_of(ref.number)
        self._note = note  # told when it is mapped
        self._view: memoryview | None = None
        self._last: weak[memoryview] | None = None  # the map, for as long as anybody keeps it
        self._flags: bytes | None = None  # as they were at one moment; None = as they are
        self._held: bytes | None = None  # all of them, while somebody asks for one after the other
        self._is_checked = self.has_no_flag = False  # the latter: all are held, and none is set

    @property
    def path(self) -> str:
        return f"{self._disk.path}/{self.name}"

    def view(self) -> memoryview:
        """The file's bytes, unchecked. While somebody keeps them, the file is readable, even if it is removed."""
        view = self._view
        if view is None:
            if self._last is None or (view := self._last()) is None:
                with closing(self._open()) as file:
                    view = file.map()
                self._last = weak(view)
            self._view = view
            if self._note is not None:
                self._note(self)
        return view

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes of the file, without a map: before Python 3.13 every map holds a file descriptor."""
        if (view := self._view) is not None:
            return bytes(view[offset : offset + size])
        with closing(self._open()) as file:
            return file.read(offset, size)

    def _open(self) -> File:
        try:
            file = self._disk.open(self.name, writable=False)
        except FileNotFoundError:
            raise Damaged(self.path, 0, "this segment is missing") from None
        if file.size() < self.ref.size_bytes:
            size = file.size()
            file.close()
            raise Damaged(self.path, size, "the segment is cut short")
        return file

    def identify(self) -> None:
        """Refuse a file that is not the one of this name that the snapshot means: its checksums say which it is."""
        with closing(self._open()) as file:
            if file.size() == self.ref.size_bytes:
                columns = [self.ref.columns[name] for name in _CHECKED]
                places = [place for column in columns for place in (column.validity, column.offsets, column.values)]
                head = file.read(0, min(place[0] for place in places if place != (0, 0)))
                if all(column.checksum.encode() in head for column in columns):
                    return
        raise Damaged(self.path, 0, "another segment is in its place")

    def checked(self) -> memoryview:
        """The file's bytes, known to be what was written, except for the delete flags."""
        view = self.view()
        if not self._is_checked:
            for name in _CHECKED:
                column = self.ref.columns[name]
                places = [place for place in (column.validity, column.offsets, column.values) if place != (0, 0)]
                if _checksum_of(view[offset : offset + size] for offset, size in places) != column.checksum:
                    offset = places[0][0] if places else 0
                    raise Damaged(self.path, offset, f"column {name} does not match its checksum")
            self._is_checked = True
        return view

    def numbers(self, name: str, code: Literal["Q", "q", "I"]) -> "memoryview[int]":
        """A whole column of numbers."""
        offset, size = self.ref.columns[name].values
        return self.checked()[offset : offset + size].cast(code)

    def batch(self, fields: Any, start: int, stop: int) -> Any:
        """Some columns of rows start..stop as an Arrow batch over the map: nothing is decoded or copied."""
        import pyarrow as pa

        whole, arrays = pa.py_buffer(self.checked()), []
        for field in fields:
            column = self.ref.columns[field.name]
            places = [column.offsets, column.values] if column.offsets[1] else [column.values]
            buffers = [whole.slice(offset, size) if size else pa.py_buffer(b"") for offset, size in places]
            buffers.insert(0, whole.slice(*column.validity) if column.validity[1] else None)
            arrays.append(pa.Array.from_buffers(field.type, stop - start, buffers, offset=start))
        return pa.RecordBatch.from_arrays(arrays, schema=fields)

    def flags(self, start: int, stop: int) -> bytes:
        """The delete flags of rows start..stop, as they are at this moment."""
        base = self.ref.columns["deleted"].values[0] + start
        known = self._held if self._flags is None else self._flags
        flags = self.read(base, stop - start) if known is None else known[start:stop]
        if flags.count(LIVE) + flags.count(DELETED) != len(flags):
            row = next(row for row, flag in enumerate(flags) if flag not in (LIVE, DELETED))
            raise Damaged(self.path, base + row, f"a delete flag is {flags[row]}")
        return flags

    def keep_flags(self) -> None:
        """Show the delete flags as they are at this moment from now on."""
        self._flags = self.flags(0, self.ref.count)

    def hold_flags(self, holds: bool) -> None:
        """Read all delete flags at once, or let them go: a file may have pieces of thousands of topics."""
        if (self._held is not None) != holds:
            held = self._held = self.read(self.ref.columns["deleted"].values[0], self.ref.count) if holds else None
            self.has_no_flag = held is not None and self._flags is None and held.count(LIVE) == self.ref.count

    def release(self) -> None:
        """Give back the memory that the map takes by now, if that may be much."""
        if self._view is not None:
            release(self._view)

    def let_go(self) -> None:
        """Unmap the file. It is mapped again when it is touched, and not checked again."""
        self._view = None

    def set_deleted(self, runs: Iterable[tuple[int, int]]) -> None:
        """Set the delete flags of rows start..stop, and sync. Blocking."""
        base, _ = self.ref.columns["deleted"].values
        with closing(self._disk.open(self.name)) as file:
            for start, stop in runs:
                file.write(base + start, bytes([DELETED]) * (stop - start))
            file.sync()


class SegmentPiece:
    """One piece: its rows, numbered from 0 and read from the map, and how many of them are live."""

    __slots__ = ("_ends", "borders", "count", "file", "first", "flagged", "last", "live_bytes", "live_count", "ref")

    def __init__(self, file: SegmentFile, ref: PieceRef) -> None:
        self.file, self.ref = file, ref
        self.first, self.last, self.count = ref.first, ref.last, ref.count
        self._ends: tuple[bytes, bytes] | None = None  # its first and last tag, once it was searched
        self.borders: array[int] | None = None  # of the pages that it is read in, once these were looked for
        self.live_count, self.live_bytes = ref.count, ref.size_bytes
        self.flagged = 0  # rows that were dead when delete flags were last set; -1 = not known

    @property
    def has_tags(self) -> bool:
        return self.ref.tagged > 0

    def seq_at(self, row: int) -> int:
        if self.last - self.first + 1 == self.count:
            return self.first + row
        return self._numbers("seq", "Q")[row]

    def row_from(self, seq: int) -> int:
        """The first row whose seq is `seq` or above; `count` if there is none."""
        if self.last - self.first + 1 == self.count:
            return max(0, min(self.count, seq - self.first))
        return bisect_left(self._numbers("seq", "Q"), seq)

    def bytes_before(self, row: int) -> int:
        if row in (0, self.count):
            return self.ref.size_bytes if row else 0
        data, meta = self._offsets("data"), self._offsets("meta")
        return data[row] - data[0] + meta[row] - meta[0]

    def ts_at(self, row: int) -> int:
        return self._numbers("ts", "q")[row]

    def row_after_ts(self, ts: int) -> int:
        return bisect_right(self._numbers("ts", "q"), ts)

    def columns(self, start: int, stop: int) -> Columns:
        """Rows start..stop, deleted ones included."""
        nodes, tags, metas, datas = (self._texts(name, start, stop) for name in _TEXTS)
        seqs, timestamps = (self._numbers(*name)[start:stop].tolist() for name in (("seq", "Q"), ("ts", "q")))
        self.file.release()
        return Columns(
            seqs,
            timestamps,
            None if nodes is None else [None if node is None else node.decode() for node in nodes],
            None if tags is None else [None if tag is None else tag.decode() for tag in tags],
            None if metas is None else [None if meta is None else Raw(meta) for meta in metas],
            list(map(Raw, datas or ())),  # type: ignore[arg-type]
        )

    def matching(self, match: TagMatch) -> list[int]:
        """Rows whose tag matches: a binary search in the tag order, unless its ends rule out that there are any."""
        wanted, tag_at = match.value.encode(), self._tag_at
        first, last = self._ends or (wanted, wanted)
        if last < wanted or (wanted < first and not first.startswith(wanted)):
            return []
        order = self._numbers("tag_order", "I")[: self.ref.tagged]
        if len(order) >= ENDS_MIN:
            self._ends = tag_at(order[0]), tag_at(order[-1])
        start = bisect_left(order, wanted, key=tag_at)
        if match.operator == "Eq":
            stop = bisect_right(order, wanted, start, key=tag_at)
        else:
            stop = bisect_left(order, True, start, key=lambda row: not tag_at(row).startswith(wanted))
        return list(order[start:stop])

    def _tag_at(self, row: int) -> bytes:
        return (self._texts("tag", row, row + 1) or [b""])[0] or b""

    def flagged_rows(self) -> list[int]:
        """Rows whose delete flag is set."""
        flags = b"" if self.file.has_no_flag else self.file.flags(self.ref.start, self.ref.start + self.count)
        return [row for row, flag in enumerate(flags) if flag == DELETED] if DELETED in flags else []

    def set_deleted(self, runs: Iterable[tuple[int, int]]) -> None:
        """Set the delete flags of rows start..stop, and sync. Blocking."""
        base = self.ref.start
        self.file.set_deleted((base + start, base + stop) for start, stop in runs)

    def _numbers(self, name: str, code: Literal["Q", "q", "I"]) -> "memoryview[int]":
        width = 4 if code == "I" else 8
        offset = self.file.ref.columns[name].values[0] + self.ref.start * width
        return self.file.checked()[offset : offset + self.count * width].cast(code)

    def _offsets(self, name: str) -> "memoryview[int]":
        offset = self.file.ref.columns[name].offsets[0] + self.ref.start * 4
        return self.file.checked()[offset : offset + 4 * (self.count + 1)].cast("i")

    def _texts(self, name: str, start: int, stop: int) -> list[bytes | None] | None:
        """The texts of rows start..stop; None if none of them has one."""
        column, view = self.file.ref.columns[name], self.file.checked()
        nulls: list[int] = []
        if column.validity[1]:
            first = self.ref.start + start
            byte, shift = column.validity[0] + (first >> 3), first & 7
            bits = int.from_bytes(view[byte : byte + (shift + stop - start + 7) // 8], "little") >> shift
            bits &= (1 << stop - start) - 1
            if not bits:
                return None
            if bits.bit_count() < stop - start:
                nulls = [row for row in range(stop - start) if not bits >> row & 1]
        ends = self._offsets(name)[start : stop + 1].tolist()
        base = column.values[0]
        values = bytes(view[base + ends[0] : base + ends[-1]])
        first_end = ends[0]
        texts: list[bytes | None] = [values[a - first_end : b - first_end] for a, b in pairwise(ends)]
        for row in nulls:
            texts[row] = None
        return texts


encode_ref = msgspec.msgpack.Encoder().encode
decode_piece = msgspec.msgpack.Decoder(PieceRef).decode
decode_file = msgspec.msgpack.Decoder(FileRef).decode
