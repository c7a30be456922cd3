"""Named cursors: notes of readers, kept by the topic."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.clients.transcript import PERFORMANCE, Client, ok, refused
from tests.api.conftest import Start
from topics.testing.disk import Faulty, MemoryDisk

NOW = 1_700_000_000_000
FIELDS = ["topic", "name", "seq", "epoch", "lag", "lost", "seconds_until_loss", "updated_ts"]


def path(topic: str, name: str = "r") -> str:
    return f"/v0/topics/{topic}/cursors/{name}"


def put(api: Client, topic: str, name: str, seq: int, **fields: Any) -> dict[str, Any]:
    answer = ok(api.put(path(topic, name), {"seq": seq} | fields), 200, PERFORMANCE)
    assert list(answer) == [*FIELDS, "created"]
    return answer


def shown(api: Client, topic: str, name: str) -> dict[str, Any]:
    answer = ok(api.get(path(topic, name)), 200, PERFORMANCE)
    assert list(answer) == FIELDS
    return answer


def listed(api: Client, topic: str, query: str = "") -> dict[str, Any]:
    return ok(api.get(f"/v0/topics/{topic}/cursors{query}"), 200, PERFORMANCE)


def seqs(api: Client, topic: str) -> dict[str, int]:
    return {cursor["name"]: cursor["seq"] for cursor in listed(api, topic)["cursors"]}


# --- one cursor


def test_a_cursor_is_stored_shown_moved_and_deleted(start: Start) -> None:
    """NC1, NC2"""
    server = start()
    api = Client(server.address)
    api.write("t", *range(5))
    epoch = api.state("t")["epoch"]
    first = put(api, "t", "r", 3)
    assert list(first.values()) == ["t", "r", 3, epoch, 2, 0, None, NOW, True]
    server.advance(10)
    second = put(api, "t", "r", 1)
    assert (second["seq"], second["lag"], second["created"], second["updated_ts"]) == (1, 4, False, NOW + 10)
    server.advance(10)
    api.write("t", 6)
    again = shown(api, "t", "r")
    assert (again["seq"], again["lag"], again["updated_ts"]) == (1, 5, NOW + 10)
    assert ok(api.delete(path("t"))) == {"topic": "t", "name": "r", "deleted": True}
    assert ok(api.delete(path("t"))) == {"topic": "t", "name": "r", "deleted": False}
    refused(api.get(path("t")), 404, "not_found")


@pytest.mark.parametrize("name", ["-x", "a b", "a%2Fb", "é", "a" * 256, ".x", "a>b", "%00"])
def test_a_name_that_is_none_is_refused_where_it_would_be_stored(api: Client, topic: str, name: str) -> None:
    """NC1, CV12, CV14"""
    api.write(topic, 1)
    target = path(topic, name.replace(" ", "%20").replace("é", "%C3%A9"))
    refused(api.put(target, {"seq": 1}), 400, "invalid_request", None)
    refused(api.get(target), 404, "not_found")
    assert ok(api.delete(target))["deleted"] is False


@pytest.mark.parametrize("name", ["a", "0", "a" * 255, "A.b_c:d-e", "cursors", "diff"])
def test_names_are_those_of_topics(api: Client, topic: str, name: str) -> None:
    """NC1, CV12"""
    api.write(topic, 1)
    assert put(api, topic, name, 1)["name"] == name
    assert shown(api, topic, name)["seq"] == 1


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"seq": None}, {"seq": -1}, {"seq": "1"}, {"seq": True}, {"seq": 1.5}, {"seq": 2**64}),
        *({"seq": 1, "epoch": -1}, {"seq": 1, "epoch": "1"}, {"seq": 1, "if_seq": -1}, {"seq": 1, "if_seq": "1"}),
        *({"seq": 1, "if_seq": 2**64}, {"seq": 1, "epoch": 2**64}, "[]", "x", "", '{"seq":NaN}'),
    ],
    ids=str,
)
def test_a_bad_body_is_refused(api: Client, topic: str, body: Any) -> None:
    """NC1, CV18, CV3"""
    api.write(topic, 1)
    refused(api.put(path(topic), body), 400, "invalid_request", None)
    assert seqs(api, topic) == {}


def test_a_body_needs_its_type(api: Client, topic: str) -> None:
    """CV2, CV4"""
    api.write(topic, 1)
    refused(api.put(path(topic), '{"seq":1}', "Content-Type: text/plain"), 415, "unsupported_media_type")
    assert put(api, topic, "r", 1, unknown=1)["seq"] == 1


def test_a_seq_above_the_head_is_refused_and_zero_is_the_beginning(api: Client, topic: str) -> None:
    """NC1"""
    api.write(topic, 1, 2)
    assert "2" in refused(api.put(path(topic), {"seq": 3}), 400, "invalid_request", None)
    assert put(api, topic, "r", 2)["lag"] == 0
    assert put(api, topic, "r", 0)["lag"] == 2


def test_an_absent_topic_has_no_cursors_and_is_not_created(api: Client, topic: str) -> None:
    """NC1, NC2"""
    for reply in (
        *(api.put(path(topic), {"seq": 0}), api.get(path(topic)), api.delete(path(topic))),
        api.get(f"/v0/topics/{topic}/cursors"),
    ):
        refused(reply, 404, "topic_not_found", {"topic": topic})
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


# --- epoch and if_seq


def test_an_epoch_that_is_not_the_topics_is_refused(api: Client, topic: str) -> None:
    """NC1"""
    api.write(topic, 1)
    epoch = api.state(topic)["epoch"]
    assert put(api, topic, "r", 1, epoch=epoch)["epoch"] == epoch
    reply = api.put(path(topic), {"seq": 0, "epoch": epoch + 1})
    refused(reply, 409, "epoch_mismatch")
    assert reply.json["error"]["detail"]["epoch"] == epoch
    assert put(api, topic, "r", 1, epoch=None)["seq"] == 1
    assert shown(api, topic, "r")["seq"] == 1


def test_if_seq_is_where_the_cursor_must_stand(api: Client, topic: str) -> None:
    """NC1: null = there must be none."""
    api.write(topic, *range(9))
    reply = api.put(path(topic), {"seq": 1, "if_seq": 0})
    refused(reply, 409, "cursor_moved")
    assert reply.json["error"]["detail"]["seq"] is None
    assert put(api, topic, "r", 1, if_seq=None)["created"] is True
    for wrong in (None, 0, 2):
        reply = api.put(path(topic), {"seq": 5, "if_seq": wrong})
        refused(reply, 409, "cursor_moved")
        assert reply.json["error"]["detail"]["seq"] == 1
    assert put(api, topic, "r", 5, if_seq=1)["seq"] == 5
    assert put(api, topic, "r", 2, if_seq=5)["seq"] == 2
    refused(api.put(path(topic), {"seq": 99, "if_seq": 2}), 400, "invalid_request", None)
    assert shown(api, topic, "r")["seq"] == 2


def test_of_two_that_race_with_if_seq_one_wins(api: Client, topic: str) -> None:
    """NC1"""
    api.write(topic, *range(50))
    put(api, topic, "r", 0)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            at = shown(api, topic, "r")["seq"]
            bodies = [{"seq": at + step, "if_seq": at} for step in range(1, 5)]
            replies = list(threads.map(lambda body: api.put(path(topic), body), bodies))
            assert sorted(reply.status for reply in replies) == [200, 409, 409, 409]
            (won,) = [reply.json["seq"] for reply in replies if reply.status == 200]
            assert shown(api, topic, "r")["seq"] == won


# --- lost and the forecast


def test_a_cursor_knows_what_was_lost_above_it(api: Client, topic: str) -> None:
    """NC3"""
    api.create(topic, cap_records=3)
    api.write(topic, 1, 2)
    for name, seq in {"a": 0, "b": 1, "c": 2}.items():
        put(api, topic, name, seq)
    api.write(topic, *range(3, 7))
    assert [(c["name"], c["lost"], c["lag"]) for c in listed(api, topic)["cursors"]] == [
        *(("a", 3, 6), ("b", 2, 5), ("c", 1, 4)),
    ]
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 6})
    assert shown(api, topic, "a")["lost"] == 3
    assert put(api, topic, "a", 3)["lost"] == 0


def test_a_cursor_foresees_the_loss_of_what_it_has_not_read(start: Start) -> None:
    """NC3, LS3: the first live record above it."""
    server = start()
    api = Client(server.address)
    api.create("t", cap_records=100)
    api.write("t", *range(60))
    assert put(api, "t", "r", 0)["seconds_until_loss"] == api.state("t")["seconds_until_loss"] == 41.0
    assert put(api, "t", "r", 10)["seconds_until_loss"] == 51.0
    assert put(api, "t", "r", 60)["seconds_until_loss"] is None
    api.post("/v0/topics/t/delete", {"before_seq": 31})
    assert put(api, "t", "r", 10)["seconds_until_loss"] == 71.0
    assert put(api, "t", "r", 40)["seconds_until_loss"] == 81.0
    api.create("age", ttl_ms=60_000)
    api.write("age", 1)
    server.advance(20_000)
    api.write("age", 2)
    assert put(api, "age", "r", 0)["seconds_until_loss"] == 40.0
    assert put(api, "age", "r", 1)["seconds_until_loss"] == 60.0
    assert put(api, "age", "r", 2)["seconds_until_loss"] is None


def test_no_reader_moves_a_cursor_and_a_cursor_is_no_read(api: Client, topic: str) -> None:
    """NC2"""
    api.write(topic, 1, 2, 3)
    put(api, topic, "r", 1)
    shown(api, topic, "r")
    listed(api, topic)
    assert api.state(topic)["last_read_ts"] is None
    assert api.data(topic) == [1, 2, 3]
    assert shown(api, topic, "r")["seq"] == 1


# --- lists


def test_cursors_are_listed_in_pages(api: Client, topic: str) -> None:
    """NC2, CV15"""
    api.write(topic, 1)
    names = sorted(["b", "a", "B", "a:1", "a.1", "0", *(f"n{number}" for number in range(8))])
    for name in reversed(names):
        put(api, topic, name, 1)
    assert [cursor["name"] for cursor in listed(api, topic)["cursors"]] == names
    assert "next_cursor" not in listed(api, topic, f"?page_size={len(names)}")
    seen, after = [], ""
    while True:
        page = listed(api, topic, f"?page_size=3{after}")
        assert all(list(cursor) == FIELDS for cursor in page["cursors"])
        seen += [cursor["name"] for cursor in page["cursors"]]
        if "next_cursor" not in page:
            break
        after = f"&cursor={page['next_cursor']}"
    assert seen == names
    refused(api.get(f"/v0/topics/{topic}/cursors?cursor=!"), 400, "invalid_request")


def test_there_are_so_many_cursors_of_a_topic(start: Start) -> None:
    """NC2, LM1, LM3: those that are there may move."""
    api = Client(start(max_cursors=2).address)
    api.write("t", 1)
    api.write("u", 1)
    put(api, "t", "a", 1)
    put(api, "t", "b", 1)
    refused(api.put(path("t", "c"), {"seq": 1}), 429, "throttled", {"limit": "max_cursors", "max": 2})
    put(api, "t", "a", 0)
    put(api, "u", "c", 1)
    ok(api.delete(path("t", "b")))
    put(api, "t", "c", 1)
    api = Client(start(max_cursors=0).address)
    api.write("t", 1)
    for number in range(5):
        put(api, "t", f"c{number}", 1)


# --- keys


def test_whoever_may_read_a_topic_may_move_its_cursors_and_nobody_else(start: Start) -> None:
    """NC1, NC2, AU6, AU8"""
    root = Client(start(api_keys="root,r:read,w:write+delete+admin,mine:read:mine").address, "root")
    root.write("mine", 1)
    root.write("other", 1)
    reader, writer, mine = root.with_key("r"), root.with_key("w"), root.with_key("mine")
    assert put(reader, "other", "c", 1)["created"]
    assert ok(reader.delete(path("other", "c")))["deleted"]
    for denied, topic in ((writer, "mine"), (mine, "other")):
        replies = [denied.put(path(topic), {"seq": 1}), denied.get(path(topic)), denied.delete(path(topic))]
        for reply in [*replies, denied.get(f"/v0/topics/{topic}/cursors")]:
            refused(reply, 403, "forbidden")
    assert put(mine, "mine", "outside", 1)["created"]  # the name of a cursor is no name of a topic
    refused(root.with_key(None).get(path("mine")), 401, "unauthorized")


# --- how long they last


def test_a_cursor_goes_with_its_topic_and_stays_over_a_change_of_config(api: Client, topic: str) -> None:
    """NC3, TP12"""
    api.write(topic, 1, 2)
    put(api, topic, "r", 2)
    for config in ({"cap_records": 1}, {"durability": "fsync"}, {"durability": "ephemeral"}, {"durability": "memory"}):
        ok(api.put(f"/v0/topics/{topic}", config))
        assert seqs(api, topic) == {"r": 2}
    ok(api.delete(f"/v0/topics/{topic}"))
    api.write(topic, 1, 2)
    assert seqs(api, topic) == {}
    assert put(api, topic, "r", 1, if_seq=None)["created"]


@pytest.mark.parametrize("how", ["gracefully", "kill", "checkpoint and kill"])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_cursors_are_there_after_a_restart(start: Start, durability: str, how: str) -> None:
    """NC3: as records are."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("t", durability=durability)
    api.write("t", *range(5))
    for name, seq in {"a": 1, "b": 2, "gone": 3}.items():
        put(api, "t", name, seq)
    if how == "checkpoint and kill":
        server.do(server.server.engine.checkpoint())
    put(api, "t", "b", 5)
    ok(api.delete(path("t", "gone")))
    before = listed(api, "t")
    if how == "gracefully":
        server.close()
    again = Client(start(disk=disk.kill()).address)
    if durability == "ephemeral":
        assert seqs(again, "t") == {}
    else:
        assert listed(again, "t") == before


