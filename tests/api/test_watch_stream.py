"""The SSE stream of a session: frames, ids, resuming, deletion, and its end."""

import json
from typing import Any

import pytest

from tests.api.clients.events import (
    EVENTS,
    connect,
    decoded,
    encoded_map,
    follow,
    http2_stream,
    open_stream,
    watch,
)
from tests.api.clients.transcript import Client, ok, tight
from tests.api.conftest import Start
from topics.testing.server import ServerThread

ODD = '{"b":1.0,"a":12345678901234567890,"b":1e400}'


def resume(api: Client, session: dict[str, Any], positions: dict[str, int]) -> Any:
    return open_stream(api, session, EVENTS, f"Last-Event-ID: {encoded_map(positions)}")


# --- the shape of a stream


def test_a_stream_is_these_bytes(start: Start) -> None:
    """SS7, SS8, SS9, SS11, SS14, CV5"""
    server = start()
    api = Client(server.address)
    api.write("jobs", 1)
    with api.connect() as connection:
        connection.send(api.request("GET", watch(api, "jobs")["stream_url"], None, EVENTS))
        connection.read_until(b"\r\n\r\n")
        ts = server.clock.now_ms()
        frames = [
            b"retry: 2000\n\n",
            b'id: eyJqb2JzIjoxfQ\nevent: record\ndata: {"topic":"jobs","records":[{"$seq":1,"$ts":%d,"data":1}],'
            b'"from_seq":0,"to_seq":1,"head_seq":1}\n\n' % ts,
            b'id: eyJqb2JzIjoxfQ\nevent: caught-up\ndata: {"topic":"jobs","head_seq":1}\n\n',
        ]
        expected = b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames)
        assert connection.read_exactly(len(expected)) == expected


def test_the_headers_are_those_of_an_event_stream(api: Client, topic: str) -> None:
    """SS7, CV7"""
    api.create(topic)
    with connect(api, watch(api, topic), EVENTS, "Accept-Encoding: gzip") as stream:
        headers = stream.head().headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "keep-alive"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers and "content-length" not in headers


def test_the_same_stream_over_http2(api: Client, topic: str) -> None:
    """CV16, SS7, SS9: without connection-level headers."""
    api.write(topic, 1, 2)
    with http2_stream(api, watch(api, topic)) as stream:
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store" and headers["x-accel-buffering"] == "no"
        assert "connection" not in headers and "transfer-encoding" not in headers
        assert stream.expect("record").payloads == [1, 2]
        assert stream.expect("caught-up").at == {topic: 2}
        api.write(topic, 3)
        assert stream.expect("record").payloads == [3]
        api.delete(f"/v0/topics/{topic}")
        assert stream.expect("topic-deleted").data == {"topic": topic, "head_seq": 3, "reason": "deleted"}
        with pytest.raises(EOFError):
            stream.next()


def test_a_backlog_within_the_limits_is_one_frame(api: Client, topic: str) -> None:
    """SS9, SS11: and a larger one as many as it takes, with one caught-up at the end."""
    api.write(topic, *range(1, 257))
    with follow(api, topic) as stream:
        frame = stream.expect("record")
        assert (frame.data["from_seq"], frame.data["to_seq"], frame.data["head_seq"]) == (0, 256, 256)
        assert len(frame.payloads) == 256
        assert stream.expect("caught-up").data == {"topic": topic, "head_seq": 256}
    with follow(api, topic, limit=100) as stream:
        frames = [stream.expect("record") for _ in range(3)]
        assert [(one.data["from_seq"], one.data["to_seq"]) for one in frames] == [(0, 100), (100, 200), (200, 256)]
        assert [one.at[topic] for one in frames] == [100, 200, 256]
        stream.expect("caught-up")


