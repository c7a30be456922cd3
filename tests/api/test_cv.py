"""Conventions: types, encodings, names, numbers, paths and queries, whatever the endpoint."""

import asyncio
import base64
import gzip
import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.api.conftest import Start
from tests.api.rawclient import Http2Client
from tests.api.transcript import (
    DELETE_PERFORMANCE,
    DIFF_PERFORMANCE,
    JSON_TYPE,
    PERFORMANCE,
    WRITE_PERFORMANCE,
    Client,
    ok,
    refused,
    request_bytes,
    tight,
)
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


# --- routes


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/v0", "/v0/", "/v1/topics", "/topics", "/health", "/ready", "/metrics", "/v0/healthz", "/v0/readyz"),
        *("/v0/topics/a/b/c", "/v0/topics/a/unknown", "/v0//topics", "//v0/topics", "/v0/topics//", "/V0/topics"),
        *("/v0/topics/", "/v0/topics/a/", "/v0/health/", "/healthz/", "/v0/topics/a/diff/", "/v0/metrics/"),
        *("/v0/topics/a/../b", "/v0/./topics", "/v0/Topics", "/v0/topics/a/Diff", "/v0/routers/", "/v0/watch/a/b"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_path_outside_the_list_is_not_found_whatever_the_method(api: Client, method: str, path: str) -> None:
    """CV1, CV22, ER3: no redirect, no trailing slash, no guessing."""
    reply = api.ask(method, path, {} if method in ("POST", "PUT") else None)
    refused(reply, 404, "not_found", None)
    assert "location" not in reply.headers


def test_health_and_ready_have_an_alias_outside_v0(api: Client) -> None:
    """CV1"""
    for path, alias in (("/v0/health", "/healthz"), ("/v0/ready", "/readyz")):
        one, other = api.get(path), api.get(alias)
        assert one.status == other.status == 200
        assert list(one.json) == list(other.json)


# --- media types


@pytest.mark.parametrize(
    "value",
    [
        *("application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=UTF-8"),
        *('application/json; charset="utf-8"', "application/json; profile=x", "application/json ; x=y; charset=utf-8"),
        "application/json;",
    ],
)
def test_json_is_accepted_with_parameters_and_in_any_case(api: Client, topic: str, value: str) -> None:
    """CV2"""
    header = f"Content-Type: {value}"
    assert api.put(f"/v0/topics/{topic}", {}, header).status == 201
    assert api.post(f"/v0/topics/{topic}", ONE, header).status == 200
    assert api.post(f"/v0/topics/{topic}/diff", {}, header).status == 200
    assert api.post(f"/v0/topics/{topic}/delete", {"before_seq": 0}, header).status == 200


@pytest.mark.parametrize(
    "value",
    [
        *(None, "text/plain", "text/json", "application/jsonx", "application/json2", "application/vnd.api+json"),
        *("application", "application/", "*/*", "application/*", "application/json, text/plain", ";", ""),
        *("application/json; charset=latin-1", "application/json; charset=utf-16", 'application/json; charset="ascii"'),
        *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "xapplication/json"),
    ],
)
@pytest.mark.parametrize("endpoint", ["", "/diff", "/delete", "PUT"])
def test_another_media_type_is_refused_before_the_body_is_looked_at(
    api: Client, topic: str, endpoint: str, value: str | None
) -> None:
    """CV2, WR14"""
    api.create(topic)
    before = api.everything()
    header = "Content-Type:" if value is None else f"Content-Type: {value} "
    method, path = ("PUT", "") if endpoint == "PUT" else ("POST", endpoint)
    for body in (b"{}", b"this is not JSON \xff"):
        reply = api.ask(method, f"/v0/topics/{topic}{path}", body, header)
        refused(reply, 415, "unsupported_media_type", None)
    assert api.everything() == before


# --- bodies


@pytest.mark.parametrize("headers", [("Content-Type:",), (), ("Content-Type: text/plain",)])
def test_an_empty_body_stands_for_an_empty_object_on_put_and_diff(
    api: Client, topic: str, headers: tuple[str, ...]
) -> None:
    """CV3: whatever the type header says."""
    assert ok(api.put(f"/v0/topics/{topic}", b"", *headers), 201)["created"] is True
    answer = ok(api.post(f"/v0/topics/{topic}/diff", b"", *headers))
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 0, True)


