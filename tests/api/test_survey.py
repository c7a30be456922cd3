"""What is told of the whole: settings, findings, sums, losses of all topics, times, routers with details."""

import json
from dataclasses import fields
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from topics.settings import Settings
from topics.testing.disk import Faulty, MemoryDisk

SUMS = [
    *("topics", "count", "bytes", "written_rate", "read_rate", "lost_total", "expired_total", "deleted_total"),
    "ready",
]
KEYS = "root,admin:admin,reader:read,some:read+admin:acme,writer:write"


@pytest.fixture
def api(start: Start) -> Client:
    return Client(start().address)


# --- the server (OB4)


def test_settings_are_shown_with_their_origin_and_never_a_secret(start: Start) -> None:
    """OB4, AU2"""
    server = start(api_keys="s3cret-of-root,other:read", max_topics=7)
    reply = Client(server.address, "s3cret-of-root").get("/v0/server")
    shown = {one["name"]: one for one in ok(reply)["settings"]}
    assert "s3cret" not in json.dumps(reply.json)
    assert shown["api_keys"] == {
        "name": "api_keys",
        "variable": "TOPICS_API_KEYS",
        "value": None,
        "default": None,
        "origin": "TOPICS_API_KEYS",
        "secret": True,
        "meaning": shown["api_keys"]["meaning"],
    }
    assert (shown["max_topics"]["value"], shown["max_topics"]["origin"]) == (7, "given")
    assert (shown["max_claim"]["value"], shown["max_claim"]["default"], shown["max_claim"]["origin"]) == (
        1000,
        1000,
        "default",
    )
    assert set(shown) == {field.name for field in fields(Settings)}


def test_the_server_is_shown_to_keys_that_may_see_everything(start: Start) -> None:
    """OB4, AU6, AU8: settings hold paths, so neither a reader nor a key with prefixes is shown them."""
    client = Client(start(api_keys=KEYS).address)
    for key, status in (("root", 200), ("admin", 200), ("reader", 403), ("some", 403), ("writer", 403)):
        assert client.with_key(key).get("/v0/server").status == status, key
    refused(client.get("/v0/server"), 401, "unauthorized")


def test_checkpoints_disk_and_memory_are_told(start: Start) -> None:
    """OB4"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    before = ok(api.get("/v0/server"))
    assert (before["checkpoints"]["taken"], before["checkpoints"]["last_ts"]) == (0, None)
    assert before["disk"] == {"free_bytes": 1 << 40, "total_bytes": 1 << 41, "seconds_until_full": None}
    assert before["memory"]["resident_bytes"] > 0
    assert before["memory"]["kept_bytes_max"] > before["memory"]["kept_bytes"] == 0
    assert before["memory"]["write_bytes_max"] == 64 * 1024 * 1024
    api.write("a", 1)
    server.do(server.server.engine.checkpoint())
    after = ok(api.get("/v0/server"))["checkpoints"]
    assert (after["taken"], after["failed"], after["failure"], after["running"]) == (1, 0, None, False)
    assert after["last_ts"] is not None and after["due_bytes"] > 0


def test_a_disk_that_fills_has_a_forecast(start: Start) -> None:
    """OB4: at the pace of what the server's history has of the last hour."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    disk.free_bytes = 1000_000
    for _ in range(13):
        server.advance(10_000)
        ok(api.get("/v0/stats"))
        disk.free_bytes -= 1000
    told = ok(api.get("/v0/server"))["disk"]
    assert 9_000 < told["seconds_until_full"] < 11_000
    [finding] = [one for one in ok(api.get("/v0/doctor"))["findings"] if "at the pace" in one["said"]]
    assert finding["level"] == "note"


# --- findings (OB5)


