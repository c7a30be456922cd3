"""Servers for the tests of the API: in this process, on a clock by hand and a disk in memory.

Most tests of a module share one and keep apart by the names of their topics. A test that needs other settings, a disk
of its own or to move the clock far starts its own with `start`.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.api.clients.transcript import Client
from topics.settings import Settings
from topics.testing.server import ServerThread

NUMBERS = count(1)
Start = Callable[..., ServerThread]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.address)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(NUMBERS)}-t"  # which no other name begins with, or is a part of


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server with these settings, which ends with the test."""
    servers: list[ServerThread] = []

    def starting(disk: Any = None, starts: bool = True, **settings: Any) -> ServerThread:
        server = ServerThread(Settings(**settings), disk=disk, starts=starts)
        servers.append(server)
        return server.start()

    yield starting
    for server in servers:
        server.close()