@pytest.mark.parametrize("endpoint", ["", "/delete"])
def test_an_empty_body_elsewhere_is_refused(api: Client, topic: str, endpoint: str) -> None:
    """CV3: 415 without a type, 400 with one."""
    api.create(topic)
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}{endpoint}", b"", "Content-Type:"), 415, "unsupported_media_type", None)
    refused(api.post(f"/v0/topics/{topic}{endpoint}", b""), 400, "invalid_request", None)
    assert api.everything() == before


@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "is_accepted"),
    [
        ("PUT", "", None, b"", True),
        ("POST", "/diff", "text/plain", b"", True),
        ("POST", "/diff", None, b"{}", False),
        ("POST", "/diff", "text/plain", b"not JSON", False),
        ("PUT", "", "text/plain", b"{}", False),
        ("POST", "", None, b"", False),
        ("POST", "/delete", None, b"", False),
    ],
)
def test_a_chunked_body_is_held_to_the_same_rules(
    api: Client, topic: str, method: str, path: str, content_type: str | None, body: bytes, is_accepted: bool
) -> None:
    """CV2, CV3: that it is empty is known only at its end."""
    api.create(topic)
    before = api.everything()
    header = "Content-Type:" if content_type is None else f"Content-Type: {content_type}"
    reply = api.send(chunked(method, f"/v0/topics/{topic}{path}", body, header))
    if is_accepted:
        ok(reply)
    else:
        refused(reply, 415, "unsupported_media_type", None)
    assert api.everything()[1] == before[1]


NOT_AN_OBJECT = [
    b"[]",
    b"[{}]",
    b'"x"',
    b"1",
    b"null",
    b"true",
    b" ",
    b"\n",
    b"{",
    b"{}}",
    b"{} x",
    b'{"a":}',
    b"{'a':1}",
]
BROKEN_JSON = [
    b'{"a":1,}',
    b"{a:1}",
    b'{"a":01}',
    b'{"a":+1}',
    b'{"a":.5}',
    b'{"a":1.}',
    b'{"a":"\x01"}',
    b'{"a":"\\x"}',
]
BROKEN_JSON += [
    b"\xef\xbb\xbf{}",
    b'{"a":tru}',
    b'{"a":1 "b":2}',
    b'{"a":"',
    b"\x00",
    b"{}\x00",
    b"/**/{}",
    b'{"a":"\n"}',
]


@pytest.mark.parametrize("body", NOT_AN_OBJECT + BROKEN_JSON, ids=repr)
@pytest.mark.parametrize("endpoint", ["", "/diff", "/delete", "PUT"])
def test_a_body_that_is_no_json_object_is_refused(api: Client, topic: str, endpoint: str, body: bytes) -> None:
    """CV3, WR14"""
    api.create(topic)
    before = api.everything()
    method, path = ("PUT", "") if endpoint == "PUT" else ("POST", endpoint)
    refused(api.ask(method, f"/v0/topics/{topic}{path}", body), 400, "invalid_request", None)
    assert api.everything() == before


def test_fields_the_server_does_not_know_are_ignored_at_every_level(api: Client, topic: str) -> None:
    """CV4"""
    assert (
        ok(api.put(f"/v0/topics/{topic}", {"cap_records": 9, "colour": {"a": [1]}}), 201)["config"]["cap_records"] == 9
    )
    body = {"records": [{"data": 1, "$seq": 99, "$ts": 1, "x": None}], "extra": [], "config": {"y": 1}}
    assert ok(api.post(f"/v0/topics/{topic}", body))["seqs"] == [1]
    assert ok(api.post(f"/v0/topics/{topic}/diff", {"from_seq": 0, "limits": -1}))["records"][0]["$seq"] == 1
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 9, "after": "x"}))["deleted"] == 1


# --- answers


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


# --- gzip


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)


def test_a_gzip_request_is_inflated(api: Client, topic: str) -> None:
    """CV7"""
    body = gzip.compress(json.dumps(ONE).encode())
    assert api.post(f"/v0/topics/{topic}", body, "Content-Encoding: gzip").status == 201
    assert api.post(f"/v0/topics/{topic}", body, "Content-Encoding: GZIP").status == 200
    assert api.post(f"/v0/topics/{topic}", ONE, "Content-Encoding: identity").status == 200
    two_members = gzip.compress(b'{"records":[{"data"') + gzip.compress(b":2}]}")
    assert api.post(f"/v0/topics/{topic}", two_members, "Content-Encoding: gzip").status == 200
    assert api.data(topic) == [1, 1, 1, 2]


