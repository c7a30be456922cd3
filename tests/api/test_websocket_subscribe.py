"""Subscriptions over a WebSocket: where they start, what is delivered, what is announced as lost, how they end."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk

ONE = [{"data": 1}]


def records(*data: Any) -> list[dict[str, Any]]:
    return [{"data": value} for value in data]


def seqs(message: dict[str, Any]) -> list[int]:
    assert message["op"] == "record", message
    return [record["$seq"] for record in message["records"]]


# --- subscribe


def test_a_subscription_gets_the_backlog_and_then_what_comes(api: Client, topic: str) -> None:
    """WS3, WS6, SS9, SS11"""
    api.write(topic, "a", "b")
    with open_socket(api) as ws:
        answer = ws.ask("subscribe", topic=topic, request_id="s")
        epoch = api.state(topic)["epoch"]
        at = {"epoch": epoch, "from_seq": 0, "head_seq": 2, "earliest_seq": 1}
        assert answer == {"op": "subscribed", "request_id": "s", "topics": {topic: at}}
        frame = ws.message()
        assert list(frame) == ["op", "topic", "records", "from_seq", "to_seq", "head_seq"]
        assert (frame["topic"], frame["from_seq"], frame["to_seq"], frame["head_seq"]) == (topic, 0, 2, 2)
        assert [record["data"] for record in frame["records"]] == ["a", "b"]
        assert ws.message() == {"op": "caught_up", "topic": topic, "head_seq": 2}
        api.write(topic, "c")
        live = ws.message()
        assert (seqs(live), live["from_seq"], live["to_seq"], live["head_seq"]) == ([3], 2, 3, 3)
        ws.synced()


def test_where_a_subscription_starts(api: Client, topic: str) -> None:
    """WS3, SS2"""
    api.write(topic, 1, 2, 3)
    for start_at, cursor in (({"from_seq": 2}, 2), ({"tail": True}, 3), ({"from_seq": 1, "tail": True}, 3), ({}, 0)):
        with open_socket(api) as ws:
            ws.say("subscribe", topic=topic, **start_at)
            assert ws.expect("subscribed")["topics"][topic]["from_seq"] == cursor
            if cursor < 3:
                assert seqs(ws.message()) == list(range(cursor + 1, 4))
            assert ws.expect("caught_up") == {"topic": topic, "head_seq": 3}
            ws.synced()


def test_one_subscribe_may_name_many_topics_with_a_start_each(api: Client, topic: str) -> None:
    """WS3"""
    names = [f"{topic}.{n}" for n in range(3)]
    for name in names:
        api.write(name, 1, 2)
    with open_socket(api) as ws:
        ws.say("subscribe", topics={names[0]: {}, names[1]: {"from_seq": 1}, names[2]: {"tail": True}}, from_seq=9)
        assert {name: at["from_seq"] for name, at in ws.expect("subscribed")["topics"].items()} == dict(
            zip(names, (0, 1, 2), strict=True)
        )
        frames = [ws.message() for _ in range(5)]
        assert {frame["topic"]: seqs(frame) for frame in frames if frame["op"] == "record"} == {
            names[0]: [1, 2],
            names[1]: [2],
        }
        assert sorted(frame["topic"] for frame in frames if frame["op"] == "caught_up") == names
        ws.synced()


def test_an_unknown_topic_is_refused_or_left_out(api: Client, topic: str) -> None:
    """WS3, SS3, CV12"""
    api.write(topic, 1)
    with open_socket(api) as ws:
        error = ws.ask("subscribe", topics={topic: {}, f"{topic}.none": {}}, request_id=1)
        assert (error["code"], error["detail"], error["request_id"]) == (
            "topic_not_found",
            {"topic": f"{topic}.none"},
            1,
        )
        assert ws.ask("subscribe", topic="-no name-")["code"] == "topic_not_found"
        ws.synced()
        assert ws.ask("subscribe", topic=f"{topic}.none", lenient=True) == {"op": "subscribed", "topics": {}}
        ws.say("subscribe", topics={topic: {}, f"{topic}.none": {}}, lenient=True)
        assert list(ws.expect("subscribed")["topics"]) == [topic]
        assert ws.data(1) == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": None},
        {"topics": None},
        {"topics": {}},
        {"topics": []},
        {"topics": {"t": None}},
        {"topics": {"t": {"from_seq": None}}},
        {"topics": {"t": {"from_seq": -1}}},
        {"topics": {"t": {"from_seq": 2**64}}},
        {"topic": "t", "topics": {"t": {}}},
        {"topic": "t", "from_seq": "1"},
        {"topic": "t", "from_seq": 1.5},
        {"topic": "t", "tail": None},
        {"topic": "t", "limit": -1},
        {"topic": "t", "limit": True},
        {"topic": "t", "include_data": 1},
        {"topic": "t", "lenient": "true"},
        {"topic": "t", "node": 1},
        {"topic": "t", "filter": ["data", "Eq", "x"]},
        {"topic": "t", "filter": ["tag", "Glob", "x"]},
        {"topics": {f"t{n}": {} for n in range(257)}},
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_subscribe_that_makes_no_sense_is_refused(api: Client, fields: dict[str, Any]) -> None:
    """WS3, SS3, CV18, CV19"""
    api.write("t", 1)
    with open_socket(api) as ws:
        error = ws.ask("subscribe", request_id=1, **fields)
        assert (error["op"], error["code"], error["request_id"]) == ("error", "invalid_request", 1), error
        ws.synced()


def test_null_means_absent_where_a_rule_says_so_and_ranges_are_clamped(api: Client, topic: str) -> None:
    """CV18, CV19, WS3"""
    api.write(topic, 1)
    with open_socket(api) as ws:
        ws.follow(topic, node=None, filter=None, limit=10**30, max_batch_bytes=10**30)
        assert ws.data(1) == [1]


def test_a_frame_holds_at_most_limit_records_and_bytes(start: Start, topic: str) -> None:
    """WS3, LM6, SS11: the default limit is 1000."""
    api = Client(start(max_limit=5000).address)
    for n in range(0, 2500, 500):
        api.write(topic, *range(n, n + 500))
    with open_socket(api) as ws:
        ws.follow(topic)
        assert [len(seqs(ws.message())) for _ in range(3)] == [1000, 1000, 500]
        assert ws.expect("caught_up")
        ws.follow(topic, 2490, limit=4)
        assert [seqs(ws.message()) for _ in range(3)] == [
            [2491, 2492, 2493, 2494],
            [2495, 2496, 2497, 2498],
            [2499, 2500],
        ]
        assert ws.expect("caught_up")
        ws.follow(topic, 2497, max_batch_bytes=1)
        assert [seqs(ws.message()) for _ in range(3)] == [[2498], [2499], [2500]]
        assert ws.expect("caught_up")
        ws.follow(topic, limit=10_000)
        total = 0
        while total < 2500:
            total += len(seqs(ws.message()))


def test_projection_node_and_filter(api: Client, topic: str) -> None:
    """WS3, ND1, ND2, SS17, SS24, DL2"""
    api.write_records(
        topic,
        {"data": 1, "tag": "a:1", "node": "me", "meta": {"m": 1}},
        {"data": 2, "tag": "a:2", "node": "you", "meta": {"m": 2}},
        {"data": 3, "tag": "b", "node": "him"},
        {"data": 4},
    )

    def shown(**fields: Any) -> list[dict[str, Any]]:
        with open_socket(api) as ws:
            ws.follow(topic, **fields)
            found: list[dict[str, Any]] = []
            while (message := ws.message())["op"] == "record":
                assert message["to_seq"] == 4
                found += message["records"]
            assert message == {"op": "caught_up", "topic": topic, "head_seq": 4}
        return [{key: value for key, value in record.items() if key != "$ts"} for record in found]

    plain = shown()
    assert plain[0] == {"$seq": 1, "$node": "me", "data": 1, "meta": {"m": 1}}
    assert shown(include_tags=True)[0]["$tag"] == "a:1"
    assert shown(include_meta=False)[0] == {"$seq": 1, "$node": "me", "data": 1}
    assert shown(include_data=False)[0] == {"$seq": 1, "$node": "me"}
    assert [record["$seq"] for record in shown(node="me")] == [2, 3, 4]
    assert [record["$seq"] for record in shown(node=["me", "you"])] == [3, 4]
    assert [record["$seq"] for record in shown(filter=["tag", "Glob", "a:*"])] == [1, 2]
    assert [record["$seq"] for record in shown(filter="b")] == [3]
    assert shown(filter="none") == []


def test_a_client_does_not_hear_itself(api: Client, topic: str) -> None:
    """ND1, WS5"""
    api.create(topic)
    with open_socket(api) as ws:
        ws.follow(topic, node="me")
        assert ws.expect("caught_up")
        assert ws.ask("publish", topic=topic, node="me", records=ONE)["op"] == "ack"
        api.write(topic, "theirs", node="you")
        frame = ws.message()
        assert (seqs(frame), frame["from_seq"], frame["to_seq"]) == ([2], 1, 2)


def test_subscribing_again_replaces_position_and_options(api: Client, topic: str) -> None:
    """WS3"""
    api.write(topic, 1, 2, 3)
    with open_socket(api) as ws:
        ws.follow(topic)
        assert seqs(ws.message()) == [1, 2, 3] and ws.expect("caught_up")
        assert ws.follow(topic, 1, include_data=False)["from_seq"] == 1
        again = ws.message()
        assert seqs(again) == [2, 3] and "data" not in again["records"][0]
        assert ws.expect("caught_up")
        api.write(topic, 4)
        assert seqs(ws.message()) == [4]
        ws.synced()


def test_a_socket_follows_as_many_topics_as_it_may(start: Start) -> None:
    """WS3"""
    api = Client(start(max_watch_topics=3).address)
    for name in "abcd":
        api.write(name, 1)
    with open_socket(api) as ws:
        assert ws.ask("subscribe", topics={name: {} for name in "abcd"})["code"] == "invalid_request"
        ws.say("subscribe", topics={name: {"tail": True} for name in "abc"})
        assert len(ws.expect("subscribed")["topics"]) == 3
        assert {ws.expect("caught_up")["topic"] for _ in range(3)} == set("abc")
        assert ws.ask("subscribe", topic="d")["code"] == "invalid_request"
        assert ws.follow("a", tail=True) and ws.expect("caught_up")
        assert ws.ask("unsubscribe", topics=["a"])["topics"] == ["a"]
        assert ws.follow("d") and ws.data(1) == [1]


def test_unsubscribing_ends_the_frames_of_a_topic(api: Client, topic: str) -> None:
    """WS4"""
    names = [f"{topic}.{n}" for n in range(3)]
    for name in names:
        api.create(name)
    with open_socket(api) as ws:
        ws.say("subscribe", topics={name: {} for name in names})
        assert ws.expect("subscribed") and [ws.expect("caught_up") for _ in names]
        assert ws.ask("unsubscribe", topic=names[0], request_id=1) == {
            "op": "unsubscribed",
            "request_id": 1,
            "topics": [names[0]],
        }
        assert ws.ask("unsubscribe", topics=[names[1], "never", names[1]])["topics"] == [names[1], "never"]
        for name in names:
            api.write(name, 1)
        assert ws.message()["topic"] == names[2]
        ws.synced()
        for fields in ({}, {"topic": None}, {"topics": "x"}, {"topics": [1]}, {"topic": "x", "topics": ["x"]}):
            assert ws.ask("unsubscribe", **fields)["code"] == "invalid_request"
        assert ws.ask("unsubscribe", topics=[]) == {"op": "unsubscribed", "topics": []}


def test_subscribed_comes_before_any_frame_of_its_topics(start: Start, topic: str) -> None:
    """WS9: even if it waits behind an answer that waits for the disk."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(f"{topic}.fsync", durability="fsync")
    api.write(topic, 1)
    with open_socket(api) as ws:
        server.run(disk.hold_syncs)
        ws.say("publish", topic=f"{topic}.fsync", records=ONE)
        ws.say("subscribe", topic=topic)
        ws.say("unsubscribe", topic=topic)
        ws.say("subscribe", topic=topic)
        server.until(lambda: disk.held_syncs)
        api.write(topic, 2)
        server.run(disk.release_syncs)
        ops = [ws.message()["op"] for _ in range(4)]
        while "record" not in ops[-1:]:
            ops.append(ws.message()["op"])
    assert [op for op in ops if op not in ("record", "caught_up")] == [
        "ack",
        "subscribed",
        "unsubscribed",
        "subscribed",
    ]
    assert ops.index("record") > ops.index("subscribed")


