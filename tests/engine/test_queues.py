"""Queues in the engine: the gate, cold pages, failures, workers that stay."""

import asyncio
from typing import Any

import pytest

from tests.engine.running import begun, data, open_engine, running, seqs, texts, turns
from topics.core.queue import leasing
from topics.engine import Engine
from topics.engine.answers import Claimed
from topics.engine.queues import claims
from topics.engine.queues.crews import Worker
from topics.errors import CommitFailed, Damaged, NotAQueue, TopicNotFound, TopicsError
from topics.model import TagMatch
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk

QUEUE = {"type": "queue", "lease_ms": 1000}


def claimed_seqs(claimed: Claimed) -> list[int]:
    return [job.seq for job in claimed.jobs]


async def counts(engine: Engine, name: str = "q") -> tuple[int, int, int]:
    state = await engine.topic_state(name)
    assert state.queue is not None
    assert state.queue.ready + state.queue.in_flight + state.queue.delayed == state.count
    return state.queue.ready, state.queue.in_flight, state.queue.delayed


class Taker(Worker):
    """A worker in this process."""

    def __init__(self, node: str = "w", jobs_max: int = 1, lease_ms: int | None = None) -> None:
        super().__init__(node, jobs_max, lease_ms)
        self.got: list[int] = []
        self.is_willing = True
        self.error: TopicsError | None = None

    @property
    def can_take(self) -> bool:
        return self.is_willing

    def deliver(self, claimed: Claimed) -> None:
        self.got += claimed_seqs(claimed)

    def dismissed(self, error: TopicsError) -> None:
        self.error = error


# --- the gate


async def test_a_job_is_shown_to_nobody_before_its_write_is_durable() -> None:
    """WR10, G13"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": "fsync"})
        disk.hold_syncs()
        (writing,) = await begun(engine.append("q", data(1)))
        (claiming,) = await begun(engine.claim("q", "w", 5))
        assert not writing.done() and not claiming.done()
        disk.release_syncs()
        await writing
        assert claimed_seqs(await claiming) == [1]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_durable_leases_are_told_when_they_are_as_durable_as_their_queue(durability: str) -> None:
    """QU18"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": durability, "leases_durable": True})
        await engine.append("q", data(1, 2))
        disk.hold_syncs()
        (claiming,) = await begun(engine.claim("q", "w", 1))
        assert claiming.done() is (durability == "disk")
        disk.release_syncs()
        assert claimed_seqs(await claiming) == [1]


