"""The history of a run, kept beside the engine: what was committed, what was acked, what can be seen.

The engine commits within the turn of the loop in which it is called, so the oracle makes the
same change just before, and the history of the oracle is that of the log. Each commit knows
what its ack promises; `History.lower_bound` is the last one that a crash may not take.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from tests.crash.script import Append, Change, Drop, Operation, Put, Read, Route, Tick, Unroute
from topics.engine import Engine
from topics.errors import Refusal
from topics.model import Gap, TopicConfig
from topics.testing.oracle import Oracle

Promise = Literal["none", "written", "synced"]


@dataclass
class Commit:
    """One change of the state, and the operation that asked for it; None = expiry, which nobody asked for."""

    change: Change
    now: int
    call: "Call | None"
    topic: str
    is_failed: bool = False
    is_idle: bool = False  # it changed nothing


@dataclass
class Call:
    """An operation that was submitted, and what came of it."""

    operation: Operation
    number: int = 0  # of the last commit that its answer shows
    promise: Promise = "none"
    expected: Any = None  # the oracle's answer, or the kind of its refusal
    status: Literal["pending", "acked", "refused", "failed"] = "pending"
    answer: Any = None

    @property
    def has_ended(self) -> bool:
        return self.status != "pending"


@dataclass
class History:
    """The commits since `base`, in the order of the log."""

    base: Oracle = field(default_factory=Oracle)
    commits: list[Commit] = field(default_factory=list)
    moments: list[Oracle] = field(default_factory=list)  # after each commit; the first is `base`
    calls: list[Call] = field(default_factory=list)
    last_of: dict[str, int] = field(default_factory=dict)  # number of each topic's last commit
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)  # name and oracle's epoch → the engine's
    acked_in_memory: set[tuple[str, int]] = field(default_factory=set)  # ephemeral topics with writes, and epochs
    acked_heads: dict[tuple[str, int], int] = field(default_factory=dict)  # highest seq acked, logged classes
    checkpointed: dict[tuple[str, int], int] = field(default_factory=dict)  # heads that the last checkpoint has
    weak_before: dict[tuple[str, int], int] = field(default_factory=dict)  # `weak` as of `base`

    is_faulty: bool = False  # the disk may fail; then what expires may not be logged

    def __post_init__(self) -> None:
        self.moments = [self.base.clone()]

    @property
    def now(self) -> Oracle:
        """The state at the end of the log."""
        return self.moments[-1]

    def adopt(self, oracle: Oracle) -> None:
        """Start over from a recovered state: all of it is durable."""
        self.weak_before = self.weak
        self.base, self.commits, self.last_of = oracle, [], {}
        self.moments = [oracle.clone()]
        for call in self.calls:
            call.number = 0

    def submit(self, operation: Operation, now: int) -> Call:
        call = Call(operation)
        self.calls.append(call)
        if isinstance(operation, Tick):
            for name in self.now.names():
                self._expire(name, now)
        self._expire(operation.topic, now)
        for change in operation.changes():
            after = self.now.clone()
            try:
                call.expected = change(after, now)
            except Refusal as refusal:
                call.expected = type(refusal)
                return call
            self._add(Commit(change, now, call, operation.topic), after)
        if isinstance(operation, Read):
            self._forward(now)
        call.number = self.last_of.get(operation.topic, 0)
        call.promise = self._promise(call)
        self._forward(now)
        return call

    def _forward(self, now: int) -> None:
        """Routers forward what they can, before the answer comes."""
        moved = True
        while moved:
            moved = False
            for name, route in self.now.routers().items():
                after = self.now.clone()
                after.forward(name, now)
                if after.routers()[name] != route:
                    self._add(Commit(partial(_forward, name), now, None, route.dest), after)
                    moved = True

    def _expire(self, name: str, now: int) -> None:
        if name not in self.now.names():
            return
        after = self.now.clone()
        after.expire(name, now)
        if len(after._topics[name].live()) != len(self.now._topics[name].live()):
            self._add(Commit(lambda oracle, at: oracle.expire(name, at), now, None, name), after)

    def _add(self, commit: Commit, after: Oracle) -> None:
        commit.is_idle = _extent(self.now, commit.topic) == _extent(after, commit.topic)
        self.commits.append(commit)
        self.moments.append(after)
        self.last_of[commit.topic] = len(self.commits)

    @property
    def weak(self) -> dict[tuple[str, int], int]:
        """By name and epoch, the highest seq that was there while the topic was ephemeral."""
        weak = dict(self.weak_before)
        for moment in self.moments:
            for name, topic in moment._topics.items():
                if topic.config.durability == "ephemeral":
                    weak[name, topic.epoch] = topic.head
        return weak

    def _promise(self, call: Call) -> Promise:
        operation = call.operation
        if isinstance(operation, Put | Drop | Route | Unroute):
            return "synced"
        if isinstance(operation, Append) and isinstance(call.expected, tuple) and call.expected[2]:
            return "synced"
        if operation.topic not in self.now.names():
            return "none"
        durability = self.now._topics[operation.topic].config.durability
        return {"fsync": "synced", "disk": "written", "memory": "written", "ephemeral": "none"}[durability]  # type: ignore[return-value]

    def acked(self, call: Call, answer: Any, engine: Engine) -> None:
        call.status, call.answer = "acked", answer
        name = call.operation.topic
        topic = engine.state.topics.get(name)
        if topic is None or name not in self.now.names():
            return
        epoch = self.now._topics[name].epoch
        self.epochs[name, epoch] = topic.epoch
        if isinstance(call.operation, Append) and not topic.is_logged:
            self.acked_in_memory.add((name, topic.epoch))
        elif isinstance(call.operation, Append):
            self.acked_heads[name, epoch] = max(self.acked_heads.get((name, epoch), 0), answer[1])

    def failed(self, call: Call) -> None:
        """A call that failed in storage has changed nothing: replay the others without it."""
        call.status = "failed"
        for commit in self.commits:
            commit.is_failed |= commit.call is call
        self._replay()

    def with_failed(self) -> Iterator["History"]:
        """The history with none, the first, the first two … of the failed commits in it."""
        failed = [number for number, commit in enumerate(self.commits) if commit.is_failed]
        for revived in range(len(failed) + 1):
            other = copy(self)
            other.commits = [
                replace(commit, call=None, is_failed=commit.is_failed and number not in failed[:revived])
                for number, commit in enumerate(self.commits)
            ]
            other._replay()
            yield other

    def _replay(self) -> None:
        oracle = self.base.clone()
        self.moments = [oracle.clone()]
        for commit in self.commits:
            if not commit.is_failed:
                before = _extent(oracle, commit.topic)
                try:
                    answer = commit.change(oracle, commit.now)
                except Refusal as refusal:  # it depended on one that failed, and will fail, too
                    answer = type(refusal)
                commit.is_idle = _extent(oracle, commit.topic) == before
                if commit.call is not None:
                    commit.call.expected = answer
            self.moments.append(oracle.clone())

    def lower_bound(self, is_power_loss: bool) -> int:
        """Number of the last commit that must have survived."""
        kept = ("synced",) if is_power_loss else ("synced", "written")
        shown = (self._shown_by(call) for call in self.calls if call.status == "acked" and call.promise in kept)
        return max(shown, default=0)

    def _shown_by(self, call: Call) -> int:
        """Number of the last commit of its topic that the call shows, those left out that failed."""
        for number in range(call.number, 0, -1):
            commit = self.commits[number - 1]
            is_shown = not commit.is_failed and not commit.is_idle and not (commit.call is None and self.is_faulty)
            if commit.topic == call.operation.topic and is_shown:
                return number
        return 0

    def check_answers(self) -> None:
        """Every answer was the oracle's."""
        for call in self.calls:
            if call.status in ("acked", "refused") and call.operation.changes():
                assert call.answer == call.expected, call


