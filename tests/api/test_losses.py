"""What was lost, and why: losses, totals, the forecast, and single records."""

from typing import Any

import pytest

from tests.api.clients.transcript import PERFORMANCE, Client, Reply, ok, refused
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk

NOW = 1_700_000_000_000
TOTALS = ("written_total", "lost_total", "expired_total", "deleted_total")
CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def losses(api: Client, topic: str, query: str = "") -> list[tuple[int, int, str]]:
    return [(loss["gap_from"], loss["gap_to"], loss["reason"]) for loss in losses_with_ts(api, topic, query)]


def losses_with_ts(api: Client, topic: str, query: str = "") -> list[dict[str, Any]]:
    answer = ok(api.get(f"/v0/topics/{topic}/losses{query}"), 200, PERFORMANCE)
    assert list(answer) == ["topic", "losses"] and answer["topic"] == topic
    found: list[dict[str, Any]] = answer["losses"]
    return found


def totals(api: Client, topic: str) -> tuple[int, int, int, int]:
    """Written, lost, expired, deleted; with what is live they add up (LS2)."""
    state = api.state(topic)
    written, lost, expired, deleted = (state[name] for name in TOTALS)
    assert written == state["head_seq"] == state["count"] + lost + expired + deleted
    return written, lost, expired, deleted


def record(api: Client, topic: str, seq: object) -> Reply:
    return api.get(f"/v0/topics/{topic}/records/{seq}")


def why(api: Client, topic: str, seq: int) -> Any:
    """What became of a record: `alive`, or the reason of the refusal."""
    reply = record(api, topic, seq)
    if reply.status == 200:
        assert ok(reply)["record"]["$seq"] == seq
        return "alive"
    refused(reply, 404, "not_found")
    detail = reply.json["error"]["detail"]
    assert (detail["topic"], detail["seq"]) == (topic, seq)
    return detail["reason"]


def whys(api: Client, topic: str, last: int) -> str:
    """What became of records 0 to `last`, by their initials."""
    return "".join(why(api, topic, seq)[0] for seq in range(last + 1))


# --- losses and totals


def test_a_cap_and_deletes_are_told_apart(api: Client, topic: str) -> None:
    """LS1, LS2, RC1"""
    api.create(topic, cap_records=3)
    assert losses(api, topic) == [] and totals(api, topic) == (0, 0, 0, 0)
    api.write(topic, *range(1, 6))
    assert losses(api, topic) == [(1, 2, "cap")] and totals(api, topic) == (5, 2, 0, 0)
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 4})
    assert losses(api, topic) == [(1, 2, "cap")] and totals(api, topic) == (5, 2, 0, 1)
    assert whys(api, topic, 6) == "n" + "ll" + "d" + "aa" + "n"


def test_records_that_expire_are_counted_apart(start: Start) -> None:
    """LS1, LS2: the reason is ttl, and the time that of the loss."""
    server = start()
    api = Client(server.address)
    api.create("t", ttl_ms=1000)
    api.write("t", 1, 2)
    server.advance(600)
    api.write("t", 3)
    server.advance(401)
    assert totals(api, "t") == (3, 0, 2, 0)
    assert losses_with_ts(api, "t") == [{"gap_from": 1, "gap_to": 2, "reason": "ttl", "ts": NOW + 1001}]
    server.advance(600)
    assert totals(api, "t") == (3, 0, 3, 0)
    assert losses_with_ts(api, "t") == [{"gap_from": 1, "gap_to": 3, "reason": "ttl", "ts": NOW + 1601}]


