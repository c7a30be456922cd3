"""Segments: sealed records as Arrow IPC files, memory-mapped, readable by anything that reads Arrow.

A file holds one record batch per *piece*, a run of one topic's records:

    topic      uint32                the topic's id
    seq        uint64                ascending
    ts         timestamp[ms, UTC]
    node, tag, meta, data   utf8     meta and data are JSON text; node, tag, meta may be null
    deleted    uint8                 0 = live, 255 = deleted; the only bytes that ever change
    tag_order  uint32                the piece's rows in the order of their tags, untagged ones last

Arrow has no checksums, so each batch's metadata has one per column (xxh3,
`deleted` left out), and so has the `PieceRef` in the snapshot, along with the
offsets of all buffers: the server reads by offset and never parses Arrow
metadata. A piece is checked when it is first touched; a mismatch is `Damaged`.

A file is complete and synced before a snapshot names it. Unnamed files are
orphans. This module owns the files' bytes, not which of them are in force.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64_hexdigest

from topics.errors import Damaged
from topics.model import TagMatch
from topics.storage.files import Disk

PREFIX, SUFFIX = "segment-", ".arrow"
LIVE, DELETED = 0, 255
FORMAT_VERSION = "1"

_TEXTS = ("node", "tag", "meta", "data")
_CHECKED = ("topic", "seq", "ts", *_TEXTS, "tag_order")


class RowLike(Protocol):
    """A record to seal."""

    @property
    def seq(self) -> int: ...
    @property
    def ts(self) -> int: ...
    @property
    def node(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def data(self) -> Raw: ...
    @property
    def meta(self) -> Raw | None: ...


class RowTuple(NamedTuple):
    """A record read back."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: Raw
    meta: Raw | None


class Column(Struct, frozen=True, array_like=True):
    """Where a column's buffers lie in the file: (offset, size) each; (0, 0) if there is none."""

    validity: tuple[int, int]
    offsets: tuple[int, int]
    values: tuple[int, int]
    checksum: str


class PieceRef(Struct, frozen=True, array_like=True):
    """One piece of a segment file: what the snapshot keeps of it."""

    file: int
    topic: int
    first: int
    last: int
    count: int
    size_bytes: int  # sum of the record sizes
    tagged: int  # rows with a tag
    file_bytes: int
    columns: dict[str, Column]


def name_of(number: int) -> str:
    return f"{PREFIX}{number:010d}{SUFFIX}"


def number_in(name: str) -> int | None:
    """The number of a segment file; None for another name."""
    text = name.removeprefix(PREFIX).removesuffix(SUFFIX)
    return int(text) if name == f"{PREFIX}{text}{SUFFIX}" and text.isdigit() else None


# --- writing


class Piece:
    """A run of one topic's records on its way into a segment, as Arrow columns."""

    def __init__(self, topic: int) -> None:
        self.topic = topic
        self.count = 0
        self._seqs: list[int] = []
        self._ts: list[int] = []
        self._texts: dict[str, list[Any]] = {name: [] for name in _TEXTS}
        self.size_bytes = 0

    def extend(self, rows: Iterable[RowLike]) -> None:
        """Add rows, ascending."""
        for row in rows:
            self._seqs.append(row.seq)
            self._ts.append(row.ts)
            self._texts["node"].append(row.node)
            self._texts["tag"].append(row.tag)
            self._texts["meta"].append(None if row.meta is None else bytes(row.meta))
            self._texts["data"].append(bytes(row.data))
            self.size_bytes += len(row.data) + (len(row.meta) if row.meta is not None else 0)
        self.count = len(self._seqs)

    def batch(self) -> Any:
        import pyarrow as pa

        tags = self._texts["tag"]
        tagged = sorted((tag.encode(), row) for row, tag in enumerate(tags) if tag is not None)
        order = [row for _, row in tagged] + [row for row, tag in enumerate(tags) if tag is None]
        arrays = [
            pa.array([self.topic] * self.count, pa.uint32()),
            pa.array(self._seqs, pa.uint64()),
            pa.array(self._ts, pa.int64()).view(pa.timestamp("ms", "UTC")),
            *(_text_array(self._texts[name]) for name in _TEXTS),
            _flags(self.count),
            pa.array(order, pa.uint32()),
        ]
        return pa.record_batch(arrays, schema=schema())

    def ref(self, file: int, file_bytes: int, columns: dict[str, Column]) -> PieceRef:
        tagged = sum(1 for tag in self._texts["tag"] if tag is not None)
        return PieceRef(
            file, self.topic, self._seqs[0], self._seqs[-1], self.count, self.size_bytes, tagged, file_bytes, columns
        )


