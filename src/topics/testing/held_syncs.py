"""Syncs of a disk in memory: they take turns of the event loop, and can be held back.

Owns when a sync is carried out. What it does is the disk's (`begin_sync`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from topics.storage.disk import File
from topics.storage.syncing.ways import Done

T = TypeVar("T")


class HeldSyncs:
    """The part of a disk that syncs."""

    turns: Callable[[], int] = staticmethod(lambda: 0)  # of the loop that a sync takes, each time anew

    def __init__(self) -> None:
        self._is_holding = False
        self._held: deque[asyncio.Future[None]] = deque()
        self._syncs: set[asyncio.Task[None]] = set()  # those that `start_sync` began

    def begin_sync(self, file: File) -> Callable[[], None]:
        """What carries out the sync of what is written by now; OSError if there can be none."""
        raise NotImplementedError

    def start_sync(self, file: File, done: Done) -> None:
        async def work(syncing: Callable[[], Coroutine[Any, Any, None]]) -> None:
            try:
                await completed(syncing())
            except OSError as error:
                done(error)
            else:
                done(None)

        loop = asyncio.get_running_loop()
        try:
            task = loop.create_task(work(self._syncing(file)))
        except OSError as error:
            loop.call_soon(done, error)
        else:
            self._syncs.add(task)
            task.add_done_callback(self._syncs.discard)

    async def sync(self, file: File) -> None:
        await completed(self._syncing(file)())

    def _syncing(self, file: File) -> Callable[[], Coroutine[Any, Any, None]]:
        carry_out = self.begin_sync(file)
        held = asyncio.get_running_loop().create_future() if self._is_holding else None
        if held is not None:
            self._held.append(held)

        async def turn() -> None:
            if held is not None:
                await held
            for _ in range(self.turns()):
                await asyncio.sleep(0)
            carry_out()

        return turn

    @property
    def held_syncs(self) -> int:
        return len(self._held)

    def hold_syncs(self) -> None:
        """From now on `sync` waits. It still covers only what was written before it was called."""
        self._is_holding = True

    def release_syncs(self, syncs: int | None = None) -> None:
        """Let the oldest `syncs` held ones go on; None = all of them, and hold no more."""
        if syncs is None:
            self._is_holding = False
        for _ in range(len(self._held) if syncs is None else min(syncs, len(self._held))):
            self._held.popleft().set_result(None)


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """Do `work` in a later turn of the loop, even if the caller is cancelled."""
    return await asyncio.shield(asyncio.ensure_future(work))
