"""What goes on in the background: syncs, expiry, keys that are too old, memory given back, checkpoints.

All of it in slices of time, so that no turn of the event loop is long.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from topics.core.entries import KeysForgotten
from topics.core.memory import used
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
UNSEALED_FACTOR = 3  # writes wait when this many times the log of a checkpoint is not sealed yet
TIGHT = (3, 4)  # of the memory that may be used: from here on a checkpoint is due for what it gives back
TIGHT_BYTES_MIN = 1024 * 1024  # of the log, since the last one
KEYED_PER_STEP = 64  # topics that are looked at for keys that are too old
KEYS_PER_STEP = 2000  # such keys that are dropped in one step
FREED_PER_STEP = 8  # dead chunks whose memory is given back in one step …
FREED_JOBS_PER_STEP = 10_000  # … and what was known of jobs

Work = Callable[[], Coroutine[Any, Any, None]]

logger = logging.getLogger("topics.engine.upkeep")


class Upkeep:
    """The background work of an engine. Without `start` it is done by `tick`."""

    def __init__(self, hall: Hall, settings: Settings) -> None:
        self._ledger, self._cache, self._clock = hall.ledger, hall.cache, hall.clock
        self.is_running = False
        self.is_full = False  # sealing is so far behind that writes should wait
        self._tight_bytes = hall.caps.max_memory_bytes * TIGHT[0] // TIGHT[1]
        self._checkpoint_bytes = min(CHECKPOINT_BYTES, settings.cache_bytes // 2)
        self._checkpoint_ms = min(CHECKPOINT_MS, settings.segment_max_age_ms)
        self._checkpointed_at = self._clock.monotonic()
        self._checkpoint: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._parts_to_free: list[Part] = []  # no longer read; their memory is given back little by little
        self._jobs_to_free: list[dict[int, Any] | list[Any]] = []  # of jobs that are gone
        self._checkpoints = Checkpoints(due_bytes=self._checkpoint_bytes, due_ms=self._checkpoint_ms)

    def start(self) -> None:
        self.is_running = True
        self._background = asyncio.create_task(self._run_background())

    async def stop(self, end_at: float) -> None:
        """Take a last checkpoint. One that is not done at `end_at` is given up, and so is one that is under way."""
        self.is_running = False
        self._ledger.store.end_at = end_at
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        ledger = self._ledger
        if ledger.wal.is_read_only or ledger.broken is not None:
            return
        try:
            ledger.wal.refuse("the engine is closed")
            await ledger.store.checkpoint(lambda: ledger.state, self._parts_to_free.append, is_last=True)
        except (StorageError, OSError) as error:
            logger.error("the last checkpoint failed: %s; the next start replays the log instead", error)

    def committed(self) -> None:
        """Something was logged: a checkpoint may be due."""
        if self.is_running and self._ledger.wal.bytes_since_roll > self._checkpoint_bytes:
            self.is_full = self.fill >= 1.0
            self._wake_background()

    @property
    def fill(self) -> float:
        """How full the way to the disk is: at 1.0 and above writes should wait."""
        unsealed = self._ledger.store.unsealed_bytes / (UNSEALED_FACTOR * self._checkpoint_bytes)
        return max(self._ledger.wal.fill, unsealed)

    async def checkpoint(self) -> None:
        """Seal records, take a snapshot, trim the log. Waits for one that is under way."""
        await self.without_checkpoints(self._take_checkpoint)

    async def without_checkpoints(self, work: Work) -> None:
        """Do `work` while no checkpoint is under way and none begins: the files of the directory stay the same."""
        while self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        await asyncio.shield(self._begin(work))

    def _begin(self, work: Work) -> "asyncio.Task[None]":
        """Begin what installs a snapshot, or needs it to stay; one at a time."""
        self._checkpoint = asyncio.create_task(work())
        self._checkpoint.add_done_callback(self._ended)
        return self._checkpoint

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._checkpoint = None
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; if nobody does any more, nobody need be

    def checkpoints(self) -> Checkpoints:
        """How checkpoints have gone so far, and when the next is due."""
        now = self._checkpoints
        now.is_running, now.log_bytes = self._checkpoint is not None, self._ledger.wal.bytes_since_roll
        return now

    async def _take_checkpoint(self) -> None:
        begun_at, counts = self._clock.monotonic(), self._checkpoints
        try:
            await self._ledger.store.checkpoint(lambda: self._ledger.state, self._parts_to_free.append)
        except Exception as error:
            counts.failed += 1
            counts.failure = str(error)
            logger.error("a checkpoint failed and will be tried again: %s", error)
            raise
        finally:
            self.is_full = False
            self._checkpointed_at = self._clock.monotonic()
        counts.taken += 1
        counts.failure = None
        counts.last_ts, counts.last_ms = self._clock.now_ms(), (self._checkpointed_at - begun_at) * 1000

    async def _announce_log(self) -> None:
        try:
            await self._ledger.store.announce_log()
        except Exception as error:
            logger.error("the log's new file cannot be entered in the snapshot, which will be tried again: %s", error)
            raise

    async def _run_background(self) -> None:
        while True:
            self._wake = asyncio.get_running_loop().create_future()
            has_more = self._parts_to_free or self._jobs_to_free or self._ledger.state.shrunk
            await self._clock.wait(self._wake, 1 if has_more else BACKGROUND_MS)
            self._do_some()

    def _wake_background(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def tick(self) -> None:
        """Do what is due in the background, and wait for the checkpoint if that is; for an engine without one."""
        self._do_some()
        if self._checkpoint is not None:
            await asyncio.shield(self._checkpoint)

    def _do_some(self) -> None:
        """What is due now: a look at the disk, a sync, expiry, memory to give back, a checkpoint."""
        self._ledger.attend()
        self._ledger.wal.start_sync()
        self._expire_some()
        self._forget_old_keys()
        self._free()
        if self._checkpoint is not None or self._ledger.broken is not None:
            return
        if not self._ledger.store.is_log_announced:
            self._begin(self._announce_log)
        elif self._is_checkpoint_due():
            self._begin(self._take_checkpoint)
        elif self._ledger.wal.bytes_since_roll > max(self._checkpoint_bytes // 4, LARGE_BYTES_MIN):
            self._ledger.store.expect_checkpoint()

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

    def _is_checkpoint_due(self) -> bool:
        wal, state = self._ledger.wal, self._ledger.state
        if wal.is_read_only or not (state.unsaved or state.unsaved_routers):
            return False
        age_ms = (self._clock.monotonic() - self._checkpointed_at) * 1000
        due_ms = FREEING_MS if wal.is_full else self._checkpoint_ms
        is_tight = used(state) > self._tight_bytes > 0
        due_bytes = TIGHT_BYTES_MIN if is_tight else self._checkpoint_bytes
        return wal.bytes_since_roll > due_bytes or age_ms >= due_ms

    def _free(self) -> None:
        """Give back the memory of some parts that are dead or sealed."""
        shrunk = self._ledger.state.shrunk
        while shrunk and len(self._parts_to_free) < FREED_PER_STEP:
            _, topic = shrunk.popitem()
            self._parts_to_free.extend(part for part in topic.log.dropped if isinstance(part, Chunk))
            topic.log.dropped = [part for part in topic.log.dropped if not isinstance(part, Chunk)]
            if topic.has_queue:
                self._jobs_to_free += topic.queue.dropped
                topic.queue.dropped = []
        for part in self._parts_to_free[-FREED_PER_STEP:]:
            self._cache.forget(part)
        del self._parts_to_free[-FREED_PER_STEP:]
        if self._jobs_to_free and not _clear_some(self._jobs_to_free[-1]):
            self._jobs_to_free.pop()

    async def wait_for_room(self) -> None:
        """Make writers wait while sealing is behind, so that memory stays bounded and the disk sets the pace."""
        self._ledger.wal.counters.full_total += 1
        while self.fill >= 1.0 and self.is_running:
            checkpoint = self._checkpoint
            if checkpoint is None:
                self._wake_background()
                await asyncio.sleep(0)
                continue
            await asyncio.wait([checkpoint])
            if checkpoint.cancelled() or checkpoint.exception() is not None:
                return  # sealing fails; the write itself will say why


def _clear_some(place: dict[int, Any] | list[Any]) -> int:
    """Give back some of what was known of jobs: a lease each, or those that end together. What is left."""
    if isinstance(place, list):
        del place[-FREED_PER_STEP:]
    else:
        for _ in range(min(len(place), FREED_JOBS_PER_STEP)):
            place.popitem()
    return len(place)