# --- losses, deletions


def test_what_a_subscriber_missed_is_announced(api: Client, topic: str) -> None:
    """WS6, SS10, TM4, TM13: over WebSocket the reason is always the plain one."""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2, 3, 4, 5)
    with open_socket(api) as ws:
        ws.follow(topic)
        assert ws.message() == {
            "op": "tombstone",
            "topic": topic,
            "reason": "cap",
            "gap_from": 1,
            "gap_to": 3,
            "earliest_seq": 4,
            "head_seq": 5,
        }
        frame = ws.message()
        assert (seqs(frame), frame["from_seq"]) == ([4, 5], 3)
        assert ws.expect("caught_up")


def test_deleted_records_are_silent(api: Client, topic: str) -> None:
    """TM9, SS17"""
    api.write(topic, 1, 2, 3)
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 3})
    with open_socket(api) as ws:
        assert ws.follow(topic)["earliest_seq"] == 3
        frame = ws.message()
        assert (seqs(frame), frame["from_seq"], frame["to_seq"]) == ([3], 0, 3)


def test_a_cursor_of_an_earlier_instance_meets_recreated(api: Client, topic: str) -> None:
    """TM11, SS10"""
    api.write(topic, 1, 2, 3)
    api.delete(f"/v0/topics/{topic}")
    api.write(topic, "new")
    with open_socket(api) as ws:
        ws.follow(topic, 3)
        lost = ws.expect("tombstone")
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == ("recreated", 1, 1)
        assert seqs(ws.message()) == [1]


