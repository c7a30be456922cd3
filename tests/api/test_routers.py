"""Routers on the wire: definitions, refusals, copies, lists, keys, pressure, metrics."""

import re
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from topics.engine.routers.blocked import RETRY_MS_MAX
from topics.testing.disk import MemoryDisk

DEFAULTS = {
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}


def route(api: Client, name: str, source: str, dest: str, status: int = 201, **fields: Any) -> dict[str, Any]:
    return ok(api.put(f"/v0/routers/{name}", {"source": source, "dest": dest} | fields), status)


def shown(api: Client, name: str) -> dict[str, Any]:
    return ok(api.get(f"/v0/routers/{name}"))


def names(api: Client, query: str = "") -> list[str]:
    return [router["router"] for router in ok(api.get(f"/v0/routers{query}"))["routers"]]


# --- definitions


def test_a_router_is_created_with_its_topics_shown_changed_and_deleted(api: Client, topic: str) -> None:
    """RT1, RT2, RT3, RT4, TP13"""
    a, b, name = f"{topic}-a", f"{topic}-b", f"{topic}-a->{topic}-b"
    definition = {"router": name, "source": a, "dest": b} | DEFAULTS
    assert route(api, name, a, b) == definition | {"created": True}
    assert (api.state(a)["count"], api.state(b)["count"]) == (0, 0)
    running = {"forwarded_total": 0, "lag": 0, "state": "running"}
    assert shown(api, name) == definition | running
    assert route(api, name, a, b, 200) == definition | {"created": False}
    changes = {"preserve_node": False, "preserve_tag": False, "allow_cycle": True, "guarantee": "exactly_once"}
    changed = route(api, name, a, b, 200, filter="x", **changes)
    assert changed == definition | changes | {"filter": ["tag", "Eq", "x"], "created": False}
    assert ok(api.delete(f"/v0/routers/{name}")) == {"router": name, "deleted": True}
    assert ok(api.delete(f"/v0/routers/{name}")) == {"router": name, "deleted": False}
    refused(api.get(f"/v0/routers/{name}"), 404, "router_not_found", {"router": name})


@pytest.mark.parametrize(
    ("match", "echo"),
    [
        ("x*", ["tag", "Eq", "x*"]),
        (["tag", "Eq", "x"], ["tag", "Eq", "x"]),
        (["tag", "Glob", "public:*"], ["tag", "Glob", "public:*"]),
        (None, None),
    ],
)
def test_a_filter_is_echoed_as_a_tuple(api: Client, topic: str, match: Any, echo: Any) -> None:
    """RT1, RT2, CV19"""
    assert route(api, topic, f"{topic}-a", f"{topic}-b", filter=match)["filter"] == echo
    assert shown(api, topic)["filter"] == echo


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"dest": "b"},
        {"source": "a", "dest": "a"},
        {"source": "a", "dest": "no good"},
        {"source": "", "dest": "b"},
        {"source": "-a", "dest": "b"},
        {"source": 1, "dest": "b"},
        {"source": "a", "dest": None},
        {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "filter": 1},
        {"source": "a", "dest": "b", "preserve_node": 1},
        {"source": "a", "dest": "b", "preserve_tag": None},
        {"source": "a", "dest": "b", "allow_cycle": "yes"},
        {"source": "a", "dest": "b", "create_dest": 0},
        {"source": "a", "dest": "b", "guarantee": "twice"},
        [],
        "x",
    ],
    ids=str,
)
def test_a_definition_that_makes_no_sense_is_refused_and_creates_nothing(api: Client, topic: str, body: Any) -> None:
    """RT1, RT7, CV18, CV19, CV20"""
    before = api.everything()
    refused(api.put(f"/v0/routers/{topic}", body), 400, "invalid_request", None)
    assert api.everything() == before


@pytest.mark.parametrize("name", ["-a", ">a", "a%20b", "a" * 256, "a%2Fb", "%C3%A9"])
def test_a_bad_name_is_refused_before_anything_else(api: Client, name: str) -> None:
    """RT7, CV12"""
    body = {"source": "same", "dest": "same"}
    assert "router name" in refused(api.put(f"/v0/routers/{name}", body), 400, "invalid_request", None)
    refused(api.get(f"/v0/routers/{name}"), 404, "router_not_found")