def test_losses_within_a_second_are_one_and_later_ones_are_not(start: Start) -> None:
    """LS1: the newest come first, and `limit` cuts the older ones off."""
    server = start()
    api = Client(server.address)
    api.create("t", cap_records=1)
    api.write("t", 0)
    for pause in (0, 1000, 1001, 500, 1001):
        server.advance(pause)
        api.write("t", pause)
    assert losses(api, "t") == [(5, 5, "cap"), (3, 4, "cap"), (1, 2, "cap")]
    assert [loss["ts"] for loss in losses_with_ts(api, "t")] == [NOW + 3502, NOW + 2501, NOW + 1000]
    assert losses(api, "t", "?limit=1") == [(5, 5, "cap")]
    assert losses(api, "t", "?limit=2") == [(5, 5, "cap"), (3, 4, "cap")]
    for query in ("?limit=1000", "?limit=99999999999999999999999999999999999999999", "?limit=100"):
        assert len(losses(api, "t", query)) == 3
    assert len(losses(api, "t", "?limit=0")) == 1  # clamped
    refused(api.get("/v0/topics/t/losses?limit=x"), 400, "invalid_request")
    refused(api.get("/v0/topics/t/losses?limit=-1"), 400, "invalid_request")


def test_what_a_source_lost_is_a_loss_of_the_dest(start: Start) -> None:
    """LS1, LS2, RT12: holes are lost, and their reason is source_trim."""
    server = start()
    api = Client(server.address)
    api.create("a", cap_records=2)
    api.create("b")
    ok(api.put("/v0/routers/r", {"source": "a", "dest": "b"}), 201)
    api.write("a", *range(7))
    assert totals(api, "a")[1] == 5
    assert totals(api, "b") == (7, 5, 0, 0)
    assert losses(api, "b") == [(1, 5, "source_trim")]
    assert whys(api, "b", 8) == "n" + "l" * 5 + "aa" + "n"


def test_acks_and_dead_letters_are_deletes(api: Client, topic: str) -> None:
    """LS2"""
    dead = f"{topic}-dead"
    api.create(topic, type="queue", max_deliveries=1, dead_letter=dead)
    worker = Worker(api, topic)
    jobs(worker, 4)
    worker.claim(2)
    worker.ack(1)
    worker.nack(2)
    worker.claim(1)
    assert totals(api, topic) == (4, 0, 0, 2) and losses(api, topic) == []
    assert totals(api, dead) == (1, 0, 0, 0)
    assert whys(api, topic, 5) == "nddaan"


def test_a_lowered_cap_and_ttl_are_losses_too(api: Client, topic: str) -> None:
    """LS1, TP7"""
    api.create(topic)
    api.write(topic, *range(9))
    ok(api.put(f"/v0/topics/{topic}", {"cap_records": 4}))
    assert losses(api, topic) == [(1, 5, "cap")] and totals(api, topic) == (9, 5, 0, 0)
    ok(api.put(f"/v0/topics/{topic}", {}))
    assert losses(api, topic) == [(1, 5, "cap")] and totals(api, topic) == (9, 5, 0, 0)


def test_a_recreated_topic_starts_at_zero(api: Client, topic: str) -> None:
    """LS2: the totals are those of the instance."""
    api.create(topic, cap_records=1)
    api.write(topic, 1, 2, 3)
    ok(api.delete(f"/v0/topics/{topic}"))
    refused(api.get(f"/v0/topics/{topic}/losses"), 404, "topic_not_found", {"topic": topic})
    api.create(topic)
    assert losses(api, topic) == [] and totals(api, topic) == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["gracefully", "kill", "checkpoint and kill"])
