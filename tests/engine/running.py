"""An engine under test: on a disk in memory and a clock by hand, so that nothing happens by itself."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from topics.engine import Engine
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

T = TypeVar("T")

TURNS = 100  # of the loop; more than anything here needs when neither disk nor clock holds it back


@asynccontextmanager
async def running(
    disk: MemoryDisk | None = None, clock: ManualClock | None = None, settings: Settings | None = None
) -> AsyncIterator[Engine]:
    engine = open_engine(disk, clock, settings)
    await engine.start()
    try:
        yield engine
    finally:
        if isinstance(engine._disk, MemoryDisk):
            engine._disk.release_syncs()
        await engine.close()


def open_engine(
    disk: MemoryDisk | None = None, clock: ManualClock | None = None, settings: Settings | None = None
) -> Engine:
    return Engine.open("memory", settings, disk=disk or MemoryDisk(), clock=clock or ManualClock(), background=False)


async def turns(count: int = TURNS) -> None:
    """Let the loop turn until all that can happen has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


async def tick(engine: Engine) -> None:
    """Do what is due in the background, to the end."""
    done = engine.tick()
    if inspect.isawaitable(done):
        await done
    await turns()


async def begun(*work: Coroutine[Any, Any, T]) -> "list[asyncio.Task[T]]":
    """Start these, one after the other, and let them come as far as they can."""
    tasks = [asyncio.create_task(one) for one in work]
    await turns()
    return tasks


def data(*values: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"data": value, **fields} for value in values]


async def texts(engine: Engine, name: str, after: int = 0, **query: Any) -> list[bytes]:
    return [bytes(record.data) for record in (await engine.read(name, after, **query)).records]


async def seqs(engine: Engine, name: str, after: int = 0, **query: Any) -> list[int]:
    return [record.seq for record in (await engine.read(name, after, **query)).records]


async def views(engine: Engine, names: Sequence[str]) -> list[Any]:
    """All that readers see of these topics, but for the time of the last read."""
    view: list[Any] = [await engine.topic_names()]
    for name in names:
        state = await engine.topic_state(name)
        answer = await engine.read(name, include_tags=True)
        view.append((state.head_seq, state.earliest_seq, state.evict_floor, state.count, state.bytes, state.config))
        view.append((state.epoch, answer.texts, answer.next_from_seq, answer.tombstone))
    return view