def test_a_name_may_hold_an_arrow_in_either_spelling(api: Client, topic: str) -> None:
    """CV12, CV14"""
    route(api, f"{topic}-%3Ex", f"{topic}-a", f"{topic}-b")
    assert shown(api, f"{topic}->x")["router"] == f"{topic}->x"


# --- refusals in their order


def test_an_absent_dest_is_created_unless_that_is_declined(api: Client, topic: str) -> None:
    """RT4, RT7, S27"""
    before = api.everything()
    body = {"source": f"{topic}-a", "dest": f"{topic}-b", "create_dest": False}
    refused(api.put(f"/v0/routers/{topic}", body), 404, "topic_not_found", {"topic": f"{topic}-b"})
    assert api.everything() == before
    api.create(f"{topic}-b")
    route(api, topic, f"{topic}-a", f"{topic}-b", create_dest=False)


def test_a_dest_has_one_source_whatever_else_writes_to_it(api: Client, topic: str) -> None:
    """RT6, RT7"""
    a, b, dest = f"{topic}-a", f"{topic}-b", f"{topic}-d"
    route(api, f"{topic}-1", a, dest)
    route(api, f"{topic}-2", a, dest)
    before = api.everything()
    detail = {"topic": dest, "reason": "router_dest_fan_in"}
    body = {"source": b, "dest": dest}
    refused(api.put(f"/v0/routers/{topic}-3", body), 409, "topic_exists_incompatible", detail)
    refused(api.put(f"/v0/routers/{topic}-1", body), 409, "topic_exists_incompatible", detail)
    assert api.everything() == before
    ok(api.delete(f"/v0/routers/{topic}-2"))
    assert route(api, f"{topic}-1", b, dest, 200)["created"] is False
    api.write(dest, "direct")
    api.write(b, "copy")
    assert api.data(dest) == ["direct", "copy"]


def test_a_cycle_is_refused_and_named_unless_it_is_allowed(api: Client, topic: str) -> None:
    """RT5, RT7, ER4, S27"""
    a, b, c = (f"{topic}-{letter}" for letter in "abc")
    route(api, f"{topic}-ab", a, b)
    route(api, f"{topic}-bc", b, c)
    before = api.everything()
    reply = api.put(f"/v0/routers/{topic}-ca", {"source": c, "dest": a})
    refused(reply, 409, "router_cycle", {"cycle": [c, a, b, c]})
    assert api.everything() == before
    route(api, f"{topic}-ca", c, a, allow_cycle=True)
    assert route(api, f"{topic}-ab", a, b, 200, allow_cycle=True, preserve_tag=False)["created"] is False
    refused(api.put(f"/v0/routers/{topic}-ab", {"source": a, "dest": b}), 409, "router_cycle")
    assert shown(api, f"{topic}-ab")["allow_cycle"] is True


def test_a_router_does_not_count_its_own_edge(api: Client, topic: str) -> None:
    """RT5, RT23"""
    a, b = f"{topic}-a", f"{topic}-b"
    route(api, topic, a, b)
    assert route(api, topic, b, a, 200)["source"] == b


def test_limits_refuse_new_routers_and_topics_in_the_order_of_the_contract(start: Start) -> None:
    """RT7, LM1, LM2, LM3, S27"""
    api = Client(start(max_routers=1, max_topics=3).address)
    route(api, "ab", "a", "b")
    before = api.everything()
    limit = {"limit": "max_routers", "max": 1}
    refused(api.put("/v0/routers/ba", {"source": "b", "dest": "a"}), 429, "throttled", limit)
    refused(api.put("/v0/routers/xb", {"source": "x", "dest": "b"}), 409, "topic_exists_incompatible")
    refused(api.put("/v0/routers/ax", {"source": "a", "dest": "x", "create_dest": False}), 404, "topic_not_found")
    refused(
        api.put("/v0/routers/ab", {"source": "x", "dest": "y"}), 429, "throttled", {"limit": "max_topics", "max": 3}
    )
    assert api.everything() == before
    assert route(api, "ab", "a", "b", 200, preserve_tag=False)["preserve_tag"] is False
    assert route(api, "ab", "a", "c", 200)["dest"] == "c"


# --- copies


