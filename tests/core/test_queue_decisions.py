"""Decisions about jobs: the entries they give, and that deciding changes nothing."""

import ast
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import topics
from tests.core.test_queue import Jobs, leased
from topics.core import decide
from topics.core.apply import apply
from topics.core.decide import Append, Caps, PutTopic
from topics.core.entries import AnyEntry, Appended, DeadLettered, Deleted, Freed, Leased, Released, TopicCreated
from topics.core.queue import leasing, letters
from topics.core.queue.jobs import Queue
from topics.core.queue.leasing import Ack, Claimer
from topics.core.state import State, Topic
from topics.core.topic.blocks import blocks_of, seqs_in
from topics.core.topic.config import ConfigIn
from topics.core.topic.pages import Cache
from topics.core.topic.records import RecordIn, batch_of
from topics.model import TopicConfig
from topics.settings import Settings

NOW = 1000
CAPS = Caps()


def carry_out(state: State, entries: Any) -> None:
    for entry in entries:
        apply(state, entry)


def queue_of(count: int, **config: Any) -> tuple[State, Topic]:
    """A queue "q" with so many jobs."""
    state = State()
    entries, _ = decide.put_topic(state, PutTopic("q", ConfigIn(type="queue", **config)), NOW, CAPS)
    carry_out(state, entries)
    batch = batch_of([RecordIn(Raw(b"%d" % number)) for number in range(1, count + 1)], None, Settings(), None)
    carry_out(state, decide.append(state, Append("q", batch), NOW, CAPS)[0])
    return state, state.topics["q"]


def claimed(state: State, topic: Topic, *claimers: Claimer, number: int = 1) -> list[Leased]:
    """What a pass decides when all texts are at hand, carried out."""
    picked = topic.queue.pick(topic.log, sum(claimer.wanted for claimer in claimers))
    entries = leasing.claim(topic, claimers, dict.fromkeys(picked, b"x"), NOW, number)
    carry_out(state, entries)
    topic.queue.check(topic.log)
    return entries


def facts(topic: Topic) -> Any:
    queue = topic.queue
    return dict(queue.leases), dict(queue.delayed), set(queue.returned), dict(queue.deliveries), topic.log.count


def test_claimers_are_dealt_one_job_each_in_turn() -> None:
    """QU5, QU7: leases are numbered on, and each lasts as its claimer asks."""
    state, topic = queue_of(5, lease_ms=500)
    entries = claimed(state, topic, Claimer("a", 3), Claimer("b", 1, 70), Claimer("c", 9), number=10)
    assert entries == [
        Leased(topic.id, "a", [(1, 10, NOW + 500, 1), (4, 11, NOW + 500, 1)]),
        Leased(topic.id, "b", [(2, 12, NOW + 70, 1)]),
        Leased(topic.id, "c", [(3, 13, NOW + 500, 1), (5, 14, NOW + 500, 1)]),
    ]


def test_a_hand_is_bounded_in_bytes_but_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """LM6"""
    monkeypatch.setattr(leasing, "HAND_BYTES_MAX", 10)
    _, topic = queue_of(3)
    for texts, seqs in (({1: b"x" * 99, 2: b"x"}, [1]), ({1: b"x" * 5, 2: b"x" * 5, 3: b"x"}, [1, 2])):
        (entry,) = leasing.claim(topic, [Claimer("a", 3)], texts, NOW, 1)
        assert [lease[0] for lease in entry.leases] == seqs


