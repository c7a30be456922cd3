"""Routers in the pure core: definitions, walks, holes, stamps, hops, and the way through log and snapshot."""

import json
from array import array
from typing import Any

import pytest

from topics.core import decide, dump
from topics.core.apply import apply, end_replay, replay
from topics.core.decide import Caps
from topics.core.entries import (
    AnyEntry,
    Appended,
    Deleted,
    Evicted,
    Forwarded,
    Forwarding,
    GapOpened,
    RouterRemoved,
    RouterSet,
    Stamp,
    TopicCreated,
    TopicDeleted,
)
from topics.core.routing import copies, steps, table
from topics.core.routing.copies import MissingRecord, Stamps, add_hops, hops_between, stamped
from topics.core.routing.table import HOP_RUNS, PutRouter
from topics.core.state import State
from topics.core.topic.parts import Chunk
from topics.core.topic.records import Batch
from topics.errors import InvalidRequest, RouterCycle, Throttled, TopicFull, TopicIncompatible, TopicNotFound
from topics.model import RouterDefinition, TagMatch, TopicConfig

A, B, C, AB, BC = 1, 2, 3, 7, 8


def batch(*data: Any, tag: str | None = None, node: str | None = None) -> Batch:
    records = [{"data": value} | ({"tag": tag} if tag else {}) for value in data]
    body = json.dumps({"records": records} | ({"node": node} if node else {}), separators=(",", ":")).encode()
    return Batch(body, array("I", [len(json.dumps(value)) for value in data]), tag is not None)


def topic(id: int, **config: Any) -> TopicCreated:
    return TopicCreated(id, "?abc"[id], id, TopicConfig(**config))


def router(id: int, source: int, dest: int, cursor: int = 0, **definition: Any) -> RouterSet:
    return RouterSet(id, f"r{id}", source, dest, RouterDefinition(**definition), cursor, 0)


def state_of(*entries: AnyEntry) -> State:
    state = State()
    for entry in entries:
        apply(state, entry)
    return state


def step(state: State, id: int = AB, now: int = 1000, caps: Caps | None = None) -> Any:
    """One step of a router, decided and applied. None: it has nothing to do."""
    one = state.routers.by_id[id]
    head = state.by_id[one.source].log.head
    if one.cursor >= head:
        return None
    found = steps.walk(state, one, head, lambda part, start, stop: part.columns(start, stop))
    done = steps.place(state, one, steps.fit(state, one, found, caps or Caps()), now)
    for entry in done.entries:
        apply(state, entry)
    table.check(state)
    return done


def texts(state: State, id: int) -> list[bytes]:
    log = state.by_id[id].log
    return [
        bytes(raw) for part, start, stop in log.runs_between(0, log.head) for raw in part.columns(start, stop).datas
    ]


# --- definitions


def put(state: State, name: str, source: str, dest: str, caps: Caps | None = None, **fields: Any) -> list[AnyEntry]:
    create = fields.pop("create_dest", True)
    entries = decide.put_router(
        state, PutRouter(name, source, dest, RouterDefinition(**fields), create), caps or Caps()
    )
    for entry in entries:
        apply(state, entry)
    return entries


def test_a_router_comes_with_the_topics_it_needs_in_one_piece() -> None:
    """RT4, RT8, TP13"""
    state = state_of(topic(A), Appended(A, 1, 0, batch(1, 2)))
    created, made = put(state, "x->y", "x", "y"), put(state, "a->y2", "a", "y2")
    assert [type(entry) for entry in created] == [TopicCreated, TopicCreated, RouterSet]
    assert isinstance(made[-1], RouterSet) and (made[-1].source, made[-1].cursor) == (A, 2)
    assert len({entry.topic for entry in created[:2]} | {created[2].router}) == 3  # type: ignore[union-attr]
    assert put(state, "a->y2", "a", "y2") == []


