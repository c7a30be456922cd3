"""The server's history: samples, and their stream (OB2)."""

from typing import Any

import pytest

from tests.api.clients.events import EVENTS, connect, open_stream
from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start
from topics.server.seeing.history import COARSE_SAMPLES, FINE_SAMPLES
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

FIELDS = [
    *("ts", "written", "read", "delivered", "requests", "errors", "p50_ms", "p99_ms", "pressure"),
    *("memory_bytes", "disk_free_bytes", "lost"),
]


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.address)


def stats(api: Client, history_ms: int | None = None) -> dict[str, Any]:
    return ok(api.get("/v0/stats" if history_ms is None else f"/v0/stats?history={history_ms}"))


def tick(server: ServerThread, seconds: int = 1) -> None:
    """Let seconds pass, each with its sample."""
    for _ in range(seconds):
        server.advance(1000)
        server.run(server.server.app.history.take)


def test_a_sample_says_what_happened_in_its_second(server: ServerThread, api: Client) -> None:
    """OB2"""
    assert list(api.get("/v0/stats").json) == ["interval_ms", "samples", "performance"]
    assert stats(api)["samples"] == []
    tick(server)
    api.create("a", cap_records=2)
    api.write("a", 1, 2, 3)
    api.diff("a")
    api.get("/nowhere")
    tick(server)
    tick(server)
    answer = stats(api)
    assert answer["interval_ms"] == 1000
    _, busy, idle = answer["samples"]
    assert list(busy) == FIELDS
    assert (busy["written"], busy["read"], busy["lost"], busy["delivered"]) == (3, 2, 1, 0)
    assert (busy["requests"], busy["errors"]) == (4, {"4xx": 1, "5xx": 0})
    assert busy["p50_ms"] is not None and 0 <= busy["p50_ms"] <= busy["p99_ms"]
    assert busy["memory_bytes"] > 0 and busy["disk_free_bytes"] == 1 << 40
    assert 0 <= busy["pressure"] <= 1
    assert idle["ts"] - busy["ts"] == 1000
    assert [idle[name] for name in ("written", "read", "lost", "delivered", "requests", "p50_ms", "p99_ms")] == [
        *(0, 0, 0, 0, 0),
        *(None, None),
    ]


def test_what_is_delivered_live_is_counted_for_each_reader(server: ServerThread, api: Client) -> None:
    """OB2"""
    api.create("a")
    api.create("q", type="queue")
    with (
        open_stream(api, "/v0/topics/a/events") as one,
        open_stream(api, "/v0/topics/a/events") as two,
        open_stream(api, "/v0/topics/q/work?node=n&max=9") as work,
    ):
        tick(server)
        api.write("a", 1, 2)
        api.write("q", 1)
        for stream in (one, two):
            while stream.next().kind != "record":
                pass
        while work.next().kind != "job":
            pass
        tick(server)
        assert stats(api)["samples"][-1]["delivered"] == 5


@pytest.mark.parametrize(
    ("history", "interval_ms", "seconds"), [(0, 1000, 0), (1000, 1000, 1), (5000, 1000, 5), (600_000, 1000, 20)]
)
def test_history_says_how_far_back(
    server: ServerThread, api: Client, history: int, interval_ms: int, seconds: int
) -> None:
    """OB2: the oldest first."""
    tick(server, 20)
    answer = stats(api, history)
    stamps = [sample["ts"] for sample in answer["samples"]]
    assert answer["interval_ms"] == interval_ms
    assert stamps == [server.clock.now_ms() - 1000 * back for back in reversed(range(seconds))]


def test_beyond_ten_minutes_samples_are_of_ten_seconds(server: ServerThread, api: Client) -> None:
    """OB2: they add up to the same."""
    for _ in range(30):
        api.write("a", 1)
        tick(server)
    fine, coarse = stats(api), stats(api, 600_001)
    assert (fine["interval_ms"], coarse["interval_ms"]) == (1000, 10_000)
    assert [sample["written"] for sample in coarse["samples"]] == [10, 10, 10]
    assert sum(sample["written"] for sample in fine["samples"]) == 30
    assert sum(sample["requests"] for sample in fine["samples"]) == 30
    assert stats(api, 10**30)["interval_ms"] == 10_000


def test_history_is_bounded(server: ServerThread, api: Client) -> None:
    """OB2: about one megabyte, made at the start; the oldest samples make room."""
    history = server.server.app.history
    assert history.fine.ring.size_bytes + history.coarse.ring.size_bytes < 1 << 20
    tick(server, 25)
    for _ in range(FINE_SAMPLES):
        server.advance(1000)
        server.run(history.take)
    samples = stats(api, 600_000)["samples"]
    assert len(samples) == FINE_SAMPLES
    assert samples[-1]["ts"] - samples[0]["ts"] == 599_000
    assert COARSE_SAMPLES * 10 == 24 * 3600


