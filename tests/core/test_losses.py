"""Losses of a log: what becomes of neighbours, of too many, and of directories that did not list them."""

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.core.test_parts import sealed
from topics.core import dump
from topics.core.apply import apply, replay
from topics.core.decide import head_inherited
from topics.core.entries import Appended, Deleted, Evicted, Expired, GapOpened, TopicConfigured, TopicCreated
from topics.core.forecast import seconds_until_loss
from topics.core.rates import Pace
from topics.core.state import State, Topic
from topics.core.topic import losses
from topics.core.topic.log import Log
from topics.core.topic.losses import LOSSES_KEPT, RUNS_KEPT, SLACK, Loss
from topics.core.topic.records import Batch
from topics.model import Columns, TopicConfig


def batch(count: int) -> Batch:
    body = b'{"records":[' + b",".join([b'{"data":1}'] * count) + b"]}"
    return Batch(body, array("I", [1] * count), False)


def filled(count: int, ts: int = 0) -> Log:
    log = Log()
    log.append(batch(count), ts)
    return log


def delete(log: Log, *seqs: int) -> None:
    for seq in seqs:
        log.delete_blocks([(seq // 1024, 1 << seq % 1024)])


def ranges(log: Log) -> list[tuple[int, int, str, int]]:
    log.check()
    return [(loss.first, loss.last, loss.reason, loss.count) for loss in log.losses]


# --- neighbours


@pytest.mark.parametrize(
    ("ts", "reason", "one"), [(1000, "cap", True), (1001, "cap", False), (-1000, "cap", True), (0, "ttl", False)]
)
def test_losses_that_adjoin_are_one_within_a_second(ts: int, reason: str, one: bool) -> None:
    """LS1: of one reason."""
    log = filled(4, 5000)
    log.evict(1, 5000)
    (log.evict if reason == "cap" else log.expire)(2, 5000 + ts)
    assert len(ranges(log)) == (1 if one else 2)
    if one:
        assert log.losses == [Loss(1, 2, "cap", max(5000, 5000 + ts), 2)]


def test_a_loss_between_two_others_joins_both() -> None:
    """LS1"""
    found: losses.Losses = []
    for first, last in ((1, 2), (5, 6), (3, 4)):
        losses.note(found, Loss(first, last, "cap", 7, 2))
    assert found == [Loss(1, 6, "cap", 7, 6)]


def test_a_deleted_seq_between_lost_ones_is_in_no_loss() -> None:
    """LS1, RC1"""
    log = filled(9)
    delete(log, 3, 4, 7)
    log.evict(8, 1)
    assert ranges(log) == [(1, 2, "cap", 2), (5, 6, "cap", 2), (8, 8, "cap", 1)]
    assert [losses.reason_of(log.losses, seq) for seq in range(1, 10)] == [
        *("cap", "cap", None, None, "cap", "cap", None, "cap", None),
    ]


def test_a_loss_across_a_gap_leaves_the_gap_its_reason() -> None:
    """LS1, TM12"""
    log = filled(3)
    log.open_gap(5, "source_trim", 1)
    log.append(batch(3), 2)
    log.evict(7, 3)
    assert ranges(log) == [(1, 3, "cap", 3), (4, 5, "source_trim", 2), (6, 7, "cap", 2)]
    assert (log.lost, log.trimmed, log.expired) == (7, 2, 0)


def test_a_loss_across_a_gap_counts_what_was_lost_on_each_side() -> None:
    """LS1, NC3: also of sealed records, where nothing is left of the deleted ones."""
    log = filled(6)
    log.open_gap(8, "source_trim", 1)
    log.append(batch(6), 2)
    delete(log, 2, 3, 4, 5, 10)
    seqs = [1, 6, 9, 11, 12, 13, 14]
    piece = sealed(Columns(seqs, [0] * 7, None, None, None, [Raw(b"1")] * 7))
    log.replace(list(log.parts), [piece], log.live_rows())
    log.expire(14, 3)
    assert ranges(log) == [(1, 6, "ttl", 2), (7, 8, "source_trim", 2), (9, 14, "ttl", 5)]
    assert losses.lost_above(log.losses, 8) == 5


def test_a_loss_in_too_many_stretches_is_one_with_what_was_deleted() -> None:
    """LS1"""
    log = filled(1000)
    delete(log, *range(2, 900, 2))
    log.evict(900, 1)
    assert ranges(log) == [(1, 900, "cap", 451)]
    log = filled(RUNS_KEPT * 2)
    delete(log, *range(2, RUNS_KEPT * 2, 2))
    log.evict(RUNS_KEPT * 2, 1)
    assert len(ranges(log)) == RUNS_KEPT


# --- too many


def test_beyond_a_thousand_the_old_ones_merge() -> None:
    """LS1: the last 1000 stay as they are."""
    log = filled(3 * LOSSES_KEPT)
    for seq in range(1, 2 * LOSSES_KEPT + 1):
        log.evict(seq, seq * 2000)
    log.check()
    assert LOSSES_KEPT <= len(log.losses) <= LOSSES_KEPT + SLACK + 1
    newest = losses.newest_first(log.losses, LOSSES_KEPT)
    assert [loss.first for loss in newest] == list(range(2 * LOSSES_KEPT, LOSSES_KEPT, -1))
    oldest = log.losses[0]
    assert oldest == Loss(1, oldest.last, "cap", oldest.last * 2000, oldest.last)


def test_losses_with_live_records_between_them_do_not_merge() -> None:
    """LS1: a range holds nothing live."""
    log = Log()
    for number in range(LOSSES_KEPT + SLACK + 50):
        log.append(batch(1), number * 2000)
        log.open_gap(log.head + 1, "source_trim", number * 2000)
    log.check()
    assert len(log.losses) == LOSSES_KEPT + SLACK + 50
    log.evict(log.head - 1, 10**9)
    log.check()
    assert len(log.losses) <= 2 * LOSSES_KEPT + SLACK + 1  # an old one between two new ones stays


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.sampled_from([0, 500, 3000])), max_size=40))
def test_a_short_list_keeps_its_counts_and_its_order(steps: list[tuple[int, int, int]]) -> None:
    """LS1: whatever merges, the sum stays, and so does every seq."""
    found: losses.Losses = []
    seq, ts, lost = 1, 0, set()
    for width, apart, pause in steps:
        seq, ts = seq + apart, ts + pause
        losses.note(found, Loss(seq, seq + width - 1, "cap", ts, width))
        lost.update(range(seq, seq + width))
        seq += width
    losses.check(found, seq, len(lost))
    assert {one for loss in found for one in range(loss.first, loss.last + 1)} == lost
    for cursor in range(seq + 1):
        assert losses.lost_above(found, cursor) == sum(one > cursor for one in lost)
        assert (losses.reason_of(found, cursor) is not None) == (cursor in lost)
    for lower, upper in pairwise(found):
        assert lower.last + 1 < upper.first or upper.ts - lower.ts > 1000