def _forward(name: str, oracle: Oracle, now: int) -> None:
    if name in oracle.routers():
        oracle.forward(name, now)


def _extent(oracle: Oracle, name: str) -> object:
    """What every change of a topic changes."""
    topic = oracle._topics.get(name)
    return None if topic is None else (topic.epoch, topic.config, topic.head, len(topic.live()), dict(topic.cursors))


@dataclass(frozen=True)
class TopicSeen:
    """What can be found out about a topic from outside, and its gaps."""

    epoch: int
    config: TopicConfig
    head: int
    earliest: int
    floor: int
    count: int
    bytes: int
    last_write_ts: int | None
    gaps: tuple[tuple[int, int], ...]
    records: tuple[tuple[Any, ...], ...]  # seq, ts, node, tag, data, meta
    told: tuple[tuple[int, int], ...]  # ranges of the tombstones that a reader from 0 meets
    cursors: tuple[tuple[str, int], ...]  # named ones


Seen = dict[str, TopicSeen]


async def observe(engine: Engine) -> Seen:
    """All that the engine shows."""
    return {name: await _observe_topic(engine, name) for name in await engine.topic_names()}


async def _observe_topic(engine: Engine, name: str) -> TopicSeen:
    found: list[tuple[Any, ...]] = []
    told: list[tuple[int, int]] = []
    after, is_caught_up = 0, False
    while not is_caught_up:
        answer = await engine.read(name, after, include_tags=True, limit=4)
        if answer.tombstone is not None:
            told.append((answer.tombstone.gap_from, answer.tombstone.gap_to))
        for record in answer.records:
            meta = bytes(record.meta) or None
            found.append((record.seq, record.ts, record.node, record.tag, bytes(record.data), meta))
        after, is_caught_up = answer.next_from_seq, answer.caught_up
    state = await engine.topic_state(name)
    return TopicSeen(
        state.epoch,
        state.config,
        state.head_seq,
        state.earliest_seq,
        state.evict_floor,
        state.count,
        state.bytes,
        state.last_write_ts,
        _ranges(engine.state.topics[name].log.gaps),
        tuple(found),
        tuple(told),
        tuple((cursor.name, cursor.seq) for cursor in (await engine.cursors.list_after(name, "", 1000))[0]),
    )