def test_frames_keep_their_byte_budget_but_for_a_single_record(api: Client, topic: str) -> None:
    """LM6, SS1"""
    api.write(topic, "x" * 98, "y" * 98, "z" * 298, "w" * 98)
    with follow(api, topic, max_batch_bytes=200) as stream:
        assert [len(stream.expect("record").payloads) for _ in range(3)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [({"limit": 0}, [256, 44]), ({"limit": 10**30}, [300]), ({}, [256, 44]), ({"max_batch_bytes": 0}, [256, 44])],
    ids=str,
)
def test_limits_have_defaults_and_clamps(api: Client, topic: str, fields: dict[str, int], sizes: list[int]) -> None:
    """SS1, CV18"""
    api.write(topic, *range(300))
    with follow(api, topic, **fields) as stream:
        assert [len(stream.expect("record").payloads) for _ in sizes] == sizes
        stream.expect("caught-up")


def test_the_default_byte_budget_is_a_quarter_of_a_mebibyte(api: Client, topic: str) -> None:
    """SS1"""
    api.write(topic, *["x" * 65534] * 5)
    with follow(api, topic) as stream:
        assert [len(stream.expect("record").payloads) for _ in range(2)] == [4, 1]


def test_what_is_written_later_is_pushed_without_another_caught_up(start: Start) -> None:
    """SS9, SS11, SS8"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t") as stream:
        assert stream.expect("caught-up").data == {"topic": "t", "head_seq": 0}
        for n in range(1, 4):
            api.write("t", n)
            frame = stream.expect("record")
            assert (frame.payloads, frame.data["from_seq"], frame.data["to_seq"]) == ([n], n - 1, n)
        stream.expect_silence(server)


def test_a_later_backlog_ends_with_another_caught_up(start: Start) -> None:
    """SS11: a read that left something behind makes one due."""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t", limit=2) as stream:
        stream.expect("caught-up")
        api.write("t", 1, 2)
        stream.expect("record")
        api.write("t", 3, 4, 5)
        assert [stream.expect("record").payloads for _ in range(2)] == [[3, 4], [5]]
        assert stream.expect("caught-up").data["head_seq"] == 5
        stream.expect_silence(server)


def test_several_topics_share_a_stream_and_every_id_has_all_of_them(api: Client, topic: str) -> None:
    """SS8, SS14"""
    a, b = f"{topic}.a", f"{topic}.b"
    api.write(a, 1, 2)
    api.create(b)
    with follow(api, a, b) as stream:
        events = [stream.next() for _ in range(3)]
        assert {(one.kind, one.data["topic"]) for one in events} == {("record", a), ("caught-up", a), ("caught-up", b)}
        assert events[-1].at == {a: 2, b: 0}
        api.write(b, 1)
        frame = stream.expect("record")
        assert (frame.data["topic"], frame.at) == (b, {a: 2, b: 1})


@pytest.mark.slow
def test_ids_of_many_topics_are_complete_and_accepted_back(start: Start) -> None:
    """SS14, SS15: whatever their length."""
    server = start()
    api = Client(server.address)
    names = [f"{n:03}-" + "n" * 240 for n in range(256)]
    for name in names:
        api.write(name, 1, 2)
    session = watch(api, *names)
    with open_stream(api, session) as stream:
        events = [stream.next() for _ in range(512)]
        assert decoded(events[-1].id or "") == dict.fromkeys(names, 2)
    server.until(lambda: server.server.app.slots.streams == 0)
    first = events[0].at
    assert sum(first.values()) == 2
    with resume(api, session, first) as stream:
        got = [stream.next() for _ in range(511)]
        assert sum(one.kind == "record" for one in got) == 255
    assert watch(api, *names, cursor=encoded_map(first))["topics"][names[0]]["from_seq"] == 2


# --- what is left out


def test_own_and_deleted_records_are_silent_and_move_the_cursor(start: Start) -> None:
    """SS17, SS9, ND1, ND2: no frame for a batch filtered to nothing."""
    server = start()
    api = Client(server.address)
    api.create("t")
    session = watch(api, "t", node=["me", "my-twin"])
    with open_stream(api, session) as stream:
        stream.expect("caught-up")
        api.write("t", 1, node="me")
        api.write("t", 2, node="my-twin")
        stream.expect_silence(server)
        api.write("t", 3, node="you")
        frame = stream.expect("record")
        assert (frame.payloads, frame.data["from_seq"], frame.at) == ([3], 2, {"t": 3})
        api.write("t", 4, node="me")
        stream.expect_silence(server)
    server.until(lambda: server.server.app.slots.streams == 0)
    api.write("t", 5)
    with open_stream(api, session) as stream:
        frame = stream.expect("record")
        assert (frame.payloads, frame.data["from_seq"]) == ([5], 4)


def test_each_reader_of_a_topic_misses_only_its_own_records(api: Client, topic: str) -> None:
    """ND1, ND3, SS21"""
    api.create(topic)
    streams = {node: follow(api, topic, node=node) for node in ("a", "b", "c")}
    for stream in streams.values():
        stream.expect("caught-up")
    api.write_records(topic, {"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3})
    for node, expected in (("a", [2, 3]), ("b", [1, 3]), ("c", [1, 2, 3])):
        frame = streams[node].expect("record")
        assert (frame.payloads, frame.at) == (expected, {topic: 3})
    api.put(f"/v0/topics/{topic}", {"dedupe_node": False})
    api.write(topic, 4, node="a")
    for stream in streams.values():
        assert stream.expect("record").payloads == [4]
        stream.socket.close()


def test_a_filter_lets_only_matching_tags_through(api: Client, topic: str) -> None:
    """DL2, SS17: as in a diff."""
    records = [{"data": n, "tag": tag} for n, tag in enumerate(["a:1", "b", "a:2", "a:1"])]
    api.write_records(topic, *records, {"data": 4})
    for match, expected in (("a:1", [0, 3]), (["tag", "Glob", "a:*"], [0, 2, 3]), (["tag", "Eq", "b"], [1])):
        with follow(api, topic, filter=match) as stream:
            frame = stream.expect("record")
            assert (frame.payloads, frame.at) == (expected, {topic: 5})
            assert stream.expect("caught-up").data["head_seq"] == 5


def test_projections(api: Client, topic: str) -> None:
    """SS24, SS1, CV9"""
    api.write_records(topic, {"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"m": 1}})
    always = {"$seq", "$ts", "$node"}
    for fields, shown in (
        ({}, {"data", "meta"}),
        ({"include_tags": True}, {"data", "meta", "$tag"}),
        ({"include_meta": False}, {"data"}),
        ({"include_data": False}, set()),
        ({"include_data": False, "include_tags": True}, {"$tag"}),
    ):
        with follow(api, topic, **fields) as stream:
            [record] = stream.expect("record").data["records"]
            assert set(record) == always | shown, fields


@pytest.mark.parametrize("text", [ODD, ODD.replace(",", ",\r\n"), '{"a":\n[1,\n2]}'])
def test_data_comes_as_written_on_one_line(api: Client, topic: str, text: str) -> None:
    """S18, CV6, CV26"""
    body = f'{{"records":[{{"data":{text}}}]}}'
    assert api.post(f"/v0/topics/{topic}", body).status == 201
    stored = text if "\n" not in text else text.replace("\r", "").replace("\n", "")
    with follow(api, topic) as stream:
        frame = stream.expect("record")
    assert f'"data":{stored}}}'.encode() in frame.raw
    diff = api.post(f"/v0/topics/{topic}/diff", {}).body
    assert f'"data":{stored}}}'.encode() in diff


def test_delivery_is_a_read(start: Start) -> None:
    """SS20, PR2"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t") as stream:
        stream.expect("caught-up")
        server.advance(5000)
        api.write("t", 1)
        stream.expect("record")
        assert api.state("t")["last_read_ts"] == server.clock.now_ms()


