"""Pages: records as the JSON that readers get."""

import tracemalloc
from array import array
from itertools import pairwise

import pytest
from msgspec import Raw

from topics.core.topic.pages import (
    NO_ROW,
    PAGE_BYTES,
    PAGE_OVERHEAD_BYTES,
    RENDERED_BYTES,
    Cache,
    Cold,
    Page,
    PageAddress,
    Projection,
    page_around,
    render,
    set_borders,
)
from topics.core.topic.parts import PAGE_ROWS, Chunk, Sealed
from topics.core.topic.records import Layout, parse_write
from topics.model import Columns, LaidRows, TagMatch
from topics.settings import Settings
from topics.storage.arrays import arrays_of
from topics.storage.segments import PieceBuilder, SegmentFile, SegmentPiece, encode, name_of
from topics.testing.disk import MemoryDisk


def chunk_of(*bodies: bytes, first: int = 1, ts: int = 5) -> Chunk:
    chunk = Chunk(first)
    for body in bodies:
        _, batch = parse_write(body, Settings())
        chunk.append(batch.body, batch.sizes, ts, batch.has_tags)
    return chunk


def rendered(chunk: Chunk, projection: Projection) -> bytes:
    return Cache(10**9).page(chunk, 0, projection).slice(0, chunk.count)


RECORD = b'{"records":[{"data":{"a": 1},"tag":"x","node":"n","meta":{"m":1}}]}'


@pytest.mark.parametrize(
    ("projection", "text"),
    [
        (Projection(), b'{"$seq":1,"$ts":5,"$node":"n","data":{"a": 1},"meta":{"m":1}}'),
        (Projection(tags=True), b'{"$seq":1,"$ts":5,"$node":"n","$tag":"x","data":{"a": 1},"meta":{"m":1}}'),
        (Projection(meta=False), b'{"$seq":1,"$ts":5,"$node":"n","data":{"a": 1}}'),
        (Projection(data=False), b'{"$seq":1,"$ts":5,"$node":"n"}'),
        (Projection(tags=True, meta=True, data=False), b'{"$seq":1,"$ts":5,"$node":"n","$tag":"x"}'),
        (Projection(tags=True, meta=False), b'{"$seq":1,"$ts":5,"$node":"n","$tag":"x","data":{"a": 1}}'),
    ],
)
def test_a_record_is_rendered_with_the_fields_asked_for(projection: Projection, text: bytes) -> None:
    """CV9, CV5"""
    assert rendered(chunk_of(RECORD), projection) == text


def test_absent_fields_are_left_out_and_null_data_is_not() -> None:
    """CV9, WR2"""
    chunk = chunk_of(b'{"records":[{"data":null,"meta":null},{"data":1,"node":"","tag":""},{"data":2}],"node":null}')
    assert rendered(chunk, Projection(tags=True)) == (
        b'{"$seq":1,"$ts":5,"data":null},{"$seq":2,"$ts":5,"$node":"","$tag":"","data":1},{"$seq":3,"$ts":5,"data":2}'
    )


@pytest.mark.parametrize(
    "text",
    [b'{"b":1.0,"a":12345678901234567890,"b":1e400}', b'"a,b\\n}]{[\\""', '"é\u2028"'.encode(), b"[ 1 ,\t2 ]"],
)
def test_data_is_rendered_verbatim(text: bytes) -> None:
    """CV6"""
    chunk = chunk_of(b'{"records":[{"data":%s},{"data":7,"meta":{"m":%s}}]}' % (text, text))
    assert rendered(
        chunk, Projection()
    ) == b'{"$seq":1,"$ts":5,"data":%s},{"$seq":2,"$ts":5,"data":7,"meta":{"m":%s}}' % (text, text)


def test_a_page_grows_with_its_chunk() -> None:
    """What was rendered stays; only the new rows are added."""
    chunk, cache = Chunk(1), Cache(10**9)
    for number in range(1, 40):
        _, batch = parse_write(b'{"records":[{"data":%d,"tag":"t","node":"n%d"}]}' % (number, number % 2), Settings())
        chunk.append(batch.body, batch.sizes, number, True)
        page = cache.page(chunk, number - 1, Projection())
        assert page.count == number
        assert page.slice(number - 1, number) == b'{"$seq":%d,"$ts":%d,"$node":"n%d","data":%d}' % (
            *(number, number, number % 2, number),
        )
    assert page.slice(0, 39).count(b"$seq") == 39
    assert page.nodes == [f"n{number % 2}" for number in range(1, 40)]
    assert cache.size_bytes == page.size_bytes


