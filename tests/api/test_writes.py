"""Writes: records, limits, atomicity, order, caps, and the order of refusals."""

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.clients.transcript import WRITE_PERFORMANCE, Client, Connection, ok, refused
from tests.api.conftest import Start
from tests.api.test_topics import at_once
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


def test_a_write_that_creates_answers_201_with_these_fields(api: Client, topic: str) -> None:
    """WR1, WR8"""
    reply = api.post(f"/v0/topics/{topic}", {"records": [{"data": n} for n in range(3)]})
    assert list(reply.json) == [
        *("topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped", "performance"),
    ]
    first = {"topic": topic, "first_seq": 1, "last_seq": 3, "seqs": [1, 2, 3], "head_seq": 3, "count": 3}
    assert ok(reply, 201, WRITE_PERFORMANCE) == first | {"created": True, "deduped": False}
    second = ok(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 2}]}), 200, WRITE_PERFORMANCE)
    assert second == {
        "topic": topic,
        "first_seq": 4,
        "last_seq": 5,
        "seqs": [4, 5],
        "head_seq": 5,
        "count": 2,
        "created": False,
        "deduped": False,
    }


def test_seqs_can_be_left_out(api: Client, topic: str) -> None:
    """WR8"""
    answer = ok(api.post(f"/v0/topics/{topic}?return_seqs=false", {"records": [{"data": 1}] * 5}), 201)
    assert "seqs" not in answer
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 5, 5)
    assert "seqs" not in ok(api.post(f"/v0/topics/{topic}?return_seqs=0", ONE))


BAD_RECORDS: list[Any] = [
    {"records": [{}]},
    {"records": [{"tag": "x"}]},
    {"records": [{"data": 1}, {"meta": {}}]},
    {"records": [1]},
    {"records": ["x"]},
    {"records": [[]]},
    {"records": [None]},
    {"records": {}},
    {"records": {"data": 1}},
    {"records": "x"},
    {"records": []},
    {"records": None},
    {},
    {"record": [{"data": 1}]},
    *({"records": [{"data": 1, "meta": value}]} for value in ([], "x", 1, True, [[]])),
    *({"records": [{"data": 1, "tag": value}]} for value in (1, [], {}, True)),
    *({"records": [{"data": 1, "node": value}]} for value in (1, [], ["a"], True)),
    *({"records": [{"data": 1}], "node": value} for value in (1, [], ["a"], {}, False)),
    *({"records": [{"data": 1}], "idempotency_key": value} for value in (1, [], True, {})),
    *({"records": [{"data": 1}], "create": value} for value in (0, 1, "true", [])),
    *({"records": [{"data": 1}], "config": value} for value in (1, [], "x", True)),
    *({"records": [{"data": 1}], "disable_backpressure": value} for value in (0, "true", [])),
]


