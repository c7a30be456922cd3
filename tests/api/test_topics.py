"""Topics: config, state, list, delete, instances."""

import threading
from typing import Any

import pytest

from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk
from topics.testing.server import ServerThread

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


def at_once(*calls: Any) -> list[Reply]:
    """Run these calls at the same time, each in its thread."""
    barrier = threading.Barrier(len(calls))
    replies: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        replies[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


# --- config


def test_a_new_topic_has_all_seventeen_fields_with_their_defaults(api: Client, topic: str) -> None:
    """TP1, TP5, TP6"""
    reply = api.put(f"/v0/topics/{topic}", {})
    assert list(reply.json) == ["topic", "created", "config", "performance"]
    answer = ok(reply, 201)
    assert answer == {"topic": topic, "created": True, "config": DEFAULTS}
    assert list(answer["config"]) == list(DEFAULTS)


def test_every_field_is_stored_and_shown(api: Client, topic: str) -> None:
    """TP1, TP6, TP8"""
    config = {
        "type": "queue",
        "ttl_ms": 5,
        "cap_records": 6,
        "cap_bytes": 7,
        "discard": "reject",
        "durability": "memory",
        "priority": -8,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 9,
        "dedupe_node": False,
        "lease_ms": 1000,
        "claim_jitter_ms": 11,
        "max_deliveries": 12,
        "dead_letter": "dead",
        "leases_durable": True,
    }
    expected = DEFAULTS | config
    assert ok(api.put(f"/v0/topics/{topic}", config), 201)["config"] == expected
    assert ok(api.get(f"/v0/topics/{topic}"))["config"] == expected


def test_queue_fields_are_accepted_on_a_log(api: Client, topic: str) -> None:
    """TP1"""
    config = {"lease_ms": 500, "max_deliveries": 3, "dead_letter": "dead", "leases_durable": True}
    assert ok(api.put(f"/v0/topics/{topic}", config), 201)["config"] == DEFAULTS | config


BOOLEANS = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"]


@pytest.mark.parametrize(
    "body",
    [
        *({field: value} for field in BOOLEANS for value in (0, 1, "true", [], None)),
        *({"type": value} for value in ("Log", "stream", "", 1, None, ["log"])),
        *({"discard": value} for value in ("new", "OLD", "", 0)),
        *({"durability": value} for value in ("fsync ", "none", "", 1, True)),
        *({"dead_letter": value} for value in ("", "-x", "a b", "a>b", "z" * 256, 1, [], "é")),
        *({"priority": value} for value in ("1", 1.5, True, [], {})),
    ],
    ids=str,
)
def test_a_wrong_type_or_value_is_refused_and_creates_nothing(api: Client, topic: str, body: dict[str, Any]) -> None:
    """TP1, TP4, CV18"""
    before = api.everything()
    refused(api.put(f"/v0/topics/{topic}", body), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}], "config": body}), 400, "invalid_request", None)
    assert api.everything() == before


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": "memory", "durable": True}, "memory"),
        ({"durability": "fsync", "durable": False}, "fsync"),
        ({"durability": None, "durable": True}, "fsync"),
        ({"durability": "ephemeral"}, "ephemeral"),
        ({"durability": "disk", "durable": True}, "disk"),
    ],
    ids=str,
)
def test_an_explicit_class_beats_the_short_form(
    api: Client, topic: str, given: dict[str, Any], durability: str
) -> None:
    """TP2"""
    config = ok(api.put(f"/v0/topics/{topic}", given), 201)["config"]
    assert (config["durability"], config["durable"]) == (durability, durability == "fsync")


def test_dead_letter_may_not_be_the_topic_itself(api: Client, topic: str) -> None:
    """TP4"""
    refused(api.put(f"/v0/topics/{topic}", {"dead_letter": topic}), 400, "invalid_request", None)
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert ok(api.put(f"/v0/topics/{topic}", {"dead_letter": f"{topic}.d"}), 201)["config"]["dead_letter"]
    refused(api.get(f"/v0/topics/{topic}.d"), 404, "topic_not_found")


