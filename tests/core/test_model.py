"""Random histories: the engine and the oracle answer alike, from every cursor, after every step.

The machine plays commands on both: topics come, change and go, records are written, deleted, evicted and expire,
gaps open, the clock steps, checkpoints run with commands in their midst, the process stops gracefully or is killed.
With `tiny` blocks and pages the borders inside the log and its segments lie a few records apart.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET

from tests.core.engine_adapter import EngineAdapter, as_read, config_fields, open_gap, record_in, topic_view, written
from tests.effort import tries
from topics.core import decide
from topics.core.topic import blocks, live, log, pages, parts, walk
from topics.core.topic.config import ConfigIn
from topics.core.topic.log import Log
from topics.engine import Engine
from topics.engine.answers import DeleteResult
from topics.errors import CursorMoved, InvalidRequest, Refusal
from topics.model import TagMatch, TopicConfig
from topics.settings import Settings
from topics.testing.oracle import Deleted, GapReason, Oracle, Read, Topic, Write

NAMES = ["a", "b"]
TAGS = [None, None, "", "x", "x:1", "x:2", "y", "é"]
NODES = [None, None, "me", "you", ""]
MATCHES = [TagMatch("Eq", "x"), TagMatch("Glob", "x"), TagMatch("Glob", ""), TagMatch("Eq", "é"), TagMatch("Eq", "")]
QUERIES: list[dict[str, Any]] = [
    {},
    {"limit": 1},
    {"limit": 3, "nodes": ["me"]},
    {"bytes_max": 25},
    {"filter": TagMatch("Glob", "x:")},
    {"nodes": ["me", "", "you"], "limit": 5, "bytes_max": 60},
    {"filter": TagMatch("Eq", "x"), "nodes": ["you"]},
]
GUESSES = ["any", "any", "right", "none", "wrong"]
REASONS = {"evicted": "cap", "expired": "ttl"}
CURSORS_MAX = 24  # compared after one step; in a longer log those around its watermarks are


@dataclass(frozen=True)
class Put:
    topic: str
    config: TopicConfig


@dataclass(frozen=True)
class Append:
    topic: str
    records: Sequence[Write]
    node: str | None
    key: str | None
    create: bool | None
    config: TopicConfig | None


@dataclass(frozen=True)
class Delete:
    topic: str
    before: int | None  # how far below head + 2
    match: TagMatch | None


@dataclass(frozen=True)
class Drop:
    topic: str
    if_empty: bool


@dataclass(frozen=True)
class OpenGap:
    topic: str
    size: int
    reason: GapReason


Command = Put | Append | Delete | Drop | OpenGap

topics = st.sampled_from(NAMES)
configs = st.builds(
    TopicConfig,
    type=st.sampled_from(["log", "log", "log", "queue"]),
    ttl_ms=st.sampled_from([0, 0, 50, 1000]),
    cap_records=st.sampled_from([0, 0, 1, 3, 7]),
    cap_bytes=st.sampled_from([0, 0, 15, 60]),
    discard=st.sampled_from(["old", "old", "reject"]),
    durability=st.sampled_from(["disk", "disk", "fsync", "memory", "ephemeral"]),
    idempotency_window_ms=st.sampled_from([120_000, 100, 0]),
    dedupe_node=st.booleans(),
    auto_create=st.booleans(),
)
writes = st.builds(
    Write,
    data=st.sampled_from([b"1", b'"xxxxxxxx"', b'{"b": 1.0,"b":1e400}', b'"' + b"y" * 30 + b'"']),
    tag=st.sampled_from(TAGS),
    node=st.sampled_from(NODES),
    meta=st.sampled_from([None, None, b"{}", b'{"k": [1]}']),
)
batches = st.one_of(st.lists(writes, min_size=1, max_size=6), st.lists(writes, min_size=9, max_size=14))
puts = st.builds(Put, topics, configs)
appends = st.builds(
    Append,
    topics,
    batches,
    node=st.sampled_from(NODES),
    key=st.sampled_from([None, None, "k1", "k2", "k3"]),
    create=st.sampled_from([None, None, True, False]),
    config=st.none() | configs,
)
deletes = st.builds(Delete, topics, st.none() | st.integers(0, 30), st.none() | st.sampled_from(MATCHES))
drops = st.builds(Drop, topics, st.booleans())
gaps = st.builds(OpenGap, topics, st.integers(1, 10), st.sampled_from(["cap", "source_trim"]))
commands = st.one_of(appends, appends, deletes, puts, drops, gaps)


class Machine(RuleBasedStateMachine):
    """One instance of topics and its oracle."""

    is_tiny = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        if self.is_tiny:
            for module, name, value in TINY:
                self.patch.setattr(module, name, value)
        self.oracle = Oracle(max_total_bytes=2000)
        self.steps = count()
        self.epochs: dict[tuple[str, int], int] = {}
        self.earliest: dict[int, int] = {}  # by the engine's epoch
        self.forgettable: set[tuple[str, int, str]] = set()  # keys whose window was over at some moment
        self.was_ephemeral: set[tuple[str, int]] = set()
        self.evicted = [0, 0]  # by the last PUT: records and bytes
        self.lost_at: dict[tuple[str, int], dict[int, int]] = {}  # instance → seq → when it was lost
        self.cursors: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}  # instance → named cursors: seq, ts

    @initialize(events_max=st.sampled_from([3, 10, 100]), bytes_max=st.sampled_from([100, 10_000]))
    def start(self, events_max: int, bytes_max: int) -> None:
        limits = Settings(segment_max_events=events_max, segment_max_bytes=bytes_max, max_total_bytes=2000)
        self.adapter = EngineAdapter(limits)

    def teardown(self) -> None:
        self.adapter.close()
        self.patch.undo()

    @property
    def engine(self) -> Engine:
        return self.adapter.engine

    @property
    def now(self) -> int:
        return self.adapter.clock.now_ms()

    # What happens.

    @rule(command=appends)
    def append(self, command: Append) -> None:
        self.adapter.do(self.play(command))

    @rule(command=st.one_of(puts, deletes))
    def put_or_delete(self, command: Command) -> None:
        self.adapter.do(self.play(command))

    @rule(command=st.one_of(drops, gaps))
    def drop_or_lose(self, command: Command) -> None:
        self.adapter.do(self.play(command))

    @rule(name=topics, cursor=st.sampled_from(["r", "s"]), back=st.integers(-1, 9), guess=st.sampled_from(GUESSES))
    def put_cursor(self, name: str, cursor: str, back: int, guess: str) -> None:
        """NC1: a cursor goes where it is told, if it stands where the caller thinks."""
        topic = self.oracle._topics.get(name)
        if topic is None:
            return
        self.oracle.expire(name, self.now)
        stored = self.cursors.setdefault((name, topic.epoch), {})
        seq = max(0, topic.head - back)
        present = stored.get(cursor, (None, 0))[0]
        if_seq = {"any": UNSET, "right": present, "none": None, "wrong": -1 if present is None else present + 1}[guess]
        put = self.engine.cursors.put(name, cursor, seq, if_seq=if_seq)
        answer = self.adapter.do(outcome(put))
        if if_seq is not UNSET and if_seq != present:
            assert answer == (CursorMoved, {"topic": name, "seq": present})
        elif seq > topic.head:
            assert answer[0] is InvalidRequest
        else:
            created, state = answer
            assert created == (present is None)
            assert (state.seq, state.lag, state.updated_ts) == (seq, topic.head - seq, self.now)
            assert state.lost == sum(slot.seq > seq for slot in topic.slots if slot.status not in ("live", "deleted"))
            stored[cursor] = seq, self.now

    @rule(name=topics, cursor=st.sampled_from(["r", "s"]))
    def delete_cursor(self, name: str, cursor: str) -> None:
        topic = self.oracle._topics.get(name)
        if topic is not None:
            stored = self.cursors.setdefault((name, topic.epoch), {})
            assert self.adapter.do(self.engine.cursors.delete(name, cursor)) == (stored.pop(cursor, None) is not None)

    @rule(ms=st.sampled_from([1, 20, 51, 101, 1001, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.adapter.clock.advance(ms)

    @rule(ms=st.sampled_from([-2000, -30, 40]))
    def step_wall_clock(self, ms: int) -> None:
        self.adapter.clock.set(self.now + ms)

    @rule()
    def checkpoint(self) -> None:
        self.adapter.do(self.engine.checkpoint())

    @rule()
    def tick(self) -> None:
        async def go() -> None:
            done = self.engine.tick()
            if inspect.isawaitable(done):
                await done
            if self.engine._upkeep.checkpointing.task is not None:
                await asyncio.wait([self.engine._upkeep.checkpointing.task])

        self.adapter.do(go())

    @rule(meanwhile=st.lists(st.tuples(st.integers(0, 12), commands), min_size=1, max_size=4))
    def checkpoint_meanwhile(self, meanwhile: list[tuple[int, Command]]) -> None:
        """Commands while a checkpoint is under way, each some turns of the loop after the one before."""

        async def go() -> None:
            checkpoint = asyncio.create_task(self.engine.checkpoint())
            for turns, command in meanwhile:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await self.play(command)
            await checkpoint

        self.adapter.do(go())

    @rule()
    def restart(self) -> None:
        self.adapter.restart()
        self.oracle.restart(clean=True, power_loss=False)
        for name, topic in self.lives():
            if topic.config.durability == "ephemeral":
                self.cursors.pop((name, topic.epoch), None)

    @precondition(lambda self: not any((name, t.epoch) in self.was_ephemeral for name, t in self.lives()))
    @rule()
    def kill(self) -> None:
        """Nothing acked is lost: all topics are, and always were, logged."""
        self.adapter.kill()
        self.oracle.restart(clean=False, power_loss=False)

    # A command on both.

    async def play(self, command: Command) -> None:
        if isinstance(command, Append) and self.is_key_in_doubt(command):
            command = replace(command, key=None)
        want = await outcome(self.on_oracle(command))
        got = await outcome(self.on_engine(command))
        assert got == want, f"{command}: {got}, should be {want}"
        for name, topic in self.lives():
            if topic.config.durability == "ephemeral":
                self.was_ephemeral.add((name, topic.epoch))

    async def on_oracle(self, command: Command) -> Any:
        oracle, now = self.oracle, self.now
        match command:
            case Put(name, config):
                before = self.oracle_totals(name)
                created = oracle.put_topic(name, config, now)
                self.evicted = [was - left for was, left in zip(before, self.oracle_totals(name), strict=True)]
                return created
            case Append(name, records, node, key, create, config):
                return oracle.append(name, records, now, key=key, create=create, config=config, node=node)
            case Delete(name, before, tag_match):
                return oracle.delete(name, now, before_seq=self.bound(name, before), match=tag_match)
            case Drop(name, if_empty):
                return oracle.delete_topic(name, now, if_empty)
            case OpenGap(name, size, reason):
                return oracle.open_gap(name, size, reason)

    async def on_engine(self, command: Command) -> Any:
        engine = self.engine
        match command:
            case Put(name, config):
                return await self.put_as_previewed(name, config_fields(config))
            case Append(name, records, node, key, create, config):
                fields = None if config is None else config_fields(config)
                texts = [record_in(write) for write in records]
                done = await engine.append(name, texts, node=node, key=key, create=create, config=fields)
                return written(done)
            case Delete(name, before, tag_match):
                bound = self.bound(name, before)
                expected = await outcome(engine.delete(name, before_seq=bound, match=tag_match, dry_run=True))
                answer = await outcome(engine.delete(name, before_seq=bound, match=tag_match))
                assert answer == expected, f"{command}: {answer}, the dry run said {expected}"
                return as_deleted(answer) if isinstance(answer, DeleteResult) else answer
            case Drop(name, if_empty):
                return await engine.delete_topic(name, if_empty=if_empty)
            case OpenGap(name, size, reason):
                return await open_gap(engine, name, size, reason)

    async def put_as_previewed(self, name: str, fields: dict[str, Any]) -> bool:
        """Put a topic, after a dry run that says what becomes of its records (DR1).

        What the PUT took is counted in the oracle: into the engine's topic routers may have copied more since then.
        """
        engine, before = self.engine, await self.totals(name)
        preview = await engine.changes.put_topic(name, ConfigIn(**fields), dry_run=True)
        assert await self.totals(name) == before
        created, config = await engine.put_topic(name, fields)
        assert (preview.created, preview.config) == (created, config)
        assert [preview.evicted_records, preview.evicted_bytes] == self.evicted
        return created

    async def totals(self, name: str) -> tuple[int, int]:
        if name not in self.engine.state.topics:
            return 0, 0
        state = await self.engine.topic_state(name, touch=False)
        return state.count, state.bytes

    def oracle_totals(self, name: str) -> tuple[int, int]:
        if name not in self.oracle.names():
            return 0, 0
        state = self.oracle.state(name, self.now)
        return state.count, state.bytes

    def bound(self, name: str, before: int | None) -> int | None:
        topic = self.oracle._topics.get(name)
        return None if before is None else max(0, (topic.head if topic else 0) + 2 - before)

    def lives(self) -> list[tuple[str, Topic]]:
        return list(self.oracle._topics.items())

    def is_key_in_doubt(self, command: Append) -> bool:
        """A key may be forgotten once its window is over, and the clock or the window may then go the other way."""
        topic = self.oracle._topics.get(command.topic)
        if topic is None or command.key not in topic.keys:
            return False
        is_over = self.now - topic.keys[command.key][0] > topic.config.idempotency_window_ms
        return (command.topic, topic.epoch, command.key) in self.forgettable and not is_over

    # What must hold.

    @invariant()
    def answers_are_those_of_the_oracle(self) -> None:
        if hasattr(self, "adapter"):
            self.adapter.do(self.compare())

    async def compare(self) -> None:
        step = next(self.steps)
        assert await self.engine.topic_names() == self.oracle.names()
        for name, topic in self.lives():
            await self.compare_state(name)
            for number, cursor in enumerate(cursors(topic)):
                query = QUERIES[(number + step) % len(QUERIES)]
                await self.compare_read(name, cursor, query)
            await self.compare_read(name, 0, {"epoch": topic.epoch})
            await self.compare_read(name, topic.head, {"epoch": topic.epoch - 1})
            self.note_keys(name, topic)
        self.check_totals()

    async def compare_state(self, name: str) -> None:
        want = self.oracle.state(name, self.now)
        got = topic_view(self.engine, await self.engine.topic_state(name))
        known = self.epochs.setdefault((name, want.epoch), got.epoch)
        assert got.epoch == known
        assert got.epoch > max((e for (n, o), e in self.epochs.items() if n == name and o < want.epoch), default=0)
        assert replace(got, epoch=want.epoch) == want, f"{name}: {got}, should be {want}"
        assert 1 <= got.floor <= got.earliest <= got.head + 1
        assert got.earliest >= self.earliest.get(got.epoch, 1)
        self.earliest[got.epoch] = got.earliest

    async def compare_read(self, name: str, cursor: int, query: dict[str, Any]) -> None:
        query = {"limit": 1000, "bytes_max": 100_000, "nodes": (), "filter": None, "epoch": None, **query}
        want = self.oracle.read(name, cursor, self.now, **query)
        epoch = query.pop("epoch")
        if epoch is not None:
            epoch = self.epochs.get((name, epoch), 0)
        limit, match = query.pop("limit"), query.pop("filter")
        is_filtered = match is not None or bool(query["nodes"])
        answer = await self.engine.read(name, cursor, limit, match=match, epoch=epoch, include_tags=True, **query)
        assert answer.count == len(answer.records)
        got: Read = replace(as_read(answer), epoch=want.epoch)
        if is_filtered and got.next < want.next and got.scanned:  # LM13: it had its share of a turn
            want = up_to(want, got.next)
            await self.compare_read(name, got.next, {**query, "limit": limit, "filter": match})
        assert got == want, f"{name} after {cursor}, {query}: {got}\nshould be {want}"

    def note_keys(self, name: str, topic: Topic) -> None:
        for key, (ts, _) in topic.keys.items():
            if self.now - ts > topic.config.idempotency_window_ms:
                self.forgettable.add((name, topic.epoch, key))

    def check_totals(self) -> None:
        state = self.engine.state
        for topic in state.topics.values():
            topic.log.check()
            slots = [slot.status for slot in self.oracle._topics[topic.name].slots]
            assert topic.log.deleted == slots.count("deleted"), topic.name
            assert topic.log.lost == len(slots) - slots.count("deleted") - slots.count("live"), topic.name
            self.check_losses(topic.name, topic.log)
            known = self.cursors.get((topic.name, self.oracle._topics[topic.name].epoch), {})
            assert topic.cursors == known, topic.name
        self.engine._ledger.store.catalogue.check()
        assert state.records == sum(topic.log.count for topic in state.topics.values())
        assert state.bytes == sum(topic.log.bytes for topic in state.topics.values())
        for shelf in self.engine._cache.shelves:
            assert shelf.size_bytes == sum(page.size_bytes for page in shelf.pages.values())

    def check_losses(self, name: str, log: Log) -> None:
        """LS1, LS2: losses are the seqs that were lost, with reason and time; what comes together is one."""
        slots = self.oracle._topics[name].slots
        reasons = {s.seq: REASONS.get(s.status, s.reason) for s in slots if s.status not in ("live", "deleted")}
        assert log.expired == sum(reason == "ttl" for reason in reasons.values())
        assert log.trimmed == sum(reason == "source_trim" for reason in reasons.values())
        times = self.lost_at.setdefault((name, self.oracle._topics[name].epoch), {})
        for seq in reasons:
            times.setdefault(seq, self.now)
        covered: set[int] = set()
        for loss in log.losses:
            lost = [seq for seq in range(loss.first, loss.last + 1) if seq in reasons]
            assert {reasons[seq] for seq in lost} == {loss.reason}, f"{loss} of {reasons}"
            ts = sorted({times[seq] for seq in lost})
            assert all(later - earlier <= 1000 for earlier, later in pairwise(ts)), loss
            assert loss.ts == ts[-1], loss
            assert loss.count == len(lost), f"{loss} of {reasons}"
            covered.update(lost)
        assert covered == reasons.keys()
        for lower, upper in pairwise(log.losses):
            is_one = lower.last + 1 == upper.first and lower.reason == upper.reason
            assert not is_one or abs(lower.ts - upper.ts) > 1000, f"{lower} and {upper} are one"


TINY = [
    *((module, "BLOCK", 8) for module in (blocks, live, log, decide)),
    *((module, "PAGE_ROWS", 4) for module in (pages, parts, walk)),
    (pages, "PAGE_BYTES", 30),
]


class TinyMachine(Machine):
    """The same with blocks of 8 seqs and pages of 4 rows."""

    is_tiny = True


def cursors(topic: Topic) -> list[int]:
    last = topic.head + 2
    if last < CURSORS_MAX:
        return list(range(last + 1))
    edges = [0, topic.floor, topic.earliest, last, *(gap.first for gap in topic.gaps), *(g.last for g in topic.gaps)]
    near = {edge + step for edge in edges for step in (-2, -1, 0, 1)}
    near.update(range(0, last, max(1, last // 10)))
    return sorted(cursor for cursor in near if 0 <= cursor <= last)


def up_to(read: Read, last: int) -> Read:
    """The read, had it ended behind seq `last`."""
    records = [record for record in read.records if record.seq <= last]
    left = read.next - last
    return replace(read, records=records, next=last, lag=read.lag + left, scanned=read.scanned - left, caught_up=False)


async def outcome(work: Awaitable[Any]) -> Any:
    """The answer, or the kind and the detail of the refusal."""
    try:
        return await work
    except Refusal as refusal:
        return type(refusal), refusal.detail


def as_deleted(answer: DeleteResult) -> Deleted:
    return Deleted(answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.bytes)


def profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=tries(examples),
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


TestRandomHistories = Machine.TestCase
TestRandomHistories.settings = profile(25, 40)
TestRandomHistoriesAtBorders = TinyMachine.TestCase
TestRandomHistoriesAtBorders.settings = profile(35, 40)


@pytest.mark.full
class TestManyRandomHistories(Machine.TestCase):  # type: ignore[name-defined, misc]
    settings = profile(400, 60)


@pytest.mark.full
class TestManyRandomHistoriesAtBorders(TinyMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = profile(800, 60)
