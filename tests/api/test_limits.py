"""Limits: resource caps, per key and for all."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from tests.api.test_diff import waiting
from tests.api.test_topics import at_once

ONE = {"records": [{"data": 1}]}


def test_topics_are_capped_however_they_come_into_being(start: Start) -> None:
    """LM1, LM3"""
    api = Client(start(max_topics=2).address)
    api.create("a")
    api.write("b", 1)
    before = api.everything()
    detail = {"limit": "max_topics", "max": 2}
    refused(api.put("/v0/topics/c", {}), 429, "throttled", detail)
    refused(api.post("/v0/topics/c", ONE), 429, "throttled", detail)
    assert api.everything() == before
    assert ok(api.put("/v0/topics/a", {"cap_records": 4}))["created"] is False
    assert api.post("/v0/topics/b", ONE).status == 200
    ok(api.delete("/v0/topics/a"))
    assert api.put("/v0/topics/c", {}).status == 201


def test_zero_is_no_cap(start: Start) -> None:
    """LM1"""
    api = Client(start(max_topics=0, max_total_bytes=0).address)
    for n in range(20):
        api.write(f"t{n}", "x" * 1000)


def test_concurrent_creation_never_passes_the_cap(start: Start) -> None:
    """LM2"""
    api = Client(start(max_topics=3).address)

    def put(n: int) -> Any:
        return lambda: api.put(f"/v0/topics/t{n}", {}) if n % 2 else api.post(f"/v0/topics/t{n}", ONE)

    replies = at_once(*(put(n) for n in range(12)))
    assert sorted(reply.status for reply in replies) == [201] * 3 + [429] * 9
    assert api.metrics()["topics"] == 3


def test_live_bytes_are_capped_over_all_topics_and_freed_again(start: Start) -> None:
    """LM4, LM1"""
    server = start(max_total_bytes=100)
    api = Client(server.address)
    api.create("a", ttl_ms=1000)
    api.create("b")
    api.create("ring", cap_records=1)
    api.write("a", "x" * 48)
    api.write("b", "x" * 28)
    api.write("ring", "x" * 18)
    detail = {"limit": "max_total_bytes", "max": 100}
    before = api.everything()
    refused(api.post("/v0/topics/b", ONE), 429, "throttled", detail)
    refused(api.post("/v0/topics/new", ONE), 429, "throttled", detail)
    assert api.everything() == before
    assert api.write("ring", "y" * 18)["seqs"] == [2]
    refused(api.post("/v0/topics/ring", {"records": [{"data": "y" * 19}]}), 429, "throttled", detail)
    server.advance(1001)
    assert api.metrics()["bytes_live"] <= 100
    assert api.write("b", "x" * 48)["seqs"] == [2]
    refused(api.post("/v0/topics/b", ONE), 429, "throttled", detail)
    ok(api.post("/v0/topics/b/delete", {"before_seq": 2}))
    assert api.write("b", "x" * 28)["seqs"] == [3]
    ok(api.delete("/v0/topics/b"))
    assert api.write("c", "x" * 78)["seqs"] == [1]


def test_running_requests_are_capped_per_key(start: Start, topic: str) -> None:
    """LM1, LM5, AU13, ER5: a long poll holds a slot; another key has its own."""
    server = start(api_keys="one,two", max_inflight_per_key=2)
    one = Client(server.address, "one")
    two = one.with_key("two")
    one.create(topic)
    detail = {"limit": "max_inflight_per_key", "max": 2}
    with (
        waiting(server, one, topic, {"wait_ms": 30_000}) as first,
        waiting(server, one, topic, {"wait_ms": 30_000}) as second,
    ):
        refused(one.get(f"/v0/topics/{topic}"), 429, "throttled", detail)
        refused(one.get("/v0/nowhere"), 404, "not_found")
        refused(one.with_key("wrong").get("/v0/topics"), 401, "unauthorized")
        ok(two.get(f"/v0/topics/{topic}"))
        two.write(topic, 1)
        for connection in (first, second):
            assert ok(connection.reply())["records"]
    for _ in range(5):
        ok(one.get(f"/v0/topics/{topic}"))
        refused(one.get("/v0/topics/none"), 404, "topic_not_found")
        refused(one.post(f"/v0/topics/{topic}", b"not JSON"), 400, "invalid_request")


def test_a_slot_comes_free_when_the_client_leaves(start: Start, topic: str) -> None:
    """LM5"""
    server = start(api_keys="one", max_inflight_per_key=1)
    api = Client(server.address, "one")
    api.create(topic)
    for _ in range(3):
        with waiting(server, api, topic, {"wait_ms": 30_000}):
            refused(api.get(f"/v0/topics/{topic}"), 429, "throttled")
        server.until(lambda: not server.clock.waits)
        ok(api.get(f"/v0/topics/{topic}"))


def test_without_auth_there_is_no_cap_per_key(start: Start, topic: str) -> None:
    """LM5"""
    server = start(max_inflight_per_key=1)
    api = Client(server.address)
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 30_000}):
        ok(api.get(f"/v0/topics/{topic}"))


def test_the_scope_is_checked_after_the_slot(start: Start, topic: str) -> None:
    """AU13, LM1"""
    server = start(api_keys="root,r:read:a", max_inflight_per_key=1)
    root, reader = Client(server.address, "root"), Client(server.address, "r")
    root.create(f"a{topic}")
    with waiting(server, reader, f"a{topic}", {"wait_ms": 30_000}):
        refused(reader.post(f"/v0/topics/a{topic}", ONE), 429, "throttled")
        refused(reader.get("/v0/topics/zzz"), 429, "throttled")
    server.until(lambda: not server.clock.waits)
    refused(reader.post(f"/v0/topics/a{topic}", ONE), 403, "forbidden")


@pytest.mark.parametrize("budget", [1, 1000, 50_000])
def test_an_answer_keeps_its_byte_budget(api: Client, topic: str, budget: int) -> None:
    """LM6"""
    api.write(topic, *("x" * (n * 911 % 5000) for n in range(60)))
    at = 0
    while True:
        answer = api.diff(topic, at, max_batch_bytes=budget)
        size = sum(len(record["data"]) + 2 for record in answer["records"])
        assert size <= budget or len(answer["records"]) == 1
        at = answer["next_from_seq"]
        if answer["caught_up"]:
            break
    assert at == 60
