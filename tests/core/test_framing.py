"""Which entries share a frame, in which order frames come, and what each waits for; core/framing.py has the rules."""

from array import array

import pytest

from topics.core.apply import apply
from topics.core.entries import (
    AnyEntry,
    Appended,
    Deleted,
    Evicted,
    Expired,
    Forwarded,
    Forwarding,
    Freed,
    KeysForgotten,
    Leased,
    Reserved,
    RouterSet,
    TimePassed,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.framing import Frame, concerned, frames_of
from topics.core.state import State
from topics.core.topic import reservation
from topics.core.topic.records import Batch
from topics.model import Durability, RouterDefinition, TopicConfig

ONE = Batch(b'{"records":[{"data":1}]}', array("I", [1]), False)
A, B, C = 1, 2, 3


def state_of(*classes: Durability, **config: object) -> State:
    """Topics with the ids 1, 2, … of these classes."""
    state = State()
    for id, durability in enumerate(classes, 1):
        apply(state, TopicCreated(id, f"t{id}", id, TopicConfig(durability=durability, **config)))  # type: ignore[arg-type]
    return state


def append(topic: int, first: int = 1) -> Appended:
    return Appended(topic, first, 0, ONE)


def hole(source: int, dest: int) -> Forwarding:
    return Forwarding(Forwarded(9, source, dest, 1, 0, 1, 1, [], 1, 1), ())


def copy(source: int, dest: int) -> Forwarding:
    return Forwarding(Forwarded(9, source, dest, 1, 0, 0, 0, [(1, 1, 1)], 1, 1), (ONE,))


def shapes(frames: "list[Frame] | tuple[Frame, ...]") -> list[tuple[list[AnyEntry], bool, bool]]:
    """Of each frame: its entries, whether it is logged, whether it is synced."""
    return [(list(frame.entries), bool(frame.logged), frame.needs_sync) for frame in frames]


@pytest.mark.parametrize(
    ("durability", "is_logged", "is_synced"),
    [("ephemeral", False, False), ("memory", True, False), ("disk", True, False), ("fsync", True, True)],
)
def test_a_write_is_logged_and_synced_as_its_class_asks(
    durability: Durability, is_logged: bool, is_synced: bool
) -> None:
    """DU1-DU4"""
    state = state_of(durability)
    assert shapes(frames_of(state, [append(A)], 0)) == [([append(A)], is_logged, is_synced)]
    both = [append(A), Evicted(A, 1)]
    assert shapes(frames_of(state, both, 0)) == [(both, is_logged, is_synced)]


@pytest.mark.parametrize(("keeps", "is_logged"), [(True, True), (False, False)])
def test_leases_are_logged_where_a_queue_keeps_them(keeps: bool, is_logged: bool) -> None:
    """QU18"""
    state = state_of("disk", type="queue", leases_durable=keeps)
    leased = [Leased(A, "w", [(1, 7, 100, 1)])]
    (frame,) = frames_of(state, leased, 0)
    assert (bool(frame.logged), len(frame.topics)) == (is_logged, int(is_logged))
    assert frames_of(state, [Deleted(A, 2, [], 1)], 0)[0].logged
    for unlogged in (TimePassed(A, 100), Freed(A, [(1, 7, 1)]), KeysForgotten(A, 1)):
        assert not frames_of(state, [unlogged], 0)[0].logged


def test_a_frame_by_which_something_comes_changes_or_goes_is_synced() -> None:
    """DU7: whatever the class; what lies only in memory is not logged with it."""
    state = state_of("memory", "ephemeral")
    created = TopicCreated(C, "t3", C, TopicConfig(durability="ephemeral"))
    config = TopicConfig(durability="disk", ttl_ms=1)
    router = RouterSet(9, "r", A, B, RouterDefinition(), 0, 0)
    cases: list[tuple[list[AnyEntry], list[AnyEntry]]] = [
        ([created, append(C)], [created]),
        ([TopicConfigured(A, config), hole(A, B), Expired(A, 1)], [TopicConfigured(A, config), Expired(A, 1)]),
        ([TopicDeleted(A)], [TopicDeleted(A)]),
        ([router], [router]),
    ]
    for entries, logged in cases:
        (frame,) = frames_of(state, entries, 0)
        assert frame.is_control and frame.needs_sync
        assert (list(frame.entries), list(frame.logged)) == (entries, logged)
    assert concerned(state, [router, TopicDeleted(A), TopicDeleted(77)]) == {
        B: state.by_id[B],
        A: state.by_id[A],
        77: None,
    }


def test_a_move_between_topics_is_one_frame_synced_for_either() -> None:
    """QU15"""
    moved = [append(B), Deleted(A, 2, [], 1)]
    for classes, is_synced in ((("disk", "disk"), False), (("fsync", "disk"), True), (("disk", "fsync"), True)):
        assert shapes(frames_of(state_of(*classes), moved, 0)) == [(moved, True, is_synced)]


def test_what_is_in_memory_only_changes_last() -> None:
    """DU9: a frame that fails must not have changed what nobody can restore."""
    added, taken = append(B), Deleted(A, 2, [], 1)
    state = state_of("disk", "ephemeral")
    assert shapes(frames_of(state, [added, taken], 0)) == [([taken], True, False), ([added], False, False)]


def test_holes_share_the_frame_of_the_loss_unless_their_dest_waits_for_a_sync() -> None:
    """RT12, DU10: nobody waits for a hole, and a hole is never logged behind its loss."""
    state = state_of("disk", "disk", "fsync")
    loss: list[AnyEntry] = [hole(A, B), hole(A, C), append(A), Evicted(A, 1)]
    (frame,) = frames_of(state, loss, synced=0)
    assert (list(frame.entries), frame.needs_sync) == (loss, False)
    state.by_id[C].notes.synced_at = 50
    assert shapes(frames_of(state, loss, synced=49)) == [
        ([hole(A, C)], True, True),
        ([hole(A, B), append(A), Evicted(A, 1)], True, False),
    ]
    assert len(frames_of(state, loss, synced=50)) == 1
    state.by_id[A].config = TopicConfig(durability="fsync")
    assert shapes(frames_of(state, loss, synced=49)) == [(loss, True, True)]


def test_holes_of_a_loss_in_memory_come_first_each_class_by_itself() -> None:
    """RT12"""
    state = state_of("ephemeral", "disk", "fsync")
    loss: list[AnyEntry] = [hole(A, B), hole(A, C), Evicted(A, 1)]
    assert shapes(frames_of(state, loss, 0)) == [
        ([hole(A, C)], True, True),
        ([hole(A, B)], True, False),
        ([Evicted(A, 1)], False, False),
    ]


def test_copies_wait_for_the_records_that_they_are_made_of() -> None:
    """RT8, DU6: a copy must not outlive its record."""
    state = state_of("fsync", "disk")
    state.by_id[A].notes.synced_at = 70
    (frame,) = frames_of(state, [copy(A, B)], synced=0)
    assert frame.depends_on(synced=0, end=100) == 70
    state.by_id[B].config = TopicConfig(durability="fsync")
    (frame,) = frames_of(state, [copy(A, B)], synced=0)
    assert frame.needs_sync


def test_a_seq_beyond_what_is_reserved_waits_for_the_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    """DU10"""
    monkeypatch.setattr(reservation, "RESERVE", 8)
    state = state_of("disk")
    topic = state.by_id[A]
    (frame,) = frames_of(state, [append(A, 8)], 0)
    assert frame.depends_on(0, 100) == 0, "reserved from the start"
    (frame,) = frames_of(state, [append(A, 9), Reserved(A, 17)], 0)
    assert frame.depends_on(0, 100) == 101, "by the frame itself"
    topic.reservation.set(17)
    topic.reservation.position = 120
    (frame,) = frames_of(state, [append(A, 9)], 0)
    assert frame.depends_on(119, 200) == 120, "by a frame before it"
    assert frame.depends_on(120, 200) == 0, "which is synced"
    topic.notes.synced_at = 150
    assert frame.depends_on(120, 200) == 150, "a change of the topic"


def test_a_frame_of_many_dests_waits_for_the_last_of_them() -> None:
    """RT9"""
    state = state_of("disk", *["disk"] * 1000)  # type: ignore[arg-type]
    entries: list[AnyEntry] = [copy(A, dest) for dest in range(2, 1002)]
    state.by_id[500].notes.synced_at = 33
    (frame,) = frames_of(state, entries, 0)
    assert (len(frame.topics), frame.depends_on(0, 100)) == (1000, 33)
