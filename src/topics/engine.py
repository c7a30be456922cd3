"""The engine: topics as a library, without a network.

    async with topics.Engine.open("data") as engine:
        await engine.append("orders", [{"data": {"sku": "A1"}}])
        answer = await engine.read("orders", after=0)

The only place where the pure core meets storage. All state lives on one event
loop. A commit is decide → log → apply without an await, so the order of the
log is the order of the state, and there are no locks.

The gate. The state is that of the end of the log, which may be ahead of what
is as durable as its class asks. So nothing leaves the engine before that: an
answer is made from the state at once and held until the log positions it
depends on are written (disk, memory) or synced (fsync, and topics that come,
change or go). If the log fails meanwhile, the state is rebuilt from the disk
without what failed; held writes fail, held reads are made anew.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.clock import Clock, SystemClock
from topics.core import decide, dump, entries
from topics.core.config import ConfigIn, effective_priority
from topics.core.decide import Append, Caps, Delete, DeleteTopic, PutTopic
from topics.core.entries import AnyEntry
from topics.core.log import Blocks, Plan, Query
from topics.core.machine import State, Topic, apply
from topics.core.parts import Cache, Chunk, ColdPage, Part, Projection
from topics.core.records import NO_META, Batch, RecordIn, batch_of
from topics.errors import (
    CommitFailed,
    Damaged,
    InvalidRequest,
    Refusal,
    StorageError,
    TopicNotFound,
    UnusableDirectory,
)
from topics.export import Export, capture
from topics.model import Record, TagMatch, Tombstone, TopicConfig
from topics.settings import Settings
from topics.storage.files import Disk, RealDisk
from topics.storage.wal import Callback, Wal, settle
from topics.store import SLICE_SECONDS, Store

LIMIT_DEFAULT = 256
BYTES_MAX_DEFAULT = 1024 * 1024
BYTES_MAX_MAX = 8 * 1024 * 1024
WAIT_MS_MAX = 30_000
CHECKPOINT_BYTES = 64 * 1024 * 1024
CHECKPOINT_MS = 60_000
BACKGROUND_MS = 200
UNSEALED_FACTOR = 6  # writes wait when this many times the log of a checkpoint is not sealed yet
FREED_PER_STEP = 8  # dead chunks whose memory is given back in one step

logger = logging.getLogger("topics.engine")

Listener = Callable[[], None]


class Gate(Struct, frozen=True, gc=False):
    """What must be true of the log before an answer made of its state may leave."""

    synced_at: int  # everything below this position is synced
    written_at: int  # everything below this one is written
    generation: int  # the log has not failed since


class WriteResult(Struct, frozen=True):
    """The answer to an append."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool


class ReadResult(Struct, frozen=True):
    """The answer to a read. `texts` hold the records' JSON, joined by commas; `records` decodes them."""

    topic: str
    epoch: int
    texts: list[bytes]
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    scanned: int
    tombstone: Tombstone | None

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    @property
    def records(self) -> list[Record]:
        return _decode_records(b"[" + b",".join(self.texts) + b"]")


