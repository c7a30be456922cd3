"""What is said over a WebSocket: commands, publishes and their answers.

Its frames are in test_websocket_frames.py, subscriptions in test_websocket_subscribe.py.
"""

import json
import socket
from typing import Any

import pytest

from tests.api.clients.transcript import WRITE_PERFORMANCE, Client, refused
from tests.api.clients.websocket import BINARY, CLOSE, Socket, client_frame, handshake, open_socket, text
from tests.api.conftest import Start
from tests.api.test_pressure import under_pressure
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import PATIENCE_S

ONE = [{"data": 1}]


def records(*data: Any) -> list[dict[str, Any]]:
    return [{"data": value} for value in data]


def seqs(message: dict[str, Any]) -> list[int]:
    assert message["op"] == "record", message
    return [record["$seq"] for record in message["records"]]


def test_the_openapi_document_names_the_socket(api: Client) -> None:
    """CV1, WS1"""
    socket_ = api.get("/v0/openapi.json").json["paths"]["/v0/ws"]["get"]
    assert set(socket_["responses"]) >= {"101", "400", "401", "403", "429", "503"}


# --- commands in general


@pytest.mark.parametrize("request_id", [0, 1.5, "x", "", None, True, [1, {"a": None}], {"k": [1, 2]}, 2**70])
def test_a_request_id_of_any_type_comes_back(api: Client, topic: str, request_id: Any) -> None:
    """WS2"""
    with open_socket(api) as ws:
        assert ws.ask("ping", request_id=request_id) == {"op": "pong", "request_id": request_id}
        for op in ("publish", "subscribe", "unsubscribe", "nope"):
            answer = ws.ask(op, topic=topic, records=ONE, tail=True, request_id=request_id)
            assert answer["request_id"] == request_id and type(answer["request_id"]) is type(request_id)
            if op == "subscribe":
                assert ws.expect("caught_up")


def test_a_request_id_comes_back_as_it_was_spelled_and_is_left_out_if_there_was_none(api: Client) -> None:
    """WS2, CV20: the last one counts."""
    with open_socket(api) as ws:
        ws.send(text(b'{"request_id":1,"op":"ping","request_id":{"a": 1e3, "b":"\\u0041"}}'))
        assert ws.frame().payload == b'{"op":"pong","request_id":{"a": 1e3, "b":"\\u0041"}}'
        ws.send(text(b'{"op":"x","op":"ping"}'))
        assert ws.frame().payload == b'{"op":"pong"}'


def test_an_unknown_field_is_ignored_and_an_unknown_op_is_not(api: Client) -> None:
    """CV4, WS7"""
    with open_socket(api) as ws:
        assert ws.ask("ping", future=[1]) == {"op": "pong"}
        for message in (
            {"op": "claim"},
            {"op": 1},
            {"op": None},
            {},
            {"op": ["ping"]},
            {"op": "PING"},
            {"op": "x" * 999},
        ):
            ws.send(text(message | {"request_id": 5}))
            error = ws.expect("error")
            assert error["code"] == "invalid_request" and error["request_id"] == 5
            assert "ping" in error["message"] and len(error["message"]) < 200


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"{", b"ping", b'{"op":"ping"} x', b'{"op":"ping",}', b"\0", b'{"op":"ping","x":NaN}', b'{"op":1 2}'),
        b'{"op":"ping","x":"\\ud800"}',
        b'{"op":"ping","x":' + b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_told_so_and_the_socket_stays_open(api: Client, message: bytes) -> None:
    """WS7, CV20, CV21"""
    with open_socket(api) as ws:
        ws.send(text(message))
        error = ws.expect("error")
        assert set(error) == {"code", "message"} and error["code"] == "invalid_json" and error["message"]
        assert ws.ask("ping") == {"op": "pong"}


@pytest.mark.parametrize("message", [b"[]", b"1", b'"ping"', b"null", b"true", b'[{"op":"ping"}]'])
def test_json_that_is_no_object_is_an_invalid_request(api: Client, message: bytes) -> None:
    """WS7"""
    with open_socket(api) as ws:
        ws.send(text(message))
        assert ws.expect("error")["code"] == "invalid_request"


def test_a_binary_message_is_refused_in_its_turn(api: Client) -> None:
    """WS7, WS9"""
    with open_socket(api) as ws:
        ws.send(text({"op": "ping"}) + client_frame(BINARY, b'{"op":"ping"}') + text({"op": "ping", "request_id": 2}))
        assert ws.message() == {"op": "pong"}
        error = ws.expect("error")
        assert error["code"] == "unsupported_message" and set(error) == {"code", "message"}
        assert ws.message() == {"op": "pong", "request_id": 2}