def test_a_power_loss_takes_no_cursor_of_an_fsync_topic(start: Start) -> None:
    """NC3, G1"""
    disk = MemoryDisk()
    api = Client(start(disk=disk).address)
    api.create("t", durability="fsync")
    api.write("t", 1, 2)
    put(api, "t", "r", 2)
    assert seqs(Client(start(disk=disk.power_loss("lost")).address), "t") == {"r": 2}


def test_a_cursor_that_could_not_be_logged_is_not_there(start: Start) -> None:
    """NC3, ER7"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create("t", durability="fsync")
    api.write("t", 1, 2)
    put(api, "t", "r", 1)
    fault = Faulty("sync")
    server.run(lambda: disk.hooks.append(fault))
    refused(api.put(path("t"), {"seq": 2}), 500, "internal", None)
    server.run(lambda: disk.hooks.remove(fault))
    assert fault.failed
    assert seqs(api, "t") == {"r": 1}


@pytest.mark.parametrize("target", ["cursors/", "cursors/a/b", "cursors/a/", "cursors//a"])
def test_other_paths_are_not_there(api: Client, topic: str, target: str) -> None:
    """ER3, CV22"""
    api.write(topic, 1)
    refused(api.get(f"/v0/topics/{topic}/{target}"), 404, "not_found", None)


def test_other_methods_are_not_allowed(api: Client, topic: str) -> None:
    """ER3"""
    reply = api.post(path(topic), {})
    refused(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == "DELETE, GET, HEAD, PUT"
