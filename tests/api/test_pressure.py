"""Priority by recency, and pressure as far as requests feel it."""

from typing import Any

import pytest

from tests.api.clients.transcript import Client, Connection, ok, refused
from tests.api.conftest import Start
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


def priority(api: Client, topic: str) -> int:
    return int(api.state(topic)["effective_priority"])


# --- priority


@pytest.mark.parametrize(
    ("idle_ms", "expected"),
    [(0, 500), (1, 500), (30_000, 250), (60_000, 125), (15_000, 354), (90_000, 62), (299_999, 0), (300_000, 0)],
)
def test_an_automatic_priority_halves_every_thirty_seconds(
    start: Start, topic: str, idle_ms: int, expected: int
) -> None:
    """PR1"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    assert priority(api, topic) == 0
    assert ok(api.get(f"/v0/topics/{topic}"))["effective_priority"] == 500
    server.advance(idle_ms)
    assert priority(api, topic) == round(500 * 2 ** (-idle_ms / 30_000)) == expected


def test_a_priority_that_is_set_rules_and_auto_priority_may_be_off(api: Client, topic: str) -> None:
    """PR1"""
    for config, expected in (({"priority": -7}, -7), ({"priority": 0}, 0), ({"auto_priority": False}, 0), ({}, 500)):
        api.put(f"/v0/topics/{topic}", config)
        assert ok(api.get(f"/v0/topics/{topic}"))["effective_priority"] == expected


def test_which_reads_count(server: ServerThread, api: Client, topic: str) -> None:
    """PR2, DF7, TP9, TP10"""
    counted: dict[str, Any] = {
        "state": lambda t: api.get(f"/v0/topics/{t}"),
        "list": lambda t: api.get(f"/v0/topics?prefix={t}&touch=true"),
        "diff": lambda t: api.post(f"/v0/topics/{t}/diff", {}),
        "get diff": lambda t: api.get(f"/v0/topics/{t}/diff"),
    }
    others: dict[str, Any] = {
        "state without touch": lambda t: api.get(f"/v0/topics/{t}?touch=false"),
        "list": lambda t: api.get(f"/v0/topics?prefix={t}"),
        "write": lambda t: api.post(f"/v0/topics/{t}", ONE),
        "put": lambda t: api.put(f"/v0/topics/{t}", {"cap_records": 9}),
        "delete": lambda t: api.post(f"/v0/topics/{t}/delete", {"before_seq": 1}),
        "metrics": lambda t: api.get("/v0/metrics"),
    }
    for n, (counts, (what, call)) in enumerate(
        [(True, c) for c in counted.items()] + [(False, c) for c in others.items()]
    ):
        name = f"{topic}.{n}"
        api.create(name)
        assert call(name).status == 200
        assert (api.state(name)["last_read_ts"] is not None) is counts, what


# --- pressure


def under_pressure(server: ServerThread, level: float = 1.0) -> None:
    server.pressure = level
    server.until(lambda: server.server.pressure.level == level)


def parked(server: ServerThread, api: Client, method: str, path: str, body: Any) -> Connection:
    """A request that the server is known to have parked."""
    before = server.run(lambda: server.clock.waits)
    connection = api.connect()
    connection.send(api.request(method, path, body))
    server.until(lambda: server.clock.waits > before)
    return connection


PARKED = [("POST", "", ONE), ("POST", "/diff", {}), ("GET", "/diff", None)]


@pytest.mark.parametrize(("method", "path", "body"), PARKED, ids=str)
def test_at_the_top_a_request_waits_a_second_and_is_refused(
    start: Start, topic: str, method: str, path: str, body: Any
) -> None:
    """PR7, ER4, ER5, WR14: nothing is changed."""
    server = start()
    api = Client(server.address)
    api.create(topic)
    before = api.everything()
    under_pressure(server)
    with parked(server, api, method, f"/v0/topics/{topic}{path}", body) as connection:
        server.advance(1000)
        reply = connection.reply()
    refused(reply, 429, "throttled")
    detail = reply.json["error"]["detail"]
    assert list(detail) == ["retry_after_ms"] and type(detail["retry_after_ms"]) is int and detail["retry_after_ms"] > 0
    assert int(reply.headers["retry-after"]) * 1000 >= detail["retry_after_ms"]
    under_pressure(server, 0.0)
    assert api.everything() == before


@pytest.mark.parametrize(("method", "path", "body"), PARKED, ids=str)
def test_a_parked_request_goes_on_when_the_pressure_falls(
    start: Start, topic: str, method: str, path: str, body: Any
) -> None:
    """PR7, CV11: and says how long it waited."""
    server = start()
    api = Client(server.address)
    api.create(topic)
    under_pressure(server)
    with parked(server, api, method, f"/v0/topics/{topic}{path}", body) as connection:
        server.advance(400)
        under_pressure(server, 0.0)
        reply = connection.reply()
    ok(reply)
    assert reply.json["performance"]["throttle_wait_ms"] == 400.0


def test_a_write_may_choose_to_wait_instead(start: Start, topic: str) -> None:
    """WR15"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    under_pressure(server)
    patient = {"records": [{"data": 1}], "disable_backpressure": True}
    with parked(server, api, "POST", f"/v0/topics/{topic}", patient) as connection:
        server.advance(60_000)
        assert api.get("/v0/health").status == 200
        connection.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.socket.recv(1)
        connection.socket.settimeout(PATIENCE_S)
        under_pressure(server, 0.0)
        reply = connection.reply()
    assert ok(reply)["seqs"] == [1]
    assert reply.json["performance"]["throttle_wait_ms"] >= 60_000


