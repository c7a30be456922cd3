"""Errors: their shape, their codes, their details."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from tests.effort import swept
from topics.testing.disk import Faulty, MemoryDisk

ONE = {"records": [{"data": 1}]}

METHODS = {
    "/v0/topics": {"GET"},
    "/v0/topics/a": {"GET", "PUT", "POST", "DELETE"},
    "/v0/topics/a/diff": {"GET", "POST"},
    "/v0/topics/a/delete": {"POST"},
    "/v0/topics/a/export": {"GET"},
    "/v0/topics/a/claim": {"POST"},
    "/v0/topics/a/ack": {"POST"},
    "/v0/topics/a/nack": {"POST"},
    "/v0/topics/a/extend": {"POST"},
    "/v0/topics/a/work": {"GET"},
    "/v0/routers": {"GET"},
    "/v0/routers/a": {"GET", "PUT", "DELETE"},
    "/v0/watch": {"POST"},
    "/v0/watch/wid_a": {"GET"},
    "/v0/ws": {"GET"},
    "/v0/health": {"GET"},
    "/healthz": {"GET"},
    "/v0/ready": {"GET"},
    "/readyz": {"GET"},
    "/v0/metrics": {"GET"},
    "/v0/openapi.json": {"GET"},
}


@swept("path", METHODS)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
def test_a_method_the_path_does_not_have_is_named_as_such(api: Client, path: str, method: str) -> None:
    """ER3, CV1, CV23"""
    if method in METHODS[path]:
        assert api.ask("OPTIONS", path).status == 405
        return
    before = api.everything()
    reply = api.ask(method, path, {} if method in ("PUT", "POST", "PATCH") else None)
    refused(reply, 405, "method_not_allowed", None)
    assert set(reply.headers["allow"].replace(" ", "").split(",")) - {"HEAD"} == METHODS[path]
    assert api.everything() == before


def full_topic(api: Client, topic: str) -> dict[str, Any]:
    api.create(topic, discard="reject", cap_records=2)
    api.write(topic, 1, 2)
    return {"topic": topic, "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}


def test_not_found_names_the_topic(api: Client, topic: str) -> None:
    """ER2, ER4"""
    for method, path, body in (
        ("GET", "", None),
        ("POST", "/diff", {}),
        ("POST", "/delete", {"before_seq": 1}),
        ("POST", "", {"records": [{"data": 1}], "create": False}),
        ("GET", "/diff", None),
        ("GET", "/export", None),
    ):
        message = refused(api.ask(method, f"/v0/topics/{topic}{path}", body), 404, "topic_not_found", {"topic": topic})
        assert topic in message


def test_a_full_topic_says_how_full(api: Client, topic: str) -> None:
    """ER2, ER4, WR11"""
    detail = full_topic(api, topic)
    refused(api.post(f"/v0/topics/{topic}", ONE), 422, "topic_full", detail)


def test_a_topic_that_is_not_empty_says_how_many(api: Client, topic: str) -> None:
    """ER4, TP11"""
    api.write(topic, 1, 2, 3)
    detail = {"topic": topic, "count": 3}
    refused(api.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty", detail)


def test_a_change_of_type_names_both(api: Client, topic: str) -> None:
    """ER4, TP5"""
    api.create(topic)
    detail = {"topic": topic, "existing_type": "log", "requested_type": "queue"}
    refused(api.put(f"/v0/topics/{topic}", {"type": "queue"}), 409, "topic_exists_incompatible", detail)


def test_a_resource_cap_names_itself(start: Start, topic: str) -> None:
    """ER4, ER5"""
    api = Client(start(max_topics=1).address)
    api.create(topic)
    reply = api.put(f"/v0/topics/{topic}-2", {})
    refused(reply, 429, "throttled", {"limit": "max_topics", "max": 1})
    assert int(reply.headers["retry-after"]) >= 1


def test_a_message_says_where_and_how_much(api: Client, topic: str) -> None:
    """ER1: what was wrong, and where."""
    records = [{"data": n} for n in range(18)]
    records[17]["tag"] = "x" * 300
    reply = api.post(f"/v0/topics/{topic}", {"records": records})
    assert refused(reply, 400, "invalid_request") == "records[17].tag is 300 bytes, at most 256"
    reply = api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 1, "tag": 5}]})
    assert "records[1].tag" in refused(reply, 400, "invalid_request")
    reply = api.put(f"/v0/topics/{topic}", {"discard": "new"})
    assert "discard" in refused(reply, 400, "invalid_request")
    reply = api.post(f"/v0/topics/{topic}", {"records": [{"tag": "x"}]})
    assert "data" in refused(reply, 400, "invalid_request")


def test_a_tombstone_is_an_answer_and_no_error(api: Client, topic: str) -> None:
    """ER6"""
    api.create(topic, cap_records=1)
    api.write(topic, 1, 2)
    assert api.diff(topic)["tombstone"]["reason"] == "cap"


@pytest.mark.parametrize(("durability", "kind"), [("disk", "write"), ("fsync", "write"), ("fsync", "sync")])
def test_a_commit_that_fails_on_the_disk_is_internal_and_changes_nothing(
    start: Start, topic: str, durability: str, kind: str
) -> None:
    """ER7, WR9, ID4, TP13, DL8: afterwards the same calls succeed."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability=durability)
    api.write(topic, 1, 2)

    assert api.data(topic) == [1, 2]
    before = api.state(topic)

    def failing(method: str, path: str, body: Any) -> None:
        fault = Faulty(kind)
        server.run(lambda: disk.hooks.append(fault))
        reply = api.ask(method, path, body)
        server.run(lambda: disk.hooks.remove(fault))
        assert fault.failed, "the fault did not strike"
        refused(reply, 500, "internal", None)
        assert api.state(topic) == before
        assert api.data(topic) == [1, 2]

    failing("POST", f"/v0/topics/{topic}", {"records": [{"data": 3}], "idempotency_key": "k"})
    failing("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2})
    failing("PUT", f"/v0/topics/{topic}", {"durability": durability, "cap_records": 1})
    failing("DELETE", f"/v0/topics/{topic}", None)
    failing("PUT", f"/v0/topics/{topic}-new", {})
    refused(api.get(f"/v0/topics/{topic}-new"), 404, "topic_not_found")
    written = api.write(topic, 3, idempotency_key="k")
    assert (written["seqs"], written["deduped"]) == ([3], False)
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2}))["deleted"] == 1
    assert api.data(topic) == [2, 3]
