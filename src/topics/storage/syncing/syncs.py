"""The syncs of one disk, off the event loop: by the kernel's queue where there is one, else by a helper process.

Owns which way is taken, for which event loop, and its replacement when it has ended. Both ways fail alike: a sync whose
end nobody has seen counts as failed.
"""

import asyncio
import errno
import logging

from topics.storage.processes import NO_DESCRIPTOR
from topics.storage.syncing.kernel import KernelQueue
from topics.storage.syncing.sync_helper import SyncHelper
from topics.storage.syncing.ways import Done, OpenFile, Way

logger = logging.getLogger("topics.wal")


class Syncs:
    """A way serves one event loop. If the next sync comes from another loop, the old loop has ended."""

    def __init__(self, path: str, *, by_kernel: bool) -> None:
        self._path = path
        self._by_kernel = by_kernel
        self._way: Way | None = None
        self._is_closed = False

    @property
    def helper_pid(self) -> int | None:
        return self._way.pid if self._way else None

    def start(self, file: OpenFile, done: Done) -> None:
        """Sync what was written by now, and call back in a later turn of the loop; never within the call."""
        loop = asyncio.get_running_loop()
        try:
            self._way_for(loop).start(file, done)
        except OSError as error:
            loop.call_soon(done, error)

    async def sync(self, file: OpenFile) -> None:
        ended = asyncio.get_running_loop().create_future()

        def done(failure: OSError | None) -> None:
            if not ended.done():
                ended.set_result(failure)

        self.start(file, done)
        if (failure := await ended) is not None:
            raise failure

    def forget(self, file: OpenFile) -> None:
        if self._way is not None:
            self._way.forget(file)

    def kill_if_silent(self) -> None:
        if self._way is not None:
            self._way.kill_if_silent()

    def close(self) -> None:
        self._is_closed = True
        if self._way is not None:
            self._way.end()
            self._way = None

    def _way_for(self, loop: asyncio.AbstractEventLoop) -> Way:
        way = self._way
        if way is not None and way.loop is loop and not way.has_ended:
            return way
        if self._is_closed:
            raise OSError(errno.EBADF, "the disk is closed")
        if way is not None and way.loop is not loop:
            if way.loop.is_running():
                raise RuntimeError("a disk serves one event loop at a time")
            way.end()
        self._way = self._new_way(loop)
        return self._way

    def _new_way(self, loop: asyncio.AbstractEventLoop) -> Way:
        if self._by_kernel:
            try:
                return KernelQueue(loop)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    raise
                logger.info("the kernel has no queue for syncs (%s); a helper process syncs instead", error)
                self._by_kernel = False
        return SyncHelper(loop, self._path)