GOOD = gzip.compress(json.dumps(ONE).encode())


@pytest.mark.parametrize(
    ("body", "encoding", "status", "code"),
    [
        (b"not gzip", "gzip", 400, "invalid_request"),
        (GOOD[:-3], "gzip", 400, "invalid_request"),
        (GOOD[:-8] + b"\0\0\0\0" + GOOD[-4:], "gzip", 400, "invalid_request"),
        (GOOD + b"trailing", "gzip", 400, "invalid_request"),
        (GOOD[:12] + b"\xff" + GOOD[13:], "gzip", 400, "invalid_request"),
        (b"{}", "gzip", 400, "invalid_request"),
        (raw_deflate(b"{}"), "gzip", 400, "invalid_request"),
        (raw_deflate(b"{}"), "deflate", 415, "unsupported_media_type"),
        (b"{}", "br", 415, "unsupported_media_type"),
        (GOOD, "gzip, gzip", 415, "unsupported_media_type"),
        (GOOD, "gzip, br", 415, "unsupported_media_type"),
        (b"{}", "x-unknown", 415, "unsupported_media_type"),
    ],
)
def test_a_broken_or_unknown_encoding_is_refused(
    api: Client, topic: str, body: bytes, encoding: str, status: int, code: str
) -> None:
    """CV7"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", body, f"Content-Encoding: {encoding}"), status, code, None)
    assert api.everything() == before


@pytest.mark.parametrize(
    ("accept", "is_coded"),
    [
        (None, False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=0.5", True),
        ("br, *", True),
        ("gzip;q=0", False),
        ("gzip;q=0.0, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("br", False),
        ("", False),
        ("xgzip", False),
    ],
)
def test_a_large_answer_is_coded_only_when_asked_for(
    api: Client, topic: str, accept: str | None, is_coded: bool
) -> None:
    """CV7"""
    api.write(topic, "x" * 1000)
    headers = [] if accept is None else [f"Accept-Encoding: {accept}"]
    reply = api.post(f"/v0/topics/{topic}/diff", {}, *headers)
    assert reply.status == 200
    assert reply.headers.get("content-encoding") == ("gzip" if is_coded else None)
    body = gzip.decompress(reply.body) if is_coded else reply.body
    assert json.loads(body)["records"][0]["data"] == "x" * 1000


def test_the_threshold_for_coding_is_512_bytes(api: Client, topic: str) -> None:
    """CV7: the answer's own length decides; a smaller one is sent as it is."""
    api.write(topic, "x" * 100)
    padding = 512 - len(api.post(f"/v0/topics/{topic}/diff", {}).body) + 100
    for length, is_coded in ((padding - 1, False), (padding, True)):
        api.write(topic, "x" * length)
        api.post(f"/v0/topics/{topic}/delete", {"before_seq": api.state(topic)["head_seq"]})
        path, last = f"/v0/topics/{topic}/diff", {"from_seq": 0}
        plain, asked = api.post(path, last), api.post(path, last, "Accept-Encoding: gzip")
        assert len(plain.body) == 512 - (not is_coded)
        assert ("content-encoding" in asked.headers) is is_coded
        assert (gzip.decompress(asked.body) if is_coded else asked.body) == plain.body


def test_errors_are_coded_by_the_same_rule_and_vary_is_said(api: Client, topic: str) -> None:
    """CV7"""
    reply = api.get(f"/v0/topics/{'x' * 800}", "Accept-Encoding: gzip")
    assert reply.status == 404
    body = gzip.decompress(reply.body) if "content-encoding" in reply.headers else reply.body
    assert ("content-encoding" in reply.headers) == (len(body) >= 512)
    assert json.loads(body)["error"]["code"] == "topic_not_found"


# --- names and paths


@pytest.mark.parametrize(
    "name",
    ["a", "A", "0", "a.b", "a_b", "a:b", "a-b", "room:green", "z" * 255, "0...", "con", "a..", "NUL", "-".join("ab")],
)
def test_a_valid_name_is_kept_byte_for_byte(api: Client, name: str) -> None:
    """CV12"""
    assert api.put(f"/v0/topics/{name}", {}).status == 201
    assert ok(api.get(f"/v0/topics/{name}"))["topic"] == name
    assert ok(api.delete(f"/v0/topics/{name}"))["deleted"] is True