# --- losses


def test_what_was_lost_before_the_connection_is_too_old(api: Client, topic: str) -> None:
    """TM13, SS10, TM6: and what was deleted is not told at all."""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2, 3, 4)
    with follow(api, topic) as stream:
        lost = stream.expect("tombstone")
        expected = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 2, "earliest_seq": 3, "head_seq": 4}
        assert lost.data == {"topic": topic} | expected
        assert list(lost.data) == ["topic", "reason", "gap_from", "gap_to", "earliest_seq", "head_seq"]
        assert lost.at == {topic: 2}
        frame = stream.expect("record")
        assert (frame.payloads, frame.data["from_seq"]) == ([3, 4], 2)
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 4})
    with follow(api, topics={topic: {"from_seq": 2}}) as stream:
        assert stream.expect("record").payloads == [4]


def test_what_expired_before_the_connection_is_too_old(start: Start) -> None:
    """TM13, TM7"""
    server = start()
    api = Client(server.address)
    api.create("t", ttl_ms=1000)
    api.write("t", 1)
    session = watch(api, "t")
    server.advance(1001)
    api.write("t", 2)
    with open_stream(api, session) as stream:
        lost = stream.expect("tombstone").data
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == ("from_seq_too_old", 1, 1)
        assert stream.expect("record").payloads == [2]


