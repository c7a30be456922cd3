"""Deletes: by seq, by tag, by both."""

from typing import Any

import pytest

from tests.api.clients.transcript import DELETE_PERFORMANCE, Client, ok, refused
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S


def tagged(api: Client, topic: str, *tags: str | None) -> None:
    api.write_records(topic, *({"data": tag} if tag is None else {"data": tag, "tag": tag} for tag in tags))


def remove(api: Client, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.post(f"/v0/topics/{topic}/delete", body), 200, DELETE_PERFORMANCE)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": None, "match": None},
        {"other": 1},
        {"match": 1},
        {"match": True},
        {"match": {}},
        {"match": []},
        {"match": ["tag"]},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "x", "y"]},
        {"match": ["tag", "Eq", 1]},
        {"match": ["tag", "Eq", None]},
        {"match": ["tag", "eq", "x"]},
        {"match": ["tag", "Regex", "x"]},
        {"match": ["node", "Eq", "x"]},
        {"match": ["Tag", "Eq", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", ""]},
        {"match": ["tag", "Glob", "*x"]},
        {"match": ["tag", "Glob", 1]},
        {"match": [["tag", "Eq", "x"]]},
        {"before_seq": 1, "match": ["tag", "Glob", "x"]},
        {"before_seq": "1", "match": "x"},
    ],
    ids=str,
)
def test_a_selector_is_needed_and_checked_before_the_topic(api: Client, topic: str, body: dict[str, Any]) -> None:
    """DL1, DL2"""
    refused(api.post(f"/v0/topics/{topic}-none/delete", body), 400, "invalid_request", None)
    tagged(api, topic, "x", "y")
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}/delete", body), 400, "invalid_request", None)
    assert api.everything() == before