def schema() -> Any:
    import pyarrow as pa

    text = [pa.field(name, pa.string(), nullable=name != "data") for name in _TEXTS]
    return pa.schema(
        [
            pa.field("topic", pa.uint32(), nullable=False),
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", "UTC"), nullable=False),
            *text,
            pa.field("deleted", pa.uint8(), nullable=False),
            pa.field("tag_order", pa.uint32(), nullable=False),
        ],
        metadata={"topics.format": FORMAT_VERSION},
    )


def _text_array(values: list[Any]) -> Any:
    import pyarrow as pa

    kind = pa.binary() if any(isinstance(value, bytes) for value in values) else pa.string()
    return pa.array(values, kind).view(pa.string())


def _flags(count: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(bytes([LIVE]) * count)])


def encode(number: int, pieces: Sequence[Piece]) -> tuple[bytes, list[PieceRef]]:
    """The bytes of segment file `number`, and a reference to each piece in it."""
    import pyarrow as pa

    batches = [piece.batch() for piece in pieces]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema()) as writer:
        for batch in batches:
            writer.write_batch(batch, custom_metadata={name: _checksum(batch, name) for name in _CHECKED})
    image = sink.getvalue()
    refs = []
    with pa.ipc.open_file(image) as reader:
        for index, piece in enumerate(pieces):
            columns = _columns(reader.get_batch(index), image.address)
            refs.append(piece.ref(number, image.size, columns))
    return image.to_pybytes(), refs


def _columns(batch: Any, base: int) -> dict[str, Column]:
    columns = {}
    for name in batch.schema.names:
        buffers = [(b.address - base, b.size) if b is not None else (0, 0) for b in batch.column(name).buffers()]
        validity, values = buffers[0], buffers[-1]
        offsets = buffers[1] if len(buffers) == 3 else (0, 0)
        columns[name] = Column(validity, offsets, values, _checksum(batch, name))
    return columns


def _checksum(batch: Any, name: str) -> str:
    return _checksum_of(memoryview(b) for b in batch.column(name).buffers() if b is not None)


def _checksum_of(buffers: Iterable[memoryview]) -> str:
    return xxh3_64_hexdigest(b"".join(buffers))


# --- reading


class SegmentFile:
    """A segment file, mapped when first touched."""

    def __init__(self, disk: Disk, number: int, size_bytes: int) -> None:
        self._disk = disk
        self.number = number
        self.size_bytes = size_bytes
        self.name = name_of(number)
        self._view: memoryview | None = None

    @property
    def path(self) -> str:
        return f"{self._disk.path}/{self.name}"

    @property
    def view(self) -> memoryview:
        if self._view is None:
            try:
                file = self._disk.open(self.name, writable=False)
            except FileNotFoundError:
                raise Damaged(self.path, 0, "this segment is missing") from None
            if file.size() < self.size_bytes:
                raise Damaged(self.path, file.size(), "the segment is cut short")
            self._view = file.map()
            file.close()
        return self._view

    def set_deleted(self, runs: Iterable[tuple[int, int]]) -> None:
        """Write the delete flags at file offsets start..stop, and sync. Blocking."""
        file = self._disk.open(self.name)
        try:
            for start, stop in runs:
                file.write(start, bytes([DELETED]) * (stop - start))
            file.sync()
        finally:
            file.close()


