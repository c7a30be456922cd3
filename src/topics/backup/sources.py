"""The stream of a backup, as bytes: from a server over HTTP, or from a data directory.

A directory may be one that no server uses, or that of a running server: its files are pinned as the public reader does
it, and the log is taken as far as it is valid at that moment.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import system_clock
from topics.client.client_config import ClientConfig
from topics.client.hooks import Hooks
from topics.client.protocol.http_parser import Request
from topics.clock import Clock
from topics.engine.durability import shipping
from topics.engine.durability.shipping import Head, LogTail, Part, Pinned
from topics.reader import open_directory

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
    """A data directory, beside a server or not."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock) -> None:
        self.name = os.path.abspath(path)
        self._clock = clock

    def stream(self, have: set[str]) -> Iterator[bytes]:
        with _pinned(self.name) as (pinned, tail, position):
            known = tail.skip(have, position)
            base = pinned.inventory(position, position, self._clock.now_ms(), known)
            parts = [pinned.parts(base, have), tail.parts(position)]
            for some in (*parts, iter([Part(Head("ready", position=position, ts=base.ts))])):
                for part in some:
                    yield from shipping.encoded(part)


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