def test_expiry_alone_brings_a_tombstone_at_the_next_read(start: Start, topic: str) -> None:
    """TM7, WS6"""
    server = start()
    api = Client(server.address)
    api.create(topic, ttl_ms=1000)
    api.write(topic, 1)
    server.advance(1001)
    with open_socket(api) as ws:
        ws.follow(topic)
        lost = ws.expect("tombstone")
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == ("ttl", 1, 1)
        assert ws.expect("caught_up") == {"topic": topic, "head_seq": 1}


def test_the_deletion_of_a_topic_ends_it_alone(api: Client, topic: str) -> None:
    """WS6, SS12, SS23: a new topic of the name is not followed; the socket goes on."""
    api.write(topic, 1, 2)
    api.write(f"{topic}.other", 1)
    with open_socket(api) as ws:
        ws.say("subscribe", topics={topic: {"tail": True}, f"{topic}.other": {"tail": True}})
        assert ws.expect("subscribed") and ws.expect("caught_up") and ws.expect("caught_up")
        api.delete(f"/v0/topics/{topic}")
        assert ws.message() == {"op": "topic_deleted", "topic": topic, "head_seq": 2, "reason": "deleted"}
        api.write(topic, "new")
        api.write(f"{topic}.other", 2)
        assert ws.message()["topic"] == f"{topic}.other"
        ws.synced()
        api.delete(f"/v0/topics/{topic}.other")
        assert ws.expect("topic_deleted")["topic"] == f"{topic}.other"
        assert ws.follow(topic)["head_seq"] == 1
        assert ws.data(1) == ["new"]