def test_pages_that_nobody_has_used_for_a_while_are_dropped_and_others_are_not() -> None:
    """LM11: but one that somebody waits for."""
    chunks, cache = [chunk_of(b'{"records":[{"data":1}]}') for _ in range(4)], Cache(10**9)
    for chunk in chunks:
        cache.page(chunk, 0, Projection())
    cache.drop_idle()
    full = cache.size_bytes
    used = cache.page(chunks[1], 0, Projection())
    cache.keep((chunks[2], 0, Projection()))
    cache.drop_idle()
    assert full - cache.size_bytes == 2 * used.size_bytes
    assert cache.page(chunks[1], 0, Projection()) is used
    cache.let_go((chunks[2], 0, Projection()))
    cache.drop_idle()
    cache.drop_idle()
    assert cache.size_bytes == full - 4 * used.size_bytes
    small = Cache(1)
    small.drop_idle()
    assert small.page(chunks[0], 0, Projection()).count == 1, "however small the cache is"


def test_the_first_node_or_tag_of_a_page_may_come_late() -> None:
    chunk, cache = chunk_of(b'{"records":[{"data":1},{"data":2}]}'), Cache(10**9)
    page = cache.page(chunk, 0, Projection())
    assert (page.nodes, page.tags) == (None, None)
    for body in (b'{"records":[{"data":3,"tag":"x"}]}', b'{"records":[{"data":4}],"node":"n"}'):
        _, batch = parse_write(body, Settings())
        chunk.append(batch.body, batch.sizes, 6, batch.has_tags)
    page = cache.page(chunk, 3, Projection())
    assert page.nodes == [None, None, None, "n"]
    assert page.tags == [None, None, "x", None]


def test_rows_of_a_chunk_are_decoded_across_its_bodies() -> None:
    """WR2"""
    chunk = chunk_of(*[b'{"records":[{"data":%d},{"data":%d,"node":"x"}],"node":"b"}' % (n, n + 1) for n in (0, 2, 4)])
    for start in range(6):
        for stop in range(start + 1, 7):
            columns = chunk.columns(start, stop)
            assert [int(bytes(data)) for data in columns.datas] == list(range(start, stop))
            assert list(columns.seqs) == list(range(start + 1, stop + 1))
            assert columns.nodes == ["x" if row % 2 else "b" for row in range(start, stop)]


def test_a_chunk_knows_its_sizes_and_times() -> None:
    """TP15"""
    chunk = Chunk(11)
    for ts, sizes in ((5, [1, 2]), (5, [3]), (9, [4, 5])):
        chunk.append(b"", array("I", sizes), ts, False)
    assert [chunk.bytes_before(row) for row in range(6)] == [0, 1, 3, 6, 10, 15]
    assert [chunk.ts_at(row) for row in range(5)] == [5, 5, 5, 9, 9]
    assert [chunk.row_after_ts(ts) for ts in (4, 5, 8, 9)] == [0, 3, 3, 5]
    assert [chunk.row_from(seq) for seq in (1, 11, 13, 15, 16, 99)] == [0, 0, 2, 4, 5, 5]
    assert (chunk.live_count, chunk.live_bytes, chunk.last) == (5, 15, 15)


@pytest.mark.parametrize(
    "other",
    [
        b'{"records":[{"data":1,"tag":"t"}]}',
        b'{"records":[{"data":1,"meta":{"a":1}}]}',
        b'{"records":[{"data":1,"meta":null}]}',
        b'{"records":[{"data":1}],"node":"n"}',
        b'{"records":[{"data": 1}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"d\\u0061ta":1}]}',
    ],
)
def test_rows_are_laid_out_if_all_bodies_have_nothing_but_data(other: bytes) -> None:
    plain = b'{"records":[{"data":[1]},{"data":"b"}]}'

    def bare(*bodies: bytes) -> list[bytes] | None:
        chunk = chunk_of(*bodies)
        whole = Chunk.from_image(chunk.image(), memoryview(b"".join(bodies)))
        if (rows := whole.laid()) is None:
            return None
        ends = zip(rows.sums, rows.sums[1:], rows.others, strict=False)
        return [bytes(rows.text[start + other : stop + other]) for start, stop, other in ends]

    assert bare(plain, plain) == [b"[1]", b'"b"', b"[1]", b'"b"']
    assert bare(plain, other) is None
    assert bare(other, plain) is None


def test_a_chunk_is_full_at_a_page_of_rows() -> None:
    chunk = Chunk(1)
    assert chunk.takes(10 * PAGE_ROWS), "an empty one takes anything"
    chunk.append(b"", array("I", [1] * (PAGE_ROWS - 1)), 0, False)
    assert chunk.takes(1) and not chunk.takes(2)
    chunk.is_closed = True
    assert not chunk.takes(1)