def test_a_copy_carries_all_but_its_own_seq_and_time(start: Start) -> None:
    """RT10, ND5, CV6"""
    server = start()
    api = Client(server.address)
    route(api, "r", "a", "b")
    api.write("b", "earlier")
    server.advance(5)
    text = b'{"records":[{"data":{"b":1.0, "b":1e400},"tag":"t","node":"n","meta":{"k": 1}},{"data":null}],"node":"m"}'
    assert api.post("/v0/topics/a", text).status == 200
    server.advance(5)
    body = api.post("/v0/topics/b/diff", {"from_seq": 1, "include_tags": True}).body
    assert b'"$node":"n","$tag":"t","data":{"b":1.0, "b":1e400},"meta":{"k": 1}' in body
    records = re.findall(rb'"\$seq":(\d+),"\$ts":(\d+),"\$node":"(\w)"', body)
    written_at = server.clock.now_ms() - 5
    assert records == [(b"2", b"%d" % written_at, b"n"), (b"3", b"%d" % written_at, b"m")]


def test_node_and_tag_are_cleared_if_asked(api: Client, topic: str) -> None:
    """RT10, ND5"""
    a, b, c = (f"{topic}-{letter}" for letter in "abc")
    route(api, f"{topic}-b", a, b, preserve_node=False)
    route(api, f"{topic}-c", a, c, preserve_tag=False)
    api.write_records(a, {"data": 1, "tag": "t", "node": "n"}, {"data": 2, "tag": "t"}, {"data": 3, "node": "n"})
    without_node = api.diff(b, include_tags=True)["records"]
    assert [(r.get("$tag"), r.get("$node")) for r in without_node] == [("t", None), ("t", None), (None, None)]
    without_tag = api.diff(c, include_tags=True)["records"]
    assert [(r.get("$tag"), r.get("$node")) for r in without_tag] == [(None, "n"), (None, None), (None, "n")]
    assert api.data(c, node="n") == [2]


def test_only_what_matches_the_filter_is_copied(api: Client, topic: str) -> None:
    """RT11, RT19"""
    a, b = f"{topic}-a", f"{topic}-b"
    route(api, topic, a, b, filter=["tag", "Glob", "x:*"])
    api.write_records(a, *({"data": tag, "tag": tag} for tag in ("x:1", "y", "x:", "x")), {"data": "none"})
    assert api.data(b) == ["x:1", "x:"]
    assert (shown(api, topic)["forwarded_total"], shown(api, topic)["lag"]) == (2, 0)


def test_what_was_written_before_the_router_is_not_copied(api: Client, topic: str) -> None:
    """RT8, RT3"""
    a, b = f"{topic}-a", f"{topic}-b"
    api.write(a, 1, 2)
    route(api, topic, a, b)
    api.write(a, 3)
    assert api.data(b) == [3]
    ok(api.delete(f"/v0/routers/{topic}"))
    api.write(a, 4)
    route(api, topic, a, b)
    api.write(a, 5)
    assert api.data(b) == [3, 5]


def test_a_change_keeps_the_place_and_another_source_starts_anew(api: Client, topic: str) -> None:
    """RT2, RT23"""
    a, b, c = (f"{topic}-{letter}" for letter in "abc")
    route(api, topic, a, b)
    api.write(a, 1, 2)
    assert shown(api, topic)["forwarded_total"] == 2
    assert route(api, topic, a, b, 200, preserve_tag=False)["created"] is False
    assert shown(api, topic)["forwarded_total"] == 2
    api.write(c, "old")
    assert route(api, topic, c, b, 200)["created"] is False
    assert shown(api, topic)["forwarded_total"] == 0
    api.write(c, "new")
    assert api.data(b) == [1, 2, "new"]


def test_what_is_written_is_read_at_once_over_a_chain(api: Client, topic: str) -> None:
    """S30, DF9: diff, state, GET router, GET diff."""
    a, b, c, d = (f"{topic}-{letter}" for letter in "abcd")
    for source, dest in ((a, b), (b, c), (c, d)):
        route(api, f"{source}->{dest}", source, dest)
    for number in range(20):
        api.write(a, number)
        assert api.data(d, number) == [number]
    api.write(a, "more")
    assert api.state(d)["head_seq"] == 21
    api.write(a, "last")
    assert shown(api, f"{c}->{d}")["forwarded_total"] == 22
    api.write(a, "end")
    reply = api.get(f"/v0/topics/{d}/diff?from_seq=22")
    assert [record["data"] for record in ok(reply)["records"]] == ["end"]


