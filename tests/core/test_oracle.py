"""The oracle keeps the contract's examples, and the contract's invariant."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.examples import EXAMPLES, Example, batch, run
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, TopicFull, TopicNotEmpty, TopicNotFound
from topics.model import TagMatch, TopicConfig
from topics.testing.oracle import Deleted, GapReason, Oracle, Read, TopicView, Write, Written

EPHEMERAL = TopicConfig(durability="ephemeral")


class OracleAdapter:
    """Plays examples on the oracle."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.now = 1_000_000

    def put(self, topic: str, config: TopicConfig) -> bool:
        return self.oracle.put_topic(topic, config, self.now)

    def drop(self, topic: str) -> bool:
        return self.oracle.delete_topic(topic, self.now)

    def append(
        self, topic: str, records: Sequence[Write], *, key: str | None, create: bool | None, config: TopicConfig | None
    ) -> Written:
        return self.oracle.append(topic, records, self.now, key=key, create=create, config=config)

    def delete(self, topic: str, *, before_seq: int | None, match: TagMatch | None) -> Deleted:
        return self.oracle.delete(topic, self.now, before_seq=before_seq, match=match)

    def open_gap(self, topic: str, size: int, reason: GapReason) -> None:
        self.oracle.open_gap(topic, size, reason)

    def read(
        self,
        topic: str,
        after: int,
        *,
        limit: int,
        bytes_max: int,
        nodes: Collection[str],
        epoch: int | None,
        filter: TagMatch | None,
    ) -> Read:
        return self.oracle.read(
            topic, after, self.now, limit=limit, bytes_max=bytes_max, nodes=nodes, epoch=epoch, filter=filter
        )

    def state(self, topic: str) -> TopicView:
        return self.oracle.state(topic, self.now)

    def move_clock(self, ms: int) -> None:
        self.now += ms

    def restart(self) -> None:
        self.oracle.restart(clean=True, power_loss=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_oracle_keeps_the_example(example: Example) -> None:
    """E1-E12, S1, S2, S6, S13, S19, S20, S25, S27, S29 and the corners C1-C24."""
    run(example, OracleAdapter())


def test_names_of_examples_are_unique() -> None:
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)


def read_all(oracle: Oracle, name: str, now: int, after: int = 0, epoch: int | None = None) -> Read:
    return oracle.read(name, after, now, limit=1000, bytes_max=1_000_000, epoch=epoch)


def test_ts_repeats_the_last_value_when_the_clock_steps_back() -> None:
    """WR6, TP8"""
    oracle = Oracle()
    for now in (50, 40, 60):
        oracle.append("t", batch(1), now)
    assert [record.ts for record in read_all(oracle, "t", 60).records] == [50, 50, 60]
    assert oracle.state("t", 60).last_write_ts == 60


def test_a_record_is_read_as_written_and_its_node_overrides_the_batchs() -> None:
    """WR2, TP15, CV6"""
    oracle = Oracle()
    oracle.append("t", [Write(b"1", "a", "x", b'{"m":1}'), Write(b"null", node="")], 5, node="y")
    oracle.append("t", [Write(b"2")], 5, node="y")
    records = read_all(oracle, "t", 5).records
    assert [(r.data, r.meta, r.tag, r.node) for r in records] == [
        (b"1", b'{"m":1}', "a", "x"),
        (b"null", None, None, ""),
        (b"2", None, None, "y"),
    ]
    assert oracle.state("t", 5).bytes == 1 + 7 + 4 + 1


def test_a_repeat_counts_the_window_from_the_ts_of_the_first_write() -> None:
    """ID1, WR6: the clock stepped back before the first write, so its $ts lies ahead."""
    oracle = Oracle()
    oracle.put_topic("t", TopicConfig(idempotency_window_ms=10), 0)
    oracle.append("t", batch(1), 100)
    oracle.append("t", batch(1), 50, key="k")
    assert oracle.append("t", batch(1), 110, key="k") == Written(2, 2, 2, 1, created=False, deduped=True)
    assert oracle.append("t", batch(1), 111, key="k").first == 3


def test_a_write_that_creates_says_so_and_its_repeat_does_not() -> None:
    """WR8, ID1"""
    oracle = Oracle()
    assert oracle.append("t", batch(2), 0, key="k") == Written(1, 2, 2, 2, created=True, deduped=False)
    assert oracle.append("t", batch(2), 0, key="k") == Written(1, 2, 2, 2, created=False, deduped=True)


