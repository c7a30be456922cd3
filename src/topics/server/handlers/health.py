"""How the server is: health and readiness (HM1, HM2, HM7), metrics as Prometheus text or JSON (HM3-HM5).

The names of metrics are contract. What is shown of topics waits for its gate like any read, and a key sees only the
topics that it may name (AU14).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final, NamedTuple

from msgspec import Struct

from topics import __version__
from topics.engine.answers import InstanceCounters, LogCounters, RouterState, TopicState
from topics.errors import NotReady, StorageError
from topics.server.call import Call
from topics.server.handlers.routers import may_see
from topics.server.transport.exchange import Connections
from topics.server.wire.replies import Health, Ready

TOPICS_MAX: Final = 1000  # topics with series of their own
ROUTERS_MAX: Final = 1000  # the same for routers
TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")


class WalMetrics(Struct):
    """The log since the start."""

    fsyncs: int
    frames: int
    batches: int
    bytes_written: int
    rotations: int
    queue_depth: int
    queue_depth_peak: int
    submit_full_total: int
    read_only: bool
    fsync_count: int
    fsync_micros_total: int


class Metrics(Struct):
    """The JSON form."""

    topics: int
    topics_ephemeral: int
    topics_memory: int
    topics_disk: int
    topics_fsync: int
    routers: int
    records_live: int
    bytes_live: int
    queue_topics: int
    queue_leases_in_flight: int
    sse_connections: int
    watch_sessions: int
    ready: bool
    replay_progress: float
    uptime_ms: int
    wal: WalMetrics


class Series(NamedTuple):
    name: str
    kind: str
    meaning: str
    samples: Sequence[tuple[str, int | float]]  # labels with their braces or nothing, value


def health(call: Call) -> None:
    call.answer(200, Health("ok", __version__, call.app.uptime_ms))


def ready(call: Call) -> None:
    if not call.app.is_serving:
        raise call.app.unavailable()
    if (obstacle := call.app.engine.obstacle()) is not None:
        raise NotReady(f"no write can be kept: {obstacle.message}", reason=obstacle.reason)
    call.answer(200, Ready("ready", True, call.app.engine.topic_count))


async def metrics(call: Call) -> None:
    if _wants_json(call):
        call.answer(200, _metrics(call, call.app.engine.counters()))
        return
    engine, key = call.app.engine, call.key
    states: list[TopicState] = []
    routers: list[RouterState] = []
    has_more = False
    with suppress(StorageError):  # then nothing can be said of single topics
        states, has_more = await engine.topics_after("", TOPICS_MAX, key.may_name)
        routers, _ = await engine.routers_after("", ROUTERS_MAX, lambda router: may_see(key, router))
    counters = engine.counters()
    whole = _whole(_metrics(call, counters), counters.log, call.app.connections)
    of_some = (*_of_topics(states, has_more), _of_routers(routers))
    text = "".join(line for series in (*whole, *of_some) for line in _lines(series))
    call.respond(200, text.encode(), (), TEXT)


def _wants_json(call: Call) -> bool:
    accepted = b",".join(call.request.header_values(b"accept")).lower()
    return any(choice.partition(b";")[0].strip() == b"application/json" for choice in accepted.split(b","))


def _metrics(call: Call, counters: InstanceCounters) -> Metrics:
    app = call.app
    classes = {name: counters.topics_by_class.get(name, 0) for name in CLASSES}
    return Metrics(
        topics=counters.topics,
        topics_ephemeral=classes["ephemeral"],
        topics_memory=classes["memory"],
        topics_disk=classes["disk"],
        topics_fsync=classes["fsync"],
        routers=counters.routers,
        records_live=counters.records,
        bytes_live=counters.bytes,
        queue_topics=counters.queues,
        queue_leases_in_flight=counters.leases,
        sse_connections=app.slots.streams,
        watch_sessions=app.slots.sessions,
        ready=app.is_serving and app.engine.obstacle() is None,
        replay_progress=round(min(1.0, app.engine.replay_progress), 4),
        uptime_ms=app.uptime_ms,
        wal=_wal(counters.log),
    )


def _wal(log: LogCounters) -> WalMetrics:
    return WalMetrics(
        fsyncs=log.fsyncs,
        frames=log.frames,
        batches=log.batches,
        bytes_written=log.bytes_written,
        rotations=log.rotations,
        queue_depth=log.queue_depth,
        queue_depth_peak=log.queue_depth_peak,
        submit_full_total=log.full_total,
        read_only=log.is_read_only,
        fsync_count=log.fsyncs,
        fsync_micros_total=log.fsync_micros,
    )


def _whole(m: Metrics, log: LogCounters, connections: Connections | None) -> Iterator[Series]:
    """The series of the whole instance."""
    wal = m.wal
    classes = (m.topics_ephemeral, m.topics_memory, m.topics_disk, m.topics_fsync)
    by_class = [(f'{{class="{name}"}}', count) for name, count in zip(CLASSES, classes, strict=True)]
    yield _gauge("topics_topics", "topics", m.topics)
    yield Series("topics_topics_by_class", "gauge", "topics per durability class", by_class)
    yield _gauge("topics_routers", "routers", m.routers)
    yield _gauge("topics_records_live", "live records", m.records_live)
    yield _gauge("topics_bytes_live", "sizes of the live records", m.bytes_live)
    yield _gauge("topics_queue_topics", "queues", m.queue_topics)
    yield _gauge("topics_queue_leases_in_flight", "active leases", m.queue_leases_in_flight)
    yield _gauge("topics_sse_connections", "open streams and sockets", m.sse_connections)
    yield _gauge("topics_watch_sessions", "watch sessions", m.watch_sessions)
    if connections is not None:
        ended, refused = connections.held_ended_total, connections.refused_total
        yield _gauge("topics_connections", "open connections", len(connections.open))
        yield _counter("topics_connections_refused_total", "connections closed at once: too many", refused)
        yield _counter("topics_connections_held_ended_total", "connections ended: too much held for them", ended)
    yield _gauge("topics_ready", "1 if ready", int(m.ready))
    yield _gauge("topics_recovery_progress", "0.0 to 1.0", m.replay_progress)
    yield _gauge("topics_uptime_ms", "time since the start", m.uptime_ms)
    yield _counter("topics_wal_frames_total", "frames written", wal.frames)
    yield _counter("topics_wal_batches_total", "group commits", wal.batches)
    yield _counter("topics_wal_fsyncs_total", "fsyncs", wal.fsyncs)
    yield _counter("topics_wal_bytes_written_total", "bytes written", wal.bytes_written)
    yield _counter("topics_wal_rotations_total", "log files begun after the first", wal.rotations)
    yield _gauge("topics_wal_queue_depth", "frames waiting", wal.queue_depth)
    yield _gauge("topics_wal_queue_depth_peak", "most frames that ever waited", wal.queue_depth_peak)
    yield _counter("topics_wal_submit_full_total", "times the ingest queue was full", wal.submit_full_total)
    yield _gauge("topics_wal_read_only", "1 if the log takes no more writes", int(wal.read_only))
    bounds = [*map(str, log.fsync_bounds_us), "+Inf"]
    counts = accumulate(log.fsync_buckets)
    buckets = [(f'_bucket{{le="{bound}"}}', count) for bound, count in zip(bounds, counts, strict=True)]
    totals = [("_sum", log.fsync_micros), ("_count", log.fsyncs)]
    yield Series("topics_wal_fsync_latency_us", "histogram", "time of an fsync in microseconds", buckets + totals)


def _of_topics(states: list[TopicState], has_more: bool) -> Iterator[Series]:
    """The series of single topics. A topic's name is a label that needs no escaping; it is escaped all the same."""
    labels = [(f'{{topic="{_escaped(state.topic)}"}}', state) for state in states]
    yield Series("topics_topic_head_seq", "gauge", "highest seq handed out", [(at, s.head_seq) for at, s in labels])
    yield Series("topics_topic_earliest_seq", "gauge", "lowest live seq", [(at, s.earliest_seq) for at, s in labels])
    yield Series("topics_topic_records_live", "gauge", "live records", [(at, s.count) for at, s in labels])
    yield Series("topics_topic_bytes_live", "gauge", "sizes of the live records", [(at, s.bytes) for at, s in labels])
    queues = [(at, state.queue) for at, state in labels if state.queue is not None]
    yield Series("topics_topic_queue_ready", "gauge", "jobs to be claimed", [(at, q.ready) for at, q in queues])
    yield Series("topics_topic_queue_in_flight", "gauge", "jobs under a lease", [(at, q.in_flight) for at, q in queues])
    yield _gauge("topics_topic_metrics_truncated", "1 if topics were left out", int(has_more))


def _of_routers(routers: list[RouterState]) -> Series:
    lags = [(f'{{router="{_escaped(router.router)}"}}', router.lag) for router in routers]
    return Series("topics_router_lag", "gauge", "seqs of its source that a router has not looked at", lags)


def _gauge(name: str, meaning: str, value: int | float) -> Series:
    return Series(name, "gauge", meaning, [("", value)])


def _counter(name: str, meaning: str, value: int) -> Series:
    return Series(name, "counter", meaning, [("", value)])


def _lines(series: Series) -> Iterator[str]:
    if not series.samples:
        return
    yield f"# HELP {series.name} {series.meaning}\n# TYPE {series.name} {series.kind}\n"
    for labels, value in series.samples:
        yield f"{series.name}{labels} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
