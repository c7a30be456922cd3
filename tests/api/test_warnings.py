"""Warnings about a config that is accepted."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start

WARNED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"cap_record": 5}, [("unknown_field", "cap_record")]),
    ({"Durability": "fsync"}, [("unknown_field", "Durability")]),
    ({"xyz": None, "": 1}, [("unknown_field", "xyz"), ("unknown_field", "")]),
    ({"max_deliveries": 3}, [("dead_letter_missing", "max_deliveries")]),
    ({"type": "queue", "cap_records": 5}, [("queue_discards_old", "discard")]),
    ({"type": "queue", "cap_bytes": 5, "discard": "old"}, [("queue_discards_old", "discard")]),
    ({"type": "queue", "ttl_ms": 29_999}, [("ttl_below_lease", "ttl_ms")]),
    ({"type": "queue", "ttl_ms": 400, "lease_ms": 500}, [("ttl_below_lease", "ttl_ms")]),
    ({"cap_records": 1}, [("cap_below_batch", "cap_records")]),
    ({"ttl_ms": 5000, "idempotency_window_ms": 5001}, [("window_above_ttl", "idempotency_window_ms")]),
    (
        {"type": "queue", "max_deliveries": 3, "cap_records": 1, "lese_ms": 5},
        [
            ("unknown_field", "lese_ms"),
            ("dead_letter_missing", "max_deliveries"),
            ("queue_discards_old", "discard"),
            ("cap_below_batch", "cap_records"),
        ],
    ),
]
UNWARNED: list[dict[str, Any]] = [
    {},
    {"type": "log", "ttl_ms": 1000},
    {"max_deliveries": 0},
    {"max_deliveries": 3, "dead_letter": "d"},
    {"type": "queue", "cap_records": 5, "discard": "reject"},
    {"type": "queue", "ttl_ms": 30_000},
    {"cap_records": 5},
    {"ttl_ms": 5000, "idempotency_window_ms": 5000},
    {"idempotency_window_ms": 10**9},
]


def said(answer: dict[str, Any]) -> list[tuple[str, str]]:
    warnings = answer.get("warnings", [])
    assert all(list(warning) == ["code", "field", "message"] and warning["message"] for warning in warnings)
    return [(warning["code"], warning["field"]) for warning in warnings]


@pytest.mark.parametrize(("config", "expected"), WARNED, ids=[str(config) for config, _ in WARNED])
def test_a_config_that_is_doubtful_is_accepted_with_warnings(
    api: Client, topic: str, config: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """WN1, CV4: by PUT, by a PUT of the same once more, by a dry run, and by the write that creates a topic."""
    assert said(ok(api.put(f"/v0/topics/{topic}", config | {"dry_run": True}))) == expected
    assert said(ok(api.put(f"/v0/topics/{topic}", config), 201)) == expected
    assert said(ok(api.put(f"/v0/topics/{topic}", config))) == expected
    body = {"records": [{"data": 1}], "config": config}
    created = ok(api.post(f"/v0/topics/{topic}.w", body), 201)
    assert said(created) == expected and list(created)[-1] == "warnings"
    assert "warnings" not in ok(api.post(f"/v0/topics/{topic}.w", body)), "the config does not count any more"
    with open_socket(api) as ws:
        answer = ws.ask("publish", topic=f"{topic}.ws", **body)
        assert said(answer) == expected


@pytest.mark.parametrize("config", UNWARNED, ids=str)
def test_a_config_without_doubt_has_none(api: Client, topic: str, config: dict[str, Any]) -> None:
    """WN1: then the field is left out."""
    assert "warnings" not in ok(api.put(f"/v0/topics/{topic}", config), 201)
    answer = ok(api.post(f"/v0/topics/{topic}.w", {"records": [{"data": 1}], "config": config}), 201)
    assert "warnings" not in answer
    again = ok(api.put(f"/v0/topics/{topic}.all", api.state(topic)["config"]), 201)
    assert {code for code, _ in said(again)} <= {"window_above_ttl"}, "all fields are known, and now all are given"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("cap_record", "cap_records"),
        ("durabilty", "durability"),
        ("TTL_MS", "ttl_ms"),
        ("lease", "lease_ms"),
        ("dryrun", "dry_run"),
        ("maxDeliveries", "max_deliveries"),
    ],
)
def test_a_field_that_nobody_knows_is_named_with_the_nearest_one(
    api: Client, topic: str, given: str, nearest: str
) -> None:
    """WN1"""
    (warning,) = ok(api.put(f"/v0/topics/{topic}", {given: 1}), 201)["warnings"]
    assert f'"{given}"' in warning["message"] and f"did you mean {nearest}?" in warning["message"]


def test_a_dry_run_is_no_field_of_an_inline_config(api: Client, topic: str) -> None:
    """WN1, DR1"""
    body = {"records": [{"data": 1}], "config": {"dry_run": True}}
    assert said(ok(api.post(f"/v0/topics/{topic}", body), 201)) == [("unknown_field", "dry_run")]


def test_many_unknown_fields_are_named_in_part(api: Client, topic: str) -> None:
    """WN1: what is looked at is bounded."""
    many = {f"{'x' * 100}{n}": n for n in range(300)}
    answer = ok(api.put(f"/v0/topics/{topic}", many), 201)
    assert len(answer["warnings"]) == 20 and all(len(one["message"]) < 300 for one in answer["warnings"])
    huge = {f"field-{n}": "x" * 100 for n in range(2000)} | {"cap_records": 1}
    assert said(ok(api.put(f"/v0/topics/{topic}", huge))) == [("cap_below_batch", "cap_records")]


def test_a_dead_letter_that_a_key_may_not_see_counts(start: Start) -> None:
    """WN1, AU16: there is one, so nothing is missing."""
    api = Client(start(api_keys="root,near:admin:q").address)
    api.with_key("root").create("q", type="queue", dead_letter="far", max_deliveries=2)
    answer = ok(api.with_key("near").put("/v0/topics/q", {"max_deliveries": 3}))
    assert "warnings" not in answer and answer["config"]["dead_letter"] == "*"