def test_a_write_is_refused_in_the_order_of_the_contract() -> None:
    """WR14: each write below has this fault and all later ones."""
    full = TopicConfig(discard="reject", cap_records=2, cap_bytes=30)
    oracle = Oracle(max_topics=1, max_total_bytes=25)
    oracle.put_topic("t", full, 0)
    oracle.append("t", batch(1), 0, key="k")
    oracle.append("t", batch(1), 0)
    refusals: list[tuple[type[Exception], str, dict[str, Any], list[Write]]] = [
        (TopicNotFound, "?", {"create": False}, batch(9)),
        (InvalidRequest, "?", {}, batch(9)),
        (Throttled, "new", {"config": full}, batch(9)),
        (RecordTooLarge, "t", {"key": "other"}, batch(3)),
        (TopicFull, "t", {"key": "other"}, batch(1)),
    ]
    for error, name, options, records in refusals:
        with pytest.raises(error) as refusal:
            oracle.append(name, records, 0, **options)
        assert refusal.type is error
    assert oracle.append("t", batch(9), 0, key="k").deduped
    oracle.put_topic("t", TopicConfig(), 0)
    with pytest.raises(Throttled) as refusal:
        oracle.append("t", batch(1), 0)
    assert refusal.value.detail == {"limit": "max_total_bytes", "max": 25}
    assert oracle.names() == ["t"]
    assert oracle.state("t", 0).head == 2


def test_total_bytes_bound_what_is_live_after_the_write() -> None:
    """LM4: eviction, expiry, delete and topic deletion free it; 0 = off."""
    oracle = Oracle(max_total_bytes=30)
    oracle.put_topic("ring", TopicConfig(cap_records=1), 0)
    oracle.put_topic("old", TopicConfig(ttl_ms=10), 0)
    oracle.append("ring", batch(1), 0)
    oracle.append("old", batch(2), 0)
    oracle.append("ring", batch(3), 0)
    with pytest.raises(Throttled):
        oracle.append("new", batch(1), 10)
    assert oracle.names() == ["old", "ring"]
    oracle.append("new", batch(2), 11)
    with pytest.raises(Throttled):
        oracle.append("new", batch(1), 11)
    oracle.delete("new", 11, before_seq=2)
    oracle.append("new", batch(1), 11)
    oracle.delete_topic("ring", 11)
    oracle.append("new", batch(1), 11)


def test_only_new_topics_count_against_max_topics() -> None:
    """LM1, LM3"""
    oracle = Oracle(max_topics=1)
    assert oracle.put_topic("a", TopicConfig(), 0)
    assert not oracle.put_topic("a", TopicConfig(ttl_ms=1), 0)
    with pytest.raises(Throttled) as refusal:
        oracle.put_topic("b", TopicConfig(), 0)
    assert refusal.value.detail == {"limit": "max_topics", "max": 1}
    oracle.delete_topic("a", 0)
    assert oracle.put_topic("b", TopicConfig(), 0)


def test_only_an_empty_topic_is_deleted_if_empty() -> None:
    """TP11: expired records do not count."""
    oracle = Oracle()
    assert not oracle.delete_topic("t", 0, if_empty=True)
    oracle.append("t", batch(2), 0, config=TopicConfig(ttl_ms=10))
    with pytest.raises(TopicNotEmpty) as refusal:
        oracle.delete_topic("t", 10, if_empty=True)
    assert refusal.value.detail == {"topic": "t", "count": 2}
    assert oracle.delete_topic("t", 11, if_empty=True)


def test_what_is_not_there_is_not_found() -> None:
    """DF7, DL1, TP8: the selector of a delete is checked first."""
    oracle = Oracle()
    with pytest.raises(TopicNotFound):
        read_all(oracle, "t", 0)
    with pytest.raises(TopicNotFound):
        oracle.state("t", 0)
    with pytest.raises(InvalidRequest):
        oracle.delete("t", 0)
    with pytest.raises(TopicNotFound):
        oracle.delete("t", 0, before_seq=1)


def test_scanned_counts_the_seqs_walked_over() -> None:
    """CV11: skipped ones included, those a tombstone jumped not."""
    oracle = Oracle()
    oracle.append("t", batch(6, tag="a"), 0, config=TopicConfig(cap_records=4))
    oracle.delete("t", 0, before_seq=5)
    assert read_all(oracle, "t", 0).scanned == 2
    assert read_all(oracle, "t", 0, after=2).scanned == 4
    assert oracle.read("t", 2, 0, limit=1, bytes_max=99).scanned == 3


def test_a_crash_brings_an_ephemeral_topic_back_to_its_checkpointed_head_under_a_new_epoch() -> None:
    """DU9, G3"""
    oracle = Oracle()
    oracle.append("t", batch(5), 0, config=EPHEMERAL, key="k")
    before = oracle.state("t", 0).epoch
    oracle.delete("t", 0, before_seq=4)
    oracle.restart(clean=False, power_loss=False, heads={"t": 3})
    state = oracle.state("t", 0)
    assert (state.head, state.floor, state.earliest, state.count, state.last_write_ts) == (3, 4, 4, 0, None)
    assert state.epoch > before
    assert state.config == EPHEMERAL
    assert not oracle.append("t", batch(1), 0, key="k").deduped
    again = read_all(oracle, "t", 0, after=3, epoch=before)
    assert again.tombstone
    assert (again.tombstone.gap_to, again.tombstone.reason) == (4, "recreated")
    assert again.seqs == [4]


