"""The limit of what is kept in memory, over HTTP and WebSocket (LM14)."""

from typing import Any

import pytest

from tests.api.clients.exposition import Exposition
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from topics.errors import ConfigurationError
from topics.server.main import check_memory
from topics.settings import MIB, Settings

LIMIT = 3 * MIB
DETAIL = {"limit": "max_memory_bytes", "max": LIMIT}


def fill(api: Client) -> int:
    """Write records with tags of their own until no more are taken; gives how many were."""
    api.create("t", durability="ephemeral")
    for number in range(10_000):
        records = [{"data": 1, "tag": f"{number}-{n}" + "x" * 200} for n in range(50)]
        answer = api.post("/v0/topics/t", {"records": records})
        if answer.status != 200:
            refused(answer, 429, "throttled", DETAIL)
            assert int(answer.headers["retry-after"]) >= 1
            assert "delete topics" in answer.json["error"]["message"]
            return 50 * number
    raise AssertionError("all of it is taken")


def test_writes_are_refused_and_everything_else_goes_on(start: Start) -> None:
    """LM14, LM1, HM6"""
    api = Client(start(max_memory_bytes=LIMIT).address)
    ok(api.put("/v0/topics/q", {"type": "queue"}), 201)
    ok(api.post("/v0/topics/q", {"records": [{"data": 1}]}))
    count = fill(api)
    assert api.metrics()["bytes_live"] < 100_000, "tags are no part of a record's size"
    found = Exposition(api.get("/v0/metrics"))
    assert LIMIT * 0.95 < found.value("topics_memory_used_bytes") <= LIMIT
    assert found.value("topics_memory_limit_bytes") == LIMIT
    assert LIMIT * 0.9 < found.value("topics_topic_memory_bytes", topic="t") < LIMIT
    shown = ok(api.get("/v0/server"))["memory"]
    assert shown["kept_bytes"] == found.value("topics_memory_used_bytes") and shown["kept_bytes_max"] == LIMIT
    assert 0 <= shown["write_bytes_max"] < 20_000
    [listed] = [one for one in ok(api.get("/v0/topics?detail=true"))["topics"] if one["topic"] == "t"]
    assert listed["memory_bytes"] == found.value("topics_topic_memory_bytes", topic="t")
    large: dict[str, Any] = {"records": [{"data": "x" * 20_000}]}
    refused(api.post("/v0/topics/new", large), 429, "throttled", DETAIL)
    with open_socket(api) as socket:
        answer = socket.ask("publish", topic="t", **large)
        assert (answer["code"], answer["detail"]) == ("throttled", DETAIL)
        socket.follow("t")
    assert len(ok(api.post("/v0/topics/t/diff", {"from_seq": 0, "limit": 10}))["records"]) == 10
    ok(api.post("/v0/watch", {"topics": {"t": {}}}))
    ok(api.post("/v0/topics/q/claim", {"node": "n", "max": 1}))
    ok(api.post("/v0/topics/q/ack", {"node": "n", "seqs": [1]}))
    assert ok(api.get("/v0/topics/q"))["count"] == 0
    assert ok(api.post("/v0/topics/t/delete", {"before_seq": count - 100}))["deleted"] == count - 101
    ok(api.post("/v0/topics/t", large))
    ok(api.delete("/v0/topics/t"))
    assert fill(api) > count * 0.9, "all of it came free"


def test_those_who_follow_have_a_share_of_their_own(start: Start) -> None:
    """LM14: sessions with many nodes are refused long before they are as many as there may be."""
    server = start(max_memory_bytes=LIMIT)
    api = Client(server.address)
    api.create("t")
    made = []
    for number in range(1000):
        nodes = [f"{number}-{n}" + "x" * 100 for n in range(256)]
        answer = api.post("/v0/watch", {"topics": {"t": {}}, "node": nodes})
        if answer.status == 429:
            break
        made.append(ok(answer)["wid"])
    refused(answer, 429, "throttled", DETAIL)
    assert 5 < len(made) < 30
    api.write("t", 1)
    server.advance(300_001)
    ok(api.post("/v0/watch", {"topics": {"t": {}}}))
    found = Exposition(api.get("/v0/metrics"))
    assert found.value("topics_memory_used_bytes") < 20_000, "sessions that have expired weigh nothing"


def test_a_write_of_the_size_that_is_told_has_room(start: Start) -> None:
    """LM14, OB4: whatever is kept already."""
    api = Client(start(max_memory_bytes=LIMIT).address)
    api.create("t", durability="ephemeral")
    for share in (1, 2, 4, 8):
        most = ok(api.get("/v0/server"))["memory"]["write_bytes_max"]
        data = "x" * min(most - 100, 1_000_000)
        ok(api.post("/v0/topics/t", {"records": [{"data": data[: len(data) // share] if share > 1 else data}]}))
    assert 0 <= ok(api.get("/v0/server"))["memory"]["write_bytes_max"] < most


@pytest.mark.parametrize(("limit", "record"), [(1, MIB), (3 * MIB - 1, MIB), (20 * MIB, 10 * MIB)])
def test_a_limit_that_has_room_for_no_record_is_refused_at_the_start(limit: int, record: int) -> None:
    """LM14: by its value, and with the least that works."""
    settings = Settings(max_memory_bytes=limit, max_record_bytes=record)
    with pytest.raises(ConfigurationError, match=rf"{limit}, .* at least {MIB + 2 * record}"):
        check_memory(settings)
    check_memory(Settings(max_memory_bytes=MIB + 2 * record, max_record_bytes=record))
    check_memory(Settings(max_memory_bytes=0))