def findings(api: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(api.get("/v0/doctor"))["findings"]
    return found


def said_of(api: Client, subject: str) -> list[str]:
    return [one["said"] for one in findings(api) if one["subject"] == subject]


def test_what_is_worth_a_look_is_found(api: Client) -> None:
    """OB5"""
    api.create("small", cap_records=2)
    api.write("small", 1)
    ok(api.put("/v0/topics/small/cursors/slow", {"seq": 0}))
    api.write("small", 2, 3, 4)
    api.create("jobs", type="queue", max_deliveries=3)
    api.write("jobs", 1)
    ok(api.post("/v0/topics/jobs/pause"))
    api.create("full", cap_records=1, discard="reject")
    ok(api.put("/v0/routers/small->full", {"source": "small", "dest": "full"}), 201)
    api.write("small", 5, 6)
    assert "4 records above the cursor slow are lost" in said_of(api, "topic small")
    assert any("paused; 1 jobs wait" in one for one in said_of(api, "topic jobs"))
    assert any("max_deliveries is 3" in one for one in said_of(api, "topic jobs"))
    assert any("blocked by" in one for one in said_of(api, "router small->full"))
    levels = [one["level"] for one in findings(api)]
    assert levels == sorted(levels, key=["fault", "note", "ok"].index), "the worst come first"
    assert all(one["remedy"] for one in findings(api) if one["level"] != "ok")


def test_a_checkpoint_that_failed_is_found(start: Start) -> None:
    """OB5"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.write("a", 1)
    server.run(lambda: disk.hooks.append(Faulty("write", name="snapshot*", times=1)))
    with pytest.raises(OSError):
        server.do(server.server.engine.checkpoint())
    [said] = said_of(api, "checkpoints")
    assert said.startswith("the last one failed")
    server.do(server.server.engine.checkpoint())
    assert said_of(api, "checkpoints") == ["1 taken"]


def test_findings_name_only_what_the_key_may_name(start: Start) -> None:
    """OB5, AU9, AU14: and only whoever may see the server is told of it."""
    client = Client(start(api_keys=KEYS).address)
    root = client.with_key("root")
    for name in ("acme-jobs", "other-jobs"):
        root.create(name, type="queue")
        ok(root.post(f"/v0/topics/{name}/pause"))
    assert {"topic acme-jobs", "topic other-jobs", "disk"} <= {one["subject"] for one in findings(root)}
    assert [one["subject"] for one in findings(client.with_key("some"))] == ["topic acme-jobs"]
    assert "disk" not in {one["subject"] for one in findings(client.with_key("reader"))}
    refused(client.with_key("writer").get("/v0/doctor"), 403, "forbidden")


def test_letters_in_a_topic_that_the_key_may_not_name_are_not_counted(start: Start) -> None:
    """OB5, AU16"""
    client = Client(start(api_keys=KEYS).address)
    root = client.with_key("root")
    root.create("acme-jobs", type="queue", max_deliveries=1, dead_letter="other-dead")
    root.write("other-dead", 1, 2)
    assert "2 dead letters wait" in said_of(root, "topic acme-jobs")
    assert findings(client.with_key("some")) == []


def test_memory_near_its_limit_is_found_before_writes_are_refused(start: Start) -> None:
    """OB5, LM14"""
    api = Client(start(max_memory_bytes=100_000).address)
    api.create("kept", durability="ephemeral")
    assert said_of(api, "memory") == []
    api.write("kept", *["x" * 1000] * 80)
    [finding] = [one for one in findings(api) if one["subject"] == "memory"]
    assert finding["level"] == "note" and finding["remedy"]
    api.write("kept", *["x" * 1000] * 12)
    [finding] = [one for one in findings(api) if one["subject"] == "memory"]
    assert finding["level"] == "fault" and "TOPICS_MAX_MEMORY_BYTES" in finding["said"] and finding["remedy"]
    ok(api.delete("/v0/topics/kept"))
    assert said_of(api, "memory") == []


def test_many_findings_of_one_kind_are_counted(api: Client) -> None:
    """OB5"""
    for n in range(25):
        api.create(f"q{n:02}", type="queue", max_deliveries=1)
    found = [one for one in findings(api) if one["subject"].startswith("topic")]
    assert len(found) == 21 and "5 more" in found[-1]["said"]


# --- the tree (OB6)


def tree(api: Client, query: str = "") -> dict[str, Any]:
    told: dict[str, Any] = ok(api.get(f"/v0/tree?{query}"))
    return told


def branches(api: Client, query: str = "") -> dict[str, int]:
    return {one["prefix"]: one["topics"] for one in tree(api, query)["branches"]}


def test_names_are_a_tree_with_sums(api: Client) -> None:
    """OB6"""
    for name, count in (("shop:orders", 3), ("shop:mails.in", 2), ("shop:mails.out", 1), ("shop", 4), ("a.b", 1)):
        api.write(name, *range(count))
    assert branches(api) == {"a.": 1, "shop": 1, "shop:": 3}
    told = tree(api, "prefix=shop:")
    assert list(told["total"]) == SUMS
    assert (told["total"]["topics"], told["total"]["count"]) == (3, 6)
    assert [(one["prefix"], one["topic"], one["count"]) for one in told["branches"]] == [
        ("shop:mails.", False, 3),
        ("shop:orders", True, 3),
    ]
    assert branches(api, "prefix=shop:mails.") == {"shop:mails.in": 1, "shop:mails.out": 1}
    assert branches(api, "contains=out") == {"shop:": 1}
    assert branches(api, "type=queue") == {}
    assert branches(api, "prefix=nothing") == {}


def test_sums_are_those_of_the_topics(api: Client) -> None:
    """OB6, LS2: of a topic, its branch says what its state says."""
    api.create("t:small", cap_records=3)
    api.write("t:small", *range(8))
    api.create("t:jobs", type="queue")
    api.write("t:jobs", *range(5))
    ok(api.post("/v0/topics/t:jobs/delete", {"before_seq": 3}))
    by_name = {one["prefix"]: one for one in tree(api, "prefix=t:")["branches"]}
    for name, told in by_name.items():
        state = api.state(name)
        for field in ("count", "bytes", "lost_total", "expired_total", "deleted_total"):
            assert told[field] == state[field], field
    assert by_name["t:jobs"]["ready"] == 3
    total = tree(api, "prefix=t:")["total"]
    assert total["lost_total"] == 5 and total["deleted_total"] == 2


def test_a_tree_has_pages(api: Client) -> None:
    """OB6, CV15: no branch is on two pages, none is left out; the total is of all."""
    for n in range(23):
        api.create(f"b{n:02}:x")
        api.create(f"b{n:02}:y")
    found, cursor = list[str](), ""
    while True:
        page = tree(api, f"page_size=5{cursor}")
        assert page["total"]["topics"] == 46
        assert all(one["topics"] == 2 for one in page["branches"])
        found += [one["prefix"] for one in page["branches"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [f"b{n:02}:" for n in range(23)]
    refused(api.get("/v0/tree?cursor=%00"), 400, "invalid_request", None)


@pytest.mark.parametrize("name", ["a:", "a::", "a.:b", "a..", "0:.", "a" * 255])
def test_odd_names_are_reached_in_the_tree(api: Client, name: str) -> None:
    """OB6, CV12: each step gets longer, and the last is the topic."""
    api.create(name)
    prefix = ""
    for _ in range(10):
        [branch] = tree(api, f"prefix={prefix}")["branches"]
        if branch["topic"]:
            assert branch["prefix"] == name
            return
        assert len(branch["prefix"]) > len(prefix)
        prefix = branch["prefix"]
    raise AssertionError("the topic was not reached")


def test_a_tree_has_only_what_the_key_may_name(start: Start) -> None:
    """OB6, AU14: sums as well."""
    client = Client(start(api_keys=KEYS).address)
    root = client.with_key("root")
    root.write("acme:a", 1, 2)
    root.write("other:a", 1)
    told = tree(client.with_key("some"))
    assert (told["total"]["topics"], told["total"]["count"]) == (1, 2)
    assert [one["prefix"] for one in told["branches"]] == ["acme:"]
    refused(client.with_key("writer").get("/v0/tree"), 403, "forbidden")


# --- losses of all topics (OB7)


def test_losses_of_all_topics_name_the_cursors_that_were_hit(start: Start) -> None:
    """OB7, LS1, NC3"""
    server = start()
    api = Client(server.address)
    for name in ("one", "two"):
        api.create(name, cap_records=3)
        api.write(name, 1, 2, 3)
    for cursor, seq in (("behind", 0), ("half", 2), ("ahead", 3)):
        ok(api.put(f"/v0/topics/one/cursors/{cursor}", {"seq": seq}))
    api.write("one", 4, 5, 6)
    server.advance(5_000)
    api.write("two", 4)
    told = ok(api.get("/v0/losses"))
    assert [(one["topic"], one["gap_from"], one["gap_to"], one["reason"]) for one in told["losses"]] == [
        ("two", 1, 1, "cap"),
        ("one", 1, 3, "cap"),
    ]
    assert [(one["cursors"], one["cursors_hit"]) for one in told["losses"]] == [([], 0), (["behind", "half"], 2)]
    assert ok(api.get("/v0/losses?limit=1"))["losses"] == told["losses"][:1]
    [endangered] = told["endangered"]
    assert (endangered["topic"], endangered["name"]) == ("one", "behind")
    assert endangered["seconds_until_loss"] is not None


def test_no_loss_and_no_cursor_of_another_is_told(start: Start) -> None:
    """OB7, AU14"""
    client = Client(start(api_keys=KEYS).address)
    root = client.with_key("root")
    for name in ("acme-a", "other-a"):
        root.create(name, cap_records=1)
        root.write(name, 1)
        ok(root.put(f"/v0/topics/{name}/cursors/c", {"seq": 0}))
        root.write(name, 2, 3)
    told = client.with_key("some").get("/v0/losses")
    assert {one["topic"] for one in ok(told)["losses"]} == {"acme-a"}
    assert "other" not in json.dumps(told.json)
    refused(client.with_key("writer").get("/v0/losses"), 403, "forbidden")


def test_the_newest_losses_are_told_of_many(start: Start) -> None:
    """OB7"""
    server = start()
    api = Client(server.address)
    for n in range(30):
        api.create(f"t{n:02}", cap_records=1)
        api.write(f"t{n:02}", 1, 2)
        server.advance(2_000)
    told = ok(api.get("/v0/losses?limit=4"))["losses"]
    assert [one["topic"] for one in told] == ["t29", "t28", "t27", "t26"]


# --- times (OB8)


def test_times_of_records_are_told(start: Start) -> None:
    """OB8: of the first live record at or above each seq, each once."""
    server = start()
    api = Client(server.address)
    for n in range(6):
        api.write("t", n)
        server.advance(1_000)
    ok(api.post("/v0/topics/t/delete", {"before_seq": 3}))
    by_seq = {one["$seq"]: one["$ts"] for one in api.diff("t")["records"]}
    told = ok(api.get("/v0/topics/t/times?seqs=5,1,0,2,3,99"))["times"]
    assert told == [{"seq": 3, "ts": by_seq[3]}, {"seq": 5, "ts": by_seq[5]}]
    assert ok(api.get("/v0/topics/t/times"))["times"] == []
    for query in ("?seqs=", "?seqs=1,x", "?seqs=-1", f"?seqs={','.join('1' * 300)}", "?seqs=1,,2"):
        refused(api.get(f"/v0/topics/t/times{query}"), 400, "invalid_request", None)
    refused(api.get("/v0/topics/none/times?seqs=1"), 404, "topic_not_found")


# --- routers with details (OB9)


def test_routers_are_listed_with_details_if_asked_for(api: Client) -> None:
    """OB9: what a GET of each would say, without one call per router."""
    api.create("a")
    ok(api.put("/v0/routers/a->b", {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x*"]}), 201)
    ok(api.put("/v0/routers/a->c", {"source": "a", "dest": "c"}), 201)
    [plain, _] = ok(api.get("/v0/routers"))["routers"]
    assert list(plain) == ["router", "source", "dest", "guarantee", "forwarded_total"]
    for listed in ok(api.get("/v0/routers?detail=true"))["routers"]:
        one = ok(api.get(f"/v0/routers/{listed['router']}"))
        assert listed == {name: value for name, value in one.items() if name != "performance"}
    assert [one["router"] for one in ok(api.get("/v0/routers?detail=true&dest=c"))["routers"]] == ["a->c"]