def test_a_crash_without_a_checkpoint_leaves_an_empty_ephemeral_topic() -> None:
    """DU9: a later instance of the name is newer still (TP16)."""
    oracle = Oracle()
    oracle.append("t", batch(5), 0, config=EPHEMERAL)
    oracle.restart(clean=False, power_loss=True)
    state = oracle.state("t", 0)
    assert (state.epoch, state.head, state.floor) == (2, 0, 1)
    oracle.delete_topic("t", 0)
    oracle.put_topic("t", EPHEMERAL, 0)
    assert oracle.state("t", 0).epoch == 3


def test_a_crash_brings_the_floor_of_an_ephemeral_topic_down_to_its_head() -> None:
    """DU9, TM2: records expired that the checkpoint had not seen."""
    oracle = Oracle()
    oracle.append("t", batch(5), 0, config=TopicConfig(durability="ephemeral", ttl_ms=10))
    oracle.expire("t", 11)
    oracle.restart(clean=False, power_loss=False, heads={"t": 2})
    state = oracle.state("t", 11)
    assert (state.head, state.floor, state.earliest) == (2, 3, 3)


def test_a_restart_leaves_other_classes_and_their_keys_alone() -> None:
    """DU3, DU4, ID8"""
    oracle = Oracle()
    oracle.append("t", batch(5), 0, key="k")
    before = oracle.state("t", 0)
    oracle.restart(clean=False, power_loss=False)
    assert oracle.state("t", 0) == before
    assert oracle.append("t", batch(5), 0, key="k").deduped


def test_a_lost_tail_is_a_clone_of_what_survived_with_a_gap_up_to_the_recovered_head() -> None:
    """DU10, G2, G12"""
    oracle = Oracle()
    oracle.append("t", batch(2), 0)
    survived = oracle.clone()
    oracle.append("t", batch(3), 0, key="k")
    oracle.delete("t", 0, before_seq=2)
    survived.open_gap("t", oracle.state("t", 0).head - survived.state("t", 0).head, "cap")
    assert not survived.append("t", batch(1), 0, key="k").deduped
    assert read_all(survived, "t", 0).seqs == [1, 2]
    answer = read_all(survived, "t", 0, after=2)
    assert answer.tombstone
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (3, 5)
    assert answer.seqs == [6]


operations = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from(["a", "b", None])),
    st.tuples(st.just("delete"), st.integers(0, 20), st.sampled_from(["a", "b", None])),
    st.tuples(st.just("gap"), st.integers(1, 3), st.sampled_from(["cap", "source_trim"])),
    st.tuples(st.just("clock"), st.integers(-5, 12), st.none()),
    st.tuples(st.just("cap"), st.integers(0, 5), st.none()),
)


def play(oracle: Oracle, now: int, operation: tuple[str, int, Any]) -> int:
    kind, number, word = operation
    if kind == "append":
        oracle.append("t", batch(number, tag=word), now)
    elif kind == "delete":
        oracle.delete("t", now, before_seq=number, match=word and TagMatch("Eq", word))
    elif kind == "gap":
        oracle.open_gap("t", number, word)
    elif kind == "cap":
        oracle.put_topic("t", TopicConfig(ttl_ms=15, cap_records=number), now)
    else:
        now += number
        oracle.expire("t", now)
    return now


def drain(oracle: Oracle, after: int, now: int, limit: int) -> tuple[list[int], set[int]]:
    """The seqs delivered, and those announced as missed, on the way from a cursor to head."""
    seqs, missed, cursor, is_caught_up = list[int](), set[int](), after, False
    while not is_caught_up:
        answer = oracle.read("t", cursor, now, limit=limit, bytes_max=35)
        assert answer.caught_up or answer.next > cursor
        if answer.tombstone:
            missed |= set(range(answer.tombstone.gap_from, answer.tombstone.gap_to + 1))
        seqs += answer.seqs
        cursor, is_caught_up = answer.next, answer.caught_up
    return seqs, missed


@given(st.lists(operations, max_size=25), st.integers(1, 5))
def test_every_involuntary_loss_is_announced_and_no_live_record_is(history: list[Any], limit: int) -> None:
    """The invariant, from every cursor: live is delivered, lost is announced; watermarks in order (TM2, TM14, DF6)."""
    oracle, now, floor, earliest = Oracle(), 100, 1, 1
    oracle.put_topic("t", TopicConfig(ttl_ms=15), now)
    for operation in history:
        now = play(oracle, now, operation)
        state = oracle.state("t", now)
        assert 1 <= floor <= state.floor <= state.earliest <= state.head + 1
        assert state.earliest >= earliest
        floor, earliest = state.floor, state.earliest
    slots = oracle._topics["t"].slots
    live = {slot.seq for slot in slots if slot.status == "live"}
    lost = {slot.seq for slot in slots if slot.status in ("evicted", "expired", "gap")}
    for cursor in range(len(slots) + 1):
        above = set(range(cursor + 1, len(slots) + 1))
        seqs, missed = drain(oracle, cursor, now, limit)
        assert seqs == sorted(live & above)
        assert lost & above <= missed <= above - live
