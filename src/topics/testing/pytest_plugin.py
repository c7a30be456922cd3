"""A pytest plugin for programs that use topics: `topics_server` and `topics_client`.

pytest loads this module in every run on a machine that has the package, so it imports nothing heavy before a test asks
for a server.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from topics.client import Client
    from topics.testing.server import ServerProcess


@pytest.fixture(scope="session")
def topics_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ServerProcess]":
    """A real server in a process of its own, on a free port, with an empty directory. It restarts on the same port."""
    from topics.testing.server import ServerProcess

    with ServerProcess(tmp_path_factory.mktemp("topics")) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        yield server


@pytest.fixture
def topics_client(topics_server: "ServerProcess") -> "Iterator[Client]":
    """A client of `topics_server`, closed with the test."""
    from topics.client import Client

    with Client(topics_server.url, "") as client:
        yield client
