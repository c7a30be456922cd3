"""Idempotency keys."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from tests.api.test_topics import at_once
from topics.testing.disk import MemoryDisk
from topics.testing.server import ServerThread


def keyed(key: str | None, *data: Any) -> dict[str, Any]:
    return {"records": [{"data": value} for value in data], "idempotency_key": key}


def test_a_repeat_answers_as_the_first_and_appends_nothing(api: Client, topic: str) -> None:
    """ID1, ID7"""
    first = ok(api.post(f"/v0/topics/{topic}", keyed("k", 1, 2)), 201)
    api.write(topic, 3)
    before = api.everything()
    again = ok(api.post(f"/v0/topics/{topic}", keyed("k", 1, 2)))
    assert again == first | {"created": False, "deduped": True}
    assert (again["seqs"], again["head_seq"], again["count"]) == ([1, 2], 2, 2)
    assert api.everything() == before


def test_a_repeat_without_seqs_leaves_them_out(api: Client, topic: str) -> None:
    """ID1, WR8"""
    api.post(f"/v0/topics/{topic}", keyed("k", 1, 2))
    again = ok(api.post(f"/v0/topics/{topic}?return_seqs=false", keyed("k", 1, 2)))
    assert "seqs" not in again and (again["first_seq"], again["last_seq"]) == (1, 2)


def test_a_key_belongs_to_its_topic(api: Client, topic: str) -> None:
    """ID1"""
    for name in ("a", "b"):
        assert ok(api.post(f"/v0/topics/{topic}.{name}", keyed("k", 1)), 201)["deduped"] is False


def test_a_key_is_remembered_to_the_end_of_its_window_and_no_longer(
    server: ServerThread, api: Client, topic: str
) -> None:
    """ID1: while now - first <= window, counted from the first commit."""
    api.create(topic, idempotency_window_ms=1000)
    assert api.post(f"/v0/topics/{topic}", keyed("k", 1)).json["deduped"] is False
    server.advance(600)
    assert api.post(f"/v0/topics/{topic}", keyed("k", 1)).json["deduped"] is True
    server.advance(400)
    assert api.post(f"/v0/topics/{topic}", keyed("k", 1)).json["deduped"] is True
    server.advance(1)
    answer = ok(api.post(f"/v0/topics/{topic}", keyed("k", 1)))
    assert (answer["deduped"], answer["seqs"]) == (False, [2])


def test_a_window_of_zero_is_off(api: Client, topic: str) -> None:
    """ID1"""
    api.create(topic, idempotency_window_ms=0)
    for n in (1, 2):
        assert api.post(f"/v0/topics/{topic}", keyed("k", 1)).json["seqs"] == [n]


def test_the_key_may_come_as_a_header_and_the_body_wins(api: Client, topic: str) -> None:
    """ID2, CV19"""
    path, header = f"/v0/topics/{topic}", "Idempotency-Key: from-header"
    assert ok(api.post(path, {"records": [{"data": 1}]}, header), 201)["seqs"] == [1]
    assert ok(api.post(path, {"records": [{"data": 1}]}, "idempotency-key:from-header"))["deduped"] is True
    assert ok(api.post(path, keyed("from-header", 1)))["deduped"] is True
    assert ok(api.post(path, keyed("from-body", 1), header))["seqs"] == [2]
    assert ok(api.post(path, keyed("from-body", 1)))["deduped"] is True
    assert ok(api.post(path, keyed(None, 1), header))["deduped"] is True
    assert api.state(topic)["head_seq"] == 2


@pytest.mark.parametrize("form", ["body", "header"])
def test_a_key_is_held_to_256_characters_wherever_it_comes_from(api: Client, topic: str, form: str) -> None:
    """ID2, WR3"""

    def write(key: str) -> Any:
        if form == "body":
            return api.post(f"/v0/topics/{topic}", keyed(key, 1))
        return api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}]}, f"Idempotency-Key: {key}")

    refused(write("k" * 257), 400, "invalid_request", None)
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert write("k" * 256).status == 201


def test_an_empty_key_is_a_key_in_the_body(api: Client, topic: str) -> None:
    """ID1"""
    api.post(f"/v0/topics/{topic}", keyed("", 1))
    assert api.post(f"/v0/topics/{topic}", keyed("", 1)).json["deduped"] is True


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_of_many_writes_racing_under_one_key_one_appends(api: Client, topic: str, durability: str) -> None:
    """ID3"""
    body = keyed("race", 1, 2) | {"config": {"durability": durability}}
    replies = at_once(*(lambda: api.post(f"/v0/topics/{topic}", body) for _ in range(12)))
    answers = [ok(reply, reply.status) for reply in replies]
    assert [answer["deduped"] for answer in answers].count(False) == 1
    assert {tuple(answer["seqs"]) for answer in answers} == {(1, 2)}
    assert api.state(topic)["head_seq"] == 2


def test_a_refused_first_attempt_leaves_no_key(api: Client, topic: str) -> None:
    """ID4"""
    api.create(topic, cap_records=1, discard="reject")
    api.write(topic, 0)
    refused(api.post(f"/v0/topics/{topic}", keyed("k", 1)), 422, "topic_full")
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert ok(api.post(f"/v0/topics/{topic}", keyed("k", 1)))["deduped"] is False


def test_a_repeat_to_a_full_topic_is_answered(api: Client, topic: str) -> None:
    """ID5, WR14"""
    api.create(topic, cap_records=1, discard="reject")
    api.post(f"/v0/topics/{topic}", keyed("k", 1))
    refused(api.post(f"/v0/topics/{topic}", keyed("other", 1)), 422, "topic_full")
    assert ok(api.post(f"/v0/topics/{topic}", keyed("k", 1)))["deduped"] is True


def test_a_repeats_own_body_is_checked_and_then_ignored(api: Client, topic: str) -> None:
    """ID6"""
    api.post(f"/v0/topics/{topic}", keyed("k", 1))
    refused(api.post(f"/v0/topics/{topic}", {"records": [], "idempotency_key": "k"}), 400, "invalid_request")
    refused(
        api.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": 1}], "idempotency_key": "k"}),
        400,
        "invalid_request",
    )
    again = ok(api.post(f"/v0/topics/{topic}", keyed("k", "other", "data", "altogether")))
    assert (again["deduped"], again["seqs"], again["count"]) == (True, [1], 1)
    assert api.data(topic) == [1]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_keys_survive_a_restart_with_their_batch(start: Start, topic: str, durability: str, end: str) -> None:
    """ID8"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    first = ok(api.post(f"/v0/topics/{topic}", keyed("k", 1, 2) | {"config": {"durability": durability}}), 201)
    if end == "stop":
        server.close()
        left = disk.kill()
    else:
        left = server.run(disk.kill)
    again = ok(Client(start(disk=left).address).post(f"/v0/topics/{topic}", keyed("k", 1, 2)))
    assert again == first | {"created": False, "deduped": True}
