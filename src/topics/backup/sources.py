"""The stream of a backup, as bytes: from a server over HTTP, or from a data directory.

A directory may be one that no server uses, or that of a running server: its files are pinned as the public reader does
it, and the log is taken as far as it is valid at that moment. Whoever follows a directory looks at the log every
second, and at the files again when a checkpoint has made others.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import msgspec

from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import system_clock
from topics.client.client_config import ClientConfig
from topics.client.hooks import Hooks
from topics.client.protocol.http_parser import Request
from topics.clock import Clock
from topics.engine.durability import shipping
from topics.engine.durability.backup_stream import BASE_BYTES, BASE_MS, SHIP_MS
from topics.engine.durability.shipping import Head, LogGone, LogTail, Part, Pinned
from topics.reader import open_directory
from topics.reader.access import open_disk
from topics.storage import frames, log_files, snapshots
from topics.storage.disk import Disk

PATH = "/v0/backup"
READ_S_MAX = 300.0  # between two parts of a base: the server may have to take a checkpoint first
BEAT_S_MAX = 15.0  # between two parts of the log
CONNECT_MS = 30_000


def is_server(where: str) -> bool:
    return where.startswith(("http://", "https://"))


class ServerSource:
    """A server. `token` is the key; by default that of the environment."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._config = ClientConfig.of(
            url,
            token,
            timeout=None,
            timeout_ms=CONNECT_MS,
            retries=0,
            gzip=False,
            window_ms=0,
            verify=True,
            headers=None,
            proxy=None,
        )
        self.name = str(self._config.endpoint)
        self._clock = system_clock()
        self.is_steady = False  # a base has arrived: from now on something comes every second

    def stream(self, have: set[str], *, follows: bool) -> Iterator[bytes]:
        """The bytes that the server sends. After an error of the client, a new stream may be asked for."""
        caller = Caller.of(self._config, self._clock, Hooks(), None)
        self.is_steady = False
        body = msgspec.json.encode({"have": sorted(have), "follow": follows})
        request = Request("POST", PATH, body, (("content-type", "application/json"),))
        try:
            answer = caller.open(request)
            with closing(answer):
                while parts := answer.read(self._clock.monotonic() + (BEAT_S_MAX if self.is_steady else READ_S_MAX)):
                    yield from parts
        finally:
            caller.close()


class DirectorySource:
    """A data directory, beside a server or not. `pause` waits so many seconds."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.name = os.path.abspath(path)
        self.is_steady = True
        self._clock = clock
        self._pause = pause or threading.Event().wait
        self._names: list[str] = []  # of the snapshot that was shipped last

    def stream(self, have: set[str], *, follows: bool = False) -> Iterator[bytes]:
        """The bytes of a base; then, if it follows, of the log and of further bases, without an end."""
        while True:
            position = 0
            for part in self._base(have):
                if part.head.kind == "ready":
                    position = part.head.position
                yield from shipping.encoded(part)
                _note(part.head, have)
            if not follows:
                return
            with closing(open_disk(self.name)) as disk, closing(LogTail(disk, position)) as tail, suppress(LogGone):
                tail.position = position
                if log_files.name_of(frames.number_of(position)) in disk.names():  # after a stop it is yet to come
                    tail.hold(position)
                for part in self._log(disk, tail):
                    yield from shipping.encoded(part)
                    _note(part.head, have)

    def _base(self, have: set[str]) -> Iterator[Part]:
        with _pinned(self.name) as (pinned, tail, position):
            self._names = list(pinned.snapshot)
            known = tail.skip(have, position)
            base = pinned.inventory(position, position, self._clock.now_ms(), known)
            yield from pinned.parts(base, have, tail)

    def _log(self, disk: Disk, tail: LogTail) -> Iterator[Part]:
        """What the log gets, every second, until another base is due. LogGone: a file went before it was shipped."""
        shipped_bytes, begun = 0, self._clock.monotonic()
        while True:
            self._pause(SHIP_MS / 1000)
            now, position = self._clock.now_ms(), _end_behind(disk, tail.position)
            for part in tail.parts(position):
                shipped_bytes += part.head.size
                yield part
            yield Part(Head("beat", position=tail.position, ts=now))
            is_worth_it = shipped_bytes >= BASE_BYTES or (self._clock.monotonic() - begun) * 1000 >= BASE_MS
            if is_worth_it and snapshots.names_in(disk) != self._names:
                return


def _note(head: Head, have: set[str]) -> None:
    """The receiver has it now."""
    if head.kind == "file":
        have.add(head.identity)
    elif head.kind == "log":
        have.add(f"log-{head.position:016x}-{head.position + head.size:016x}-{head.xxh3}")


def _end_behind(disk: Disk, position: int) -> int:
    """The end of the valid frames behind `position`, which is the end of one, or the start of a log without any."""
    number, offset = frames.number_of(position), frames.offset_of(position)
    name = log_files.name_of(number)
    end = shipping.end_of_log(disk, frames.position_of(number + 1, 0))
    if frames.number_of(end) > number and frames.offset_of(end):
        return end
    try:
        file = disk.open(name, writable=False)
    except FileNotFoundError:
        if not offset:
            return position  # a log that has not begun
        raise LogGone(f"{name} was removed before it was shipped") from None
    with closing(file):
        if not any(file.read(offset, frames.FRAME_OVERHEAD_BYTES)):
            return position
        data = memoryview(file.read(0, file.size()))
    if not offset:
        try:
            _, offset = frames.decode_header(bytes(data[:4096]))
        except frames.BadHeader:
            return position  # it is being made
    found = offset
    for one in frames.scan(data, number, offset):
        if isinstance(one, frames.End):
            found = one.offset
    return max(position, frames.position_of(number, found))


@contextmanager
def _pinned(path: str) -> Iterator[tuple[Pinned, LogTail, int]]:
    with open_directory(path) as directory, closing(directory.pin()) as pin:
        start = pin.snapshot.meta.start
        flags: dict[str, tuple[str, bytes]] = {}
        for segment in pin.segments.values():
            shipping.keep_flags(segment, flags)
        position = shipping.end_of_log(pin.disk, start)
        snapshot = {name: pin.disk.open(name) for name in pin.snapshot.names}
        with closing(LogTail(pin.disk, start)) as tail:
            yield Pinned(start, snapshot, pin.segments, flags), tail, position
