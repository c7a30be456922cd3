"""What the storage needs of its own process: threads and helpers that block in place of the event loop, descriptors.

A `WorkThread` does what it is given, in order. A `HelperProcess` is a Python script that this process talks to over a
socket. Both carry a way to call fdatasync off the loop: `SyncThread`, and `SyncProcess` with its `SyncHelper`, the talk
with one helper that runs `syncer.py`. `SpareDescriptors` are kept back for the time when the process has no other left,
and `map_file` needs none for as long as the map lives.

This module knows a file by its number and its descriptor, not where it lies or what is in it.
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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from topics.storage import syncer

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_longlong),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

RESERVE_DESCRIPTORS: Final = 12  # for the log and its checkpoints, once the process has no other left
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
HELPER_END_SECONDS_MAX: Final = 5.0  # a helper that has not ended by then hangs in the kernel


class OpenFile(Protocol):
    """What a sync needs of a file. `number` names it to a helper and is never used twice."""

    name: str
    number: int

    def duplicate(self) -> int:
        """A second descriptor of the open file, which its receiver closes."""
        ...


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


class SyncThread:
    """fdatasync on a thread of its own."""

    helper_pid: int | None = None

    def __init__(self) -> None:
        self._thread = WorkThread("topics-sync")

    async def sync(self, file: OpenFile) -> None:
        descriptor = file.duplicate()  # the file may be closed before its turn comes

        def work() -> None:
            try:
                syncer.sync_data(descriptor)
            except OSError as error:
                error.filename = file.name
                raise
            finally:
                os.close(descriptor)

        await self._thread.run(work)

    def forget(self, file: OpenFile) -> None:
        pass

    def kill_if_silent(self) -> None:
        pass

    def close(self) -> None:
        self._thread.close()


class SyncProcess:
    """fdatasync in a helper process, started when it is needed and again when it has died.

    A helper serves one event loop. If the next sync comes from another loop, the old loop has ended.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._helper: SyncHelper | None = None
        self._is_closed = False

    @property
    def helper_pid(self) -> int | None:
        return self._helper.pid if self._helper else None

    async def sync(self, file: OpenFile) -> None:
        await self._helper_for(asyncio.get_running_loop()).sync(file)

    def forget(self, file: OpenFile) -> None:
        if self._helper is not None:
            self._helper.forget(file)

    def kill_if_silent(self) -> None:
        if self._helper is not None:
            self._helper.kill_if_silent()

    def close(self) -> None:
        self._is_closed = True
        if self._helper is not None:
            self._helper.end()
            self._helper = None

    def _helper_for(self, loop: asyncio.AbstractEventLoop) -> "SyncHelper":
        if self._is_closed:
            raise OSError(errno.EBADF, "the disk is closed")
        helper = self._helper
        if helper is not None and helper.loop is not loop:
            if helper.loop.is_running():
                raise RuntimeError("a disk serves one event loop at a time")
            helper.end()
        if helper is None or helper.has_ended:
            helper = self._helper = SyncHelper(loop, self._path)
        return helper


class SyncHelper:
    """The talk with one helper process (`syncer.py` has the protocol and the other half).

    Invariant: `_waiting` has one element per request whose answer has not come, in the order of
    `_outbox` and of the socket. Files may be closed on any thread, so `_lock` guards what is sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self.loop = loop
        self.has_ended = False
        self._lock = threading.Lock()
        self._handed: set[int] = set()  # numbers of the files whose descriptor the helper has
        self._outbox: deque[tuple[bytes, int | None]] = deque()  # request, and a descriptor to hand over
        self._waiting: deque[tuple[int, asyncio.Future[int] | None]] = deque()  # file number, and who waits, if anybody
        self._unread = b""
        self._process = HelperProcess(["-I", "-S", syncer.__file__, path])
        self._socket = self._process.socket
        self._socket.setblocking(False)
        self.kill_if_silent = self._process.kill_if_silent
        loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def sync(self, file: OpenFile) -> None:
        answer = self.loop.create_future()
        with self._lock:
            handed = None if file.number in self._handed else file.duplicate()
            self._handed.add(file.number)
            self._post(syncer.SYNC, file, handed, answer)
        if failure := await answer:
            raise OSError(failure, os.strerror(failure), file.name)

    def forget(self, file: OpenFile) -> None:
        with self._lock:
            if file.number in self._handed:
                self._handed.discard(file.number)
                self._post(syncer.FORGET, file, None, None)

    def end(self) -> None:
        """End the process. Syncs still waiting fail: nobody knows if they were done."""
        with self._lock:
            if self.has_ended:
                return
            self.has_ended = True
            if not self.loop.is_closed():
                self.loop.remove_reader(self._socket.fileno())
            self._socket.close()  # which ends the process
            self._handed.clear()
            while self._outbox:
                _close_optional(self._outbox.popleft()[1])
            waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            if answer is not None and not answer.done() and not self.loop.is_closed():
                answer.set_exception(OSError(errno.EIO, "the sync helper ended before it answered"))
        self._process.end()

    def _post(self, kind: int, file: OpenFile, handed: int | None, answer: "asyncio.Future[int] | None") -> None:
        self._outbox.append((syncer.REQUEST.pack(kind, file.number), handed))
        self._waiting.append((file.number, answer))
        self._process.asked += 1
        self._send()

    def _send(self) -> None:
        """Send what the socket takes. The rest follows when the next answer shows that there is room."""
        while self._outbox and not self.has_ended:
            request, handed = self._outbox[0]
            try:
                if handed is None:
                    self._socket.send(request)
                else:
                    socket.send_fds(self._socket, [request], [handed])
            except BlockingIOError:
                return
            except OSError:
                if not self.loop.is_closed():
                    self.loop.call_soon_threadsafe(self.end)
                return
            self._outbox.popleft()
            _close_optional(handed)

    def _receive(self) -> None:
        try:
            received = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self.end()
            return
        self._unread += received
        while len(self._unread) >= syncer.ANSWER.size:
            (failure,) = syncer.ANSWER.unpack_from(self._unread)
            self._unread = self._unread[syncer.ANSWER.size :]
            self._answered(failure)
        with self._lock:
            self._send()

    def _answered(self, failure: int) -> None:
        number, answer = self._waiting.popleft()
        self._process.answered += 1
        if failure:  # then the helper has let go of the file
            with self._lock:
                self._handed.discard(number)
        if answer is not None and not answer.done():
            answer.set_result(failure)


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


def _close_optional(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


# --- descriptors


def map_file(descriptor: int, size: int) -> memoryview:
    """A map that holds no descriptor."""
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, trackfd=False))
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    area = (ctypes.c_char * size).from_address(address)  # which every view of it keeps alive
    weakref.finalize(area, _libc.munmap, address, size).atexit = False
    return memoryview(area).cast("B").toreadonly()


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
