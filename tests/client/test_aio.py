"""What only the client for asyncio has: calls that are cancelled, many at once, more than one loop."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from topics.client import AsyncClient, CaughtUp, Job, Records
from topics.testing.server import ServerThread


@pytest.fixture
async def aio(server: ServerThread) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://{}:{}".format(*server.address), "") as client:
        yield client


async def fill(client: AsyncClient, topic: str, *values: object) -> None:
    await client.append(topic, [{"data": value} for value in values])


async def test_many_calls_run_at_once(aio: AsyncClient, topic: str) -> None:
    await asyncio.gather(*(fill(aio, topic, n) for n in range(50)))
    assert sorted([item.value async for item in aio.consume(topic, follow=False)]) == list(range(50))  # type: ignore[union-attr]


async def waiting(server: ServerThread, coroutine: Any) -> "asyncio.Task[Any]":
    """The task of a long poll that the server holds."""
    before = server.clock.waits
    task = asyncio.ensure_future(coroutine)
    await asyncio.to_thread(server.until, lambda: server.clock.waits > before)
    return task


async def test_a_call_that_is_cancelled_takes_its_connection_with_it(
    server: ServerThread, aio: AsyncClient, topic: str
) -> None:
    """The answer that comes late is nobody else's."""
    await fill(aio, topic, 1)
    task = await waiting(server, aio.diff(topic, 1, wait_ms=20_000))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fill(aio, topic, 2)
    assert (await aio.state(topic)).head_seq == 2
    assert [record.value for record in (await aio.diff(topic)).records] == [1, 2]


async def test_a_consumer_whose_wait_was_cancelled_goes_on(server: ServerThread, aio: AsyncClient, topic: str) -> None:
    await fill(aio, topic, 1)
    consumer = aio.consume(topic)
    assert (await anext(consumer)).value == 1  # type: ignore[union-attr]
    task = await waiting(server, anext(consumer))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fill(aio, topic, 2)
    assert (await anext(consumer)).value == 2  # type: ignore[union-attr]


async def test_a_watch_whose_wait_was_cancelled_goes_on(aio: AsyncClient, topic: str) -> None:
    await fill(aio, topic, 1)
    async with aio.watch([topic]) as watch:
        assert [type(await anext(watch)) for _ in range(2)] == [Records, CaughtUp]
        task = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fill(aio, topic, 2)
        event = await anext(watch)
        assert isinstance(event, Records) and [record.value for record in event.records] == [2]


async def test_a_worker_that_is_cancelled_gives_its_jobs_back(aio: AsyncClient, topic: str) -> None:
    """QU12"""
    await aio.put_topic(topic, type="queue")
    await fill(aio, topic, "long")
    begun = asyncio.Event()

    async def handle(job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(aio.worker(topic, "w", handle, delay_ms=0).run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    queue = (await aio.state(topic)).queue
    assert queue is not None and (queue.ready, queue.in_flight) == (1, 0)


def test_copies_of_a_client_are_used_by_one_loop_after_another(server: ServerThread, topic: str) -> None:
    client = AsyncClient("http://{}:{}".format(*server.address), "")

    async def write() -> int:
        async with pickle.loads(pickle.dumps(client)) as copy:
            await fill(copy, topic, 1)
            return int((await copy.state(topic)).count)

    assert [asyncio.run(write()) for _ in range(2)] == [1, 2]