@pytest.mark.parametrize(
    ("arguments", "fields", "caps", "refusal"),
    [
        (("bad name", "a", "a"), {}, Caps(1, 0, 1), InvalidRequest),
        (("new", "a", "a"), {}, Caps(1, 0, 1), InvalidRequest),
        (("new", "a", "-"), {}, Caps(1, 0, 1), InvalidRequest),
        (("new", "c", "none"), {"create_dest": False}, Caps(1, 0, 1), TopicNotFound),
        (("new", "c", "b"), {}, Caps(1, 0, 1), TopicIncompatible),
        (("new", "b", "a"), {}, Caps(1, 0, 1), Throttled),
        (("new", "b", "a"), {}, Caps(1, 0, 0), RouterCycle),
        (("new", "b", "new"), {}, Caps(1, 0, 0), Throttled),
        (("r7", "x", "y"), {}, Caps(4, 0, 1), Throttled),
    ],
)
def test_refusals_come_in_their_order_and_change_nothing(
    arguments: Any, fields: Any, caps: Caps, refusal: type[Exception]
) -> None:
    """RT1, RT5, RT6, RT7, LM1, LM3, S27"""
    state = state_of(topic(A), topic(B), topic(C), router(AB, A, B))
    with pytest.raises(refusal):
        put(state, *arguments, caps=caps, **fields)
    assert (sorted(state.topics), list(state.routers.by_name)) == (["a", "b", "c"], ["r7"])
    assert state.routers.by_name["r7"].source == A


def test_a_cycle_is_told_from_its_source_to_its_source() -> None:
    """RT5, ER4"""
    state = state_of(topic(A), topic(B), topic(C), router(AB, A, B), router(BC, B, C))
    with pytest.raises(RouterCycle) as refused:
        put(state, "ca", "c", "a")
    assert refused.value.detail == {"cycle": ["c", "a", "b", "c"]}
    put(state, "ca", "c", "a", allow_cycle=True)
    put(state, "r8", "a", "c2")  # its own edge from b to c is gone then
    with pytest.raises(RouterCycle):
        put(state, "bc", "b", "c")


def test_a_router_that_is_pointed_elsewhere_is_another_one() -> None:
    """RT2, RT23"""
    state = state_of(topic(A), topic(B), topic(C), Appended(C, 1, 0, batch(1)), router(AB, A, B))
    apply(state, Appended(A, 1, 0, batch(1)))
    step(state)
    (same,) = put(state, "r7", "a", "b", preserve_tag=False)
    assert isinstance(same, RouterSet) and (same.router, same.cursor, same.total) == (AB, 1, 1)
    (other,) = put(state, "r7", "c", "b")
    assert isinstance(other, RouterSet) and other.router not in (A, B, C, AB)
    assert (other.cursor, other.total, list(state.routers.outgoing)) == (1, 0, [C])


# --- steps


def test_a_step_copies_what_is_live_and_matches() -> None:
    """RT10, RT11, RT12, RT19"""
    state = state_of(topic(A), topic(B), router(AB, A, B, match=TagMatch("Glob", "x")))
    for number, tag in enumerate(("x", "y", "x", "xx", None, "x"), 1):
        apply(state, Appended(A, number, 0, batch(number, tag=tag)))
    apply(state, Deleted(A, 0, [(0, bytes([1 << 3]))]))
    done = step(state)
    assert texts(state, B) == [b"1", b"4", b"6"]
    one = state.routers.by_id[AB]
    assert (one.cursor, one.total) == (6, 3)
    assert done.entries[0].entry.runs == [(1, 1, 1), (4, 4, 1), (6, 6, 1)]
    assert step(state) is None


def test_whole_bodies_are_shared_and_parts_of_them_are_not() -> None:
    """RT9, RT10"""
    state = state_of(topic(A), topic(B), router(AB, A, B))
    whole, half = batch(1, 2, node="n"), batch(3, 4, node="n")
    apply(state, Appended(A, 1, 0, whole))
    apply(state, Appended(A, 3, 0, half))
    apply(state, Deleted(A, 0, [(0, bytes([1 << 3]))]))
    step(state)
    part = state.by_id[B].log.parts[0]
    assert isinstance(part, Chunk) and part.bodies[0] is whole.body
    columns = part.columns(0, 3)
    assert (list(map(bytes, columns.datas)), columns.nodes) == ([b"1", b"2", b"4"], ["n", "n", "n"])


