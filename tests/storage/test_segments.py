"""Segments: what goes in comes out, anything that reads Arrow can read it, and damage is found column by column."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from topics.engine.durability.catalogue import MAPPED_BYTES_MAX, Maps
from topics.errors import Damaged
from topics.model import Columns, TagMatch
from topics.storage import segments
from topics.storage.arrays import arrays_of
from topics.storage.disk import RealDisk
from topics.storage.segments import (
    DELETED,
    FileRef,
    PieceBuilder,
    PieceRef,
    SegmentFile,
    SegmentPiece,
)
from topics.testing.disk import MemoryDisk


class Row(NamedTuple):
    """A record; data and meta are JSON texts."""

    seq: int
    data: str = "1"
    tag: str | None = None
    node: str | None = None
    meta: str | None = None

    @property
    def ts(self) -> int:
        return 1_700_000_000_000 + self.seq


ROWS = [
    Row(3, '{"a":1}', "chat-42:x", "n", '{"m":1}'),
    Row(4, "null"),
    Row(5, '"ünïcödé 🦉"', "chat-420:x", "ñ", '{"ü":"🦉"}'),
    Row(6, "[]", ""),
    Row(7, "1e400", "chat-42:y", ""),
    Row(8, '{"b":1.0,"b":2}', "chat-42:x"),
]
SPARSE = [Row(10, '"sparse"', "z"), Row(20, "2"), Row(1_000_000, "3", "a")]
PLAIN = [Row(seq, str(seq)) for seq in range(1, 30)]


def columns_of(rows: list[Row]) -> Columns:
    """Rows as columns; one that is empty throughout is None."""

    def texts(values: list[Any]) -> list[Any] | None:
        return None if all(value is None for value in values) else values

    return Columns(
        [row.seq for row in rows],
        [row.ts for row in rows],
        texts([row.node for row in rows]),
        texts([row.tag for row in rows]),
        texts([None if row.meta is None else Raw(row.meta.encode()) for row in rows]),
        [Raw(row.data.encode()) for row in rows],
    )


def sealed(*groups: list[Row]) -> tuple[bytes, FileRef, list[PieceRef]]:
    """A segment file with a piece for each group: topic 1, 2, …"""
    pieces = []
    for topic, rows in enumerate(groups, 1):
        piece = PieceBuilder(topic)
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            if part:
                piece.extend(arrays_of(columns_of(part)))
        pieces.append(piece)
    image, file, refs = segments.encode(1, pieces)
    return bytes(image), file, refs


def opened(*groups: list[Row], disk: MemoryDisk | None = None) -> list[SegmentPiece]:
    """The pieces, as the next process has them from the snapshot."""
    image, file, refs = sealed(*groups)
    disk = disk or MemoryDisk({segments.name_of(1): image})
    kept = SegmentFile(disk, segments.decode_file(segments.encode_ref(file)))
    return [SegmentPiece(kept, segments.decode_piece(segments.encode_ref(ref))) for ref in refs]


def read(piece: SegmentPiece, start: int = 0, stop: int | None = None) -> list[Row]:
    stop = piece.count if stop is None else stop
    seqs, timestamps, nodes, tags, metas, datas = piece.columns(start, stop)
    blank = [None] * len(seqs)
    rows = [
        Row(seq, bytes(data).decode(), tag, node, None if meta is None else bytes(meta).decode())
        for seq, data, tag, node, meta in zip(seqs, datas, tags or blank, nodes or blank, metas or blank, strict=True)
    ]
    assert list(timestamps) == [row.ts for row in rows]
    return rows


GROUPS = [[ROWS], [SPARSE], [PLAIN], [ROWS, SPARSE, PLAIN], [SPARSE, ROWS], [PLAIN, ROWS]]


@pytest.mark.parametrize("groups", GROUPS)
def test_rows_come_back_as_they_were(groups: list[list[Row]]) -> None:
    """CV6: nulls, empty texts, any spelling of JSON; dense and sparse seqs; pieces that share a file."""
    for piece, rows in zip(opened(*groups), groups, strict=True):
        assert read(piece) == rows
        assert (piece.count, piece.has_tags) == (len(rows), any(row.tag is not None for row in rows))
        for start in range(len(rows)):
            assert read(piece, start, start + 1) == rows[start : start + 1]
            assert read(piece, start) == rows[start:]


@pytest.mark.parametrize("groups", GROUPS)
def test_rows_are_found_by_seq_time_and_size(groups: list[list[Row]]) -> None:
    for piece, rows in zip(opened(*groups), groups, strict=True):
        sizes = [len(row.data.encode()) + len((row.meta or "").encode()) for row in rows]
        for number, row in enumerate(rows):
            assert (piece.seq_at(number), piece.ts_at(number)) == (row.seq, row.ts)
            assert piece.row_from(row.seq) == number
            assert piece.row_from(row.seq + 1) == number + 1
            assert piece.row_after_ts(row.ts) == number + 1
            assert piece.row_after_ts(row.ts - 1) == number
        assert [piece.bytes_before(n) for n in range(len(rows) + 1)] == [sum(sizes[:n]) for n in range(len(rows) + 1)]


@pytest.mark.parametrize(
    ("operator", "value", "seqs"),
    [
        ("Eq", "chat-42:x", [3, 8]),
        ("Eq", "chat-42", []),
        ("Eq", "", [6]),
        ("Eq", "zzz", []),
        ("Glob", "chat-42:", [3, 7, 8]),
        ("Glob", "chat-42", [3, 5, 7, 8]),
        ("Glob", "", [3, 5, 6, 7, 8]),
        ("Glob", "d", []),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_rows_are_found_by_tag(operator: Any, value: str, seqs: list[int], index: int) -> None:
    """DL7: `chat-42:*` leaves `chat-420:x` alone; untagged rows never match."""
    groups = [SPARSE, PLAIN]
    groups.insert(index, ROWS)
    piece = opened(*groups)[index]
    assert sorted(piece.seq_at(row) for row in piece.matching(TagMatch(operator, value))) == seqs
    assert opened(PLAIN)[0].matching(TagMatch(operator, value)) == []


TAGS = st.none() | st.text(st.sampled_from("aé:z🦉\ue000"), max_size=3)


@given(st.lists(TAGS, min_size=1, max_size=30), TAGS, st.sampled_from(["Eq", "Glob"]))
def test_tags_of_any_alphabet_are_found(tags: list[str | None], wanted: str | None, operator: Any) -> None:
    """DL2, DL7"""
    match = TagMatch(operator, wanted or "")
    piece = opened([Row(seq, tag=tag) for seq, tag in enumerate(tags, 1)])[0]
    assert sorted(piece.matching(match)) == [n for n, tag in enumerate(tags) if match.matches(tag)]


def test_anything_that_reads_arrow_reads_a_segment() -> None:
    """ST6: the columns are those that the module's docstring documents."""
    image, file, _ = sealed(ROWS, SPARSE)
    reader = pa.ipc.open_file(pa.BufferReader(image))
    table = reader.read_all()
    rows = [*ROWS, *SPARSE]
    assert {field.name: str(field.type) for field in table.schema} == {
        "topic": "uint32",
        "seq": "uint64",
        "ts": "timestamp[ms, tz=UTC]",
        "node": "string",
        "tag": "string",
        "meta": "string",
        "data": "string",
        "deleted": "uint8",
        "tag_order": "uint32",
    }
    assert reader.num_record_batches == 1
    assert file.count == table.num_rows == len(rows)
    assert table.column("topic").to_pylist() == [1] * len(ROWS) + [2] * len(SPARSE)
    assert table.column("seq").to_pylist() == [row.seq for row in rows]
    assert table.column("ts").cast(pa.int64()).to_pylist() == [row.ts for row in rows]
    for name in ("node", "tag", "meta", "data"):
        assert table.column(name).to_pylist() == [getattr(row, name) for row in rows]
    assert table.column("deleted").to_pylist() == [0] * len(rows)
    order = table.column("tag_order").to_pylist()
    assert sorted(order[: len(ROWS)]) == list(range(len(ROWS)))
    metadata = table.schema.metadata
    assert metadata[b"topics.format"] == b"1"
    for name, column in file.columns.items():
        if name != "deleted":
            assert metadata[f"topics.xxh3.{name}".encode()] == column.checksum.encode()


