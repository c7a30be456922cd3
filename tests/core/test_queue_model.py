"""Random histories of a queue: the engine and the oracle hand out the same jobs, and no job is lost, stuck, acked twice
or handed out while it is held.

The machine claims, acks, gives back, extends, lets time pass, deletes, moves caps and limits, takes checkpoints, stops
gracefully and kills. After every step the counters add up and are the oracle's; at the end every job that is left can
be claimed.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.effort import tries
from topics.core import decide
from topics.core.queue import jobs as jobs_module
from topics.core.queue import letters
from topics.core.topic import blocks, live, log, pages, parts, walk
from topics.core.topic.config import ConfigIn
from topics.engine import Engine
from topics.engine.answers import Redriven
from topics.errors import TopicFull
from topics.model import TopicConfig
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.queue_oracle import Job, QueueOracle

T = TypeVar("T")

NODES = ["a", "b", "c"]
TINY = [
    *((module, "BLOCK", 8) for module in (blocks, live, log, decide)),
    *((module, "PAGE_ROWS", 4) for module in (pages, parts, walk, letters)),
    (pages, "PAGE_BYTES", 30),
    (jobs_module, "STALE_MAX", 2),
]
configs = st.fixed_dictionaries(
    {},
    optional={
        "cap_records": st.sampled_from([0, 0, 3, 6, 20]),
        "discard": st.sampled_from(["old", "reject"]),
        "ttl_ms": st.sampled_from([0, 0, 0, 400]),
        "max_deliveries": st.sampled_from([0, 1, 2, 3]),
        "dead_letter": st.sampled_from([None, "dead"]),
        "leases_durable": st.booleans(),
        "durability": st.sampled_from(["disk", "fsync", "memory"]),
    },
)
seqs_near = st.lists(st.integers(0, 12), min_size=1, max_size=6)  # how far below the head


class Machine(RuleBasedStateMachine):
    """One queue, its dead-letter topic, and the oracle."""

    is_tiny = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        if self.is_tiny:
            for module, name, value in TINY:
                self.patch.setattr(module, name, value)
        self.clock, self.disk = ManualClock(), MemoryDisk()
        self.loop = asyncio.new_event_loop()
        self.engine = self._start()
        self.next_data = 0
        self.tokens: list[str] = []  # all that were ever given
        self.acked: list[int] = []

    def _start(self) -> Engine:
        small = Settings(segment_max_events=5, cache_bytes=160_000)
        engine = Engine.open("memory", small, disk=self.disk, clock=self.clock, background=False)
        self.do(engine.start())
        return engine

    def do(self, work: Awaitable[T]) -> T:
        async def doing() -> T:
            return await work

        return self.loop.run_until_complete(doing())

    def teardown(self) -> None:
        try:
            self.nothing_is_stuck()
        finally:
            self.do(self.engine.close())
            self.loop.close()
            self.patch.undo()

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    @initialize(config=configs)
    def create(self, config: dict[str, Any]) -> None:
        fields = {"type": "queue", **config}
        self.do(self.engine.put_topic("q", fields))
        fields["durable"] = fields.get("durability") == "fsync"
        self.oracle = QueueOracle(TopicConfig(**fields))

    # --- jobs come

    @rule(delays=st.lists(st.sampled_from([None, None, None, 0, 30, 200]), min_size=1, max_size=7), is_at=st.booleans())
    def append(self, delays: list[int | None], is_at: bool) -> None:
        records: list[dict[str, Any]] = []
        for delay in delays:
            self.next_data += 1
            records.append({"data": self.next_data})
            if delay is not None:
                records[-1] |= {"deliver_at": self.now + delay} if is_at else {"delay_ms": delay}
        starts = [self.now + (delay or 0) for delay in delays]
        data = [record["data"] for record in records]
        config = self.oracle.config
        if config.discard == "reject" and 0 < config.cap_records < len(data):
            return  # never fits: another refusal
        if self.oracle.append(data, starts, self.now):
            assert self.do(self.engine.append("q", records)).last_seq == self.oracle.head
        else:
            with pytest.raises(TopicFull):
                self.do(self.engine.append("q", records))

    # --- they are handed out and come back

    @rule(node=st.sampled_from(NODES), count=st.integers(1, 8), lease_ms=st.sampled_from([100, 100, 500]))
    def claim(self, node: str, count: int, lease_ms: int) -> None:
        before = {job.seq for job in self.oracle.jobs if job.holder is not None and self.now <= job.deadline}
        answer = self.do(self.engine.claim("q", node, count, lease_ms))
        claimed = answer.jobs
        assert answer.paused is self.oracle.paused
        assert not before & {job.seq for job in claimed}, "a job was handed out while it was held"
        expected = self.oracle.claim(node, count, lease_ms, self.now)
        assert [(job.seq, job.deliveries, job.deadline, int(job.data)) for job in claimed] == [
            (job.seq, job.deliveries, job.deadline, job.data) for job in expected
        ]
        for job, model in zip(claimed, expected, strict=True):
            assert job.lease_id not in self.tokens
            model.lease_id = job.lease_id
            self.tokens.append(job.lease_id)

    def _selected(self, below: list[int], kinds: list[int]) -> tuple[list[int], list[str]]:
        """Seqs, those that are held among them first, with tokens: none, the present one, or an old one."""
        held = [job for job in self.oracle.jobs if job.holder is not None]
        jobs: list[Job | int] = [held[n % len(held)] if held and n < 9 else max(0, self.oracle.head - n) for n in below]
        seqs = [job if isinstance(job, int) else job.seq for job in jobs]
        tokens = []
        for job, kind in zip(jobs, kinds, strict=False):
            present = "" if isinstance(job, int) else job.lease_id
            old = self.tokens[kind % len(self.tokens)] if self.tokens else ""
            tokens.append(["", present, present, old][kind % 4])
        return seqs, tokens

    @rule(
        what=st.sampled_from(["ack", "ack", "nack", "extend"]),
        node=st.sampled_from(NODES),
        below=seqs_near,
        kinds=st.lists(st.integers(0, 40), min_size=6, max_size=6),
        ms=st.sampled_from([0, 50, 300]),
    )
    def settle(self, what: str, node: str, below: list[int], kinds: list[int], ms: int) -> None:
        self.oracle.look(self.now)
        seqs, tokens = self._selected(below, kinds)
        found, skipped = self.oracle.held(node, seqs, tokens, self.now)
        engine = self.engine
        if what == "ack":
            done = self.do(engine.ack("q", node, seqs, tokens))
            self.oracle.remove(found)
            for job in found:
                assert job.data not in self.acked, "acked twice"
                self.acked.append(job.data)
        elif what == "nack":
            done = self.do(engine.nack("q", node, seqs, tokens, delay_ms=ms))
            for job in found:
                job.give_back(self.now + ms if ms else 0)
        else:
            done = self.do(engine.extend("q", node, seqs, tokens, lease_ms=ms + 100))
            for job in found:
                job.deadline = self.now + ms + 100
                self.oracle._note(job)
        assert (done.done, done.skipped) == ([job.seq for job in found], skipped)
        assert (done.ready, done.in_flight) == self.oracle.counts(self.now)[:2]

    # --- the rest of the world

    @rule(ms=st.sampled_from([1, 49, 50, 100, 101, 250, 600]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(below=st.integers(0, 10))
    def delete(self, below: int) -> None:
        self.oracle.look(self.now)
        before = max(0, self.oracle.head - below)
        expected = self.do(self.engine.delete("q", before_seq=before, dry_run=True))
        assert self.do(self.engine.topic_state("q")).count == len(self.oracle.jobs)
        assert self.do(self.engine.delete("q", before_seq=before)) == expected
        self.oracle.remove([job for job in self.oracle.jobs if job.seq < before])

    @rule(config=configs)
    def configure(self, config: dict[str, Any]) -> None:
        old = self.oracle.config
        durability = config.get("durability", old.durability)
        changes = {**config, "durability": durability, "durable": durability == "fsync"}
        self.oracle.configure(self.now, **changes)
        fields = {name: getattr(self.oracle.config, name) for name in old.__struct_fields__}
        before = self.do(self.engine.topic_state("q"))
        preview = self.do(self.engine.changes.put_topic("q", ConfigIn(**fields), dry_run=True))
        assert self.do(self.engine.topic_state("q")) == before
        assert (preview.created, preview.config) == self.do(self.engine.put_topic("q", fields))
        after = self.do(self.engine.topic_state("q"))
        assert (preview.evicted_records, preview.evicted_bytes) == (
            before.count - after.count,
            before.bytes - after.bytes,
        )

    @rule(cap=st.sampled_from([None, 1, 4]))
    def bound_letters(self, cap: int | None) -> None:
        self.do(self.engine.put_topic("dead", {"cap_records": cap or 0, "discard": "reject"}))
        self.oracle.dead_cap = cap

    @rule()
    def clear_letters(self) -> None:
        if "dead" in self.engine.state.topics:
            self.do(self.engine.delete("dead", before_seq=10**9))
            self.oracle.letters = []

    @rule(count_max=st.sampled_from([None, 0, 1, 3]))
    def redrive(self, count_max: int | None) -> None:
        """What is done is what the dry run said."""
        if self.oracle.config.dead_letter is None:
            return
        before = self.look_at_all()
        tried = self.try_redrive(count_max, dry_run=True)
        assert self.look_at_all() == before
        count = self.oracle.redrive(count_max, self.now)
        done = self.try_redrive(count_max, dry_run=False)
        assert done == tried
        assert count == 0 if done is None else (done.redriven, done.remaining) == (count, len(self.oracle.letters))

    def try_redrive(self, count_max: int | None, *, dry_run: bool) -> Redriven | None:
        try:
            return self.do(self.engine.redrive("q", None, count_max, dry_run=dry_run))
        except TopicFull:
            return None

    def look_at_all(self) -> object:
        letters = self.do(self.engine.read("dead")).texts if "dead" in self.engine.state.topics else []
        return letters, self.do(self.engine.topic_state("q")), self.do(self.engine.read("q")).texts

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.do(self.engine.pause("q") if paused else self.engine.resume("q"))
        self.oracle.paused = paused

    @rule()
    def checkpoint(self) -> None:
        self.do(self.engine.checkpoint())
        self.oracle.checkpointed()

    @rule(is_graceful=st.booleans())
    def restart(self, is_graceful: bool) -> None:
        self.oracle.look(self.now)
        self.do(self.engine.topic_state("q"))
        if is_graceful:
            self.do(self.engine.close())
        self.disk = self.disk.kill()
        self.engine = self._start()
        self.oracle.restarted(is_graceful=is_graceful)

    # --- what is always so

    @invariant()
    def the_counters_are_right(self) -> None:
        state = self.do(self.engine.topic_state("q"))
        counts = state.queue
        assert counts is not None
        assert counts.ready + counts.in_flight + counts.delayed == state.count
        assert (counts.ready, counts.in_flight, counts.delayed) == self.oracle.counts(self.now)
        assert counts.dead_lettered == self.oracle.dead_lettered
        assert (state.count, state.head_seq) == (len(self.oracle.jobs), self.oracle.head)
        assert state.paused is self.oracle.paused

    @invariant()
    def each_job_is_in_one_place(self) -> None:
        self.the_counters_are_right()  # looks at the queue first, which ends what has ended
        topic = self.engine.state.topics["q"]
        topic.log.check()
        topic.queue.check(topic.log)
        jobs = [job for job in self.oracle.jobs if job.holder is not None]
        held = {job.seq: (job.holder, job.deadline, job.deliveries) for job in jobs}
        assert {seq: lease[1:] for seq, lease in topic.queue.leases.items()} == held

    def nothing_is_stuck(self) -> None:
        """When all leases and delays have ended, every job is handed out, and nothing else is left."""
        if not hasattr(self, "oracle"):
            return
        off = {"type": "queue", "durability": self.oracle.config.durability}
        self.do(self.engine.put_topic("q", off))
        self.oracle.configure(self.now, ttl_ms=0, cap_records=0, dead_letter=None, discard="old")
        self.clock.advance(10_000)
        self.oracle.look(self.now)
        self.do(self.engine.resume("q"))
        claimed = self.do(self.engine.claim("q", "last", 1000)).jobs
        assert [int(job.data) for job in claimed] == [job.data for job in self.oracle.jobs]
        assert not {int(job.data) for job in claimed} & set(self.acked)
        done = self.do(self.engine.ack("q", "last", [job.seq for job in claimed] or [1]))
        assert len(done.done) == len(claimed)
        assert self.do(self.engine.topic_state("q")).count == 0
        letters = self.do(self.engine.read("dead")).records if "dead" in self.engine.state.topics else []
        assert [int(letter.data) for letter in letters] == self.oracle.letters


class TinyMachine(Machine):
    is_tiny = True


def profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=tries(examples),
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.contract(
    "QU3", "QU5", "QU6", "QU8", "QU9", "QU12", "QU13", "QU14", "QU15", "QU16", "QU17", "QU18", "QU20", "QU23", "DR1"
)
class TestQueue(Machine.TestCase):  # type: ignore[misc,name-defined]
    settings = profile(25, 50)


@pytest.mark.contract("QU5", "QU16", "QU18", "QU23", "DR1", "G11", "S11")
class TestTinyQueue(TinyMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = profile(30, 50)


@pytest.mark.full
@pytest.mark.contract("QU5", "QU16", "QU18", "G11")
class TestLongQueue(TinyMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = profile(250, 50)
