"""Metrics of what passes, what is lost, what is refused and how long it takes (HM6)."""

import subprocess

import pytest

from tests.api.clients.exposition import exposition
from tests.api.clients.promtool import promtool
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import Socket
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics import __version__
from topics.server.seeing.traffic import BOUNDS_S, quantile_s
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

# Names of the contract whose unit is part of them; beside each is one in seconds.
OLD_UNITS = {"topics_uptime_ms": "topics_uptime_seconds", "topics_wal_fsync_latency_us": "topics_wal_fsync_seconds"}


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.address)


def busy(server: ServerThread, api: Client) -> None:
    """Everything that has a series has happened."""
    api.create("a", cap_records=2, ttl_ms=60_000)
    api.write("a", 1, 2, 3, 4)
    api.diff("a")
    api.post("/v0/topics/a/delete", {"before_seq": 4})
    api.create("q", type="queue", max_deliveries=1, dead_letter="dead")
    worker = Worker(api, "q")
    jobs(worker, 4)
    worker.seqs(2)
    worker.nack(1)
    worker.seqs(1)
    api.write_records("q", {"data": 1, "delay_ms": 90_000})
    api.put("/v0/topics/a/cursors/c", {"seq": 1})
    api.put("/v0/routers/r", {"source": "a", "dest": "b"})
    api.get("/nowhere")
    server.advance(2500)


def test_totals_of_topics(server: ServerThread, api: Client) -> None:
    """HM6, LS2: as durable as what they count, but for reads."""
    busy(server, api)
    found = exposition(api)
    assert found.value("topics_topic_written_total", topic="a") == 4
    assert found.value("topics_topic_read_total", topic="a") == 2
    assert found.value("topics_topic_lost_total", topic="a", reason="cap") == 2
    assert found.value("topics_topic_lost_total", topic="a", reason="source_trim") == 0
    assert found.value("topics_topic_deleted_total", topic="a") == 1
    assert found.value("topics_topic_expired_total", topic="a") == 0
    assert found.value("topics_topic_queue_delayed", topic="q") == 1
    assert found.value("topics_topic_dead_lettered_total", topic="q") == 1
    assert found.value("topics_topic_oldest_ready_seconds", topic="q") == 2.5
    assert found.value("topics_cursor_lag", topic="a", cursor="c") == 3
    server.advance(60_000)
    found = exposition(api)
    assert found.value("topics_topic_expired_total", topic="a") == 1
    state = api.state("a")
    for name in ("written", "expired", "deleted"):
        assert found.value(f"topics_topic_{name}_total", topic="a") == state[f"{name}_total"]
    assert found.value("topics_topic_lost_total", topic="a", reason="cap") == state["lost_total"]


def test_requests_by_route_and_status(server: ServerThread, api: Client) -> None:
    """HM6: a request whose path does not exist has the route none."""
    api.create("a")
    for _ in range(3):
        api.write("a", 1)
    refused(api.get("/v0/topics/b"), 404, "topic_not_found")
    refused(api.get("/v0/nothing"), 404, "not_found")
    refused(api.ask("PATCH", "/v0/topics/a"), 405, "method_not_allowed")
    refused(
        api.send(api.request("POST", "/v0/topics/a", b"{}", "Content-Type: text/html")), 415, "unsupported_media_type"
    )
    assert api.ask("HEAD", "/v0/topics/a").status == 200
    found = exposition(api)
    write = "POST /v0/topics/:topic"

    def requests(route: str, status: int) -> float:
        return found.value("topics_requests_total", route=route, status=str(status))

    assert (requests(write, 200), requests(write, 415)) == (3, 1)
    assert requests("PUT /v0/topics/:topic", 201) == 1
    assert (requests("GET /v0/topics/:topic", 404), requests("GET /v0/topics/:topic", 200)) == (1, 1)
    assert (requests("none", 404), requests("none", 405)) == (1, 1)
    assert found.value("topics_request_seconds_count", route=write) == 3
    bounds = [
        label
        for (name, labels), _ in found.samples.items()
        if name == "topics_request_seconds_bucket"
        for key, label in labels
        if key == "le" and ("route", write) in labels
    ]
    assert bounds == [*(f"{bound:.10g}" for bound in BOUNDS_S), "+Inf"]
    counts = [
        count
        for (name, labels), count in found.samples.items()
        if name == "topics_request_seconds_bucket" and ("route", write) in labels
    ]
    assert counts == sorted(counts) and counts[-1] == 3


def test_refusals_by_cause(start: Start) -> None:
    """HM6, LM1: over HTTP and over a socket; what a client did wrong is no refusal of the server."""
    server = start(api_keys="root,w:write:a", max_topics=1, max_cursors=1)
    root = Client(server.address, "root")
    root.create("a", cap_records=1, discard="reject")
    root.write("a", 1)
    refused(root.put("/v0/topics/b"), 429, "throttled")
    for name, status in (("one", 200), ("two", 429)):
        assert root.put(f"/v0/topics/a/cursors/{name}", {"seq": 0}).status == status
    refused(root.post("/v0/topics/a", {"records": [{"data": 1}]}), 422, "topic_full")
    refused(root.with_key("x").get("/v0/topics"), 401, "unauthorized", None)
    refused(root.with_key("w").get("/v0/topics"), 403, "forbidden", None)
    refused(root.get("/v0/topics/none"), 404, "topic_not_found")
    with Socket(root.address, "root") as socket:
        socket.say("publish", topic="c", records=[{"data": 1}])
        socket.expect("error")
    found = exposition(root).labelled("topics_refused_total")
    assert found == {"max_topics": 2, "max_cursors": 1, "topic_full": 1, "unauthorized": 1, "forbidden": 1}