def test_a_step_is_bounded_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """RT9: no router takes the loop for itself."""
    monkeypatch.setattr(steps, "STEP_RECORDS", 4)
    monkeypatch.setattr(steps, "STEP_BYTES", 30)
    state = state_of(topic(A), topic(B), router(AB, A, B))
    apply(state, Appended(A, 1, 0, batch(*range(6))))
    apply(state, Appended(A, 7, 0, batch("x" * 50, "y" * 20, 1)))
    cursors = []
    while step(state) is not None:
        cursors.append(state.routers.by_id[AB].cursor)
    assert cursors == [4, 6, 7, 9]
    assert len(texts(state, B)) == 9


def test_a_dest_that_refuses_takes_what_fits_and_holds_the_rest() -> None:
    """RT15, RT12: a hole needs no room."""
    state = state_of(topic(A), topic(B, cap_records=2, discard="reject"), router(AB, A, B))
    apply(state, Appended(A, 1, 0, batch(1, 2, 3)))
    step(state)
    assert (texts(state, B), state.routers.by_id[AB].cursor) == ([b"1", b"2"], 2)
    with pytest.raises(TopicFull):
        step(state)
    apply(state, GapOpened(A, 5, "cap"))
    apply(state, Deleted(A, 4, []))
    step(state)
    assert (state.by_id[B].log.head, state.by_id[B].log.count, state.routers.by_id[AB].cursor) == (4, 2, 5)


def test_live_bytes_of_all_topics_bound_what_is_copied() -> None:
    """LM4"""
    state = state_of(topic(A), topic(B), router(AB, A, B))
    apply(state, Appended(A, 1, 0, batch(1, 2, 3)))
    step(state, caps=Caps(max_total_bytes=5))
    assert texts(state, B) == [b"1", b"2"]
    with pytest.raises(Throttled):
        step(state, caps=Caps(max_total_bytes=5))


def test_copies_evict_by_the_dest_s_caps_and_leave_holes_further_down() -> None:
    """RT17, RT12"""
    state = state_of(topic(A), topic(B, cap_records=2), topic(C), router(AB, A, B), router(BC, B, C))
    apply(state, Appended(A, 1, 0, batch(1, 2, 3, 4, 5)))
    done = step(state)
    assert [one.id for one in done.losers] == [C]
    assert (texts(state, B), state.by_id[B].log.floor) == ([b"4", b"5"], 4)
    assert (state.routers.by_id[BC].cursor, state.by_id[C].log.head) == (3, 3)
    step(state, BC)
    assert ([gap.last for gap in state.by_id[C].log.gaps], texts(state, C)) == ([3], [b"4", b"5"])


def test_copies_and_holes_at_the_hop_cap_are_passed_over() -> None:
    """RT16"""
    state = state_of(topic(A), topic(B), router(AB, A, B))
    a = state.by_id[A]
    apply(state, Appended(A, 1, 0, batch(1, 2, 3, 4)))
    apply(state, GapOpened(A, 8, "source_trim"))
    a.hops = [(2, 2, 7), (3, 3, 8), (5, 6, 8), (7, 7, 7)]
    done = step(state)
    assert done.entries[0].entry.runs == [(1, 1, 1), (2, 2, 8), (4, 4, 1)]
    done = step(state)
    assert (done.entries[0].entry.lost, done.entries[0].entry.lost_hops) == (1, 8)
    done = step(state)
    assert (done.entries[0].entry.lost, done.entries[0].entry.lost_hops) == (1, 1)
    assert (state.routers.by_id[AB].cursor, state.routers.by_id[AB].total) == (8, 5)


def test_hops_of_records_that_all_routers_have_forwarded_are_forgotten() -> None:
    """RT16"""
    state = state_of(topic(A), topic(B), topic(C), router(AB, A, B), router(BC, B, C))
    b = state.by_id[B]
    for seq in range(1, 4 * HOP_RUNS):  # of a writer and of the router in turn, so that each is a run of its own
        apply(state, Appended(A, seq, 0, batch(seq)))
        step(state)
        apply(state, Appended(B, b.log.head + 1, 0, batch(0)))
        step(state, BC)
    assert len(b.hops) <= HOP_RUNS + 1
    apply(state, Appended(A, 4 * HOP_RUNS, 0, batch(1)))
    step(state)
    assert b.hops[-1] == (b.log.head, b.log.head, 1)


