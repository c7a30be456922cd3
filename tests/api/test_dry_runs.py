"""Dry runs: what a delete, a redrive or a PUT would do, said before it is done."""

from typing import Any

import pytest

from tests.api.clients.transcript import DELETE_PERFORMANCE, PERFORMANCE, Client, ok, refused
from tests.api.clients.worker import Worker, jobs, redrive
from tests.api.conftest import Start
from topics.testing.server import ServerThread

DRY = {"dry_run": True}


def delete(api: Client, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.post(f"/v0/topics/{topic}/delete", body), 200, DELETE_PERFORMANCE)


# --- delete


@pytest.mark.parametrize(
    ("selector", "deleted", "size", "earliest"),
    [
        ({"before_seq": 4}, 3, 9, 4),
        ({"before_seq": 99}, 6, 18, 7),
        ({"before_seq": 0}, 0, 0, 1),
        ({"match": "a"}, 3, 9, 2),
        ({"match": "b"}, 3, 9, 1),
        ({"match": ["tag", "Glob", "*"]}, 6, 18, 7),
        ({"match": "a", "before_seq": 4}, 2, 6, 2),
        ({"match": "none"}, 0, 0, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_delete_that_is_tried_says_what_it_would_take_and_takes_nothing(
    start: Start, selector: dict[str, Any], deleted: int, size: int, earliest: int, is_sealed: bool
) -> None:
    """DR1, DL1, DL2"""
    server = start()
    api = Client(server.address)
    api.write_records("t", *({"data": "x", "tag": "ab"[n % 2]} for n in range(6)))
    if is_sealed:
        server.do(server.server.engine.checkpoint())
    before = api.everything()
    tried = delete(api, "t", **selector, dry_run=True)
    left = {"earliest_seq": earliest, "head_seq": 6, "count": 6 - deleted, "bytes": 18 - size}
    assert tried == {"topic": "t", "deleted": deleted, **left, "dry_run": True, "deleted_bytes": size}
    assert api.everything() == before and len(api.data("t")) == 6
    done = delete(api, "t", **selector, dry_run=False)
    assert done == {name: value for name, value in tried.items() if name not in ("dry_run", "deleted_bytes")}


def test_a_tried_delete_is_refused_like_a_real_one(api: Client, topic: str) -> None:
    """DR1, DL1"""
    path = f"/v0/topics/{topic}/delete"
    refused(api.post(path, {"before_seq": 1} | DRY), 404, "topic_not_found")
    api.write(topic, 1)
    refused(api.post(path, DRY), 400, "invalid_request")
    refused(api.post(path, {"before_seq": 1, "epoch": 10**9} | DRY), 409, "epoch_mismatch")
    for value in (None, 1, "true"):
        message = refused(api.post(path, {"before_seq": 1, "dry_run": value}), 400, "invalid_request")
        assert message.startswith("dry_run must be true or false, not ")


# --- redrive


def buried(api: Client, topic: str, count: int, **config: Any) -> Worker:
    """A queue whose jobs are all dead letters."""
    limits = {"type": "queue", "max_deliveries": 1, "dead_letter": f"{topic}.dead"}
    api.create(topic, **limits)
    worker = Worker(api, topic)
    jobs(worker, count)
    worker.claim(count)
    worker.nack(*range(1, count + 1))
    worker.claim(1)
    while api.state(topic)["queue"]["dead_lettered"] < count:
        worker.claim(1)
    ok(api.put(f"/v0/topics/{topic}", limits | config))
    return worker


@pytest.mark.parametrize("body", [{}, {"max": 2}, {"max": 0}, {"match": "none"}], ids=str)
def test_a_redrive_that_is_tried_says_what_would_come_back_and_brings_nothing(
    api: Client, topic: str, body: dict[str, Any]
) -> None:
    """DR1, QU24"""
    buried(api, topic, 5)
    before = api.everything()
    tried = redrive(api, topic, **body, **DRY)
    assert api.everything() == before
    done = redrive(api, topic, **body)
    assert tried == done | {"dry_run": True, "redriven_bytes": done["redriven"]}
    assert api.state(topic)["bytes"] == tried["redriven_bytes"]


@pytest.mark.parametrize(
    "config",
    [
        {"cap_records": 130, "discard": "reject"},
        {"cap_bytes": 200, "discard": "reject"},
        {"cap_records": 130, "discard": "old"},
        {"cap_bytes": 2, "discard": "reject"},
    ],
    ids=str,
)
def test_a_tried_redrive_knows_how_much_room_there_is(api: Client, topic: str, config: dict[str, Any]) -> None:
    """DR1, QU24: with what comes before in the same redrive."""
    buried(api, topic, 250, **config)
    tried = redrive(api, topic, **DRY)
    assert api.state(topic)["count"] == 0
    done = redrive(api, topic)
    assert (tried["redriven"], tried["remaining"]) == (done["redriven"], done["remaining"])
    if config["discard"] == "reject":
        assert tried["remaining"] > 0
        assert ok(api.get(f"/v0/topics/{topic}?touch=false"))["bytes"] == tried["redriven_bytes"]
        message = refused(api.post(f"/v0/topics/{topic}/redrive", {}), 422, "topic_full")
        assert refused(api.post(f"/v0/topics/{topic}/redrive", DRY), 422, "topic_full") == message


def test_a_tried_redrive_knows_the_bound_on_all_bytes(start: Start) -> None:
    """DR1, LM4: each letter that comes back makes room for others."""
    server = start(max_total_bytes=2000)
    api = Client(server.address)
    buried(api, "q", 10)
    fill = 2000 - sum(api.state(name)["bytes"] for name in ("q", "q.dead"))
    api.write("fill", "x" * (fill - 2))
    refused(api.post("/v0/topics/q/redrive", DRY), 429, "throttled")
    refused(api.post("/v0/topics/q/redrive", {}), 429, "throttled")
    api.post("/v0/topics/fill/delete", {"before_seq": 9})
    api.write("fill", "x" * (fill - 3))
    tried = redrive(api, "q", **DRY)
    assert (tried["redriven"], tried["remaining"]) == (10, 0)
    assert redrive(api, "q")["redriven"] == 10


def test_a_tried_redrive_is_refused_like_a_real_one(start: Start) -> None:
    """DR1, QU24, AU6, AU8"""
    api = Client(start(api_keys="root,w:write,near:write+delete:q").address)
    root = api.with_key("root")
    root.create("q", type="queue")
    root.create("t")
    refused(root.post("/v0/topics/absent/redrive", DRY), 404, "topic_not_found")
    refused(root.post("/v0/topics/t/redrive", DRY), 409, "not_a_queue")
    refused(root.post("/v0/topics/q/redrive", DRY), 409, "no_dead_letter", {"topic": "q"})
    refused(api.with_key("w").post("/v0/topics/q/redrive", DRY), 403, "forbidden")
    ok(root.put("/v0/topics/q", {"dead_letter": "dead"}))
    refused(api.with_key("near").post("/v0/topics/q/redrive", DRY), 403, "forbidden")
    assert redrive(root, "q", **DRY)["redriven"] == 0
    refused(root.get("/v0/topics/dead"), 404, "topic_not_found")


# --- PUT


def put(api: Client, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.put(f"/v0/topics/{topic}", body), 200, PERFORMANCE)


def test_a_put_that_is_tried_creates_nothing(api: Client, topic: str) -> None:
    """DR1, TP5: 200, and the fields of the real answer."""
    before = api.everything()
    tried = put(api, topic, type="queue", lease_ms=1, dry_run=True)
    assert api.everything() == before
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    created = api.create(topic, type="queue", lease_ms=1, dry_run=False)
    assert tried == created | {"dry_run": True, "would_evict": {"records": 0, "bytes": 0}}
    assert tried["created"] is True and tried["config"]["lease_ms"] == 100


@pytest.mark.parametrize(
    ("config", "records"),
    [
        ({}, 0),
        ({"cap_records": 4}, 6),
        ({"cap_bytes": 7}, 3),
        ({"cap_records": 4, "discard": "reject"}, 0),
        ({"ttl_ms": 50}, 5),
        ({"ttl_ms": 50, "cap_records": 2}, 8),
        ({"ttl_ms": 5, "cap_records": 9}, 10),
    ],
    ids=str,
)
@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_a_put_that_is_tried_says_what_its_caps_and_ttl_would_take(
    start: Start, config: dict[str, Any], records: int, durability: str
) -> None:
    """DR1, TP7, TP17"""
    server = start()
    api = Client(server.address)
    api.create("t", durability=durability)
    api.write("t", *range(5))
    server.advance(40)
    api.write("t", *range(5))
    server.advance(20)
    before = api.everything()
    tried = put(api, "t", **config, durability=durability, dry_run=True)
    assert tried["would_evict"] == {"records": records, "bytes": records}
    assert tried["created"] is False and api.everything() == before
    ok(api.put("/v0/topics/t", config | {"durability": durability}))
    assert api.state("t")["count"] == 10 - records


def test_a_tried_put_is_refused_like_a_real_one(start: Start) -> None:
    """DR1, LM1, TP4, AU8"""
    server = start(max_topics=1, api_keys="root,near:admin:t")
    root = Client(server.address).with_key("root")
    root.create("t")
    refused(root.put("/v0/topics/other", DRY), 429, "throttled", {"limit": "max_topics", "max": 1})
    refused(root.put("/v0/topics/t", {"type": "queue"} | DRY), 409, "topic_exists_incompatible")
    refused(root.put("/v0/topics/t", {"dead_letter": "t"} | DRY), 400, "invalid_request")
    refused(root.put("/v0/topics/-", DRY), 400, "invalid_request")
    refused(root.put("/v0/topics/t", {"dry_run": None}), 400, "invalid_request")
    near = Client(server.address).with_key("near")
    refused(near.put("/v0/topics/t", {"dead_letter": "far"} | DRY), 403, "forbidden")
    ok(root.put("/v0/topics/t", {"dead_letter": "far"}))
    assert put(near, "t", dry_run=True)["config"]["dead_letter"] == "*"


def test_a_large_delete_that_is_tried_lets_others_have_their_turn(
    server: ServerThread, api: Client, topic: str
) -> None:
    """DR1, DL2: it looks at tags in slices of time, as a real one does, and a second run finds the same."""
    for _ in range(5):
        api.write_records(topic, *({"data": n, "tag": f"t{n % 3}"} for n in range(1000)))
    tried = delete(api, topic, match="t1", dry_run=True)
    assert tried["deleted"] == 5 * 333
    assert delete(api, topic, match="t1", dry_run=True) == tried
    log = server.server.engine.state.topics[topic].log
    assert server.run(lambda: len(log._measured)) == 0
    server.run(log.check)


# --- only what was looked at


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
def test_a_topic_that_was_created_again_is_not_deleted_by_who_saw_the_one_before(
    api: Client, topic: str, durability: str
) -> None:
    """DR2, TP11, TP16"""
    path = f"/v0/topics/{topic}"
    assert ok(api.delete(f"{path}?epoch=1"))["deleted"] is False
    ok(api.put(path, {"durability": durability}), 201)
    old = ok(api.get(path))["epoch"]
    assert ok(api.delete(f"{path}?epoch={old}"))["deleted"] is True
    api.write(topic, 1)
    new = ok(api.get(path))["epoch"]
    detail = {"topic": topic, "epoch": new, "requested_epoch": old}
    refused(api.delete(f"{path}?epoch={old}"), 409, "epoch_mismatch", detail)
    refused(api.delete(f"{path}?epoch=new"), 400, "invalid_request")
    assert api.data(topic) == [1]
    assert ok(api.delete(f"{path}?epoch={new}"))["deleted"] is True