@pytest.mark.parametrize("body", BAD_RECORDS, ids=lambda body: json.dumps(body)[:60])
def test_a_malformed_write_is_refused_and_creates_nothing(api: Client, topic: str, body: dict[str, Any]) -> None:
    """WR1, WR3, WR14, WR4"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", body), 400, "invalid_request", None)
    assert api.everything() == before
    api.create(f"{topic}-there")
    refused(api.post(f"/v0/topics/{topic}-there", body), 400, "invalid_request", None)
    assert api.state(f"{topic}-there")["head_seq"] == 0


def test_empty_strings_are_legal_tags_and_nodes(api: Client, topic: str) -> None:
    """WR1"""
    api.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": "", "node": ""}, {"data": 2}], "node": ""})
    records = api.diff(topic, include_tags=True)["records"]
    assert [(record.get("$tag"), record.get("$node")) for record in records] == [("", ""), (None, "")]
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"match": ""}))["deleted"] == 1
    assert api.diff(topic, node="")["records"] == []


def test_a_records_node_beats_the_batchs(api: Client, topic: str) -> None:
    """WR2"""
    records = [{"data": 1, "node": "own"}, {"data": 2}, {"data": 3, "node": None}]
    api.post(f"/v0/topics/{topic}", {"records": records, "node": "batch"})
    assert [record["$node"] for record in api.diff(topic)["records"]] == ["own", "batch", "batch"]


# --- limits


LIMITS: list[tuple[Any, Any, str]] = [
    ({"records": [{"data": 1}] * 5}, {"records": [{"data": 1}] * 6}, "batch_too_large"),
    ({"records": [{"data": "x" * 98}]}, {"records": [{"data": "x" * 99}]}, "record_too_large"),
    (
        {"records": [{"data": "x" * 78, "meta": {"a": "y" * 12}}]},
        {"records": [{"data": "x" * 79, "meta": {"a": "y" * 12}}]},
        "record_too_large",
    ),
    (
        {"records": [{"data": 1, "meta": {"a": "y" * 42}}]},
        {"records": [{"data": 1, "meta": {"a": "y" * 43}}]},
        "invalid_request",
    ),
    ({"records": [{"data": 1, "tag": "t" * 10}]}, {"records": [{"data": 1, "tag": "t" * 11}]}, "invalid_request"),
    ({"records": [{"data": 1, "tag": "é" * 5}]}, {"records": [{"data": 1, "tag": "é" * 5 + "x"}]}, "invalid_request"),
    ({"records": [{"data": 1, "node": "n" * 8}]}, {"records": [{"data": 1, "node": "n" * 9}]}, "invalid_request"),
    ({"records": [{"data": 1}], "node": "n" * 8}, {"records": [{"data": 1}], "node": "n" * 9}, "invalid_request"),
    (
        {"records": [{"data": 1}], "idempotency_key": "é" * 256},
        {"records": [{"data": 1}], "idempotency_key": "k" * 257},
        "invalid_request",
    ),
]


@pytest.mark.parametrize(("fits", "above", "code"), LIMITS, ids=lambda value: str(value)[:50])
def test_a_write_at_a_limit_passes_and_one_above_is_refused(
    start: Start, topic: str, fits: Any, above: Any, code: str
) -> None:
    """WR3, LM7"""
    api = Client(
        start(max_batch_records=5, max_record_bytes=100, max_meta_bytes=50, max_tag_bytes=10, max_node_bytes=8).address
    )
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", above), 400, code, None)
    assert api.everything() == before
    assert api.post(f"/v0/topics/{topic}", fits).status == 201


def test_the_default_limits_are_those_of_the_contract(api: Client, topic: str) -> None:
    """WR3, LM7"""
    path = f"/v0/topics/{topic}"
    assert api.post(path, {"records": [{"data": 0}] * 10_000}).status == 201
    before = api.everything()
    refused(api.post(path, {"records": [{"data": 0}] * 10_001}), 400, "batch_too_large", None)
    assert api.post(path, {"records": [{"data": "x" * (1_048_576 - 2)}]}).status == 200
    refused(api.post(path, {"records": [{"data": "x" * (1_048_576 - 1)}]}), 400, "record_too_large", None)
    assert api.post(path, {"records": [{"data": 1, "meta": {str(n): 1 for n in range(64)}}]}).status == 200
    refused(api.post(path, {"records": [{"data": 1, "meta": {str(n): 1 for n in range(65)}}]}), 400, "invalid_request")
    meta = {"m": "x" * (16_384 - len('{"m":""}'))}
    assert api.post(path, {"records": [{"data": 1, "meta": meta}]}).status == 200
    refused(api.post(path, {"records": [{"data": 1, "meta": {"m": meta["m"] + "x"}}]}), 400, "invalid_request")
    for field, size in (("tag", 256), ("node", 128)):
        assert api.post(path, {"records": [{"data": 1, field: "x" * size}]}).status == 200
        refused(api.post(path, {"records": [{"data": 1, field: "x" * (size + 1)}]}), 400, "invalid_request")
    assert api.state(topic)["head_seq"] == 10_005
    assert before[0] != api.everything()[0]


def test_repeated_meta_keys_are_counted_or_not_but_never_break(api: Client, topic: str) -> None:
    """WR3, CV20"""
    keys = ",".join('"k":1' for _ in range(200))
    reply = api.post(f"/v0/topics/{topic}", f'{{"records":[{{"data":1,"meta":{{{keys}}}}}]}}')
    assert reply.status in (201, 400)


def test_one_bad_record_refuses_all(api: Client, topic: str) -> None:
    """WR4"""
    api.create(topic)
    good = [{"data": n} for n in range(100)]
    for bad in ({"tag": "x"}, {"data": 1, "tag": "x" * 257}, {"data": 1, "meta": 5}, {"data": "x" * 1_048_576}):
        reply = api.post(f"/v0/topics/{topic}", {"records": [*good, bad, *good]})
        assert reply.status == 400
        assert "100" in reply.json["error"]["message"]
    assert api.state(topic)["head_seq"] == 0


# --- order


def test_seqs_are_dense_and_in_the_order_of_the_array(api: Client, topic: str) -> None:
    """WR4, WR5"""
    api.write(topic, *range(5))
    api.write(topic, 5)
    api.write(topic, *range(6, 9))
    assert [(r["$seq"], r["data"]) for r in api.diff(topic)["records"]] == [(n + 1, n) for n in range(9)]


def test_concurrent_batches_stay_whole_and_seqs_dense(api: Client, topic: str) -> None:
    """WR4, WR5"""

    def batch(writer: int) -> Any:
        return lambda: api.post(f"/v0/topics/{topic}", {"records": [{"data": [writer, n]} for n in range(20)]})

    replies = at_once(*(batch(writer) for writer in range(10)))
    assert sorted(seq for reply in replies for seq in reply.json["seqs"]) == list(range(1, 201))
    data = api.data(topic, limit=1000)
    for at in range(0, 200, 20):
        assert data[at : at + 20] == [[data[at][0], n] for n in range(20)]


def test_the_time_of_records_never_falls(start: Start, topic: str) -> None:
    """WR6"""
    server = start()
    api = Client(server.address)
    first = server.clock.now_ms()
    api.write(topic, 1)
    server.run(lambda: server.clock.set(first - 10_000))
    api.write(topic, 2)
    server.run(lambda: server.clock.set(first + 5))
    api.write(topic, 3)
    assert [record["$ts"] for record in api.diff(topic)["records"]] == [first, first, first + 5]


# --- creation


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 201),
        ({"create": True}, 201),
        ({"create": None}, 201),
        ({"create": False}, 404),
        ({"config": {}}, 201),
        ({"config": {"auto_create": True}}, 201),
        ({"config": {"auto_create": False}}, 404),
        ({"create": True, "config": {"auto_create": False}}, 201),
        ({"create": False, "config": {"auto_create": True}}, 404),
        ({"create": None, "config": {"auto_create": False}}, 404),
    ],
    ids=str,
)
def test_who_decides_whether_a_write_creates(api: Client, topic: str, fields: dict[str, Any], status: int) -> None:
    """WR7, WR8"""
    before = api.everything()
    reply = api.post(f"/v0/topics/{topic}", ONE | fields)
    if status == 404:
        refused(reply, 404, "topic_not_found", {"topic": topic})
        assert api.everything() == before
    else:
        assert ok(reply, 201)["created"] is True


def test_the_inline_config_counts_only_for_the_write_that_creates(api: Client, topic: str) -> None:
    """WR7"""
    config = {"cap_records": 3, "type": "queue", "auto_create": True, "durable": True}
    assert api.post(f"/v0/topics/{topic}", ONE | {"config": config}).status == 201
    stored = api.state(topic)["config"]
    assert (stored["cap_records"], stored["type"], stored["durability"]) == (3, "queue", "fsync")
    again = api.post(f"/v0/topics/{topic}", ONE | {"config": {"type": "log", "cap_records": 1}, "create": False})
    assert again.status == 200
    assert api.state(topic)["config"] == stored
    refused(api.post(f"/v0/topics/{topic}", ONE | {"config": {"cap_records": -1}}), 400, "invalid_request")


def test_a_topics_own_auto_create_does_not_matter_once_it_exists(api: Client, topic: str) -> None:
    """WR7"""
    api.create(topic, auto_create=False)
    assert api.post(f"/v0/topics/{topic}", ONE).status == 200


# --- acks and visibility


def test_an_fsync_write_is_neither_acked_nor_seen_before_its_sync(start: Start, topic: str) -> None:
    """WR9, WR10, CV11: while the disk holds the sync back, a disk topic goes on."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        api.create(f"{topic}.{durability}", durability=durability)
    server.run(disk.hold_syncs)
    try:
        for durability in ("ephemeral", "memory", "disk"):
            api.write(f"{topic}.{durability}", 1)
            assert api.data(f"{topic}.{durability}") == [1]
        with api.connect() as writer, api.connect() as reader:
            writer.send(api.request("POST", f"/v0/topics/{topic}.fsync", ONE))
            server.until(lambda: disk.held_syncs)
            reader.send(api.request("POST", f"/v0/topics/{topic}.fsync/diff", {}))
            assert api.metrics()["topics"] >= 4
            for connection in (writer, reader):
                connection.socket.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.socket.recv(1)
                connection.socket.settimeout(PATIENCE_S)
            server.run(disk.release_syncs)
            written, read = writer.reply(), reader.reply()
    finally:
        server.run(disk.release_syncs)
    assert ok(written, 200, WRITE_PERFORMANCE)["seqs"] == [1]
    assert [record["data"] for record in ok(read)["records"]] in ([], [1])
    assert api.data(f"{topic}.fsync") == [1]