BAD_NAMES = [
    *(".a", "_a", ":a", "-a", "z" * 256, "a%20b", "a%2Fb", "%2F", "%2e%2e", "a>b", "a%3Eb", "%C3%A9", "a%00", "a%0A"),
    *("a+b", "a*", "a,b", "a=b", "a@b", "a~b", "a!b", "a'b", "(a)", "a%25b", "%2e", "a%3Fb", "a;b", "a%0D"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_invalid_name_is_refused_where_it_would_create_and_not_found_elsewhere(api: Client, name: str) -> None:
    """CV12, CV14, WR14"""
    before = api.everything()
    refused(api.put(f"/v0/topics/{name}", {}), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{name}", ONE), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{name}", {"records": [{"data": 1}], "create": False}), 404, "topic_not_found")
    refused(api.get(f"/v0/topics/{name}"), 404, "topic_not_found")
    refused(api.post(f"/v0/topics/{name}/diff", {}), 404, "topic_not_found")
    refused(api.post(f"/v0/topics/{name}/delete", {"before_seq": 1}), 404, "topic_not_found")
    assert ok(api.delete(f"/v0/topics/{name}"))["deleted"] is False
    assert api.everything() == before


@pytest.mark.parametrize("segment", ["%", "%4", "%zz", "a%G1", "%FF", "%C3", "%ED%A0%80", "%C0%AF", "%F8%88%80%80%80"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_segment_that_cannot_be_decoded_is_refused(api: Client, method: str, segment: str) -> None:
    """CV14"""
    refused(api.ask(method, f"/v0/topics/{segment}", {} if method == "PUT" else None), 400, "invalid_request", None)


def test_a_segment_is_decoded_once(api: Client, topic: str) -> None:
    """CV14"""
    coded = "".join(f"%{byte:02x}" for byte in topic.encode())
    assert ok(api.put(f"/v0/topics/{coded}", {}), 201)["topic"] == topic
    assert ok(api.get(f"/v0/topics/{topic}"))["topic"] == topic
    assert refused(api.get(f"/v0/topics/{coded.replace('%', '%25')}"), 404, "topic_not_found")
    assert ok(api.post(f"/v0/topics/{coded}/diff", {}))["topic"] == topic


# --- lists


def all_pages(api: Client, target: str, key: str = "topics") -> list[str]:
    """Every name, page by page, the cursor pasted as it came."""
    found, cursor = [], ""
    while True:
        answer = ok(api.get(f"{target}{cursor}"))
        found += [entry[key.removesuffix("s")] for entry in answer[key]]
        if "next_cursor" not in answer:
            return found
        assert answer[key], "a page before the last one is empty"
        cursor = f"&cursor={answer['next_cursor']}"


def test_lists_are_sorted_bytewise_and_paged(api: Client, topic: str) -> None:
    """CV15, TP10"""
    names = [f"{topic}{suffix}" for suffix in ("-a", ".a", "0", "A", "Z", "_", "a", "a-", "b", ":")]
    for name in names:
        api.create(name)
    expected = sorted(names, key=str.encode)
    for page_size in (1, 2, 3, 9, 10, 11, 1000):
        assert all_pages(api, f"/v0/topics?prefix={topic}&page_size={page_size}") == expected
    first = ok(api.get(f"/v0/topics?prefix={topic}&page_size=2"))
    assert (
        base64.urlsafe_b64decode(first["next_cursor"] + "==")
        == json.dumps({"after": expected[1]}, separators=(",", ":")).encode()
    )
    assert "=" not in first["next_cursor"]
    assert "next_cursor" not in ok(api.get(f"/v0/topics?prefix={topic}&page_size=10"))


@pytest.mark.parametrize("page_size", ["", "x", "-1", "1.5", "99999999999999999999", "0", "1001", "%31", "٣"])
def test_a_page_size_is_clamped_or_means_the_default(api: Client, topic: str, page_size: str) -> None:
    """CV15, CV24: default 100, at least 1, at most 1000; what is no number is the default."""
    for n in range(3):
        api.create(f"{topic}.{n}")
    coded = "".join(f"%{byte:02x}" for byte in page_size.encode()) if not page_size.isascii() else page_size
    listed = ok(api.get(f"/v0/topics?prefix={topic}.&page_size={coded}"))["topics"]
    assert len(listed) == (1 if page_size in ("0", "%31") else 3)


def test_a_cursor_is_read_in_both_alphabets_with_and_without_padding(api: Client, topic: str) -> None:
    """CV15: also unescaped in a URL, where a plus becomes a blank."""
    names = [f"{topic}.{n}" for n in range(3)]
    for name in names:
        api.create(name)
    after = json.dumps({"after": names[0]}).encode()
    padded = json.dumps({"after": names[0], "x": "~~~>>>???"}).encode()
    for raw in (after, padded):
        for text in (base64.urlsafe_b64encode(raw).decode(), base64.b64encode(raw).decode()):
            for cursor in (text, text.rstrip("="), text.replace("+", "%2B"), text.replace("+", "%20")):
                listed = ok(api.get(f"/v0/topics?prefix={topic}.&cursor={cursor}"))["topics"]
                assert [entry["topic"] for entry in listed] == names[1:], cursor


def b64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        *("!", "a", "abc!", "====", "%FF", "YWJj", b64("{}"), b64("[]"), b64('{"after":1}'), b64('{"after":null}')),
        *(b64('"x"'), b64('{"after":"a"') + "x", "e30=x", "e30====="),
    ],
)
def test_a_cursor_that_is_none_is_refused(api: Client, cursor: str) -> None:
    """CV15"""
    refused(api.get(f"/v0/topics?cursor={cursor}"), 400, "invalid_request", None)


def test_a_cursor_may_name_a_topic_that_is_gone(api: Client, topic: str) -> None:
    """CV15"""
    for n in range(3):
        api.create(f"{topic}.{n}")
    cursor = ok(api.get(f"/v0/topics?prefix={topic}.&page_size=2"))["next_cursor"]
    api.delete(f"/v0/topics/{topic}.1")
    assert [e["topic"] for e in ok(api.get(f"/v0/topics?prefix={topic}.&cursor={cursor}"))["topics"]] == [f"{topic}.2"]


@pytest.mark.parametrize(
    ("value", "is_true"),
    [
        ("true", True),
        ("1", True),
        ("false", False),
        ("0", False),
        ("", None),
        ("TRUE", None),
        ("yes", None),
        ("2", None),
    ],
)
def test_a_query_boolean_that_is_none_means_the_default(
    server: ServerThread, api: Client, topic: str, value: str, is_true: bool | None
) -> None:
    """CV24, WR8, TP9, TP10"""
    api.create(topic)
    shows = "seqs" in ok(api.post(f"/v0/topics/{topic}?return_seqs={value}", ONE))
    assert shows is (True if is_true is None else is_true)
    ok(api.get(f"/v0/topics?prefix={topic}&touch={value}"))
    assert (api.state(topic)["last_read_ts"] is not None) is bool(is_true)
    other = f"{topic}-other"
    api.create(other)
    ok(api.get(f"/v0/topics/{other}?touch={value}"))
    assert (api.state(other)["last_read_ts"] is None) is (is_true is False)


# --- limits on bodies


def chunked(method: str, path: str, body: bytes, *headers: str) -> bytes:
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return request_bytes(method, path, coded, "Transfer-Encoding: chunked", *headers)


def test_a_body_above_the_limit_is_refused_however_it_comes(start: Start, topic: str) -> None:
    """CV17, CV7: declared, chunked, or measured while inflating; one at the limit passes."""
    api = Client(start(max_body_bytes=5000).address)
    api.create(topic)
    filler = b'{"records":[{"data":1}],"x":"'
    fits, above = (filler + b"y" * (size - len(filler) - 2) + b'"}' for size in (5000, 5001))
    path = f"/v0/topics/{topic}"
    gzipped = "Content-Encoding: gzip"
    for send in (
        lambda body: api.post(path, body),
        lambda body: api.send(chunked("POST", path, body)),
        lambda body: api.post(path, gzip.compress(body), gzipped),
        lambda body: api.send(chunked("POST", path, gzip.compress(body), gzipped)),
    ):
        assert send(fits).status == 200
        before = api.everything()
        refused(send(above), 413, "payload_too_large", None)
        refused(send(b"not JSON" * 1000), 413, "payload_too_large", None)
        assert api.everything() == before
    refused(api.post(path, above, "Content-Type: text/plain"), 415, "unsupported_media_type")
    declared = request_bytes("POST", path, b"", JSON_TYPE, "Content-Length: 99999999999")
    refused(api.send(declared), 413, "payload_too_large", None)


# --- numbers, null, repeats


PLAIN_INTEGERS = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"]
CLAMPED = {"lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5_000)}
NOT_INTEGERS = ["-1", "1.5", '"1"', "true", "[]", "{}", "-1e3", "0.1", "-9223372036854775809"]


@pytest.mark.parametrize("field", [*PLAIN_INTEGERS, *CLAMPED])
def test_a_config_integer_is_exact_or_clamped_and_nothing_else(api: Client, topic: str, field: str) -> None:
    """CV18, TP1, TP3"""
    path = f"/v0/topics/{topic}"
    api.create(topic)
    before = api.everything()
    for text in [*NOT_INTEGERS, "null"]:
        refused(api.put(path, f'{{"{field}":{text}}}'), 400, "invalid_request", None)
    if field in PLAIN_INTEGERS:
        refused(api.put(path, f'{{"{field}":18446744073709551616}}'), 400, "invalid_request", None)
        refused(api.put(path, f'{{"{field}":1{"0" * 300}}}'), 400, "invalid_request", None)
        assert api.everything() == before
        assert ok(api.put(path, f'{{"{field}":18446744073709551615}}'))["config"][field] == 2**64 - 1
    else:
        low, high = CLAMPED[field]
        assert api.everything() == before
        for text, value in (("0", low), (str(high), high), (str(high + 1), high), ("1" + "0" * 300, high)):
            assert ok(api.put(path, f'{{"{field}":{text}}}'))["config"][field] == value
    for text in ("1.0", "1e3"):
        assert api.put(path, f'{{"{field}":{text}}}').status in (200, 400)


def test_priority_is_clamped_on_both_sides(api: Client, topic: str) -> None:
    """CV18, CV19, TP3"""
    path = f"/v0/topics/{topic}"
    api.create(topic)
    for text, value in (
        *(("-1000", -1000), ("-1001", -1000), ("1001", 1000), ("-1" + "0" * 40, -1000), ("1" + "0" * 300, 1000)),
        *(("0", 0), ("null", None), ("-5", -5)),
    ):
        assert ok(api.put(path, f'{{"priority":{text}}}'))["config"]["priority"] == value
    for text in ("1.5", '"1"', "true", "[]"):
        refused(api.put(path, f'{{"priority":{text}}}'), 400, "invalid_request", None)


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"])
def test_a_diff_integer_is_exact_or_clamped_and_nothing_else(api: Client, topic: str, field: str) -> None:
    """CV18, DF1"""
    path = f"/v0/topics/{topic}/diff"
    api.write(topic, 1, 2)
    for text in NOT_INTEGERS:
        refused(api.post(path, f'{{"{field}":{text}}}'), 400, "invalid_request", None)
    is_seq = field in ("from_seq", "epoch")
    for text in ("18446744073709551616", "1" + "0" * 300):
        reply = api.post(path, f'{{"{field}":{text}}}')
        if is_seq:
            refused(reply, 400, "invalid_request", None)
        else:
            assert len(ok(reply)["records"]) == 2
    assert api.post(path, f'{{"{field}":18446744073709551615}}').status == 200


def test_a_delete_seq_is_exact(api: Client, topic: str) -> None:
    """CV18, CV19, DL1"""
    path = f"/v0/topics/{topic}/delete"
    api.write(topic, 1, 2)
    before = api.everything()
    for text in [*NOT_INTEGERS, "18446744073709551616", "null"]:
        refused(api.post(path, f'{{"before_seq":{text}}}'), 400, "invalid_request", None)
    assert api.everything() == before
    assert ok(api.post(path, '{"before_seq":18446744073709551615}'))["deleted"] == 2


def test_null_means_absent_where_the_contract_says_so(api: Client, topic: str) -> None:
    """CV19"""
    config = {"durability": None, "priority": None, "dead_letter": None, "durable": True}
    assert ok(api.put(f"/v0/topics/{topic}", config), 201)["config"]["durability"] == "fsync"
    record = {"data": None, "tag": None, "node": None, "meta": None}
    body = {"records": [record], "node": "n", "idempotency_key": None, "create": None, "config": None}
    assert api.post(f"/v0/topics/{topic}", body).status == 200
    answer = ok(
        api.post(f"/v0/topics/{topic}/diff", {"node": None, "epoch": None, "filter": None, "include_tags": True})
    )
    (found,) = answer["records"]
    assert found == {"$seq": 1, "$ts": found["$ts"], "$node": "n", "data": None}
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2, "match": None}))["deleted"] == 1
    api.write_records(topic, {"data": 1, "tag": "x"})
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": None, "match": "x"}))["deleted"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("PUT", "", {field: None}) for field in [*PLAIN_INTEGERS, *CLAMPED, "type", "discard", "durable"]),
        *(("PUT", "", {field: None}) for field in ["auto_priority", "auto_create", "dedupe_node", "leases_durable"]),
        *(("POST", "/diff", {field: None}) for field in ["from_seq", "limit", "wait_ms", "max_batch_bytes"]),
        *(("POST", "/diff", {field: None}) for field in ["include_tags", "include_meta"]),
        ("POST", "", {"records": None}),
        ("POST", "", {"records": [None]}),
        ("POST", "", {"records": [{"data": 1}], "disable_backpressure": None}),
        ("POST", "", {"records": [{"data": 1}], "config": {"ttl_ms": None}}),
    ],
)
def test_null_is_refused_for_every_other_field(
    api: Client, topic: str, method: str, path: str, body: dict[str, Any]
) -> None:
    """CV19"""
    api.create(topic)
    before = api.everything()
    refused(api.ask(method, f"/v0/topics/{topic}{path}", body), 400, "invalid_request", None)
    assert api.everything() == before


