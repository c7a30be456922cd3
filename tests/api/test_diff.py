"""Diff: cursors, budgets, long polls."""

import json
from typing import Any

import pytest

from tests.api.clients.transcript import DIFF_PERFORMANCE, Client, Connection, ok, refused
from tests.api.conftest import Start
from tests.effort import swept
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

NOTHING_LOST = {"tombstone": None}


def seqs(answer: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


def waiting(server: ServerThread, api: Client, topic: str, body: dict[str, Any]) -> Connection:
    """A long poll that the server is known to hold."""
    before = server.run(lambda: server.clock.waits)
    connection = api.connect()
    connection.send(api.request("POST", f"/v0/topics/{topic}/diff", body))
    server.until(lambda: server.clock.waits > before)
    return connection


def is_silent(connection: Connection) -> bool:
    """Nothing has come. Ask only after something that would have made the answer come first."""
    connection.socket.setblocking(False)
    try:
        return not connection.socket.recv(1)
    except BlockingIOError:
        return True
    finally:
        connection.socket.settimeout(PATIENCE_S)


# --- answers


def test_a_diff_answers_with_these_fields(server: ServerThread, api: Client, topic: str) -> None:
    """DF2"""
    api.write(topic, "a", "b")
    reply = api.post(f"/v0/topics/{topic}/diff", {"from_seq": 1})
    assert list(reply.json) == [
        *("topic", "epoch", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag"),
        "performance",
    ]
    answer = ok(reply, 200, DIFF_PERFORMANCE)
    assert answer == {
        "topic": topic,
        "epoch": api.state(topic)["epoch"],
        "records": [{"$seq": 2, "$ts": server.clock.now_ms(), "data": "b"}],
        "next_from_seq": 2,
        "head_seq": 2,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


def test_a_tombstone_has_these_fields(api: Client, topic: str) -> None:
    """DF2, TM4"""
    api.create(topic, cap_records=3)
    api.write(topic, *range(5))
    answer = api.diff(topic, limit=1)
    assert answer["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "cap",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 5,
    }
    assert (seqs(answer), answer["next_from_seq"], answer["caught_up"], answer["lag"]) == ([3], 3, False, 2)


@pytest.mark.parametrize(
    "body",
    [
        *({field: value} for field in ("include_tags", "include_meta") for value in (0, 1, "true", [], None)),
        *({"filter": value} for value in (1, [], {}, ["tag"], ["tag", "Like", "x"], ["node", "Eq", "x"])),
        *({"filter": value} for value in (["tag", "Glob", "x"], ["tag", "Eq", 1], ["tag", "Eq", "x", "y"], True)),
        {"from_seq": "0"},
        {"from_seq": [0]},
        {"limit": "1"},
        {"from_ts": "2020-01-01"},
        {"from_ts": -1},
    ],
    ids=str,
)
def test_only_wrong_types_are_refused(api: Client, topic: str, body: dict[str, Any]) -> None:
    """DF1"""
    api.write(topic, 1)
    refused(api.post(f"/v0/topics/{topic}/diff", body), 400, "invalid_request", None)


def test_the_limit_has_a_default_and_a_bound(start: Start, api: Client, topic: str) -> None:
    """DF1"""
    api.write(topic, *range(1200))
    for limit, expected in ((None, 256), (0, 256), (1, 1), (257, 257), (1000, 1000), (1001, 1000), (10**30, 1000)):
        body = {} if limit is None else {"limit": limit}
        assert len(ok(api.post(f"/v0/topics/{topic}/diff", body))["records"]) == expected
    small = Client(start(max_limit=10).address)
    small.write(topic, *range(50))
    for limit in (None, 0, 11, 300):
        body = {} if limit is None else {"limit": limit}
        assert len(ok(small.post(f"/v0/topics/{topic}/diff", body))["records"]) == 10


def test_tags_are_shown_on_request_and_meta_unless_declined(api: Client, topic: str) -> None:
    """DF1"""
    api.write_records(topic, {"data": 1, "tag": "t", "meta": {"m": 1}})
    shown = {
        (tags, meta): sorted(
            set(api.diff(topic, include_tags=tags, include_meta=meta)["records"][0]) & {"$tag", "meta"}
        )
        for tags in (False, True)
        for meta in (False, True)
    }
    assert shown == {
        (False, False): [],
        (False, True): ["meta"],
        (True, False): ["$tag"],
        (True, True): ["$tag", "meta"],
    }


def test_the_cursor_moves_past_what_is_skipped(api: Client, topic: str) -> None:
    """DF3, DF4"""
    api.write(topic, 1, 2, node="me")
    api.write(topic, 3)
    api.write(topic, 4, 5, node="me")
    answer = api.diff(topic, node="me", limit=1)
    assert seqs(answer) == [3]
    rest = api.diff(topic, answer["next_from_seq"], node="me", limit=1)
    assert (seqs(rest), rest["next_from_seq"], rest["caught_up"], rest["lag"]) == ([], 5, True, 0)


def test_a_cursor_at_the_head_is_the_tail(api: Client, topic: str) -> None:
    """DF3, DF4, TM11"""
    api.write(topic, 1, 2)
    answer = api.diff(topic, 2)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["tombstone"]) == ([], 2, True, None)
    empty = f"{topic}-empty"
    api.create(empty)
    answer = api.diff(empty)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["earliest_seq"]) == ([], 0, True, 1)


@pytest.mark.parametrize(("budget", "expected"), [(1, 1), (100, 1), (199, 1), (200, 2), (299, 2), (10**9, 5), (0, 5)])
def test_the_byte_budget_stops_ahead_of_a_record_that_does_not_fit(
    api: Client, topic: str, budget: int, expected: int
) -> None:
    """DF5, LM6, DF1: the first always fits; the size of a record is that of its data and meta."""
    api.write(topic, *("x" * 98 for _ in range(5)))
    answer = api.diff(topic, max_batch_bytes=budget)
    assert len(answer["records"]) == expected
    assert (answer["next_from_seq"], answer["caught_up"]) == (expected, expected == 5)


def test_a_walk_on_small_budgets_misses_and_repeats_nothing(api: Client, topic: str) -> None:
    """DF5, DF6, S19: loop on caught_up alone."""
    api.write(topic, *("y" * (n * 37 % 300) for n in range(200)), node="me")
    api.write(topic, *("z" * (n * 53 % 300) for n in range(100)))
    for fields in ({}, {"node": "me"}, {"node": "me", "limit": 3}, {"max_batch_bytes": 500}, {"limit": 7}):
        found, at = [], 0
        while True:
            answer = api.diff(topic, at, **fields)
            found += seqs(answer)
            assert answer["caught_up"] or answer["next_from_seq"] > at
            at = answer["next_from_seq"]
            if answer["caught_up"]:
                break
        assert found == list(range(201 if "node" in fields else 1, 301))


def test_the_budget_has_a_default_of_one_and_a_bound_of_eight_mebibytes(api: Client, topic: str) -> None:
    """DF1, LM6"""
    for _ in range(10):
        api.write(topic, "x" * (1_000_000 - 2))
    for budget, expected in ((None, 1), (0, 1), (3_000_000, 3), (100_000_000, 8)):
        fields = {} if budget is None else {"max_batch_bytes": budget}
        assert len(api.diff(topic, **fields)["records"]) == expected


def test_a_diff_counts_as_a_read_and_creates_nothing(server: ServerThread, api: Client, topic: str) -> None:
    """DF7, PR2"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}/diff", {"wait_ms": 1000}), 404, "topic_not_found", {"topic": topic})
    assert api.everything() == before
    api.create(topic)
    api.diff(topic)
    state = api.state(topic)
    assert (state["last_read_ts"], state["effective_priority"]) == (server.clock.now_ms(), 500)


# --- epochs


def test_a_cursor_of_an_earlier_life_starts_over(api: Client, topic: str) -> None:
    """TM11, DF6, E10, E11"""
    api.write(topic, *range(5))
    old = api.diff(topic)
    assert old["next_from_seq"] == 5
    api.delete(f"/v0/topics/{topic}")
    api.create(topic)
    empty = api.diff(topic, 5)
    assert (empty["next_from_seq"], empty["caught_up"]) == (0, True)
    assert empty["tombstone"] == {
        "gap_from": 1,
        "gap_to": 0,
        "reason": "recreated",
        "missed_estimate": 0,
        "earliest_seq": 1,
        "head_seq": 0,
    }
    api.write(topic, *range(10))
    silent = api.diff(topic, 5)
    assert (silent["tombstone"], len(silent["records"])) == (None, 5)
    answer = api.diff(topic, 5, epoch=old["epoch"])
    assert answer["epoch"] > old["epoch"]
    assert answer["tombstone"]["reason"] == "recreated"
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"], len(answer["records"])) == (1, 10, 10)
    again = api.diff(topic, answer["next_from_seq"], epoch=answer["epoch"])
    assert (again["tombstone"], again["caught_up"]) == (None, True)


def test_a_cursor_above_the_head_is_one_of_an_earlier_life(api: Client, topic: str) -> None:
    """TM11, DF6"""
    api.write(topic, 1, 2)
    for at in (3, 2**64 - 1):
        answer = api.diff(topic, at)
        assert (answer["tombstone"]["reason"], seqs(answer), answer["next_from_seq"]) == ("recreated", [1, 2], 2)


# --- additive: GET, from_ts, filter


def test_get_diff_is_the_same_read_from_the_query(api: Client, topic: str) -> None:
    """DF2: a convenience for browsers and curl."""
    api.write(topic, *range(10))
    for query, body in (("", {}), ("from_seq=3", {"from_seq": 3}), ("from_seq=3&limit=2", {"from_seq": 3, "limit": 2})):
        got, posted = ok(api.get(f"/v0/topics/{topic}/diff?{query}")), ok(api.post(f"/v0/topics/{topic}/diff", body))
        assert got == posted


@swept("value", ["x", "-1", "+1", "1.5", "1e3", "0x1", "1_0", "%FF", "1%20", "%D9%A3", "true"])
@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch", "from_ts"])
def test_a_number_in_the_query_is_digits(api: Client, topic: str, field: str, value: str) -> None:
    """CV18"""
    api.put(f"/v0/topics/{topic}", {})
    refused(api.get(f"/v0/topics/{topic}/diff?{field}={value}"), 400, "invalid_request", None)


@pytest.mark.parametrize("value", ["18446744073709551616", "9" * 40, "9" * 5000])
def test_a_huge_number_in_the_query_is_clamped_or_refused_as_in_a_body(api: Client, topic: str, value: str) -> None:
    """CV18, DF1"""
    api.write(topic, 1, 2)
    for field in ("limit", "wait_ms", "max_batch_bytes"):
        assert len(ok(api.get(f"/v0/topics/{topic}/diff?{field}={value}"))["records"]) == 2
    for field in ("from_seq", "epoch"):
        refused(api.get(f"/v0/topics/{topic}/diff?{field}={value}"), 400, "invalid_request", None)
    assert len(ok(api.get(f"/v0/topics/{topic}/diff?from_seq={'0' * 5000}1"))["records"]) == 1


def test_from_ts_starts_at_the_first_record_that_is_not_older(server: ServerThread, api: Client, topic: str) -> None:
    """DF1"""
    times = []
    for n in range(5):
        api.write(topic, n, n + 10)
        times.append(server.clock.now_ms())
        server.advance(100)
    for index, ts in enumerate(times):
        assert api.data(topic, from_ts=ts)[0] == index
        assert api.data(topic, from_ts=ts - 1)[0] == index
        if index < 4:
            assert api.data(topic, from_ts=ts + 1)[0] == index + 1
    late = api.diff(topic, from_ts=times[-1] + 1)
    assert (late["records"], late["caught_up"], late["next_from_seq"], late["tombstone"]) == ([], True, 10, None)
    assert api.data(topic, from_ts=0)[0] == 0


def test_a_filter_leaves_out_what_does_not_match_and_moves_on(api: Client, topic: str) -> None:
    """DF3, DL2: the tag predicate of delete."""
    api.write_records(topic, *({"data": n, "tag": tag} for n, tag in enumerate(["a:1", "a:2", "b:1", "a*", None])))
    for match, expected in (
        ("a:1", [0]),
        (["tag", "Eq", "b:1"], [2]),
        (["tag", "Glob", "a:*"], [0, 1]),
        (["tag", "Glob", "*"], [0, 1, 2, 3]),
        ("a*", [3]),
        ("none", []),
        (None, [0, 1, 2, 3, 4]),
    ):
        answer = api.diff(topic, filter=match)
        assert [record["data"] for record in answer["records"]] == expected
        assert (answer["next_from_seq"], answer["caught_up"]) == (5, True)


# --- long polls


def test_a_long_poll_ends_with_a_record(server: ServerThread, api: Client, topic: str) -> None:
    """DF8, DF10"""
    api.write(topic, 1)
    with waiting(server, api, topic, {"from_seq": 1, "wait_ms": 30_000}) as poll:
        api.write(topic, 2)
        answer = ok(poll.reply())
    assert (seqs(answer), answer["next_from_seq"], answer["caught_up"]) == ([2], 2, True)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_long_poll_hears_writes_of_every_class(
    server: ServerThread, api: Client, topic: str, durability: str
) -> None:
    """DF8, DF10"""
    api.create(topic, durability=durability)
    with waiting(server, api, topic, {"wait_ms": 30_000}) as poll:
        api.write(topic, 1)
        assert seqs(ok(poll.reply())) == [1]


def test_an_answer_with_something_in_it_does_not_wait(api: Client, topic: str) -> None:
    """DF8: the clock stands still, so a wait would hang."""
    api.create(topic, cap_records=1)
    api.write(topic, 1, 2)
    assert seqs(api.diff(topic, 1, wait_ms=30_000)) == [2]
    assert api.diff(topic, 0, wait_ms=30_000)["tombstone"] is not None
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert api.diff(topic, 0, wait_ms=30_000)["tombstone"] is not None
    assert api.diff(topic, 9, wait_ms=30_000)["tombstone"]["reason"] == "recreated"


def test_a_long_poll_ends_at_its_deadline_with_a_fresh_answer(start: Start, topic: str) -> None:
    """DF8, DF10: own records written meanwhile do not end it and are passed in the answer."""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 5000, "node": "me"}) as poll:
        server.advance(4999)
        api.write(topic, 1, 2, node="me")
        api.write(topic, 3, node="me")
        assert is_silent(poll)
        server.advance(1)
        answer = ok(poll.reply())
    assert (answer["records"], answer["next_from_seq"], answer["head_seq"], answer["caught_up"]) == ([], 3, 3, True)
    assert answer["tombstone"] is None


def test_a_wait_is_held_to_thirty_seconds(start: Start, topic: str) -> None:
    """DF1"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 10**12}) as poll:
        server.advance(30_000)
        assert ok(poll.reply())["records"] == []


def test_a_long_poll_on_a_deleted_topic_is_not_found(server: ServerThread, api: Client, topic: str) -> None:
    """DF8, S7"""
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 30_000}) as poll:
        api.delete(f"/v0/topics/{topic}")
        refused(poll.reply(), 404, "topic_not_found", {"topic": topic})


