"""Watch sessions that are gone: a client that says what it has received gets its session back (SS27)."""

from base64 import urlsafe_b64encode
from typing import Any

import pytest

from tests.api.clients.events import EVENTS, Stream, connect, encoded_map, open_stream, watch
from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk

WID = "wid_" + "A" * 22
URL = f"/v0/watch/{WID}"


def revive(api: Client, positions: dict[str, Any] | str, url: str = URL, query: str = "") -> Stream:
    last = positions if isinstance(positions, str) else encoded_map(positions)
    return open_stream(api, url, EVENTS, f"Last-Event-ID: {last}", query=query)


def refusal(api: Client, positions: dict[str, Any] | str | None, *headers: str, url: str = URL) -> Reply:
    last = positions if isinstance(positions, str | None) else encoded_map(positions)
    given = [EVENTS, *headers] + ([] if last is None else [f"Last-Event-ID: {last}"])
    with connect(api, url, *given) as stream:
        return stream.head()


def test_a_session_outlives_a_restart_of_the_server(start: Start) -> None:
    """SS27, SS15: nothing comes twice, nothing is lost; a second reconnect finds the session."""
    disk = MemoryDisk()
    server = start(disk)
    api = Client(server.address)
    api.write("a", 1, 2)
    api.write("b", 1)
    session = watch(api, "a", "b")
    with open_stream(api, session) as stream:
        last = [stream.next() for _ in range(4)][-1].id
        assert last is not None
    server = start(server.run(disk.kill))
    api = Client(server.address)
    api.write("a", 3)
    with revive(api, last, session["stream_url"]) as stream:
        assert stream.expect("record").payloads == [3]
        assert {stream.expect("caught-up").data["topic"] for _ in range(2)} == {"a", "b"}
    server.until(lambda: server.server.app.slots.streams == 0)
    assert server.run(lambda: server.server.app.slots.sessions) == 1
    api.write("b", 2)
    with open_stream(api, session) as stream:
        assert {tuple(frame.payloads) for frame in (stream.next() for _ in range(3)) if frame.kind == "record"} == {
            (2,)
        }


def test_by_cursor_and_with_the_fields_of_a_query(start: Start) -> None:
    """SS27, SS28, SS30: the options of the session are gone with it, so the URL says them."""
    server = start()
    api = Client(server.address)
    api.write_records("t", {"data": 1}, {"data": 2, "tag": "x"}, {"data": 3, "node": "me"})
    query = f"?cursor={encoded_map({'t': 1})}&include_tags=true&node=me&heartbeat_ms=2000&epochs=1"
    with open_stream(api, URL, query=query) as stream:
        frame = stream.expect("record")
        assert frame.data["records"][0]["$tag"] == "x" and frame.payloads == [2]
        assert frame.at["$epochs"] == {"t": api.state("t")["epoch"]}
        stream.expect("caught-up")
        stream.expect_silence(server, 2000)
    server.until(lambda: server.server.app.slots.streams == 0)
    with revive(api, {"t": 2}, query=f"?cursor={encoded_map({'t': 0})}") as stream:
        assert stream.expect("record").data["from_seq"] == 0, "the session is there: the lower one counts"


def test_the_last_id_goes_before_the_cursor_in_the_url(start: Start) -> None:
    """SS27: a page was opened with `cursor`, and its EventSource reconnects by itself."""
    api = Client(start().address)
    api.write("t", 1, 2, 3)
    with revive(api, {"t": 2}, query=f"?cursor={encoded_map({'t': 0})}") as stream:
        assert stream.records(1) == [3]


def test_topics_that_are_gone_are_told(api: Client, topic: str) -> None:
    """SS27, SS12"""
    api.write(topic, 1)
    with revive(api, {topic: 0, f"{topic}.gone": 7, 'bad"\n': 3}, f"/v0/watch/wid_{'B' * 22}") as stream:
        told = {frame.kind: frame for frame in (stream.next() for _ in range(3))}
        assert told["topic-deleted"].data == {"topic": f"{topic}.gone", "head_seq": 7, "reason": "deleted"}
        assert told["record"].payloads == [1]
        assert set(told["record"].at) == {topic, f"{topic}.gone"}


def test_a_topic_of_another_epoch_is_recreated(api: Client, topic: str) -> None:
    """SS27, SS30"""
    api.write(topic, 1, 2)
    epoch = api.state(topic)["epoch"]
    with revive(api, {topic: 2, "$epochs": {topic: epoch + 1}}, f"/v0/watch/wid_{'C' * 22}") as stream:
        assert stream.expect("tombstone").data["reason"] == "recreated"
        assert stream.records(2) == [1, 2]