@pytest.mark.parametrize("durability", CLASSES)
def test_losses_and_totals_are_there_after_a_restart(start: Start, durability: str, how: str) -> None:
    """LS1, LS2, DU9: as durable as the floor; an ephemeral topic loses the rest, and says so."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("t", cap_records=4, durability=durability)
    api.write("t", *range(6))
    api.post("/v0/topics/t/delete", {"before_seq": 4})
    server.advance(2000)
    api.write("t", *range(3))
    before = totals(api, "t"), losses_with_ts(api, "t")
    assert before[0] == (9, 4, 0, 1) and losses(api, "t") == [(4, 5, "cap"), (1, 2, "cap")]
    if how == "gracefully":
        server.close()
    elif how == "checkpoint and kill":
        server.do(server.server.engine.checkpoint())
    again = Client(start(disk=disk.kill()).address)
    if durability != "ephemeral":
        assert (totals(again, "t"), losses_with_ts(again, "t")) == before
        assert whys(again, "t", 10) == "nlldll" + "aaaa" + "n"
    elif how == "kill":
        assert totals(again, "t") == (0, 0, 0, 0) and losses(again, "t") == []
    else:
        assert totals(again, "t") == (9, 8, 0, 1)
        assert losses(again, "t") == [(4, 9, "cap"), (1, 2, "cap")]
        assert whys(again, "t", 10) == "nlldllllll" + "n"


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_what_a_power_loss_takes_is_a_loss(start: Start, durability: str) -> None:
    """LS1, LS2, DU10: with everything that was reserved."""
    disk = MemoryDisk()
    api = Client(start(disk=disk).address)
    api.create("t", durability=durability)
    api.write("t", 1, 2, 3)
    again = Client(start(disk=disk.power_loss("lost")).address)
    written, lost, expired, deleted = totals(again, "t")
    assert written == again.state("t")["head_seq"] >= 3 and (expired, deleted) == (0, 0)
    ((first, last, reason),) = losses(again, "t")
    assert (last, reason) == (written, "cap") and lost == last - first + 1


# --- the forecast


def test_a_forecast_needs_a_cap_or_a_ttl(start: Start) -> None:
    """LS3"""
    server = start()
    api = Client(server.address)
    for name, config in {"a": {}, "b": {"cap_records": 100, "discard": "reject"}, "c": {"cap_records": 100}}.items():
        api.create(name, **config)
        assert api.state(name)["seconds_until_loss"] is None
    api.write("a", 1)
    api.write("b", 1)
    assert api.state("a")["seconds_until_loss"] is None
    assert api.state("b")["seconds_until_loss"] is None


def test_the_forecast_goes_by_the_writes_of_the_last_minute(start: Start) -> None:
    """LS3: 60 records in 60 s against a cap of 100: the 101st takes the first, in 41 s."""
    server = start()
    api = Client(server.address)
    api.create("t", cap_records=100)
    api.write("t", *range(60))
    assert api.state("t")["seconds_until_loss"] == 41.0
    server.advance(30_000)
    api.write("t", *range(40))
    assert api.state("t")["seconds_until_loss"] == 0.6
    server.advance(30_000)
    assert api.state("t")["seconds_until_loss"] == 1.5  # only the 40 are of the last minute
    server.advance(60_000)
    assert api.state("t")["seconds_until_loss"] is None


def test_the_forecast_of_bytes_and_age(start: Start) -> None:
    """LS3: whatever comes first."""
    server = start()
    api = Client(server.address)
    api.create("bytes", cap_bytes=1000)
    api.write("bytes", *["x" * 8] * 60)  # 10 bytes each
    assert api.state("bytes")["seconds_until_loss"] == 40.0
    api.create("age", ttl_ms=90_000)
    api.write("age", 1)
    server.advance(30_000)
    assert api.state("age")["seconds_until_loss"] == 60.0
    ok(api.put("/v0/topics/age", {"ttl_ms": 90_000, "cap_records": 1}))
    assert api.state("age")["seconds_until_loss"] == 60.0  # one record a minute
    api.write("age", 2)
    assert api.state("age")["seconds_until_loss"] == 30.0


# --- single records


def test_a_record_is_shown_whole_and_byte_for_byte(api: Client, topic: str) -> None:
    """RC1, CV6"""
    text = '{"records":[{"data":{"b": 1.0,"b":1e400},"tag":"x","node":"n","meta":{"k": [1]}},{"data":null}]}'
    assert api.post(f"/v0/topics/{topic}", text).status == 201
    reply = record(api, topic, 1)
    assert b'"data":{"b": 1.0,"b":1e400}' in reply.body and b'"meta":{"k": [1]}' in reply.body
    answer = ok(reply, 200, PERFORMANCE)
    assert list(answer) == ["topic", "epoch", "record"]
    assert (answer["topic"], answer["epoch"]) == (topic, api.state(topic)["epoch"])
    shown = answer["record"]
    assert (shown["$seq"], shown["$tag"], shown["$node"]) == (1, "x", "n")
    plain = ok(record(api, topic, 2))["record"]
    assert set(plain) == {"$seq", "$ts", "data"} and plain["data"] is None
    assert record(api, topic, "00000000000000000000000000000000000000000000000000002").status == 200


@pytest.mark.parametrize("seq", ["x", "1.0", "-1", "+1", "1e0", "0x1", "%20" + "1", "%D9%A1", str(2**64), "9" * 5000])
def test_a_seq_that_is_none_is_refused(api: Client, topic: str, seq: str) -> None:
    """RC1, CV18"""
    api.write(topic, 1)
    refused(record(api, topic, seq), 400, "invalid_request", None)


def test_a_record_that_is_not_there_is_not_written(api: Client, topic: str) -> None:
    """RC1"""
    refused(record(api, topic, 1), 404, "topic_not_found", {"topic": topic})
    api.write(topic, 1)
    for seq in (0, 2, 2**64 - 1):
        assert why(api, topic, seq) == "not_written"


def test_a_look_at_a_record_is_no_read_and_takes_no_lease(api: Client, topic: str) -> None:
    """RC1"""
    api.create(topic, type="queue")
    worker = Worker(api, topic)
    jobs(worker, 2)
    assert why(api, topic, 1) == "alive"
    assert api.state(topic)["last_read_ts"] is None
    assert worker.counts() == (2, 0, 0)
    assert worker.seqs(1) == [1]
    assert why(api, topic, 1) == "alive"


def test_a_sealed_record_is_shown(start: Start) -> None:
    """RC1: also from a segment that no page was made of yet."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.write("t", *range(2500))
    server.close()
    again = Client(start(disk=disk.kill()).address)
    for seq in (1, 1024, 1025, 2500):
        assert ok(record(again, "t", seq))["record"]["data"] == seq - 1


