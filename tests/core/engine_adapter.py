"""The real engine, played like the oracle: one call after the other, on a disk in memory and a clock by hand."""

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from msgspec import Raw, structs

from topics.core.entries import GapOpened
from topics.core.topic.records import NO_META, RecordIn
from topics.engine import Engine
from topics.engine.answers import ReadResult, WriteResult
from topics.errors import TopicNotFound
from topics.model import Durability, Record, TagMatch, TopicConfig
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.oracle import Deleted, GapReason, Read, SlotRecord, TopicView, Write, Written

T = TypeVar("T")


def config_fields(config: TopicConfig) -> dict[str, Any]:
    """All fields but `durable`, which follows from the class."""
    return {name: value for name, value in structs.asdict(config).items() if name != "durable"}


def record_in(write: Write) -> RecordIn:
    return RecordIn(Raw(write.data), write.tag, write.node, NO_META if write.meta is None else Raw(write.meta))


def slot_record(record: Record) -> SlotRecord:
    meta = bytes(record.meta)
    return SlotRecord(record.seq, record.ts, record.node, record.tag, bytes(record.data), meta or None)


def as_read(answer: ReadResult) -> Read:
    return Read(
        epoch=answer.epoch,
        records=[slot_record(record) for record in answer.records],
        next=answer.next_from_seq,
        head=answer.head_seq,
        earliest=answer.earliest_seq,
        caught_up=answer.caught_up,
        tombstone=answer.tombstone,
        lag=answer.lag,
        scanned=answer.scanned,
    )


def written(done: WriteResult) -> Written:
    first, last, head = done.first_seq, done.last_seq, done.head_seq
    return Written(first, last, head, done.count, done.created, done.deduped, done.mismatch)


class EngineAdapter:
    """Plays examples on the engine. `after_change` is done after every command; `durability` stands for "disk"."""

    def __init__(
        self,
        settings: Settings,
        after_change: Literal["nothing", "checkpoint", "restart"] = "nothing",
        durability: Durability = "disk",
    ) -> None:
        self.settings = settings
        self.after_change = after_change
        self.durability = durability
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.loop = asyncio.new_event_loop()
        self.engine = self._start()

    def _start(self) -> Engine:
        engine = Engine.open("memory", self.settings, disk=self.disk, clock=self.clock, background=False)
        self.do(engine.start())
        return engine

    def do(self, work: Awaitable[T]) -> T:
        async def doing() -> T:
            return await work

        return self.loop.run_until_complete(doing())

    def close(self) -> None:
        try:
            self.do(self.engine.close())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.do(asyncio.sleep(0))
            self.loop.close()

    def restart(self) -> None:
        """Stop gracefully and start again."""
        self.do(self.engine.close())
        self.disk = self.disk.kill()
        self.engine = self._start()

    def kill(self) -> None:
        """Go on as after kill -9 of the process."""
        self.disk = self.disk.kill()
        self.engine = self._start()

    def _changed(self) -> None:
        if self.after_change == "checkpoint":
            self.do(self.engine.checkpoint())
        elif self.after_change == "restart":
            self.restart()

    def _fields(self, config: TopicConfig | None) -> dict[str, Any]:
        fields = config_fields(config or TopicConfig())
        return {**fields, "durability": self.durability} if fields["durability"] == "disk" else fields

    def put(self, topic: str, config: TopicConfig) -> bool:
        created, _ = self.do(self.engine.put_topic(topic, self._fields(config)))
        self._changed()
        return created

    def drop(self, topic: str) -> bool:
        deleted = self.do(self.engine.delete_topic(topic))
        self._changed()
        return deleted

    def append(
        self, topic: str, records: Sequence[Write], *, key: str | None, create: bool | None, config: TopicConfig | None
    ) -> Written:
        answer = self.do(
            self.engine.append(
                topic, [record_in(write) for write in records], key=key, create=create, config=self._fields(config)
            )
        )
        self._changed()
        return written(answer)

    def delete(self, topic: str, *, before_seq: int | None, match: TagMatch | None) -> Deleted:
        answer = self.do(self.engine.delete(topic, before_seq=before_seq, match=match))
        self._changed()
        return Deleted(answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.bytes)

    def open_gap(self, topic: str, size: int, reason: GapReason) -> None:
        self.do(open_gap(self.engine, topic, size, reason))
        self._changed()

    def read(
        self,
        topic: str,
        after: int,
        *,
        limit: int,
        bytes_max: int,
        nodes: Collection[str],
        epoch: int | None,
        filter: TagMatch | None,
    ) -> Read:
        answer = self.do(
            self.engine.read(
                topic,
                after,
                limit,
                bytes_max=bytes_max,
                nodes=list(nodes),
                epoch=epoch,
                match=filter,
                include_tags=True,
            )
        )
        return as_read(answer)

    def state(self, topic: str) -> TopicView:
        view = topic_view(self.engine, self.do(self.engine.topic_state(topic)))
        if view.config.durability == self.durability:
            return replace(view, config=TopicConfig(**{**config_fields(view.config), "durability": "disk"}))
        return view

    def move_clock(self, ms: int) -> None:
        if ms >= 0:
            self.clock.advance(ms)
        else:
            self.clock.set(self.clock.now_ms() + ms)


async def open_gap(engine: Engine, name: str, size: int, reason: GapReason) -> None:
    """Lose the next `size` seqs of a topic; no public command does that."""
    topic = engine.state.topics.get(name)
    if topic is None:
        raise TopicNotFound(name)
    engine._ledger.commit([GapOpened(topic.id, topic.log.head + size, reason, engine.clock.now_ms())])
    await engine.topic_state(name)


def topic_view(engine: Engine, state: Any) -> TopicView:
    return TopicView(
        epoch=state.epoch,
        head=state.head_seq,
        earliest=state.earliest_seq,
        floor=state.evict_floor,
        count=state.count,
        bytes=state.bytes,
        last_write_ts=state.last_write_ts,
        config=TopicConfig(**config_fields(state.config)),
        gaps=list(engine.state.topics[state.topic].log.gaps),
    )
