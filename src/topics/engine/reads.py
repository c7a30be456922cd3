"""Reads: what a caller sees of the topics, held at the gate and repeated if the log failed meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, TypeVar

from msgspec.structs import replace

from topics.core.state import Topic
from topics.core.topic import walk
from topics.core.topic.losses import Loss, newest_first, reason_of
from topics.core.topic.pages import NEXT_TURN, Cold, Projection
from topics.core.topic.walk import Query
from topics.engine.answers import ReadResult, RecordResult, TopicState, read_result, topic_state
from topics.engine.export import RUNS_MAX, Export, capture
from topics.engine.gate import Gate, Hall
from topics.errors import NotFound
from topics.model import BATCH_BYTES_DEFAULT, WAIT_MS_MAX
from topics.ranges import Range
from topics.storage.disk import Disk

T = TypeVar("T")
Stop = asyncio.Future[None] | None
Room = Callable[[], AbstractAsyncContextManager[None]]  # an answer may be made inside

FILTERED_LOADS_MAX: Final = 16  # pages that a read with a filter loads; then it answers what it has (LM13)
WHOLE: Final = Projection(True, True, True)
TURN_S: Final = 0.01  # of one turn of the loop, for all reads that cost more than a look


class Share:
    """What reads have had of a turn of the event loop (LM10).

    One read is bounded by itself; a client that asks for many at once (streams of one connection, requests in a row)
    would have them all in the same turn.
    """

    def __init__(self) -> None:
        self.is_used_up = False
        self._spent_s = 0.0
        self._is_due = False  # the end of the turn will be noticed

    def add(self, spent_s: float) -> None:
        self._spent_s += spent_s
        self.is_used_up = self._spent_s > TURN_S
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        self.is_used_up = self._is_due = False
        self._spent_s = 0.0


class Reading:
    """What callers read of an instance."""

    def __init__(self, hall: Hall, make_copies: Callable[[Topic], None], disk: Disk) -> None:
        self._ledger, self._gates, self._cache, self._clock = hall.ledger, hall.gates, hall.cache, hall.clock
        self._make_copies = make_copies  # that routers owe a topic (DF9)
        self._run = disk.run
        self._share = Share()
        self._exporting = asyncio.Lock()

    async def read_query(
        self, name: str, query: Query, wait_ms: int = 0, stop: Stop = None, room: Room = nullcontext
    ) -> ReadResult:
        """Answer a query, which is made inside a `room`. With `wait_ms` wait for news until `stop` is done."""
        topic = self._ledger.state.topics.get(name)
        if not wait_ms or topic is None:
            async with room():
                return await self._read(name, query)
        deadline = self._clock.monotonic() + min(wait_ms, WAIT_MS_MAX) / 1000

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        self._ledger.listeners.listen(topic.id, wake)
        if stop is not None:
            stop.add_done_callback(lambda _: wake())
        try:
            while True:
                news = asyncio.get_running_loop().create_future()
                async with room():
                    answer = await self._read(name, query)
                left_ms = (deadline - self._clock.monotonic()) * 1000
                if answer.count or answer.tombstone or not answer.caught_up or left_ms <= 0:
                    return answer
                if stop is not None and stop.done():
                    return answer
                query = replace(query, after=answer.next_from_seq, epoch=answer.epoch)
                await self._clock.wait(news, left_ms)
        finally:
            self._ledger.listeners.unlisten(topic.id, wake)

    async def _read(self, name: str, query: Query) -> ReadResult:
        """One read, held at the gate; repeated if the log failed meanwhile."""

        def look(takes_what_is_warm: bool) -> tuple[ReadResult, Gate]:
            return self.read_in_turn(name, replace(query, stops_at_cold=True) if takes_what_is_warm else query)

        return await self._gates.shown(name, look, FILTERED_LOADS_MAX if query.is_filtered else None)

    def read_in_turn(self, name: str, query: Query) -> tuple[ReadResult, Gate]:
        """As `read_now`; Cold also if reads have had their share of this turn."""
        if self._share.is_used_up:
            raise Cold(NEXT_TURN)
        if query.match is None and not query.nodes:
            made_us = self._cache.made_us
            result = self.read_now(name, query)
            if self._cache.made_us != made_us:
                self._share.add((self._cache.made_us - made_us) / 1e6)
            return result
        began = self._clock.monotonic()
        try:
            return self.read_now(name, query)
        finally:
            self._share.add(self._clock.monotonic() - began)

    def read_now(self, name: str, query: Query) -> tuple[ReadResult, Gate]:
        """One read. The result may be shown once the gate is open. Cold: load what is missing and read again."""
        if self._ledger.broken is not None:
            raise self._ledger.broken
        topic = self._ledger.existing(name)
        self._make_copies(topic)
        if query.nodes and not topic.config.dedupe_node:
            query = replace(query, nodes=frozenset())
        plan = walk.read(topic.log, query, topic.epoch, self._cache)
        now = topic.notes.last_read_ms = self._clock.now_ms()
        if plan.count:
            topic.notes.count_read(plan.count, now)
            self._ledger.read_total += plan.count
        return read_result(topic, plan), self._gates.of(topic)

    async def topic_state(self, name: str, *, touch: bool = True) -> TopicState:
        """The topic as it is now. `touch` counts as a read."""

        def look(takes_what_is_warm: bool) -> tuple[TopicState, Gate]:
            topic = self._ledger.existing(name)
            self._make_copies(topic)
            now = self._clock.now_ms()
            if touch:
                topic.notes.last_read_ms = now
            return topic_state(topic, now), self._gates.of(topic)

        return await self._gates.shown(name, look)

    def cursor_before(self, name: str, ts: int) -> int:
        """The cursor from which a reader gets the records that are not older than `ts`."""
        return self._ledger.existing(name).log.cursor_before(ts)

    async def topic_names(self) -> list[str]:
        """All topics, sorted."""
        return await self._gates.shown(None, lambda _: (sorted(self._ledger.state.topics), self._gates.of(None)))

    async def losses(self, name: str, limit: int) -> list[Loss]:
        """What a topic has lost, the newest first, at most `limit`. No read."""

        def look(takes_what_is_warm: bool) -> tuple[list[Loss], Gate]:
            topic = self._ledger.existing(name)
            self._make_copies(topic)
            return newest_first(topic.log.losses, limit), self._gates.of(topic)

        return await self._gates.shown(name, look)

    async def record(self, name: str, seq: int) -> RecordResult:
        """One live record. No read. NotFound: it was deleted, lost, or never written."""

        def look(takes_what_is_warm: bool) -> tuple[RecordResult, Gate]:
            topic = self._ledger.existing(name)
            self._make_copies(topic)
            if not topic.log.is_live(seq):
                raise _missing(topic, seq)
            query = Query(seq - 1, 1, BATCH_BYTES_DEFAULT, projection=WHOLE)
            plan = walk.read(topic.log, query, topic.epoch, self._cache)
            return RecordResult(name, topic.epoch, b"".join(plan.texts())), self._gates.of(topic)

        return await self._gates.shown(name, look)

    async def export(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None
    ) -> tuple[Export, AsyncIterator[bytes]]:
        """The live records above `after` and up to `last`, as of now, and their Arrow stream in parts."""
        export = await self._captured(name, after, last, epoch, is_read=True)
        return export, export.stream(self._run_alone)

    async def live_runs(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None, count_max: int = RUNS_MAX
    ) -> tuple[Export, list[Range], int]:
        """Which seqs an export would have: at most so many runs, and up to where they are complete (LV1). No read."""
        export = await self._captured(name, after, last, epoch, is_read=False)
        runs, through = await self._run_alone(lambda: export.runs(count_max))
        return export, runs, through

    async def _run_alone(self, work: Callable[[], T]) -> T:
        """Do work of an export, one piece in a turn: the loop has its turn before the next one, of whichever export."""
        async with self._exporting:
            return await self._run(work)

    async def _captured(self, name: str, after: int, last: int | None, epoch: int | None, is_read: bool) -> Export:
        def look(takes_what_is_warm: bool) -> tuple[Export, Gate]:
            topic = self._ledger.existing(name)
            if is_read:
                topic.notes.last_read_ms = self._clock.now_ms()
            return capture(topic, after, last, epoch), self._gates.of(topic)

        export = await self._gates.shown(name, look)
        await self._run_alone(export.pin)
        return export


def _missing(topic: Topic, seq: int) -> NotFound:
    """The refusal of a record that is not live."""
    reason, said = "not_written", "was never written"
    if 0 < seq <= topic.log.head:
        is_lost = reason_of(topic.log.losses, seq) is not None
        reason, said = ("lost", "is lost") if is_lost else ("deleted", "was deleted")
    return NotFound(f'record {seq} of topic "{topic.name}" {said}', topic=topic.name, seq=seq, reason=reason)
