"""Reads: what a caller sees of the topics, held at the ledger's gate and made anew if the log failed meanwhile.

Owns the cache of rendered pages, and knows which pages are on their way into it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Hashable, Iterator

import msgspec

from topics.clock import Clock
from topics.core.state import State
from topics.core.topic import walk
from topics.core.topic.pages import Cache, ColdPage
from topics.core.topic.walk import Query
from topics.engine.answers import ReadResult, TopicState, read_result, topic_state
from topics.engine.export import Export, capture
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.engine.routers.forwarder import Behind, Forwarder
from topics.errors import CommitFailed, Damaged, TopicNotFound
from topics.model import WAIT_MS_MAX
from topics.storage.disk import Disk


class Reading:
    """What callers read of an instance."""

    def __init__(
        self, ledger: Ledger, gates: Gates, forwarder: Forwarder, clock: Clock, disk: Disk, cache: Cache
    ) -> None:
        self._ledger = ledger
        self._gates = gates
        self._forwarder = forwarder
        self._clock = clock
        self._run = disk.run
        self._cache = cache
        self._loading: dict[Hashable, asyncio.Task[None]] = {}  # pages on their way into the cache
        self._names: list[str] = []  # sorted, as of `_names_version`
        self._names_version: tuple[State, int, int] | None = None

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
        deadline = self._clock.monotonic() + wait_ms / 1000
        topic = self._ledger.state.topics.get(name)
        if topic is None:
            return await self._read(name, query)
        news = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        self._ledger.listen(topic.id, wake)
        if stop is not None:
            stop.add_done_callback(lambda _: wake())
        try:
            while True:
                news = asyncio.get_running_loop().create_future()
                answer = await self._read(name, query)
                left_ms = (deadline - self._clock.monotonic()) * 1000
                if answer.count or answer.tombstone or not answer.caught_up or left_ms <= 0:
                    return answer
                if stop is not None and stop.done():
                    return answer
                query = msgspec.structs.replace(query, after=answer.next_from_seq, epoch=answer.epoch)
                await self._clock.wait(news, left_ms)
        finally:
            self._ledger.unlisten(topic.id, wake)

    async def _read(self, name: str, query: Query) -> ReadResult:
        """One read, held at the gate; made anew if the log failed meanwhile.

        A read that needs more pages than the cache keeps would never find all of them: it ends early instead.
        """
        loaded: set[object] = set()
        while True:
            try:
                result, gate = self.read_now(name, query)
                await self._gates.wait_open(gate, at_once=True)
                return result
            except ColdPage as cold:
                await self.load(cold)
                if cold.page in loaded:
                    query = msgspec.structs.replace(query, stops_at_cold=True)
                loaded.add(cold.page)
            except CommitFailed:
                continue
            except TopicNotFound:
                await self._gates.wait_open(self._gates.of(None), at_once=True)
                raise

    def read_now(self, name: str, query: Query) -> tuple[ReadResult, Gate]:
        """One read. The result may be shown once the gate is open. ColdPage: `load` it and read again."""
        if self._ledger.broken is not None:
            raise self._ledger.broken
        topic = self._ledger.current(name)
        if topic is None:
            raise TopicNotFound(name)
        self._forwarder.carry(topic)
        if query.nodes and not topic.config.dedupe_node:
            query = msgspec.structs.replace(query, nodes=frozenset())
        plan = walk.read(topic.log, query, topic.epoch, self._cache)
        topic.last_read_ms = self._clock.now_ms()
        return read_result(topic, plan), self._gates.of(topic)

    async def load(self, cold: ColdPage) -> None:
        """Bring a page of a segment into the cache, off the loop, or copies into the topic that is read."""
        if isinstance(cold, Behind):
            await self._forwarder.carry_on(cold.dest)
            return
        key = cold.key
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load_page(cold))
        await asyncio.shield(loading)

    async def _load_page(self, cold: ColdPage) -> None:
        """In the same turn the page is there and no longer under way: another one may drop it in the next."""
        start, stop = cold.rows()
        try:
            self._cache.load(cold, await self._run(lambda: cold.part.columns(start, stop)))
        except Damaged:
            if self._ledger.store.catalogue.is_in_force(cold.part):
                raise
        finally:
            del self._loading[cold.key]

    async def carry(self, name: str) -> None:
        """Make the copies of all that was committed upstream of a topic (DF9)."""
        topic = self._ledger.state.topics.get(name)
        if topic is not None:
            try:
                self._forwarder.carry(topic)
            except Behind as behind:
                await self._forwarder.carry_on(behind.dest)

    async def topic_state(self, name: str, *, touch: bool = True) -> TopicState:
        """The topic as it is now. `touch` counts as a read."""
        while True:
            await self.carry(name)
            topic = self._ledger.current(name)
            if topic is not None and touch:
                topic.last_read_ms = self._clock.now_ms()
            state = None if topic is None else topic_state(topic, self._clock.now_ms())
            try:
                await self._gates.wait_open(self._gates.of(topic), at_once=True)
            except CommitFailed:
                continue
            if state is None:
                raise TopicNotFound(name)
            return state

    async def topics_after(
        self, after: str, count: int, wanted: Callable[[str], bool], *, touch: bool = False
    ) -> tuple[list[TopicState], bool]:
        """Up to `count` topics whose names are above `after` and wanted, sorted; and whether there are more."""
        return await self._gates.shown(None, lambda: self._list(after, count, wanted, touch))

    def _list(
        self, after: str, count: int, wanted: Callable[[str], bool], touch: bool
    ) -> tuple[tuple[list[TopicState], bool], Gate]:
        now = self._clock.now_ms()
        states: list[TopicState] = []
        gate = self._gates.of(None)
        for name in self._sorted_names(after):
            if not wanted(name):
                continue
            if len(states) == count:
                return (states, True), gate
            topic = self._ledger.current(name)
            assert topic is not None
            if touch:
                topic.last_read_ms = now
            gate = gate.join(self._gates.of(topic))
            states.append(topic_state(topic, now))
        return (states, False), gate

    def _sorted_names(self, after: str) -> Iterator[str]:
        """The names of topics above `after`, sorted; the order is kept until a topic comes or goes."""
        topics = self._ledger.state.topics
        version = (self._ledger.state, self._ledger.state.next_id, len(topics))
        if self._names_version != version:
            self._names, self._names_version = sorted(topics), version
        return iter(self._names[bisect_right(self._names, after) :])

    def cursor_before(self, name: str, ts: int) -> int:
        """The cursor from which a reader gets the records that are not older than `ts`."""
        topic = self._ledger.current(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic.log.cursor_before(ts)

    async def topic_names(self) -> list[str]:
        """All topics, sorted."""
        return await self._gates.shown(None, lambda: (sorted(self._ledger.state.topics), self._gates.of(None)))

    async def export(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None
    ) -> tuple[Export, AsyncIterator[bytes]]:
        """The live records above `after` and up to `last`, as of now, and their Arrow stream in parts."""
        while True:
            try:
                topic = self._ledger.current(name)
                if topic is None:
                    raise TopicNotFound(name)
                topic.last_read_ms = self._clock.now_ms()
                export = capture(topic, after, last, epoch)
                await self._gates.wait_open(self._gates.of(topic), at_once=True)
                await self._run(export.pin)
                return export, export.stream(self._run)
            except CommitFailed:
                continue
            except TopicNotFound:
                await self._gates.wait_open(self._gates.of(None), at_once=True)
                raise