def test_the_last_of_a_repeated_field_counts_and_is_what_the_checks_see(api: Client, topic: str) -> None:
    """CV20"""
    path = f"/v0/topics/{topic}"
    long = "x" * 300
    body = f'{{"records":[],"node":"{long}","records":[{{"data":NaNa}}]'
    refused(api.post(path, body), 400, "invalid_request")
    body = f'{{"node":"{long}","records":[{{"data":1,"tag":"{long}","tag":"t","data":2}}],"node":"n"}}'
    assert api.post(path, body).status == 201
    (record,) = api.diff(topic, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"]) == (2, "t", "n")
    before = api.everything()
    refused(api.post(path, f'{{"records":[{{"data":1,"tag":"t","tag":"{long}"}}]}}'), 400, "invalid_request")
    refused(api.post(path, '{"records":[{"data":1}],"records":[]}'), 400, "invalid_request")
    assert api.everything() == before
    put = ok(api.put(path, '{"cap_records":5,"durability":"fsync","cap_records":7,"durability":"memory"}'))
    assert (put["config"]["cap_records"], put["config"]["durability"]) == (7, "memory")
    assert ok(api.post(f"{path}/diff", '{"from_seq":9,"from_seq":0}'))["tombstone"] is None
    assert ok(api.post(f"{path}/delete", '{"match":"zzz","match":"t"}'))["deleted"] == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "1_000", "0x10", "undefined", "'a'", "tru"])
