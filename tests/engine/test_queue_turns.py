"""Claims and acks that come in one turn of the loop are done together, each with its own answer."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.running import data, running, tick, turns
from tests.engine.test_queues import QUEUE, Taker, claimed_seqs, counts
from topics.core import apply as apply_module
from topics.core.queue import jobs as jobs_module
from topics.core.queue import leasing
from topics.core.queue.leasing import Ack, Claimer
from topics.core.topic.pages import Cold
from topics.engine import Engine
from topics.engine import upkeep as upkeep_module
from topics.engine.queues import turns as turns_module
from topics.errors import CommitFailed, NotAQueue, TopicNotFound
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk


class Heard:
    """What those who asked are told, in the order in which they asked."""

    def __init__(self) -> None:
        self._told: list[asyncio.Future[Any]] = []

    def teller(self) -> Callable[[Any, Exception | None], None]:
        answered = asyncio.get_running_loop().create_future()
        self._told.append(answered)

        def told(answer: Any, error: Exception | None) -> None:
            assert (answer is None) is (error is not None)
            answered.set_result(answer if error is None else error)  # fails if it is told twice

        return told

    @property
    def is_told(self) -> bool:
        """Whether the last one who asked is told."""
        return self._told[-1].done()

    async def all(self) -> list[Any]:
        return await asyncio.gather(*self._told)


def crowd(engine: Engine) -> Heard:
    """Somebody to ask, among many: nobody is served before the end of the turn."""
    engine._turns._is_crowded = True
    return Heard()


async def claims(engine: Engine, *claimers: Claimer, name: str = "q") -> list[Any]:
    asked = crowd(engine)
    for claimer in claimers:
        engine.claim_soon(name, claimer, asked.teller())
    return [one if isinstance(one, Exception) else claimed_seqs(one) for one in await asked.all()]


async def acks(engine: Engine, *asking: Ack, name: str = "q") -> list[Any]:
    asked = crowd(engine)
    for ack in asking:
        engine.ack_soon(name, ack, asked.teller())
    return [one if isinstance(one, Exception) else (one.done, one.skipped) for one in await asked.all()]


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
async def test_claims_of_a_turn_get_jobs_one_after_the_other_and_acks_are_one_frame(durability: str) -> None:
    """QU5, QU7, QU9, QU20: a job that two acks name is done by the first."""
    async with running() as engine:
        await engine.put_topic("q", {**QUEUE, "durability": durability})
        await engine.append("q", data(*range(7)))
        found = await claims(engine, Claimer("a", 3), Claimer("b", 1), Claimer("c", 9), Claimer("d", 1))
        assert found == [[1, 2, 3], [4], [5, 6, 7], []]
        frames = engine.wal.counters.frames
        asked = Ack("a", [3, 1], None), Ack("c", [5, 6, 99], None), Ack("a", [1, 2], None), Ack("d", [4], None)
        assert await acks(engine, *asked) == [([3, 1], []), ([5, 6], [99]), ([2], [1]), ([], [4])]
        assert engine.wal.counters.frames - frames == (durability != "ephemeral")
        assert await counts(engine) == (0, 2, 0)
        topic = engine.state.topics["q"]
        topic.queue.check(topic.log)
        topic.log.check()


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_durable_leases_of_a_turn_are_one_frame_and_outlive_a_crash(durability: str) -> None:
    """QU18: and if the log fails, nobody holds what nobody was told of."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": durability, "leases_durable": True})
        await engine.append("q", data(*range(6)))
        frames = engine.wal.counters.frames
        assert await claims(engine, Claimer("a", 2), Claimer("b", 1)) == [[1, 2], [3]]
        assert engine.wal.counters.frames == frames + 1
        disk.hooks.append(Faulty("write", name="log-*"))
        found = await claims(engine, Claimer("a", 2), Claimer("b", 1))
        assert [type(one) for one in found] == [CommitFailed] * 2
        assert await counts(engine) == (3, 3, 0)
        disk = disk.kill()
    async with running(disk) as engine:
        assert await counts(engine) == (3, 3, 0)
        assert list(map(engine.state.topics["q"].queue.handed_out, (1, 2, 3))) == [1, 1, 1]