def test_a_put_replaces_the_whole_config_but_keeps_an_omitted_type(api: Client, topic: str) -> None:
    """TP5, TP6"""
    api.create(topic, type="queue", cap_records=5, durability="fsync", priority=7)
    api.write(topic, 1, 2)
    same = ok(api.put(f"/v0/topics/{topic}", {"cap_records": 5, "durability": "fsync", "priority": 7}))
    assert (same["created"], same["config"]["type"]) == (False, "queue")
    changed = ok(api.put(f"/v0/topics/{topic}", {"ttl_ms": 9_000_000}))
    assert changed["created"] is False
    assert changed["config"] == DEFAULTS | {"type": "queue", "ttl_ms": 9_000_000}
    assert api.data(topic) == [1, 2]


def test_a_put_that_changes_nothing_writes_nothing(api: Client, topic: str) -> None:
    """TP5"""
    api.create(topic, cap_records=5)
    before = api.everything()
    assert ok(api.put(f"/v0/topics/{topic}", {"cap_records": 5, "durable": False}))["created"] is False
    assert api.everything() == before


def test_the_type_is_fixed(api: Client, topic: str) -> None:
    """TP5"""
    api.create(topic, type="queue", cap_records=5)
    before = api.everything()
    refused(api.put(f"/v0/topics/{topic}", {"type": "log", "cap_records": 6}), 409, "topic_exists_incompatible")
    assert api.everything() == before
    assert ok(api.put(f"/v0/topics/{topic}", {"type": "queue"}))["config"]["cap_records"] == 0


def test_a_tighter_cap_acts_at_once_and_a_looser_one_brings_nothing_back(api: Client, topic: str) -> None:
    """TP7"""
    api.write(topic, 1, 2, 3, 4, 5)
    api.put(f"/v0/topics/{topic}", {"cap_records": 2})
    assert api.state(topic)["count"] == 2
    api.put(f"/v0/topics/{topic}", {})
    answer = api.diff(topic)
    assert [record["$seq"] for record in answer["records"]] == [4, 5]
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 3)


def test_a_tighter_ttl_acts_at_once(server: ServerThread, api: Client, topic: str) -> None:
    """TP7"""
    api.write(topic, 1)
    server.advance(1000)
    api.write(topic, 2)
    api.put(f"/v0/topics/{topic}", {"ttl_ms": 500})
    state = api.state(topic)
    assert (state["count"], state["earliest_seq"]) == (1, 2)
    api.put(f"/v0/topics/{topic}", {})
    assert api.data(topic) == [2]


def test_under_reject_a_lower_cap_refuses_and_never_evicts(api: Client, topic: str) -> None:
    """TP17"""
    api.create(topic, discard="reject")
    api.write(topic, *range(10))
    api.put(f"/v0/topics/{topic}", {"discard": "reject", "cap_records": 5})
    assert api.state(topic)["count"] == 10
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}]}), 422, "topic_full")
    ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 6}))
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}]}), 422, "topic_full")
    ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 7}))
    assert api.write(topic, 10)["seqs"] == [11]
    api.put(f"/v0/topics/{topic}", {"discard": "old", "cap_records": 2})
    assert api.data(topic) == [9, 10]


# --- state


def test_the_state_of_a_fresh_topic(api: Client, topic: str) -> None:
    """TP8, TP16, LS2, LS3"""
    api.create(topic)
    reply = api.get(f"/v0/topics/{topic}?touch=false")
    state = ok(reply)
    assert set(state) == {
        *("topic", "epoch", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "config"),
        *("effective_priority", "last_write_ts", "last_read_ts", "seconds_until_loss"),
        *("written_total", "lost_total", "expired_total", "deleted_total"),
    }
    epoch = state.pop("epoch")
    assert type(epoch) is int and epoch >= 1
    assert state == {
        "topic": topic,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
        "written_total": 0,
        "lost_total": 0,
        "expired_total": 0,
        "deleted_total": 0,
        "seconds_until_loss": None,
    }


