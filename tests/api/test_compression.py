"""Content codings of requests and answers."""

import gzip
import json
import zlib

import pytest

from tests.api.clients.transcript import (
    Client,
    refused,
)

ONE = {"records": [{"data": 1}]}


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
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd", 415, "unsupported_media_type"),
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
