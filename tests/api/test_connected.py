"""Who is connected, and ending a connection (OB3)."""

import re
from typing import Any

import pytest

from tests.api.clients.events import EVENTS, connect, follow, open_stream, watch
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import Socket
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk
from topics.testing.server import ServerThread

FIELDS = ["id", "kind", "key", "remote", "topics", "lag", "held_bytes", "age_ms"]


def connections(api: Client, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(api.get(f"/v0/connections{query}"))["connections"]
    return found


def only(api: Client) -> dict[str, Any]:
    [found] = connections(api)
    return found


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.address)


def test_every_kind_is_listed_while_it_is_open(server: ServerThread, api: Client) -> None:
    """OB3"""
    api.write("a", 1, 2)
    api.write("b", 1)
    api.create("q", type="queue")
    jobs(Worker(api, "q"), 3)
    assert connections(api) == []
    with (
        open_stream(api, watch(api, "b", "a")) as session,
        open_stream(api, "/v0/topics/a/events") as stream,
        open_stream(api, "/v0/topics/q/work?node=n&max=1") as work,
        Socket(api.address) as socket,
    ):
        for opened, frames in ((session, 4), (stream, 2), (work, 2)):
            for _ in range(frames):
                opened.next()
        socket.follow("b")
        for op in ("record", "caught_up"):
            socket.expect(op)
        server.advance(1500)
        reply = api.get("/v0/connections")
        assert list(reply.json) == ["connections", "performance"]
        found = {one["kind"]: one for one in connections(api)}
        assert all(list(one) == FIELDS for one in found.values())
        assert {kind: one["topics"] for kind, one in found.items()} == {
            "watch": ["a", "b"],
            "events": ["a"],
            "work": ["q"],
            "ws": ["b"],
        }
        assert {kind: one["lag"] for kind, one in found.items()} == {"watch": 0, "events": 0, "work": 2, "ws": 0}
        assert {(one["key"], one["held_bytes"], one["age_ms"]) for one in found.values()} == {(None, 0, 1500)}
        host, port = stream.socket.getsockname()
        assert found["events"]["remote"] == f"{host}:{port}"
        assert all(re.fullmatch(r"conn_[A-Za-z0-9_-]{16}", one["id"]) for one in found.values())
    server.until(lambda: server.server.app.slots.streams == 0)
    assert connections(api) == []


def test_the_list_comes_in_pages(server: ServerThread, api: Client) -> None:
    """OB3, CV15"""
    api.create("t")
    opened = [open_stream(api, "/v0/topics/t/events") for _ in range(5)]
    server.until(lambda: len(server.server.app.registry) == 5)
    seen: list[str] = []
    cursor = ""
    for _ in range(3):
        page = ok(api.get(f"/v0/connections?page_size=2{cursor}"))
        seen += [one["id"] for one in page["connections"]]
        cursor = f"&cursor={page.get('next_cursor', '')}"
    assert len(seen) == 5 and seen == sorted({one["id"] for one in connections(api)})
    assert cursor == "&cursor="
    refused(api.get("/v0/connections?cursor=!"), 400, "invalid_request")
    for stream in opened:
        stream.socket.close()


@pytest.mark.slow
def test_a_page_has_a_bounded_number_of_names(server: ServerThread, api: Client) -> None:
    """OB3, LM10: whatever its page_size."""
    names = [f"t{number}" for number in range(250)]
    for name in names:
        server.do(server.server.engine.put_topic(name))
    url = f"/v0/events?topics={','.join(names)}"
    opened = [open_stream(api, url) for _ in range(23)]
    first = ok(api.get("/v0/connections?page_size=1000"))
    assert len(first["connections"]) == 20
    rest = ok(api.get(f"/v0/connections?page_size=1000&cursor={first['next_cursor']}"))
    assert len(rest["connections"]) == 3 and "next_cursor" not in rest
    for stream in opened:
        stream.socket.close()