class DeleteResult(Struct, frozen=True):
    """The answer to a delete: how many records it took, and the topic after it."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class QueueCounts(Struct, frozen=True):
    """The jobs of a queue: live ones without lease and delay, those under a lease, those moved away."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(Struct, frozen=True):
    """A topic as it is now."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    count: int
    bytes: int
    config: TopicConfig
    last_write_ts: int | None
    last_read_ts: int | None
    effective_priority: int  # the priority in use now (PR1)
    queue: QueueCounts | None  # queues only


RouterEntry = entries.RouterSet | entries.RouterRemoved

_decode_records = msgspec.json.Decoder(list[Record]).decode
_encode_json = msgspec.json.Encoder().encode


class Engine:
    """A data directory, open. Use `Engine.open` as an async context manager."""

    def __init__(self, disk: Disk, settings: Settings, clock: Clock, *, background: bool = True) -> None:
        self.settings = settings
        self.clock = clock
        self.state = State()
        self._disk = disk
        self._store = Store(disk, clock, settings)
        self.wal: Wal = self._store.wal
        self._caps = Caps(settings.max_topics, settings.max_total_bytes)
        self._cache = Cache(settings.cache_bytes // 2)
        self._checkpoint_bytes = min(CHECKPOINT_BYTES, settings.cache_bytes // 2)
        self._has_background = background
        self._background: asyncio.Task[None] | None = None
        self._checkpoint: asyncio.Task[None] | None = None
        self._checkpointed_at = clock.monotonic()
        self._wake: asyncio.Future[None] | None = None
        self._listeners: dict[int, set[Listener]] = {}
        self._unwritten: deque[tuple[int, int]] = deque()  # position, topic: to be told when it is written
        self._unsynced: deque[tuple[int, int]] = deque()  # the same for synced
        self._changing: dict[str, asyncio.Task[None]] = {}  # changes of ephemeral topics that wait for their sync
        self._graveyard: list[Part] = []
        self._broken: StorageError | None = None  # the log failed, and the state could not be read back
        self._names: list[str] = []  # sorted, as of `_names_version`
        self._names_version: tuple[State, int, int] | None = None
        self._is_open = False

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
    def replay_progress(self) -> float:
        return self._store.progress

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
            self.state = await self._store.recover()
        except OSError as error:
            self._disk.unlock()
            self._disk.close()
            raise UnusableDirectory(f"{self._disk.path} cannot be used: {error}") from error
        except BaseException:
            self._disk.unlock()
            self._disk.close()
            raise
        self.wal.on_progress = self._publish
        self.wal.on_failure = self._rebuild
        self._is_open = True
        if self._has_background:
            self._background = asyncio.create_task(self._run_background())

    async def close(self) -> None:
        """Take a last checkpoint and let go of the directory."""
        if not self._is_open:
            return
        self._is_open = False
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        try:
            if not self.wal.is_read_only and self._broken is None:
                self.wal.refuse("the engine is closed")
                await self._store.checkpoint(self.state, self._bury, is_last=True)
        except (StorageError, OSError) as error:
            logger.error("the last checkpoint failed: %s; the next start replays the log instead", error)
        finally:
            self.wal.close()
            self._disk.unlock()
            self._disk.close()

    # --- writing

    async def put_topic(
        self, name: str, config: ConfigIn | Mapping[str, Any] | None = None
    ) -> tuple[bool, TopicConfig]:
        """Create a topic or replace its config. Gives whether it was created, and its config."""
        command = PutTopic(name, _config_in(config))
        topic = await self._settled(name)
        is_new = topic is None
        try:
            decided, resolved = decide.put_topic(self.state, command, self.clock.now_ms(), self._caps)
        except Refusal:
            await self._pass_refusal(name)
            raise
        if decided:
            await self._commit_change(topic, decided)
        await self._pass(self._gate(self.state.topics.get(name)))
        return is_new, resolved

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> bool:
        """Delete a topic with all it owns. False: there was none."""
        topic = await self._settled(name)
        try:
            decided = decide.delete_topic(self.state, DeleteTopic(name, if_empty))
        except Refusal:
            await self._pass_refusal(name)
            raise
        if decided:
            await self._commit_change(topic, decided)
        await self._pass(self._gate(None))
        return bool(decided)

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
        """Append records: mappings with `data` and optionally `tag`, `node`, `meta`, or RecordIn with JSON texts."""
        batch = batch_of([_record_in(record) for record in records], node, self.settings, key)
        given = None if config is None else _config_in(config)
        return await self.append_batch(Append(name, batch, key, create, given))

    @property
    def fill(self) -> float:
        """How full the way to the disk is: at 1.0 and above writes should wait."""
        return max(self.wal.fill, self._store.unsealed_bytes / (UNSEALED_FACTOR * self._checkpoint_bytes))

    async def append_batch(self, command: Append) -> WriteResult:
        """Append a batch that was checked already. Returns when it is as durable as the topic's class asks."""
        if self._has_background and self.fill >= 1.0:
            await self._wait_for_room()
        try:
            result, gate = self.submit(command)
        except Refusal:
            await self._pass_refusal(command.topic)
            raise
        await self._pass(gate)
        return result

    async def _wait_for_room(self) -> None:
        """Let writers wait while sealing is behind: memory is bounded, and the disk sets the pace."""
        self.wal.counters.submit_full += 1
        while self.fill >= 1.0 and self._is_open:
            checkpoint = self._checkpoint
            if checkpoint is None:
                self._wake_background()
                await asyncio.sleep(0)
                continue
            await asyncio.wait([checkpoint])
            if checkpoint.cancelled() or checkpoint.exception() is not None:
                return  # sealing fails; the write itself will say why

    def submit(self, command: Append) -> tuple[WriteResult, Gate]:
        """Append a batch. The result holds, and may be shown, once the gate is open (see `when_open`)."""
        self._expire(command.topic)
        bytes_max = self._caps.max_total_bytes
        if bytes_max and self.state.bytes + sum(command.batch.sizes) > bytes_max:
            for expiring in list(self.state.expiring.values()):
                self._expire(expiring.name)
        decided, done = decide.append(self.state, command, self.clock.now_ms(), self._caps)
        if done.created:
            self._commit_created(decided)
        topic = self.state.topics[command.topic]
        if decided and not done.created:
            self._commit(topic, decided)
        gate = self._gate(topic)
        if done.last > topic.reserved_durable and topic.reserves:
            gate = self._reserve(topic, gate)
        result = WriteResult(command.topic, done.first, done.last, done.head, done.count, done.created, done.deduped)
        return result, gate

    async def delete(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> DeleteResult:
        """Delete live records below `before_seq`, with a matching tag, or both; none that is committed later."""
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq or match")
        topic = self._expire(name)
        generation = self.wal.generation
        blocks = await self._select(topic, match, before_seq) if match is not None and topic is not None else None
        if generation != self.wal.generation:
            raise CommitFailed("the disk failed meanwhile")
        if topic is None or self.state.topics.get(name) is not topic:
            await self._pass_refusal(name)
            raise TopicNotFound(name)
        before = topic.log.count
        decided = decide.delete(self.state, Delete(name, before_seq, blocks))
        if decided:
            self._commit(topic, decided)
        log = topic.log
        result = DeleteResult(name, before - log.count, log.earliest, log.head, log.count, log.bytes)
        await self._pass(self._gate(topic))
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
        bytes_max: int = BYTES_MAX_DEFAULT,
        wait_ms: int = 0,
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
    ) -> ReadResult:
        """Records above `after`, at most `limit`; with `wait_ms` wait for one if there is none."""
        if min(after, limit, bytes_max, wait_ms) < 0:
            raise InvalidRequest("after, limit, bytes_max and wait_ms must not be negative")
        limit = min(limit or LIMIT_DEFAULT, self.settings.max_limit)
        budget = min(bytes_max or BYTES_MAX_DEFAULT, BYTES_MAX_MAX)
        projection = Projection(include_tags, include_meta, include_data)
        query = Query(after, limit, budget, frozenset(nodes), match, epoch, projection)
        return await self.read_query(name, query, wait_ms)

    async def read_query(
        self, name: str, query: Query, wait_ms: int = 0, stop: "asyncio.Future[None] | None" = None
    ) -> ReadResult:
        """Answer a query. With `wait_ms` wait for news if there are none; when `stop` is done, wait no longer."""
        if not wait_ms:
            return await self._read(name, query)
        return await self._read_waiting(name, query, min(wait_ms, WAIT_MS_MAX), stop)

    async def _read_waiting(
        self, name: str, query: Query, wait_ms: int, stop: "asyncio.Future[None] | None"
    ) -> ReadResult:
        deadline = self.clock.monotonic() + wait_ms / 1000
        topic = self.state.topics.get(name)
        if topic is None:
            return await self._read(name, query)
        news = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        self.listen(topic.id, wake)
        if stop is not None:
            stop.add_done_callback(lambda _: wake())
        try:
            while True:
                news = asyncio.get_running_loop().create_future()
                answer = await self._read(name, query)
                left_ms = (deadline - self.clock.monotonic()) * 1000
                if answer.count or answer.tombstone or not answer.caught_up or left_ms <= 0:
                    return answer
                if stop is not None and stop.done():
                    return answer
                query = msgspec.structs.replace(query, after=answer.next_from_seq, epoch=answer.epoch)
                await self.clock.wait(news, left_ms)
        finally:
            self.unlisten(topic.id, wake)

    async def _read(self, name: str, query: Query) -> ReadResult:
        """One read, held at the gate; made anew if the log failed meanwhile."""
        while True:
            try:
                result, gate = self.read_now(name, query)
                await self._pass(gate, at_once=True)
                return result
            except ColdPage as cold:
                await self.load(cold)
            except CommitFailed:
                continue
            except TopicNotFound:
                await self._pass(self._gate(None), at_once=True)
                raise

    def read_now(self, name: str, query: Query) -> tuple[ReadResult, Gate]:
        """One read. The result may be shown once the gate is open. ColdPage: `load` it and read again."""
        topic = self._expire(name)
        if topic is None:
            raise TopicNotFound(name)
        if query.nodes and not topic.config.dedupe_node:
            query = msgspec.structs.replace(query, nodes=frozenset())
        plan = topic.log.read(query, topic.epoch, self._cache)
        topic.last_read_ms = self.clock.now_ms()
        return _result(topic, plan), self._gate(topic)

    async def load(self, cold: ColdPage) -> None:
        """Bring a page of a segment into the cache, off the loop."""
        start, stop = cold.rows()
        try:
            self._cache.load(cold, await self._disk.run(lambda: cold.part.columns(start, stop)))
        except Damaged:
            if self._store.is_in_force(cold.part):
                raise

    async def topic_state(self, name: str, *, touch: bool = True) -> TopicState:
        """The topic as it is now. `touch` counts as a read."""
        while True:
            topic = self._expire(name)
            if topic is not None and touch:
                topic.last_read_ms = self.clock.now_ms()
            state = None if topic is None else _topic_state(topic, self.clock.now_ms())
            try:
                await self._pass(self._gate(topic), at_once=True)
            except CommitFailed:
                continue
            if state is None:
                raise TopicNotFound(name)
            return state

    async def topics_after(
        self, after: str, count: int, wanted: Callable[[str], bool], *, touch: bool = False
    ) -> tuple[list[TopicState], bool]:
        """Up to `count` topics whose names are above `after` and wanted, sorted; and whether there are more."""
        while True:
            states, gate, has_more = self._list(after, count, wanted, touch)
            try:
                await self._pass(gate, at_once=True)
                return states, has_more
            except CommitFailed:
                continue

    def _list(
        self, after: str, count: int, wanted: Callable[[str], bool], touch: bool
    ) -> tuple[list[TopicState], Gate, bool]:
        now = self.clock.now_ms()
        states: list[TopicState] = []
        synced_at, written_at = self.state.names_at, 0
        for name in self._sorted_names(after):
            if not wanted(name):
                continue
            if len(states) == count:
                return states, Gate(synced_at, written_at, self.wal.generation), True
            topic = self._expire(name)
            assert topic is not None
            if touch:
                topic.last_read_ms = now
            synced_at, written_at = max(synced_at, topic.synced_at), max(written_at, topic.written_at)
            states.append(_topic_state(topic, now))
        return states, Gate(synced_at, written_at, self.wal.generation), False

    def _sorted_names(self, after: str) -> Iterator[str]:
        """The names of topics above `after`, sorted; the order is kept until a topic comes or goes."""
        topics = self.state.topics
        version = (self.state, self.state.next_id, len(topics))
        if self._names_version != version:
            self._names, self._names_version = sorted(topics), version
        return iter(self._names[bisect_right(self._names, after) :])

    def routers_of(self, name: str) -> list[tuple[str, str, str]]:
        """Routers into or out of a topic, sorted: name, source, dest."""
        topic, by_id = self.state.topics.get(name), self.state.by_id
        if topic is None:
            return []
        touching = [one for one in self.state.routers.values() if topic.id in (one.source, one.dest)]
        return sorted((one.name, by_id[one.source].name, by_id[one.dest].name) for one in touching)

    def cursor_before(self, name: str, ts: int) -> int:
        """The cursor from which a reader gets the records that are not older than `ts`."""
        topic = self._expire(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic.log.cursor_before(ts)

    async def topic_names(self) -> list[str]:
        """All topics, sorted."""
        while True:
            names = sorted(self.state.topics)
            try:
                await self._pass(self._gate(None), at_once=True)
                return names
            except CommitFailed:
                continue

    async def export(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None
    ) -> tuple[Export, AsyncIterator[bytes]]:
        """The live records above `after` and up to `last`, as of now, and their Arrow stream in parts."""
        while True:
            try:
                topic = self._expire(name)
                if topic is None:
                    raise TopicNotFound(name)
                topic.last_read_ms = self.clock.now_ms()
                export = capture(topic, after, last, epoch)
                await self._pass(self._gate(topic), at_once=True)
                await self._disk.run(export.pin)
                return export, export.stream(self._disk.run)
            except CommitFailed:
                continue
            except TopicNotFound:
                await self._pass(self._gate(None), at_once=True)
                raise

    def listen(self, topic_id: int, listener: Listener) -> None:
        """Call `listener` whenever something new can be read of a topic, or it is gone."""
        self._listeners.setdefault(topic_id, set()).add(listener)

    def unlisten(self, topic_id: int, listener: Listener) -> None:
        listeners = self._listeners.get(topic_id)
        if listeners is not None:
            listeners.discard(listener)
            if not listeners:
                del self._listeners[topic_id]

    # --- commits and the gate

    def _expire(self, name: str) -> Topic | None:
        """Take away what has expired, before anyone looks at the topic."""
        topic = self.state.topics.get(name)
        if topic is not None and topic.config.ttl_ms:
            expired = decide.expiry(topic, self.clock.now_ms())
            if expired is not None:
                with suppress(CommitFailed):  # a loss is shown only once it is logged; until then the records stay
                    self._commit(topic, [expired])
        return topic

    def _commit(self, topic: Topic, decided: Sequence[AnyEntry]) -> None:
        """Log and apply entries of one topic. CommitFailed: nothing has changed."""
        if topic.is_logged:
            is_synced = topic.config.durability == "fsync"
            end = self.wal.append(entries.encode(decided), is_synced, self._depends_on(topic, decided))
            for entry in decided:
                apply(self.state, entry)
            if is_synced:
                topic.synced_at = end
                queue = self._unsynced
            else:
                topic.written_at = end
                queue = self._unwritten
                if type(decided[-1]) is entries.Reserved:
                    topic.reserved_at = end
                    self.wal.start_sync_soon()
            if topic.id in self._listeners:
                queue.append((end, topic.id))
            if self.wal.bytes_since_roll > self._checkpoint_bytes:
                self._wake_background()
        else:
            for entry in decided:
                apply(self.state, entry)
            self._tell(topic.id)

    def _depends_on(self, topic: Topic, decided: Sequence[AnyEntry]) -> int:
        """What must be synced before a commit that need not be synced itself may be acked: see `_gate`, `_reserve`."""
        first = decided[0]
        if type(first) is not entries.Appended or first.last <= topic.reserved_durable or not topic.reserves:
            return topic.synced_at
        if self.wal.synced >= topic.reserved_at:
            topic.reserved_durable = topic.reserved
            if first.last <= topic.reserved:
                return topic.synced_at
        return max(topic.synced_at, topic.reserved_at, self.wal.end + 1 if first.last > topic.reserved else 0)

    def _commit_created(self, decided: Sequence[AnyEntry]) -> None:
        """Commit a write that creates its topic; the log has no records of an ephemeral one."""
        created = decided[0]
        assert isinstance(created, entries.TopicCreated)
        self._commit_config(decided, decided[:1] if created.config.durability == "ephemeral" else decided)

    def _commit_config(self, decided: Sequence[AnyEntry], logged: Sequence[AnyEntry]) -> None:
        """Log and apply entries by which a topic comes, changes or goes: synced, whatever its class."""
        end = self.wal.append(entries.encode(logged), True)
        for entry in decided:
            apply(self.state, entry)
        self.state.names_at = end
        for topic_id in {entry.topic for entry in decided if not isinstance(entry, RouterEntry)}:
            topic = self.state.by_id.get(topic_id)
            if topic is not None:
                topic.synced_at = topic.reserved_at = end
            self._unsynced.append((end, topic_id))

    async def _settled(self, name: str) -> Topic | None:
        """The topic, when no change of it is under way that is not carried out yet."""
        while name in self._changing:
            await asyncio.wait([self._changing[name]])
        return self._expire(name)

    async def _commit_change(self, topic: Topic | None, decided: Sequence[AnyEntry]) -> None:
        """Commit entries by which a topic comes, changes or goes."""
        if topic is None or topic.is_logged:
            self._commit_config(decided, decided)
            return
        change = asyncio.create_task(self._change_ephemeral(topic, decided))
        self._changing[topic.name] = change
        change.add_done_callback(lambda _: self._changing.pop(topic.name))
        await asyncio.shield(change)

    async def _change_ephemeral(self, topic: Topic, decided: Sequence[AnyEntry]) -> None:
        """Change an ephemeral topic once the change is synced: if that fails, its records could not be restored."""
        control = [entry for entry in decided if not isinstance(entry, entries.Evicted | entries.Expired)]
        end = self.wal.append(entries.encode(control), True)
        await self.wal.wait_synced(end)
        for entry in control:
            apply(self.state, entry)
        self.state.names_at = topic.synced_at = topic.reserved_at = end
        self._tell(topic.id)
        if topic.id in self.state.by_id:
            lost = decide.retention(topic, topic.config, self.clock.now_ms())
            if topic.is_logged:
                head = topic.log.head
                self._commit(topic, [entries.HeadKept(topic.id, head, topic.log.highest_live(head)), *lost])
            elif lost:
                self._commit(topic, lost)

    def _reserve(self, topic: Topic, gate: Gate) -> Gate:
        """The gate of a write beyond the reservation that is known to be synced (DU10)."""
        if self.wal.synced >= topic.reserved_at:
            topic.reserved_durable = topic.reserved
            return gate
        return Gate(max(gate.synced_at, topic.reserved_at), gate.written_at, gate.generation)

    def _gate(self, topic: Topic | None) -> Gate:
        """The gate for what was just read of a topic, or of there being none."""
        if topic is None:
            return Gate(self.state.names_at, 0, self.wal.generation)
        return Gate(topic.synced_at, topic.written_at, self.wal.generation)

    def is_open(self, gate: Gate) -> bool:
        """Whether what depends on the gate may be shown; writes what is buffered if only that is missing."""
        wal = self.wal
        if gate.synced_at > wal.synced:
            return False
        if gate.written_at > wal.written:
            wal.flush()
        return gate.written_at <= wal.written and gate.generation == wal.generation

    def when_open(self, gate: Gate, callback: Callback) -> None:
        """Call back when the gate is open, or with what keeps it from opening."""
        wal = self.wal
        if gate.synced_at <= wal.synced and gate.written_at > wal.written and gate.generation == wal.generation:
            wal.when_written(callback)
            return

        def synced(failure: CommitFailed | None) -> None:
            if failure is None and gate.written_at > wal.written:
                wal.when_written(written)
            else:
                written(failure)

        def written(failure: CommitFailed | None) -> None:
            if failure is None and gate.generation != wal.generation:
                failure = CommitFailed("the disk failed meanwhile")
            callback(failure)

        if gate.synced_at > wal.synced:
            wal.when_synced(gate.synced_at, synced)
        else:
            synced(None)

    async def _pass(self, gate: Gate, *, at_once: bool = False) -> None:
        """Wait for a gate. `at_once`: write what is buffered rather than wait for the end of the turn."""
        if self._broken is not None:
            raise self._broken
        wal = self.wal
        if at_once and gate.written_at > wal.written and gate.synced_at <= wal.synced:
            wal.flush()
        if gate.synced_at > wal.synced or gate.written_at > wal.written or gate.generation != wal.generation:
            opened = asyncio.get_running_loop().create_future()
            self.when_open(gate, partial(settle, opened))
            await opened

    async def _pass_refusal(self, name: str) -> None:
        """Wait until the state for which something was refused may be shown."""
        await self._pass(self._gate(self.state.topics.get(name)))

    def _publish(self) -> None:
        """The log has been written or synced further: tell those who wait."""
        for queue, reached in ((self._unwritten, self.wal.written), (self._unsynced, self.wal.synced)):
            while queue and queue[0][0] <= reached:
                self._tell(queue.popleft()[1])

    def _tell(self, topic_id: int) -> None:
        for listener in list(self._listeners.get(topic_id, ())):
            listener()

    def _rebuild(self, void: frozenset[int]) -> None:
        """Start over from the disk after the log failed, without the frames in `void`."""
        old = self.state
        try:
            self.state = self._store.rebuild(void)
        except (StorageError, OSError) as error:
            logger.critical("the state cannot be read back: %s; nothing is served any more", error)
            self._broken = UnusableDirectory(f"the disk failed, and the state cannot be read back: {error}")
            self.wal.refuse(self._broken.message)
            return
        for topic in self.state.topics.values():
            before = old.by_id.get(topic.id)
            if before is not None:
                topic.last_read_ms = before.last_read_ms
                if not topic.is_logged:
                    topic.epoch, topic.log, topic.keys = before.epoch, before.log, before.keys
                    topic.queue = before.queue
                    self._store.adopt(topic.log.parts)
        self.state.records, self.state.bytes = dump.totals(self.state.topics.values())
        self._cache = Cache(self._cache.bytes_max)
        self._unwritten.clear()
        self._unsynced.clear()
        for topic_id in list(self._listeners):
            self._tell(topic_id)

    # --- background

    async def checkpoint(self) -> None:
        """Seal records, take a snapshot, trim the log. Waits for one that is under way."""
        while self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        await asyncio.shield(self._start_checkpoint())

    def _start_checkpoint(self) -> "asyncio.Task[None]":
        self._checkpoint = asyncio.create_task(self._store.checkpoint(self.state, self._bury))
        self._checkpoint.add_done_callback(self._checkpoint_done)
        return self._checkpoint

    def _checkpoint_done(self, task: "asyncio.Task[None]") -> None:
        self._checkpoint = None
        self._checkpointed_at = self.clock.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a checkpoint failed and will be tried again: %s", error)

    async def _run_background(self) -> None:
        while True:
            self._wake = asyncio.get_running_loop().create_future()
            await self.clock.wait(self._wake, 1 if self._graveyard or self.state.shrunk else BACKGROUND_MS)
            self._upkeep()

    def _wake_background(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def tick(self) -> None:
        """Do what is due in the background, and wait for the checkpoint if that is; for an engine without one."""
        self._upkeep()
        if self._checkpoint is not None:
            await asyncio.shield(self._checkpoint)

    def _upkeep(self) -> None:
        """What is due now: a sync, expiry, memory to give back, a checkpoint."""
        self.wal.start_sync()
        self._expire_some()
        self._free()
        if self._checkpoint is None and self._is_checkpoint_due():
            self._start_checkpoint()

    def _expire_some(self) -> None:
        """Expire in as many topics as fit into a turn of the loop, each in its turn."""
        expiring = self.state.expiring
        slice_end = self.clock.monotonic() + SLICE_SECONDS
        for _ in range(len(expiring)):
            topic_id = next(iter(expiring))
            topic = expiring[topic_id] = expiring.pop(topic_id)
            self._expire(topic.name)
            if self.clock.monotonic() > slice_end:
                return

    def _is_checkpoint_due(self) -> bool:
        if self.wal.is_read_only or self._broken is not None or not (self.state.dirty or self.state.dirty_routers):
            return False
        age_ms = (self.clock.monotonic() - self._checkpointed_at) * 1000
        return self.wal.bytes_since_roll > self._checkpoint_bytes or age_ms >= min(
            CHECKPOINT_MS, self.settings.segment_max_age_ms
        )

    def _bury(self, part: Part) -> None:
        """Take over a part that is no longer read, to give its memory back little by little."""
        self._graveyard.append(part)

    def _free(self) -> None:
        """Give back the memory of some parts that are dead or sealed."""
        shrunk = self.state.shrunk
        while shrunk and len(self._graveyard) < FREED_PER_STEP:
            _, topic = shrunk.popitem()
            self._graveyard.extend(part for part in topic.log.dropped if isinstance(part, Chunk))
            topic.log.dropped = [part for part in topic.log.dropped if not isinstance(part, Chunk)]
        for part in self._graveyard[-FREED_PER_STEP:]:
            self._cache.forget(part)
        del self._graveyard[-FREED_PER_STEP:]


def _result(topic: Topic, plan: Plan) -> ReadResult:
    return ReadResult(
        topic.name,
        topic.epoch,
        plan.texts(),
        plan.count,
        plan.next,
        plan.head,
        plan.earliest,
        plan.scanned,
        plan.tombstone,
    )


def _topic_state(topic: Topic, now: int) -> TopicState:
    log = topic.log
    return TopicState(
        topic.name,
        topic.epoch,
        log.head,
        log.earliest,
        log.floor,
        log.count,
        log.bytes,
        topic.config,
        topic.last_write_ts,
        topic.last_read_ms,
        effective_priority(topic.config, topic.last_read_ms, now),
        _queue_counts(topic, now) if topic.config.type == "queue" else None,
    )


def _queue_counts(topic: Topic, now: int) -> QueueCounts:
    queue, is_live = topic.queue, topic.log.is_live
    leased = [seq for seq, (_, _, deadline) in queue.leases.items() if now <= deadline and is_live(seq)]
    delayed = [seq for seq, start in queue.delayed.items() if now < start and is_live(seq)]
    return QueueCounts(topic.log.count - len(leased) - len(delayed), len(leased), queue.dead_lettered)


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
            data, record.get("tag"), record.get("node"), NO_META if meta is None else Raw(_encode_json(meta))
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"a record is not JSON: {error}") from None


__all__ = ["Batch", "DeleteResult", "Engine", "ReadResult", "TopicState", "WriteResult"]