def test_a_later_loss_keeps_its_reason(start: Start) -> None:
    """TM13, SS10: one batch that a cap trims at once."""
    api = Client(start().address)
    api.create("t", cap_records=2)
    with follow(api, "t") as stream:
        stream.expect("caught-up")
        api.write("t", 1, 2, 3, 4, 5)
        lost = stream.expect("tombstone")
        assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("cap", 1, 3)
        assert lost.at == {"t": 3}
        assert stream.expect("record").payloads == [4, 5]


def test_a_cursor_beyond_the_head_belongs_to_another_life(api: Client, topic: str) -> None:
    """TM11, SS10: the id stands before what is live."""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2, 3)
    with follow(api, topics={topic: {"from_seq": 9}}) as stream:
        lost = stream.expect("tombstone")
        assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("recreated", 1, 3)
        assert lost.at == {topic: 1}
        assert stream.expect("record").payloads == [2, 3]


# --- resuming


def test_a_session_goes_on_where_its_last_stream_ended(server: ServerThread, api: Client, topic: str) -> None:
    """SS15, SS5"""
    api.write(topic, 1, 2)
    session = watch(api, topic)
    with open_stream(api, session) as stream:
        stream.expect("record")
        stream.expect("caught-up")
    api.write(topic, 3)
    with open_stream(api, session) as stream:
        assert stream.expect("record").payloads == [3]
        stream.expect("caught-up")


@pytest.mark.parametrize("place", ["header", "query", "both"])
def test_a_resume_id_moves_a_topic_back_and_never_ahead(start: Start, place: str) -> None:
    """SS15, S10"""
    server = start()
    api = Client(server.address)
    api.write("a", *range(1, 6))
    api.write("b", *range(1, 6))
    session = watch(api, "a", "b")
    with open_stream(api, session) as stream:
        for _ in range(4):
            stream.next()
    server.until(lambda: server.server.app.slots.streams == 0)
    api.write("a", 6)
    back, ahead = encoded_map({"a": 9, "b": 2}), encoded_map({"a": 9, "b": 9})
    headers = [EVENTS] + ([f"Last-Event-ID: {back if place == 'header' else ahead}"] if place != "query" else [])
    query = "" if place == "header" else f"?cursor={back}"
    with open_stream(api, session, *headers, query=query) as stream:
        frames = {frame.data["topic"]: frame for frame in (stream.next() for _ in range(4)) if frame.kind == "record"}
    assert {name: frame.payloads for name, frame in frames.items()} == {"a": [6], "b": [3, 4, 5]}


