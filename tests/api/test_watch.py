"""Watch sessions: creating one, and who may open its stream."""

import re
from typing import Any

import pytest

from tests.api.clients.events import EVENTS, connect, encoded, encoded_map, follow, open_stream, watch
from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from topics.testing.server import ServerThread


def test_a_session_tells_where_each_topic_starts(api: Client, topic: str) -> None:
    """SS2, SS4, TP16, CV11"""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2, 3)
    reply = api.post("/v0/watch", {"topics": {topic: {"from_seq": 2}}})
    answer = ok(reply, performance=["server_total_ms"])
    assert list(reply.json) == ["wid", "stream_url", "session_ttl_ms", "topics", "performance"]
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", answer["wid"])
    assert answer["stream_url"] == f"/v0/watch/{answer['wid']}"
    assert answer["session_ttl_ms"] == 300_000
    epoch = api.state(topic)["epoch"]
    assert answer["topics"] == {topic: {"epoch": epoch, "from_seq": 2, "head_seq": 3, "earliest_seq": 2}}


def test_wids_are_not_repeated(api: Client, topic: str) -> None:
    """SS4"""
    api.create(topic)
    assert len({watch(api, topic)["wid"] for _ in range(20)}) == 20


def test_tail_starts_at_the_head_and_a_cursor_goes_before_both(api: Client, topic: str) -> None:
    """SS1, SS2"""
    for name in (f"{topic}.a", f"{topic}.b", f"{topic}.c", f"{topic}.d"):
        api.write(name, 1, 2, 3)
    answer = watch(
        api,
        topics={
            f"{topic}.a": {"tail": True},
            f"{topic}.b": {"tail": True, "from_seq": 1},
            f"{topic}.c": {"tail": True, "from_seq": 1},
            f"{topic}.d": {"from_seq": 1},
        },
        cursor=encoded_map({f"{topic}.c": 2, f"{topic}.d": 0, "elsewhere": 5}),
    )
    assert [one["from_seq"] for one in answer["topics"].values()] == [3, 3, 2, 0]


@pytest.mark.parametrize("pad", ["", "="])
def test_a_cursor_is_taken_in_any_spelling_of_base64(api: Client, topic: str, pad: str) -> None:
    """SS1, SS14"""
    api.write(topic, 1, 2)
    text = encoded_map({topic: 1, "?>~~": 3}).replace("-", "+").replace("_", "/")
    text += pad * (-len(text) % 4)
    assert watch(api, topic, cursor=text)["topics"][topic]["from_seq"] == 1


BAD_BODIES: list[tuple[str, Any]] = [
    ("no topics", {}),
    ("an empty map", {"topics": {}}),
    ("topics is null", {"topics": None}),
    ("topics is a list", {"topics": ["a"]}),
    ("options are null", {"topics": {"a": None}}),
    ("a negative cursor", {"topics": {"a": {"from_seq": -1}}}),
    ("a cursor that is no number", {"topics": {"a": {"from_seq": "1"}}}),
    ("a cursor above 2^64-1", {"topics": {"a": {"from_seq": 2**64}}}),
    ("tail is no flag", {"topics": {"a": {"tail": 1}}}),
    ("an unknown consistency", {"topics": {"a": {}}, "consistency": "weak"}),
    ("a null consistency", {"topics": {"a": {}}, "consistency": None}),
    ("a null limit", {"topics": {"a": {}}, "limit": None}),
    ("a negative limit", {"topics": {"a": {}}, "limit": -1}),
    ("a fractional heartbeat", {"topics": {"a": {}}, "heartbeat_ms": 1.5}),
    ("a node that is a number", {"topics": {"a": {}}, "node": 1}),
    ("a cursor that is no base64", {"topics": {"a": {}}, "cursor": "!"}),
    ("a cursor that is no map", {"topics": {"a": {}}, "cursor": "MQ"}),
    ("a cursor with a bad seq", {"topics": {"a": {}}, "cursor": encoded_map({"a": -1})}),
    ("a cursor beyond all seqs", {"topics": {"a": {}}, "cursor": encoded_map({"a": 2**64})}),
    ("a filter that is none", {"topics": {"a": {}}, "filter": ["node", "Eq", "x"]}),
]