def test_a_long_poll_on_a_dest_ends_with_a_copy(api: Client, topic: str) -> None:
    """DF8, DF9, RT9"""
    a, b = f"{topic}-a", f"{topic}-b"
    route(api, topic, a, b)
    with api.connect() as connection:
        connection.send(api.request("POST", f"/v0/topics/{b}/diff", {"wait_ms": 30000}))
        api.write(a, 1)
        answer = ok(connection.reply())
    assert [record["data"] for record in answer["records"]] == [1]


def test_exactly_once_stamps_its_copies(api: Client, topic: str) -> None:
    """RT14, CV9"""
    a, b = f"{topic}-a", f"{topic}-b"
    route(api, topic, a, b, guarantee="exactly_once")
    epoch = api.state(a)["epoch"]
    meta = {"k": 1, "_topics_router": {"forged": True}, "z": 2}
    api.write_records(a, {"data": 1}, {"data": 2, "meta": meta})
    first, second = (record["meta"] for record in api.diff(b)["records"])
    stamp = first["_topics_router"]
    assert list(first) == ["_topics_router"]
    assert list(stamp) == [
        "idempotency_key",
        "router",
        "source_topic",
        "source_topic_id",
        "source_epoch",
        "source_seq",
    ]
    assert (stamp["router"], stamp["source_topic"], stamp["source_epoch"], stamp["source_seq"]) == (topic, a, epoch, 1)
    assert {key: value for key, value in second.items() if key != "_topics_router"} == {"k": 1, "z": 2}
    assert second["_topics_router"]["source_seq"] == 2
    assert second["_topics_router"]["idempotency_key"] != stamp["idempotency_key"]


def test_a_cycle_comes_to_rest_at_the_hop_cap(api: Client, topic: str) -> None:
    """RT16, DF9"""
    a, b = f"{topic}-a", f"{topic}-b"
    route(api, f"{topic}-ab", a, b)
    route(api, f"{topic}-ba", b, a, allow_cycle=True)
    api.write(a, "x")
    for _ in range(10):
        heads = (api.state(a)["head_seq"], api.state(b)["head_seq"])
    assert heads == (5, 4), "one record, and eight copies"


def test_deleting_a_topic_takes_its_routers_with_it(api: Client, topic: str) -> None:
    """RT18, TP11"""
    a, b, c = (f"{topic}-{letter}" for letter in "abc")
    route(api, f"{topic}-2", b, c)
    route(api, f"{topic}-1", a, b)
    removed = ok(api.delete(f"/v0/topics/{b}"))["routers_removed"]
    assert removed == [f"{topic}-1", f"{topic}-2"]
    refused(api.get(f"/v0/routers/{topic}-1"), 404, "router_not_found")
    api.write(b, "another one")
    api.write(a, 1)
    assert (api.data(b), api.data(c)) == (["another one"], [])


# --- routers that cannot go on


def test_a_full_dest_holds_the_router_back_until_there_is_room(api: Client, topic: str) -> None:
    """RT15, RT13, RT17, DF9: and GET says why."""
    a, b = f"{topic}-a", f"{topic}-b"
    api.create(b, cap_records=2, discard="reject")
    route(api, topic, a, b)
    api.write(a, 1, 2, 3, 4, 5)
    assert api.data(b) == [1, 2]
    blocked = shown(api, topic)
    assert (blocked["state"], blocked["forwarded_total"], blocked["lag"]) == ("blocked", 2, 3)
    assert b in blocked["blocked_by"] and "full" in blocked["blocked_by"]
    ok(api.post(f"/v0/topics/{b}/delete", {"before_seq": 2}))
    assert api.data(b) == [2, 3]
    ok(api.post(f"/v0/topics/{b}/delete", {"before_seq": 9}))
    assert api.data(b) == [4, 5]
    running = shown(api, topic)
    assert (running["state"], running["forwarded_total"], running["lag"]) == ("running", 5, 0)
    assert "blocked_by" not in running


def test_a_router_has_nothing_to_wait_for_once_its_records_have_expired(start: Start) -> None:
    """RT12, RT15, RT17"""
    server = start()
    api = Client(server.address)
    api.create("a", ttl_ms=1000)
    api.create("b", cap_records=2, discard="reject")
    route(api, "r", "a", "b")
    api.write("a", 1, 2, 3)
    assert shown(api, "r")["state"] == "blocked"
    server.advance(2000)
    server.until(lambda: not server.server.engine.forwarder.blocked.by_id)
    running = shown(api, "r")
    assert (running["state"], running["lag"], running["forwarded_total"]) == ("running", 0, 3)


