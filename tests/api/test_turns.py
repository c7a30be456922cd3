"""Requests are handled in turns of their own, whatever they came behind: never below the log, nor inside a delivery."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.api.clients.transcript import Client
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from topics.testing.server import ServerThread

REQUESTS = 600  # of one connection: more than are parsed, held or awaited at a time
CHANGING = (
    "storage/wal.py",
    "engine/ledger.py",
    "engine/durability/store.py",
    "engine/routers/forwarder.py",
    "server/live/delivery.py",
    "server/live/rounds.py",
    "server/live/sessions.py",
)


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.fixture
def callers(server: ServerThread) -> Iterator[set[str]]:
    """The modules that were on the stack of any write that was submitted, beside the way in."""
    seen: set[str] = set()
    engine = server.server.engine
    append_now = engine.append_now

    def watched(command: Any) -> Any:
        seen.update(Path(frame.filename).as_posix() for frame in traceback.extract_stack())
        return append_now(command)

    engine.append_now = watched  # type: ignore[method-assign]
    yield seen
    assert any(name.endswith(("writing/turn.py", "handlers/ws.py")) for name in seen)
    package = Path(topics.__file__).parent
    assert all((package / module).is_file() for module in CHANGING), "a module that was moved"
    below = {module for module in CHANGING for name in seen if name.endswith(f"topics/{module}")}
    assert not below, f"a request was handled within {sorted(below)}"


def pipeline(api: Client, topic: str) -> None:
    """Everything at once, then the answers, in order."""
    with api.connect() as connection:
        requests = [
            api.request("POST", f"/v0/topics/{topic}", {"records": [{"data": number}]}) for number in range(REQUESTS)
        ]
        connection.send(b"".join(requests))
        firsts = [connection.reply().json["first_seq"] for _ in requests]
    assert firsts == list(range(1, REQUESTS + 1))


def publish(api: Client, topic: str) -> None:
    with open_socket(api) as socket:
        for number in range(REQUESTS):
            socket.say("publish", topic=topic, records=[{"data": number}])
        firsts = [socket.expect("ack")["first_seq"] for _ in range(REQUESTS)]
    assert firsts == list(range(1, REQUESTS + 1))


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("write", [pipeline, publish])
def test_a_write_is_never_submitted_below_the_log(
    server: ServerThread, callers: set[str], write: Callable[[Client, str], None], durability: str
) -> None:
    """ST17"""
    api = Client(server.address)
    api.create("t", durability=durability)
    write(api, "t")


def test_a_write_behind_a_stream_that_ends_is_not_submitted_inside_the_delivery(
    server: ServerThread, callers: set[str]
) -> None:
    """ST17: the stream ends because its last topic is deleted, which a delivery pass finds."""
    api = Client(server.address)
    api.create("t")
    api.create("other")
    session = api.post("/v0/watch", {"topics": {"t": {}}}).json
    with api.connect() as connection:
        connection.send(
            api.request("GET", session["stream_url"], None, "Accept: text/event-stream")
            + api.request("POST", "/v0/topics/other", {"records": [{"data": 1}]})
        )
        connection.read_until(b"caught-up")
        api.delete("/v0/topics/t")
        connection.read_until(b"0\r\n\r\n")
        assert connection.reply().json["first_seq"] == 1