@pytest.mark.parametrize("template", ['{"records":[{"data":%s}]}', '{"records":[{"data":1,"meta":{"a":%s}}]}'])
def test_what_is_no_json_value_is_refused_inside_data_and_meta(
    api: Client, topic: str, template: str, value: str
) -> None:
    """CV20"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", template % value), 400, "invalid_request", None)
    assert api.everything() == before


BAD_TEXTS = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\\ud800", b"\\udc00", b"\\ud83dx"]
BAD_TEXTS += [b"\\ud83d\\ud83d", b"\\uDE00\\uD83D", b"a\\\\\\ud800"]


@pytest.mark.parametrize("text", BAD_TEXTS, ids=repr)
@pytest.mark.parametrize(
    "template",
    [
        b'{"records":[{"data":"%b"}]}',
        b'{"records":[{"data":{"%b":1}}]}',
        b'{"records":[{"data":[[{"a":["%b"]}]]}]}',
        b'{"records":[{"data":1,"meta":{"a":"%b"}}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"records":[{"data":1,"node":"%b"}]}',
        b'{"records":[{"data":1,"other":"%b"}]}',
        b'{"records":[{"data":1}],"other":{"%b":1}}',
        b'{"records":[{"data":1}],"%b":1}',
        b'{"records":[{"data":1}],"idempotency_key":"%b"}',
    ],
    ids=repr,
)
def test_text_that_is_not_unicode_is_refused_wherever_it_stands(
    api: Client, topic: str, template: bytes, text: bytes
) -> None:
    """CV21"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", template % text), 400, "invalid_request", None)
    assert api.everything() == before


