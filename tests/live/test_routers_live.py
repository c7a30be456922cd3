"""Routers on a real server, killed with kill -9: copies stay what and where they were."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok
from topics.testing.server import ServerProcess

FSYNC, EPHEMERAL = {"durability": "fsync"}, {"durability": "ephemeral"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as server:
        yield server


def killed(server: ServerProcess) -> Client:
    """The same data behind another process."""
    server.kill()
    server.start()
    return Client(server.address)


def route(api: Client, source: str, dest: str, **fields: Any) -> None:
    ok(api.put(f"/v0/routers/{source}->{dest}", {"source": source, "dest": dest} | fields), 201)


def copies(api: Client, topic: str) -> list[tuple[int, Any]]:
    return [(record["$seq"], record["data"]) for record in api.diff(topic)["records"]]


@pytest.mark.parametrize("way", ["delete", "cap"])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_copy_outlives_its_original_and_a_kill(server: ServerProcess, way: str, durability: str) -> None:
    """S3, RT20, G14"""
    api = Client(server.address)
    api.create("source", durability=durability)
    api.create("dest", durability=durability)
    route(api, "source", "dest")
    api.write("source", "r1", "r2")
    assert copies(api, "dest") == [(1, "r1"), (2, "r2")]
    if way == "delete":
        ok(api.post("/v0/topics/source/delete", {"before_seq": 2}))
    else:
        ok(api.put("/v0/topics/source", {"durability": durability, "cap_records": 1}))
    api = killed(server)
    assert copies(api, "source") == [(2, "r2")]
    assert copies(api, "dest") == [(1, "r1"), (2, "r2")]
    api.write("source", "r3")
    assert copies(api, "dest") == [(1, "r1"), (2, "r2"), (3, "r3")]


def test_direct_writes_and_acks_hit_the_seqs_they_hit_before_the_kill(server: ServerProcess) -> None:
    """S4, RT21, G14"""
    api = Client(server.address)
    api.create("source", **FSYNC)
    api.create("dest", type="queue", **FSYNC)
    route(api, "source", "dest")
    api.write("source", 1, 2, 3)
    assert api.state("dest")["head_seq"] == 3
    api.write("dest", "direct")
    claim = ok(api.post("/v0/topics/dest/claim", {"node": "w", "max": 2}))["claimed"]
    assert [job["$seq"] for job in claim] == [1, 2]
    assert ok(api.post("/v0/topics/dest/ack", {"node": "w", "seqs": [2]}))["acked"] == 1
    api = killed(server)
    assert copies(api, "dest") == [(1, 1), (3, 3), (4, "direct")]
    assert ok(api.get("/v0/routers/source->dest"))["forwarded_total"] == 3


def test_a_weak_source_leaves_strong_copies(server: ServerProcess) -> None:
    """S28, S15, RT24, RT22"""
    api = Client(server.address)
    api.create("source", **EPHEMERAL)
    api.create("dest", **FSYNC)
    route(api, "source", "dest")
    api.write("source", 1, 2, 3)
    assert copies(api, "dest") == [(1, 1), (2, 2), (3, 3)]
    api = killed(server)
    assert api.state("source")["head_seq"] == 0
    assert copies(api, "dest") == [(1, 1), (2, 2), (3, 3)]
    api.write("source", "next")
    assert copies(api, "dest")[3:] == [(4, "next")]


def test_kills_at_any_moment_lose_no_copy_that_was_seen(server: ServerProcess) -> None:
    """G14, G13, RT13, RT9: a chain and a fan-out, written to until the process dies."""
    api = Client(server.address)
    api.create("a", **FSYNC)
    for source, dest in (("a", "b"), ("b", "c"), ("a", "d")):
        route(api, source, dest)
    acked = 0
    for turn in range(5):
        seen = {name: [(r["$seq"], r["data"]) for r in all_of(api, name)] for name in "bcd"}
        with api.connect() as connection:
            for number in range(20):
                body = {"records": [{"data": [turn, number, n]} for n in range(10)]}
                connection.send(api.request("POST", "/v0/topics/a", body))
                acked = json.loads(connection.reply().body)["last_seq"]
            if turn % 2:
                connection.send(api.request("POST", "/v0/topics/a", {"records": [{"data": "not awaited"}]}))
            api = killed(server)
        assert api.state("a")["head_seq"] >= acked
        original = [record["data"] for record in all_of(api, "a")]
        for name in "bcd":
            records = all_of(api, name)
            assert [record["data"] for record in records] == original
            assert [(r["$seq"], r["data"]) for r in records][: len(seen[name])] == seen[name]


def all_of(api: Client, topic: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    answer = api.diff(topic, limit=1000)
    records += answer["records"]
    while not answer["caught_up"]:
        answer = api.diff(topic, answer["next_from_seq"], limit=1000)
        records += answer["records"]
    return records


def test_a_graceful_stop_leaves_nothing_to_forward(server: ServerProcess) -> None:
    """SC3"""
    api = Client(server.address)
    route(api, "a", "b")
    for number in range(50):
        api.write("a", *range(number + 1))
    assert server.stop() == 0
    server.start()
    api = Client(server.address)
    listed = ok(api.get("/v0/routers"))["routers"]
    assert listed[0]["forwarded_total"] == sum(range(51))