def test_a_record_too_large_for_its_dest_blocks_the_router_loudly(api: Client, topic: str) -> None:
    """RT15, RT17, WR12"""
    a, b = f"{topic}-a", f"{topic}-b"
    api.create(b, cap_bytes=10)
    route(api, topic, a, b)
    api.write(a, 1, "x" * 20, 2)
    assert api.data(b) == [1]
    assert "cap_bytes of 10" in shown(api, topic)["blocked_by"]
    ok(api.put(f"/v0/topics/{b}", {"cap_bytes": 100}))
    assert api.data(b) == [1, "x" * 20, 2]


def test_forwards_wait_for_room_under_the_bound_of_all_bytes(start: Start) -> None:
    """LM4, RT15"""
    server = start(max_total_bytes=10)
    api = Client(server.address)
    route(api, "r", "a", "b")
    api.write("a", 1, 2, 3, 4, 5, 6)
    assert api.data("b") == [1, 2, 3, 4]
    assert "at most 10" in shown(api, "r")["blocked_by"]
    ok(api.post("/v0/topics/a/delete", {"before_seq": 4}))
    server.advance(RETRY_MS_MAX)  # how often it was tried in vain, and so when it is tried again, nobody knows
    server.until(lambda: server.server.engine.state.topics["b"].log.head == 6)
    assert api.data("b") == [1, 2, 3, 4, 5, 6]