def test_a_long_poll_ends_with_a_tombstone(server: ServerThread, api: Client, topic: str) -> None:
    """DF8"""
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 30_000, "node": "me"}) as poll:
        api.write(topic, 1, 2, 3, node="me")
        ok(api.put(f"/v0/topics/{topic}", {"cap_records": 1}))
        api.write(topic, 4)
        assert seqs(ok(poll.reply())) == [4]


def test_a_long_poll_skips_what_was_deleted_before_it_woke(server: ServerThread, api: Client, topic: str) -> None:
    """DF10: one pipelined connection writes own records, then foreign ones."""
    api.create(topic)
    with waiting(server, api, topic, {"wait_ms": 30_000, "filter": ["tag", "Glob", "b*"]}) as poll:
        api.write_records(topic, {"data": 1, "tag": "a"})
        assert is_silent(poll)
        api.write_records(topic, {"data": 2, "tag": "b"})
        answer = ok(poll.reply())
    assert (seqs(answer), answer["next_from_seq"]) == ([2], 2)


@pytest.mark.slow
def test_a_thousand_polls_racing_with_a_write_all_wake(api: Client, topic: str) -> None:
    """S7, DF10: the clock stands still, so a lost wake-up would hang the poll for ever."""
    api.create(topic)
    write = json.dumps({"records": [{"data": 1}]})
    with api.connect() as poll, api.connect() as writer:
        for head in range(1000):
            body = {"from_seq": head, "wait_ms": 30_000}
            first, second = (
                (poll, api.request("POST", f"/v0/topics/{topic}/diff", body)),
                (writer, api.request("POST", f"/v0/topics/{topic}", write)),
            )
            for connection, request in (first, second) if head % 3 else (second, first):
                connection.send(request)
            assert seqs(ok(poll.reply())) == [head + 1]
            assert writer.reply().status == 200


def test_a_client_that_leaves_frees_its_poll(server: ServerThread, api: Client, topic: str) -> None:
    """DF10, LM5"""
    api.create(topic)
    before = server.run(lambda: server.clock.waits)
    waiting(server, api, topic, {"wait_ms": 30_000}).socket.close()
    server.until(lambda: server.clock.waits == before)
