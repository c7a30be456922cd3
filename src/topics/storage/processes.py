"""What the storage needs of its own process: threads and helpers that block in place of the event loop, descriptors.

A `WorkThread` does what it is given, in order. A `HelperProcess` is a Python script that this process talks to over a
socket; what is large passes between them through `SharedMemory`. `SpareDescriptors` are kept back for the time when the
process has no other left, and `map_file` needs none for as long as the map lives.

This module knows a file by its descriptor, not where it lies or what is in it.
"""

import asyncio
import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from topics.uring.rings import map_memory, release_memory

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

RESERVE_DESCRIPTORS: Final = 12  # for the log and its checkpoints, once the process has no other left
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
SHARED_STEP_BYTES: Final = 4 * 1024 * 1024  # put into shared memory at once
BUFFERS_MAX: Final = 512  # given to one system call
RELEASED_BYTES_MIN: Final = 4 * 1024 * 1024  # a map of fewer keeps what it has
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

    asked = answered = 0  # requests; whoever asks counts
    _unread = b""
    _owed = -1  # `answered` at the last look, if an answer was due; else -1

    def __init__(self, arguments: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are open in the helper, too, under the same numbers."""
        self.socket, theirs = socket.socketpair()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        command, nothing = [sys.executable, *arguments], subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=nothing, stderr=nothing, cwd="/", pass_fds=descriptors
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def answers(self, layout: struct.Struct) -> list[tuple[int, ...]] | None:
        """The answers that have come, each of this layout; None: it has ended. The socket must not block."""
        try:
            received = self.socket.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        if not received:
            return None
        self._unread += received
        stop = len(self._unread) // layout.size * layout.size
        answers = list(layout.iter_unpack(self._unread[:stop]))
        self._unread = self._unread[stop:]
        self.answered += len(answers)
        return answers

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


class SharedMemory:
    """Memory that this process shares with its helper: a file without a name, as large as what was put there."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is that of memory which another process has made."""
        self.descriptor = _nameless_file() if descriptor is None else descriptor

    def put(self, buffers: Sequence[Buffer]) -> Iterator[int]:
        """Put buffers there, one behind the other, in steps; gives how many bytes are there after each of them."""
        done = 0
        for some in _batches(buffers):
            left = [memoryview(buffer) for buffer in some]
            while left:
                written = os.pwritev(self.descriptor, left, done)
                done += written
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if written:
                    left[0] = left[0][written:]
            yield done

    def view(self, size: int) -> memoryview:
        """The first `size` bytes; they are there until something else is put in their place. OSError: there are fewer.

        To touch what is not there would end the process.
        """
        if os.fstat(self.descriptor).st_size < size:
            raise OSError(errno.ENODATA, f"the shared memory has fewer than {size} bytes")
        area = map_memory(self.descriptor, size, mmap.PROT_READ, 0, getattr(mmap, "MAP_POPULATE", 0))
        return memoryview(area).cast("B").toreadonly()

    def clear(self) -> None:
        """Give the memory back. No view may be in use."""
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        """Idempotent. To put something there, or to look at it, then raises OSError."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _batches(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The buffers, some at a time; a larger one is cut."""
    batch: list[Buffer] = []
    size = 0
    for buffer in buffers:
        for start in range(0, len(buffer), SHARED_STEP_BYTES):
            part = memoryview(buffer)[start : start + SHARED_STEP_BYTES]
            if size + len(part) > SHARED_STEP_BYTES or len(batch) == BUFFERS_MAX:
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += len(part)
    if batch:
        yield batch


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("topics")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# --- descriptors


def map_file(descriptor: int, size: int) -> memoryview:
    """A map that holds no descriptor."""
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, trackfd=False))
    return memoryview(map_memory(descriptor, size, mmap.PROT_READ, 0)).cast("B").toreadonly()


def release(view: memoryview) -> None:
    """Give back the memory that the map behind a view takes, if it is large: what is touched again is read again."""
    area = view.obj
    if isinstance(area, mmap.mmap) and len(area) >= RELEASED_BYTES_MIN:
        area.madvise(mmap.MADV_DONTNEED)
    elif isinstance(area, ctypes.Array) and len(area) >= RELEASED_BYTES_MIN:
        release_memory(area)


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