@pytest.mark.parametrize("junk", ["", "%%%", "bm90IGpzb24", "W10", encoded_map({"x": 1}) + "!", "A"])
def test_an_id_that_cannot_be_read_is_ignored(api: Client, topic: str, junk: str) -> None:
    """SS15"""
    api.write(topic, 1)
    session = watch(api, topic)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {junk}", query="?cursor=also-junk") as stream:
        assert stream.expect("record").payloads == [1]


def test_a_rewound_position_that_was_trimmed_gives_its_tombstone(start: Start) -> None:
    """SS15, TM13"""
    server = start()
    api = Client(server.address)
    api.create("t", cap_records=3)
    api.write("t", 1, 2, 3)
    session = watch(api, "t")
    with open_stream(api, session) as stream:
        stream.expect("record")
        stream.expect("caught-up")
        api.write("t", 4)
        stream.expect("record")
    server.until(lambda: server.server.app.slots.streams == 0)
    with resume(api, session, {"t": 0}) as stream:
        lost = stream.expect("tombstone").data
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == ("from_seq_too_old", 1, 1)
        assert stream.expect("record").payloads == [2, 3, 4]


def test_the_id_of_any_frame_resumes_behind_it(start: Start) -> None:
    """SS14, SS15"""
    server = start()
    api = Client(server.address)
    api.write("t", *range(1, 8))
    session = watch(api, "t", limit=2)
    with open_stream(api, session) as stream:
        frames = [stream.expect("record") for _ in range(4)]
    server.until(lambda: server.server.app.slots.streams == 0)
    for frame in frames:
        with open_stream(api, session, EVENTS, f"Last-Event-ID: {frame.id}") as stream:
            rest = stream.records(7 - frame.data["to_seq"])
            assert rest == list(range(frame.data["to_seq"] + 1, 8))
            stream.expect("caught-up")
        server.until(lambda: server.server.app.slots.streams == 0)


def test_a_second_stream_of_a_session_takes_it_over(start: Start) -> None:
    """S9, SS22, SS25"""
    server = start()
    api = Client(server.address)
    api.create("t")
    session = watch(api, "t")
    with open_stream(api, session) as first:
        first.expect("caught-up")
        with open_stream(api, session) as second:
            error = first.expect("error")
            assert error.data["code"] == 409 and error.data["error"] and error.id is None
            first.expect_end()
            second.expect("caught-up")
            for n in range(3):
                api.write("t", n)
                assert second.expect("record").payloads == [n]


def test_a_stream_asked_for_behind_one_that_is_replaced_takes_its_turn(start: Start) -> None:
    """SS22, ST17: two requests of one connection and one of another, for one session; the last one has it."""
    server = start()
    api = Client(server.address)
    api.create("t")
    session = watch(api, "t")
    again = api.request("GET", session["stream_url"], None, EVENTS)
    with open_stream(api, session) as first:
        first.expect("caught-up")
        first.send(again)
        server.until(lambda: any(one._ahead for one in server.server.listener.connections.open))
        with open_stream(api, session) as second:
            for stream in (first, second):
                assert stream.expect("error").data["code"] == 409
                stream.expect_end()
        first.head()
        first.expect("caught-up")
        api.write("t", 1)
        assert first.expect("record").payloads == [1]
        assert server.server.app.slots.streams == 1


# --- deletion and another life


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_deleted_topic_is_told_and_the_last_one_ends_the_stream(api: Client, topic: str, durability: str) -> None:
    """SS12"""
    a, b = f"{topic}.a", f"{topic}.b"
    for name in (a, b):
        api.create(name, durability=durability)
        api.write(name, 1)
    with follow(api, a, b) as stream:
        for _ in range(4):
            stream.next()
        api.delete(f"/v0/topics/{a}")
        gone = stream.expect("topic-deleted")
        assert gone.data == {"topic": a, "head_seq": 1, "reason": "deleted"}
        assert gone.at == {a: 1, b: 1}
        api.write(b, 2)
        assert stream.expect("record").payloads == [2]
        api.delete(f"/v0/topics/{b}")
        assert stream.expect("topic-deleted").data["head_seq"] == 2
        stream.expect_end()