def test_the_layout_of_a_body_is_known_for_as_long_as_it_is_the_only_one() -> None:
    """LM14: and weighs as long."""
    layout, sizes = Layout(bytes(8), bytes(8)), array("I", [1, 1])
    laid, plain = Chunk(3), Chunk(3)
    laid.append(b"first", sizes, 7, False, layout)
    plain.append(b"first", sizes, 7, False)
    assert plain.laid() is None
    others = array("I", [len('{"records":[{"data":'), len('{"records":[{"data":},{"data":')])
    sums = array("I", [0, 1, 2])
    assert laid.laid() == LaidRows(3, array("q", [7, 7]), b"first", sums, others, bytes(8), bytes(8))
    assert laid.weight == plain.weight + layout.weight
    for chunk in (laid, plain):
        chunk.append(b"second", sizes, 8, False, layout)
    assert laid.laid() is plain.laid() is None
    assert laid.weight == plain.weight
    singles = Chunk(3)
    singles.append(b"first", sizes, 7, False, layout)
    singles.append_singles([b"a", b"b"], [1, 1], [8, 8], False)
    assert singles.laid() is None


def test_tags_are_searched_in_order() -> None:
    """DL7, DL2"""
    tags = ["b", "a", "", "a:1", "a;", "é", "a:é", "a:", "B"]
    body = ",".join(f'{{"data":1,"tag":"{tag}"}}' for tag in tags)
    chunk = chunk_of(f'{{"records":[{body},{{"data":1}}]}}'.encode())
    for match in (TagMatch("Eq", tag) for tag in (*tags, "zz")):
        assert sorted(chunk.matching(match)) == [row for row, tag in enumerate(tags) if tag == match.value]
    for prefix in ("", "a", "a:", "é", "b", "zz"):
        found = sorted(chunk.matching(TagMatch("Glob", prefix)))
        assert found == [row for row, tag in enumerate(tags) if tag.startswith(prefix)]


def sealed(rows: Columns) -> Sealed:
    piece = PieceBuilder(1)
    piece.extend(arrays_of(rows))
    image, file, [ref] = encode(1, [piece])
    return SegmentPiece(SegmentFile(MemoryDisk({name_of(1): bytes(image)}), file), ref)


def columns(seqs: list[int]) -> Columns:
    return Columns(seqs, [5] * len(seqs), None, None, None, [Raw(b"%d" % seq) for seq in seqs])


def test_a_page_of_a_segment_is_cold_until_it_is_loaded() -> None:
    seqs = list(range(1, 4000, 2))
    part, cache = sealed(columns(seqs)), Cache(10**9)
    with pytest.raises(Cold) as cold:
        cache.page(part, 1500, Projection())
    missing = cold.value.missing
    assert isinstance(missing, PageAddress)
    assert (missing.start, page_around(part, missing.start)) == (PAGE_ROWS, (PAGE_ROWS, 2000))
    cache.load(missing, render(missing))
    cache.load(missing, render(missing))
    page = cache.page(part, 1500, Projection())
    assert page.slice(1500, 1501) == b'{"$seq":3001,"$ts":5,"data":3001}'
    assert cache.size_bytes == page.size_bytes