def test_the_commands_of_a_socket_run_and_are_answered_in_order(start: Start, topic: str) -> None:
    """WS9: whatever they wait for."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(f"{topic}.fsync", durability="fsync")
    api.create(f"{topic}.ephemeral", durability="ephemeral")
    api.create(f"{topic}.full", discard="reject", cap_records=1)
    said: list[dict[str, Any]] = []
    for n in range(0, 400, 8):
        said += [
            {"op": "publish", "topic": f"{topic}.fsync", "records": records(n)},
            {"op": "ping"},
            {"op": "publish", "topic": f"{topic}.ephemeral", "records": records(n)},
            {"op": "publish", "topic": f"{topic}.full", "records": records(n)},
            {"op": "unsubscribe", "topic": "x"},
            {"op": "subscribe", "topic": "absent"},
            {"op": "nope"},
            {"op": "publish", "topic": topic, "records": records(n)},
        ]
    with open_socket(api) as ws:
        server.run(disk.hold_syncs)
        ws.send(b"".join(text(command | {"request_id": n}) for n, command in enumerate(said)))
        server.until(lambda: disk.held_syncs)
        server.run(disk.release_syncs)
        answers = [ws.message() for _ in said]
    assert [answer["request_id"] for answer in answers] == list(range(len(said)))
    assert [answer["op"] for answer in answers[:8]] == [
        "ack",
        "pong",
        "ack",
        "ack",
        "unsubscribed",
        "error",
        "error",
        "ack",
    ]
    for name in (topic, f"{topic}.fsync", f"{topic}.ephemeral"):
        assert api.data(name, limit=1000) == list(range(0, 400, 8))
    assert api.data(f"{topic}.full") == [0]


def test_many_publishes_of_one_socket_share_a_commit(start: Start, topic: str) -> None:
    """WS9, ST3: an answer that waits for the disk does not keep the next command from running."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    with open_socket(api) as ws:
        server.run(disk.hold_syncs)
        for n in range(100):
            ws.say("publish", topic=topic, records=records(n), request_id=n)
        server.until(lambda: server.server.engine.state.topics[topic].log.head == 100)
        fsyncs = api.metrics()["wal"]["fsyncs"]
        server.run(disk.release_syncs)
        assert [ws.expect("ack")["request_id"] for _ in range(100)] == list(range(100))
        assert api.metrics()["wal"]["fsyncs"] - fsyncs < 10


# --- publish


def test_an_ack_has_every_field_of_the_write_answer(api: Client, topic: str) -> None:
    """WS5, CV11"""
    with open_socket(api) as ws:
        ack = ws.ask("publish", topic=topic, records=records(1, 2), request_id=9)
        performance = ack.pop("performance")
        assert sorted(performance) == sorted(WRITE_PERFORMANCE)
        assert ack == {
            "op": "ack",
            "request_id": 9,
            "topic": topic,
            "first_seq": 1,
            "last_seq": 2,
            "seqs": [1, 2],
            "head_seq": 2,
            "count": 2,
            "created": True,
            "deduped": False,
        }
        ack = ws.ask("publish", topic=topic, records=records(3), return_seqs=False)
        assert "seqs" not in ack and "request_id" not in ack and ack["first_seq"] == 3 and ack["created"] is False
    assert api.data(topic) == [1, 2, 3]


def test_a_published_record_is_what_a_written_one_is(api: Client, topic: str) -> None:
    """WS5, WR1, WR2, CV6, CV26"""
    message = (
        b'{"op":"publish","topic":"%b","node":"n","records":[{"data":{"b":1.0,"a":[12345678901234567890],"b":1e400},'
        b'"tag":"t","meta":{"x": "y"}},{"data":[1,\r\n 2],"node":"m"},{"data":null}]}' % topic.encode()
    )
    with open_socket(api) as ws:
        ws.send(text(message))
        assert ws.expect("ack")["count"] == 3
        ws.follow(topic, include_tags=True)
        frame = ws.frame().payload
    assert b'"data":{"b":1.0,"a":[12345678901234567890],"b":1e400}' in frame
    assert b'"meta":{"x": "y"}' in frame and b'"data":[1,2]' in frame
    found = json.loads(frame)["records"]
    assert [(one.get("$node"), one.get("$tag"), one["data"]) for one in found][1:] == [
        ("m", None, [1, 2]),
        ("n", None, None),
    ]
    assert (found[0]["$node"], found[0]["$tag"]) == ("n", "t")


