"""The engine: topics as a library, without a network.

    async with topics.Engine.open("data") as engine:
        await engine.append("orders", [{"data": {"sku": "A1"}}])
        answer = await engine.read("orders", after=0)

The only place where the pure core meets storage: a command is decided by the
core and committed by the ledger; answers are held until the ledger's gate is
open (see ledger.py). All state lives on one event loop, and there are no locks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from topics.clock import Clock, SystemClock
from topics.core import decide
from topics.core.decide import Append, Caps, Delete, DeleteTopic, PutTopic
from topics.core.queue.jobs import lease_number
from topics.core.routing.table import PutRouter
from topics.core.state import State, Topic
from topics.core.topic.blocks import Blocks
from topics.core.topic.config import ConfigIn
from topics.core.topic.pages import Cache, Projection
from topics.core.topic.records import NO_META, Batch, RecordIn, batch_of
from topics.core.topic.walk import Query
from topics.engine.answers import (
    Claimed,
    DeleteResult,
    ReadResult,
    Redriven,
    RouterState,
    Settled,
    TopicState,
    WriteResult,
)
from topics.engine.durability.checkpoint import SLICE_SECONDS
from topics.engine.durability.store import Store
from topics.engine.export import Export
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.engine.queues.claims import Claimer, Queues
from topics.engine.queues.crews import Workers
from topics.engine.queues.dead_letters import Moves
from topics.engine.reads import Reading
from topics.engine.routers.calls import Routing
from topics.engine.routers.forwarder import Forwarder
from topics.engine.upkeep import Upkeep
from topics.errors import (
    CommitFailed,
    EpochMismatch,
    InvalidRequest,
    TopicNotFound,
    UnusableDirectory,
)
from topics.model import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    LIMIT_DEFAULT,
    Guarantee,
    RouterDefinition,
    TagMatch,
    TopicConfig,
)
from topics.settings import Settings
from topics.storage.disk import Disk, RealDisk
from topics.storage.wal import Wal

_encode_json = msgspec.json.Encoder().encode


class Engine:
    """A data directory, open. Use `Engine.open` as an async context manager."""

    def __init__(self, disk: Disk, settings: Settings, clock: Clock, *, background: bool = True) -> None:
        self.settings = settings
        self.clock = clock
        self._disk = disk
        self._ledger = Ledger(Store(disk, clock, settings), clock)
        self._ledger.on_rebuilt = self._rebuilt
        self._gates = Gates(self._ledger)
        self._cache = Cache(settings.cache_bytes // 2)
        self._upkeep = Upkeep(self._ledger, self._cache, clock, settings)
        self._caps = Caps(settings.max_topics, settings.max_total_bytes, settings.max_routers)
        self.forwarder = Forwarder(self._ledger, self._gates, clock, self._caps, disk.run)
        self._routing = Routing(self._ledger, self._gates, self.forwarder, self._caps)
        self._reading = Reading(self._ledger, self._gates, self.forwarder, clock, disk, self._cache)
        moves = Moves(self._ledger, self._gates, clock, self._caps)
        self.queues = Queues(
            self._ledger, self._gates, clock, moves, self._cache, self._reading.load, self.forwarder.carry
        )
        self.workers = Workers(self._ledger, clock, self.queues)
        self._has_background = background
        self._is_open = False
        self.wal: Wal = self._ledger.wal
        self.listen = self._ledger.listen
        self.unlisten = self._ledger.unlisten
        self.gate = self._gates.of
        self.is_open = self._gates.is_open
        self.when_open = self._gates.when_open
        self.read_query = self._reading.read_query
        self.read_now = self._reading.read_now
        self.load = self._reading.load
        self.carry = self._reading.carry

    @classmethod
    def open(
        cls,
        path: str,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        background: bool = True,
    ) -> "Engine":
        """An engine on the data directory `path`, created if absent; enter it to recover and start.

        `background=False` leaves checkpoints and syncs in the background to the caller (`tick`).
        """
        return cls(disk or RealDisk(path), settings or Settings(), clock or SystemClock(), background=background)

    @property
    def state(self) -> State:
        return self._ledger.state

    @property
    def replay_progress(self) -> float:
        return self._ledger.store.progress

    @property
    def fill(self) -> float:
        """How full the way to the disk is: at 1.0 and above writes should wait."""
        return self._upkeep.fill

    # --- life

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Lock the directory and recover. On a refusal nothing has changed."""
        try:
            self._disk.lock()
            await self._ledger.start()
        except BaseException as error:
            self._disk.unlock()
            self._disk.close()
            if isinstance(error, OSError):
                raise UnusableDirectory(f"{self._disk.path} cannot be used: {error}") from error
            raise
        self._is_open = True
        self.forwarder.start()
        if self._has_background:
            self._upkeep.start()

    async def close(self) -> None:
        """Take a last checkpoint and let go of the directory."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self.workers.stop()
            await self.forwarder.drain()
            await self.forwarder.stop()
            await self._upkeep.stop()
        finally:
            self._ledger.store.close()
            self._disk.unlock()
            self._disk.close()

    async def checkpoint(self) -> None:
        """Seal records, take a snapshot, trim the log. Waits for one that is under way."""
        await self._upkeep.checkpoint()

    async def tick(self) -> None:
        """Do what is due in the background, for an engine opened without it."""
        await self._upkeep.tick()

    def _rebuilt(self) -> None:
        """The log failed, and the state was rebuilt: its parts are others."""
        self.forwarder.restart()
        self._cache.clear()
        self.queues.rebuilt()

    # --- writing

    async def put_topic(
        self, name: str, config: ConfigIn | Mapping[str, Any] | None = None
    ) -> tuple[bool, TopicConfig]:
        """Create a topic or replace its config. Gives whether it was created, and its config."""
        command = PutTopic(name, _config_in(config))
        topic = await self._ledger.when_unchanging(name)
        is_new = topic is None
        async with self._gates.refusing(name):
            decided, resolved = decide.put_topic(self.state, command, self.clock.now_ms(), self._caps)
        if decided:
            await self._ledger.change(topic, decided)
        await self._gates.wait_open(self._gates.of_name(name))
        return is_new, resolved

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> bool:
        """Delete a topic with all it owns. False: there was none."""
        return await self.remove_topic(name, if_empty=if_empty) is not None

    async def remove_topic(self, name: str, *, if_empty: bool = False) -> list[tuple[str, str, str]] | None:
        """The same, giving the routers that went with it: name, source, dest. None: there was no topic."""
        topic = await self._ledger.when_unchanging(name)
        routers = self.routers_of(name)
        async with self._gates.refusing(name):
            decided = decide.delete_topic(self.state, DeleteTopic(name, if_empty))
        if decided:
            await self._ledger.change(topic, decided)
        await self._gates.wait_open(self._gates.of(None))
        return routers if decided else None

    async def append(
        self,
        name: str,
        records: Sequence[Mapping[str, Any] | RecordIn],
        *,
        node: str | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: ConfigIn | Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Append records: RecordIn with JSON texts, or mappings with the fields of a record that is written."""
        batch = batch_of([_record_in(record) for record in records], node, self.settings, key)
        given = None if config is None else _config_in(config)
        return await self.append_batch(Append(name, batch, key, create, given))

    async def append_batch(self, command: Append) -> WriteResult:
        """Append a batch that was checked already. Returns when it is as durable as the topic's class asks."""
        if self._upkeep.is_full:
            await self._upkeep.wait_for_room()
        return await self._gates.done(command.topic, lambda: self.submit(command))

    def submit(self, command: Append) -> tuple[WriteResult, Gate]:
        """Append a batch. The result holds, and may be shown, once the gate is open (see `when_open`)."""
        ledger = self._ledger
        state = ledger.state
        topic = state.topics.get(command.topic)
        if topic is not None and topic.config.ttl_ms:
            ledger.current(command.topic)
        bytes_max = self._caps.max_total_bytes
        if bytes_max and state.bytes + sum(command.batch.sizes) > bytes_max:
            for expiring in list(state.expiring.values()):
                ledger.current(expiring.name)
        decided, done = decide.append(state, command, self.clock.now_ms(), self._caps)
        if decided:
            ledger.commit(decided)
            topic = topic or state.topics[command.topic]
        result = WriteResult(command.topic, done.first, done.last, done.head, done.count, done.created, done.deduped)
        return result, self._gates.of(topic)

    async def delete(
        self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None, epoch: int | None = None
    ) -> DeleteResult:
        """Delete live records below `before_seq`, with a matching tag, or both; none that is committed later.

        With an `epoch`, only those of this instance of the topic.
        """
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq or match")
        topic = self._ledger.current(name)
        generation = self.wal.generation
        blocks = await self._select(topic, match, before_seq) if match is not None and topic is not None else None
        if generation != self.wal.generation:
            raise CommitFailed("the disk failed meanwhile")
        async with self._gates.refusing(name):
            if topic is None or self.state.topics.get(name) is not topic:
                raise TopicNotFound(name)
            if epoch is not None and epoch != topic.epoch:
                raise EpochMismatch(name, topic.epoch, epoch)
        before = topic.log.count
        decided = decide.delete(self.state, Delete(name, before_seq, blocks))
        if decided:
            self._ledger.commit(decided)
        log = topic.log
        result = DeleteResult(name, before - log.count, log.earliest, log.head, log.count, log.bytes)
        await self._gates.wait_open(self._gates.of(topic))
        return result

    async def _select(self, topic: Topic, match: TagMatch, before_seq: int | None) -> Blocks:
        """The seqs that a tag predicate selects now, found in slices of time."""
        bound = topic.log.head + 1 if before_seq is None else min(before_seq, topic.log.head + 1)
        selected: Blocks = {}
        slice_end = self.clock.monotonic() + SLICE_SECONDS
        for blocks in topic.log.matching(match, bound):
            for number, mask in blocks.items():
                selected[number] = selected.get(number, 0) | mask
            if self.clock.monotonic() > slice_end:
                await asyncio.sleep(0)
                slice_end = self.clock.monotonic() + SLICE_SECONDS
        return selected

    # --- routers

    async def put_router(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        match: TagMatch | None = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
    ) -> tuple[bool, RouterState]:
        """Copy what is written to `source` into `dest` from now on. Gives whether the router is new, and what it is."""
        definition = RouterDefinition(preserve_node, preserve_tag, match, allow_cycle, guarantee)
        return await self._routing.put(PutRouter(name, source, dest, definition, create_dest))

    async def router(self, name: str) -> RouterState:
        """A router as it is now; what its source has was forwarded before, unless it is blocked."""
        return await self._routing.show(name)

    async def routers_after(
        self, after: str, count: int, wanted: Callable[[RouterState], bool] = lambda router: True
    ) -> tuple[list[RouterState], bool]:
        """Up to `count` routers whose names are above `after` and wanted, sorted; and whether there are more."""
        return await self._routing.list_after(after, count, wanted)

    async def delete_router(self, name: str) -> bool:
        """Delete a router; its copies stay. False: there was none."""
        return await self._routing.delete(name)

    def routers_of(self, name: str) -> list[tuple[str, str, str]]:
        """Routers into or out of a topic, sorted: name, source, dest."""
        topic, by_id = self.state.topics.get(name), self.state.by_id
        touching = [] if topic is None else self.state.routers.of(topic.id)
        return sorted((one.name, by_id[one.source].name, by_id[one.dest].name) for one in touching)

    # --- queues

    async def claim(self, name: str, node: str, count: int = 1, lease_ms: int | None = None) -> Claimed:
        """Lease up to `count` jobs of a queue to a node."""
        return await self.workers.claim(name, Claimer(node, count, lease_ms))

    async def ack(self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None) -> Settled:
        """Complete jobs that the node holds."""
        return await self._settle(name, lambda numbers: self.queues.ack(name, node, seqs, numbers), lease_ids)

    async def nack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None, *, delay_ms: int = 0
    ) -> Settled:
        """Give jobs back that the node holds; they are claimable again after the delay."""
        return await self._settle(
            name, lambda numbers: self.queues.nack(name, node, seqs, numbers, delay_ms), lease_ids
        )

    async def extend(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None, *, lease_ms: int
    ) -> Settled:
        """Let the node hold its jobs until `lease_ms` from now."""
        return await self._settle(
            name, lambda numbers: self.queues.extend(name, node, seqs, numbers, lease_ms), lease_ids
        )

    async def redrive(self, name: str, match: TagMatch | None = None, most: int | None = None) -> Redriven:
        """Make jobs again of the dead letters of a queue, those with a matching tag, at most so many."""
        async with self._gates.refusing(name):
            return await self.queues.redrive(name, match, most)

    async def _settle(
        self,
        name: str,
        change: Callable[[Sequence[int | None] | None], tuple[Settled, Gate]],
        lease_ids: Sequence[str] | None,
    ) -> Settled:
        numbers = None if lease_ids is None else [lease_number(text, "lease_ids") for text in lease_ids]
        return await self._gates.done(name, lambda: change(numbers))

    # --- reading

    async def read(
        self,
        name: str,
        after: int = 0,
        limit: int = LIMIT_DEFAULT,
        *,
        nodes: Sequence[str] = (),
        match: TagMatch | None = None,
        epoch: int | None = None,
        bytes_max: int = BATCH_BYTES_DEFAULT,
        wait_ms: int = 0,
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
    ) -> ReadResult:
        """Records above `after`, at most `limit`; with `wait_ms` wait for one if there is none."""
        if min(after, limit, bytes_max, wait_ms) < 0:
            raise InvalidRequest("after, limit, bytes_max and wait_ms must not be negative")
        limit = min(limit or LIMIT_DEFAULT, self.settings.max_limit)
        budget = min(bytes_max or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX)
        projection = Projection(include_tags, include_meta, include_data)
        query = Query(after, limit, budget, frozenset(nodes), match, epoch, projection)
        return await self.read_query(name, query, wait_ms)

    async def topic_state(self, name: str, *, touch: bool = True) -> TopicState:
        """The topic as it is now. `touch` counts as a read."""
        return await self._reading.topic_state(name, touch=touch)

    async def topics_after(
        self, after: str, count: int, wanted: Callable[[str], bool], *, touch: bool = False
    ) -> tuple[list[TopicState], bool]:
        """Up to `count` topics whose names are above `after` and wanted, sorted; and whether there are more."""
        return await self._reading.topics_after(after, count, wanted, touch=touch)

    async def topic_names(self) -> list[str]:
        """All topics, sorted."""
        return await self._reading.topic_names()

    def cursor_before(self, name: str, ts: int) -> int:
        """The cursor from which a reader gets the records that are not older than `ts`."""
        return self._reading.cursor_before(name, ts)

    async def export(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None
    ) -> tuple[Export, AsyncIterator[bytes]]:
        """The live records above `after` and up to `last`, as of now, and their Arrow stream in parts."""
        return await self._reading.export(name, after, last, epoch)


def _config_in(config: ConfigIn | Mapping[str, Any] | None) -> ConfigIn:
    if config is None:
        return ConfigIn()
    if isinstance(config, ConfigIn):
        return config
    try:
        return msgspec.convert(config, ConfigIn)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _record_in(record: Mapping[str, Any] | RecordIn) -> RecordIn:
    if isinstance(record, RecordIn):
        return record
    if "data" not in record:
        raise InvalidRequest("a record needs data")
    meta = record.get("meta")
    try:
        data = Raw(_encode_json(record["data"]))
        return RecordIn(
            data,
            record.get("tag"),
            record.get("node"),
            NO_META if meta is None else Raw(_encode_json(meta)),
            record.get("delay_ms", UNSET),
            record.get("deliver_at", UNSET),
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"a record is not JSON: {error}") from None


__all__ = ["Batch", "DeleteResult", "Engine", "ReadResult", "TopicState", "WriteResult"]