@pytest.mark.parametrize(("what", "body"), BAD_BODIES, ids=[what for what, _ in BAD_BODIES])
def test_a_body_that_makes_no_sense_is_refused(api: Client, what: str, body: Any) -> None:
    """SS1, SS3, CV18, CV19"""
    before = api.metrics()["watch_sessions"]
    refused(api.post("/v0/watch", body), 400, "invalid_request")
    assert api.metrics()["watch_sessions"] == before


def test_null_means_absent_where_it_may(api: Client, topic: str) -> None:
    """CV19, CV4"""
    api.create(topic)
    watch(api, topic, node=None, cursor=None, filter=None, unknown={"x": 1})


def test_a_session_has_a_bounded_number_of_topics(start: Start) -> None:
    """SS3"""
    api = Client(start(max_watch_topics=2).address)
    for name in ("a", "b", "c"):
        api.create(name)
    assert set(watch(api, "a", "b")["topics"]) == {"a", "b"}
    refused(api.post("/v0/watch", {"topics": {"a": {}, "b": {}, "c": {}}}), 400, "invalid_request")


def test_an_unknown_topic_is_refused_or_left_out(api: Client, topic: str) -> None:
    """SS3"""
    api.create(topic)
    body = {"topics": {topic: {}, f"{topic}.absent": {}}}
    refused(api.post("/v0/watch", body), 404, "topic_not_found", {"topic": f"{topic}.absent"})
    assert list(ok(api.post("/v0/watch?lenient=true", body))["topics"]) == [topic]
    lonely = ok(api.post("/v0/watch?lenient=1", {"topics": {"not a name": {}}}))
    assert lonely["topics"] == {}
    with open_stream(api, lonely) as stream:
        stream.expect_end()


def test_watching_creates_nothing_and_is_no_read(api: Client, topic: str) -> None:
    """SS3, PR2"""
    refused(api.post("/v0/watch", {"topics": {topic: {}}}), 404, "topic_not_found")
    assert api.get(f"/v0/topics/{topic}").status == 404
    api.create(topic)
    watch(api, topic)
    assert api.state(topic)["last_read_ts"] is None


def test_a_key_watches_only_what_it_may_name(start: Start) -> None:
    """AU8, AU6"""
    server = start(api_keys="root,mine:read:mine.,w:write")
    root = Client(server.address, "root")
    for name in ("mine.a", "other"):
        root.create(name)
    mine = root.with_key("mine")
    watch(mine, "mine.a")
    refused(mine.post("/v0/watch", {"topics": {"mine.a": {}, "other": {}}}), 403, "forbidden")
    refused(root.with_key("w").post("/v0/watch", {"topics": {"other": {}}}), 403, "forbidden")
    refused(root.with_key(None).post("/v0/watch", {"topics": {"other": {}}}), 401, "unauthorized")


def test_there_are_as_many_sessions_as_there_may_be(start: Start) -> None:
    """LM1, LM2, SS5: one that has expired makes room."""
    server = start(max_watch_sessions=2)
    api = Client(server.address)
    api.create("t")
    watch(api, "t")
    watch(api, "t")
    detail = {"limit": "max_watch_sessions", "max": 2}
    refused(api.post("/v0/watch", {"topics": {"t": {}}}), 429, "throttled", detail)
    refused(api.post("/v0/watch", {"topics": {"absent": {}}}), 404, "topic_not_found")
    server.advance(300_001)
    watch(api, "t")
    assert api.metrics()["watch_sessions"] == 1


# --- opening the stream