DECISIONS: dict[str, Callable[[Topic], Any]] = {
    "claim": lambda topic: leasing.claim(topic, [Claimer("b", 1)], {3: b"x"}, NOW, 50),
    "ack": lambda topic: leasing.ack(topic, [Ack("a", [1, 2], None)]),
    "nack": lambda topic: leasing.nack(topic, "a", [1, 2], None, NOW + 5),
    "extend": lambda topic: leasing.extend(topic, "a", [1, 2], None, NOW + 5),
    "release": lambda topic: leasing.release(topic, [(1, 1), (2, 2)]),
    "let go": lambda topic: leasing.let_go(topic, [(1, 1), (2, 2)]),
    "undelivered": lambda topic: leasing.undelivered(topic, [(1, 1), (2, 2)]),
    "remembered": lambda topic: leasing.remembered(topic, [(1, 1, 7), (3, 3, 2)]),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_deciding_changes_nothing(decision: str) -> None:
    state, topic = queue_of(3)
    claimed(state, topic, Claimer("a", 2))
    before = facts(topic)
    assert DECISIONS[decision](topic) == DECISIONS[decision](topic)
    assert facts(topic) == before


def test_an_ack_deletes_what_the_node_holds_and_skips_the_rest() -> None:
    """QU9, QU10, QU20: jobs of others, under other leases, named twice, or not there."""
    state, topic = queue_of(4)
    claimed(state, topic, Claimer("a", 3))
    claimed(state, topic, Claimer("b", 1), number=9)
    entries, changes = leasing.ack(topic, [Ack("a", [1, 1, 2, 3, 4, 99], [1, 1, 77, None, None, None])])
    assert changes == [([1, 3], [1, 2, 4, 99])]
    (entry,) = entries
    assert isinstance(entry, Deleted) and entry.count == 2
    assert [seq for run in seqs_in(entry.blocks) for seq in run] == [1, 3]
    carry_out(state, entries)
    topic.queue.check(topic.log)
    assert leasing.ack(topic, [Ack("a", [1, 3], None)]) == ([], [([], [1, 3])])


def test_acks_that_are_decided_together_are_one_delete_and_a_job_is_done_once() -> None:
    """QU9, QU20: over the edge of a block, out of order, by two nodes, and one job by two acks."""
    state, topic = queue_of(2100)
    claimed(state, topic, Claimer("a", 1050))
    claimed(state, topic, Claimer("b", 1000), number=5000)
    acks = [
        Ack("a", list(range(1020, 1031)), None),
        Ack("b", [2047, 2049, 2048, 1500], None),
        Ack("a", [1024, 1, 2047], None),
        Ack("c", [2], None),
    ]
    entries, changes = leasing.ack(topic, acks)
    done = [[*range(1020, 1031)], [2047, 2049, 2048, 1500], [1], []]
    assert changes == list(zip(done, [[], [], [1024, 2047], [2]], strict=True))
    (entry,) = entries
    assert isinstance(entry, Deleted) and entry.count == 16
    assert [seq for run in seqs_in(entry.blocks) for seq in run] == sorted(seq for one in done for seq in one)
    carry_out(state, entries)
    topic.queue.check(topic.log)
    topic.log.check()
    assert (topic.log.count, len(topic.queue.leases)) == (2084, 2034)


def test_jobs_are_given_back_and_kept_longer_under_the_lease_they_have() -> None:
    """QU12, QU13"""
    state, topic = queue_of(2)
    claimed(state, topic, Claimer("a", 2))
    assert leasing.nack(topic, "a", [1], None, NOW + 5).entries == [Released(topic.id, [(1, 1, NOW + 5)])]
    change = leasing.extend(topic, "a", [2], [2], NOW + 99)
    assert (change.entries, change.deadline) == ([Leased(topic.id, "a", [(2, 2, NOW + 99, 1)])], NOW + 99)
    assert leasing.release(topic, [(1, 1), (2, 77)]) == [Released(topic.id, [(1, 1, 0)])]
    assert leasing.release(topic, [(2, 77)]) == []


def test_what_a_failure_leaves_is_decided_for_jobs_that_it_concerns_alone() -> None:
    """QU11: a lease that is another one by now, a job that is gone and a count that is known stay as they are."""
    state, topic = queue_of(4)
    claimed(state, topic, Claimer("a", 3))
    carry_out(state, leasing.ack(topic, [Ack("a", [3], None)])[0])
    assert leasing.undelivered(topic, [(1, 1), (2, 77), (3, 3)]) == [Freed(topic.id, [(1, 1, 0)])]
    assert leasing.let_go(topic, [(1, 1), (2, 77), (3, 3)]) == [Freed(topic.id, [(1, 1, 1)])]
    assert leasing.remembered(topic, [(1, 1, 1), (2, 2, 5), (3, 3, 2)]) == [Freed(topic.id, [(2, 0, 5)])]
    assert leasing.undelivered(topic, [(2, 77)]) == leasing.let_go(topic, []) == leasing.remembered(topic, []) == []
    carry_out(state, leasing.undelivered(topic, [(1, 1)]) + leasing.remembered(topic, [(2, 2, 5), (4, 0, 3)]))
    topic.queue.check(topic.log)
    assert ([topic.queue.handed_out(seq) for seq in (1, 2, 4)], list(topic.queue.leases)) == ([0, 5, 3], [2])
    assert topic.queue.pick(topic.log, 9) == [4, 1]


CHANGING = {"advance", "delay", "forget_many", "free", "lease", "release"}


@pytest.mark.slow
def test_only_apply_changes_a_queue() -> None:
    """Whatever else wants a change decides an entry, logged or not."""
    src = Path(topics.__file__).parent
    found = set()
    for path in src.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
                owner = node.func.value
                if (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in ("queue", "jobs"):
                    found.add(path.relative_to(src).as_posix())
    assert found == {"core/apply.py"}


def kinds(entries: list[AnyEntry]) -> list[type]:
    return [type(entry) for entry in entries]


def test_a_dead_letter_and_its_way_back_are_decided_for_both_topics() -> None:
    """QU14, QU15"""
    state, topic = queue_of(2, max_deliveries=1, dead_letter="dead")
    cache = Cache(100_000)
    claimed(state, topic, Claimer("a", 1))
    carry_out(state, leasing.release(topic, [(1, 1)]))
    assert leasing.due_letters(topic.queue, [2], 1) == [1]
    job = letters.stored(cache, topic.log, 1)
    move = letters.dead_letter(state, topic, 1, job, NOW, CAPS)
    assert kinds(move.added)[:2] == [TopicCreated, Appended] and kinds(move.taken) == [Deleted, DeadLettered]
    assert "dead" not in state.topics and topic.log.count == 2
    carry_out(state, [*move.added, *move.taken])
    dead = state.topics["dead"]
    assert (dead.log.count, topic.log.count, topic.queue.dead_lettered) == (1, 1, 1)
    assert letters.letters_of("q", dead.log, cache, None, 0, 1, 9, {1}).seqs == []
    found = letters.letters_of("q", dead.log, cache, None, 0, 1, 9, set())
    move = letters.redrive(state, dead, found, "q", NOW, CAPS)
    assert (found.seqs, found.end, kinds(move.taken)) == ([1], 1, [Deleted])
    carry_out(state, [*move.added, *move.taken])
    topic.queue.check(topic.log)
    assert bytes(letters.stored(cache, topic.log, 3).data) == b"1" and not dead.log.count


def in_two_places(queue: Queue) -> None:
    queue.returned.add(1)


def not_live(queue: Queue) -> None:
    queue.delay(77, 5)


def not_counted(queue: Queue) -> None:
    queue.leases[1] = (*queue.leases[1][:3], 0)


def in_no_place(queue: Queue) -> None:
    queue.pointer = 4


def never_ending(queue: Queue) -> None:
    queue.deadlines.clear()


def never_claimable(queue: Queue) -> None:
    queue._ends.clear()


def wrongly_exhausted(queue: Queue) -> None:
    queue.returned.discard(3)
    queue.exhausted.add(3)


@pytest.mark.parametrize(
    "damage", [in_two_places, not_live, not_counted, in_no_place, never_ending, never_claimable, wrongly_exhausted]
)
def test_a_check_finds_what_breaks_an_invariant(damage: Callable[[Queue], None]) -> None:
    queue, jobs = Queue(TopicConfig(max_deliveries=2, dead_letter="d")), Jobs(1, 2, 3, 4)
    leased(queue, *queue.pick(jobs, 3))
    queue.release([(2, 1002, 50), (3, 1003, 0)])
    queue.check(jobs)
    damage(queue)
    with pytest.raises(AssertionError):
        queue.check(jobs)


def test_what_a_delete_takes_of_adjoining_blocks_is_one_run() -> None:
    """QU17, LM10: jobs that go together are forgotten together."""
    full = bytes([0xFF] * 128)
    assert seqs_in([(0, full), (1, full), (3, b"\x01")]) == [range(2048), range(3072, 3073)]


@pytest.mark.parametrize("step", [2, 3, 31, 33, 500])
def test_what_a_delete_takes_here_and_there_is_found_whatever_lies_between(step: int) -> None:
    """QU17, LM10"""
    seqs = range(5, 5000, step)
    blocks = [(number, mask.to_bytes(128, "little")) for number, mask in blocks_of(seqs).items()]
    assert list(chain.from_iterable(seqs_in(blocks))) == list(seqs)
