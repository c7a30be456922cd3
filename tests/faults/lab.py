"""A server under test with all that can be hurt: topics of every class, a queue, a router, segments and a log.

    lab = Lab()
    await lab.begin()
    fault = lab.inject(Faulty("sync", name="log-*"))
    await lab.append("fsync", 1)          # acked or refused: the lab keeps account of what it was told
    await lab.afterwards("kill", "lost")  # what the next server must have, for each way of ending

Owns what is asked and what was told. Must not know: how the engine works inside.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import count
from typing import Any, Literal, TypeVar

from tests.crash.check import is_same_state
from tests.crash.history import observe
from tests.crash.run import _ended, finished
from tests.engine.running import turns
from tests.faults import check
from tests.faults.told import Open, Told, TopicTold
from topics.engine import Engine
from topics.errors import StorageError
from topics.model import TagMatch
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Hook, MemoryDisk

T = TypeVar("T")
End = Literal["kill", "lost", "kept", "torn", "stop"]
ENDS: tuple[End, ...] = ("kill", "lost", "kept", "torn")
SMALL = Settings(segment_max_events=4)

CLASSES = ("fsync", "disk", "memory", "ephemeral")
QUEUE = {
    "type": "queue",
    "durability": "fsync",
    "leases_durable": True,
    "dead_letter": "dead",
    "max_deliveries": 2,
    "lease_ms": 30_000,
}


class Lab:
    def __init__(self, *hooks: Hook) -> None:
        self.disk = MemoryDisk(hooks=hooks)
        self.clock = ManualClock()
        self.told = Told()
        self.strikes = 0  # faults that were brought about by hand
        self.faults: list[Any] = [hook for hook in hooks if hasattr(hook, "failed")]
        self._engine: Engine | None = None
        self._numbers = count()

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @property
    def struck(self) -> int:
        """How often a fault happened."""
        return self.strikes + sum(fault.failed for fault in self.faults)

    def inject(self, *faults: T) -> T:
        """Let the disk fail from now on."""
        for fault in faults:
            self.disk.hooks.append(fault)  # type: ignore[arg-type]
            self.faults.append(fault)
        return faults[0]

    def heal(self) -> None:
        self.disk.hooks.clear()

    # --- from start to end

    def open(self, disk: MemoryDisk, clock: ManualClock | None = None) -> Engine:
        return Engine.open("lab", SMALL, disk=disk, clock=clock or self.clock, background=False)

    async def start(self) -> None:
        """Start without anything in it."""
        self._engine = self.open(self.disk)
        await self.lives(self._engine.start())

    async def begin(self) -> None:
        """Start, and fill: some of it is sealed, some in the log only; some is deleted, leased, acked and copied."""
        await self.start()
        for name in CLASSES:
            await self.put(name, durability=name)
        await self.put("capped", durability="fsync", cap_records=4)
        await self.put("aged", durability="disk", ttl_ms=60_000)
        await self.put("dead", durability="fsync")
        await self.put("jobs", **QUEUE)
        await self.put("source", durability="fsync")
        await self.put("copy", durability="fsync")
        await self.route("r", "source", "copy")
        await self.fill()
        await self.engine.checkpoint()
        await self.fill()
        assert not self.told.refusals

    async def fill(self) -> None:
        for name in (*CLASSES, "capped", "aged"):
            await self.append(name, 2, tag="x", key=f"key {next(self._numbers)}")
            await self.append(name, 1)
        await self.append("jobs", 3)
        await self.append("source", 2)
        await self.claim("jobs", "worker", 2)
        await self.ack("jobs", "worker", min(self.told.topics["jobs"].leases))
        for name in ("fsync", "disk"):
            await self.delete(name, before=2)
        await self.quiet()

    async def quiet(self) -> None:
        if not self.disk.is_dead:
            await self.lives(routed(self.engine))

    async def lives(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None if the server died meanwhile (G15: nothing hangs)."""
        return await finished(work, lambda: self.disk.is_dead)  # type: ignore[no-any-return]

    # --- calls, and what they were told

    async def _told(self, name: str, work: Coroutine[Any, Any, T], open: Open | None = None) -> T | None:
        """The answer; None if it was refused by the disk, or the server died."""
        topic = self.told.topics.get(name)
        if open is None:
            self.told.uncertain.add(name)
        elif topic is not None:
            topic.open.append(open)
            topic.doubtful |= open.seqs
        try:
            answer = await self.lives(work)
        except (StorageError, OSError):
            self.told.refusals += 1
            if open is not None and topic is not None:
                topic.refused |= set(open.values)
            answer = None
        else:
            if answer is None:
                assert self.disk.is_dead
                return None
            self.told.acks += 1
        if open is None:
            self.told.uncertain.discard(name)
        elif topic is not None:
            topic.open.remove(open)
            topic.doubtful -= open.seqs
        return answer

    async def put(self, name: str, **config: Any) -> bool:
        answer = await self._told(name, self.engine.put_topic(name, config))
        if answer is not None:
            if name not in self.told.topics:
                self.told.topics[name] = TopicTold(config)
            self.told.topics[name].config = config
        return answer is not None

    async def drop(self, name: str) -> bool:
        answer = await self._told(name, self.engine.delete_topic(name))
        if answer is not None:
            self.told.topics.pop(name, None)
            self.told.dropped.add(name)
            self.told.routes = {key: ends for key, ends in self.told.routes.items() if name not in ends}
        return answer is not None

    async def append(
        self, name: str, size: int = 1, *, tag: str | None = None, key: str | None = None, bytes_each: int = 0
    ) -> bool:
        texts = [f"{name} {next(self._numbers)}" + "x" * bytes_each for _ in range(size)]
        open = Open(tuple(f'"{text}"'.encode() for text in texts))
        records = [{"data": text, **({} if tag is None else {"tag": tag})} for text in texts]
        answer = await self._told(name, self.engine.append(name, records, key=key), open)
        if answer is None:
            return False
        topic = self.told.topics.setdefault(name, TopicTold({}))
        topic.written.update(zip(range(answer.first_seq, answer.last_seq + 1), open.values, strict=True))
        if key is not None:
            topic.keys[key] = (answer.first_seq, answer.last_seq)
        return True

    async def delete(self, name: str, before: int | None = None, tag: str | None = None) -> bool:
        topic = self.told.topics[name]
        seqs = {seq for seq in topic.written if before is None or seq < before}
        if tag is not None:
            answer = await self.engine.read(name, include_tags=True, limit=1000)
            seqs &= {record.seq for record in answer.records if record.tag == tag}
        match = None if tag is None else TagMatch("Eq", tag)
        doomed = Open(seqs=frozenset(seqs - topic.gone))
        answer = await self._told(name, self.engine.delete(name, before_seq=before, match=match), doomed)
        if answer is not None:
            topic.gone |= seqs
        return answer is not None

    async def read(self, name: str) -> None:
        """Look, and remember what was shown: it must not vanish (G13)."""
        answer = await self.lives(self.engine.read(name, limit=1000))
        if answer is not None:
            self.told.topics[name].seen.update({record.seq: bytes(record.data) for record in answer.records})

    async def route(self, name: str, source: str, dest: str) -> bool:
        self.told.uncertain |= {source, dest}
        done = await self._told(dest, self.engine.put_router(name, source, dest, guarantee="exactly_once"))
        if not self.disk.is_dead:
            self.told.uncertain -= {source, dest}
        if done is not None:
            self.told.routes[name] = (source, dest)
        return done is not None

    async def unroute(self, name: str) -> bool:
        source, dest = self.told.routes[name]
        done = await self._told(dest, self.engine.delete_router(name))
        if done is not None:
            self.told.topics[dest].copied |= set(self.told.topics[source].written.values())
            del self.told.routes[name]
        return done is not None

    async def claim(self, name: str, node: str, jobs: int = 1) -> bool:
        topic = self.told.topics[name]
        answer = await self._told(name, self.engine.claim(name, node, jobs), Open())
        if answer is not None:
            topic.leases.update({job.seq: node for job in answer.jobs})
        return answer is not None

    async def ack(self, name: str, node: str, *seqs: int) -> bool:
        topic = self.told.topics[name]
        answer = await self._told(name, self.engine.ack(name, node, seqs), Open(seqs=frozenset(seqs)))
        if answer is not None:
            topic.gone |= set(answer.done)
            for seq in answer.done:
                topic.leases.pop(seq, None)
        else:
            for seq in seqs:
                topic.leases.pop(seq, None)  # QU11: nobody's, if it is there
        return answer is not None

    async def nack(self, name: str, node: str, *seqs: int) -> bool:
        topic = self.told.topics[name]
        answer = await self._told(name, self.engine.nack(name, node, seqs), Open())
        if answer is not None or self.disk.is_dead:
            for seq in seqs:
                topic.leases.pop(seq, None)
        return answer is not None

    async def extend(self, name: str, node: str, *seqs: int) -> bool:
        return await self._told(name, self.engine.extend(name, node, seqs, lease_ms=60_000), Open()) is not None

    async def redrive(self, name: str) -> bool:
        dead = self.told.topics[name].config["dead_letter"]
        self.told.redriven.add(dead)  # also if it fails: a first part may be done
        return await self._told(name, self.engine.redrive(name), Open()) is not None

    async def checkpoint(self) -> bool:
        return await self._told("", self._checkpoint(), Open()) is not None

    async def _checkpoint(self) -> bool:
        await self.engine.checkpoint()
        return True

    async def tick(self) -> None:
        await self.lives(self.engine.tick())
        await turns(20)

    # --- what must hold

    async def holds(self) -> None:
        """The server that runs has what was acked, and nothing that was refused."""
        await self.quiet()
        await self.lives(check.check(self.told, self.engine, is_running=True))

    async def holds_restarted(self) -> None:
        """The same, of a server that was started after a kill."""
        await self.quiet()
        await self.lives(check.check(self.told, self.engine))

    async def afterwards(self, *ends: End, heals: bool = True) -> None:
        """Each way of ending, and what the next server has."""
        for end in ends or ENDS:
            try:
                await self._after(end, heals)
            except Exception as error:
                error.add_note(f"after the end by {end}")
                raise

    async def _after(self, end: End, heals: bool) -> None:
        disk = self.disk.kill() if end in ("kill", "stop") else self.disk.power_loss(end)  # type: ignore[arg-type]
        if not heals:
            disk.hooks = list(self.disk.hooks)
        if end == "stop":
            await finished(self.engine.close())
            disk = self.disk.kill()
        await self.recover(disk, is_power_loss=end in ("lost", "kept", "torn"))

    async def recover(self, disk: MemoryDisk, *, is_power_loss: bool = False) -> None:
        """Start on this disk, check, start once more and find the same (G4); then go on."""
        told = deepcopy(self.told)
        async with self.running(disk, ManualClock(self.clock.now_ms())) as engine:
            first = await check.check(told, engine, is_power_loss=is_power_loss)
            if not is_power_loss:
                await check.leases_are_as_they_were(told, engine)
            check.directory_is_sound(disk)
            second = disk.kill()
        clock = ManualClock(self.clock.now_ms())
        async with self.running(second, clock) as engine:
            is_same_state(first, await observe(engine))
            await check.check_onwards(told, engine, clock, is_power_loss=is_power_loss)

    @asynccontextmanager
    async def running(self, disk: MemoryDisk, clock: ManualClock) -> AsyncIterator[Engine]:
        """A server on this disk, which dies at the end."""
        before = asyncio.all_tasks()
        engine = self.open(disk, clock)
        await finished(engine.start())
        await routed(engine)
        try:
            yield engine
        finally:
            disk.is_dead = True
            await _ended(before)

    async def refused_at_start(self, disk: MemoryDisk, *names: str) -> None:
        """G5: the start refuses by the file's name and changes nothing, and the check names it, too."""
        before = disk.files()
        try:
            await finished(self.open(disk.kill()).start())
        except StorageError as refusal:
            assert any(name in str(refusal) for name in names), f"none of {names} is named by: {refusal}"  # noqa: PT017
        else:
            raise AssertionError("G5: the start was not refused")
        assert disk.files() == before
        try:
            said = [f"{fault.file}: {fault.message}" for fault in check.Directory(disk.kill()).check().faults]
        except StorageError as refusal:
            said = [str(refusal)]
        assert any(name in one for one in said for name in names), f"G5: the check says {said}"


async def routed(engine: Engine) -> None:
    """Routers have copied what they can."""
    for _ in range(500):
        await turns(1)
        if not engine.forwarder.is_busy:
            break
    await turns(20)


Play = Callable[[Lab], Awaitable[None]]
