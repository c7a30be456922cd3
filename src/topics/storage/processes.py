"""What the storage needs of its own process: threads and helpers that block in place of the event loop, descriptors.

A `WorkThread` does what it is given, in order. A `HelperProcess` is a Python script that this process talks to over a
socket. `SpareDescriptors` are kept back for the time when the process has no other left, and `map_file` needs none for
as long as the map lives.

This module knows a file by its descriptor, not where it lies or what is in it.
"""

import asyncio
import ctypes
import errno
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_longlong),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

RESERVE_DESCRIPTORS: Final = 12  # for the log and its checkpoints, once the process has no other left
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
RELEASED_BYTES_MIN: Final = 4 * 1024 * 1024  # a map of fewer keeps what it has
MAPPED_BYTES_MIN: Final = 1024 * 1024  # a buffer of as many is mapped
HELPER_END_SECONDS_MAX: Final = 5.0  # a helper that has not ended by then hangs in the kernel


class WorkThread:
    """One thread that does what it is given, in order. It starts with the first piece of work."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise OSError(errno.EBADF, "the disk is closed")
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, work))

    def close(self) -> None:
        """Return when all work is done."""
        self._is_closed = True
        self._executor.shutdown(wait=True)


class HelperProcess:
    """A Python script that serves this process over a socket, its stdin, and ends when the socket is closed.

    It ignores what a terminal or a service manager sends to all processes of the server: a graceful stop needs its
    helpers to the end. For that it inherits a mask of blocked signals.
    """

    asked = answered = 0  # requests; whoever talks to it counts
    _owed = -1  # `answered` at the last look, if an answer was due; else -1

    def __init__(self, arguments: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        command, nothing = [sys.executable, *arguments], subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=nothing, stderr=nothing, cwd="/")
        except OSError:
            self.socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill_if_silent(self) -> None:
        """Kill it if the answer that was due at the last call is still due: it hangs."""
        owed = self.answered if self.asked > self.answered else -1
        if owed == self._owed >= 0:
            self._process.kill()
        self._owed = owed

    def end(self) -> None:
        self.socket.close()
        try:
            self._process.wait(HELPER_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def buffer_of(size: int) -> memoryview:
    """Memory to be filled. A large one is not set to zero first: that would hold the interpreter for long (LM10)."""
    return memoryview(mmap.mmap(-1, size) if size >= MAPPED_BYTES_MIN else bytearray(size))


# --- descriptors


def map_file(descriptor: int, size: int) -> memoryview:
    """A map that holds no descriptor."""
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, trackfd=False))
    return memoryview(map_memory(descriptor, size, mmap.PROT_READ, 0)).cast("B").toreadonly()


def map_memory(descriptor: int, size: int, protection: int, offset: int) -> "ctypes.Array[ctypes.c_char]":
    """Memory of a file or of the kernel, for as long as anything refers to it; it holds no descriptor, either."""
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    area = (ctypes.c_char * size).from_address(address)  # which every view of it keeps alive
    weakref.finalize(area, _libc.munmap, address, size).atexit = False
    return area


def release(view: memoryview) -> None:
    """Give back the memory that the map behind a view takes, if it is large: what is touched again is read again."""
    area = view.obj
    if isinstance(area, mmap.mmap) and len(area) >= RELEASED_BYTES_MIN:
        area.madvise(mmap.MADV_DONTNEED)
    elif isinstance(area, ctypes.Array) and len(area) >= RELEASED_BYTES_MIN:
        _libc.madvise(ctypes.byref(area), len(area), mmap.MADV_DONTNEED)


class SpareDescriptors:
    """Descriptors kept back: what is opened for the directory takes their place when the process has no other left.

    Files are opened and closed on several threads, so a lock guards the list.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._kept: list[int] = []
        self._lock = threading.Lock()
        self.fill()

    def get(self, work: Callable[[], T]) -> T:
        """Do work that needs one more descriptor."""
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._let_one_go():
                    raise

    def fill(self) -> None:
        """Set descriptors aside until there are enough, or the process has no more."""
        if len(self._kept) < RESERVE_DESCRIPTORS:
            with self._lock, suppress(OSError):
                while len(self._kept) < RESERVE_DESCRIPTORS and self._directory >= 0:
                    self._kept.append(os.dup(self._directory))

    def close(self) -> None:
        with self._lock:
            self._directory = -1
        while self._let_one_go():
            pass

    def _let_one_go(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True