def test_the_state_of_a_queue_counts_its_jobs(api: Client, topic: str) -> None:
    """TP8"""
    api.create(topic, type="queue")
    api.write(topic, 1, 2)
    state = api.state(topic)
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0, "delayed": 0}


def test_the_state_follows_writes_and_deletes(api: Client, topic: str) -> None:
    """TP8, TP15"""
    api.write_records(
        topic, {"data": "abc", "tag": "t" * 50, "node": "n"}, {"data": 12, "meta": {"a": 1}}, {"data": None}
    )
    state = api.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 1, 4, 3)
    assert state["bytes"] == len('"abc"') + len("12") + len('{"a":1}') + len("null")
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2})
    state = api.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["count"]) == (3, 2, 2)
    assert state["bytes"] == len("12") + len('{"a":1}') + len("null")
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 9})
    state = api.state(topic)
    assert (state["earliest_seq"], state["next_seq"], state["count"], state["bytes"]) == (4, 4, 0, 0)


def test_the_size_counts_utf8_bytes(api: Client, topic: str) -> None:
    """TP15"""
    api.post(f"/v0/topics/{topic}", '{"records":[{"data":"é😀","meta":{"ü":1}}]}')
    assert api.state(topic)["bytes"] == len('"é😀"'.encode()) + len('{"ü":1}'.encode())


def test_a_state_read_shows_its_own_touch(server: ServerThread, api: Client, topic: str) -> None:
    """TP9, PR1, PR2"""
    api.create(topic)
    assert ok(api.get(f"/v0/topics/{topic}?touch=false"))["last_read_ts"] is None
    touched = ok(api.get(f"/v0/topics/{topic}"))
    assert (touched["last_read_ts"], touched["effective_priority"]) == (server.clock.now_ms(), 500)
    server.advance(1000)
    untouched = ok(api.get(f"/v0/topics/{topic}?touch=0"))
    assert untouched["last_read_ts"] == touched["last_read_ts"]
    assert 0 < untouched["effective_priority"] < 500


def test_reading_the_state_creates_nothing(api: Client, topic: str) -> None:
    """TP8"""
    before = api.everything()
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    assert api.everything() == before


