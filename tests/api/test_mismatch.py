"""Idempotency keys that come again with other records: told, or refused."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from tests.api.test_bulk import ARROW, NDJSON, arrow
from topics.testing.disk import MemoryDisk

REFUSE = "Idempotency-Mismatch: refuse"


def keyed(*records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"records": list(records), "idempotency_key": "k", **fields}


OTHERS: list[dict[str, Any]] = [
    keyed({"data": 2}),
    keyed({"data": "1"}),
    keyed({"data": 1}, {"data": 1}),
    keyed({"data": 1, "tag": "t"}),
    keyed({"data": 1, "tag": ""}),
    keyed({"data": 1, "node": "n"}),
    keyed({"data": 1}, node="n"),
    keyed({"data": 1, "meta": {}}),
    keyed({"data": 1, "delay_ms": 5}),
    keyed({"data": 1, "deliver_at": 5}),
]


@pytest.mark.parametrize("body", OTHERS, ids=str)
def test_other_records_under_a_known_key_are_told(api: Client, topic: str, body: dict[str, Any]) -> None:
    """ID9, ID1, ID6: the first write stands, and nothing is appended."""
    api.create(topic, type="queue")
    first = ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1})))
    assert "mismatch" not in first
    before = api.everything()
    again = ok(api.post(f"/v0/topics/{topic}", body))
    assert again == first | {"deduped": True, "mismatch": True}
    assert list(again)[-2:] == ["deduped", "mismatch"]
    assert api.everything() == before


@pytest.mark.parametrize("body", OTHERS, ids=str)
def test_other_records_under_a_known_key_are_refused_if_asked(api: Client, topic: str, body: dict[str, Any]) -> None:
    """ID9, ER4"""
    api.create(topic, type="queue")
    api.write(topic, 0)
    ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1}, on_mismatch="refuse")))
    before = api.everything()
    detail = {"idempotency_key": "k", "first_seq": 2, "last_seq": 2}
    reply = api.post(f"/v0/topics/{topic}", body | {"on_mismatch": "refuse"})
    message = refused(reply, 409, "idempotency_mismatch", detail)
    assert '"k"' in message and topic in message
    assert api.everything() == before
    assert ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1}, on_mismatch="refuse")))["deduped"] is True


SPELLINGS: list[tuple[dict[str, Any], bytes]] = [
    (keyed({"data": {"a": 1}}), b'{ "idempotency_key" : "k", "later": 1, "records":[ {"more":2,"data":{"a":1}} ] }'),
    (keyed({"data": 1, "tag": "\u00e9"}), b'{"idempotency_key":"k","records":[{"tag":"\\u00e9","data":1}]}'),
    (keyed({"data": 1}, node="n"), b'{"idempotency_key":"k","records":[{"data":1,"node":"n"}]}'),
    (keyed({"data": 1}), b'{"idempotency_key":"k","records":[{"data":1,"meta":null,"tag":null,"node":null}]}'),
    (keyed({"data": 1}), b'{"idempotency_key":"k","records":[{"data":1,"delay_ms":0}]}'),
    (keyed({"data": [1, 2]}), b'{"idempotency_key":"k","records":[{"data":[1,\n 2]}]}'),
    (
        keyed({"data": 1, "delay_ms": 86_400_000}),
        b'{"idempotency_key":"k","records":[{"data":1,"delay_ms":99999999999}]}',
    ),
]


@pytest.mark.parametrize(("first", "again"), SPELLINGS, ids=[str(again) for _, again in SPELLINGS])
def test_records_that_are_stored_alike_are_the_same_however_they_are_spelled(
    api: Client, topic: str, first: dict[str, Any], again: bytes
) -> None:
    """ID9, CV26"""
    api.create(topic, type="queue")
    ok(api.post(f"/v0/topics/{topic}", first))
    answer = ok(api.post(f"/v0/topics/{topic}", again))
    assert answer["deduped"] is True and "mismatch" not in answer


def test_bulk_bodies_have_a_header_for_it_and_are_compared_with_any_other_form(api: Client, topic: str) -> None:
    """ID9"""
    path, query = f"/v0/topics/{topic}", "?idempotency_key=k&node=n"
    ok(api.post(path, keyed({"data": 1, "tag": "a"}, {"data": 2}, node="n")), 201)
    same = b'{"data":1,"tag":"a"}\n{"data":2}\n'
    table = arrow({"data": ["1", "2"], "tag": ["a", None]})
    for body, media in ((same, NDJSON), (table, ARROW)):
        assert "mismatch" not in ok(api.post(path + query, body, media, REFUSE))
    detail = {"idempotency_key": "k", "first_seq": 1, "last_seq": 2}
    others = ((b'{"data":1,"tag":"a"}\n{"data":3}', NDJSON), (arrow({"data": ["1", "2"]}), ARROW))
    for body, media in others:
        assert ok(api.post(path + query, body, media))["mismatch"] is True
        refused(api.post(path + query, body, media, REFUSE), 409, "idempotency_mismatch", detail)
        reply = api.post(path + "?node=n", body, media, "Idempotency-Key: k", REFUSE)
        refused(reply, 409, "idempotency_mismatch", detail)
    refused(api.post(path, keyed({"data": 3}), REFUSE), 409, "idempotency_mismatch", detail)
    assert api.state(topic)["head_seq"] == 2


@pytest.mark.parametrize("value", ["", "accept", "Refuse", None, 1, True, ["refuse"]], ids=str)
def test_refuse_is_all_that_may_be_asked_for(api: Client, topic: str, value: Any) -> None:
    """ID9, CV19"""
    message = refused(api.post(f"/v0/topics/{topic}", keyed({"data": 1}, on_mismatch=value)), 400, "invalid_request")
    assert message.startswith("on_mismatch") and "refuse" in message
    if isinstance(value, str):
        header = f"Idempotency-Mismatch: {value}"
        for body, media in ((b'{"data":1}', NDJSON), (keyed({"data": 1}), "Accept: */*")):
            message = refused(api.post(f"/v0/topics/{topic}", body, media, header), 400, "invalid_request")
            assert "Idempotency-Mismatch" in message
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_publish_is_told_and_refused_the_same(api: Client, topic: str) -> None:
    """ID9, WS3"""
    with open_socket(api) as ws:
        first = ws.ask("publish", topic=topic, **keyed({"data": 1}))
        assert first["op"] == "ack" and "mismatch" not in first
        assert ws.ask("publish", topic=topic, **keyed({"data": 2}))["mismatch"] is True
        error = ws.ask("publish", topic=topic, **keyed({"data": 2}, on_mismatch="refuse"))
        assert (error["op"], error["code"]) == ("error", "idempotency_mismatch")
        assert error["detail"] == {"idempotency_key": "k", "first_seq": 1, "last_seq": 1}
        assert "mismatch" not in ws.ask("publish", topic=topic, **keyed({"data": 1}, on_mismatch="refuse"))


def test_a_mismatch_comes_before_caps_and_ends_with_the_window(start: Start, topic: str) -> None:
    """ID9, ID5, ID1"""
    server = start()
    api = Client(server.address)
    api.create(topic, cap_records=1, discard="reject", idempotency_window_ms=1000)
    ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1})))
    body = keyed({"data": 2}, on_mismatch="refuse")
    refused(api.post(f"/v0/topics/{topic}", body), 409, "idempotency_mismatch")
    server.advance(1001)
    refused(api.post(f"/v0/topics/{topic}", body), 422, "topic_full")
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert ok(api.post(f"/v0/topics/{topic}", body))["deduped"] is False
    refused(api.post(f"/v0/topics/{topic}", keyed({"data": 1}, on_mismatch="refuse")), 409, "idempotency_mismatch")


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("end", ["stop", "kill", "checkpoint and kill"])
def test_the_digest_survives_a_restart_with_its_key(start: Start, topic: str, durability: str, end: str) -> None:
    """ID9, ID8"""
    disk = MemoryDisk()
    server = start(disk=disk)
    body = keyed({"data": 1, "tag": "t"}, config={"durability": durability})
    ok(Client(server.address).post(f"/v0/topics/{topic}", body), 201)
    if end == "checkpoint and kill":
        server.do(server.server.engine.checkpoint())
    if end == "stop":
        server.close()
    left = disk.kill() if end == "stop" else server.run(disk.kill)
    api = Client(start(disk=left).address)
    assert "mismatch" not in ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1, "tag": "t"})))
    assert ok(api.post(f"/v0/topics/{topic}", keyed({"data": 1})))["mismatch"] is True