def test_resource_caps_apply_to_the_patient_as_well(start: Start) -> None:
    """WR15, LM1"""
    api = Client(start(max_topics=1, max_total_bytes=10).address)
    api.create("a")
    patient = {"disable_backpressure": True}
    refused(api.post("/v0/topics/b", {"records": [{"data": 1}]} | patient), 429, "throttled")
    refused(api.post("/v0/topics/a", {"records": [{"data": "x" * 20}]} | patient), 429, "throttled")


def test_deletes_and_config_calls_are_never_refused_for_pressure(start: Start, topic: str) -> None:
    """PR7"""
    server = start()
    api = Client(server.address)
    api.write(topic, 1, 2)
    under_pressure(server)
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2}))["deleted"] == 1
    assert ok(api.put(f"/v0/topics/{topic}", {"cap_records": 5}))["created"] is False
    assert ok(api.put(f"/v0/topics/{topic}-2", {}), 201)["created"] is True
    assert ok(api.get(f"/v0/topics/{topic}"))["count"] == 1
    assert ok(api.get("/v0/topics"))["topics"]
    assert ok(api.delete(f"/v0/topics/{topic}-2"))["deleted"] is True
    assert api.get("/v0/health").status == api.get("/v0/metrics").status == 200


def test_what_comes_before_pressure_is_answered_at_once(start: Start, topic: str) -> None:
    """WR14: 404 and a bad name come before the pressure 429."""
    server = start()
    api = Client(server.address)
    under_pressure(server)
    refused(api.post(f"/v0/topics/{topic}", {"records": [{"data": 1}], "create": False}), 404, "topic_not_found")
    refused(api.post("/v0/topics/-bad", ONE), 400, "invalid_request")
    refused(api.post(f"/v0/topics/{topic}", {"records": []}), 400, "invalid_request")
    refused(api.post(f"/v0/topics/{topic}", b"x"), 400, "invalid_request")


def test_a_parked_client_that_leaves_is_forgotten(start: Start, topic: str) -> None:
    """PR7, LM5"""
    server = start()
    api = Client(server.address)
    api.create(topic)
    under_pressure(server)
    parked(server, api, "POST", f"/v0/topics/{topic}", ONE).socket.close()
    server.until(lambda: not server.clock.waits)
    under_pressure(server, 0.0)
    assert api.state(topic)["head_seq"] in (0, 1)
    assert api.write(topic, 2)["count"] == 1


def test_pressure_below_the_top_refuses_nothing(start: Start, topic: str) -> None:
    """PR7"""
    server = start()
    api = Client(server.address)
    under_pressure(server, 0.9)
    assert api.write(topic, 1)["seqs"] == [1]
    assert api.data(topic) == [1]


# --- slowed writes


LARGE = {"records": [{"data": "x" * 65_000}]}


def almost_full(start: Start, topic: str) -> tuple[ServerThread, Client]:
    """A server whose log has nine tenths of what may wait to be sealed."""
    server = start(cache_bytes=2 << 20)
    api = Client(server.address)
    ok(api.post(f"/v0/topics/{topic}", {"records": LARGE["records"] * 43}), 201)
    server.until(lambda: server.server.pressure.slows(65_000))
    return server, api


def test_writes_wait_in_proportion_to_their_size_as_the_log_fills(start: Start, topic: str) -> None:
    """PR5, PR7, CV11: before any is refused; small ones and reads do not wait."""
    server, api = almost_full(start, topic)
    head = api.state(topic)["head_seq"]
    with parked(server, api, "POST", f"/v0/topics/{topic}", LARGE) as connection:
        assert api.write(topic, 1)["seqs"] == [head + 1]
        assert api.data(topic)
        server.advance(1000)
        reply = connection.reply()
    assert ok(reply)["seqs"] == [head + 2]
    assert reply.json["performance"]["throttle_wait_ms"] == 1000.0


def test_a_slowed_write_goes_on_when_the_records_are_sealed(start: Start, topic: str) -> None:
    """PR7"""
    server, api = almost_full(start, topic)
    head = api.state(topic)["head_seq"]
    with parked(server, api, "POST", f"/v0/topics/{topic}", LARGE) as connection:
        server.do(server.server.engine.checkpoint())
        assert ok(connection.reply())["seqs"] == [head + 1]