def test_last_write_survives_a_restart(start: Start, topic: str) -> None:
    """TP8, TP16"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    server.advance(5)
    api.write(topic, 1)
    before = api.state(topic)
    server.close()
    again = Client(start(disk=disk.kill()).address)
    after = again.state(topic)
    assert after["last_write_ts"] == before["last_write_ts"]
    assert (after["epoch"], after["head_seq"], after["config"]) == (before["epoch"], 1, before["config"])


# --- list


def test_a_list_entry_has_these_fields(api: Client, topic: str) -> None:
    """TP10"""
    api.create(topic, durable=True, priority=4)
    api.write(topic, "abc")
    reply = api.get(f"/v0/topics?prefix={topic}")
    assert ok(reply) == {
        "topics": [
            {
                "topic": topic,
                "head_seq": 1,
                "earliest_seq": 1,
                "count": 1,
                "bytes": 5,
                "durable": True,
                "effective_priority": 4,
            }
        ]
    }
    assert ok(api.get(f"/v0/topics?prefix={topic}-none")) == {"topics": []}


def test_a_list_touches_only_the_topics_it_shows_and_only_if_asked(
    server: ServerThread, api: Client, topic: str
) -> None:
    """TP10, PR2"""
    for name in ("a", "b"):
        api.create(f"{topic}.{name}")
    ok(api.get(f"/v0/topics?prefix={topic}."))
    assert api.state(f"{topic}.a")["last_read_ts"] is None
    ok(api.get(f"/v0/topics?prefix={topic}.&page_size=1&touch=true"))
    assert api.state(f"{topic}.a")["last_read_ts"] == server.clock.now_ms()
    assert api.state(f"{topic}.b")["last_read_ts"] is None


# --- delete and create again


def test_deleting_a_topic_takes_everything_and_is_idempotent(api: Client, topic: str) -> None:
    """TP11"""
    api.write(topic, 1, idempotency_key="k")
    assert ok(api.delete(f"/v0/topics/{topic}")) == {"topic": topic, "deleted": True, "routers_removed": []}
    refused(api.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert ok(api.delete(f"/v0/topics/{topic}")) == {"topic": topic, "deleted": False, "routers_removed": []}
    again = api.write(topic, 2, idempotency_key="k")
    assert (again["seqs"], again["deduped"], again["created"]) == ([1], False, True)


def test_if_empty_spares_a_topic_with_live_records(server: ServerThread, api: Client, topic: str) -> None:
    """TP11"""
    api.create(topic, ttl_ms=1000)
    api.write(topic, 1, 2)
    refused(api.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty", {"topic": topic, "count": 2})
    refused(api.delete(f"/v0/topics/{topic}?if_empty=1"), 409, "topic_not_empty")
    assert api.state(topic)["count"] == 2
    server.advance(1001)
    assert ok(api.delete(f"/v0/topics/{topic}?if_empty=true"))["deleted"] is True
    assert ok(api.delete(f"/v0/topics/{topic}?if_empty=true"))["deleted"] is False


def test_a_recreated_topic_is_a_new_instance_from_seq_1(api: Client, topic: str) -> None:
    """TP12, TP16"""
    epochs = []
    for _ in range(3):
        assert api.write(topic, 1, 2)["seqs"] == [1, 2]
        epochs.append(api.state(topic)["epoch"])
        assert api.diff(topic)["epoch"] == epochs[-1]
        api.delete(f"/v0/topics/{topic}")
    assert epochs == sorted(set(epochs)) and epochs[0] >= 1


def test_the_epoch_rises_over_restarts(start: Start, topic: str) -> None:
    """TP16, TP12"""
    disk = MemoryDisk()
    seen = []
    for _ in range(3):
        server = start(disk=disk)
        api = Client(server.address)
        api.write(topic, 1)
        seen.append(api.state(topic)["epoch"])
        api.delete(f"/v0/topics/{topic}")
        server.close()
        disk = disk.kill()
    assert seen == sorted(set(seen))


def test_creation_and_deletion_are_synced_before_their_answer(start: Start, topic: str) -> None:
    """TP13, DU8: power is lost straight after the answer."""
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        disk = MemoryDisk()
        server = start(disk=disk)
        api = Client(server.address)
        api.create(f"{topic}.put", durability=durability)
        api.write(f"{topic}.lazy", 1, config={"durability": durability, "cap_records": 7})
        api.create(f"{topic}.gone", durability=durability)
        api.delete(f"/v0/topics/{topic}.gone")
        ok(api.put(f"/v0/topics/{topic}.put", {"durability": durability, "cap_records": 9}))
        after = server.run(lambda disk=disk: disk.power_loss("lost"))
        again = Client(start(disk=after).address)
        assert again.state(f"{topic}.put")["config"]["cap_records"] == 9
        assert again.state(f"{topic}.lazy")["config"]["cap_records"] == 7
        refused(again.get(f"/v0/topics/{topic}.gone"), 404, "topic_not_found")


def test_of_many_who_create_one_name_exactly_one_created_it(api: Client, topic: str) -> None:
    """TP14"""
    record = {"records": [{"data": 1}]}
    puts = [lambda: api.put(f"/v0/topics/{topic}", {}) for _ in range(8)]
    writes = [lambda: api.post(f"/v0/topics/{topic}", record) for _ in range(8)]
    replies = at_once(*puts, *writes)
    assert sorted(reply.status for reply in replies) == [200] * 15 + [201]
    assert [ok(reply, reply.status)["created"] for reply in replies].count(True) == 1
    assert api.state(topic)["count"] == 8