def test_records_and_losses_need_the_scope_and_the_prefix(start: Start) -> None:
    """AU6, AU8"""
    root = Client(start(api_keys="root,w:write,mine:read:mine").address, "root")
    root.write("mine", 1)
    root.write("other", 1)
    for path in ("losses", "records/1", "records/x"):
        refused(root.with_key(None).get(f"/v0/topics/mine/{path}"), 401, "unauthorized")
        refused(root.with_key("w").get(f"/v0/topics/mine/{path}"), 403, "forbidden")
        refused(root.with_key("mine").get(f"/v0/topics/other/{path}"), 403, "forbidden")
    assert root.with_key("mine").get("/v0/topics/mine/records/1").status == 200
    assert root.with_key("mine").get("/v0/topics/mine/losses").status == 200


@pytest.mark.parametrize("path", ["records", "records/", "records/1/2", "losses/", "losses/1", "records//1"])
def test_other_paths_are_not_there(api: Client, topic: str, path: str) -> None:
    """ER3, CV22"""
    api.write(topic, 1)
    refused(api.get(f"/v0/topics/{topic}/{path}"), 404, "not_found", None)


def test_other_methods_are_not_allowed(api: Client, topic: str) -> None:
    """ER3, CV23"""
    api.write(topic, 1)
    reply = api.post(f"/v0/topics/{topic}/records/1", {})
    refused(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == "GET, HEAD"
    assert api.ask("HEAD", f"/v0/topics/{topic}/records/1").status == 200
    assert api.ask("HEAD", f"/v0/topics/{topic}/losses").status == 200