def test_the_order_of_refusals(start: Start) -> None:
    """SS27, SS6, AU12"""
    server = start(api_keys="root,w:write,feed:read:f.", max_watch_sessions=1, max_watch_topics=2)
    root = Client(server.address, "root")
    anyone, writer, feed = root.with_key(None), root.with_key("w"), root.with_key("feed")
    root.write("f.a", 1)
    root.write("b", 1)
    both = {"f.a": 1, "b": 1}
    opaque = urlsafe_b64encode(b"\x00" * 24).decode()
    html = "Accept: text/html"
    with connect(anyone, URL, html) as stream:
        refused(stream.head(), 406, "not_acceptable")
    for junk in (None, "", "junk", opaque, "W10"):
        for client in (anyone, root, writer):
            refused(refusal(client, junk), 404, "not_found")
    for url in ("/v0/watch/x", f"{URL}A", f"/v0/watch/sid_{'A' * 22}"):
        refused(refusal(root, both, url=url), 404, "not_found")
    refused(refusal(anyone, both), 401, "unauthorized")
    refused(refusal(root.with_key("none"), both), 401, "unauthorized")
    refused(refusal(writer, both), 403, "forbidden")
    assert '"b"' in refused(refusal(feed, both), 403, "forbidden")
    refused(refusal(feed, {"f.none": 1, "b": 1}), 403, "forbidden")
    refused(refusal(feed, {"f.none": 1}, url=f"{URL}?limit=x"), 400, "invalid_request")
    refused(refusal(feed, {"f.a": 1, "f.b": 1, "f.c": 1}), 400, "invalid_request")
    refused(refusal(feed, {"f.none": 1}), 404, "topic_not_found")
    refused(refusal(feed, {}), 404, "not_found")
    watch(root, "b")
    refused(refusal(feed, {"f.a": 1}), 429, "throttled", {"limit": "max_watch_sessions", "max": 1})
    assert server.run(lambda: (server.server.app.slots.sessions, server.server.app.slots.streams)) == (1, 0)


def test_the_session_belongs_to_the_key_that_revived_it(start: Start) -> None:
    """SS27, AU12, AU18: a ticket stands for the key."""
    server = start(api_keys="root,feed:read:f.")
    root = Client(server.address, "root")
    anyone, feed = root.with_key(None), root.with_key("feed")
    root.write("f.a", 1)
    ticket = ok(feed.post("/v0/ticket"))["ticket"]
    with revive(anyone, {"f.a": 0}, query=f"?ticket={ticket}") as stream:
        assert stream.records(1) == [1]
        refused(refusal(root, {"f.a": 0}), 401, "unauthorized")
        with revive(feed, {"f.a": 0}) as newer:
            stream.expect("caught-up")
            assert stream.expect("error").data["code"] == 409
            assert newer.records(1) == [1]


def test_a_stream_that_finds_no_slot_leaves_no_session(start: Start) -> None:
    """SS27, LM5"""
    server = start(max_sse_connections=1)
    api = Client(server.address)
    api.write("t", 1)
    with open_stream(api, "/v0/topics/t/events"):
        refused(refusal(api, {"t": 0}), 429, "throttled")
        assert server.run(lambda: server.server.app.slots.sessions) == 0


def test_two_that_revive_one_session_make_one(start: Start) -> None:
    """SS27, SS22, LM2: both wait for the log, as long as syncs are held."""
    disk = MemoryDisk()
    server = start(disk)
    api = Client(server.address)
    api.create("t", durability="fsync")
    api.write("t", 1)
    server.run(disk.hold_syncs)
    with api.connect() as writer:
        writer.send(api.request("POST", "/v0/topics/t", {"records": [{"data": 2}]}))
        server.until(lambda: server.server.engine.state.topics["t"].log.head == 2)
        last = f"Last-Event-ID: {encoded_map({'t': 0})}"
        with connect(api, URL, EVENTS, last) as one, connect(api, URL, EVENTS, last) as two:
            server.until(lambda: server.server.app.slots.running == 3)
            server.run(disk.release_syncs)
            streams = [one, two]
            for stream in streams:
                assert stream.head().status == 200
            server.until(lambda: server.server.app.slots.streams == 1)
            assert server.run(lambda: server.server.app.slots.sessions) == 1
            ends = []
            for stream in streams:
                event = stream.next()
                while event.kind == "record":
                    event = stream.next()
                ends.append(event.kind)
            assert sorted(ends) == ["caught-up", "error"]


@pytest.mark.parametrize("place", ["header", "query"])
def test_a_session_that_expired_is_revived(start: Start, place: str) -> None:
    """SS27, SS5"""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    session = watch(api, "t")
    server.advance(300_001)
    last = encoded_map({"t": 1})
    refused(refusal(api, None, url=session["stream_url"]), 404, "not_found")
    api.write("t", 2)
    query, headers = ("", [f"Last-Event-ID: {last}"]) if place == "header" else (f"?cursor={last}", [])
    with open_stream(api, session, EVENTS, *headers, query=query) as stream:
        assert stream.records(1) == [2]
