"""Idempotency keys, and the way of the state into a snapshot and back."""

from array import array

import msgspec
import pytest
from msgspec import structs

from topics.core import decide, dump
from topics.core import state as core_state
from topics.core.apply import apply, replay
from topics.core.entries import (
    AnyEntry,
    Appended,
    Deleted,
    Evicted,
    GapOpened,
    HeadInherited,
    Leased,
    QueuePaused,
    Reincarnated,
    Released,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.routing.copies import MissingRecord
from topics.core.state import KeyedWrite, Keys, State, Topic
from topics.core.topic.records import Batch
from topics.model import Gap, TopicConfig

BATCH = Batch(b'{"records":[{"data":1},{"data":2}]}', array("I", [1, 1]), False)


def state_of(*entries: AnyEntry) -> State:
    state = State()
    for entry in entries:
        apply(state, entry)
    return state


def created(id: int = 1, **config: object) -> TopicCreated:
    return TopicCreated(id, f"t{id}", id, TopicConfig(**config))  # type: ignore[arg-type]


def test_a_key_is_remembered_while_its_window_lasts() -> None:
    """ID1"""
    keys = Keys()
    keys.add("k", KeyedWrite(1, 2, 100), 10)
    assert keys.find("k", 10, 110) == KeyedWrite(1, 2, 100)
    assert keys.find("k", 10, 111) is None
    assert keys.find("k", 0, 100) is None
    assert keys.find("other", 10, 100) is None


def test_a_window_of_zero_remembers_nothing() -> None:
    """ID1"""
    keys = Keys()
    keys.add("k", KeyedWrite(1, 2, 100), 0)
    assert len(keys) == 0
    assert keys.find("k", 10, 100) is None


def test_keys_whose_window_is_over_are_forgotten_as_others_come() -> None:
    """ID8"""
    keys = Keys()
    for number in range(100):
        keys.add(f"k{number}", KeyedWrite(number, number, number * 10), 50)
    assert len(keys) == 6
    assert keys.find("k94", 50, 990) and not keys.find("k93", 10**9, 990)


def test_the_oldest_keys_beyond_the_bound_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """ID8"""
    monkeypatch.setattr(core_state, "KEYS_MAX", 3)
    keys = Keys()
    for name in "abcd":
        keys.add(name, KeyedWrite(1, 1, 0), 10)
    assert [name for name in "abcd" if keys.find(name, 10, 0)] == ["b", "c", "d"]


def test_each_key_is_dumped_once() -> None:
    """ST7: a dump costs what changed."""
    keys = Keys()
    keys.add("a", KeyedWrite(1, 1, 0), 10)
    assert keys.take_fresh() == [("a", KeyedWrite(1, 1, 0))]
    keys.add("b", KeyedWrite(2, 2, 0), 10)
    assert [name for name, _ in keys.take_fresh()] == ["b"]
    assert keys.take_fresh() == []
    keys.redump()
    assert [name for name, _ in keys.take_fresh()] == ["a", "b"]


def dumped(topic: Topic, position: int = 7, now: int = 0) -> Topic:
    items = {key: value for key, value in dump.dump_topic(topic, position, now).items() if value is not None}
    return dump.load(items).by_id[topic.id]


def test_a_topic_comes_back_from_its_dump() -> None:
    """TP16, TM14, ID8, WR6"""
    state = state_of(
        created(3, cap_records=9, durability="fsync"),
        Appended(3, 1, 500, BATCH, "k"),
        GapOpened(3, 5, "source_trim"),
        Appended(3, 6, 600, BATCH),
    )
    topic = state.by_id[3]
    topic.log.evict(1)
    topic.queue.deliveries[2] = 4
    topic.log.delete_blocks([(0, 1 << 2)])
    back = dumped(topic)
    assert (back.id, back.name, back.epoch, back.config, back.notes.snapshot_position) == (3, "t3", 3, topic.config, 7)
    log = back.log
    assert (log.deleted, log.lost, log.unaccounted) == (1, 4, 2), "two lie in segments"
    assert (log.head, log.evicted_last, log.expired_last, log.gaps, log.last_ts) == (
        7,
        1,
        0,
        [Gap(3, 5, "source_trim")],
        600,
    )
    assert (back.last_write_ts, back.reservation.last) == (600, topic.reservation.last)
    assert back.keys.find("k", 10**9, 500) == KeyedWrite(1, 2, 500)
    assert back.queue.deliveries == {2: 4}
    assert back.paused is False


def test_leases_are_added_to_a_dump_as_they_were_when_it_was_taken() -> None:
    """QU18, LM10"""
    state = state_of(created(3, type="queue", leases_durable=True), Appended(3, 1, 500, BATCH))
    topic = state.by_id[3]
    apply(state, Leased(3, "w", [(1, 77, 900, 1), (2, 78, 900, 3)]))
    items, leases = dump.dump_topic(topic, 7, 600), topic.queue.leases.copy()
    apply(state, Released(3, [(1, 77, 0)]))
    back = dump.load({key: dump.with_leases(value, leases) for key, value in items.items()}).by_id[3].queue
    assert [back.handed_out(seq) for seq in (1, 2)] == [1, 3]
    assert [back.has_lease(*lease) for lease in ((1, 77), (2, 78), (1, 78))] == [True, True, False]


def test_digests_of_keys_and_a_pause_come_back_from_a_dump() -> None:
    """ID9, QU23"""
    digested = structs.replace(BATCH, digest=2**64 - 1)
    state = state_of(created(type="queue"), Appended(1, 1, 500, digested, "k"), Appended(1, 3, 500, BATCH, "old"))
    apply(state, QueuePaused(1, True))
    back = dumped(state.by_id[1])
    assert back.paused is True
    assert back.keys.find("k", 10**9, 500) == KeyedWrite(1, 2, 500, 2**64 - 1)
    assert back.keys.find("old", 10**9, 500) == KeyedWrite(3, 4, 500, 0)


def test_items_of_older_versions_have_no_digests_and_are_not_paused() -> None:
    """ID9, QU23: such a key matches anything."""
    state = state_of(created(), Appended(1, 1, 500, structs.replace(BATCH, digest=5), "k"))
    items = {key: value for key, value in dump.dump_topic(state.by_id[1], 7, 500).items() if value is not None}
    old = {}
    for key, value in items.items():
        fields = msgspec.msgpack.decode(value, strict=False)
        old[key] = msgspec.msgpack.encode(fields[:-1])
    back = dump.load(old).by_id[1]
    known = back.keys.find("k", 10**9, 500)
    assert back.paused is False and known == KeyedWrite(1, 2, 500, 0)
    assert not known.differs(5) and not known.differs(6)
    assert KeyedWrite(1, 2, 500, 5).differs(6) and not KeyedWrite(1, 2, 500, 5).differs(5)
    assert not KeyedWrite(1, 2, 500, 5).differs(0)


def test_an_ephemeral_topic_comes_back_empty_with_its_loss_announced() -> None:
    """DU1, DU9, TP8"""
    state = state_of(created(durability="ephemeral"), Appended(1, 1, 500, BATCH, "k"), Appended(1, 3, 500, BATCH))
    topic = state.by_id[1]
    topic.log.delete_blocks([(0, 1 << 4)])
    back = dumped(topic)
    assert (back.log.head, back.log.count, back.log.earliest, back.log.floor) == (4, 0, 5, 4)
    assert (back.log.deleted, back.log.lost) == (1, 3)
    assert (back.last_write_ts, len(back.keys)) == (None, 0)
    assert back.log.last_ts == 500, "a later $ts may not fall below it (WR6)"


def test_blocks_of_keys_go_when_all_their_keys_are_forgotten() -> None:
    """ID8"""
    topic = state_of(created(idempotency_window_ms=100), Appended(1, 1, 500, BATCH, "k")).by_id[1]
    items = dump.dump_topic(topic, 7, 500)
    blocks = [key for key in items if key.startswith(b"k")]
    assert len(blocks) == 1
    assert not [key for key in dump.dump_topic(topic, 8, 600) if key.startswith(b"k")]
    assert {key: value for key, value in dump.dump_topic(topic, 9, 601).items() if key.startswith(b"k")} == {
        blocks[0]: None
    }


def test_a_topic_that_is_gone_takes_all_its_items_with_it() -> None:
    """TP11"""
    topic = state_of(created(), Appended(1, 1, 500, BATCH, "k")).by_id[1]
    items = dump.dump_topic(topic, 7, 500)
    assert dump.gone_topic(topic) == dict.fromkeys(items)


def test_replay_skips_what_the_snapshot_has() -> None:
    """ST9"""
    state = state_of(created())
    state.by_id[1].notes.snapshot_position = 100
    for position, first in ((50, 1), (99, 1), (100, 1), (150, 3)):
        replay(state, Appended(1, first, 0, BATCH), position)
    assert state.by_id[1].log.head == 4
    replay(state, created(), 200)
    replay(state, Appended(9, 1, 0, BATCH), 200)
    assert state.by_id[1].log.head == 4


def test_replay_of_a_topic_that_is_gone_leaves_the_one_of_its_name_that_the_snapshot_has() -> None:
    """ST9, G1: a checkpoint may capture a topic that was deleted and made again since its log began."""
    state = state_of(TopicCreated(2, "t", 2, TopicConfig()), Appended(2, 1, 0, BATCH))
    present = state.by_id[2]
    present.notes.snapshot_position = 100
    before: list[AnyEntry] = [
        TopicCreated(1, "t", 1, TopicConfig()),
        Appended(1, 1, 0, BATCH),
        TopicDeleted(1),
        TopicCreated(2, "t", 2, TopicConfig()),
        Appended(2, 1, 0, BATCH),
    ]
    for position, entry in enumerate(before, 50):
        replay(state, entry, position)
    assert state.topics == {"t": present} and list(state.by_id) == [2]
    assert (present.log.head, state.records) == (2, 2)
    replay(state, TopicDeleted(2), 100)
    replay(state, TopicCreated(3, "t", 3, TopicConfig()), 101)
    assert state.topics["t"].id == 3 and list(state.by_id) == [3]


@pytest.mark.parametrize("first", [1, 2, 4, 9])
def test_a_record_that_does_not_follow_the_head_is_not_replayed(first: int) -> None:
    """ST14, ST12: a log that two servers wrote, or one with a hole, is damage; it never becomes a state."""
    state = state_of(created(), Appended(1, 1, 0, BATCH))
    with pytest.raises(MissingRecord, match=f'seq {first} of topic "t1" does not follow its last one, 2'):
        replay(state, Appended(1, first, 0, BATCH), 1)
    assert state.by_id[1].log.head == 2


def test_only_a_topic_that_has_just_left_the_class_ephemeral_may_be_ahead_of_its_log() -> None:
    """DU5, ST14: once, and never behind its log."""
    state = state_of(created(durability="ephemeral"))
    replay(state, TopicConfigured(1, TopicConfig()), 1)
    replay(state, Appended(1, 5, 0, BATCH), 1)
    log = state.by_id[1].log
    assert (log.head, log.floor) == (6, 5)
    with pytest.raises(MissingRecord):
        replay(state, Appended(1, 9, 0, BATCH), 1)


def test_records_of_an_ephemeral_topic_that_the_log_lacks_are_announced_on_replay() -> None:
    """DU5, DU7, DU9"""
    state = state_of(created(durability="ephemeral"))
    replay(state, TopicConfigured(1, TopicConfig()), 1)
    replay(state, HeadInherited(1, 6, 5), 1)
    log = state.by_id[1].log
    assert (log.head, log.floor, log.earliest, log.count) == (6, 6, 7, 0)
    replay(state, Appended(1, 7, 0, BATCH), 1)
    assert (log.head, log.earliest) == (8, 7)


def test_what_an_ephemeral_topic_lost_before_it_was_logged_stays_announced() -> None:
    """DU5, DU9, TM14: evicted by a cap, then the rest deleted, then the class is changed"""
    state = state_of(created(durability="ephemeral"), Appended(1, 1, 0, BATCH), Appended(1, 3, 0, BATCH))
    apply(state, Evicted(1, 2))
    apply(state, Deleted(1, 5, [], 2))
    kept = decide.head_inherited(state.by_id[1])
    after = state_of(created(durability="ephemeral"))
    replay(after, TopicConfigured(1, TopicConfig()), 1)
    replay(after, kept, 1)
    log = after.by_id[1].log
    assert (log.head, log.floor, log.deleted, log.lost, log.unaccounted) == (4, 3, 2, 2, 0)


def test_a_delete_whose_marks_are_ahead_of_the_snapshot_is_counted_when_it_is_replayed() -> None:
    """ST9, DL9"""
    state = state_of(created(), Appended(1, 1, 0, BATCH), Appended(1, 3, 0, BATCH))
    log = state.by_id[1].log
    log.delete_blocks([(0, 1 << 2)])
    log.deleted = 0  # as the snapshot says: it is older than the mark
    replay(state, Deleted(1, 0, [(0, bytes([1 << 2 | 1 << 3]))], 2), 1)
    assert (log.count, log.deleted, log.unaccounted) == (2, 2, 0)
    replay(state, Deleted(1, 9, [], 2), 1)
    assert (log.count, log.deleted, log.unaccounted) == (0, 4, 0)


def test_a_topic_that_became_ephemeral_has_lost_its_records_after_a_crash() -> None:
    """DU5, DU9, DU7"""
    state = state_of(created(), Appended(1, 1, 0, BATCH, "k"))
    replay(state, TopicConfigured(1, TopicConfig(durability="ephemeral")), 1)
    topic = state.by_id[1]
    assert (topic.log.head, topic.log.count, topic.log.floor, len(topic.keys)) == (2, 0, 3, 0)
    assert (state.records, state.bytes) == (0, 0)
    apply(state, Reincarnated(1, 5))
    assert (topic.epoch, state.next_id) == (5, 6)