def test_what_the_log_does_not_hold_goes_beside_the_entry() -> None:
    """RT24"""
    state = state_of(topic(A, durability="ephemeral"), topic(B), router(AB, A, B))
    apply(state, Appended(A, 1, 0, batch(1, 2)))
    done = step(state)
    assert [type(entry) for entry in done.entries] == [Forwarding, Appended]
    assert done.entries[0].entry.carries_records and texts(state, B) == [b"1", b"2"]


# --- losses


@pytest.mark.parametrize(("cursor", "last", "new", "lost"), [(0, 3, 7, 2), (1, 3, 7, 2), (3, 3, 7, 0), (2, 8, 7, 6)])
def test_a_loss_takes_the_routers_behind_it_along(cursor: int, last: int, new: int, lost: int) -> None:
    """RT12: live records only, those of the batch that is about to come included."""
    state = state_of(topic(A), topic(B), router(AB, A, B, cursor))
    apply(state, Appended(A, 1, 0, batch(1, 2, 3, 4, 5, 6)))
    apply(state, Deleted(A, 2, []))
    found = table.holes(state, state.by_id[A], last, new, 0)
    assert [(f.entry.lost, f.entry.cursor) for f in found if isinstance(f, Forwarding)] == (
        [(lost, last)] if lost else []
    )


def test_losses_have_the_time_of_now_though_copies_never_go_back_in_time() -> None:
    """LS1, RT12, RT17: the clock goes back by 4 s; what copies evict, and holes, are dated as any other loss."""
    state = state_of(topic(A), topic(B, cap_records=1), topic(C), router(AB, A, B), router(BC, B, C))
    b, c = state.by_id[B].log, state.by_id[C].log
    apply(state, Appended(A, 1, 9000, batch(1)))
    step(state, now=9000)
    apply(state, Appended(A, 2, 9000, batch(2)))
    apply(state, GapOpened(A, 3, "cap", 5000))
    step(state, now=5000)
    assert (b.last_ts, [(loss.first, loss.reason, loss.ts) for loss in b.losses]) == (9000, [(1, "cap", 5000)])
    assert [(loss.first, loss.reason, loss.ts) for loss in c.losses] == [(1, "source_trim", 5000)]
    step(state, now=5001)
    assert [(loss.first, loss.reason, loss.ts) for loss in b.losses[1:]] == [(3, "source_trim", 5001)]


def test_a_write_that_evicts_leaves_holes_of_its_own_time() -> None:
    """LS1, RT12: also if the clock has gone back since the last write."""
    state = state_of(topic(A, cap_records=1), topic(B), router(AB, A, B))
    apply(state, Appended(A, 1, 9000, batch(1)))
    entries, _ = decide.append(state, decide.Append("a", batch(2)), 5000, Caps())
    for entry in entries:
        apply(state, entry)
    assert [loss.ts for topic in (A, B) for loss in state.by_id[topic].log.losses] == [5000, 5000]


def test_two_routers_into_one_dest_leave_two_holes() -> None:
    """RT12, RT6"""
    state = state_of(topic(A, cap_records=1), topic(B), router(AB, A, B), router(BC, A, B))
    entries, _ = decide.append(state, decide.Append("a", batch(1, 2, 3)), 0, Caps())
    for entry in entries:
        apply(state, entry)
    assert [(gap.first, gap.last) for gap in state.by_id[B].log.gaps] == [(1, 4)]
    assert isinstance(entries[-1], Evicted) and state.routers.by_id[BC].cursor == 2


# --- stamps