async def test_leases_that_are_not_durable_write_no_log() -> None:
    """QU18"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1, 2, 3))
        frames = engine.wal.counters.frames
        await engine.claim("q", "w", 3)
        await engine.nack("q", "w", [1], delay_ms=5)
        await engine.extend("q", "w", [2], lease_ms=5000)
        assert engine.wal.counters.frames == frames
        await engine.ack("q", "w", [2, 3])
        assert engine.wal.counters.frames == frames + 1, "an ack is one frame, whatever its jobs"


async def test_a_dead_letter_and_its_delete_are_one_frame() -> None:
    """QU15, G8"""
    async with running() as engine:
        await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
        await engine.put_topic("dead")
        await engine.append("q", data(1))
        await engine.claim("q", "w")
        await engine.nack("q", "w", [1])
        frames = engine.wal.counters.frames
        assert claimed_seqs(await engine.claim("q", "w")) == []
        assert engine.wal.counters.frames == frames + 1
        frames = engine.wal.counters.frames
        assert (await engine.redrive("q")).redriven == 1
        assert engine.wal.counters.frames == frames + 1


# --- pages


async def test_a_claim_is_answered_while_the_log_takes_no_letters_and_the_cache_keeps_one_page() -> None:
    """G15, QU15: the page of the letter and that of the jobs oust each other."""
    disk = MemoryDisk()
    async with running(disk, settings=Settings(segment_max_events=1)) as engine:
        await engine.put_topic("dead")
        await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
        for number in range(4):
            await engine.append("q", data(number))
            await engine.checkpoint()
        await engine.claim("q", "w", 2)
        await engine.nack("q", "w", [1, 2])
        for shelf in engine._cache.shelves:
            shelf.bytes_max = 1
        engine._loader.clear()
        disk.hooks.append(Faulty("write", times=None, name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("q", data("refused"))
        (claiming,) = await begun(engine.claim("q", "w", 2))
        await turns(1000)
        assert claiming.done(), "it loads one page after the other"
        assert claimed_seqs(await claiming) == [3]
        disk.hooks.clear()


async def test_jobs_in_segments_are_handed_out_after_a_restart() -> None:
    """QU4: over several cold pages, in one claim."""
    disk = MemoryDisk()
    settings = Settings(segment_max_events=4, cache_bytes=100_000)
    async with running(disk, settings=settings) as engine:
        await engine.put_topic("q", QUEUE)
        for number in range(20):
            await engine.append("q", data(number))
            if number % 3 == 2:
                await engine.checkpoint()
    async with running(disk.kill(), settings=settings) as engine:
        claimed = await engine.claim("q", "w", 20)
        assert [int(job.data) for job in claimed.jobs] == list(range(20))
        assert len((await engine.ack("q", "w", claimed_seqs(claimed))).done) == 20


async def test_a_cache_too_small_for_a_claim_gives_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """QU4: fewer than asked for is no error, and nothing hangs."""
    monkeypatch.setattr(claims, "LOADS_MAX", 2)
    disk = MemoryDisk()
    settings = Settings(segment_max_events=2, cache_bytes=1)
    async with running(disk, settings=settings) as engine:
        await engine.put_topic("q", QUEUE)
        for number in range(6):
            await engine.append("q", data("x" * 300, number))
            await engine.checkpoint()
    async with running(disk.kill(), settings=settings) as engine:
        taken: list[int] = []
        while len(taken) < 12:
            some = claimed_seqs(await engine.claim("q", "w", 12))
            assert some
            taken += some
        assert sorted(taken) == list(range(1, 13))


async def test_a_claim_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """LM6: but for a single job that is larger than the bound."""
    monkeypatch.setattr(leasing, "HAND_BYTES_MAX", 1000)
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data("x" * 5000, "x" * 600, "x" * 200, "x" * 200))
        assert [claimed_seqs(await engine.claim("q", "w", 9)) for _ in range(3)] == [[1], [2, 3], [4]]


async def test_a_dead_letter_is_made_of_a_job_in_a_segment() -> None:
    """QU14"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
        await engine.append("q", [{"data": 1, "meta": {"m": 1}, "tag": "t", "node": "n"}])
        await engine.claim("q", "w")
    async with running(disk.kill()) as engine:
        assert claimed_seqs(await engine.claim("q", "w")) == []
        (letter,) = (await engine.read("dead", include_tags=True)).records
        assert (letter.tag, letter.node, bytes(letter.data)) == ("t", "n", b"1")
        assert (await engine.redrive("q", TagMatch("Eq", "t"))).redriven == 1


# --- failures


@pytest.mark.parametrize("fault", ["write", "sync"])
async def test_after_a_failure_other_leases_hold_and_failed_ones_do_not(fault: Any) -> None:
    """QU11, QU3, S12"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": "fsync"})
        await engine.append("q", data(1, 2, 3, 4))
        held = (await engine.claim("q", "a", 2)).jobs
        disk.hooks.append(Faulty(fault, name="log-*"))
        results = await asyncio.gather(
            engine.append("q", data(5)), engine.claim("q", "b", 1), engine.ack("q", "a", [2]), return_exceptions=True
        )
        assert all(isinstance(result, CommitFailed) for result in results)
        assert await counts(engine) == (3, 1, 0)
        assert (await engine.ack("q", "a", [1], [held[0].lease_id])).done == [1]
        assert [(job.seq, job.deliveries) for job in (await engine.claim("q", "c", 9)).jobs] == [(2, 2), (3, 1), (4, 1)]


async def test_a_full_disk_refuses_an_ack_and_frees_its_jobs() -> None:
    """QU11: the log takes no frame at all."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1))
        await engine.claim("q", "w")
        engine.wal.refuse("no space")
        with pytest.raises(CommitFailed):
            await engine.ack("q", "w", [1])
        assert await counts(engine) == (1, 0, 0)
        assert claimed_seqs(await engine.claim("q", "other")) == [1]


