"""Queues that are paused, in the engine: who is told, when, and what a failure leaves; redrives of queues that go."""

import asyncio

import pytest

from tests.engine.running import begun, data, running, seqs, texts, turns
from tests.engine.test_queues import QUEUE, Taker, claimed_seqs
from topics.errors import CommitFailed, NotAQueue, TopicNotFound
from topics.testing.disk import Faulty, MemoryDisk

CLASSES = ["ephemeral", "disk", "fsync"]


@pytest.mark.parametrize("durability", CLASSES)
async def test_a_worker_sleeps_through_a_pause_and_is_woken_at_its_end(durability: str) -> None:
    """QU23, WK2: nothing wakes it in between that could be missed, and nothing polls."""
    async with running() as engine:
        await engine.put_topic("q", {**QUEUE, "durability": durability, "lease_ms": 60_000})
        worker = Taker(jobs_max=3)
        engine.workers.join("q", worker)
        await turns()
        for round_ in range(3):
            await engine.pause("q")
            await engine.append("q", data(1))
            await turns()
            assert len(worker.got) == round_
            await engine.resume("q")
            await turns()
            assert len(worker.got) == round_ + 1
        engine.workers.leave(worker)


async def test_jobs_leave_a_resumed_queue_when_its_resume_is_synced() -> None:
    """QU23, TP13: what is not synced might never have been."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(1))
        await engine.pause("q")
        worker = Taker()
        engine.workers.join("q", worker)
        await turns()
        disk.hold_syncs()
        (resuming,) = await begun(engine.resume("q"))
        (claiming,) = await begun(engine.claim("q", "other"))
        assert not resuming.done() and not claiming.done() and worker.got == []
        disk.release_syncs()
        await asyncio.gather(resuming, claiming)
        await turns()
        assert sorted(worker.got + claimed_seqs(claiming.result())) == [1]
        engine.workers.leave(worker)


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_pause_that_fails_has_changed_nothing(durability: str, kind: str) -> None:
    """QU23, ER7: and workers go on."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {**QUEUE, "durability": durability})
        worker = Taker(jobs_max=2)
        engine.workers.join("q", worker)
        disk.hooks.append(Faulty(kind, name="log-*"))  # type: ignore[arg-type]
        with pytest.raises(CommitFailed):
            await engine.pause("q")
        assert (await engine.topic_state("q")).paused is False
        await engine.append("q", data(1))
        await turns()
        assert worker.got == [1]
        await engine.pause("q")
        disk.hooks[:] = [Faulty(kind, name="log-*")]  # type: ignore[arg-type]
        with pytest.raises(CommitFailed):
            await engine.resume("q")
        assert (await engine.topic_state("q")).paused is True
        await engine.append("q", data(2))
        await turns()
        assert worker.got == [1]
        await engine.resume("q")
        await turns()
        assert worker.got == [1, 2]
        engine.workers.leave(worker)


async def test_a_pause_of_no_queue_is_refused() -> None:
    """QU23, QU1"""
    async with running() as engine:
        await engine.put_topic("log")
        for call in (engine.pause, engine.resume):
            with pytest.raises(NotAQueue):
                await call("log")
            with pytest.raises(TopicNotFound):
                await call("absent")
        assert await engine.topic_names() == ["log"]


async def test_pauses_and_resumes_at_the_same_time_end_with_the_last() -> None:
    """QU23"""
    for durability in CLASSES:
        async with running() as engine:
            await engine.put_topic("q", {**QUEUE, "durability": durability})
            for last in (True, False):
                calls = [engine.pause("q"), engine.resume("q"), engine.pause("q")]
                await asyncio.gather(*calls, *(() if last else (engine.resume("q"),)))
                assert (await engine.topic_state("q")).paused is last


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_redrive_does_not_bring_a_queue_back_that_is_deleted_meanwhile(
    dry_run: bool, is_recreated: bool
) -> None:
    """QU24, QU1: the letters that are left stay letters."""
    async with running() as engine:
        await engine.put_topic("q", {**QUEUE, "max_deliveries": 1, "dead_letter": "dead"})
        await engine.append("q", data(*range(500)))
        await engine.claim("q", "w", 500)
        await engine.nack("q", "w", list(range(1, 501)))
        for _ in range(3):
            await engine.claim("q", "w")
        redriving = asyncio.create_task(engine.redrive("q", dry_run=dry_run))
        await asyncio.sleep(0)
        await engine.delete_topic("q")
        if is_recreated:
            await engine.put_topic("q")
        try:
            moved = (await redriving).redriven
        except TopicNotFound:
            moved = 0
        assert moved < 500
        assert len(await seqs(engine, "dead", limit=1000)) == 500 - (0 if dry_run else moved)
        assert await engine.topic_names() == (["dead", "q"] if is_recreated else ["dead"])
        if is_recreated:
            assert await texts(engine, "q") == []