def test_a_topic_that_is_gone_at_connect_is_told_with_its_last_head(api: Client, topic: str) -> None:
    """SS12"""
    api.write(topic, 1, 2, 3)
    session = watch(api, topic)
    api.delete(f"/v0/topics/{topic}")
    for _ in range(2):
        with open_stream(api, session) as stream:
            assert stream.expect("topic-deleted").data == {"topic": topic, "head_seq": 3, "reason": "deleted"}
            stream.expect_end()


def test_another_life_of_a_topic_is_recreated_on_the_next_connect(start: Start) -> None:
    """SS23, S29, TM11: whatever the id says."""
    server = start()
    api = Client(server.address)
    api.write("t", *range(5))
    session = watch(api, "t")
    with open_stream(api, session) as stream:
        last = stream.expect("record")
        stream.expect("caught-up")
        api.delete("/v0/topics/t")
        stream.expect("topic-deleted")
        stream.expect_end()
    api.write("t", *range(10, 20))
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {last.id}") as stream:
        lost = stream.expect("tombstone")
        assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("recreated", 1, 10)
        assert lost.at == {"t": 0}
        assert stream.records(10) == list(range(10, 20))
    server.until(lambda: server.server.app.slots.streams == 0)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {lost.id}") as stream:
        assert stream.records(10) == list(range(10, 20))
        stream.expect("caught-up")
    server.until(lambda: server.server.app.slots.streams == 0)
    api.write("t", 20)
    with open_stream(api, session) as stream:
        assert stream.records(1) == [20]


def test_the_id_of_a_recreated_tombstone_brings_the_whole_new_life(start: Start) -> None:
    """S8, SS10"""
    server = start()
    api = Client(server.address)
    api.write("t", *range(9))
    session = watch(api, topics={"t": {"tail": True}})
    api.delete("/v0/topics/t")
    api.write("t", "a", "b", "c")
    with open_stream(api, session) as stream:
        event_id = stream.expect("tombstone").id
    server.until(lambda: server.server.app.slots.streams == 0)
    with open_stream(api, session, EVENTS, f"Last-Event-ID: {event_id}") as stream:
        assert stream.records(3) == ["a", "b", "c"]
    with follow(api, "t", cursor=event_id) as stream:
        assert stream.records(3) == ["a", "b", "c"]


def test_a_topic_that_is_deleted_and_recreated_under_a_stream_is_deleted_there(start: Start) -> None:
    """SS23"""
    server = start()
    api = Client(server.address)
    for name in ("t", "u"):
        api.write(name, 1)
    with follow(api, "t", "u") as stream:
        for _ in range(4):
            stream.next()
        api.delete("/v0/topics/t")
        api.write("t", 2)
        assert stream.expect("topic-deleted").data["topic"] == "t"
        api.write("u", 2)
        assert stream.expect("record").data["topic"] == "u"
        stream.expect_silence(server)


# --- pressure


def test_a_stream_that_is_held_back_is_told_so_and_stays_open(start: Start) -> None:
    """PR6, PR5, SS13"""
    server = start()
    api = Client(server.address)
    for name, priority in (("low", -1), ("lower", -2), ("plain", None)):
        api.create(name, priority=priority)
    with follow(api, "plain", "lower", "low") as stream:
        for _ in range(3):
            stream.expect("caught-up")
        server.pressure = 0.6
        server.until(lambda: server.server.pressure.is_deferring)
        api.write("low", 1)
        api.write("lower", 1)
        server.until(lambda: server.clock.waits == 2)
        server.advance(50)
        advice = stream.expect("error")
        assert advice.id is None and set(advice.data) == {"code", "error", "retry_after_ms", "topics"}
        assert (advice.data["code"], advice.data["topics"]) == (429, ["low", "lower"])
        assert advice.data["error"] and advice.data["retry_after_ms"] > 0
        api.write("low", 2)
        api.write("plain", 1)
        server.until(lambda: server.clock.waits == 2)
        server.advance(50)
        assert stream.expect("record").data["topic"] == "plain"
        server.pressure = 0.0
        frames = {frame.data["topic"]: frame.payloads for frame in (stream.expect("record") for _ in range(2))}
        assert frames == {"low": [1, 2], "lower": [1]}