async def test_a_worker_that_leaves_a_log_that_takes_nothing_frees_its_durable_leases() -> None:
    """QU11, WK5: the lease ends in memory; the log still has it, so that a restart has it until its deadline."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "leases_durable": True})
        await engine.append("q", data(1))
        worker = Taker()
        engine.add_worker("q", worker)
        await turns()
        assert worker.got == [1]
        engine.wal.refuse("no space")
        engine.remove_worker(worker)
        assert await counts(engine) == (1, 0, 0)
        engine.state.topics["q"].queue.check(engine.state.topics["q"].log)
        disk = disk.kill()
    async with running(disk) as engine:
        assert await counts(engine) == (0, 1, 0)


async def test_a_count_that_outlives_a_failed_ack_is_in_the_next_checkpoint() -> None:
    """QU6, QU11"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1))
        await engine.claim("q", "w")
        await engine.checkpoint()
        disk.hooks.append(Faulty("write", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.ack("q", "w", [1])
        await engine.checkpoint()
        disk = disk.kill()
    async with running(disk) as engine:
        assert [(job.seq, job.deliveries) for job in (await engine.claim("q", "w")).jobs] == [(1, 2)]


async def test_a_deletion_that_fails_leaves_the_leases_of_its_queue() -> None:
    """QU16, ER7, ST4: also those that are in memory only, of very many jobs."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {"type": "queue"})
        await engine.append("q", data(*range(1500)))
        held = await engine.claim("q", "a", 1500)
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.delete_topic("q")
        disk.hooks.clear()
        assert not (await engine.claim("q", "b", 10)).leases
        acked = await engine.ack("q", "a", [seq for seq, *_ in held.leases])
        assert len(acked.done) == len(held.leases) > 0


async def test_an_ephemeral_queue_keeps_its_leases_when_the_log_fails() -> None:
    """QU3"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": "ephemeral"})
        await engine.append("q", data(1, 2))
        await engine.claim("q", "w")
        disk.hooks.append(Faulty("write", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("other", data(1))
        assert await counts(engine) == (1, 1, 0)
        assert (await engine.ack("q", "w", [1])).done == [1]


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
@pytest.mark.parametrize("dead", ["ephemeral", "disk"])
async def test_a_redrive_that_fails_leaves_each_letter_in_one_place(durability: str, dead: str) -> None:
    """G8, G11"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("dead", {"durability": dead})
        await engine.put_topic("q", {**QUEUE, "durability": durability, "max_deliveries": 1, "dead_letter": "dead"})
        await engine.append("q", data(1, 2))
        await engine.claim("q", "w", 2)
        await engine.nack("q", "w", [1, 2])
        await engine.claim("q", "w")
        disk.hooks.append(Faulty("write", name="log-*"))
        if durability == dead == "ephemeral":
            assert (await engine.redrive("q")).redriven == 2
            return
        with pytest.raises(CommitFailed):
            await engine.redrive("q")
        await turns()
        assert (await texts(engine, "q"), await texts(engine, "dead")) == ([], [b"1", b"2"])
        assert (await engine.redrive("q")).redriven == 2
        await turns()
        assert (await texts(engine, "q"), await texts(engine, "dead")) == ([b"1", b"2"], [])


async def test_redrives_at_the_same_time_bring_each_letter_back_once() -> None:
    """QU24: each once."""
    for durability in ("disk", "ephemeral"):
        async with running() as engine:
            await engine.put_topic("dead", {"durability": durability})
            await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
            await engine.append("q", data(*range(500)))
            await engine.claim("q", "w", 500)
            await engine.nack("q", "w", list(range(1, 501)))
            for _ in range(3):
                await engine.claim("q", "w")
            done = await asyncio.gather(*(engine.redrive("q") for _ in range(3)))
            assert sum(one.redriven for one in done) == 500
            jobs = [int(job.data) for job in (await engine.claim("q", "w", 1000)).jobs]
            assert jobs == list(range(500)) and await seqs(engine, "dead") == []


# --- workers


async def test_a_worker_gets_jobs_as_it_has_room() -> None:
    """WK2"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        worker = Taker(jobs_max=2)
        engine.workers.join("q", worker)
        await engine.append("q", data(1, 2, 3))
        await turns()
        assert worker.got == [1, 2]
        await engine.ack("q", "w", [1])
        await turns()
        assert worker.got == [1, 2, 3]
        engine.workers.leave(worker)
        assert await counts(engine) == (2, 0, 0)


async def test_no_wake_up_is_lost_between_a_look_and_the_sleep() -> None:
    """WK2: appends land at every step of the worker's task."""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        worker = Taker(jobs_max=1000)
        engine.workers.join("q", worker)
        for number in range(1, 200):
            await turns(number % 7)
            await engine.append("q", data(number))
        await turns()
        assert worker.got == list(range(1, 200))


async def test_a_worker_that_takes_nothing_is_passed_over_until_it_does() -> None:
    """WK2, SS19"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        shy, keen = Taker("shy", 9), Taker("keen", 2)
        shy.is_willing = False
        engine.workers.join("q", shy)
        engine.workers.join("q", keen)
        await engine.append("q", data(1, 2, 3, 4))
        await turns()
        assert (shy.got, keen.got) == ([], [1, 2])
        shy.is_willing = True
        engine.workers.resume(shy)
        await turns()
        assert shy.got == [3, 4]


async def test_many_workers_share_evenly_over_time() -> None:
    """WK2: whoever was served goes to the end of the line."""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        workers = [Taker(f"w{number}", 2) for number in range(7)]
        for worker in workers:
            engine.workers.join("q", worker)
        for _ in range(70):
            await engine.append("q", data(1))
            await turns(20)
            for worker in workers:
                if worker.held:
                    await engine.ack("q", worker.node, list(worker.held.values()))
        assert {len(worker.got) for worker in workers} == {10}


async def test_a_worker_is_told_when_its_queue_is_gone() -> None:
    """WK6"""
    async with running() as engine:
        await engine.put_topic("q", QUEUE)
        worker = Taker()
        engine.workers.join("q", worker)
        await engine.delete_topic("q")
        await turns()
        assert isinstance(worker.error, TopicNotFound)
        assert not engine.workers.crews.by_id
        await engine.put_topic("log")
        with pytest.raises(NotAQueue):
            engine.workers.join("log", Taker())


async def test_a_job_that_cannot_be_dead_lettered_is_tried_again_for_workers() -> None:
    """QU15, WK2"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("dead", {"discard": "reject", "cap_records": 1})
        await engine.append("dead", data(0))
        await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
        worker = Taker()
        engine.workers.join("q", worker)
        await engine.append("q", data(1))
        await turns()
        clock.advance(1001)
        await turns()
        assert (worker.got, await counts(engine)) == ([1], (1, 0, 0))
        await engine.delete("dead", before_seq=9)
        clock.advance(1000)
        await turns()
        assert (await counts(engine), await texts(engine, "dead")) == ((0, 0, 0), [b"1"])


async def test_nothing_is_left_of_workers_and_cohorts_that_are_gone() -> None:
    """LM5"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("q", {**QUEUE, "claim_jitter_ms": 10})
        worker = Taker()
        engine.workers.join("q", worker)
        (claiming,) = await begun(engine.claim("q", "w"))
        await engine.append("q", data(1, 2))
        clock.advance(10)
        assert claimed_seqs(await claiming) == [1]
        await turns()
        assert worker.got == [2]
        engine.workers.leave(worker)
        await turns()
        assert not engine.workers.crews.by_id and engine.state.topics["q"].queue.ended is None
        assert not engine._ledger.listeners.by_topic


async def test_an_engine_closes_with_workers_and_claims_waiting() -> None:
    """G15"""
    engine = open_engine()
    await engine.start()
    await engine.put_topic("q", {**QUEUE, "claim_jitter_ms": 10})
    engine.workers.join("q", Taker())
    (claiming,) = await begun(engine.claim("q", "w"))
    await engine.close()
    with pytest.raises(CommitFailed):
        await claiming


async def test_a_damaged_job_is_met_only_by_a_claim_that_begins_with_it() -> None:
    """ST12: those before it are handed out."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", QUEUE)
        for text in ("sound", "ruined"):
            await engine.append("q", data(text))
            await engine.checkpoint()
    files = {name: content.replace(b"ruined", b"rained") for name, content in disk.kill().files().items()}
    async with running(MemoryDisk(files)) as engine:
        assert claimed_seqs(await engine.claim("q", "w", 9)) == [1]
        with pytest.raises(Damaged):
            await engine.claim("q", "w", 9)
        assert await counts(engine) == (1, 1, 0)
        await engine.delete("q", before_seq=3)
        await engine.append("q", data(3))
        assert claimed_seqs(await engine.claim("q", "w", 9)) == [3]
