"""POST /v0/backup: who may ask for it, and what comes (BK1)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.clients.transcript import Client, Connection, refused, request_bytes
from tests.api.conftest import Start
from topics.backup.copying import audit
from topics.backup.places import open_place
from topics.backup.receiving import Receiver
from topics.engine.durability.shipping import Decoder, Head
from topics.settings import Settings
from topics.testing.server import ServerThread

KEYS = "root,reader:read,writer:rw+d,admin:a,acme::acme:"


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerThread]:
    with ServerThread(Settings(api_keys=KEYS)) as server:
        yield server


def parts(body: bytes) -> list[tuple[Head, bytes]]:
    return list(Decoder().feed(body))


@pytest.mark.parametrize(("key", "why"), [("reader", "admin"), ("writer", "admin"), ("acme", "every topic")])
def test_a_backup_needs_the_scope_admin_and_no_prefixes(guarded: ServerThread, key: str, why: str) -> None:
    """BK1"""
    answer = Client(guarded.address, key).ask("POST", "/v0/backup", {})
    assert why in refused(answer, 403, "forbidden")


@pytest.mark.parametrize("body", [None, {}, {"have": [], "follow": False}, {"have": ["nothing", "log-x"], "new": 1}])
def test_a_backup_is_a_stream_of_parts(guarded: ServerThread, body: dict[str, object] | None) -> None:
    """BK1, CV4"""
    Client(guarded.address, "root").write("a", 1)
    answer = Client(guarded.address, "admin").ask("POST", "/v0/backup", body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/vnd.topics.backup")
    found = parts(answer.body)
    assert [head.kind for head, _ in found][:1] == ["base"] and found[-1][0].kind == "ready"
    assert {head.kind for head, _ in found} >= {"base", "log", "ready"}
    base = json.loads(found[0][1])
    assert base["position"] == found[-1][0].position


@pytest.mark.parametrize("body", [{"have": 1}, {"have": [1]}, {"follow": "yes"}, {"have": None}, "[", []])
def test_a_body_of_the_wrong_type_is_refused(guarded: ServerThread, body: object) -> None:
    """CV19"""
    refused(Client(guarded.address, "root").ask("POST", "/v0/backup", body), 400, "invalid_request")  # type: ignore[arg-type]


def test_a_stream_that_follows_goes_on_with_the_log_until_the_server_stops(start: Start, tmp_path: Path) -> None:
    """BK1: what was written a second ago is there; a stop ends the stream, and what arrived can be audited."""
    server = start()
    client = Client(server.address)
    client.write("a", 1)
    receiver = Receiver(open_place(str(tmp_path), writes=True), "test")
    receiver.begin()
    with Connection(server.address) as connection:
        connection.send(request_bytes("POST", "/v0/backup", {"follow": True}))
        connection.read_until(b"\r\n\r\n")
        chunks = Chunks(connection)
        while not receiver.shipped.points:
            receiver.feed(chunks.take())
        for n in range(3):
            written = client.write("a", n)
            server.until(lambda: server.clock.waits)
            position = server.run(lambda: server.server.app.engine.wal.end)
            while receiver.shipped.position < position:
                server.until(lambda: server.clock.waits)
                server.advance(1000)
                receiver.feed(chunks.take())
            assert written["head_seq"] == n + 2
            assert receiver.shipped.ts <= server.clock.now_ms()
        server.start_closing()
        while data := chunks.take():
            receiver.feed(data)
    checked = audit(open_place(str(tmp_path)), receiver.shipped.point)
    assert checked.faults == [] and [account.head for account in checked.accounts] == [4]


class Chunks:
    """A chunked body as it comes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self) -> bytes:
        """The next chunk; empty at the end."""
        size = int(self._connection.read_until(b"\r\n"), 16)
        while len(self._connection.unread) < size + 2:
            assert self._connection.receive()
        data = self._connection.unread[:size]
        self._connection.unread = self._connection.unread[size + 2 :]
        return data