def test_a_pause_of_the_process_is_one_sample(server: ServerThread, api: Client) -> None:
    """OB2: what was counted meanwhile is in it, and its time shows the gap."""
    tick(server)
    api.write("a", 1)
    server.advance(7500)
    server.run(server.server.app.history.take)
    before, after = stats(api)["samples"]
    assert (after["ts"] - before["ts"], after["written"]) == (7500, 1)


def test_samples_that_are_taken_a_little_late_do_not_drift(server: ServerThread, api: Client) -> None:
    """OB2: the next one is due a second after the last was due, not after it was taken."""
    tick(server)
    for _ in range(10):
        server.advance(1090)
        server.run(server.server.app.history.take)
    assert len(stats(api)["samples"]) == 11
    server.advance(100)  # ten times 90 ms, and this: one more is due
    assert len(stats(api)["samples"]) == 12


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "", "1e3", "٣"])
def test_a_history_that_is_no_number_is_refused(api: Client, value: str) -> None:
    """OB2, CV18"""
    coded = value if value.isascii() else "%D9%A3"
    refused(api.get(f"/v0/stats?history={coded}"), 400, "invalid_request", None)
    refused(api.get(f"/v0/stats/stream?history={coded}"), 400, "invalid_request", None)


def test_a_long_poll_is_counted_and_not_timed(server: ServerThread, api: Client) -> None:
    """OB2, HM6: a wait that a client asked for says nothing of the server."""
    api.create("a")
    tick(server)
    with api.connect() as poll:
        poll.send(api.request("POST", "/v0/topics/a/diff", {"wait_ms": 5000}))
        server.until(lambda: server.clock.waits)
        server.advance(5000)
        assert poll.reply().status == 200
    server.run(server.server.app.history.take)
    last = stats(api)["samples"][-1]
    assert (last["requests"], last["p99_ms"]) == (1, None)


# --- the stream


def test_the_stream_has_the_same_samples(server: ServerThread, api: Client) -> None:
    """OB2: from now on, or with what is asked for of the past."""
    tick(server, 3)
    with open_stream(api, "/v0/stats/stream") as live, open_stream(api, "/v0/stats/stream?history=2000") as both:
        past = [both.expect("sample") for _ in range(2)]
        tick(server)
        new = live.expect("sample")
        assert both.expect("sample").data == new.data
    expected = stats(api)["samples"]
    assert [event.data for event in (*past, new)] == expected[1:]
    assert [event.id for event in (*past, new)] == [str(sample["ts"]) for sample in expected[1:]]
    server.until(lambda: server.server.app.slots.streams == 0)


def test_a_client_that_comes_back_gets_what_it_missed(server: ServerThread, api: Client) -> None:
    """OB2, SS14: by Last-Event-ID; one that cannot be read is ignored."""
    tick(server)
    with open_stream(api, "/v0/stats/stream?history=9000") as stream:
        last = stream.expect("sample")
    tick(server, 2)
    with open_stream(api, "/v0/stats/stream", EVENTS, f"Last-Event-ID: {last.id}") as again:
        missed = [again.expect("sample").data for _ in range(2)]
    assert missed == stats(api)["samples"][1:]
    for nonsense in ("x", "-1", "9" * 400):
        with open_stream(api, "/v0/stats/stream", EVENTS, f"Last-Event-ID: {nonsense}") as other:
            tick(server)
            assert other.expect("sample").data["ts"] == server.clock.now_ms()


def test_the_stream_is_a_connection_like_others(start: Start) -> None:
    """OB2, OB3, LM1, LM5, AU18, SS6: it takes a slot, is listed, can be ended, and takes a ticket."""
    server = start(api_keys="root,r:read,w:write", max_sse_connections=1)
    api = Client(server.address, "root")
    reader = api.with_key("r")
    refused(api.with_key("w").get("/v0/stats"), 403, "forbidden", None)
    refused(api.with_key("w").get("/v0/stats/stream"), 403, "forbidden", None)
    refused(api.with_key(None).get("/v0/stats"), 401, "unauthorized", None)
    refused(reader.get("/v0/stats/stream", "Accept: application/json"), 406, "not_acceptable", None)
    assert api.ask("HEAD", "/v0/stats/stream").status == 405
    ticket = ok(reader.post("/v0/ticket"))["ticket"]
    with open_stream(api.with_key(None), f"/v0/stats/stream?ticket={ticket}") as stream:
        refused(reader.get("/v0/stats/stream"), 429, "throttled", {"limit": "max_sse_connections", "max": 1})
        [listed] = ok(api.get("/v0/connections"))["connections"]
        assert (listed["kind"], listed["topics"], listed["lag"]) == ("events", [], 0)
        ok(api.delete(f"/v0/connections/{listed['id']}"))
        assert stream.expect("stream-error").data["code"] == 410
    server.until(lambda: server.server.app.slots.streams == 0)
    with connect(reader, "/v0/stats/stream") as stream:
        assert stream.head().status == 200
        closing = server.start_closing()
        assert stream.expect("stream-error").data["code"] == 503
        stream.expect_end()
    closing.result(PATIENCE_S)