def test_pressure_and_its_refusals(start: Start) -> None:
    """HM6, PR7"""
    server = start()
    api = Client(server.address)
    api.create("a")
    pressure = server.server.pressure
    server.run(lambda: setattr(pressure, "source", lambda: 1.0))
    server.run(pressure.measure)
    with api.connect() as writer:
        writer.send(api.request("POST", "/v0/topics/a", {"records": [{"data": 1}]}))
        server.until(lambda: server.clock.waits)
        assert exposition(api).value("topics_pressure") == 1
        server.advance(1000)
        refused(writer.reply(), 429, "throttled")
    assert exposition(api).labelled("topics_refused_total") == {"pressure": 1}


def test_the_process_and_the_build(api: Client) -> None:
    """HM6"""
    found = exposition(api)
    assert found.value("topics_build_info", version=__version__) == 1
    assert found.value("topics_disk_free_bytes") == 1 << 40
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"):
        assert found.value(name) > 0, name
    assert found.value("process_start_time_seconds") > 0
    for old, new in OLD_UNITS.items():
        assert found.types[old] == found.types[new]


def test_above_the_limit_the_most_active_topics_have_series(start: Start) -> None:
    """HM3, HM6: as many as the setting says."""
    server = start(max_metrics_topics=2)
    api = Client(server.address)
    for name in "abcd":
        api.create(name)
    api.write("c", 1, 2, 3)
    api.write("d", 1)
    api.diff("b", 0)
    found = exposition(api)
    assert set(found.labelled("topics_topic_head_seq")) == {"c", "d"}
    assert found.value("topics_topic_metrics_truncated") == 1
    for _ in range(5):
        api.diff("d")
    server.advance(59_000)
    assert set(exposition(api).labelled("topics_topic_head_seq")) == {"c", "d"}
    for _ in range(3):
        api.write("a", 1)
    server.advance(2000)  # what was long ago counts no more
    assert "a" in exposition(api).labelled("topics_topic_head_seq")
    none = Client(start(max_metrics_topics=0).address)
    none.create("a")
    found = exposition(none)
    assert "topics_topic_head_seq" not in found.types and found.value("topics_topic_metrics_truncated") == 1


def test_the_cursors_that_are_furthest_behind_have_series(start: Start) -> None:
    """HM6: a thousand of them, whatever topics they are of."""
    server = start(max_cursors=0)
    api = Client(server.address)
    api.write("a", *range(1200))
    api.write("b", *range(10))
    with api.connect() as connection:
        for n in range(1100):
            connection.send(api.request("PUT", f"/v0/topics/a/cursors/c{n}", {"seq": n}))
            assert connection.reply().status == 200
    ok(api.put("/v0/topics/b/cursors/c", {"seq": 0}))
    lags = exposition(api).labelled("topics_cursor_lag", "cursor")
    assert len(lags) == 1000 and set(lags) == {f"c{n}" for n in range(1000)}
    assert (lags["c0"], lags["c999"]) == (1200, 201)


def test_a_key_gets_series_only_of_what_it_may_name(start: Start) -> None:
    """AU14, HM6"""
    server = start(api_keys="root,a:read:acme")
    root = Client(server.address, "root")
    for name in ("acme", "other"):
        root.write(name, 1)
        root.put(f"/v0/topics/{name}/cursors/{name}", {"seq": 0})
    text = exposition(root.with_key("a")).text
    assert 'topic="acme"' in text and "other" not in text


# --- promtool


@pytest.fixture
def complaints(server: ServerThread, api: Client) -> list[str]:
    busy(server, api)
    text = exposition(api).text
    run = subprocess.run(
        [promtool(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.returncode in (0, 3), run.stderr  # 3: complaints of the linter
    return (run.stdout + run.stderr).splitlines()


def test_promtool_finds_nothing_but_the_units_of_old_names(complaints: list[str]) -> None:
    """HM6"""
    assert {line.split(" ")[0] for line in complaints} <= set(OLD_UNITS), complaints


# --- quantiles


@pytest.mark.parametrize(
    ("counts", "share", "expected_s"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, 0.00005),
        ({3: 4}, 1.0, 0.001),
        ({3: 1, 6: 1}, 0.5, 0.001),
        ({3: 98, 9: 2}, 0.99, 0.075),
        ({len(BOUNDS_S): 3}, 0.5, 10.0),
    ],
)
def test_a_quantile_lies_between_the_bounds_of_its_bucket(
    counts: dict[int, int], share: float, expected_s: float | None
) -> None:
    """OB2"""
    buckets = [counts.get(n, 0) for n in range(len(BOUNDS_S) + 1)]
    found = quantile_s(buckets, share)
    assert found == expected_s or (found is not None and expected_s is not None and abs(found - expected_s) < 1e-9)
