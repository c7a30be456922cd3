"""Health, readiness, metrics; what answers during replay and drain."""

from typing import Any

import pytest

from tests.api.clients.exposition import Exposition, exposition
from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from topics import __version__
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}
CLASSES = ("ephemeral", "memory", "disk", "fsync")
PLAIN = {
    "topics_topics": "gauge",
    "topics_routers": "gauge",
    "topics_records_live": "gauge",
    "topics_bytes_live": "gauge",
    "topics_queue_topics": "gauge",
    "topics_queue_leases_in_flight": "gauge",
    "topics_sse_connections": "gauge",
    "topics_watch_sessions": "gauge",
    "topics_connections": "gauge",
    "topics_connections_refused_total": "counter",
    "topics_connections_held_ended_total": "counter",
    "topics_ready": "gauge",
    "topics_recovery_progress": "gauge",
    "topics_uptime_ms": "gauge",
    "topics_topic_metrics_truncated": "gauge",
    "topics_wal_frames_total": "counter",
    "topics_wal_batches_total": "counter",
    "topics_wal_fsyncs_total": "counter",
    "topics_wal_bytes_written_total": "counter",
    "topics_wal_rotations_total": "counter",
    "topics_wal_queue_depth": "gauge",
    "topics_wal_queue_depth_peak": "gauge",
    "topics_wal_submit_full_total": "counter",
    "topics_wal_read_only": "gauge",
}
PER_TOPIC = {
    "topics_topic_head_seq": "gauge",
    "topics_topic_earliest_seq": "gauge",
    "topics_topic_records_live": "gauge",
    "topics_topic_bytes_live": "gauge",
}
PER_QUEUE = {"topics_topic_queue_ready": "gauge", "topics_topic_queue_in_flight": "gauge"}
LABELLED = {"topics_topics_by_class": "gauge", "topics_wal_fsync_latency_us": "histogram"}
BUCKETS = ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
JSON_FORM = [
    *("topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live"),
    *("bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready"),
    *("replay_progress", "uptime_ms", "wal"),
]
JSON_WAL = [
    *("fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth", "queue_depth_peak"),
    *("submit_full_total", "read_only", "fsync_count", "fsync_micros_total"),
]


# --- probes


def test_health_says_these_three_things(start: Start) -> None:
    """HM1"""
    server = start()
    api = Client(server.address)
    first = api.get("/v0/health")
    assert list(first.json) == ["status", "version", "uptime_ms"]
    assert (first.json["status"], first.json["version"]) == ("ok", __version__)
    server.advance(1234)
    assert type(first.json["uptime_ms"]) is int
    assert api.get("/healthz").json["uptime_ms"] - first.json["uptime_ms"] == 1234


def test_ready_says_these_three_things(start: Start, topic: str) -> None:
    """HM2"""
    api = Client(start().address)
    api.create(topic)
    for path in ("/v0/ready", "/readyz"):
        assert api.get(path).body == b'{"status":"ready","wal_replay_complete":true,"topics":1}'


EVERYWHERE = [
    ("GET", "/v0/topics", None),
    ("GET", "/v0/topics/a", None),
    ("PUT", "/v0/topics/a", {}),
    ("DELETE", "/v0/topics/a", None),
    ("POST", "/v0/topics/a", ONE),
    ("POST", "/v0/topics/a", b"not JSON"),
    ("POST", "/v0/topics/a/diff", {}),
    ("GET", "/v0/topics/a/diff", None),
    ("GET", "/v0/topics/a/export", None),
    ("POST", "/v0/topics/a/delete", {"before_seq": 1}),
    ("GET", "/v0/ready", None),
    ("GET", "/readyz", None),
]