class SegmentRows:
    """The rows of one piece, read from the map."""

    def __init__(self, file: SegmentFile, ref: PieceRef) -> None:
        self.file = file
        self.ref = ref
        self._is_checked = False

    @property
    def count(self) -> int:
        return self.ref.count

    @property
    def has_tags(self) -> bool:
        return self.ref.tagged > 0

    @property
    def _is_dense(self) -> bool:
        return self.ref.last - self.ref.first + 1 == self.ref.count

    def seq_at(self, row: int) -> int:
        if self._is_dense:
            return self.ref.first + row
        return self._numbers("seq", "Q")[row]

    def row_from(self, seq: int) -> int:
        if self._is_dense:
            return max(0, min(self.ref.count, seq - self.ref.first))
        return bisect_left(self._numbers("seq", "Q"), seq)

    def bytes_before(self, row: int) -> int:
        if row == 0:
            return 0
        if row == self.ref.count:
            return self.ref.size_bytes
        return self._offsets("data")[row] + self._offsets("meta")[row]

    def ts_at(self, row: int) -> int:
        return self._numbers("ts", "q")[row]

    def row_after_ts(self, ts: int) -> int:
        return bisect_right(self._numbers("ts", "q"), ts)

    def rows(self, start: int, stop: int) -> list[RowTuple]:
        """Rows start..stop, deleted ones too."""
        seqs, timestamps = self._numbers("seq", "Q")[start:stop], self._numbers("ts", "q")[start:stop]
        nodes, tags, metas, datas = (self._texts(name, start, stop) for name in _TEXTS)
        return [
            RowTuple(seq, ts, _decoded(node), _decoded(tag), Raw(data), None if meta is None else Raw(meta))
            for seq, ts, node, tag, meta, data in zip(seqs, timestamps, nodes, tags, metas, datas, strict=True)
        ]

    def matching(self, match: TagMatch) -> list[int]:
        """Rows whose tag matches: a binary search in the tag order."""
        order = self._numbers("tag_order", "I")[: self.ref.tagged]
        wanted = match.value.encode()

        def tag_at(row: int) -> bytes:
            return next(self._texts("tag", row, row + 1)) or b""

        start = bisect_left(order, wanted, key=tag_at)
        if match.operator == "Eq":
            stop = bisect_right(order, wanted, start, key=tag_at)
        else:
            stop = bisect_left(order, True, start, key=lambda row: not tag_at(row).startswith(wanted))
        return list(order[start:stop])

    def flagged_rows(self) -> list[int]:
        """Rows whose delete flag is set."""
        offset, _ = self.ref.columns["deleted"].values
        flags = bytes(self.file.view[offset : offset + self.ref.count])
        if flags.count(LIVE) == self.ref.count:
            return []
        if flags.count(LIVE) + flags.count(DELETED) != self.ref.count:
            row = next(row for row, flag in enumerate(flags) if flag not in (LIVE, DELETED))
            raise Damaged(self.file.path, offset + row, f"a delete flag is {flags[row]}")
        return [row for row, flag in enumerate(flags) if flag == DELETED]

    def flag_offsets(self, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """File offsets of the delete flags of rows."""
        offset, _ = self.ref.columns["deleted"].values
        return [(offset + start, offset + stop) for start, stop in runs]

    def check(self) -> None:
        """Compare all columns with their checksums."""
        if self._is_checked:
            return
        view = self.file.view
        for name in _CHECKED:
            column = self.ref.columns[name]
            places = [place for place in (column.validity, column.offsets, column.values) if place != (0, 0)]
            if any(offset + size > len(view) for offset, size in places) or column.checksum != _checksum_of(
                view[offset : offset + size] for offset, size in places
            ):
                raise Damaged(
                    self.file.path, places[0][0] if places else 0, f"column {name} does not match its checksum"
                )
        self._is_checked = True

    def _numbers(self, name: str, code: Literal["Q", "q", "I"]) -> "memoryview[int]":
        self.check()
        offset, _ = self.ref.columns[name].values
        width = 4 if code == "I" else 8
        return self.file.view[offset : offset + self.ref.count * width].cast(code)

    def _offsets(self, name: str) -> "memoryview[int]":
        self.check()
        offset, _ = self.ref.columns[name].offsets
        return self.file.view[offset : offset + 4 * (self.ref.count + 1)].cast("i")

    def _texts(self, name: str, start: int, stop: int) -> Iterator[bytes | None]:
        offsets = self._offsets(name)[start : stop + 1].tolist()
        validity, validity_size = self.ref.columns[name].validity
        base, _ = self.ref.columns[name].values
        view = self.file.view
        if not validity_size:
            return (bytes(view[base + a : base + b]) for a, b in zip(offsets, offsets[1:], strict=False))
        return (
            bytes(view[base + a : base + b]) if view[validity + (row >> 3)] >> (row & 7) & 1 else None
            for row, (a, b) in enumerate(zip(offsets, offsets[1:], strict=False), start)
        )


def _decoded(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


encode_ref = msgspec.msgpack.Encoder().encode
decode_ref = msgspec.msgpack.Decoder(PieceRef).decode
