"""What goes on in the background: syncs, expiry, keys that are too old, memory given back, checkpoints.

Owns when these are due, and what waits to be freed. Must not know: how a checkpoint is taken, what an
entry changes. Invariant: all work is done in slices of time, so that no turn of the event loop is long.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from topics.clock import Alarm
from topics.core.entries import KeysForgotten
from topics.core.memory import used
from topics.core.state import Topic
from topics.core.topic.pages import Cache
from topics.core.topic.parts import Chunk, Part
from topics.engine.answers import Checkpoints
from topics.engine.durability.checkpoint import SLICE_SECONDS
from topics.engine.durability.sealing import LARGE_BYTES_MIN
from topics.engine.gate import Hall
from topics.errors import StorageError
from topics.settings import Settings

CHECKPOINT_BYTES = 64 * 1024 * 1024
CHECKPOINT_MS = 60_000
FREEING_MS = 1_000  # between checkpoints while the disk is full: what was deleted leaves it
BACKGROUND_MS = 200  # a directory that is removed is noticed within this (ST14)
ROOM_FACTOR = 12  # one is due for this part of the room: what gathers until it is sealed must fit a second time
UNSEALED_FACTOR = 3  # writes wait when this many times the log of a checkpoint is not sealed yet
TIGHT = (3, 4)  # of the memory that may be used: from here on a checkpoint is due for what it gives back
TIGHT_BYTES_MIN = 1024 * 1024  # of the log, since the last one
KEYED_PER_STEP = 64  # topics that are looked at for keys that are too old
KEYS_PER_STEP = 2000  # such keys that are dropped in one step
FREED_PER_STEP = 8  # dead chunks whose memory is given back in one step …
FREED_JOBS_PER_STEP = 10_000  # … and what was known of jobs

Work = Callable[[], Coroutine[Any, Any, None]]

logger = logging.getLogger("topics.engine.upkeep")


class Freeing:
    """Gives back, little by little, the memory of what is dead or sealed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.parts: list[Part] = []  # no longer read
        self._jobs: list[dict[int, Any] | list[Any]] = []  # what was known of jobs that are gone

    @property
    def has_more(self) -> bool:
        return bool(self.parts or self._jobs)

    def free_some(self, shrunk: dict[int, Topic]) -> None:
        """Give back some; `shrunk` are topics that may have dropped more."""
        while shrunk and len(self.parts) < FREED_PER_STEP:
            _, topic = shrunk.popitem()
            self.parts.extend(part for part in topic.log.dropped if isinstance(part, Chunk))
            topic.log.dropped = [part for part in topic.log.dropped if not isinstance(part, Chunk)]
            if topic.has_queue:
                self._jobs += topic.queue.dropped
                topic.queue.dropped = []
        for part in self.parts[-FREED_PER_STEP:]:
            self._cache.forget(part)
        del self.parts[-FREED_PER_STEP:]
        if self._jobs and not _clear_some(self._jobs[-1]):
            self._jobs.pop()


