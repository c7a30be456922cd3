"""Bodies of requests, whatever the endpoint: media types, emptiness, chunks, what is JSON, sizes."""

import gzip

import pytest

from tests.api.clients.transcript import (
    JSON_TYPE,
    Client,
    ok,
    refused,
    request_bytes,
)
from tests.api.conftest import Start
from tests.effort import swept

ONE = {"records": [{"data": 1}]}


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


@swept(
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
    api.put(f"/v0/topics/{topic}", {})
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


@swept("body", NOT_AN_OBJECT + BROKEN_JSON)
@pytest.mark.parametrize("endpoint", ["", "/diff", "/delete", "PUT"])
def test_a_body_that_is_no_json_object_is_refused(api: Client, topic: str, endpoint: str, body: bytes) -> None:
    """CV3, WR14"""
    api.put(f"/v0/topics/{topic}", {})
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