def test_the_stream_is_refused_in_the_order_of_the_contract(start: Start) -> None:
    """SS6, AU12, ER2"""
    server = start(api_keys="a,b,c:write", max_sse_connections=1)
    api = Client(server.address, "a")
    api.create("t")
    session, other = watch(api, "t"), watch(api, "t")
    nobody, stranger = api.with_key(None), api.with_key("b")
    json_only = "Accept: application/json"
    for asker in (nobody, api.with_key("wrong"), stranger, api):
        refused(asker.get(session["stream_url"], json_only), 406, "not_acceptable")
        refused(asker.get("/v0/watch/wid_unknown", json_only), 406, "not_acceptable")
        refused(asker.get("/v0/watch/wid_unknown"), 404, "not_found")
        refused(asker.get("/v0/watch/x%20y", EVENTS), 404, "not_found")
    with open_stream(api, other):
        for asker in (nobody, api.with_key("wrong"), stranger, api.with_key("c")):
            reply = asker.get(session["stream_url"])
            refused(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        detail = {"limit": "max_sse_connections", "max": 1}
        refused(api.get(session["stream_url"]), 429, "throttled", detail)
    server.until(lambda: server.server.app.slots.streams == 0)
    open_stream(api, session).socket.close()


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("Accept: text/event-stream", 200),
        ("Accept: application/json, Text/Event-Stream;q=0.5", 200),
        ("Accept: */*", 200),
        ("Accept: text/html, */*;q=0.1", 200),
        ("X-Nothing: 1", 200),
        ("Accept: text/html", 406),
        ("Accept: text/*", 406),
    ],
)
def test_what_accept_may_say(api: Client, topic: str, accept: str, status: int) -> None:
    """SS6"""
    api.create(topic)
    with connect(api, watch(api, topic), accept) as stream:
        assert stream.head().status == status


def test_the_key_may_come_in_the_query(start: Start) -> None:
    """AU10, AU12"""
    server = start(api_keys="a+/ b,other")
    api = Client(server.address, "a+/ b")
    api.write("t", 1)
    session = watch(api, "t")
    nobody = api.with_key(None)
    open_stream(nobody, session, query="?token=a%2B%2F+b&token=other").socket.close()
    open_stream(nobody, session, query="?x=1&token=a%2B/%20b").socket.close()
    refused(nobody.get(session["stream_url"] + "?token=other&token=a%2B%2F+b"), 401, "unauthorized")
    refused(nobody.get(session["stream_url"] + "?token="), 401, "unauthorized")
    headed = api.with_key("other")
    refused(headed.get(session["stream_url"] + "?token=a%2B%2F+b"), 401, "unauthorized")
    refused(nobody.post("/v0/watch?token=other", {"topics": {"t": {}}}), 401, "unauthorized")


def test_without_auth_the_wid_alone_opens_a_stream(api: Client, topic: str) -> None:
    """AU12"""
    api.create(topic)
    open_stream(api.with_key("anything"), watch(api, topic)).socket.close()


def test_head_and_other_methods_are_refused(api: Client, topic: str) -> None:
    """CV23, ER3"""
    api.create(topic)
    url = watch(api, topic)["stream_url"]
    for method in ("HEAD", "POST", "DELETE", "OPTIONS"):
        reply = api.ask(method, url)
        assert (reply.status, reply.headers["allow"]) == (405, "GET")
    assert api.get("/v0/watch").status == 405


def test_a_session_lives_five_minutes_without_a_stream(start: Start) -> None:
    """SS5: counted from its creation, or from the end of its last stream; never while one is open."""
    server = start()
    api = Client(server.address)
    api.create("t")
    fresh, used = watch(api, "t"), watch(api, "t")
    server.advance(299_999)
    with open_stream(api, used) as stream:
        stream.expect("caught-up")
        server.advance(600_000)
        refused(api.get(fresh["stream_url"]), 404, "not_found")
        assert api.metrics()["watch_sessions"] == 1
        api.write("t", 1)
        stream.expect("comment")
        assert stream.expect("record").payloads == [1]
    server.until(lambda: server.server.app.slots.streams == 0)
    server.advance(299_999)
    open_stream(api, used).socket.close()
    server.until(lambda: server.server.app.slots.streams == 0)
    server.advance(300_000)
    refused(api.get(used["stream_url"]), 404, "not_found")
    assert api.metrics()["watch_sessions"] == 0


