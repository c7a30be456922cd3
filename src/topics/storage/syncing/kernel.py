"""fdatasync by the kernel's own queue (`topics.uring`): no second process, no GIL, one system call.

`io_uring_enter` hands the sync to a worker of the kernel and returns; the queue's descriptor becomes readable when the
sync has ended, and its result lies in memory that is shared with the kernel. One sync is under way at a time, in the
order of the calls: the kernel reports a lost write once, to whoever syncs the file first, so a sync that was asked for
before that was known must wait for it, and fails with it (ST4).

A sync that hangs in the kernel cannot be ended. `end` gives it up: it counts as failed, and nobody hears of its end.
The end of the process may wait for it, as for a thread that hangs in the kernel.

Where the kernel has no such queue, or a container forbids it, the constructor raises OSError, and a helper process is
asked instead (`syncs.py`).
"""

import asyncio
import errno
import os
import sys
from collections import deque
from struct import Struct
from typing import Final, NamedTuple

from topics.storage.syncing.ways import Done, OpenFile
from topics.uring.rings import Rings, failure_of

_ENTRIES: Final = 2
_REQUEST: Final = Struct("=BBHiQQIIQ24x")  # operation · · descriptor · · · argument ·
FSYNC: Final = 3  # an operation
DATA_ONLY: Final = 1  # argument of FSYNC


class _Rings(Rings):
    """The rings, for one request at a time: `places` has zeros, so it is always the first."""

    def submit(self, descriptor: int, operation: int, argument: int) -> int:
        """Hand one request to the kernel. Gives the errno if it does not take it, else 0."""
        words, place = self.words, self.tail
        tail = words[place]
        _REQUEST.pack_into(self.requests, 0, operation, 0, 0, descriptor, 0, 0, 0, argument, 0)
        words[place] = (tail + 1) & 0xFFFFFFFF
        taken = self.enter(1)
        if taken == 1:
            return 0
        words[place] = tail
        return -taken

    def take_result(self) -> int | None:
        """The result of the request that has ended, negative if it is an errno; None if none has ended."""
        words = self.words
        head = words[self.result_head]
        if head == words[self.result_tail]:
            return None
        result: int = words[self.results + 4 * (head & self.mask) + 2]
        words[self.result_head] = (head + 1) & 0xFFFFFFFF
        return result - (1 << 32) if result >> 31 else result


class _Waiting(NamedTuple):
    """A sync, and who is told of its end. The queue has a descriptor of its own of a file that waits its turn."""

    file: OpenFile | None
    done: Done | None
    descriptor: int = -1


class KernelQueue:
    """The kernel's queue, for one event loop.

    Invariant: the first of `_waiting`, and no other, has been submitted; or there is none.
    """

    operation, argument = FSYNC, DATA_ONLY

    pid: int | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if sys.platform != "linux" or sys.maxsize < 1 << 32:
            raise OSError(errno.ENOSYS, "there is one on Linux only, of 64 bits")
        self.loop = loop
        self.has_ended = False
        self._waiting: deque[_Waiting] = deque()
        self._ended_count = 0
        self._owed = -1  # `_ended_count` at the last look, if a sync was under way; else -1
        self._rings = _Rings(_ENTRIES)
        try:
            self._try_out()
        except BaseException:
            self._rings.close()
            raise
        loop.add_reader(self._rings.descriptor, self._ended)

    def _try_out(self) -> None:
        """Sync a file in memory: a kernel that takes this takes the others, and starts its worker."""
        descriptor = os.memfd_create("topics-sync", os.MFD_CLOEXEC)
        try:
            if failure := self._rings.submit(descriptor, FSYNC, DATA_ONLY):
                raise _failure(failure)
        finally:
            os.close(descriptor)
        self._waiting.append(_Waiting(None, None))

    def start(self, file: OpenFile, done: Done) -> None:
        if self._waiting:
            self._waiting.append(_Waiting(file, done, file.duplicate()))
        elif failure := self._rings.submit(file.fileno(), self.operation, self.argument):
            raise _failure(failure, file)
        else:
            self._waiting.append(_Waiting(file, done))

    def forget(self, file: OpenFile) -> None:
        pass  # a sync that is under way holds the file by itself

    def kill_if_silent(self) -> None:
        owed = self._ended_count if self._waiting else -1
        if owed == self._owed >= 0:
            self.end()
        self._owed = owed

    def end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        waiting, self._waiting = self._waiting, deque()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._rings.descriptor)
        self._rings.close()
        for one in waiting:
            self._fail(one, OSError(errno.EIO, "the sync was given up before it ended"))

    def _ended(self) -> None:
        """For the loop: a sync has ended."""
        if self.has_ended or (result := self._rings.take_result()) is None:
            return
        self._ended_count += 1
        one = self._waiting.popleft()
        failure = _failure(-result, one.file) if result < 0 else None
        if failure is not None and one.file is not None:
            self._fail_others(one.file)
        if self._waiting:
            self._begin_next()
        if one.descriptor >= 0:
            os.close(one.descriptor)
        if one.done is not None:
            one.done(failure)

    def _fail_others(self, file: OpenFile) -> None:
        """A sync of the file has failed: those that were asked for before that was known fail, too."""
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if one.file is not None and one.file.number == file.number:
                self._fail(one, _failure(errno.EIO, file))
            else:
                self._waiting.append(one)

    def _begin_next(self) -> None:
        while self._waiting:
            one = self._waiting[0]
            failure = self._rings.submit(one.descriptor, self.operation, self.argument)
            if not failure:
                return
            self._waiting.popleft()
            self._fail(one, _failure(failure, one.file))

    def _fail(self, one: _Waiting, failure: OSError) -> None:
        if one.descriptor >= 0:
            os.close(one.descriptor)
        if one.done is not None and not self.loop.is_closed():
            self.loop.call_soon(one.done, failure)


def _failure(number: int, file: OpenFile | None = None) -> OSError:
    return failure_of(number, file.name if file else None)
