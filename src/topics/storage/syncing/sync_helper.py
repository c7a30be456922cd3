"""The talk with the helper process that calls fdatasync, where the kernel has no queue for that.

`syncer.py` has the protocol and the other half.
"""

import asyncio
import errno
import os
import socket
import threading
from collections import deque

from topics.storage.processes import HelperProcess
from topics.storage.syncing import syncer
from topics.storage.syncing.ways import Done, OpenFile


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
        self._waiting: deque[tuple[OpenFile, Done | None]] = deque()  # the file, and who waits, if anybody
        self._process = HelperProcess(["-I", "-S", syncer.__file__, path])
        self._socket = self._process.socket
        self._socket.setblocking(False)
        self.kill_if_silent = self._process.kill_if_silent
        loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, file: OpenFile, done: Done) -> None:
        with self._lock:
            handed = None if file.number in self._handed else file.duplicate()
            self._handed.add(file.number)
            self._post(syncer.SYNC, file, handed, done)

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
        for _, done in waiting:
            if done is not None and not self.loop.is_closed():
                self.loop.call_soon(done, OSError(errno.EIO, "the sync helper ended before it answered"))
        self._process.end()

    def _post(self, kind: int, file: OpenFile, handed: int | None, done: Done | None) -> None:
        self._outbox.append((syncer.REQUEST.pack(kind, file.number), handed))
        self._waiting.append((file, done))
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
        answers = self._process.answers(syncer.ANSWER)
        if answers is None:
            self.end()
            return
        for (failure,) in answers:
            self._answered(failure)
        with self._lock:
            self._send()

    def _answered(self, failure: int) -> None:
        file, done = self._waiting.popleft()
        if failure:  # then the helper has let go of the file
            with self._lock:
                self._handed.discard(file.number)
        if done is not None:
            done(OSError(failure, os.strerror(failure), file.name) if failure else None)


def _close_optional(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
