"""How a read is cut into parts, and what is told of what is lost."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from topics.ranges import Range, aligned, intersect, split, subtract, union
from topics.reader import Lost, Piece
from topics.spark.options import Cursor
from topics.spark.plan import Look, RecordsLost, Stretch, Survey, Wanted, bounds, check, limited, parts_of

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda r: (r[0], r[0] + r[1])), max_size=6)


def within(ranges: list[Range]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_seqs(some: list[Range], others: list[Range]) -> None:
    a, b = union(some), union(others)
    assert within(a) == within(some)
    assert all(left[1] + 1 < right[0] for left, right in pairwise(a))
    assert within(intersect(a, b)) == within(some) & within(others)
    assert within(subtract(a, b)) == within(some) - within(others)


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 20), st.lists(st.integers(1, 250), max_size=10))
def test_cuts_cover_a_stretch_without_overlap(after: int, seqs: int, parts: int, ends: list[int]) -> None:
    last = after + seqs
    for cuts in (list(split(after, last, parts)), aligned(after, last, parts, sorted(ends))):
        assert cuts[0][0] == after and cuts[-1][1] == last
        assert all(left[1] == right[0] for left, right in pairwise(cuts))
    assert len(list(split(after, last, parts))) == max(1, min(parts, seqs))


def stretch(topic: str = "t", after: int = 0, last: int = 100, **survey: Any) -> Stretch:
    return Stretch(Look(topic, 1, last, 1), after, last, Survey(**survey))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 90)), min_size=1, max_size=4),
    st.integers(1, 12),
    RANGES,
    RANGES,
    st.booleans(),
)
def test_each_seq_is_in_one_part_and_each_gap_is_told_once(
    spans: list[tuple[int, int]], parts_min: int, lost: list[Range], covered: list[Range], is_stream: bool
) -> None:
    stretches = []
    for n, (after, seqs) in enumerate(spans):
        here = [Lost(a, b, "cap") for a, b in intersect(union(lost), [(after + 1, after + seqs)])]
        absent = [(gap.first, gap.last) for gap in here]
        stretches.append(stretch(f"t{n}", after, after + seqs, lost=here, absent=absent, covered=union(covered)))
    parts = parts_of(stretches, parts_min, is_stream=is_stream, announces=True)
    for one in stretches:
        of_it = [part for part in parts if part.topic == one.look.topic]
        assert [seq for part in of_it for seq in range(part.after + 1, part.last + 1)] == list(
            range(one.after + 1, one.last + 1)
        )
        told = [gap for part in of_it for gap in part.announced]
        assert told == one.gaps
        assert within([(gap.first, gap.last) for gap in told]) == within(
            [(gap.first, gap.last) for gap in one.survey.lost]
        ) - within(covered)
    assert len(parts) >= min(parts_min, sum(one.last - one.after for one in stretches))


def test_parts_of_a_batch_read_end_where_segments_end() -> None:
    pieces = [Piece("f", 0, 10, first, first + 9, 100) for first in range(1, 100, 10)]
    parts = parts_of([stretch(pieces=pieces, sealed=100)], 3, is_stream=False, announces=False)
    assert [(part.after, part.last) for part in parts] == [(0, 30), (30, 70), (70, 100)]
    assert [len(part.pieces) for part in parts] == [3, 4, 3]


def test_more_parts_than_segments_are_had_if_they_are_wanted() -> None:
    parts = parts_of([stretch(pieces=[Piece("f", 0, 100, 1, 100, 1)], sealed=100)], 3, is_stream=False, announces=False)
    assert [(part.after, part.last) for part in parts] == [(0, 33), (33, 66), (66, 100)]


def test_parts_of_a_stream_depend_on_its_offsets_alone() -> None:
    one = stretch(pieces=[Piece("f", 0, 100, 1, 100, 1)], sealed=100)
    other = stretch(lost=[Lost(1, 60, "ttl")], absent=[(1, 60)])
    plans = [parts_of([s], 4, is_stream=True, announces=True) for s in (one, other)]
    assert [[(p.after, p.last) for p in plan] for plan in plans] == [[(0, 25), (25, 50), (50, 75), (75, 100)]] * 2


def test_what_was_deleted_below_the_first_record_makes_no_parts() -> None:
    look = Look("t", 1, 1000, 901)
    parts = parts_of([Stretch(look, 0, 1000)], 2, is_stream=False, announces=False)
    assert [(part.after, part.last) for part in parts] == [(0, 950), (950, 1000)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Cursor(5, 3), (3, None)),
        (Cursor(5, 10), (10, None)),
        (Cursor(4, 3), (1, Lost(1, 8, "recreated"))),
        (Cursor(5, 11), (1, Lost(1, 8, "recreated"))),
    ],
)
def test_a_cursor_of_another_instance_starts_over(start: Cursor, expected: tuple[int, Lost | None]) -> None:
    """TM11"""
    assert bounds(Look("t", 5, 10, 2), start, 8) == expected


def test_a_failing_reader_is_told_every_range() -> None:
    lost = [Lost(1, 4, "cap"), Lost(8, 9, "source_trim")]
    with pytest.raises(RecordsLost) as caught:
        check(
            [
                stretch("a", lost=lost, covered=[(1, 2)]),
                Stretch(Look("b", 2, 5, 1), 0, 5, recreated=Lost(1, 5, "recreated")),
            ]
        )
    for said in ("topic a, seqs 3 to 4 (cap)", "topic a, seqs 8 to 9 (source_trim)", "topic b was deleted and created"):
        assert said in str(caught.value)
    check([stretch("a", lost=lost, covered=[(1, 9)])])


def test_filters_bound_what_is_read_and_never_by_too_much() -> None:
    """Those that are not understood leave everything."""
    when = datetime(2026, 1, 31, 12, 0, 0, 1500, UTC)
    ms = 1_769_860_800_001
    wanted = Wanted.of(
        [
            GreaterThan(("seq",), 10),
            LessThanOrEqual(("seq",), 20),
            GreaterThanOrEqual(("ts",), when),
            LessThan(("ts",), when),
            In(("tag",), ("a", "b")),
            EqualTo(("tag",), "b"),
            Not(EqualTo(("topic",), "t")),
            EqualTo(("o", "seq"), 3),
            GreaterThan(("ts",), datetime(2030, 1, 1)),  # of no zone
        ]
    )
    assert wanted == Wanted(tags=frozenset("b"), first=11, last=20, since=ms, until=ms + 1)
    assert Wanted.of([EqualTo(("seq",), 7), EqualTo(("topic",), "t")]) == Wanted(frozenset("t"), first=7, last=7)


def test_a_limit_is_shared_by_how_far_topics_are_behind() -> None:
    looks = {"a": Look("a", 1, 900, 1), "b": Look("b", 1, 100, 1), "c": Look("c", 1, 50, 1)}
    starts = {"a": Cursor(1, 0), "b": Cursor(1, 0), "c": Cursor(1, 50)}
    assert limited(starts, looks, None, None) == {"a": Cursor(1, 900), "b": Cursor(1, 100), "c": Cursor(1, 50)}
    assert limited(starts, looks, 100, None) == {"a": Cursor(1, 90), "b": Cursor(1, 10), "c": Cursor(1, 50)}
    assert limited(starts, looks, 1, None) == {"a": Cursor(1, 1), "b": Cursor(1, 1), "c": Cursor(1, 50)}


def test_a_limit_of_bytes_goes_by_the_average_record() -> None:
    looks = {"a": Look("a", 1, 100, 1, record_bytes=50.0)}
    assert limited({"a": Cursor(1, 20)}, looks, None, 500) == {"a": Cursor(1, 30)}
    assert limited({"a": Cursor(1, 20)}, looks, 5, 500) == {"a": Cursor(1, 25)}


def test_a_new_or_recreated_topic_is_behind_by_all_it_has() -> None:
    looks = {"a": Look("a", 7, 10, 1), "b": Look("b", 1, 10, 1)}
    assert limited({"a": Cursor(6, 9)}, looks, 10, None) == {"a": Cursor(7, 5), "b": Cursor(1, 5)}


@given(st.integers(0, 50), st.integers(1, 400), st.integers(1, 60), st.booleans())
def test_a_part_has_no_more_records_than_it_may(after: int, seqs: int, part_max: int, is_stream: bool) -> None:
    pieces = [Piece("f", 0, 90, first, first + 89, 1) for first in range(1, 500, 90)]
    one = stretch(after=after, last=after + seqs, pieces=pieces, sealed=after + seqs)
    parts = parts_of([one], 1, is_stream=is_stream, announces=False, part_max=part_max)
    assert max(part.last - part.after for part in parts) <= part_max
    assert [seq for part in parts for seq in range(part.after + 1, part.last + 1)] == list(
        range(after + 1, after + seqs + 1)
    )


def test_what_is_gone_below_the_first_record_takes_nothing_of_a_limit() -> None:
    looks = {"a": Look("a", 1, 100, 81)}
    assert limited({"a": Cursor(1, 10)}, looks, 5, None) == {"a": Cursor(1, 85)}
    assert limited({"a": Cursor(1, 10)}, looks, 5, None, has_lake=True) == {"a": Cursor(1, 15)}
    assert limited({"a": Cursor(1, 90)}, looks, 5, None) == {"a": Cursor(1, 95)}
    assert limited({"a": Cursor(1, 10)}, {"a": Look("a", 1, 100, 101)}, 5, None) == {"a": Cursor(1, 100)}