def test_during_replay_only_probes_and_metrics_answer(start: Start) -> None:
    """HM1, HM2, HM3, ER4, ER5, AU13: the port is bound before the log is read."""
    server = start(starts=False, api_keys="root,w:write:b")
    api = Client(server.address, "root")
    for method, path, body in EVERYWHERE:
        reply = api.ask(method, path, body)
        refused(reply, 503, "not_ready")
        progress = reply.json["error"]["detail"]
        assert list(progress) == ["replay_progress"] and 0.0 <= progress["replay_progress"] <= 1.0
    assert api.ask("HEAD", "/v0/topics").status == 503
    assert api.with_key(None).get("/v0/health").status == 200
    metrics = exposition(api)
    assert (metrics.value("topics_ready"), metrics.value("topics_topics")) == (0, 0)
    assert api.metrics()["ready"] is False
    # what comes before it in the order of checks, and after it
    refused(api.with_key(None).get("/v0/topics"), 401, "unauthorized")
    refused(api.get("/nowhere"), 404, "not_found")
    refused(api.ask("PATCH", "/v0/topics/a"), 405, "method_not_allowed")
    refused(api.with_key("w").get("/v0/topics/a"), 503, "not_ready")
    server.recover()
    assert api.get("/v0/ready").json["status"] == "ready"
    assert exposition(api).value("topics_ready") == 1
    assert api.post("/v0/topics/a", ONE).status == 201


def test_while_draining_new_requests_are_refused_and_running_ones_end(start: Start, topic: str) -> None:
    """HM2, HM1, HM3, SC3, G15"""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    api.create("a")
    server.run(disk.hold_syncs)
    with api.connect() as writer:
        writer.send(api.request("POST", f"/v0/topics/{topic}", ONE))
        server.until(lambda: disk.held_syncs)
        closing = server.start_closing()
        server.until(lambda: server.server.app.is_draining)
        for method, path, body in EVERYWHERE:
            refused(api.ask(method, path, body), 503, "shutting_down", None)
        assert api.get("/v0/health").status == 200
        assert not closing.done()
        server.run(disk.release_syncs)
        assert ok(writer.reply())["seqs"] == [1]
    closing.result(PATIENCE_S)
    again = Client(start(disk=disk.kill()).address)
    assert (again.data(topic), again.state("a")["head_seq"]) == ([1], 0)


