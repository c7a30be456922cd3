"""The node filter: a reader does not get back what it wrote."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from topics.testing.server import ServerThread


def seqs(answer: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


@pytest.fixture
def mixed(api: Client, topic: str) -> str:
    api.write_records(
        topic,
        {"data": 1, "node": "a"},
        {"data": 2, "node": "b"},
        {"data": 3},
        {"data": 4, "node": "A"},
        {"data": 5, "node": ""},
    )
    return topic


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("a", [2, 3, 4, 5]),
        (["a", "b"], [3, 4, 5]),
        ([], [1, 2, 3, 4, 5]),
        ("", [1, 2, 3, 4]),
        (["A", "zzz"], [1, 2, 3, 5]),
        ("aa", [1, 2, 3, 4, 5]),
        (None, [1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_own_records_are_left_out_byte_for_byte(api: Client, mixed: str, node: Any, expected: list[int]) -> None:
    """ND1"""
    answer = api.diff(mixed, node=node)
    assert seqs(answer) == expected
    assert (answer["next_from_seq"], answer["caught_up"], answer["tombstone"]) == (5, True, None)


@pytest.mark.parametrize("node", [1, True, {}, [1], [None], [["a"]], 1.5], ids=str)
def test_a_node_is_a_string_or_strings(api: Client, mixed: str, node: Any) -> None:
    """ND1, DF1"""
    refused(api.post(f"/v0/topics/{mixed}/diff", {"node": node}), 400, "invalid_request", None)


def test_the_drop_is_silent_and_moves_the_cursor(api: Client, topic: str) -> None:
    """ND2, DF3, DF4"""
    api.write(topic, *range(500), node="me")
    answer = api.diff(topic, node="me", limit=10)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["lag"]) == ([], 500, True, 0)
    assert answer["tombstone"] is None


def test_dedupe_node_false_switches_the_filter_off(api: Client, topic: str) -> None:
    """ND3"""
    api.create(topic, dedupe_node=False)
    api.write(topic, 1, 2, node="me")
    assert seqs(api.diff(topic, node="me")) == [1, 2]
    ok(api.put(f"/v0/topics/{topic}", {}))
    assert seqs(api.diff(topic, node="me")) == []


def test_a_loss_of_own_records_is_still_announced(server: ServerThread, api: Client, topic: str) -> None:
    """ND4: floor and age come before the filter."""
    api.create(topic, cap_records=2)
    api.write(topic, 1, 2, 3, 4, node="me")
    answer = api.diff(topic, node="me")
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]) == (
        1,
        2,
        "cap",
    )
    assert (answer["records"], answer["next_from_seq"]) == ([], 4)
    ok(api.put(f"/v0/topics/{topic}", {"ttl_ms": 10}))
    server.advance(11)
    assert api.diff(topic, 2, node="me")["tombstone"]["reason"] == "ttl"


def test_the_node_comes_back_as_it_was_written(api: Client, topic: str) -> None:
    """ND5"""
    for node in ("a b", "é😀", "x" * 128, "a\u2028"):
        api.write(topic, 1, node=node)
        assert api.diff(topic, api.state(topic)["head_seq"] - 1)["records"][0]["$node"] == node
        assert api.diff(topic, api.state(topic)["head_seq"] - 1, node=node)["records"] == []