def test_delivery_counts_as_a_read_and_subscribing_does_not(start: Start, topic: str) -> None:
    """SS20, PR2"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with open_socket(api) as ws:
        ws.follow(topic)
        assert ws.expect("caught_up")
        server.advance(1000)
        api.write(topic, 1)
        assert ws.data(1) == [1]
        assert api.state(topic)["last_read_ts"] == server.clock.now_ms()
        ws.say("unsubscribe", topic=topic)
        assert ws.expect("unsubscribed")
        server.advance(1000)
        api.write(topic, 2)
        ws.say("subscribe", topic=topic, lenient="x")
        assert ws.expect("error")
        assert api.state(topic)["last_read_ts"] == server.clock.now_ms() - 1000


def test_a_subscription_sees_what_was_routed_before_it(api: Client, topic: str) -> None:
    """DF9, S30: and what is routed afterwards."""
    source, dest = f"{topic}.source", f"{topic}.dest"
    ok(api.put(f"/v0/routers/{topic}", {"source": source, "dest": dest}), 201)
    with open_socket(api) as ws:
        assert ws.ask("publish", topic=source, records=records(1, 2))["op"] == "ack"
        assert ws.follow(dest)["head_seq"] == 2
        assert ws.data(2) == [1, 2]
        api.write(source, 3)
        assert ws.data(1) == [3]


def test_all_sockets_get_the_same_frames(api: Client, topic: str) -> None:
    """SS21, WR5"""
    api.create(topic)
    sockets = [open_socket(api) for _ in range(20)]
    for ws in sockets:
        ws.follow(topic)
        assert ws.expect("caught_up")
    for n in range(50):
        api.write(topic, n)
    for ws in sockets:
        assert ws.data(50) == list(range(50))
        ws.socket.close()


def test_a_topic_that_cannot_be_read_ends_its_sockets_alone(start: Start) -> None:
    """ST12, WS6: told, closed with 1011; whoever follows something else goes on."""
    disk = MemoryDisk()
    first = start(disk=disk)
    Client(first.address).write("damaged", "this text will be damaged")
    first.close()
    files = disk.files()
    hurt = {name: data.replace(b"will be damaged", b"HAS BEEN harmed") for name, data in files.items()}
    assert hurt != files
    api = Client(start(disk=MemoryDisk(hurt)).address)
    api.write("whole", 1)
    with open_socket(api) as unlucky, open_socket(api) as lucky:
        lucky.follow("whole")
        unlucky.follow("damaged")
        error = unlucky.expect("error")
        assert error["code"] == "internal" and "request_id" not in error
        unlucky.expect_close(1011)
        assert lucky.data(1) == [1] and lucky.expect("caught_up")
        lucky.synced()
