"""How far the log has come (appended, written, synced), who waits for it to come further, and what stands in its way.

A waiter is called back once, when its position is reached or the log has failed. `Progress` only notes who is due; the
log calls them in a turn of its own (ST17). A caller who asks for what is true already is answered within the call.

Knows neither files nor what a frame holds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from msgspec import Struct, field

from topics.errors import CommitFailed
from topics.storage.processes import NO_DESCRIPTOR
from topics.storage.reserve import NO_SPACE

READ_ONLY = "the log is read-only after a failure of the disk; it is tried again every second"

FSYNC_BUCKETS_US = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)

logger = logging.getLogger("topics.wal")

Callback = Callable[[CommitFailed | None], None]


class Counters(Struct):
    """What the log has done since the start."""

    frames: int = 0
    batches: int = 0
    bytes_written: int = 0
    rotations: int = 0
    fsyncs: int = 0
    fsync_micros: int = 0
    fsync_bounds_us: tuple[int, ...] = FSYNC_BUCKETS_US  # upper bounds of the buckets
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * (len(FSYNC_BUCKETS_US) + 1))
    # … which are not cumulative; the last is above all bounds
    queue_depth_peak: int = 0  # the most frames that ever waited
    full_total: int = 0  # writes that had to wait

    def add_fsync(self, micros: int) -> None:
        self.fsyncs += 1
        self.fsync_micros += micros
        index = sum(1 for bound in FSYNC_BUCKETS_US if micros > bound)
        self.fsync_buckets[index] += 1


class DiskFull(CommitFailed):
    """No space can be reserved in the log."""


class Obstacle(NamedTuple):
    """Why nobody can write: a word for programs, a sentence for people."""

    reason: str
    message: str


class Progress:
    """Positions of the log: everything below `written` is written, everything below `synced` synced."""

    def __init__(self) -> None:
        self.end = 0  # position of the next frame
        self.written = 0
        self.synced = 0
        self.is_read_only = False
        self._unsynced: deque[tuple[int, int, int]] = deque()  # position, end, what must be synced for its ack
        self._written_waiters: list[Callback] = []  # for all that is appended …
        self._earlier_waiters: list[tuple[int, list[Callback]]] = []  # … and for what was when a long write began
        self._synced_waiters: list[tuple[int, int, Callback]] = []  # a heap by position, then by arrival
        self._waits = count()
        self._sync_wanted = 0  # what lies below this position is synced as soon as it is written
        self._due: list[Callback] = []  # what they waited for is true; the end of a turn tells them
        self._full: OSError | None = None  # the disk is full: only what frees space is taken
        self.unsealable: OSError | None = None  # a checkpoint found no room: until one does, the disk counts as full
        self._missing = ""  # the directory or file of the log that was removed
        self._latched: OSError | None = None  # why the log is read-only

    def start_sync(self) -> None:
        """Sync what is written, now or as soon as the sync that runs is over."""
        raise NotImplementedError

    @property
    def queue_depth(self) -> int:
        """Commits that wait for the disk."""
        earlier = sum(len(waiters) for _, waiters in self._earlier_waiters) if self._earlier_waiters else 0
        return len(self._written_waiters) + len(self._synced_waiters) + earlier

    def when_written(self, callback: Callback) -> None:
        """Call back when everything appended so far is written or has failed; at once if it is written already."""
        if self.written >= self.end:
            callback(None)
        else:
            self._written_waiters.append(callback)

    def when_synced(self, position: int, callback: Callback) -> None:
        """Call back when everything below `position` is synced or has failed; at once if it is synced already."""
        if self.synced >= position:
            callback(None)
        elif self.is_read_only:
            callback(CommitFailed(READ_ONLY))
        else:
            heappush(self._synced_waiters, (position, next(self._waits), callback))
            if self.written >= position:
                self.start_sync()

    async def wait_synced(self, position: int) -> None:
        """Wait until everything below `position` is synced."""
        waiter = asyncio.get_running_loop().create_future()
        self.when_synced(position, partial(resolve, waiter))
        await waiter

    def want_synced(self, position: int) -> None:
        """Sync everything below `position`, which is about to be written, without anyone waiting for it."""
        self._sync_wanted = max(self._sync_wanted, position)

    @property
    def _needs_sync(self) -> bool:
        return self._sync_wanted > self.synced or bool(self._synced_waiters)

    def _begin_write(self) -> None:
        """All that is appended is about to be written, in steps: those who wait for it do not wait for later frames."""
        self._earlier_waiters.append((self.end, self._written_waiters))
        self._written_waiters = []

    def _written_to(self, position: int) -> None:
        self.written = position
        while self._earlier_waiters and self._earlier_waiters[0][0] <= position:
            self._due += self._earlier_waiters.pop(0)[1]
        if position == self.end:
            self._due += self._written_waiters
            self._written_waiters = []

    def _synced_to(self, position: int) -> None:
        if position <= self.synced:
            return
        self.synced = position
        unsynced = self._unsynced
        while unsynced and unsynced[0][1] <= position:
            unsynced.popleft()
        waiters = self._synced_waiters
        while waiters and waiters[0][0] <= position:
            self._due.append(heappop(waiters)[2])

    def _take_waiters(self) -> list[Callback]:
        """Take all waiters, in the order of their positions, which will not be reached."""
        earlier = [waiter for _, waiters in self._earlier_waiters for waiter in waiters]
        waiters = [*earlier, *self._written_waiters, *(waiter for _, _, waiter in sorted(self._synced_waiters))]
        self._earlier_waiters, self._written_waiters, self._synced_waiters, self._sync_wanted = [], [], [], 0
        return waiters

    def obstacle(self) -> Obstacle | None:
        """Why nobody can write now; None: writes are possible (HM7)."""
        if self._missing:
            return Obstacle("directory_gone", f"{self._missing} was removed while the server was running")
        if self._latched is not None:
            number = self._latched.errno
            full, few = number in NO_SPACE, number in NO_DESCRIPTOR
            word = "disk_full" if full else "descriptors_exhausted" if few else "log_read_only"
            return Obstacle(word, f"{READ_ONLY}: {self._latched}")
        if self._full is not None:
            return Obstacle("disk_full", f"the disk is full; only what frees space is taken: {self._full}")
        return None

    @property
    def is_full(self) -> bool:
        """Whether the disk is full, so that only what frees space is taken."""
        return self._full is not None

    def note_full(self, error: OSError) -> None:
        """The disk is full: writes are refused until the space that is kept back is there again."""
        if self._full is None:
            logger.error("the disk is full: %s; only what frees space is taken", error)
        self._full = error


def resolve(waiter: "asyncio.Future[None]", failure: CommitFailed | None) -> None:
    if waiter.done():
        return
    if failure is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(failure)