# --- snapshots, old ones too


def dumped(topic: Topic, **changes: object) -> State:
    """The topic as a snapshot has it, with fields changed."""
    item = dump._decode_topic(dump.dump_topic(topic, 1, 77)[dump.topic_key(topic.id)] or b"")
    for name, value in changes.items():
        setattr(item, name, value)
    return dump.load({dump.topic_key(topic.id): dump._encode(item)})


def topic_with(*entries: object, config: TopicConfig | None = None) -> tuple[State, Topic]:
    state = State()
    apply(state, TopicCreated(1, "t", 1, config or TopicConfig()))
    apply(state, Appended(1, 1, 50, batch(9)))
    for entry in entries:
        apply(state, entry)  # type: ignore[arg-type]
    return state, state.by_id[1]


OLD = {"expired": -1, "trimmed": 0, "losses": [], "cursors": {}}


@pytest.mark.parametrize(
    ("entries", "want", "expired"),
    [
        ((Evicted(1, 3, 60),), [Loss(1, 3, "cap", 50, 3)], 0),
        ((Expired(1, 4, 60),), [Loss(1, 4, "ttl", 50, 4)], 4),
        ((Evicted(1, 2, 60), Expired(1, 4, 70)), [Loss(1, 4, "mixed", 50, 4)], 0),
        ((Deleted(1, 3, [], 2), Evicted(1, 4, 60)), [Loss(1, 4, "cap", 50, 2)], 0),
        ((GapOpened(1, 12, "source_trim", 60),), [Loss(10, 12, "source_trim", 50, 3)], 0),
        ((Deleted(1, 3, [], 2),), [], 0),
        ((), [], 0),
    ],
)
def test_a_snapshot_without_losses_gives_what_is_known(
    entries: tuple[object, ...], want: list[Loss], expired: int
) -> None:
    """LS1, LS2: from the floor and the gaps."""
    _, topic = topic_with(*entries)
    log = dumped(topic, **OLD).by_id[1].log
    log.mark_dead(range(1, topic.log.earliest))
    for part in topic.log.parts:
        log.attach(part)
    log.derive_losses()
    assert log.losses == want and log.expired == expired
    assert log.trimmed == sum(loss.count for loss in want if loss.reason == "source_trim")
    assert (log.lost, log.deleted) == (topic.log.lost, topic.log.deleted)
    log.check_totals()