def is_silent(connection: Connection) -> bool:
    connection.socket.setblocking(False)
    try:
        return not connection.socket.recv(1)
    except BlockingIOError:
        return True
    finally:
        connection.socket.settimeout(PATIENCE_S)


def test_what_is_not_synced_yet_is_in_no_answer_and_gone_if_the_sync_fails(start: Start, topic: str) -> None:
    """WR10, TP13, ER7, ST4, G13: reads that depend on it wait, and are made anew without it."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    api.write(topic, 1)
    server.run(disk.hold_syncs)
    asked = {
        "write": ("POST", f"/v0/topics/{topic}", ONE),
        "create": ("PUT", f"/v0/topics/{topic}-new", {}),
        "state": ("GET", f"/v0/topics/{topic}", None),
        "new state": ("GET", f"/v0/topics/{topic}-new", None),
        "diff": ("POST", f"/v0/topics/{topic}/diff", {"from_seq": 1, "wait_ms": 0}),
        "list": ("GET", f"/v0/topics?prefix={topic}", None),
        "export": ("GET", f"/v0/topics/{topic}/export", None),
        "metrics": ("GET", "/v0/metrics", None),
    }
    replies = {}
    with ExitStack() as stack:
        connections = {}
        for what, (method, path, body) in asked.items():
            connections[what] = stack.enter_context(api.connect())
            connections[what].send(api.request(method, path, body))
            if what == "write":
                server.until(lambda: disk.held_syncs)
        assert api.get("/v0/health").status == 200
        shown = {what for what, connection in connections.items() if not is_silent(connection)}
        assert not shown & {"write", "create", "state", "diff", "list"}, shown
        fault = Faulty("sync", times=None)
        server.run(lambda: disk.hooks.append(fault))
        server.run(disk.release_syncs)
        replies["write"] = connections["write"].reply()
        server.run(lambda: disk.hooks.remove(fault))
        for what in asked:
            if what not in replies and what not in shown:
                replies[what] = connections[what].reply()
    refused(replies["write"], 500, "internal", None)
    refused(replies["create"], 500, "internal", None)
    assert ok(replies["state"])["head_seq"] == 1
    refused(replies["new state"], 404, "topic_not_found")
    assert ok(replies["diff"])["records"] == []
    assert [(entry["topic"], entry["count"]) for entry in ok(replies["list"])["topics"]] == [(topic, 1)]
    assert f'topics_topic_head_seq{{topic="{topic}"}} 1' in replies["metrics"].body.decode()
    # no fresh file could be begun either, so the log takes no more writes; reads go on
    refused(api.post(f"/v0/topics/{topic}", ONE), 500, "internal", None)
    refused(api.put(f"/v0/topics/{topic}-new", {}), 500, "internal", None)
    assert api.data(topic) == [1]
    assert "topics_wal_read_only 1" in api.get("/v0/metrics").body.decode()
    assert api.metrics()["wal"]["read_only"] in (True, 1)


def test_a_long_poll_does_not_hear_of_a_write_that_fails(start: Start, topic: str) -> None:
    """WR10, DF10, G13"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    with api.connect() as poll:
        poll.send(api.request("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))
        server.until(lambda: server.clock.waits)
        fault = Faulty("sync")
        server.run(lambda: disk.hooks.append(fault))
        refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": "lost"}]}), 500, "internal")
        server.until(lambda: server.clock.waits)
        assert is_silent(poll)
        assert api.write(topic, "kept")["seqs"] == [1]
        answer = ok(poll.reply())
    assert [(record["$seq"], record["data"]) for record in answer["records"]] == [(1, "kept")]


def test_writes_racing_under_a_key_whose_first_fails_leave_one_copy_at_most(start: Start, topic: str) -> None:
    """ID3, ID4, ER7"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    server.run(disk.hold_syncs)
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    with api.connect() as first, api.connect() as second:
        for connection in (first, second):
            connection.send(api.request("POST", f"/v0/topics/{topic}", body))
            server.until(lambda: disk.held_syncs)
        assert api.get("/v0/health").status == 200
        fault = Faulty("sync")
        server.run(lambda: disk.hooks.append(fault))
        server.run(disk.release_syncs)
        replies = [first.reply(), second.reply()]
    assert replies[0].status == 500
    assert replies[1].status in (200, 500)
    again = ok(api.post(f"/v0/topics/{topic}", body))
    assert again["seqs"] == [1]
    assert again["deduped"] is (replies[1].status == 200)
    assert api.data(topic) == [1]


def test_pipelined_requests_see_each_other_in_order(api: Client, topic: str) -> None:
    """WR5, CV16"""
    api.create(topic)
    with api.connect() as connection:
        requests = []
        for n in range(20):
            requests.append(api.request("POST", f"/v0/topics/{topic}", {"records": [{"data": n}]}))
            requests.append(api.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": n}))
        connection.send(b"".join(requests))
        for n in range(20):
            assert ok(connection.reply())["seqs"] == [n + 1]
            assert [record["data"] for record in ok(connection.reply())["records"]] == [n]


# --- caps


def test_discard_old_makes_room_and_reject_refuses(api: Client, topic: str) -> None:
    """WR11"""
    api.create(f"{topic}.old", cap_records=3)
    api.create(f"{topic}.no", cap_records=3, discard="reject")
    for name in ("old", "no"):
        api.write(f"{topic}.{name}", 1, 2)
    assert api.write(f"{topic}.old", 3, 4)["seqs"] == [3, 4]
    assert api.data(f"{topic}.old", 1) == [2, 3, 4]
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}.no", {"records": [{"data": 3}, {"data": 4}]}), 422, "topic_full")
    assert api.everything() == before
    assert api.write(f"{topic}.no", 3)["seqs"] == [3]


def test_bytes_are_capped_as_well(api: Client, topic: str) -> None:
    """WR11, TP15"""
    api.create(topic, cap_bytes=10, discard="reject")
    api.write(topic, "abc")
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": "abcd"}]}), 422, "topic_full")
    assert api.write(topic, "cde")["seqs"] == [2]


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_record_larger_than_the_cap_never_fits(api: Client, topic: str, discard: str) -> None:
    """WR12"""
    api.create(topic, cap_bytes=10, discard=discard)
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": "x" * 9}]}), 400, "record_too_large")
    assert api.everything() == before
    assert api.post(f"/v0/topics/{topic}", {"records": [{"data": "x" * 8}]}).status == 200


def test_a_batch_larger_than_the_cap_is_trimmed_under_old_and_refused_under_reject(api: Client, topic: str) -> None:
    """WR12"""
    for caps in ({"cap_records": 2}, {"cap_bytes": 2}):
        old, reject = f"{topic}.old.{next(iter(caps))}", f"{topic}.reject.{next(iter(caps))}"
        api.create(old, **caps)
        api.create(reject, discard="reject", **caps)
        body = {"records": [{"data": n} for n in range(1, 6)]}
        assert ok(api.post(f"/v0/topics/{old}", body))["seqs"] == [1, 2, 3, 4, 5]
        answer = api.diff(old)
        assert [record["data"] for record in answer["records"]] == [4, 5]
        assert (answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]) == (3, "cap")
        refused(api.post(f"/v0/topics/{reject}", body), 400, "record_too_large")
        assert api.state(reject)["head_seq"] == 0


def test_expired_records_do_not_fill_a_cap(server: ServerThread, api: Client, topic: str) -> None:
    """WR13"""
    api.create(topic, ttl_ms=100, cap_records=2, discard="reject")
    api.write(topic, 1, 2)
    server.advance(100)
    refused(api.post(f"/v0/topics/{topic}", ONE), 422, "topic_full")
    server.advance(1)
    assert api.write(topic, 3, 4)["seqs"] == [3, 4]


def test_a_refused_write_leaves_no_topic_behind(api: Client, topic: str) -> None:
    """WR14"""
    before = api.everything()
    too_large = {"records": [{"data": "x" * 100}], "config": {"cap_bytes": 50}}
    refused(api.post(f"/v0/topics/{topic}", too_large), 400, "record_too_large")
    too_many = {"records": [{"data": 1}] * 3, "config": {"cap_records": 2, "discard": "reject"}}
    refused(api.post(f"/v0/topics/{topic}", too_many), 400, "record_too_large")
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert api.everything() == before


# --- the order of refusals


LONG_KEY = "k" * 300
BIG_TAG = {"data": 1, "tag": "t" * 300}


@pytest.mark.parametrize(
    ("name", "body", "headers", "status", "code"),
    [
        ("x", b"not JSON", ("Content-Type: text/plain", "Content-Length: 99999999"), 415, "unsupported_media_type"),
        ("x", None, ("Content-Type: application/json", "Content-Length: 99999999"), 413, "payload_too_large"),
        ("-bad", b"not JSON", (), 400, "invalid_request"),
        ("x", {"records": [BIG_TAG] * 11, "idempotency_key": 5}, (), 400, "invalid_request"),
        ("x", {"records": [{"data": 1}] * 11, "config": {"cap_records": -1}}, (), 400, "invalid_request"),
        ("x", {"records": [{"data": 1}], "create": False, "config": {"lease_ms": -1}}, (), 400, "invalid_request"),
        ("x", {"records": [BIG_TAG] * 11, "idempotency_key": LONG_KEY}, (), 400, "batch_too_large"),
        ("x", {"records": [{"data": "x" * 200}], "idempotency_key": LONG_KEY}, (), 400, "invalid_request"),
        ("x", {"records": [{"data": "x" * 200}], "create": False}, (), 400, "record_too_large"),
        ("-bad", {"records": [{"data": "x" * 200}]}, (), 400, "record_too_large"),
        ("-bad", {"records": [{"data": 1}], "create": False}, (), 404, "topic_not_found"),
        ("-bad", {"records": [{"data": 1}], "config": {"cap_bytes": 1}}, (), 400, "invalid_request"),
        ("new", {"records": [{"data": "xx"}], "config": {"cap_bytes": 1}}, (), 429, "throttled"),
        ("full", {"records": [{"data": "x" * 60}]}, (), 400, "record_too_large"),
        ("full", {"records": [{"data": 1}]}, (), 422, "topic_full"),
        ("there", {"records": [{"data": "x" * 90}]}, (), 429, "throttled"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_first_rule_that_a_write_breaks_answers(
    start: Start, name: str, body: Any, headers: tuple[str, ...], status: int, code: str
) -> None:
    """WR14, LM1, LM4: each write breaks several rules, and none changes anything."""
    api = Client(
        start(
            max_batch_records=10, max_record_bytes=100, max_body_bytes=10_000, max_topics=2, max_total_bytes=80
        ).address
    )
    api.create("full", cap_records=1, cap_bytes=50, discard="reject")
    api.write("full", 1)
    api.create("there")
    before = api.everything()
    reply = api.post(f"/v0/topics/{name}", body, *headers)
    refused(reply, status, code)
    if status == 429:
        limit = reply.json["error"]["detail"]["limit"]
        assert limit == ("max_topics" if name == "new" else "max_total_bytes")
    assert api.everything() == before
    if code == "topic_full":
        api.post("/v0/topics/full/delete", {"before_seq": 9})
        keyed = {"records": [{"data": 1}], "idempotency_key": "k"}
        assert ok(api.post("/v0/topics/full", keyed))["deduped"] is False
        assert ok(api.post("/v0/topics/full", keyed))["deduped"] is True
