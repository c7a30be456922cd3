"""A running engine's half of a backup: pins the files of a base, and sends them, then the log as it grows.

The files are pinned while no checkpoint is under way, which takes as long as it takes to read the delete flags. From
then on they are open, so checkpoints may go on and remove them. Blocking work is done on a thread of the stream's own,
in slices; the event loop only passes them on, at the pace of the receiver.

A base is consistent as of the position up to which the log was synced once the flags were read: flags are set only for
deletes that the log has kept by then.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from topics.clock import Clock
from topics.engine.durability import shipping
from topics.engine.durability.shipping import Head, LogGone, LogTail, Part, Pinned
from topics.engine.durability.store import Store
from topics.errors import CommitFailed
from topics.storage import frames
from topics.storage.disk import Disk
from topics.storage.processes import WorkThread
from topics.storage.segments import FileRef, SegmentFile

SHIP_MS = 1000  # between parts of the log
BASE_BYTES = 64 * 1024 * 1024  # of the log shipped since the last base before another one is worth it
BASE_MS = 600_000  # or so long ago
SEGMENTS_PER_STEP = 64  # pinned at a time

Alone = Callable[[Callable[[], Coroutine[Any, Any, None]]], Awaitable[None]]


class BackupStream:
    """One backup under way. `without_checkpoints` does work while no checkpoint is under way."""

    def __init__(self, store: Store, disk: Disk, clock: Clock, without_checkpoints: Alone, have: set[str]) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._without_checkpoints = without_checkpoints
        self._have = have  # identities of files that the receiver has, and names of pieces of the log
        self._thread = WorkThread("topics-backup")
        self._tail: LogTail | None = None
        self._start = 0  # of the log of the last base
        self._shipped_bytes = 0  # of the log since the last base
        self._base_at = 0.0
        self._unsynced: tuple[int, int] | None = None  # the log's end at some time, which is not synced yet

    async def run(self, stop: "asyncio.Future[None] | None") -> AsyncGenerator[bytes, None]:
        """The stream. With `stop` it follows the log until that is done."""
        try:
            while True:
                async for data in self._send_base():
                    yield data
                if stop is None:
                    return
                try:
                    while not self._is_base_due():
                        await self._clock.wait(stop, SHIP_MS)
                        async for data in self._send_log():
                            yield data
                        if stop.done():
                            return
                except LogGone:
                    self._let_go()
        finally:
            self._let_go()
            self._thread.close()

    def _let_go(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _is_base_due(self) -> bool:
        if frames.number_of(self._store.catalogue.start) <= frames.number_of(self._start):
            return False
        age_ms = (self._clock.monotonic() - self._base_at) * 1000
        return self._shipped_bytes >= BASE_BYTES or age_ms >= BASE_MS

    # --- a base

    async def _send_base(self) -> AsyncGenerator[bytes, None]:
        pinned: list[Pinned] = []
        try:
            await self._without_checkpoints(partial(self._pin, pinned))
            base_files = pinned[0]
            position, ts = await self._synced()
            tail, flagged = self._tail, self._store.catalogue.flagged_at
            assert tail is not None
            known = await self._thread.run(lambda: tail.skip(self._have, position))
            base = base_files.inventory(position, flagged, ts, known)
            async for data in self._sent(base_files.parts(base, self._have, tail)):
                yield data
        finally:
            for files in pinned:
                files.close()
        self._have.update(file.identity for file in (*base.snapshot, *base.segments, *base.flags))
        self._start, self._shipped_bytes, self._base_at = base.start, 0, self._clock.monotonic()

    async def _pin(self, pinned: list[Pinned]) -> None:
        """Hold the files in force; no checkpoint is under way."""
        catalogue = self._store.catalogue
        refs, names = [file.ref for file in catalogue.files.values()], catalogue.snapshots.names
        files = Pinned(catalogue.start, {}, {}, {})
        pinned.append(files)

        def open_snapshot() -> None:
            for name in names:
                files.snapshot[name] = self._disk.open(name, writable=False)

        def hold_segments(some: list[FileRef]) -> None:
            for ref in some:
                file = files.segments[ref.number] = SegmentFile(self._disk, ref)
                shipping.keep_flags(file, files.flags)
                if shipping.segment_identity(file) not in self._have:
                    file.view()

        await self._thread.run(open_snapshot)
        for first in range(0, len(refs), SEGMENTS_PER_STEP):
            await self._thread.run(partial(hold_segments, refs[first : first + SEGMENTS_PER_STEP]))
        if self._tail is None:
            self._tail = LogTail(self._disk, files.start)
        tail, through = self._tail, self._store.wal.synced
        await self._thread.run(lambda: tail.hold(through))

    async def _synced(self) -> tuple[int, int]:
        """A position below which all is synced that is in the log now, and the time."""
        wal = self._store.wal
        with suppress(CommitFailed):  # what is synced is there all the same
            await wal.wait_synced(wal.end)
        return wal.synced, self._clock.now_ms()

    # --- the log

    async def _send_log(self) -> AsyncGenerator[bytes, None]:
        """What the log has got since, and up to where and when that is all."""
        wal, now = self._store.wal, self._clock.now_ms()
        wal.start_sync()
        position, ts = wal.synced, 0
        if position >= wal.end:
            ts, self._unsynced = now, None
        elif self._unsynced is not None and position >= self._unsynced[0]:
            ts, self._unsynced = self._unsynced[1], None
        if position < wal.end and self._unsynced is None:
            self._unsynced = wal.end, now
        assert self._tail is not None
        async for data in self._sent(chain(self._tail.parts(position), [Part(Head("beat", position=position, ts=ts))])):
            self._shipped_bytes += len(data)
            yield data

    async def _sent(self, parts: Iterator[Part]) -> AsyncGenerator[bytes, None]:
        """The bytes of parts, made on the thread; meanwhile no log file that follows gets lost."""
        chunks = chain.from_iterable(map(shipping.encoded, parts))
        tail = self._tail
        while True:
            through = self._store.wal.synced

            def step(through: int = through) -> bytes | None:
                if tail is not None:
                    with suppress(LogGone):  # noticed when it is its turn
                        tail.hold(through)
                return next(chunks, None)

            data = await self._thread.run(step)
            if data is None:
                return
            yield data
