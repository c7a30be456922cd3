"""How far the log has come (appended, written, synced), and who waits for it to come further.

A waiter is called back once, when its position is reached or the log has failed. `Progress` only notes who is due; the
log calls them in a turn of its own (ST17). A caller who asks for what is true already is answered within the call.

Knows neither files nor what a frame holds.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from topics.errors import CommitFailed

READ_ONLY = "the log is read-only after a failure of the disk; it is tried again every second"

Callback = Callable[[CommitFailed | None], None]


class Progress:
    """Positions of the log: everything below `written` is written, everything below `synced` synced."""

    def __init__(self) -> None:
        self.end = 0  # position of the next frame
        self.written = 0
        self.synced = 0
        self.is_read_only = False
        self._unsynced: deque[tuple[int, int, int]] = deque()  # position, end, what must be synced for its ack
        self._written_waiters: list[Callback] = []
        self._synced_waiters: list[tuple[int, int, Callback]] = []  # a heap by position, then by arrival
        self._waits = count()
        self._sync_wanted = 0  # what lies below this position is synced as soon as it is written
        self._due: list[Callback] = []  # what they waited for is true; the end of a turn tells them

    def start_sync(self) -> None:
        """Sync what is written, now or as soon as the sync that runs is over."""
        raise NotImplementedError

    @property
    def queue_depth(self) -> int:
        """Commits that wait for the disk."""
        return len(self._written_waiters) + len(self._synced_waiters)

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
        self.when_synced(position, partial(settle, waiter))
        await waiter

    def want_synced(self, position: int) -> None:
        """Sync everything below `position`, which is about to be written, without anyone waiting for it."""
        self._sync_wanted = max(self._sync_wanted, position)

    @property
    def _needs_sync(self) -> bool:
        return self._sync_wanted > self.synced or bool(self._synced_waiters)

    def _written_to(self, position: int) -> None:
        self.written = position
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
        """Give up all waiters, in the order of what they wait for: it will not come."""
        waiters = [*self._written_waiters, *(waiter for _, _, waiter in sorted(self._synced_waiters))]
        self._written_waiters, self._synced_waiters, self._sync_wanted = [], [], 0
        return waiters


def settle(waiter: "asyncio.Future[None]", failure: CommitFailed | None) -> None:
    if waiter.done():
        return
    if failure is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(failure)