def test_delete_flags_are_set_by_runs_and_seen_by_arrow() -> None:
    """DL9"""
    image, file, refs = sealed(SPARSE, ROWS)
    disk = MemoryDisk({segments.name_of(1): image})
    piece = SegmentPiece(SegmentFile(disk, file), refs[1])
    assert piece.flagged_rows() == []
    piece.set_deleted([(0, 1), (3, 5)])
    assert piece.flagged_rows() == [0, 3, 4]
    assert SegmentPiece(piece.file, refs[0]).flagged_rows() == []
    again = SegmentPiece(SegmentFile(disk.power_loss("lost"), file), refs[1])
    assert again.flagged_rows() == [0, 3, 4]
    assert read(again) == ROWS
    table = pa.ipc.open_file(pa.BufferReader(disk.files()[segments.name_of(1)])).read_all()
    assert table.column("deleted").to_pylist() == [0, 0, 0, DELETED, 0, 0, DELETED, DELETED, 0]


def test_a_crash_in_mid_flip_leaves_each_record_live_or_deleted() -> None:
    """DL9"""
    rows = [Row(seq) for seq in range(1, 1200)]
    image, file, refs = sealed(rows)
    disk = MemoryDisk({segments.name_of(1): image})
    flags, _ = file.columns["deleted"].values
    disk.open(segments.name_of(1)).write(flags + 100, bytes([DELETED]) * 1000)
    for name, after in disk.aftermaths():
        flagged = set(SegmentPiece(SegmentFile(after, file), refs[0]).flagged_rows())
        assert flagged <= set(range(100, 1100)), name