def test_a_long_poll_ends_at_once_when_the_server_drains(start: Start, topic: str) -> None:
    """SC3, G15: a stop does not wait for the deadlines of polls."""
    server = start()
    api = Client(server.address)
    api.create(topic)
    with api.connect() as poll:
        poll.send(api.request("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))
        server.until(lambda: server.clock.waits)
        closing = server.start_closing()
        reply = poll.reply()
    assert reply.status in (200, 503), reply
    closing.result(PATIENCE_S)


# --- metrics


def test_every_series_has_its_name_type_and_help(start: Start) -> None:
    """HM3, HM4"""
    api = Client(start().address)
    api.create("log")
    api.create("queue", type="queue")
    metrics = exposition(api)
    contract = PLAIN | PER_TOPIC | PER_QUEUE | LABELLED
    assert {name: metrics.types.get(name) for name in contract} == contract
    for name in PLAIN:
        metrics.value(name)
    assert set(metrics.labelled("topics_topics_by_class")) == set(CLASSES)
    for name in PER_TOPIC:
        assert set(metrics.labelled(name)) == {"log", "queue"}
    for name in PER_QUEUE:
        assert set(metrics.labelled(name)) == {"queue"}
    assert list(metrics.labelled("topics_wal_fsync_latency_us_bucket")) == BUCKETS


def test_metrics_count_what_there_is(start: Start) -> None:
    """HM3, HM5: text and JSON agree."""
    server = start()
    api = Client(server.address)
    for durability in CLASSES:
        api.create(f"t.{durability}", durability=durability)
    api.create("q", type="queue")
    api.write("t.disk", "abc", "de")
    api.write("t.ephemeral", 1)
    api.write("q", 1, 2)
    api.post("/v0/topics/t.disk/delete", {"before_seq": 2})
    server.advance(5)
    text, form = exposition(api), api.metrics()
    assert list(form) == JSON_FORM
    assert list(form["wal"]) == JSON_WAL
    assert text.labelled("topics_topics_by_class") == {"ephemeral": 1, "memory": 1, "disk": 2, "fsync": 1}
    assert (form["topics"], form["topics_disk"], form["queue_topics"]) == (5, 2, 1)
    assert (form["records_live"], form["bytes_live"], form["routers"]) == (4, 4 + 1 + 1 + 1, 0)
    assert (form["ready"], form["replay_progress"]) == (True, 1.0)
    for name in ("topics", "routers", "records_live", "bytes_live", "queue_topics", "watch_sessions", "uptime_ms"):
        assert text.value(f"topics_{name}") == form[name], name
    for name in ("topics_queue_leases_in_flight", "topics_sse_connections"):
        assert text.value(name) == 0
    assert text.value("topics_recovery_progress") == 1.0
    for name, key in (("frames_total", "frames"), ("fsyncs_total", "fsyncs"), ("bytes_written_total", "bytes_written")):
        assert text.value(f"topics_wal_{name}") == form["wal"][key] > 0
    for name in ("batches_total", "rotations_total", "submit_full_total"):
        assert text.value(f"topics_wal_{name}") == form["wal"][name.removesuffix("_total") if name[0] != "s" else name]
    assert form["wal"]["read_only"] in (False, 0) and text.value("topics_wal_read_only") == 0
    for name, value in (("head_seq", 2), ("earliest_seq", 2), ("records_live", 1), ("bytes_live", 4)):
        assert text.labelled(f"topics_topic_{name}")["t.disk"] == value
    assert text.labelled("topics_topic_queue_ready") == {"q": 2}
    assert text.labelled("topics_topic_queue_in_flight") == {"q": 0}


def test_the_fsync_histogram_is_cumulative_and_counts_every_fsync(start: Start) -> None:
    """HM4"""
    api = Client(start().address)
    api.create("a", durability="fsync")
    for n in range(10):
        api.write("a", n)
    text = exposition(api)
    counts = list(text.labelled("topics_wal_fsync_latency_us_bucket").values())
    assert counts == sorted(counts)
    fsyncs = text.value("topics_wal_fsyncs_total")
    assert counts[-1] == text.value("topics_wal_fsync_latency_us_count") == fsyncs >= 11
    assert text.value("topics_wal_fsync_latency_us_sum") >= 0
    assert api.metrics()["wal"]["fsync_count"] == api.metrics()["wal"]["fsyncs"] == fsyncs


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        (None, False),
        ("application/json", True),
        ("text/html, application/json;q=0.5", True),
        ("APPLICATION/JSON", True),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1", False),
        ("application/*", False),
        ("application/jsonx", False),
        ("", False),
    ],
)
def test_the_form_is_json_if_accept_names_it(api: Client, accept: str | None, is_json: bool) -> None:
    """HM3, CV5"""
    reply = api.get("/v0/metrics", *([] if accept is None else [f"Accept: {accept}"]))
    assert reply.headers["content-type"].startswith("application/json" if is_json else "text/plain; version=0.0.4")
    assert "performance" not in reply.json if is_json else Exposition(reply)


@pytest.mark.slow
def test_more_than_a_thousand_topics_are_truncated_and_said_to_be(start: Start) -> None:
    """HM3, and CV15 for the pages of a list"""
    api = Client(start().address)
    with api.connect() as connection:
        for n in range(1000):
            connection.send(api.request("PUT", f"/v0/topics/t{n}", {"durability": "ephemeral"}))
            assert connection.reply().status == 201
    metrics = exposition(api)
    assert (len(metrics.labelled("topics_topic_head_seq")), metrics.value("topics_topic_metrics_truncated")) == (
        1000,
        0,
    )
    api.create("one-more")
    metrics = exposition(api)
    assert (len(metrics.labelled("topics_topic_head_seq")), metrics.value("topics_topic_metrics_truncated")) == (
        1000,
        1,
    )
    assert metrics.value("topics_topics") == 1001
    for page_size, expected in (("", 100), ("?page_size=1000", 1000), ("?page_size=1001", 1000)):
        page = ok(api.get(f"/v0/topics{page_size}"))
        assert (len(page["topics"]), "next_cursor" in page) == (expected, True)


def test_metrics_and_probes_touch_no_topic(server: ServerThread, api: Client, topic: str) -> None:
    """PR2"""
    api.create(topic)
    for path in ("/v0/metrics", "/v0/health", "/v0/ready"):
        assert api.get(path).status == 200
    state: dict[str, Any] = api.state(topic)
    assert state["last_read_ts"] is None
