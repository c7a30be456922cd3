"""fdatasync by the kernel's own queue (io_uring, through ctypes): no second process, no GIL, one system call.

`io_uring_enter` hands the sync to a worker of the kernel and returns; the queue's descriptor becomes readable when the
sync has ended, and its result lies in memory that is shared with the kernel. One sync is under way at a time, in the
order of the calls: the kernel reports a lost write once, to whoever syncs the file first, so a sync that was asked for
before that was known must wait for it, and fails with it (ST4).

A sync that hangs in the kernel cannot be ended. `end` gives it up: it counts as failed, and nobody hears of its end.
The end of the process may wait for it, as for a thread that hangs in the kernel.

Owned here: the numbers and structures of the system calls. Where the kernel has no such queue, or a container forbids
it, the constructor raises OSError, and a helper process is asked instead (`syncs.py`).
"""

import asyncio
import ctypes
import errno
import mmap
import os
import sys
from collections import deque
from struct import Struct
from typing import Final, NamedTuple

from topics.storage.processes import map_memory
from topics.storage.syncing.ways import Done, OpenFile

# With the GIL: neither call waits for anything, and who lets go of the GIL may wait long to get it back.
_with_gil = ctypes.PyDLL(None, use_errno=True)
_setup, _enter = _with_gil["syscall"], _with_gil["syscall"]
_setup.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p)
_enter.argtypes = (*(ctypes.c_long,) * 5, ctypes.c_void_p, ctypes.c_size_t)

_SETUP, _ENTER = 425, 426  # on every architecture
_ENTRIES: Final = 2
_ONE_MAP: Final = 1  # a feature: both rings lie in one map
_SHARED: Final = mmap.PROT_READ | mmap.PROT_WRITE
_REQUESTS_AT: Final = 0x10000000  # offset of the map of requests
_REQUEST: Final = Struct("=BBHiQQIIQ24x")  # operation · · descriptor · · · argument ·
FSYNC: Final = 3  # an operation
DATA_ONLY: Final = 1  # argument of FSYNC


class _Parameters(ctypes.Structure):
    """struct io_uring_params. The offsets: head, tail, mask, entries, flags or overflow, dropped or results, array."""

    _fields_ = (
        *(("requests", ctypes.c_uint32), ("results", ctypes.c_uint32), ("flags", ctypes.c_uint32)),
        *(("thread", ctypes.c_uint32 * 2), ("features", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 4)),
        *(("request_offsets", ctypes.c_uint32 * 10), ("result_offsets", ctypes.c_uint32 * 10)),
    )


class _Rings:
    """The memory that is shared with the kernel: one request, and the ring of results."""

    def __init__(self) -> None:
        parameters = _Parameters()
        self.descriptor: int = _setup(_SETUP, _ENTRIES, ctypes.byref(parameters))
        if self.descriptor < 0:
            raise _failure(ctypes.get_errno())
        try:
            if not parameters.features & _ONE_MAP:
                raise OSError(errno.ENOSYS, "the kernel is too old")
            requests, results = parameters.request_offsets, parameters.result_offsets
            places = requests[6] + 4 * parameters.requests  # which request comes next; zeros: always the first
            size = max(places, results[5] + 16 * parameters.results)
            self._words = memoryview(map_memory(self.descriptor, size, _SHARED, 0)).cast("B").cast("I")
            self._request = map_memory(self.descriptor, _REQUEST.size * parameters.requests, _SHARED, _REQUESTS_AT)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._tail = requests[1] // 4
        self._result_head, self._result_tail = results[0] // 4, results[1] // 4
        self._results, self._mask = results[5] // 4, parameters.results - 1

    def submit(self, descriptor: int, operation: int, argument: int) -> int:
        """Hand one request to the kernel. Gives the errno if it does not take it, else 0."""
        words, place = self._words, self._tail
        tail = words[place]
        _REQUEST.pack_into(self._request, 0, operation, 0, 0, descriptor, 0, 0, 0, argument, 0)
        words[place] = (tail + 1) & 0xFFFFFFFF
        if _enter(_ENTER, self.descriptor, 1, 0, 0, None, 0) == 1:
            return 0
        words[place] = tail
        return ctypes.get_errno()

    def take_result(self) -> int | None:
        """The result of the request that has ended, negative if it is an errno; None if none has ended."""
        words = self._words
        head = words[self._result_head]
        if head == words[self._result_tail]:
            return None
        result: int = words[self._results + 4 * (head & self._mask) + 2]
        words[self._result_head] = (head + 1) & 0xFFFFFFFF
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
        self._rings = _Rings()
        try:
            self._try_out()
        except BaseException:
            os.close(self._rings.descriptor)
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
        os.close(self._rings.descriptor)
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
    return OSError(number, os.strerror(number), file.name if file else None)