async def test_jobs_given_back_come_first_and_every_hand_is_in_order() -> None:
    """QU5"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(8)))
        await engine.claim("q", "w", 6)
        await engine.nack("q", "w", [2, 5, 6])
        assert await claims(engine, Claimer("a", 2), Claimer("b", 2), Claimer("c", 2)) == [[2, 5], [6, 7], [8]]


async def test_a_turn_hands_out_a_bounded_number_of_jobs_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LM10"""
    monkeypatch.setattr(turns_module, "TURN_JOBS_MAX", 4)
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(12)))
        found = await claims(engine, Claimer("a", 3), Claimer("b", 2), Claimer("c", 6), Claimer("d", 2))
        assert found == [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11], [12]]


async def test_a_turn_hands_out_a_bounded_number_of_bytes_and_nobody_goes_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LM6, QU5: what does not fit one hand is in the next."""
    monkeypatch.setattr(leasing, "HAND_BYTES_MAX", 1000)
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data("x" * 5000, *["x" * 400] * 5))
        found = await claims(engine, Claimer("a", 2), Claimer("b", 9), Claimer("c", 1), Claimer("d", 9))
        assert found == [[1], [2, 3], [4], [5, 6]]


async def test_behind_a_hand_that_is_full_jobs_given_back_come_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """QU5, LM6"""
    monkeypatch.setattr(leasing, "HAND_BYTES_MAX", 1000)
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", [{"data": "x" * 400, "delay_ms": 5}] * 3)
        await engine.append("q", data("x" * 400))
        await engine.claim("q", "w", 1)
        await engine.nack("q", "w", [4])
        clock.advance(5)
        assert await claims(engine, Claimer("a", 4), Claimer("b", 1), Claimer("c", 1)) == [[1, 2], [4], [3]]


async def test_claims_before_a_page_that_is_not_in_memory_are_served() -> None:
    """QU5: the others are told that something has to be loaded, and nothing has changed for them."""
    disk = MemoryDisk()
    async with running(disk, settings=Settings(segment_max_events=4)) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(6)))
        await engine.checkpoint()
        await engine.append("q", data(*range(2)))
        first, second = await claims(engine, Claimer("a", 1), Claimer("b", 1))
        assert isinstance(first, Cold) and isinstance(second, Cold)
        assert await counts(engine) == (8, 0, 0)
        assert claimed_seqs(await engine.claim("q", "a", 1)) == [1]
        found = await claims(engine, Claimer("b", 2), Claimer("c", 4), Claimer("d", 1))
        assert found[0] == [2, 3] and isinstance(found[1], Cold) and isinstance(found[2], Cold)
        assert await counts(engine) == (5, 3, 0)


async def test_who_is_refused_is_told_and_others_are_served() -> None:
    """QU1, TP2"""
    async with running() as engine:
        await engine.put_topic("log")
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1))
        asked = crowd(engine)
        engine.claim_soon("log", Claimer("a", 1), asked.teller())
        engine.claim_soon("none", Claimer("a", 1), asked.teller())
        engine.claim_soon("q", Claimer("a", 1), asked.teller())
        engine.ack_soon("none", Ack("a", [1], None), asked.teller())
        found = await asked.all()
        assert [type(found[at]) for at in (0, 1, 3)] == [NotAQueue, TopicNotFound, TopicNotFound]
        assert claimed_seqs(found[2]) == [1]


@pytest.mark.parametrize("fault", ["write", "sync", "refused"])
async def test_a_failed_log_fails_every_ack_of_the_turn_and_frees_its_jobs(fault: Any) -> None:
    """QU11"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": "fsync"})
        await engine.append("q", data(*range(4)))
        await engine.claim("q", "a", 3)
        if fault == "refused":
            engine.wal.refuse("no space")
        else:
            disk.hooks.append(Faulty(fault, name="log-*"))
        found = await acks(engine, Ack("a", [1], None), Ack("a", [3], None), Ack("b", [2], None))
        assert [type(one) for one in found] == [CommitFailed] * 3
        assert await counts(engine) == (3, 1, 0)
        assert list(map(engine.state.topics["q"].queue.handed_out, (1, 2, 3))) == [1, 1, 1]


