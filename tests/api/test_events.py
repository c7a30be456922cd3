"""Streams without a session: one GET follows topics, and all state is in the ids of its frames."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.api.clients.events import EVENTS, Stream, connect, encoded_map, follow, http2_stream, open_stream, watch
from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from tests.api.test_watch_slow import Writer, let_pass, numbers, readers, stuff
from topics.testing.server import ServerThread


def events(api: Client, *topics: str, last: str | None = None, **query: Any) -> Stream:
    """A stream of one topic, or of several, that goes on behind the id `last`."""
    pairs = [f"{name}={quote(str(value), safe='')}" for name, value in query.items()]
    path = f"/v0/topics/{topics[0]}/events" if len(topics) == 1 else "/v0/events"
    pairs += [] if len(topics) == 1 else [f"topics={','.join(topics)}"]
    headers = [EVENTS] + ([] if last is None else [f"Last-Event-ID: {last}"])
    return open_stream(api, path, *headers, query="?" + "&".join(pairs))


def at(api: Client, **cursors: int) -> dict[str, Any]:
    """An id of a stream, decoded."""
    return {**cursors, "$epochs": {name: api.state(name)["epoch"] for name in cursors}}


def recreate(api: Client, topic: str, *data: Any) -> None:
    ok(api.delete(f"/v0/topics/{topic}"))
    api.write(topic, *data)


# --- what comes


def test_one_get_follows_a_topic_from_its_beginning(api: Client, topic: str) -> None:
    """SS28, SS30, SS7, SS8, SS9, SS11: no session, no body, no header."""
    api.write(topic, 1, 2)
    sessions = api.metrics()["watch_sessions"]
    with connect(api, f"/v0/topics/{topic}/events", "User-Agent: curl") as stream:
        head = stream.head()
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["cache-control"] == "no-store"
        record, caught_up = stream.expect("record"), stream.expect("caught-up")
        assert record.payloads == [1, 2]
        assert (record.data["from_seq"], record.data["to_seq"], record.data["head_seq"]) == (0, 2, 2)
        assert record.at == caught_up.at == at(api, **{topic: 2})
        api.write(topic, 3)
        assert stream.expect("record").at == at(api, **{topic: 3})
        assert api.metrics()["watch_sessions"] == sessions


def test_one_get_follows_several_topics(api: Client, topic: str) -> None:
    """SS28, SS14, SS30"""
    a, b = f"{topic}.a", f"{topic}.b"
    api.write(a, 1)
    api.write(b, 2)
    with open_stream(api, f"/v0/events?topics={a},{b}&topics={a}") as stream:
        frames = [stream.next() for _ in range(4)]
        assert sorted(frame.kind for frame in frames) == ["caught-up", "caught-up", "record", "record"]
        assert frames[-1].at == at(api, **{a: 1, b: 1})


def test_it_speaks_http2_as_well(api: Client, topic: str) -> None:
    """SS28, CV16"""
    api.write(topic, 1)
    with http2_stream(api, f"/v0/topics/{topic}/events") as stream:
        assert stream.expect("record").payloads == [1]
        stream.expect("caught-up")
        api.write(topic, 2)
        assert stream.expect("record").payloads == [2]


def test_the_query_says_where_to_start_and_what_to_show(api: Client, topic: str) -> None:
    """SS28, SS24, ND1"""
    records = [
        {"data": 1, "tag": "x:1", "node": "me"},
        {"data": 2, "tag": "x:2", "node": "you"},
        {"data": 3, "tag": "y:1", "meta": {"m": 1}},
        {"data": 4, "tag": "x:3", "meta": {"m": 2}},
    ]
    api.write_records(topic, *records)

    def shown(**query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with events(api, topic, **query) as stream:
            while (event := stream.next()).kind == "record":
                found += event.data["records"]
        return found

    def seqs(**query: Any) -> list[int]:
        return [record["$seq"] for record in shown(**query)]

    assert seqs() == [1, 2, 3, 4]
    assert seqs(from_seq=2) == [3, 4]
    assert seqs(tail="true") == seqs(tail=1, from_seq=2) == []
    assert seqs(tail="false", from_seq=3) == [4]
    assert seqs(node="me") == [2, 3, 4]
    assert seqs(filter="x:2") == seqs(filter='["tag","Eq","x:2"]') == [2]
    assert seqs(filter='["tag","Glob","x:*"]') == [1, 2, 4]
    assert "$tag" not in shown()[0] and shown(include_tags="true")[0]["$tag"] == "x:1"
    assert "meta" in shown()[3] and "meta" not in shown(include_meta=0)[3]
    assert "data" not in shown(include_data="false")[3] and "meta" not in shown(include_data="false")[3]
    assert seqs(consistency="strong") == seqs(consistency="eventual") == [1, 2, 3, 4]
    with open_stream(api, f"/v0/topics/{topic}/events?node=me&node=you&limit=1") as stream:
        assert stream.expect("record").payloads == [3]
        assert stream.expect("record").payloads == [4]


def test_heartbeats_come_as_asked_for(start: Start) -> None:
    """SS28, SS16"""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    with events(api, "t", heartbeat_ms=2000) as stream:
        stream.records(1)
        stream.expect("caught-up")
        stream.expect_silence(server, 2000)


BAD_QUERIES = [
    *("from_seq=", "from_seq=-1", "from_seq=1.0", "from_seq=x", f"from_seq={2**64}", "tail=yes", "tail=", "tail=TRUE"),
    *("limit=-1", "limit=many", "limit=", "heartbeat_ms=soon", "heartbeat_ms=", "heartbeat_ms=1.5"),
    *("include_tags=yes", "include_data=2", "include_meta=", "consistency=weak", "consistency="),
    *("filter=", "filter=[]", "filter=[%22tag%22,%22Eq%22]", "filter=[%22tag%22,%22Lt%22,%22x%22]", "filter=[1,2,3]"),
    *(
        "filter=[%22node%22,%22Eq%22,%22x%22]",
        "filter=[%22tag%22,%22Glob%22,%22x%22]",
        "cursor=!",
        "cursor=",
        "cursor=MQ",
    ),
    *(f"node={'n' * 129}", "&".join(f"node={n}" for n in range(257))),
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=lambda query: query[:40])
def test_a_value_that_is_none_is_refused_by_its_name(api: Client, topic: str, query: str) -> None:
    """SS28, LM8: the message has the field, the value and what is allowed; before 406 and 404."""
    field, _, value = query.partition("=")
    for path in (f"/v0/topics/{topic}/events?{query}", f"/v0/events?topics={topic}&{query}"):
        message = refused(api.get(path, "Accept: text/html"), 400, "invalid_request")
        assert field in message
        if value and field not in ("filter", "cursor", "node"):
            assert value[:39] in message and (";" in message)


@pytest.mark.parametrize("query", ["", "?topics=", "?topics=a,", "?topics=,a", "?topics=a,,b", "?topic=a"])
def test_topics_have_to_be_named(api: Client, query: str) -> None:
    """SS28"""
    assert "topics" in refused(api.get(f"/v0/events{query}", EVENTS), 400, "invalid_request")


def test_at_most_so_many_topics_are_followed(start: Start) -> None:
    """SS28, SS3, LM9"""
    api = Client(start(max_watch_topics=2).address)
    refused(api.get("/v0/events?topics=a,b,c"), 400, "invalid_request")
    refused(api.get("/v0/events?topics=a,b"), 404, "topic_not_found", {"topic": "a"})
    refused(api.get("/v0/events?topics=a,b,a,b"), 404, "topic_not_found", {"topic": "a"})


def test_an_unknown_topic_is_refused(api: Client, topic: str) -> None:
    """SS28, SS6, CV23, CV12"""
    api.create(topic)
    refused(api.get(f"/v0/topics/{topic}.none/events"), 404, "topic_not_found", {"topic": f"{topic}.none"})
    refused(api.get(f"/v0/events?topics={topic},{topic}.none"), 404, "topic_not_found", {"topic": f"{topic}.none"})
    refused(api.get("/v0/events?topics=%22%0A"), 404, "topic_not_found")
    refused(api.get(f"/v0/topics/{topic}.none/events", "Accept: text/html"), 406, "not_acceptable")
    assert api.ask("HEAD", f"/v0/topics/{topic}/events").status == 405


# --- where it goes on


def test_the_last_id_alone_says_where_to_go_on(start: Start) -> None:
    """SS28, SS15: over from_seq, tail and cursor; in a stream of other topics and after a restart, too."""
    server = start()
    api = Client(server.address)
    api.write("a", 1, 2)
    api.write("b", 1)
    with events(api, "a") as stream:
        first = stream.expect("record").id
    api.write("a", 3)
    assert first is not None
    for query in ({}, {"tail": "true"}, {"from_seq": 1}, {"cursor": encoded_map({"a": 0})}):
        with events(api, "a", last=first, **query) as stream:
            assert stream.records(1) == [3]
    with events(api, "a", cursor=first) as stream:
        assert stream.records(1) == [3]
    with events(api, "a", "b", last=first, tail="true") as stream:
        assert stream.records(1) == [3]
        assert {stream.expect("caught-up").data["topic"] for _ in range(2)} == {"a", "b"}
    with follow(api, "a", cursor=first) as stream:
        assert stream.records(1) == [3]
    with events(api, "a", last="junk") as stream:
        assert stream.records(3) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["header", "query", "http2"])
def test_the_longest_id_comes_back(start: Start, place: str) -> None:
    """SS14, SS28, SS30: as many topics as may be, with the longest names."""
    server = start()
    api = Client(server.address)
    count = 250 if place == "http2" else 256  # the client of HTTP/2 takes no longer URL
    names = [f"{number:03}".ljust(255, "n") for number in range(count)]
    for name in names:
        server.do(server.server.engine.append(name, [{"data": 1}]))
    url = f"/v0/events?topics={','.join(names)}"
    with open_stream(api, url) as stream:
        last = [stream.next() for _ in range(2 * count)][-1].id
    assert last is not None and len(last) > 170_000
    if place == "http2":
        with http2_stream(api, url, **{"last-event-id": last}) as other:
            other.expect("caught-up")
    elif place == "header":
        with open_stream(api, url, EVENTS, f"Last-Event-ID: {last}") as stream:
            stream.expect("caught-up")
    else:
        with open_stream(api, f"{url}&cursor={last}") as stream:
            stream.expect("caught-up")


def test_a_gap_is_told_when_it_goes_on(api: Client, topic: str) -> None:
    """SS28, TM13"""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2)
    with events(api, topic) as stream:
        last = stream.expect("record").id
    api.write(topic, 3, 4, 5)
    with events(api, topic, last=last) as stream:
        gap = stream.expect("tombstone")
        assert (gap.data["gap_from"], gap.data["gap_to"], gap.data["reason"]) == (3, 3, "from_seq_too_old")
        assert stream.records(2) == [4, 5]


def test_a_topic_that_went_is_told_as_long_as_another_is_left(api: Client, topic: str) -> None:
    """SS28, SS12: only one that the client has seen; the others go on."""
    a, b = f"{topic}.a", f"{topic}.b"
    api.write(a, 1)
    api.write(b, 1)
    with events(api, a, b) as stream:
        last = [stream.next() for _ in range(4)][-1].id
    ok(api.delete(f"/v0/topics/{a}"))
    api.write(b, 2)
    with events(api, a, b, last=last) as stream:
        told = {frame.kind: frame for frame in (stream.next() for _ in range(3))}
        assert told["topic-deleted"].data == {"topic": a, "head_seq": 1, "reason": "deleted"}
        assert told["record"].payloads == [2]
    resumed = f"Last-Event-ID: {last}"
    refused(api.get(f"/v0/events?topics={a},{b},{topic}.c", resumed), 404, "topic_not_found", {"topic": f"{topic}.c"})
    ok(api.delete(f"/v0/topics/{b}"))
    refused(api.get(f"/v0/events?topics={a},{b}", resumed), 404, "topic_not_found", {"topic": a})


# --- epochs


def test_an_id_of_another_instance_is_recreated_wherever_it_comes_back(start: Start) -> None:
    """SS30, SS23: with as many records as before, only the epoch tells them apart."""
    api = Client(start().address)
    api.write("t", 1, 2)
    with events(api, "t") as stream:
        last = stream.expect("record").id
    session = watch(api, "t")
    recreate(api, "t", "a", "b", "c")
    assert last is not None
    new = watch(api, "t")
    opened = [
        events(api, "t", last=last),
        events(api, "t", cursor=last),
        follow(api, "t", cursor=last),
        open_stream(api, session, EVENTS, f"Last-Event-ID: {last}"),
        open_stream(api, new, EVENTS, f"Last-Event-ID: {last}"),
        open_stream(api, new, query=f"?cursor={last}"),
    ]
    for stream in opened:
        with stream:
            assert stream.expect("tombstone").data["reason"] == "recreated"
            assert stream.records(3) == ["a", "b", "c"]


def test_an_id_of_the_present_instance_goes_on_though_the_session_may_be_in_doubt(start: Start) -> None:
    """SS30, SS15"""
    api = Client(start().address)
    api.write("t", 1)
    session = watch(api, "t")
    with open_stream(api, session, query="?epochs=true") as stream:
        last = stream.expect("record")
        assert last.at == at(api, t=1)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {last.id}", query="?epochs=true") as stream:
        assert stream.expect("caught-up").at == at(api, t=1)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {last.id}") as stream:
        assert stream.expect("caught-up").at == {"t": 1}
    other = encoded_map({"t": 1, "$epochs": {"t": at(api, t=1)["$epochs"]["t"] + 7}})
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {last.id}", query=f"?cursor={other}") as stream:
        assert stream.expect("tombstone").data["reason"] == "recreated"


@pytest.mark.parametrize("junk", [{"t": 1, "$epochs": 3}, {"t": 1, "$epochs": {"t": -1}}, {"t": {"t": 1}}, {"t": "1"}])
def test_an_id_with_epochs_that_are_none_cannot_be_read(api: Client, topic: str, junk: dict[str, Any]) -> None:
    """SS30, SS3"""
    api.write(topic, 1)
    refused(api.post("/v0/watch", {"topics": {topic: {}}, "cursor": encoded_map(junk)}), 400, "invalid_request")


# --- how it ends


def test_the_end_is_called_stream_error(start: Start) -> None:
    """SS29, SS25, SC3: always without a session, and on request with one or on a stream of jobs."""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    api.create("q", type="queue")
    session, other = watch(api, "t"), watch(api, "t")
    streams = {
        "stream-error": [
            events(api, "t"),
            open_stream(api, session, query="?error_event=stream-error"),
            open_stream(api, "/v0/topics/q/work?node=n&error_event=stream-error"),
        ],
        "error": [open_stream(api, other, query="?error_event=error"), open_stream(api, "/v0/topics/q/work?node=n")],
    }
    closing = server.start_closing()
    for name, opened in streams.items():
        for stream in opened:
            while (event := stream.next()).kind != name:
                assert event.kind in ("record", "caught-up", "comment"), event
            assert event.data["code"] == 503 and event.id is None
            stream.expect_end()
            stream.socket.close()
    closing.result()


@pytest.mark.parametrize("value", ["", "Error", "message"])
def test_an_error_event_of_another_name_is_refused(api: Client, topic: str, value: str) -> None:
    """SS29"""
    api.create(topic, type="queue")
    for path in (watch(api, topic)["stream_url"] + "?", f"/v0/topics/{topic}/work?node=n&"):
        message = refused(api.get(f"{path}error_event={value}"), 400, "invalid_request")
        assert "error_event" in message and "stream-error" in message


def test_a_stream_of_one_topic_ends_with_it(api: Client, topic: str) -> None:
    """SS28, SS12: the id it ends with is told of the next instance."""
    api.write(topic, 1)
    with events(api, topic) as stream:
        stream.records(1)
        stream.expect("caught-up")
        ok(api.delete(f"/v0/topics/{topic}"))
        last = stream.expect("topic-deleted")
        stream.expect_end()
    api.write(topic, 2)
    with events(api, topic, last=last.id) as stream:
        assert stream.expect("tombstone").data["reason"] == "recreated"
        assert stream.records(1) == [2]


# --- keys and slots


@pytest.fixture
def guarded(start: Start) -> ServerThread:
    return start(api_keys="root,w:write,feed:read:f.", max_sse_connections=3, max_sse_connections_per_key=2)


def test_keys_tokens_and_tickets(guarded: ServerThread) -> None:
    """SS28, AU10, AU18, AU6, AU8, AU13"""
    root = Client(guarded.address, "root")
    anyone, feed = root.with_key(None), root.with_key("feed")
    root.write("f.a", 1)
    root.write("b", 1)
    for path in ("/v0/topics/f.a/events", "/v0/events?topics=f.a"):
        joint = "&" if "?" in path else "?"
        refused(anyone.get(path), 401, "unauthorized")
        refused(anyone.get(f"{path}{joint}token=none"), 401, "unauthorized")
        refused(root.with_key("w").get(path), 403, "forbidden")
        ticket = ok(feed.post("/v0/ticket"))["ticket"]
        opened = [
            open_stream(feed, path),
            open_stream(anyone, f"{path}{joint}token=feed"),
        ]
        for stream in opened:
            assert stream.records(1) == [1]
            stream.socket.close()
        guarded.until(lambda: guarded.server.app.slots.streams == 0)
        with open_stream(anyone, f"{path}{joint}ticket={ticket}") as stream:
            assert stream.records(1) == [1]
        refused(anyone.get(f"{path}{joint}ticket={ticket}"), 401, "unauthorized")
        guarded.until(lambda: guarded.server.app.slots.streams == 0)
    refused(feed.get("/v0/topics/b/events"), 403, "forbidden")
    assert '"b"' in refused(feed.get("/v0/events?topics=f.a,b"), 403, "forbidden")
    refused(feed.get("/v0/events?topics=f.a,b&limit=x"), 400, "invalid_request")


def test_it_holds_a_slot_of_streams_and_none_of_sessions(guarded: ServerThread) -> None:
    """SS28, LM1, LM5"""
    root = Client(guarded.address, "root")
    root.write("t", 1)
    opened = [events(root, "t"), events(root, "t")]
    refused(root.get("/v0/topics/t/events"), 429, "throttled", {"limit": "max_sse_connections_per_key", "max": 2})
    assert guarded.run(lambda: (guarded.server.app.slots.streams, guarded.server.app.slots.sessions)) == (2, 0)
    for stream in opened:
        stream.socket.close()
    guarded.until(lambda: guarded.server.app.slots.streams == 0)
    assert guarded.run(lambda: len(guarded.server.app.registry)) == 0


def test_pressure_parks_and_refuses_it(start: Start) -> None:
    """SS28, PR7, PR6"""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    level = 1.0
    server.server.pressure.source = lambda: level
    server.run(server.server.pressure.measure)
    with connect(api, "/v0/topics/t/events") as stream:
        server.until(lambda: server.clock.waits)
        server.advance(1000)
        refused(stream.head(), 429, "throttled")
    level = 0.0
    server.run(server.server.pressure.measure)
    with events(api, "t") as stream:
        assert stream.records(1) == [1]


def test_a_stream_that_is_held_back_is_told_so(start: Start) -> None:
    """SS28, SS29, PR6"""
    server = start()
    api = Client(server.address)
    api.create("low", priority=-1)
    with events(api, "low") as stream:
        stream.expect("caught-up")
        server.pressure = 0.6
        server.until(lambda: server.server.pressure.is_deferring)
        api.write("low", 1)
        server.until(lambda: server.clock.waits == 2)
        server.advance(50)
        advice = stream.expect("stream-error")
        assert (advice.data["code"], advice.data["topics"], advice.id) == (429, ["low"], None)
        server.pressure = 0.0
        assert stream.records(1) == [1]


def test_a_consumer_blocked_for_thirty_seconds_is_closed_and_goes_on_by_its_id(start: Start) -> None:
    """SS28, SS26, SS25, LM5: nothing is lost, and nothing comes twice."""
    server = start()
    api = Client(server.address)
    api.create("t")
    writer = Writer(api, "t")
    with connect(api, "/v0/topics/t/events", EVENTS, receive_buffer_bytes=4096) as stream:
        server.until(lambda: server.server.app.registry)
        [reader] = readers(server)
        stuff(server, reader, writer)
        let_pass(server, 30_000)
        server.until(lambda: server.server.app.slots.streams == 0)
        stream.head()
        found: list[int] = []
        last = None
        while (event := stream.next()).kind != "stream-error":
            found += [number for number, _ in event.payloads] if event.kind == "record" else []
            last = event.id
        assert event.data["code"] == 408
        stream.expect_end()
    with events(api, "t", last=last) as again:
        found += numbers(again, lambda rest: len(found) + len(rest) >= writer.count)
    assert found == list(range(1, writer.count + 1))
