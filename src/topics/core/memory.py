"""What the state weighs in memory: the figures, and how a topic is weighed by them (LM14).

An estimate, and an upper one: what is shared (a large body that routers have copied) is weighed wherever it is. It is
made of counts that are there anyway, so weighing costs the same for a topic of ten records and for one of ten million.
The figures are measured (CPython 3.11 on 64 bits); tests/engine/test_memory_limit.py holds them against the real thing.

Owns the figures and the sum. Must not know: what a limit is, what is refused because of it. Pure.

Invariant: `state.memory` is the sum of what its topics weighed when they last changed.
"""

from sys import getsizeof
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from topics.core.state import State, Topic

TOPIC: Final = 3300  # one without records, its name included
ROUTER: Final = 900
CHUNK: Final = 900  # beside what is in it
WRITE: Final = 72  # one body of a chunk …
FOLDED_WRITE: Final = 16  # … and one that is folded
ROW: Final = 5
TAGGED_ROW: Final = 16  # beside the former: the order of tags
LAYOUT: Final = 160  # of a body, beside the sizes of its fields
PIECE: Final = 900  # of a segment
KEY: Final = 260  # beside its text
CURSOR: Final = 220
JOB: Final = 95  # that was handed out: its lease, or its count and the place it waits in
CLAIM: Final = 280  # of such jobs: their lease, and when it ends
DELAYED_JOB: Final = 190
MARKS: Final = 280  # 1,024 seqs, some of which are dead
LOSS: Final = 160  # and a gap
RUN: Final = 160  # of copies: hops, stamps


def weigh(state: "State", topic: "Topic") -> None:
    """Bring up to date what a topic weighs."""
    log = topic.log
    weight = TOPIC + log.weight + topic.keys.weight
    if log.marked or log.losses or log.gaps:
        weight += MARKS * log.marked + LOSS * (len(log.losses) + len(log.gaps))
    queue = topic._queue
    if queue is not None:
        weight += JOB * (len(queue.leases) + len(queue.deliveries)) + CLAIM * len(queue.deadlines)
        weight += DELAYED_JOB * (len(queue.delayed) + len(queue.overdue) + len(queue.returned) + len(queue.exhausted))
    if topic.cursors:
        weight += CURSOR * len(topic.cursors)
    if topic.hops:
        weight += RUN * len(topic.hops)
    state.memory += weight - topic.weight
    topic.weight = weight


def weigh_all(state: "State") -> None:
    """Weigh every topic, as after a start."""
    for topic in state.topics.values():
        weigh(state, topic)
        if topic.keys.weight:
            state.keyed[topic.id] = topic


def of_key(key: str) -> int:
    """What an idempotency key weighs."""
    return KEY + getsizeof(key)


def used(state: "State") -> int:
    """What the state weighs, with what others hold that counts against the same limit."""
    return state.memory + state.memory_beside + ROUTER * len(state.routers)