def test_publishes_are_deduped_by_their_key(api: Client, topic: str) -> None:
    """WS5, ID1"""
    with open_socket(api) as ws:
        first = ws.ask("publish", topic=topic, records=records(1, 2), idempotency_key="k")
        again = ws.ask("publish", topic=topic, records=records(1, 2), idempotency_key="k")
    assert (first["deduped"], again["deduped"], again["seqs"]) == (False, True, [1, 2])


def test_a_publish_creates_its_topic_with_its_config(api: Client, topic: str) -> None:
    """WS5, WR7, AU7"""
    with open_socket(api) as ws:
        ack = ws.ask("publish", topic=topic, records=records(1, 2, 3), config={"cap_records": 2})
        assert ack["created"] is True
        assert ws.ask("publish", topic=f"{topic}.x", records=ONE, create=False)["code"] == "topic_not_found"
        refusal = ws.ask("publish", topic=f"{topic}.x", records=ONE, config={"auto_create": False})
        assert refusal["code"] == "topic_not_found" and refusal["detail"] == {"topic": f"{topic}.x"}
    assert api.data(topic) == [2, 3]
    refused(api.get(f"/v0/topics/{topic}.x"), 404, "topic_not_found")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "invalid_request"),
        ({"records": []}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": 1}]}, "invalid_request"),
        ({"records": ONE, "topic": None}, "invalid_request"),
        ({"records": ONE, "topic": 5}, "invalid_request"),
        ({"records": ONE, "topic": "-bad"}, "invalid_request"),
        ({"records": ONE, "topic": ""}, "invalid_request"),
        ({"records": ONE, "return_seqs": "yes"}, "invalid_request"),
        ({"records": ONE, "config": {"ttl_ms": -1}}, "invalid_request"),
        ({"records": ONE, "idempotency_key": "k" * 257}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "t" * 257}]}, "invalid_request"),
        ({"records": ONE * 11}, "batch_too_large"),
        ({"records": [{"data": "x" * 2000}]}, "record_too_large"),
        (
            {"records": ONE, "config": {"cap_bytes": 1, "type": "log"}, "topic": "new", "create": False},
            "topic_not_found",
        ),
        ({"records": [{"data": 12}], "config": {"cap_bytes": 1}, "topic": "new"}, "record_too_large"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_publish_is_refused_as_a_write_is(start: Start, fields: dict[str, Any], code: str) -> None:
    """WS5, WS7, WR3, WR14: nothing is changed."""
    api = Client(start(max_batch_records=10, max_record_bytes=1000).address)
    api.write("t", 0)
    before = api.everything()
    with open_socket(api) as ws:
        error = ws.ask("publish", request_id=1, **({"topic": "t"} | fields))
        assert (error["op"], error["code"], error["request_id"]) == ("error", code, 1), error
        assert ws.ask("ping") == {"op": "pong"}
    assert api.everything() == before


def test_engine_errors_keep_their_code_and_detail(start: Start) -> None:
    """WS7, ER4"""
    api = Client(start(max_topics=1, max_total_bytes=100).address)
    api.create("full", discard="reject", cap_records=1)
    with open_socket(api) as ws:
        assert ws.ask("publish", topic="full", records=ONE)["op"] == "ack"
        full = ws.ask("publish", topic="full", records=ONE)
        assert full["code"] == "topic_full"
        assert full["detail"] == {"topic": "full", "cap_records": 1, "cap_bytes": 0, "head_seq": 1, "earliest_seq": 1}
        more = ws.ask("publish", topic="more", records=ONE)
        assert (more["code"], more["detail"]) == ("throttled", {"limit": "max_topics", "max": 1})
        api.put("/v0/topics/full", {})
        large = ws.ask("publish", topic="full", records=[{"data": "x" * 200}])
        assert (large["code"], large["detail"]) == ("throttled", {"limit": "max_total_bytes", "max": 100})


def test_a_publish_that_cannot_be_committed_is_an_error_and_leaves_nothing(start: Start, topic: str) -> None:
    """WS7, ER7, WR9, WR10: nor does a subscriber see it."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    with open_socket(api) as ws, open_socket(api) as reader:
        reader.follow(topic)
        assert reader.expect("caught_up")
        fault = Faulty("sync")
        server.run(lambda: disk.hooks.append(fault))
        error = ws.ask("publish", topic=topic, records=records("lost"), request_id=1)
        assert (error["op"], error["code"], error["request_id"]) == ("error", "internal", 1)
        assert ws.ask("publish", topic=topic, records=records("kept"))["seqs"] == [1]
        assert reader.data(1) == ["kept"]


def test_a_record_is_delivered_only_when_it_is_durable(start: Start, topic: str) -> None:
    """WR10, WS6"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    with open_socket(api) as ws, open_socket(api) as reader:
        reader.follow(topic)
        assert reader.expect("caught_up")
        server.run(disk.hold_syncs)
        ws.say("publish", topic=topic, records=ONE)
        server.until(lambda: disk.held_syncs)
        reader.synced()
        server.run(disk.release_syncs)
        assert ws.expect("ack") and reader.data(1) == [1]


# --- scopes and prefixes


def test_scopes_and_prefixes_are_checked_per_command(start: Start) -> None:
    """WS7, AU6, AU8, Appendix A.1"""
    server = start(api_keys="root,r:read:a.,w:write:a.,d:delete")
    root = Client(server.address, "root")
    root.write("a.1", 1)
    root.write("b.1", 1)
    with Socket(server.address, "r") as ws:
        assert ws.ask("publish", topic="a.1", records=ONE, request_id=1)["code"] == "forbidden"
        assert ws.ask("subscribe", topic="b.1")["code"] == "forbidden"
        assert ws.ask("subscribe", topics={"a.1": {}, "b.1": {}})["code"] == "forbidden"
        assert ws.ask("subscribe", topics={"a.1": {}, "b.none": {}}, lenient=True)["code"] == "forbidden"
        assert ws.follow("a.1")["head_seq"] == 1
        assert ws.data(1) == [1] and ws.expect("caught_up")
        assert ws.ask("unsubscribe", topic="b.1") == {"op": "unsubscribed", "topics": ["b.1"]}
    with Socket(server.address, "w") as ws:
        assert ws.ask("subscribe", topic="a.1")["code"] == "forbidden"
        assert ws.ask("publish", topic="b.1", records=ONE)["code"] == "forbidden"
        assert ws.ask("publish", topic="a.2", records=ONE)["op"] == "ack"
    with Socket(server.address, "d") as ws:
        for op in ("publish", "subscribe"):
            error = ws.ask(op, topic="a.1", records=ONE, request_id=op)
            assert (error["code"], error["request_id"]) == ("forbidden", op)
        assert ws.ask("unsubscribe", topic="a.1")["op"] == "unsubscribed"
        assert ws.ask("ping") == {"op": "pong"}
    assert root.state("b.1")["head_seq"] == 1


def test_a_publish_with_config_always_needs_admin(start: Start) -> None:
    """AU7, AU8, S21: even if the topic exists; and the dead letter must be the key's to name."""
    server = start(api_keys="root,w:write,aw:write+admin:a.")
    root = Client(server.address, "root")
    root.create("a.exists")
    with Socket(server.address, "w") as ws:
        assert ws.ask("publish", topic="a.exists", records=ONE, config={})["code"] == "forbidden"
        assert ws.ask("publish", topic="a.new", records=ONE, config={})["code"] == "forbidden"
        assert ws.ask("publish", topic="a.exists", records=ONE, config=None)["op"] == "ack"
    with Socket(server.address, "aw") as ws:
        assert ws.ask("publish", topic="a.exists", records=ONE, config={})["op"] == "ack"
        outside = {"type": "queue", "dead_letter": "b.dead"}
        assert ws.ask("publish", topic="a.q", records=ONE, config=outside)["code"] == "forbidden"
        assert ws.ask("publish", topic="a.q", records=ONE, config=outside | {"dead_letter": "a.dead"})["op"] == "ack"
    assert root.state("a.q")["config"]["dead_letter"] == "a.dead"


# --- pressure


def test_a_publish_under_pressure_waits_and_is_refused_like_a_write(start: Start, topic: str) -> None:
    """PR7, WS9, CV11: and later commands wait for it."""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with open_socket(api) as ws:
        under_pressure(server)
        before = server.run(lambda: server.clock.waits)
        ws.say("publish", topic=topic, records=records("refused"), request_id=1)
        ws.say("ping", request_id=2)
        server.until(lambda: server.clock.waits > before)
        server.advance(1000)
        error = ws.expect("error")
        assert (error["code"], error["request_id"]) == ("throttled", 1)
        assert error["detail"]["retry_after_ms"] > 0
        assert ws.message() == {"op": "pong", "request_id": 2}
        before = server.run(lambda: server.clock.waits)
        ws.say("publish", topic=topic, records=records("parked"))
        server.until(lambda: server.clock.waits > before)
        server.advance(400)
        under_pressure(server, 0.0)
        assert ws.expect("ack")["performance"]["throttle_wait_ms"] >= 400
    assert api.data(topic) == ["parked"]


def test_a_patient_publish_waits_for_as_long_as_it_takes(start: Start, topic: str) -> None:
    """WR15"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with open_socket(api) as ws:
        under_pressure(server)
        before = server.run(lambda: server.clock.waits)
        ws.say("publish", topic=topic, records=ONE, disable_backpressure=True)
        server.until(lambda: server.clock.waits > before)
        server.advance(20_000)
        under_pressure(server, 0.0)
        assert ws.expect("ack")["performance"]["throttle_wait_ms"] >= 20_000


def test_what_comes_before_pressure_is_answered_at_once(start: Start, topic: str) -> None:
    """WR14"""
    server = start()
    with open_socket(Client(server.address)) as ws:
        under_pressure(server)
        assert ws.ask("publish", topic=topic, records=ONE, create=False)["code"] == "topic_not_found"
        assert ws.ask("publish", topic="-bad", records=ONE)["code"] == "invalid_request"
        assert ws.ask("publish", topic=topic, records=[])["code"] == "invalid_request"


def test_a_subscribe_under_pressure_is_parked_like_a_watch(start: Start, topic: str) -> None:
    """PR7"""
    server = start()
    api = Client(server.address)
    api.write(topic, 1)
    with open_socket(api) as ws:
        under_pressure(server)
        before = server.run(lambda: server.clock.waits)
        ws.say("subscribe", topic=topic, request_id=1)
        server.until(lambda: server.clock.waits > before)
        server.advance(1000)
        assert ws.expect("error")["code"] == "throttled"
        under_pressure(server, 0.0)
        ws.follow(topic)
        assert ws.data(1) == [1]


@pytest.mark.parametrize("goodbye", [client_frame(CLOSE), b""], ids=["close", "eof"])
def test_a_client_that_leaves_while_parked_is_forgotten(start: Start, topic: str, goodbye: bytes) -> None:
    """PR7, LM5, G15"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    under_pressure(server)
    with open_socket(api) as ws:
        before = server.run(lambda: server.clock.waits)
        ws.say("publish", topic=topic, records=ONE, disable_backpressure=True)
        server.until(lambda: server.clock.waits > before)
        ws.send(goodbye)
        ws.socket.shutdown(socket.SHUT_WR)
        while ws.receive():
            pass
    server.until(lambda: not server.server.app.slots.streams)
    under_pressure(server, 0.0)
    assert api.state(topic)["head_seq"] == 0


def test_a_subscriber_whose_topics_are_held_back_is_told_once(start: Start, topic: str) -> None:
    """PR6"""
    server = start()
    api = Client(server.address)
    api.create(topic, priority=-5)
    with open_socket(api) as ws:
        ws.follow(topic)
        assert ws.expect("caught_up")
        under_pressure(server, 0.6)
        api.write(topic, 1)
        server.advance(50)
        error = ws.expect("error")
        assert (error["code"], error["detail"]["topics"]) == ("throttled", [topic])
        assert error["detail"]["retry_after_ms"] > 0 and "request_id" not in error
        api.write(topic, 2)
        server.advance(50)
        ws.synced()
        under_pressure(server, 0.0)
        assert ws.data(2) == [1, 2]


# --- shutdown


def test_at_shutdown_a_socket_is_told_and_closed(start: Start, topic: str) -> None:
    """WS10, SC3, WS9: what ran before is answered first."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    with open_socket(api) as idle, open_socket(api) as busy:
        server.run(disk.hold_syncs)
        busy.say("publish", topic=topic, records=ONE, request_id=1)
        server.until(lambda: disk.held_syncs)
        closing = server.start_closing()
        error = idle.expect("error")
        assert error["code"] == "server_shutting_down" and error["message"] and "request_id" not in error
        idle.expect_close(1001)
        refused(api.send(handshake()), 503, "shutting_down")
        server.run(disk.release_syncs)
        assert busy.expect("ack")["request_id"] == 1
        assert busy.expect("error")["code"] == "server_shutting_down"
        busy.expect_close(1001)
        for ws in (idle, busy):
            ws.send(client_frame(CLOSE, b"\x03\xe9"))
            ws.socket.close()
    closing.result(PATIENCE_S)