@pytest.mark.parametrize(
    ("meta", "result"),
    [
        (None, b'{"_topics_router":S}'),
        (b"{}", b'{"_topics_router":S}'),
        (b"{ }", b'{ "_topics_router":S}'),
        (b'{"a": 1, "a":2.0}', b'{"a": 1, "a":2.0,"_topics_router":S}'),
        (b'{"_topics_router":{"x":[1,"}"]}}', b'{"_topics_router":S}'),
        (b'{"a":"\\"},{","_topics_router":1,"b": [ ]}', b'{"a":"\\"},{","b": [ ],"_topics_router":S}'),
        (b'{"\\u005ftopics_router":1}', b'{"_topics_router":S}'),
        (b'{"x":"_topics_router"}', b'{"x":"_topics_router","_topics_router":S}'),
        (b'{"x":{"_topics_router":1}}', b'{"x":{"_topics_router":1},"_topics_router":S}'),
    ],
)
def test_a_stamp_leaves_the_rest_of_meta_as_it_was(meta: bytes | None, result: bytes) -> None:
    """RT14, CV6"""
    assert stamped(meta, b"S") == result


def test_the_index_of_stamps_finds_what_was_copied_where() -> None:
    """RT14"""
    stamps, stamp = Stamps(), Stamp("r", "a", 1)
    stamps.add(stamp, A, 1, 5, 11, 1)
    stamps.add(stamp, A, 6, 8, 16, 1)
    stamps.add(stamp, A, 10, 10, 30, 1)
    assert len(stamps) == 2, "runs that go on are one"
    assert [stamps.find("r", A, 1, seq) for seq in (0, 1, 5, 6, 8, 9, 10, 11)] == [0, 11, 15, 16, 18, 0, 30, 0]
    assert stamps.find("r", A, 2, 1) == stamps.find("q", A, 1, 1) == 0
    stamps.add(stamp, A, 3, 4, 40, 1)
    assert [stamps.find("r", A, 1, seq) for seq in (2, 3, 4, 5)] == [12, 40, 41, 15]
    other = Stamps()
    other.load(stamps.dump(16))
    assert [other.find("r", A, 1, seq) for seq in (2, 3, 6, 10)] == [0, 40, 16, 30]
    stamps.add(stamp, A, 11, 11, 50, 35)
    assert stamps.find("r", A, 1, 1) == 0


def test_exactly_once_counts_what_it_skips() -> None:
    """RT14, RT19"""
    state = state_of(topic(A), topic(B), router(AB, A, B, guarantee="exactly_once"))
    apply(state, Appended(A, 1, 0, batch(1, 2, 3)))
    step(state)
    apply(state, Deleted(B, 2, []))
    state.routers.by_id[AB].cursor = 0
    done = step(state)
    assert done.entries[0].entry.runs == [(1, 1, 1)]
    assert (texts(state, B), state.routers.by_id[AB].total) == ([b"2", b"3", b"1"], 6)


def test_hops_of_stretches_without_any_are_zero() -> None:
    """RT16"""
    runs: list[copies.HopRun] = []
    for first, last, hops in ((3, 4, 1), (5, 6, 1), (7, 7, 2), (10, 12, 1)):
        add_hops(runs, first, last, hops)
    assert runs == [(3, 6, 1), (7, 7, 2), (10, 12, 1)]
    assert list(hops_between(runs, 1, 11)) == [(1, 2, 0), (3, 6, 1), (7, 7, 2), (8, 9, 0), (10, 11, 1)]
    assert list(hops_between(runs, 4, 4)) == [(4, 4, 1)]
    assert list(hops_between([], 2, 3)) == [(2, 3, 0)]


# --- log and snapshot


def test_replay_finds_copies_in_the_log_wherever_the_state_is_ahead() -> None:
    """RT20, RT21, ST9: the source is captured later than its dest, without the records, or is gone."""
    for is_gone in (False, True):
        state = state_of(*(() if is_gone else (topic(A),)), topic(B), topic(C))
        for id in (A, C):
            if id in state.by_id:
                state.by_id[id].notes.snapshot_position = 100
                state.by_id[id].log.inherit_head(2, 0)
        first = Forwarded(AB, A, B, 1, 5, 0, 0, [(1, 2, 1)], 2, 2)
        second = Forwarded(BC, B, C, 1, 5, 0, 0, [(1, 1, 2)], 2, 1)
        for position, entry in ((10, Appended(A, 1, 0, batch(1, 2))), (20, first), (30, second)):
            replay(state, entry, position)
        assert texts(state, B) == [b"1", b"2"]
        assert [number for number, _ in state.skipped_appends[C]] == [1], "those who copy from c may need it"
        end_replay(state)
        assert not state.skipped_appends