class Checkpointing:
    """Takes checkpoints, one at a time, and knows when the next one is due."""

    def __init__(self, hall: Hall, settings: Settings, on_sealed: Callable[[Part], None]) -> None:
        self._ledger, self._clock = hall.ledger, hall.clock
        self._on_sealed = on_sealed
        self._tight_bytes = hall.caps.max_memory_bytes * TIGHT[0] // TIGHT[1]
        self._due_bytes_max = min(CHECKPOINT_BYTES, settings.cache_bytes // 2)
        self.due_bytes = self._due_bytes_max  # the same, or less if the disk has little room
        self._due_ms = min(CHECKPOINT_MS, settings.segment_max_age_ms)
        self._taken_at = self._clock.monotonic()
        self._counts = Checkpoints(due_bytes=self.due_bytes, due_ms=self._due_ms)
        self.task: asyncio.Task[None] | None = None  # what installs a snapshot, or needs it to stay
        self.is_behind = False  # so far that writes should wait

    def counts(self) -> Checkpoints:
        """How checkpoints have gone so far, and when the next is due."""
        now = self._counts
        now.is_running, now.log_bytes = self.task is not None, self._ledger.wal.bytes_since_roll
        return now

    async def take(self) -> None:
        """Seal records, take a snapshot, trim the log. Waits for one that is under way."""
        await self.without(self._take)

    async def take_last(self, end_at: float) -> None:
        """Take the one of a graceful stop; what is not done at `end_at` is given up, also what is under way."""
        ledger = self._ledger
        ledger.store.end_at = end_at
        if self.task is not None:
            await asyncio.wait([self.task])
        if ledger.wal.is_read_only or ledger.broken is not None:
            return
        try:
            ledger.wal.refuse("the engine is closed")
            await ledger.store.checkpoint(lambda: ledger.state, self._on_sealed, is_last=True)
        except (StorageError, OSError) as error:
            logger.error("the last checkpoint failed: %s; the next start replays the log instead", error)

    async def without(self, work: Work) -> None:
        """Do `work` while no checkpoint is under way and none begins: the files of the directory stay the same."""
        while self.task is not None:
            await asyncio.wait([self.task])
        await asyncio.shield(self._begin(work))

    def begin_if_due(self) -> None:
        """Begin what is due: an entry of the log's new file in the snapshot, a checkpoint, preparations for one."""
        ledger = self._ledger
        if self.task is not None or ledger.broken is not None:
            return
        if not ledger.store.is_log_announced:
            self._begin(self._announce_log)
        elif self._is_due():
            self._begin(self._take)
        elif ledger.wal.bytes_since_roll > max(self.due_bytes // 4, LARGE_BYTES_MIN):
            ledger.store.expect_checkpoint()

    def look_at_room(self) -> None:
        """Seal the sooner the less room there is: what is not sealed must fit on the disk a second time."""
        store = self._ledger.store
        room = (store.free_bytes + store.unsealed_bytes) / ROOM_FACTOR
        self.due_bytes = round(max(min(self._due_bytes_max, room), min(self._due_bytes_max, TIGHT_BYTES_MIN)))
        self._counts.due_bytes = self.due_bytes

    def _is_due(self) -> bool:
        wal, state = self._ledger.wal, self._ledger.state
        if wal.is_read_only:
            return False
        has_work = bool(state.unsaved or state.unsaved_routers)
        age_ms = (self._clock.monotonic() - self._taken_at) * 1000
        if wal.is_full:
            return age_ms >= FREEING_MS and (
                has_work or wal.unsealable is not None or bool(self._ledger.store.reducible_files())
            )
        if not has_work:
            return False
        is_tight = used(state) > self._tight_bytes > 0
        due_bytes = TIGHT_BYTES_MIN if is_tight else self.due_bytes
        return wal.bytes_since_roll > due_bytes or age_ms >= self._due_ms

    def _begin(self, work: Work) -> "asyncio.Task[None]":
        self.task = asyncio.create_task(work())
        self.task.add_done_callback(self._ended)
        return self.task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.task = None
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would warn; whoever waits for it is told

    async def _take(self) -> None:
        begun_at, counts = self._clock.monotonic(), self._counts
        try:
            await self._ledger.store.checkpoint(lambda: self._ledger.state, self._on_sealed)
        except Exception as error:
            counts.failed += 1
            counts.failure = str(error)
            logger.error("a checkpoint failed and will be tried again: %s", error)
            raise
        finally:
            self.is_behind = False
            self._taken_at = self._clock.monotonic()
        counts.taken += 1
        counts.failure = None
        counts.last_ts, counts.last_ms = self._clock.now_ms(), (self._taken_at - begun_at) * 1000

    async def _announce_log(self) -> None:
        try:
            await self._ledger.store.announce_log()
        except Exception as error:
            logger.error("the snapshot cannot record the log's new file; this will be tried again: %s", error)
            raise


class Upkeep:
    """The background work of an engine. Without `start` it is done by `tick`."""

    def __init__(self, hall: Hall, settings: Settings) -> None:
        self._ledger, self._clock = hall.ledger, hall.clock
        self.freeing = Freeing(hall.cache)
        self.checkpointing = Checkpointing(hall, settings, self.freeing.parts.append)
        self._is_running = False
        self._background: asyncio.Task[None] | None = None
        self._alarm = Alarm()

    def start(self) -> None:
        self._is_running = True
        self.checkpointing.look_at_room()
        self._background = asyncio.create_task(self._run_background())

    async def stop(self, end_at: float) -> None:
        """Take a last checkpoint. One that is not done at `end_at` is given up, and so is one that is under way."""
        self._is_running = False
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        await self.checkpointing.take_last(end_at)

    def committed(self) -> None:
        """Something was logged: a checkpoint may be due."""
        if self._is_running and self._ledger.wal.bytes_since_roll > self.checkpointing.due_bytes:
            self.checkpointing.is_behind = self.fill >= 1.0
            self._alarm.ring()

    @property
    def fill(self) -> float:
        """How full the way to the disk is: at 1.0 and above writes should wait."""
        if self._ledger.wal.obstacle() is not None:  # they are refused, and nothing else need wait for sealing
            return self._ledger.wal.fill
        unsealed = self._ledger.store.unsealed_bytes / (UNSEALED_FACTOR * self.checkpointing.due_bytes)
        return max(self._ledger.wal.fill, unsealed)

    async def wait_for_room(self) -> None:
        """Make writers wait while sealing is behind, so that memory stays bounded and the disk sets the pace."""
        self._ledger.wal.counters.full_total += 1
        while self.fill >= 1.0 and self._is_running and self._ledger.wal.obstacle() is None:
            checkpoint = self.checkpointing.task
            if checkpoint is None:
                self._alarm.ring()
                await asyncio.sleep(0)
                continue
            await asyncio.wait([checkpoint])
            if checkpoint.cancelled() or checkpoint.exception() is not None:
                return  # sealing fails; the write itself will say why

    async def _run_background(self) -> None:
        while True:
            has_more = self.freeing.has_more or self._ledger.state.shrunk
            await self._alarm.sleep(self._clock, 1 if has_more else BACKGROUND_MS)
            self._do_some()
            self._alarm.is_ringing = False  # what was just done may have set it off

    async def tick(self) -> None:
        """Do what is due in the background, and wait for the checkpoint if that is; for an engine without one."""
        self._do_some()
        if self.checkpointing.task is not None:
            await asyncio.shield(self.checkpointing.task)

    def _do_some(self) -> None:
        """What is due now: a look at the disk, a sync, expiry, memory to give back, a checkpoint."""
        self._ledger.attend()
        self.checkpointing.look_at_room()
        self._ledger.wal.start_sync()
        self._expire_some()
        self._forget_old_keys()
        self.freeing.free_some(self._ledger.state.shrunk)
        self.checkpointing.begin_if_due()

    def _expire_some(self) -> None:
        """Expire in as many topics as fit into a turn of the loop, each in its turn."""
        expiring = self._ledger.state.expiring
        slice_end = self._clock.monotonic() + SLICE_SECONDS
        for _ in range(len(expiring)):
            topic_id = next(iter(expiring))
            topic = expiring[topic_id] = expiring.pop(topic_id)
            self._ledger.current(topic.name)
            if self._clock.monotonic() > slice_end:
                return

    def _forget_old_keys(self) -> None:
        """Forget idempotency keys whose window is over, in some topics, each in its turn: nobody may write there."""
        state, now = self._ledger.state, self._clock.now_ms()
        left = KEYS_PER_STEP
        for _ in range(min(KEYED_PER_STEP, len(state.keyed))):
            topic_id = next(iter(state.keyed))
            topic = state.keyed[topic_id] = state.keyed.pop(topic_id)
            if old := topic.keys.count_old(topic.config.idempotency_window_ms, now, left):
                self._ledger.commit((KeysForgotten(topic_id, old),))
                left -= old
                if not left:
                    return


def _clear_some(place: dict[int, Any] | list[Any]) -> int:
    """Give back some of what was known of jobs: a lease each, or those that end together. What is left."""
    if isinstance(place, list):
        del place[-FREED_PER_STEP:]
    else:
        for _ in range(min(len(place), FREED_JOBS_PER_STEP)):
            place.popitem()
    return len(place)