def test_a_snapshot_of_version_1_counts_what_the_floor_tells() -> None:
    """LS2: it did not count at all."""
    _, topic = topic_with(Evicted(1, 3, 60), GapOpened(1, 12, "cap", 60))
    log = dumped(topic, **OLD, deleted=-1, lost=0).by_id[1].log
    log.mark_dead(range(1, topic.log.earliest))
    for part in topic.log.parts:
        log.attach(part)
    log.derive_losses()
    assert (log.lost, log.deleted) == (6, 0)
    assert log.losses == [Loss(1, 3, "cap", 50, 3), Loss(10, 12, "cap", 50, 3)]
    log.check_totals()


def test_an_ephemeral_topic_is_dumped_with_what_a_stop_would_take() -> None:
    """LS1, DU9"""
    _, topic = topic_with(Deleted(1, 3, [], 2), Evicted(1, 4, 60), config=TopicConfig(durability="ephemeral"))
    log = dumped(topic).by_id[1].log
    assert log.losses == [Loss(3, 9, "cap", 77, 7)] and log.lost == 7
    log.check_totals()


@pytest.mark.parametrize("is_old", [False, True])
def test_a_topic_that_leaves_the_class_ephemeral_takes_its_losses_along(is_old: bool) -> None:
    """LS1, LS2, DU5: an entry of an older version has none; then one loss is all that is known."""
    ephemeral = TopicConfig(durability="ephemeral")
    _, topic = topic_with(Expired(1, 2, 60), Deleted(1, 5, [], 2), config=ephemeral)
    entry = head_inherited(topic)
    if is_old:
        entry.losses = None
    state = State()
    apply(state, TopicCreated(1, "t", 1, ephemeral))
    replay(state, TopicConfigured(1, TopicConfig()), 1)
    replay(state, entry, 2)
    log = state.by_id[1].log
    log.check()
    assert (log.head, log.lost, log.deleted) == (9, 7, 2)
    if not is_old:
        assert log.losses == [Loss(1, 2, "ttl", 60, 2), Loss(5, 9, "cap", 50, 5)] and log.expired == 2


# --- the pace, and the forecast


def test_the_pace_is_that_of_the_last_minute() -> None:
    """LS3"""
    pace, total = Pace(), 0
    for second in range(100):
        due = pace.sample(second * 1000 + 500, total)
        assert due == (second + 1) * 1000
        total += 2
    assert pace.grown(99_500, total) == 120
    assert pace.grown(129_500, total) == 60
    assert pace.grown(200_000, total) == 0
    pace.shift(1000)
    assert pace.grown(99_500, total + 1000) == 120


def test_a_clock_that_steps_back_counts_nothing_twice() -> None:
    """LS3, CV25"""
    pace = Pace()
    pace.sample(10_000, 0)
    pace.sample(5_000, 7)
    assert pace.grown(10_000, 9) == 9


def test_holes_are_not_written() -> None:
    """LS3: a gap takes seqs, and nobody has written."""
    log = filled(5, 1000)
    log.open_gap(1005, "cap", 1500)
    log.append(batch(2), 1600)
    assert log.written_lately(1700) == 7


def test_a_forecast_costs_nothing_for_a_topic_without_bounds() -> None:
    """LS3"""
    _, topic = topic_with()
    assert seconds_until_loss(topic, 60) is None
    topic.config = TopicConfig(cap_records=18)
    assert seconds_until_loss(topic, 60) == 66.667  # 10 records more, at 9 a minute
    assert seconds_until_loss(topic, 60, after=8) == 120.0
    assert seconds_until_loss(topic, 60, after=9) is None
    topic.config = TopicConfig(ttl_ms=5)
    assert seconds_until_loss(topic, 60) == 0.0