def test_replay_of_copies_whose_records_are_not_in_the_log_is_refused() -> None:
    """ST12"""
    state = state_of(topic(A), topic(B))
    with pytest.raises(MissingRecord, match="record 1"):
        replay(state, Forwarded(AB, A, B, 1, 5, 0, 0, [(1, 2, 1)], 2, 2), 10)
    state.by_id[B].notes.snapshot_position = 100
    replay(state, Forwarded(AB, A, B, 1, 5, 0, 0, [(1, 2, 1)], 2, 2), 10)
    assert state.by_id[B].log.head == 0


def test_replay_skips_what_the_snapshot_has_of_a_router() -> None:
    """RT13, ST9"""
    state = state_of(topic(A), topic(B), router(AB, A, B, 5))
    state.routers.by_id[AB].position = 100
    replay(state, router(AB, A, B, 1), 50)
    replay(state, Forwarded(AB, A, B, 1, 5, 2, 1, [], 2, 2), 60)
    replay(state, RouterRemoved(AB, "r7"), 70)
    assert (state.routers.by_id[AB].cursor, state.by_id[B].log.head) == (5, 2)
    replay(state, Forwarded(AB, A, B, 3, 5, 1, 1, [], 6, 6), 100)
    assert (state.routers.by_id[AB].cursor, state.by_id[B].log.head) == (6, 3)
    replay(state, RouterRemoved(AB, "r7"), 110)
    replay(state, RouterSet(9, "r9", A, 77, RouterDefinition(), 0, 0), 120)
    assert not len(state.routers)


def test_routers_and_what_copies_carry_come_back_from_a_snapshot() -> None:
    """RT13, RT14, RT16"""
    state = state_of(topic(A), topic(B), topic(C), router(BC, B, C), router(AB, A, B, guarantee="exactly_once"))
    apply(state, Appended(A, 1, 0, batch(1, 2)))
    step(state)
    items = {**dump.dump_topic(state.by_id[B], 50, 0), **dump.dump_routers(state, ["r7", "r8", "gone"], 60)}
    assert items[b"rgone"] is None
    back = dump.load({key: value for key, value in items.items() if value is not None})
    one = back.routers.by_name["r7"]
    assert (one.id, one.source, one.dest, one.cursor, one.total, one.position) == (AB, A, B, 2, 2, 60)
    assert one.definition == state.routers.by_id[AB].definition
    assert (back.by_id[B].hops, back.by_id[B].stamps.find("r7", A, 1, 2), back.next_id) == ([(1, 2, 1)], 2, BC + 1)


def test_routers_are_served_in_the_order_of_their_creation_also_from_a_snapshot() -> None:
    state = state_of(topic(A), topic(B), topic(C), router(AB, A, B), router(BC, A, B))
    apply(state, router(AB, A, B, preserve_tag=False))
    assert list(state.routers.outgoing[A]) == list(state.routers.incoming[B]) == [AB, BC], "changed, it is the same"
    apply(state, RouterSet(9, f"r{AB}", A, B, RouterDefinition(), 0, 0))
    assert list(state.routers.outgoing[A]) == list(state.routers.incoming[B]) == [BC, 9], "pointed elsewhere, it is not"
    back = dump.load({key: value for key, value in dump.dump_routers(state, ["r7", "r8"], 0).items() if value})
    assert list(back.routers.outgoing[A]) == list(back.routers.incoming[B]) == [BC, 9]


def test_a_topic_takes_its_routers_with_it() -> None:
    """RT18"""
    state = state_of(topic(A), topic(B), topic(C), router(AB, A, B), router(BC, B, C))
    apply(state, TopicDeleted(B))
    assert (len(state.routers), state.routers.incoming, state.routers.outgoing) == (0, {}, {})
    assert sorted(state.unsaved_routers) == ["r7", "r8"]


def test_a_cursor_above_its_source_s_head_comes_down() -> None:
    """RT22"""
    state = state_of(topic(A), topic(B), router(AB, A, B, 9))
    for entry in list(table.lowered_cursors(state)):
        apply(state, entry)
    assert (state.routers.by_id[AB].cursor, state.by_id[B].log.head) == (0, 0)