def test_an_absent_topic_is_not_found_and_not_created(api: Client, topic: str) -> None:
    """DL1"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 1}), 404, "topic_not_found", {"topic": topic})
    refused(api.post(f"/v0/topics/{topic}/delete", {"match": "x"}), 404, "topic_not_found", {"topic": topic})
    assert api.everything() == before


def test_a_delete_for_an_epoch_leaves_any_other_instance_alone(api: Client, topic: str) -> None:
    """DL1, TP16"""
    path = f"/v0/topics/{topic}/delete"
    tagged(api, topic, "x", "y", "x")
    old = api.get(f"/v0/topics/{topic}").json["epoch"]
    assert remove(api, topic, before_seq=2, epoch=old)["deleted"] == 1
    assert remove(api, topic, match="y", epoch=None)["deleted"] == 1
    api.delete(f"/v0/topics/{topic}")
    refused(api.post(path, {"match": "x", "epoch": old}), 404, "topic_not_found", {"topic": topic})
    tagged(api, topic, "x", "y")
    new = api.get(f"/v0/topics/{topic}").json["epoch"]
    before = api.everything()
    for selector in ({"before_seq": 9}, {"match": "x"}, {"match": "none"}, {"before_seq": 0}):
        answer = api.post(path, {**selector, "epoch": old})
        refused(answer, 409, "epoch_mismatch", {"topic": topic, "epoch": new, "requested_epoch": old})
    for wrong in ("1", -1, 1.5, True):
        refused(api.post(path, {"before_seq": 9, "epoch": wrong}), 400, "invalid_request", None)
    assert api.everything() == before
    assert remove(api, topic, before_seq=9, epoch=new)["deleted"] == 2


@pytest.mark.parametrize(("before_seq", "left"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (3, [3, 4]), (5, []), (99, [])])
def test_before_seq_takes_what_has_a_smaller_seq(api: Client, topic: str, before_seq: int, left: list[int]) -> None:
    """DL2, DL5, DL6"""
    api.write(topic, 1, 2, 3, 4)
    answer = remove(api, topic, before_seq=before_seq)
    assert answer == {
        "topic": topic,
        "deleted": 4 - len(left),
        "earliest_seq": left[0] if left else 5,
        "head_seq": 4,
        "count": len(left),
        "bytes": len(left),
    }
    read = api.diff(topic)
    assert ([record["data"] for record in read["records"]], read["tombstone"]) == (left, None)
    assert (read["next_from_seq"], read["earliest_seq"]) == (4, answer["earliest_seq"])
    assert remove(api, topic, before_seq=before_seq)["deleted"] == 0


TAGS = ["job*", "job-1", "job", "jo", "job**", None, "", "chat-42:1", "chat-42:2", "chat-420:x", "é:1", "É:1"]


@pytest.mark.parametrize(
    ("match", "gone"),
    [
        ("job*", ["job*"]),
        (["tag", "Eq", "job*"], ["job*"]),
        (["tag", "Glob", "job*"], ["job*", "job-1", "job", "job**"]),
        (["tag", "Glob", "job**"], ["job*", "job**"]),
        (["tag", "Glob", "chat-42:*"], ["chat-42:1", "chat-42:2"]),
        (["tag", "Glob", "*"], [tag for tag in TAGS if tag is not None]),
        (["tag", "Eq", ""], [""]),
        ("", [""]),
        (["tag", "Glob", "é*"], ["é:1"]),
        ("none", []),
        (["tag", "Glob", "none*"], []),
    ],
    ids=str,
)
def test_a_match_takes_one_tag_or_a_prefix(api: Client, topic: str, match: Any, gone: list[str]) -> None:
    """DL2, DL7, S25: a bare string is always Eq, and untagged records never match."""
    tagged(api, topic, *TAGS)
    assert remove(api, topic, match=match)["deleted"] == len(gone)
    assert api.data(topic) == [tag for tag in TAGS if tag not in gone]


def test_both_selectors_must_hold(api: Client, topic: str) -> None:
    """DL3"""
    tagged(api, topic, "a", "b", "a", "b", "a")
    assert remove(api, topic, before_seq=5, match="a")["deleted"] == 2
    assert [record["$seq"] for record in api.diff(topic)["records"]] == [2, 4, 5]
    assert remove(api, topic, before_seq=0, match="a")["deleted"] == 0
    assert remove(api, topic, before_seq=99, match=["tag", "Glob", "*"])["deleted"] == 3


def test_a_delete_is_a_moment(api: Client, topic: str) -> None:
    """DL4"""
    tagged(api, topic, "a:1", "a:2")
    remove(api, topic, before_seq=100, match=["tag", "Glob", "a:*"])
    tagged(api, topic, "a:1")
    assert api.data(topic) == ["a:1"]
    assert api.diff(topic)["tombstone"] is None


def test_a_delete_moves_the_earliest_and_never_the_floor(api: Client, topic: str) -> None:
    """DL5, TM9, E2"""
    api.create(topic, cap_records=4)
    api.write(topic, *range(1, 6))
    remove(api, topic, before_seq=4)
    state = api.state(topic)
    assert (state["earliest_seq"], state["count"]) == (4, 2)
    assert api.diff(topic, 1)["tombstone"] is None
    assert api.diff(topic, 0)["tombstone"]["gap_to"] == 3


def test_a_delete_in_the_middle_leaves_the_earliest(api: Client, topic: str) -> None:
    """DL5, DL6"""
    tagged(api, topic, "a", "b", "c")
    answer = remove(api, topic, match="b")
    assert (answer["deleted"], answer["earliest_seq"], answer["count"]) == (1, 1, 2)
    answer = remove(api, topic, match="a")
    assert (answer["deleted"], answer["earliest_seq"], answer["count"]) == (1, 3, 1)


def test_a_delete_on_an_fsync_topic_waits_for_its_sync(start: Start, topic: str) -> None:
    """DL8, CV11"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    api.write(topic, 1, 2)
    server.run(disk.hold_syncs)
    try:
        with api.connect() as connection:
            connection.send(api.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2}))
            server.until(lambda: disk.held_syncs)
            connection.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.socket.recv(1)
            connection.socket.settimeout(PATIENCE_S)
            server.run(disk.release_syncs)
            assert ok(connection.reply())["deleted"] == 1
    finally:
        server.run(disk.release_syncs)


def test_a_delete_stays_done_after_power_is_lost(start: Start, topic: str) -> None:
    """DL8, DL5"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    tagged(api, topic, "a", "b", "a")
    remove(api, topic, match="a")
    after = server.run(lambda: disk.power_loss("lost"))
    again = Client(start(disk=after).address)
    answer = again.diff(topic)
    assert ([record["$seq"] for record in answer["records"]], answer["tombstone"], answer["head_seq"]) == ([2], None, 3)