def test_streams_count_for_the_key_of_their_session_and_hold_no_request_slot(start: Start) -> None:
    """LM5, LM1"""
    server = start(api_keys="a,b", max_sse_connections_per_key=2, max_inflight_per_key=1)
    api = Client(server.address, "a")
    api.create("t")
    streams = [follow(api, "t") for _ in range(2)]
    third = watch(api, "t")
    detail = {"limit": "max_sse_connections_per_key", "max": 2}
    refused(api.get(third["stream_url"]), 429, "throttled", detail)
    follow(api.with_key("b"), "t").socket.close()
    assert api.metrics()["sse_connections"] in (2, 3)
    streams.pop().socket.close()
    server.until(lambda: server.server.app.slots.streams == 1)
    streams.append(open_stream(api, third))
    for stream in streams:
        stream.socket.close()
    server.until(lambda: server.server.app.slots.streams == 0)
    assert api.metrics()["sse_connections"] == 0


def test_a_second_stream_of_a_session_needs_no_second_slot(start: Start) -> None:
    """SS22, LM1"""
    server = start(max_sse_connections=1)
    api = Client(server.address)
    api.create("t")
    session = watch(api, "t")
    with open_stream(api, session) as first, open_stream(api, session) as second:
        first.expect("caught-up")
        assert first.expect("error").data["code"] == 409
        first.expect_end()
        second.expect("caught-up")
        assert server.run(lambda: server.server.app.slots.streams) == 1


def test_watching_is_refused_at_the_top_of_pressure(start: Start) -> None:
    """PR7"""
    server = start()
    api = Client(server.address)
    api.create("t")
    session = watch(api, "t")
    server.pressure = 1.0
    server.until(lambda: server.server.pressure.is_refusing)
    for request in (
        api.request("POST", "/v0/watch", {"topics": {"t": {}}}),
        api.request("GET", session["stream_url"], None, EVENTS),
    ):
        with api.connect() as connection:
            connection.send(request)
            server.until(lambda: server.clock.waits == 1)
            server.advance(1000)
            refused(connection.reply(), 429, "throttled")
    refused(api.post("/v0/watch", {"topics": {"absent": {}}}), 404, "topic_not_found")
    refused(api.get("/v0/watch/wid_unknown"), 404, "not_found")


def test_a_stream_that_is_parked_opens_when_the_pressure_falls(start: Start) -> None:
    """PR7"""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    session = watch(api, "t")
    server.pressure = 1.0
    server.until(lambda: server.server.pressure.is_refusing)
    with connect(api, session) as stream:
        server.until(lambda: server.clock.waits == 1)
        server.pressure = 0.0
        assert stream.head().status == 200
        assert stream.expect("record").payloads == [1]


def test_no_stream_is_opened_before_the_server_is_ready(start: Start) -> None:
    """HM2, SC3"""
    server = start(starts=False)
    api = Client(server.address)
    refused(api.get("/v0/watch/wid_x", EVENTS), 503, "not_ready")
    refused(api.post("/v0/watch", {"topics": {"t": {}}}), 503, "not_ready")
    server.recover()


def test_ids_of_other_topics_are_ignored_and_create_nothing(server: ServerThread, api: Client, topic: str) -> None:
    """SS15"""
    api.write(topic, 1)
    session = watch(api, topic, cursor=encoded(elsewhere=3))
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {encoded(nowhere=1)}") as stream:
        assert stream.expect("record").payloads == [1]
    assert api.get("/v0/topics/elsewhere").status == api.get("/v0/topics/nowhere").status == 404
