"""A consumer group: processes that share the records of a topic, by key and in order, and take over from each other.

    python -m examples.recipes.consumer_group orders member-1       in as many processes as you like

The pieces are the server's own. Records go to a topic per part, by a hash of their key, so that those of one key stay
in order. A queue has one job per part: who holds the lease of a job reads that part, and whoever is killed loses it to
another member when the lease ends. How far a part was read is a named cursor, moved by `if_seq`: a member that has lost
its lease without noticing cannot move it. After `turn_s` a member gives its part back, so that newcomers get some.

Each record is handled at least once; again only if its member was killed, or lost its lease, before the cursor moved.
"""

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from topics import AsyncClient, Job, Lost, Record, Retry
from topics.client import AsyncJobContext
from topics.errors import CursorMoved, EpochMismatch, NotFound, TopicNotFound
from topics.model import TopicType

Handler = Callable[[Record | Lost], Awaitable[object]]


async def create(client: AsyncClient, topic: str, group: str, parts: int) -> None:
    """Make the parts of a topic and the queue of a group, as far as they are not there. Each member may call it."""
    queue = f"{topic}.group.{group}"
    for part in range(parts):
        await ensure(client, f"{topic}.{part}")
    await ensure(client, queue, type="queue")
    there = {record.value async for record in client.consume(queue, follow=False) if isinstance(record, Record)}
    for part in set(range(parts)) - there:
        await client.send(queue, part, idempotency_key=f"part {part}")  # the key, as others may do the same now


async def ensure(client: AsyncClient, topic: str, type: TopicType = "log") -> None:
    """Create a topic, or leave it as it is."""
    try:
        await client.state(topic)
    except TopicNotFound:
        await client.put_topic(topic, type=type)


async def send(client: AsyncClient, topic: str, parts: int, key: str, value: Any) -> None:
    """Append a record to the part of its key."""
    await client.send(f"{topic}.{zlib.crc32(key.encode()) % parts}", value, tag=key)


class Member:
    """One member of a group. `slots` parts at a time, `handler` for each record and each loss."""

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        group: str,
        name: str,
        handler: Handler,
        *,
        slots: int = 4,
        lease_ms: int = 10_000,
        turn_s: float = 30.0,
    ) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._handler = handler
        self._turn_s = turn_s
        queue = f"{topic}.group.{group}"
        self._worker = client.worker(queue, name, self._read_part, slots=slots, lease_ms=lease_ms, poll_ms=200)

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until `stop`."""
        await self._worker.run(handle_signals=handle_signals)

    def stop(self) -> None:
        """Give all parts back, now: others take them at once."""
        self._worker.stop(now=True)

    async def _read_part(self, job: Job, context: AsyncJobContext) -> None:
        """Read a part for one turn. The worker extends the lease meanwhile."""
        topic, name = f"{self._topic}.{job.value}", self._group
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._turn_s
        try:
            kept = await self._client.cursor(topic, name)
            seq, epoch = kept.seq, kept.epoch
        except NotFound:
            state = await self._client.put_cursor(topic, name, 0, if_seq=None)
            seq, epoch = 0, state.epoch
        while not context.is_over and loop.time() < ends_at:
            diff = await self._client.diff(topic, seq, epoch=epoch, limit=100, wait_ms=500, include_tags=True)
            if diff.tombstone is not None:
                await self._handler(Lost.of(topic, diff.tombstone))
            for record in diff.records:
                await self._handler(record)
            if diff.next_from_seq != seq or diff.epoch != epoch:
                try:
                    await self._client.put_cursor(topic, name, diff.next_from_seq, epoch=diff.epoch, if_seq=seq)
                except (CursorMoved, EpochMismatch):
                    break  # somebody else has this part by now
                seq, epoch = diff.next_from_seq, diff.epoch
        raise Retry(delay=0)


async def main(topic: str, name: str) -> None:
    async def show(item: Record | Lost) -> None:
        print(name, item, flush=True)

    async with AsyncClient() as client:
        await create(client, topic, "printers", 4)
        await Member(client, topic, "printers", name, show).run(handle_signals=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
