"""Answers, whatever the endpoint: their JSON, times, server-made fields, performance."""

import pytest

from tests.api.clients.transcript import (
    DELETE_PERFORMANCE,
    DIFF_PERFORMANCE,
    PERFORMANCE,
    WRITE_PERFORMANCE,
    Client,
    ok,
    tight,
)
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


def test_answers_are_json_without_blanks_between_tokens(api: Client, topic: str) -> None:
    """CV5, CV10"""
    replies = [
        api.put(f"/v0/topics/{topic}", {"priority": 3}),
        api.post(f"/v0/topics/{topic}", {"records": [{"data": {"a": [1, 2]}, "meta": {"b": "ü c"}, "tag": "t"}]}),
        api.post(f"/v0/topics/{topic}/diff", {"include_tags": True}),
        api.get(f"/v0/topics/{topic}"),
        api.get("/v0/topics?page_size=3"),
        api.post(f"/v0/topics/{topic}/delete", {"before_seq": 5}),
        api.delete(f"/v0/topics/{topic}"),
        api.get(f"/v0/topics/{topic}"),
        api.get("/nowhere"),
        api.get("/v0/health"),
        api.get("/v0/ready"),
        api.get("/v0/metrics", "Accept: application/json"),
    ]
    for reply in replies:
        assert reply.headers["content-type"] == "application/json"
        assert tight(reply.body), reply.body
        reply.body.decode()
        assert ("error" in reply.json) == (reply.status >= 400)


VERBATIM = [
    b'{"b":1.0,"a":12345678901234567890,"b":1e400}',
    b"null",
    b"true",
    b'""',
    b'"\\u00e9\\/\\u0000"',
    '"é\U0001f600\u2028"'.encode(),
    b'"\\ud83d\\ude00"',
    b"[ 1 , 2.50 ,\t-0.0, 1E+2 ]",
    b'{ "a" : { } , "":[ ] }',
    b"-0",
    b"123456789012345678901234567890.000000000000000000001",
    b'{"$seq":7,"error":{"code":"x"},"records":[]}',
    b"[" * 128 + b"]" * 128,
]


@pytest.mark.parametrize("text", VERBATIM, ids=repr)
def test_data_and_meta_come_back_byte_for_byte(api: Client, topic: str, text: bytes) -> None:
    """CV6, CV20, CV21: key order, repeated keys, spelling of numbers, blanks."""
    meta = b'{"k":' + text + b',"k" :1.50}'
    reply = api.post(f"/v0/topics/{topic}", b'{"records":[{"data":' + text + b',"meta":' + meta + b"}]}")
    assert reply.status == 201, reply
    expected = b'"data":' + text + b',"meta":' + meta + b"}"
    for _ in range(2):
        assert expected in api.post(f"/v0/topics/{topic}/diff", {}).body
    assert expected in api.get(f"/v0/topics/{topic}/diff?from_seq=0").body
    assert ok(api.get(f"/v0/topics/{topic}"))["bytes"] == len(text) + len(meta)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (b'{\n "a": "x y",\r\n "b" : [ 1 , 2 ] }', b'{"a":"x y","b":[1,2]}'),
        (b"[1,\r2]", b"[1,2]"),
        (b'{"a":\n1.50, "a": 1e400 }', b'{"a":1.50,"a":1e400}'),
        (b'{"a":\n"\\n \\u00e9"}', b'{"a":"\\n \\u00e9"}'),
        (b'{ "a" : 1 }', b'{ "a" : 1 }'),
    ],
    ids=repr,
)
def test_a_line_break_between_tokens_takes_all_blanks_with_it(
    api: Client, topic: str, sent: bytes, stored: bytes
) -> None:
    """CV26, TP15: data and meta each by itself; the size is that of what is stored."""
    body = b'{"records":[{"data":' + sent + b',"meta":{ "m":' + sent + b'}},\n{"data": [ 1 ],"meta":{ "k": 2 }}]\n}'
    assert api.post(f"/v0/topics/{topic}", body).status == 201
    meta = b'{ "m":' + sent + b"}" if sent == stored else b'{"m":' + stored + b"}"
    text = api.post(f"/v0/topics/{topic}/diff", {}).body
    assert b'"data":' + stored + b',"meta":' + meta + b"}" in text
    assert b'"data":[ 1 ],"meta":{ "k": 2 }}' in text
    assert ok(api.get(f"/v0/topics/{topic}"))["bytes"] == len(stored) + len(meta) + len(b'[ 1 ]{ "k": 2 }')


def test_times_are_epoch_milliseconds_of_the_injected_clock(server: ServerThread, api: Client, topic: str) -> None:
    """CV8, CV25, WR6"""
    api.write(topic, 1)
    (record,) = api.diff(topic)["records"]
    state = ok(api.get(f"/v0/topics/{topic}"))
    now = server.clock.now_ms()
    assert record["$ts"] == state["last_write_ts"] == state["last_read_ts"] == now
    assert all(type(value) is int for value in (record["$ts"], state["last_write_ts"], state["last_read_ts"]))


def test_server_made_fields_carry_a_dollar_and_absent_ones_are_left_out(api: Client, topic: str) -> None:
    """CV9"""
    api.write_records(
        topic, {"data": None}, {"data": 2, "tag": "t", "node": "n", "meta": {}}, {"data": 3, "meta": None}
    )
    plain, full, nulled = api.diff(topic, include_tags=True)["records"]
    assert list(plain) == list(nulled) == ["$seq", "$ts", "data"]
    assert plain["data"] is None
    assert sorted(full) == ["$node", "$seq", "$tag", "$ts", "data", "meta"]
    assert (full["$node"], full["$tag"], full["meta"]) == ("n", "t", {})
    assert sorted(api.diff(topic)["records"][1]) == ["$node", "$seq", "$ts", "data", "meta"]
    assert sorted(api.diff(topic, include_meta=False)["records"][1]) == ["$node", "$seq", "$ts", "data"]


def test_every_success_carries_its_performance(api: Client, topic: str) -> None:
    """CV11"""
    ok(api.put(f"/v0/topics/{topic}", {}), 201, PERFORMANCE)
    write = api.post(f"/v0/topics/{topic}", ONE)
    ok(write, 200, WRITE_PERFORMANCE)
    assert write.json["performance"]["fsync_ms"] == write.json["performance"]["throttle_wait_ms"] == 0.0
    diff = api.post(f"/v0/topics/{topic}/diff", {})
    ok(diff, 200, DIFF_PERFORMANCE)
    assert diff.json["performance"]["records_scanned"] == 1
    assert diff.json["performance"]["throttle_wait_ms"] == 0.0
    ok(api.get(f"/v0/topics/{topic}"), 200, PERFORMANCE)
    ok(api.get("/v0/topics?page_size=1"), 200, PERFORMANCE)
    deleted = api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2})
    ok(deleted, 200, DELETE_PERFORMANCE)
    assert deleted.json["performance"]["fsync_ms"] == 0.0
    ok(api.delete(f"/v0/topics/{topic}"), 200, PERFORMANCE)
    for path in ("/v0/health", "/v0/ready", "/v0/metrics", f"/v0/topics/{topic}"):
        assert "performance" not in api.get(path, "Accept: application/json").json


def test_skipped_seqs_count_as_scanned(api: Client, topic: str) -> None:
    """CV11"""
    api.write(topic, 1, 2, 3, node="me")
    api.write(topic, 4)
    reply = api.post(f"/v0/topics/{topic}/diff", {"node": "me"})
    assert reply.json["performance"]["records_scanned"] == 4