@pytest.mark.parametrize("value", [1, 127, 254])
def test_a_delete_flag_of_another_value_is_damage(value: int) -> None:
    """ST12, DL9"""
    image, file, refs = sealed(SPARSE, ROWS)
    offset = file.columns["deleted"].values[0] + len(SPARSE) + 2
    disk = MemoryDisk({segments.name_of(1): image[:offset] + bytes([value]) + image[offset + 1 :]})
    kept = SegmentFile(disk, file)
    assert SegmentPiece(kept, refs[0]).flagged_rows() == []
    with pytest.raises(Damaged, match=f"damaged at offset {offset}: a delete flag is {value}"):
        SegmentPiece(kept, refs[1]).flagged_rows()


def test_a_flipped_byte_is_found_by_its_columns_checksum_or_changes_nothing() -> None:
    """ST12: never another record."""
    image, file, refs = sealed(ROWS, SPARSE)
    flags = range(file.columns["deleted"].values[0], file.columns["deleted"].values[0] + file.count)
    found = []
    for offset in range(len(image)):
        hurt = image[:offset] + bytes([image[offset] ^ 0x55]) + image[offset + 1 :]
        kept = SegmentFile(MemoryDisk({segments.name_of(1): hurt}), file)
        pieces = [SegmentPiece(kept, ref) for ref in refs]
        try:
            assert [read(piece) for piece in pieces] == [ROWS, SPARSE]
            assert all(piece.flagged_rows() == [] for piece in pieces)
        except Damaged as damage:
            found.append((damage.file, damage.offset, offset))
    for path, place, offset in found:
        assert path == f"memory/{segments.name_of(1)}"
        assert (place == offset) if offset in flags else (place <= offset)
    buffers = [place for column in file.columns.values() for place in (column.validity, column.offsets, column.values)]
    assert len(found) == sum(size for _, size in buffers)


def test_a_segment_that_is_missing_or_cut_short_is_damage_and_a_longer_one_is_not() -> None:
    """ST12"""
    image, file, refs = sealed(ROWS)
    with pytest.raises(Damaged, match=r"segment-0000000001\.arrow: damaged at offset 0: this segment is missing"):
        read(SegmentPiece(SegmentFile(MemoryDisk(), file), refs[0]))
    for size in range(0, len(image), 7):
        with pytest.raises(Damaged, match=f"damaged at offset {size}: the segment is cut short"):
            read(SegmentPiece(SegmentFile(MemoryDisk({segments.name_of(1): image[:size]}), file), refs[0]))
    assert read(SegmentPiece(SegmentFile(MemoryDisk({segments.name_of(1): image + b"x"}), file), refs[0])) == ROWS


@pytest.mark.parametrize("name", ["segment-1.txt", "segment-.arrow", "segment-x.arrow", "log-0000000001", "arrow"])
def test_other_names_are_no_segments(name: str) -> None:
    assert segments.number_in(name) is None
    assert segments.number_in(segments.name_of(12)) == 12


