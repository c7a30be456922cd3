"""Queues and crashes: at every file operation of a script of queue calls, in every way (G11).

Whatever the crash, a job is in the queue or in the dead-letter topic, once, unless it was acked; then it is in neither.
Durable leases are as they were, or their jobs are claimable; and every job can be claimed in the end.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest

from tests.crash.run import finished
from tests.crash.test_crash import noted, quiet, spread
from tests.effort import stride, tries
from topics.engine import Engine
from topics.engine.answers import Claimed
from topics.errors import StorageError
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import CrashAt, Faulty, MemoryDisk, Operation, crash_points

T = TypeVar("T")

SAMPLED_POINTS = tries(10)
DAY_MS = 86_400_000
Lease = tuple[str, str, int] | None  # node, lease id, deadline; None = nobody holds the job

CLASSES = [
    ("fsync", "fsync"),
    ("disk", "disk"),
    ("memory", "fsync"),
    ("fsync", "disk"),
    ("disk", "ephemeral"),
    ("ephemeral", "disk"),
]
SETUPS = [(queue, dead, leases) for queue, dead in CLASSES for leases in (True, False)]


@dataclass
class Known:
    """What the script was told of one job, known by its data."""

    is_written: bool = False  # the write was acked
    ack: str = ""  # "", "asked" or "done"
    leases: list[Lease] = field(default_factory=lambda: [None])  # since the last that was told: what may hold

    def asked(self, lease: Lease) -> None:
        self.leases.append(lease)

    def told(self, lease: Lease) -> None:
        self.leases = [lease]


class Play:
    """One run of the script, to its end or to the death of the disk."""

    def __init__(self, queue: str, dead: str, leases_durable: bool, hooks: Iterable[Any] = ()) -> None:
        self.classes, self.leases_durable = (queue, dead), leases_durable
        self.disk = MemoryDisk(hooks=hooks)
        self.fault: Faulty | None = None  # the disk fails without dying, once the topics are there
        self.clock = ManualClock()
        self.jobs: dict[int, Known] = {}
        self.data: dict[int, int] = {}  # seq → data, of jobs that were handed out
        self.paused = [False]  # since the last that was told: what may hold

    def open(self, disk: MemoryDisk) -> Engine:
        settings = Settings(segment_max_events=3)
        return Engine.open("x", settings, clock=self.clock, disk=disk, background=False)

    async def run(self) -> None:
        await finished(self._run(), lambda: self.disk.is_dead)

    async def _run(self) -> None:
        self.engine = engine = self.open(self.disk)
        await engine.start()
        queue, dead = self.classes
        await engine.put_topic("dead", {"durability": dead})
        config = {"type": "queue", "durability": queue, "leases_durable": self.leases_durable, "lease_ms": 1000}
        await engine.put_topic("q", {**config, "max_deliveries": 2, "dead_letter": "dead"})
        if self.fault is not None:
            self.disk.hooks.append(self.fault)
        for step in self._steps():
            try:
                await step()
            except (StorageError, OSError):
                if self.fault is None:
                    raise
                for known in self.jobs.values():
                    known.asked(None)  # what failed holds nothing

    def _steps(self) -> list[Callable[[], Awaitable[object]]]:
        async def wait(ms: int) -> None:
            self.clock.advance(ms)

        return [
            lambda: self.write(1, 2, 3, 4, 5),
            lambda: self.write(6, delay_ms=500),
            lambda: self.claim("a", 3),
            lambda: self.ack("a", 1),
            lambda: self.nack("a", 2),
            lambda: self.extend("a", 3),
            lambda: self.engine.checkpoint(),
            lambda: self.claim("b", 2),
            lambda: self.nack("b", 2),
            lambda: self.nack("b", 4, delay_ms=50),
            lambda: wait(600),
            lambda: self.claim("c", 3),  # 2 becomes a dead letter
            lambda: self.ack("c", 5),
            lambda: self.pause(True),
            lambda: self.engine.checkpoint(),
            lambda: self.claim("p", 5),  # gets nothing
            lambda: self.nack("c", 4),
            lambda: self.pause(False),
            lambda: self.claim("d", 1),  # and so does 4
            lambda: self.engine.redrive("q"),
            lambda: self.claim("e", 2),
            lambda: self.ack("e", 2),
            lambda: self.write(7),
            lambda: self.engine.checkpoint(),
            lambda: self.claim("f", 5),
            lambda: self.ack("f", 7),
            lambda: self.pause(True),
        ]

    # --- calls, and what is known of them

    async def write(self, *data: int, **fields: Any) -> None:
        for value in data:
            self.jobs[value] = Known()
        await self.engine.append("q", [{"data": value, **fields} for value in data])
        for value in data:
            self.jobs[value].is_written = True

    async def claim(self, node: str, count: int) -> None:
        queue = self.engine.state.topics["q"].queue
        before = dict(queue.leases)
        calling = self.engine.claim("q", node, count)
        claimed: Claimed = await self._noting(calling, before)
        assert claimed.paused in self.paused and not (claimed.paused and claimed.jobs)
        for job in claimed.jobs:
            self.data[job.seq] = int(job.data)
            self.jobs[int(job.data)].told((node, job.lease_id, job.deadline))

    async def _noting(self, calling: Awaitable[T], before: dict[int, Any]) -> T:
        """Await a call; what it changed in memory may have reached the disk even if it is never answered."""
        try:
            return await calling
        finally:
            topic = self.engine.state.topics["q"]
            for seq, (offset, node, deadline, count) in topic.queue.leases.items():
                if before.get(seq) != (offset, node, deadline, count):
                    for known in self._known(seq):
                        known.asked((node, f"lease_{offset + seq:x}", deadline))

    def _known(self, seq: int) -> list[Known]:
        return [self.jobs[self.data[seq]]] if seq in self.data else list(self.jobs.values())

    def _seqs(self, node: str, data: Iterable[int]) -> list[int]:
        leases = self.engine.state.topics["q"].queue.leases
        return [seq for seq, lease in leases.items() if lease[1] == node and self.data.get(seq) in data]

    async def pause(self, paused: bool) -> None:
        before, self.paused = self.paused, [*self.paused, paused]
        try:
            await (self.engine.pause("q") if paused else self.engine.resume("q"))
        except StorageError:
            self.paused = before
            raise
        self.paused = [paused]

    async def ack(self, node: str, *data: int) -> None:
        seqs = self._seqs(node, data)
        done = [self.jobs[self.data[seq]] for seq in seqs]
        for known in done:
            known.ack = "asked"
        try:
            assert len((await self.engine.ack("q", node, seqs or [99])).done) == len(done)
        except StorageError:
            for known in done:
                known.ack = ""
            raise
        for known in done:
            known.ack = "done"

    async def nack(self, node: str, *data: int, delay_ms: int = 0) -> None:
        seqs = self._seqs(node, data)
        for seq in seqs:
            self.jobs[self.data[seq]].asked(None)
        await self.engine.nack("q", node, seqs or [99], delay_ms=delay_ms)
        for seq in seqs:
            self.jobs[self.data[seq]].told(None)

    async def extend(self, node: str, *data: int) -> None:
        before = dict(self.engine.state.topics["q"].queue.leases)
        await self._noting(self.engine.extend("q", node, self._seqs(node, data) or [99], lease_ms=60_000), before)
        for seq in self._seqs(node, data):
            offset, holder, deadline, _ = self.engine.state.topics["q"].queue.leases[seq]
            self.jobs[self.data[seq]].told((holder, f"lease_{offset + seq:x}", deadline))


# --- what holds after a crash


async def check_recovered(play: Play, disk: MemoryDisk, is_power_loss: bool) -> None:
    engine = play.open(disk)
    await finished(engine.start(), lambda: disk.is_dead)
    if "q" not in engine.state.topics:
        assert not any(known.is_written for known in play.jobs.values())
        return
    assert engine.state.topics["q"].paused in play.paused, "whether the queue is paused"
    in_queue, in_dead = await places(engine)
    queue, dead = play.classes
    is_kept = "ephemeral" not in play.classes and (not is_power_loss or queue == dead == "fsync")
    for data, known in play.jobs.items():
        places_of = in_queue.count(data) + in_dead.count(data)
        assert places_of <= 1, f"job {data} is there {places_of} times"
        if known.ack == "done" and (not is_power_loss or queue == "fsync"):
            assert not places_of, f"job {data} was acked"
        if known.is_written and not known.ack and is_kept:
            assert places_of, f"job {data} is lost"
    check_leases(play, engine, is_power_loss)
    missing = {name: topic.log.unaccounted for name, topic in engine.state.topics.items()}
    assert not any(missing.values()), f"seqs are neither live nor deleted nor lost: {missing}"
    again = play.open(disk.kill())
    await finished(again.start())
    assert facts(again) == facts(engine), "a second recovery gives another state"
    await check_nothing_is_stuck(play, again)


async def places(engine: Engine) -> tuple[list[int], list[int]]:
    """The data of all jobs, and of all dead letters."""
    return await data_of(engine, "q"), await data_of(engine, "dead")


async def data_of(engine: Engine, name: str) -> list[int]:
    found: list[int] = []
    cursor, is_behind = 0, name in engine.state.topics
    while is_behind:
        answer = await engine.read(name, cursor)  # stops at the gap that a loss of power leaves
        found += [int(record.data) for record in answer.records]
        cursor, is_behind = answer.next_from_seq, not answer.caught_up
    return found


def facts(engine: Engine) -> Any:
    topic = engine.state.topics["q"]
    jobs = topic.queue
    jobs.advance(engine.clock.now_ms())
    lasting = jobs.leases, jobs.delayed, jobs.deliveries, jobs.dead_lettered, topic.paused
    return list(topic.log.live_after(0)), *lasting


def check_leases(play: Play, engine: Engine, is_power_loss: bool) -> None:
    """A lease is as it was, or the job is claimable."""
    topic = engine.state.topics["q"]
    jobs = topic.queue
    jobs.check(topic.log)
    if not play.leases_durable or not topic.is_logged:
        assert not jobs.leases and not jobs.delayed.keys() & jobs.deliveries.keys()
        return
    for seq in topic.log.live_after(0):
        held: Lease = None
        if seq in jobs.leases:
            offset, node, deadline, _ = jobs.leases[seq]
            held = (node, f"lease_{offset + seq:x}", deadline)
        if seq in play.data and not (is_power_loss and topic.config.durability != "fsync"):
            known = play.jobs[play.data[seq]]
            assert known.ack or held in known.leases, f"job {seq} is held by {held}, not by one of {known.leases}"


async def check_nothing_is_stuck(play: Play, engine: Engine) -> None:
    """When all has ended, each job is handed out or becomes a dead letter, and the counters add up."""
    state = await engine.topic_state("q")
    assert state.queue is not None
    assert state.queue.ready + state.queue.in_flight + state.queue.delayed == state.count
    jobs, _ = await places(engine)
    play.clock.advance(DAY_MS)
    await engine.resume("q")
    claimed = [int(job.data) for job in (await engine.claim("q", "last", 100)).jobs]
    queue, letters = await places(engine)
    assert claimed == queue and set(jobs) <= {*queue, *letters}


async def operations_of(setup: tuple[str, str, bool]) -> list[Operation]:
    """The file operations of a run without a crash; the script does what it says."""
    play = Play(*setup)
    await play.run()
    assert [data for data, known in play.jobs.items() if known.ack == "done"] == [1, 2, 5, 7]
    assert play.engine.state.topics["q"].queue.dead_lettered == 2
    await check_recovered(play, play.disk.kill(), is_power_loss=False)
    return play.disk.operations


async def check_crash(setup: tuple[str, str, bool], point: CrashAt, seeds: Iterable[int]) -> None:
    play = Play(*setup, hooks=[point])
    await play.run()
    for name, after in play.disk.aftermaths(seeds):
        with noted(f"{setup}, {point}, {name}"):
            now = play.clock.now_ms()
            await check_recovered(play, after, is_power_loss=name != "kill")
            play.clock.set(now)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
async def test_after_a_crash_at_some_operations_no_job_is_lost_stuck_or_twice(setup: tuple[str, str, bool]) -> None:
    """G11, QU14, QU15, QU18, QU23, DU6, S11: a sample of the full sweep below."""
    quiet()
    points = list(crash_points(await operations_of(setup)))
    for point in spread(points, SAMPLED_POINTS):
        await check_crash(setup, point, [point.n])


@pytest.mark.full
@pytest.mark.parametrize("setup", SETUPS, ids=str)
async def test_after_a_crash_at_any_operation_no_job_is_lost_stuck_or_twice(setup: tuple[str, str, bool]) -> None:
    """G11, QU14, QU15, QU18, DU6, S11"""
    quiet()
    for point in crash_points(await operations_of(setup)):
        await check_crash(setup, point, [point.n, -point.n])


async def check_fault(setup: tuple[str, str, bool], fault: Faulty) -> None:
    """Let one operation fail, and go on: nothing is lost, twice or stuck, then and after a kill."""
    play = Play(*setup)
    play.fault = fault
    await play.run()
    play.disk.hooks.clear()
    now = play.clock.now_ms()
    await check_recovered(play, play.disk.kill(), is_power_loss=False)
    play.clock.set(now)
    in_queue, in_dead = await places(play.engine)
    for data, known in play.jobs.items():
        count = in_queue.count(data) + in_dead.count(data)
        assert count == (known.is_written and known.ack != "done"), f"job {data} is there {count} times"
    await check_nothing_is_stuck(play, play.engine)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_when_the_log_fails_once_no_job_is_lost_stuck_or_twice(
    setup: tuple[str, str, bool], kind: Literal["write", "sync"]
) -> None:
    """S12, QU11, QU15, QU23, ER7, G11: at every write and sync of the log, one after the other."""
    quiet()
    at, has_struck = 0, True
    while has_struck:
        fault = Faulty(kind, at, name="log-*")
        with noted(f"{setup}, {kind} {at} fails"):
            await check_fault(setup, fault)
        at, has_struck = at + stride(), fault.failed > 0
    assert at > 3