def test_a_source_that_evicts_before_it_was_copied_leaves_a_hole(api: Client, topic: str) -> None:
    """S2, E12, RT12, RT19, TM12, TM16"""
    a, b = f"{topic}-a", f"{topic}-b"
    api.create(a, cap_records=3)
    api.create(b, cap_records=10, discard="reject")
    route(api, topic, a, b)
    for number in range(10):
        api.write(a, number)
        assert api.state(b)["head_seq"] == number + 1
    for number in range(8):
        api.write(a, f"late {number}")
    ok(api.put(f"/v0/topics/{b}", {}))
    first = api.diff(b)
    assert [record["$seq"] for record in first["records"]] == list(range(1, 11))
    assert (first["tombstone"], first["caught_up"], first["next_from_seq"]) == (None, False, 10)
    second = api.diff(b, 10)
    tombstone = second["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (11, 15, "source_trim")
    assert [record["$seq"] for record in second["records"]] == [16, 17, 18]
    assert [record["data"] for record in second["records"]] == ["late 5", "late 6", "late 7"]
    assert (second["earliest_seq"], shown(api, topic)["forwarded_total"]) == (1, 18)


# --- lists, keys, metrics, pressure


def test_lists_are_sorted_filtered_and_paged(start: Start) -> None:
    """RT3, S23, CV15: the cursor is pasted as it is."""
    api = Client(start().address)
    pairs = [("a", "b"), ("b", "c"), ("a", "d"), ("x", "a")]
    for source, dest in pairs:
        route(api, f"{source}->{dest}", source, dest)
    api.write("a", 1)
    assert api.state("c")["head_seq"] == 1
    every = sorted(f"{source}->{dest}" for source, dest in pairs)
    assert names(api) == every
    paged: list[str] = []
    query = "?page_size=1"
    while query:
        page = ok(api.get(f"/v0/routers{query}"))
        paged += [router["router"] for router in page["routers"]]
        query = f"?page_size=1&cursor={page['next_cursor']}" if "next_cursor" in page else ""
    assert paged == every
    assert names(api, "?source=a") == ["a->b", "a->d"]
    assert names(api, "?dest=a") == ["x->a"]
    assert names(api, "?source=a&dest=d") == ["a->d"]
    assert names(api, "?prefix=b") == ["b->c"]
    listed = ok(api.get("/v0/routers?dest=c"))["routers"]
    assert listed == [
        {"router": "b->c", "source": "b", "dest": "c", "guarantee": "at_least_once", "forwarded_total": 1}
    ]
    refused(api.get("/v0/routers?cursor=!"), 400, "invalid_request")


def test_lists_and_metrics_do_not_make_routers_work(start: Start) -> None:
    """DF9"""
    server = start()
    api = Client(server.address)
    route(api, "r", "a", "b")
    server.run(lambda: setattr(server.server.engine.forwarder, "_is_running", False))
    api.write("a", 1)
    assert ok(api.get("/v0/routers"))["routers"][0]["forwarded_total"] == 0
    assert ok(api.get("/v0/topics"))["topics"][1]["head_seq"] == 0
    assert b'topics_router_lag{router="r"} 1' in api.get("/v0/metrics").body
    assert shown(api, "r")["forwarded_total"] == 1


def test_a_key_sees_only_routers_all_of_whose_names_are_its_own(start: Start) -> None:
    """AU8, AU9, AU14"""
    api = Client(start(api_keys="root,acme::acme:").address)
    root, acme = api.with_key("root"), api.with_key("acme")
    route(acme, "acme:1", "acme:a", "acme:b")
    route(root, "acme:2", "acme:b", "other")
    route(root, "acme:3", "other", "acme:c")
    route(root, "mine", "acme:c", "acme:d")
    assert names(acme) == ["acme:1"]
    assert len(names(root)) == 4
    for name in ("acme:2", "acme:3", "mine"):
        refused(acme.get(f"/v0/routers/{name}"), 403, "forbidden")
        refused(acme.delete(f"/v0/routers/{name}"), 403, "forbidden")
    for source, dest in (("acme:a", "other"), ("other", "acme:x")):
        refused(acme.put("/v0/routers/acme:x", {"source": source, "dest": dest}), 403, "forbidden")
    reply = acme.put("/v0/routers/acme:x", {"source": "acme:d", "dest": "acme:b"})
    refused(reply, 409, "topic_exists_incompatible")
    reply = acme.put("/v0/routers/acme:x", {"source": "acme:d", "dest": "acme:a"})
    assert refused(reply, 409, "router_cycle", {"cycle": ["acme:d", "acme:a", "acme:b", "acme:c", "acme:d"]})
    lags = re.findall(rb'topics_router_lag\{router="([^"]+)"\}', acme.get("/v0/metrics").body)
    assert lags == [b"acme:1"]
    assert ok(acme.delete("/v0/topics/acme:b"))["routers_removed"] == ["acme:1"]
    refused(acme.put("/v0/routers/-bad", {"source": "other", "dest": "other"}), 403, "forbidden")
    refused(acme.put("/v0/routers/acme:x", {"source": "other", "dest": "other"}), 400, "invalid_request")


def test_metrics_count_routers_and_show_how_far_each_is_behind(api: Client, topic: str) -> None:
    """HM3, HM5, A.15"""
    before = api.metrics()["routers"]
    api.create(f"{topic}-b", cap_records=1, discard="reject")
    route(api, topic, f"{topic}-a", f"{topic}-b")
    api.write(f"{topic}-a", 1, 2, 3)
    assert shown(api, topic)["lag"] == 2
    assert api.metrics()["routers"] == before + 1
    text = api.get("/v0/metrics").body
    assert b"topics_routers %d\n" % (before + 1) in text
    assert b'topics_router_lag{router="%s"} 2\n' % topic.encode() in text


def test_under_pressure_routers_of_low_priority_wait(start: Start) -> None:
    """PR5, DF9"""
    server = start()
    api = Client(server.address)
    api.create("low", priority=-1)
    route(api, "1", "a", "low")
    route(api, "2", "a", "b")
    server.pressure = 0.6
    server.run(server.server.pressure.measure)
    api.write("a", 1)
    assert (api.data("b"), api.data("low")) == ([1], [])
    assert shown(api, "1")["state"] == "running"
    server.pressure = 0.0
    server.run(server.server.pressure.measure)
    assert api.data("low") == [1]


def test_routers_are_drained_before_the_server_stops(start: Start) -> None:
    """SC3"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    route(api, "1", "a", "b")
    route(api, "2", "b", "c")
    server.run(lambda: setattr(server.server.engine.forwarder, "_is_running", False))
    api.write("a", 1, 2, 3)
    server.close()
    again = start(disk=disk.kill())
    topics = again.run(lambda: {name: topic.log.head for name, topic in again.server.engine.state.topics.items()})
    assert topics == {"a": 3, "b": 3, "c": 3}