def test_a_piece_is_not_looked_at_for_a_tag_outside_its_first_and_last() -> None:
    """DL7, LM10: these are known from the first search on; then no file is touched for such a tag."""
    tags = [f"m{number:03}" for number in range(segments.ENDS_MIN)]
    rows = [Row(seq, tag=tag) for seq, tag in enumerate(tags, 1)]
    image, file, [ref] = sealed(rows)
    disk = MemoryDisk({segments.name_of(1): image})
    piece = SegmentPiece(SegmentFile(disk, file), ref)
    for _ in range(2):
        for value in ("a", "m", "m0", "m000", "m0000", "m05", "m099", "m0990", "m1", "n"):
            expected = [row for row, tag in enumerate(tags) if tag.startswith(value)]
            assert sorted(piece.matching(TagMatch("Glob", value))) == expected
            assert piece.matching(TagMatch("Eq", value)) == [row for row, tag in enumerate(tags) if tag == value]
    piece.file.let_go()
    disk.remove(piece.file.name)
    for value in ("a", "l999", "m0990", "n"):
        assert piece.matching(TagMatch("Eq", value)) == piece.matching(TagMatch("Glob", value)) == []
    with pytest.raises(Damaged):
        piece.matching(TagMatch("Eq", "m050"))


# --- maps


def files_of(maps: Maps, count: int) -> tuple[MemoryDisk, list[SegmentFile], PieceRef]:
    """Files with the same rows, each a little more than a third of what may be mapped."""
    image, file, [ref] = sealed([Row(seq, '"' + "x" * (MAPPED_BYTES_MAX // 30) + '"') for seq in range(1, 11)])
    disk = MemoryDisk({segments.name_of(number): image for number in range(1, count + 1)})
    return disk, [SegmentFile(disk, replace(file, number=number), maps.add) for number in range(1, count + 1)], ref


def mapped(files: list[SegmentFile]) -> list[int]:
    return [file.ref.number for file in files if file._view is not None]


def test_what_stays_mapped_is_bounded_whatever_is_read() -> None:
    """LM11: the files that were mapped first are let go first, and mapped again when they are read again."""
    maps = Maps()
    _, files, ref = files_of(maps, 5)
    for round in range(2):
        for file in files:
            assert len(SegmentPiece(file, ref).columns(0, 10).datas) == 10
            assert maps.size_bytes <= MAPPED_BYTES_MAX
        assert mapped(files) == [4, 5], round
    maps.shrink()
    assert (mapped(files), maps.size_bytes) == ([], 0)


def test_a_file_that_is_larger_than_all_that_may_be_mapped_is_mapped_alone() -> None:
    maps = Maps()
    _, small, _ = files_of(maps, 2)
    image, file, [ref] = sealed([Row(1, '"' + "x" * MAPPED_BYTES_MAX + '"')])
    large = SegmentFile(MemoryDisk({segments.name_of(1): image}), file, maps.add)
    for one in small:
        one.view()
    assert SegmentPiece(large, ref).count == 1 and len(large.checked()) == file.size_bytes
    assert (mapped(small), mapped([large])) == ([], [1])
    small[0].view()
    assert (mapped(small), mapped([large])) == ([1], [])


def test_a_file_that_is_removed_is_readable_for_whoever_keeps_its_bytes() -> None:
    """G2: an export does."""
    maps = Maps()
    disk, (kept, other), ref = files_of(maps, 2)
    view = kept.view()
    other.view()
    maps.shrink()
    for file in (kept, other):
        disk.remove(file.name)
    assert len(SegmentPiece(kept, ref).columns(0, 10).datas) == 10
    with pytest.raises(Damaged):
        SegmentPiece(other, ref).columns(0, 10)
    del view
    maps.shrink()
    with pytest.raises(Damaged):
        kept.view()


def test_what_was_read_of_a_large_file_does_not_stay_in_memory(tmp_path: Path) -> None:
    """LM11: neither checking nor reading a file takes as much memory as it has bytes."""
    builder, text = PieceBuilder(1), Raw(b'"%b"' % (b"x" * 60_000))
    builder.extend(arrays_of(Columns(list(range(1, 301)), [5] * 300, None, None, None, [text] * 300)))
    image, ref, [piece_ref] = segments.encode(1, [builder])
    (tmp_path / segments.name_of(1)).write_bytes(image)
    piece = SegmentPiece(SegmentFile(RealDisk(tmp_path), ref), piece_ref)
    for start in range(0, 300, 50):
        assert piece.columns(start, start + 50).datas == [text] * 50
        assert _resident_bytes(str(tmp_path)) < ref.size_bytes / 4


def _resident_bytes(directory: str) -> int:
    """What the maps of files in a directory take in this process."""
    sizes: list[int] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_ours = directory in line
        elif is_ours and line.startswith("Rss:"):
            sizes.append(int(line.split()[1]) * 1024)
    assert sizes, "no file is mapped"
    return sum(sizes)