def predict(oracle: Oracle, name: str, now: int) -> TopicSeen:
    """What the engine must show of a topic. The epoch is the oracle's own."""
    oracle = oracle.clone()
    view = oracle.state(name, now)
    found: list[tuple[Any, ...]] = []
    told: list[tuple[int, int]] = []
    after, is_caught_up = 0, False
    while not is_caught_up:
        answer = oracle.read(name, after, now, limit=4, bytes_max=1_000_000)
        if answer.tombstone is not None:
            told.append((answer.tombstone.gap_from, answer.tombstone.gap_to))
        found.extend((r.seq, r.ts, r.node, r.tag, r.data, r.meta) for r in answer.records)
        after, is_caught_up = answer.next, answer.caught_up
    return TopicSeen(
        view.epoch,
        view.config,
        view.head,
        view.earliest,
        view.floor,
        view.count,
        view.bytes,
        view.last_write_ts,
        _ranges(view.gaps),
        tuple(found),
        tuple(told),
        tuple(sorted(oracle._topics[name].cursors.items())),
    )


def _ranges(gaps: Iterable[Gap]) -> tuple[tuple[int, int], ...]:
    """Gaps as ranges; reasons are hints, and after a restart maybe guesses (TM15)."""
    return merged((gap.first, gap.last) for gap in gaps)


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges, those that touch as one."""
    whole: list[tuple[int, int]] = []
    for first, last in ranges:
        if whole and whole[-1][1] + 1 == first:
            whole[-1] = (whole[-1][0], last)
        else:
            whole.append((first, last))
    return tuple(whole)