@pytest.mark.parametrize("text", [b"\\ud800", b"\xff"], ids=repr)
def test_other_bodies_are_held_to_unicode_as_well(api: Client, topic: str, text: bytes) -> None:
    """CV21"""
    api.create(topic)
    before = api.everything()
    refused(api.put(f"/v0/topics/{topic}", b'{"x":"%b"}' % text), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}/diff", b'{"node":"%b"}' % text), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}/delete", b'{"match":"%b"}' % text), 400, "invalid_request", None)
    assert api.everything() == before


def test_escaped_backslashes_before_a_u_are_no_surrogate(api: Client, topic: str) -> None:
    """CV21"""
    text = b'"\\\\ud800 \\\\\\\\udc00 \\ud83d\\ude00"'
    assert api.post(f"/v0/topics/{topic}", b'{"records":[{"data":' + text + b"}]}").status == 201
    assert text in api.post(f"/v0/topics/{topic}/diff", {}).body


@pytest.mark.parametrize("depth", [128, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", ["array", "object"])
def test_deep_nesting_is_accepted_or_refused_and_harms_nothing(api: Client, topic: str, kind: str, depth: int) -> None:
    """CV21"""
    nested = b"[" * depth + b"]" * depth if kind == "array" else b'{"a":' * depth + b"1" + b"}" * depth
    bodies = {
        f"/v0/topics/{topic}": b'{"records":[{"data":' + nested[:900_000] + b"}]}",
        f"/v0/topics/{topic}-2": b'{"records":[{"data":1}],"unknown":' + nested + b"}",
        f"/v0/topics/{topic}-2/diff": b'{"unknown":' + nested + b"}",
        f"/v0/topics/{topic}-3": b'{"records":' + nested + b"}",
    }
    for path, body in bodies.items():
        reply = api.post(path, body)
        if depth == 128 and not path.endswith("-3"):
            assert reply.status in (200, 201), reply
        elif reply.status not in (200, 201):
            refused(reply, 400, "invalid_request") if not path.endswith("/diff") else None
            assert reply.status in (400, 404)
    assert api.get("/v0/health").status == 200


# --- methods


def test_head_is_get_without_a_body(api: Client, topic: str) -> None:
    """CV23"""
    api.create(topic)
    paths = (
        f"/v0/topics/{topic}",
        "/v0/topics",
        "/v0/health",
        "/healthz",
        "/v0/ready",
        "/v0/metrics",
        "/v0/topics/none",
    )
    for path in paths:
        assert api.ask("HEAD", path).status == api.get(path).status
    reply = api.ask("HEAD", "/v0/health")
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v0/watch/wid_x", "/v0/ws", "/v0/topics/q/work"])
def test_head_on_a_stream_is_not_allowed(api: Client, path: str) -> None:
    """CV23"""
    reply = api.ask("HEAD", path)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/topics/a", "/v0/topics/a/diff", "/v0/health"])
def test_options_is_not_allowed_and_names_the_methods(api: Client, path: str) -> None:
    """CV23, ER3"""
    reply = api.ask("OPTIONS", path)
    refused(reply, 405, "method_not_allowed", None)
    assert reply.headers["allow"]
    assert not [name for name in reply.headers if name.startswith("access-control")]


# --- HTTP/2


def test_the_same_port_speaks_http2_by_prior_knowledge(server: ServerThread, api: Client, topic: str) -> None:
    """CV16, ER1"""
    json_type = ("content-type", "application/json")

    async def talk() -> None:
        client = await Http2Client.connect(SimpleNamespace(address=server.address))  # type: ignore[arg-type]
        try:
            put = await client.ask(f"/v0/topics/{topic}", b"{}", json_type, method="PUT")
            assert (put.status, json.loads(put.body)["created"]) == (201, True)
            written = await client.ask(f"/v0/topics/{topic}", json.dumps(ONE).encode(), json_type)
            assert (written.status, json.loads(written.body)["seqs"]) == (200, [1])
            for headers in (put.headers, written.headers):
                assert not {"connection", "keep-alive", "transfer-encoding"} & set(headers)
            ids = [await client.start(f"/v0/topics/{topic}/diff", b"{}", json_type) for _ in range(5)]
            for stream_id in ids:
                assert json.loads((await client.reply(stream_id)).body)["records"][0]["data"] == 1
            missing = await client.ask("/v0/topics/none", None)
            assert (missing.status, json.loads(missing.body)["error"]["code"]) == (404, "topic_not_found")
            wrong = await client.ask(f"/v0/topics/{topic}", b"{}", ("content-type", "text/plain"))
            assert wrong.status == 415
            health = await client.ask("/healthz", None, method="HEAD")
            assert (health.status, health.body) == (200, b"")
        finally:
            client.raw.close()

    asyncio.run(talk())
    assert api.data(topic) == [1]
