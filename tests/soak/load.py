"""A mixed load that wants the server to stay as it is: whatever it writes expires, is evicted, deleted or acked.

Owns what the clients of a soak do, all in one event loop, through the asyncio client: writers of every class, batches,
deletes, readers, long polls, a router, a queue with workers and dead letters, topics that come and go, watchers that
come and go. Counts what was done and keeps the latency of every write.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from topics import AsyncClient
from topics.client.errors import Throttled, TopicNotFound
from topics.clock import SystemClock

WINDOW = {"idempotency_window_ms": 5_000}
LOGS: dict[str, dict[str, Any]] = {
    "soak.fsync": {"durability": "fsync", "ttl_ms": 10_000} | WINDOW,
    "soak.disk": {"durability": "disk", "cap_records": 4_000} | WINDOW,
    "soak.memory": {"durability": "memory", "cap_bytes": 2 << 20} | WINDOW,
    "soak.ephemeral": {"durability": "ephemeral", "ttl_ms": 5_000} | WINDOW,
}
COPY, JOBS, DEAD = "soak.copy", "soak.jobs", "soak.dead"
TAGS = ("a", "b", "c")
PAUSE_S = 0.02  # of a writer, between two writes
JOBS_MAX = 20
WATCHERS, CHURNERS, WORKERS = 6, 2, 2
KINDS = ("written", "deleted", "read", "polled", "handed out", "acked", "nacked", "created", "removed", "watched")


class Load:
    """The clients. `counts` says how often what was done; `take_latencies` gives those of the last writes."""

    def __init__(self, url: str, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._url = url
        self._rng = random.Random(seed)
        self._clock = SystemClock()
        self._latencies_ms: list[float] = []

    def take_latencies(self) -> list[float]:
        taken, self._latencies_ms = self._latencies_ms, []
        return taken

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Whatever goes wrong is raised."""
        async with AsyncClient(self._url) as client:
            await self._prepare(client)
            steps: list[Callable[[AsyncClient], Awaitable[None]]] = [
                *(self._writer(topic) for topic in LOGS),
                self._read,
                self._poll,
                self._put_jobs,
                *[self._work] * WORKERS,
                *[self._churn] * CHURNERS,
            ]
            async with asyncio.TaskGroup() as group:
                for step in steps:
                    group.create_task(self._repeat(step, client, stop))
                watchers = [group.create_task(self._come_and_go(stop)) for _ in range(WATCHERS)]
                await stop.wait()
                for watcher in watchers:
                    watcher.cancel()  # nothing may come any more that they could hear

    async def _prepare(self, client: AsyncClient) -> None:
        for topic, config in LOGS.items():
            await client.put_topic(topic, **config)
        await client.put_topic(COPY, cap_records=1_000)
        await client.put_topic(DEAD, cap_records=100)
        await client.put_topic(
            JOBS, type="queue", max_deliveries=3, dead_letter=DEAD, cap_records=2_000, lease_ms=2_000
        )
        await client.put_router("soak.copying", "soak.disk", COPY)

    async def _repeat(
        self, step: Callable[[AsyncClient], Awaitable[None]], client: AsyncClient, stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            try:
                await step(client)
            except Throttled:
                self.counts["throttled"] += 1
            await asyncio.sleep(PAUSE_S)

    # --- records

    def _writer(self, topic: str) -> Callable[[AsyncClient], Awaitable[None]]:
        async def write(client: AsyncClient) -> None:
            if self._rng.random() < 0.02:
                await self._delete(client, topic)
            records = [self._record() for _ in range(self._rng.choice((1, 1, 5, 20)))]
            started = self._clock.monotonic()
            await client.append(topic, records)
            self._latencies_ms.append((self._clock.monotonic() - started) * 1000)
            self.counts["written"] += len(records)

        return write

    def _record(self) -> dict[str, Any]:
        return {"data": "x" * self._rng.choice((20, 200, 2000)), "tag": self._rng.choice(TAGS)}

    async def _delete(self, client: AsyncClient, topic: str) -> None:
        if self._rng.random() < 0.5:
            done = await client.delete_records(topic, match=self._rng.choice(TAGS))
        else:
            state = await client.state(topic)
            done = await client.delete_records(topic, before_seq=(state.earliest_seq + state.head_seq) // 2)
        self.counts["deleted"] += done.deleted

    async def _read(self, client: AsyncClient) -> None:
        topic = self._rng.choice((*LOGS, COPY, DEAD))
        state = await client.state(topic)
        found = await client.diff(topic, self._rng.randint(0, state.head_seq), limit=200)
        self.counts["read"] += len(found.records)

    async def _poll(self, client: AsyncClient) -> None:
        state = await client.state(self._rng.choice(tuple(LOGS)))
        found = await client.diff(state.topic, state.head_seq, wait_ms=500)
        self.counts["polled"] += len(found.records)

    # --- jobs

    async def _put_jobs(self, client: AsyncClient) -> None:
        await client.append(JOBS, [self._record() for _ in range(self._rng.randint(1, JOBS_MAX))])

    async def _work(self, client: AsyncClient) -> None:
        node = f"worker-{self._rng.randrange(WORKERS)}"
        claimed = await client.claim(JOBS, node, max_jobs=JOBS_MAX)
        self.counts["handed out"] += len(claimed.claimed)
        if not claimed.claimed or self._rng.random() < 0.05:
            return  # and their leases end by themselves
        cut = len(claimed.claimed) * 9 // 10
        if claimed.claimed[:cut]:
            self.counts["acked"] += (await client.ack(JOBS, node, claimed.claimed[:cut])).acked
        self.counts["nacked"] += (await client.nack(JOBS, node, claimed.claimed[cut:])).nacked

    # --- what comes and goes

    async def _churn(self, client: AsyncClient) -> None:
        """A topic with a life of its own."""
        self.counts["created"] += 1
        topic = f"soak.new.{self.counts['created']}"
        durability = self._rng.choice(("fsync", "disk", "memory", "ephemeral"))
        await client.put_topic(topic, durability=durability, ttl_ms=self._rng.choice((0, 50)))
        for _ in range(self._rng.randint(1, 5)):
            await client.append(topic, [self._record() for _ in range(10)])
        await client.diff(topic)
        await client.delete_topic(topic)
        self.counts["removed"] += 1

    async def _come_and_go(self, stop: asyncio.Event) -> None:
        """A watcher with a connection of its own, which leaves after some events, or in the middle of one."""
        while not stop.is_set():
            topics = {topic: self._rng.choice((0, None)) for topic in self._rng.sample((*LOGS, COPY), 2)}
            wanted = self._rng.randint(1, 50)
            try:
                async with AsyncClient(self._url) as client, client.watch(topics, heartbeat_ms=1_000) as watch:
                    async for _ in watch:
                        self.counts["watched"] += 1
                        wanted -= 1
                        if not wanted or stop.is_set():
                            break
            except (Throttled, TopicNotFound):
                self.counts["throttled"] += 1