# --- silence and the end


def test_a_heartbeat_breaks_the_silence_and_any_frame_restarts_it(start: Start) -> None:
    """SS16"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t", heartbeat_ms=2000) as stream:
        stream.expect("caught-up")
        for _ in range(2):
            server.advance(2000)
            assert stream.expect("comment").raw == b": hb %d" % server.clock.now_ms()
        server.advance(1500)
        api.write("t", 1)
        stream.expect("record")
        server.advance(1500)
        api.write("t", 2)
        stream.expect("record")
        server.advance(2000)
        stream.expect("comment")


@pytest.mark.parametrize(("asked", "given"), [(1, 1000), (0, 1000), (10**9, 60_000), (3000, 3000), (None, 15_000)])
def test_heartbeats_are_clamped(start: Start, asked: int | None, given: int) -> None:
    """SS1"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t", **({} if asked is None else {"heartbeat_ms": asked})) as stream:
        stream.expect("caught-up")
        server.advance(given - 1)
        api.write("t", 1)
        stream.expect("record")
        server.advance(given)
        stream.expect("comment")


def test_the_floor_of_heartbeats_can_be_lowered_for_tests(start: Start) -> None:
    """SS1, SS16"""
    server = start(test_min_heartbeat_ms=20)
    api = Client(server.address)
    api.create("t")
    with follow(api, "t", heartbeat_ms=1) as stream:
        stream.expect("caught-up")
        server.advance(20)
        stream.expect("comment")


def test_a_stopping_server_says_so_and_ends_its_streams(start: Start) -> None:
    """SC3, SS25, SS13"""
    server = start()
    api = Client(server.address)
    api.create("t")
    with follow(api, "t") as stream:
        stream.expect("caught-up")
        server.close()
        error = stream.expect("error")
        assert error.data["code"] == 503 and error.data["error"] == "server_shutting_down" and error.id is None
        assert type(error.data["retry_after_ms"]) is int and error.data["retry_after_ms"] > 0
        stream.expect_end()


def test_every_frame_is_tight_json(api: Client, topic: str) -> None:
    """CV5, SS7"""
    api.create(topic, cap_records=1)
    api.write(topic, 1, 2)
    with follow(api, topic) as stream:
        events = [stream.next() for _ in range(3)]
        api.delete(f"/v0/topics/{topic}")
        events.append(stream.next())
    assert [one.kind for one in events] == ["tombstone", "record", "caught-up", "topic-deleted"]
    for one in events:
        data = one.raw.partition(b"data: ")[2]
        assert tight(data) and json.loads(data) == one.data


def test_metrics_count_sessions_and_streams(start: Start) -> None:
    """HM5, HM3"""
    server = start()
    api = Client(server.address)
    api.create("t")
    sessions = [watch(api, "t") for _ in range(3)]
    with open_stream(api, sessions[0]) as stream:
        stream.expect("caught-up")
        metrics = api.metrics()
        assert (metrics["sse_connections"], metrics["watch_sessions"]) == (1, 3)
        text = api.get("/v0/metrics").body
        assert b"\ntopics_sse_connections 1\n" in text and b"\ntopics_watch_sessions 3\n" in text
    assert ok(api.get("/v0/topics/t"))["head_seq"] == 0