@pytest.mark.parametrize("metas", [None, [None, Raw(b'{"a":1}')] * 5])
def test_a_large_page_of_a_segment_is_rendered_in_steps_to_the_same_text(metas: list[Raw | None] | None) -> None:
    """LM10: some rows are larger than a step."""
    sizes = [RENDERED_BYTES * n // 10 for n in (1, 12, 3, 3, 5, 0, 10, 11, 1, 1)]
    seqs = list(range(1, len(sizes) + 1))
    datas = [Raw(b'"%b"' % (b"x" * size)) for size in sizes]
    rows = Columns(seqs, [5] * len(seqs), None, None, metas, datas)
    page = render(PageAddress(sealed(rows), 0, Projection()))
    whole = Page(0)
    whole.extend(rows, Projection())
    assert (page.text, page.ends, page.count) == (whole.text, whole.ends, len(seqs))


def test_the_pages_used_least_recently_are_dropped_first() -> None:
    chunks = [chunk_of(b'{"records":[{"data":%d}]}' % n, first=n) for n in range(1, 6)]
    cache = Cache(10**9)
    size = cache.page(chunks[0], 0, Projection()).size_bytes
    assert size > PAGE_OVERHEAD_BYTES
    cache = Cache(3 * size)
    for chunk in (*chunks[:3], chunks[0], chunks[3], chunks[4]):
        cache.page(chunk, 0, Projection())
    assert {key[0] for key in cache._fresh.pages} == {chunks[0], chunks[3], chunks[4]}
    assert cache.size_bytes == 3 * size


def test_sealed_pages_take_no_room_from_those_of_records_in_memory() -> None:
    """LM8: whoever reads all that is sealed fills a small part of the cache, and pushes nobody's newest page out."""
    chunk, part = chunk_of(b'{"records":[{"data":1}]}', first=9001), sealed(columns(list(range(1, 9001))))
    addresses = [PageAddress(part, start, Projection()) for start in range(0, part.count, PAGE_ROWS)]
    size = render(addresses[0]).size_bytes
    cache = Cache(100 * size, 3 * size)
    newest = cache.page(chunk, 0, Projection())
    for address in addresses:
        cache.load(address, render(address))
    assert cache.size_bytes <= newest.size_bytes + 3 * size
    assert cache.page(chunk, 0, Projection()) is newest


@pytest.mark.parametrize(
    ("sizes", "borders"),
    [
        ([10] * 3000, [0, 1024, 2048, 3000]),
        ([5000] * 1500, [0, 838, 1500]),
        ([10] * 2000 + [60_000] * 200, [0, 1024, 2048, 2117, 2186, 2200]),
        ([60_000] * 100 + [10] * 2000, [0, 69, 1093, 2100]),
        ([PAGE_BYTES + 1] * 3, [0, 1, 2, 3]),
        ([PAGE_BYTES, 0, 1, 0], [0, 2, 4]),
    ],
)
def test_a_page_of_a_segment_is_bounded_in_rows_and_in_bytes(sizes: list[int], borders: list[int]) -> None:
    """LM6, LM11: a page takes its memory as a whole; wherever it ends, all rows are on one."""
    texts = {size: Raw(b"x" * size) for size in set(sizes)}
    datas = [texts[size] for size in sizes]
    part = sealed(Columns(list(range(1, len(sizes) + 1)), [5] * len(sizes), None, None, None, datas))
    if sum(sizes) > PAGE_BYTES:
        with pytest.raises(Cold) as unknown:
            page_around(part, 1)
        assert unknown.value.missing == PageAddress(part, NO_ROW, None)
        set_borders(part)
    for start, stop in pairwise(borders):
        assert page_around(part, start) == page_around(part, stop - 1) == (start, stop)
        assert render(PageAddress(part, start, Projection())).count == stop - start


def test_the_pages_of_a_part_are_forgotten_wherever_they_begin() -> None:
    seqs = list(range(1, 301))
    part = sealed(Columns(seqs, [5] * 300, None, None, None, [Raw(b'"%b"' % (b"x" * 60_000))] * 300))
    cache = Cache(10**9)
    cache.forget(part)
    set_borders(part)
    for row in range(0, 300, 20):
        address = PageAddress(part, page_around(part, row)[0], Projection())
        cache.load(address, render(address))
    assert cache.size_bytes > 300 * 60_000
    cache.forget(part)
    assert cache.size_bytes == 0


def test_pages_with_tags_or_nodes_weigh_what_these_take_in_memory() -> None:
    """LM6: beside the text, a page keeps both of each row, for filters."""
    rows = columns(list(range(1, 1001)))
    plain, tagged = Page(0), Page(0)
    plain.extend(rows, Projection())
    tracemalloc.start()
    try:
        tagged.extend(rows._replace(tags=[f"tag-{seq}" for seq in rows.seqs]), Projection())
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tagged.text == plain.text
    assert plain.size_bytes < kept < 1.2 * tagged.size_bytes


def test_a_forgotten_part_leaves_nothing_in_the_cache() -> None:
    chunk = Chunk(1)
    _, batch = parse_write(b'{"records":[%s]}' % b",".join([b'{"data":1}'] * 3000), Settings())
    chunk.append(batch.body, batch.sizes, 5, False)
    cache = Cache(10**9)
    for row in (0, 1500, 2999):
        for projection in (Projection(), Projection(tags=True), Projection(data=False)):
            cache.page(chunk, row, projection)
    cache.forget(chunk)
    assert (cache.size_bytes, [shelf for shelf in cache.shelves if shelf.pages]) == (0, [])


def test_a_page_that_someone_waits_for_is_not_dropped() -> None:
    seqs = list(range(1, 4000))
    part, cache = sealed(columns(seqs)), Cache(1)
    awaited, other = PageAddress(part, 0, Projection()), PageAddress(part, PAGE_ROWS, Projection())
    for _ in range(2):
        cache.keep(awaited)
    for address in (awaited, other):
        cache.load(address, render(address))
    assert cache.page(part, 0, Projection()).count == PAGE_ROWS
    cache.let_go(awaited)
    cache.load(other, render(other))
    assert cache.page(part, 0, Projection()).count == PAGE_ROWS
    cache.let_go(awaited)
    cache.let_go(awaited)
    third = PageAddress(part, 2, Projection())
    cache.load(third, render(third))
    with pytest.raises(Cold):
        cache.page(part, 0, Projection())