async def test_a_worker_that_acks_and_leaves_in_one_turn_has_acked() -> None:
    """WK5, QU9"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1, 2))
        worker = Taker(jobs_max=2)
        engine.add_worker("q", worker)
        await turns()
        assert worker.got == [1, 2]
        asked = crowd(engine)
        engine.ack_soon("q", Ack("w", [1], None), asked.teller())
        engine.remove_worker(worker)
        (change,) = await asked.all()
        assert (change.done, await counts(engine)) == ([1], (1, 0, 0))


async def test_leases_that_end_at_once_end_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """QU5, QU8, LM10: one step in each turn, however many look, and to the end if nobody does."""
    monkeypatch.setattr(jobs_module, "STEP_JOBS_MAX", 3)
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(20)))
        for _ in range(20):
            await engine.claim("q", "w")
        clock.advance(1001)
        for _ in range(5):
            engine.check_queue("q")
        topic = engine.state.topics["q"]
        assert len(topic.queue.leases) == 17
        assert await claims(engine, Claimer("a", 2), Claimer("b", 2)) == [[1, 2], [3, 4]]
        topic.queue.check(topic.log)
        await turns()
        assert (len(topic.queue.leases), len(topic.queue.returned)) == (4, 16)
        assert await counts(engine) == (16, 4, 0)


async def test_what_was_known_of_jobs_that_are_gone_is_given_back_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """LM10, LM11"""
    monkeypatch.setattr(apply_module, "MANY_MIN", 5)
    monkeypatch.setattr(upkeep_module, "FREED_JOBS_PER_STEP", 3)
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(20)))
        await engine.claim("q", "w", 20)
        queue = engine.state.topics["q"].queue
        leases = queue.leases
        await engine.delete("q", before_seq=21)
        assert await counts(engine) == (0, 0, 0)
        assert len(leases) == 20 and not queue.leases and not queue.deliveries
        left = [20]
        while left[-1] and len(left) < 100:
            await tick(engine)
            left.append(len(leases))
        assert left[-1] == 0 and not queue.dropped
        assert max(before - after for before, after in pairwise(left)) == 3


async def test_a_queue_that_goes_while_its_leases_end_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """TP9, LM10"""
    monkeypatch.setattr(jobs_module, "STEP_JOBS_MAX", 1)
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(5)))
        await engine.claim("q", "w", 5)
        await engine.extend("q", "w", [1], lease_ms=500)
        await engine.extend("q", "w", [2], lease_ms=600)
        clock.advance(1001)
        engine.check_queue("q")
        await engine.delete_topic("q")
        await turns()
        await engine.put_topic("q", QUEUE)
        assert await counts(engine) == (0, 0, 0)


async def test_who_is_alone_is_served_at_once_and_a_crowd_at_the_end_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """QU5, QU9"""
    monkeypatch.setattr(turns_module, "LOOK_EVERY", 3)
    async with running() as engine:
        await engine.put_topic("q", {**QUEUE, "durability": "ephemeral"})
        await engine.append("q", data(*range(30)))

        async def served_at_once(*nodes: str) -> list[bool]:
            asked, found = Heard(), []
            for node in nodes:
                engine.claim_soon("q", Claimer(node, 1), asked.teller())
                found.append(asked.is_told)
            assert all(len(claimed.texts) == 1 for claimed in await asked.all())
            return found

        for _ in range(9):
            assert await served_at_once("a") == [True]
            await turns(2)
        assert await served_at_once("a", "b", "c", "d") == [True, True, True, False], "the third looks who else asks"
        assert await served_at_once("a", "b") == [False, False]
        assert await served_at_once("a") == [False]
        assert await served_at_once("a") == [True], "it was alone the last time"
        assert await counts(engine) == (13, 17, 0)


async def test_whoever_cannot_be_told_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1, 2))
        asked = crowd(engine)

        def fail(*_: object) -> None:
            raise RuntimeError("no line")

        engine.claim_soon("q", Claimer("a", 1), fail)
        engine.claim_soon("q", Claimer("b", 1), asked.teller())
        (claimed,) = await asked.all()
        assert claimed_seqs(claimed) == [2] and "could not be told" in caplog.text