def test_a_consumer_that_does_not_read_lags_and_holds(server: ServerThread, api: Client) -> None:
    """OB3, SS19"""
    api.create("t")
    with connect(api, "/v0/topics/t/events", EVENTS, receive_buffer_bytes=4096) as stream:
        server.until(lambda: len(server.server.app.registry) == 1)
        written = 0
        while not only(api)["lag"]:
            written += 1
            api.write("t", "x" * 100_000)
        assert only(api)["held_bytes"] > 0
        assert ok(api.delete(f"/v0/connections/{only(api)['id']}")) == {"deleted": True}
        assert connections(api) == []
        assert stream.head().status == 200
        kinds = []
        while True:
            try:
                kinds.append(stream.next().kind)
            except EOFError:
                break
        assert kinds[-1] == "stream-error" and set(kinds[:-1]) <= {"record", "caught-up"}


def test_a_stream_that_is_closed_ends_with_410(server: ServerThread, api: Client) -> None:
    """OB3, SS25, SS27, LM5: its session goes as well, and comes back only to who says what it has received."""
    api.write("t", 1)
    session = watch(api, "t")
    with open_stream(api, session) as stream:
        assert stream.records(1) == [1]
        last = stream.expect("caught-up").id
        found = only(api)
        assert ok(api.delete(f"/v0/connections/{found['id']}")) == {"deleted": True}
        assert stream.expect("error").data["code"] == 410
        stream.expect_end()
        assert not stream.receive(), "the connection is closed"
    assert ok(api.delete(f"/v0/connections/{found['id']}")) == {"deleted": False}
    assert server.run(lambda: (server.server.app.slots.sessions, server.server.app.slots.streams)) == (0, 0)
    refused(api.get(session["stream_url"], EVENTS), 404, "not_found")
    api.write("t", 2)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {last}") as stream:
        assert stream.records(1) == [2]
        assert only(api)["id"] != found["id"]


def test_a_stream_of_jobs_that_is_closed_gives_its_jobs_back(server: ServerThread, api: Client) -> None:
    """OB3, WK5, SS29"""
    api.create("q", type="queue")
    jobs(Worker(api, "q"), 2)
    with open_stream(api, "/v0/topics/q/work?node=n&max=5&error_event=stream-error") as stream:
        for kind in ("comment", "job", "job"):
            stream.expect(kind)
        ok(api.delete(f"/v0/connections/{only(api)['id']}"))
        assert stream.expect("stream-error").data["code"] == 410
        stream.expect_end()
    assert Worker(api, "q").counts() == (2, 0, 0)


def test_a_socket_that_is_closed_gets_1001(server: ServerThread, api: Client) -> None:
    """OB3, WS10"""
    with Socket(api.address) as socket:
        socket.synced()
        assert ok(api.delete(f"/v0/connections/{only(api)['id']}")) == {"deleted": True}
        assert socket.message()["code"] == "closed"
        socket.expect_close(1001)
    server.until(lambda: server.server.app.slots.streams == 0)
    assert connections(api) == []


def test_only_an_admin_without_prefixes_sees_and_closes(start: Start) -> None:
    """OB3, AU6, AU8, AU14"""
    server = start(api_keys="root,r:read,half:admin:f.,rwd:read+write+delete")
    root = Client(server.address, "root")
    root.write("f.a", 1)
    with open_stream(root.with_key("r"), "/v0/topics/f.a/events"):
        server.until(lambda: len(server.server.app.registry) == 1)
        [found] = connections(root)
        assert found["key"] is None
        for key in ("r", "half", "rwd"):
            refused(root.with_key(key).get("/v0/connections"), 403, "forbidden")
            refused(root.with_key(key).delete(f"/v0/connections/{found['id']}"), 403, "forbidden")
        refused(root.with_key(None).get("/v0/connections"), 401, "unauthorized")
        assert len(connections(root)) == 1


def test_what_is_not_synced_yet_is_told_of_no_lag(start: Start) -> None:
    """OB3, G1: the list waits for what it counts."""
    disk = MemoryDisk()
    server = start(disk)
    api = Client(server.address)
    api.create("t", durability="fsync")
    with follow(api, "t") as stream, api.connect() as writer, api.connect() as asking:
        stream.expect("caught-up")
        server.run(disk.hold_syncs)
        writer.send(api.request("POST", "/v0/topics/t", {"records": [{"data": 1}]}))
        server.until(lambda: server.server.engine.state.topics["t"].log.head == 1)
        asking.send(api.request("GET", "/v0/connections"))
        server.until(lambda: server.server.app.slots.running == 2)
        server.run(disk.release_syncs)
        [found] = ok(asking.reply())["connections"]
        assert found["lag"] == 1
        assert stream.records(1) == [1]
