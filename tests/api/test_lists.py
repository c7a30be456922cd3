"""Lists: their order, pages, cursors and queries."""

import base64
import json

import pytest

from tests.api.clients.transcript import (
    Client,
    ok,
    refused,
)
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


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
