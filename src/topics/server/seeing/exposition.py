"""Metrics as Prometheus text: which series there are, what they mean, and how they are written (HM3, HM4, HM6).

The names are contract, and those of Appendix A are kept although some have units that Prometheus would not choose;
what is beside them is in seconds and bytes. `docs/operations.md` says of each when to worry. Must not know: who asks.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from topics import __version__
from topics.engine.answers import InstanceCounters, RouterState, TopicDetail
from topics.server.seeing.traffic import BOUNDS_S, Traffic
from topics.tuning import cpu_seconds, files_max, open_files, resident_bytes

if TYPE_CHECKING:
    from topics.server.app import App

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")


class Series(NamedTuple):
    name: str
    kind: str
    meaning: str
    samples: Sequence[tuple[str, int | float]]  # labels with their braces or nothing, value


def text_of(series: Series) -> str:
    """The text of a family; empty if it has no samples."""
    if not series.samples:
        return ""
    name = series.name
    head = f"# HELP {name} {series.meaning}\n# TYPE {name} {series.kind}\n"
    return head + "".join([f"{name}{labels} {value}\n" for labels, value in series.samples])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- the whole


def of_contents(counters: InstanceCounters) -> Iterator[Series]:
    """Counts of topics, records, bytes and the like."""
    by_class = [(f'{{class="{name}"}}', counters.topics_by_class.get(name, 0)) for name in CLASSES]
    yield _gauge("topics_topics", "topics", counters.topics)
    yield Series("topics_topics_by_class", "gauge", "topics per durability class", by_class)
    yield _gauge("topics_routers", "routers", counters.routers)
    yield _gauge("topics_records_live", "live records", counters.records)
    yield _gauge("topics_bytes_live", "sizes of the live records", counters.bytes)
    yield _gauge("topics_queue_topics", "queues", counters.queues)
    yield _gauge("topics_queue_leases_in_flight", "active leases", counters.leases)


def of_server(app: "App") -> Iterator[Series]:
    """Connections, readiness, pressure, and room."""
    engine, connections = app.engine, app.connections
    yield _gauge("topics_sse_connections", "open streams and sockets", app.slots.streams)
    yield _gauge("topics_watch_sessions", "watch sessions", app.slots.sessions)
    if connections is not None:
        ended, refused = connections.held_ended_total, connections.refused_total
        yield _gauge("topics_connections", "open connections", len(connections.open))
        yield _counter("topics_connections_refused_total", "connections closed at once: too many", refused)
        yield _counter("topics_connections_held_ended_total", "connections ended: too much held for them", ended)
    yield _gauge("topics_ready", "1 if ready", int(app.is_serving and engine.obstacle() is None))
    yield _gauge("topics_recovery_progress", "0.0 to 1.0", round(min(1.0, engine.replay_progress), 4))
    yield _gauge("topics_uptime_ms", "time since the start", app.uptime_ms)
    yield _gauge("topics_uptime_seconds", "time since the start", app.uptime_ms / 1000)
    yield _gauge("topics_pressure", "0.0 to 1.0; at 1.0 requests wait, and are refused", round(app.pressure.level, 4))
    yield _gauge("topics_memory_used_bytes", "what is kept in memory, by estimate", engine.footprint.used)
    yield _gauge("topics_memory_limit_bytes", "what may be: beyond it writes are refused", engine.footprint.limit)
    free, _ = engine.figures.disk_room()
    if free is not None:
        yield _gauge("topics_disk_free_bytes", "room on the disk of the data directory", free)
    build = [(f'{{version="{escaped(__version__)}"}}', 1)]
    yield Series("topics_build_info", "gauge", "1; the version is the label", build)


def of_log(counters: InstanceCounters) -> Iterator[Series]:
    """The write-ahead log."""
    log = counters.log
    yield _counter("topics_wal_frames_total", "frames written", log.frames)
    yield _counter("topics_wal_batches_total", "group commits", log.batches)
    yield _counter("topics_wal_fsyncs_total", "fsyncs", log.fsyncs)
    yield _counter("topics_wal_bytes_written_total", "bytes written", log.bytes_written)
    yield _counter("topics_wal_rotations_total", "log files begun after the first", log.rotations)
    yield _gauge("topics_wal_queue_depth", "frames waiting", counters.queue_depth)
    yield _gauge("topics_wal_queue_depth_peak", "most frames that ever waited", log.queue_depth_peak)
    yield _counter("topics_wal_submit_full_total", "times the ingest queue was full", log.full_total)
    yield _gauge("topics_wal_read_only", "1 if the log takes no more writes", int(counters.is_read_only))
    bounds_us, sum_us = log.fsync_bounds_us, log.fsync_micros
    yield Series(
        "topics_wal_fsync_latency_us",
        "histogram",
        "time of an fsync in microseconds",
        _histogram("", bounds_us, log.fsync_buckets, sum_us),
    )
    bounds_s = [bound / 1_000_000 for bound in bounds_us]
    yield Series(
        "topics_wal_fsync_seconds",
        "histogram",
        "time of an fsync",
        _histogram("", bounds_s, log.fsync_buckets, sum_us / 1_000_000),
    )


def of_requests(traffic: Traffic) -> Iterator[Series]:
    """Requests by route and status, their times, refusals by cause."""
    statuses: list[tuple[str, int | float]] = []
    times: list[tuple[str, int | float]] = []
    for tally in traffic:
        route = f'route="{escaped(tally.name)}"'
        statuses += [(f'{{{route},status="{status}"}}', count) for status, count in sorted(tally.statuses.items())]
        if any(tally.buckets):
            times += _histogram(route, BOUNDS_S, tally.buckets, round(tally.seconds, 6))
    causes = [(f'{{cause="{escaped(cause)}"}}', count) for cause, count in sorted(traffic.refused.items())]
    yield Series("topics_requests_total", "counter", "requests answered", statuses)
    yield Series("topics_request_seconds", "histogram", "time to answer a request that did not ask to wait", times)
    yield Series("topics_refused_total", "counter", "requests and commands refused, by cause", causes)


def of_process(app: "App") -> Iterator[Series]:
    """What the process uses, under the names that Prometheus has for it."""
    started_s = (app.clock.now_ms() - app.uptime_ms) / 1000
    yield _counter("process_cpu_seconds_total", "processor time used", round(cpu_seconds(), 3))
    yield _gauge("process_resident_memory_bytes", "memory in use", resident_bytes())
    yield _gauge("process_start_time_seconds", "when the process started, since the epoch", started_s)
    files = open_files()
    if files is not None:
        yield _gauge("process_open_fds", "open descriptors", files)
    yield _gauge("process_max_fds", "descriptors that may be open", files_max())


# --- single topics, cursors and routers


def of_topics(topics: Iterable[TopicDetail], has_more: bool, now_ms: int) -> Iterator[Series]:
    """A topic's name is a label that needs no escaping; it is escaped all the same."""
    named = [(f'{{topic="{escaped(topic.state.topic)}"}}', topic) for topic in topics]
    states = [(at, topic.state) for at, topic in named]
    lost = [
        (f'{at[:-1]},reason="{reason}"}}', count)
        for at, t in named
        for reason, count in (("cap", t.state.lost_total - t.trimmed_total), ("source_trim", t.trimmed_total))
    ]
    yield Series("topics_topic_head_seq", "gauge", "highest seq handed out", [(at, s.head_seq) for at, s in states])
    yield Series("topics_topic_earliest_seq", "gauge", "lowest live seq", [(at, s.earliest_seq) for at, s in states])
    yield Series("topics_topic_records_live", "gauge", "live records", [(at, s.count) for at, s in states])
    yield Series("topics_topic_bytes_live", "gauge", "sizes of the live records", [(at, s.bytes) for at, s in states])
    memory = [(at, topic.memory_bytes) for at, topic in named]
    yield Series("topics_topic_memory_bytes", "gauge", "what is kept of it in memory, by estimate", memory)
    yield Series(
        "topics_topic_written_total", "counter", "seqs handed out", [(at, s.written_total) for at, s in states]
    )
    reads = [(at, topic.read_total) for at, topic in named]
    yield Series("topics_topic_read_total", "counter", "records handed out since the start", reads)
    yield Series("topics_topic_lost_total", "counter", "seqs lost to caps, crashes and sources", lost)
    expired = [(at, state.expired_total) for at, state in states]
    yield Series("topics_topic_expired_total", "counter", "records lost to age", expired)
    deleted = [(at, state.deleted_total) for at, state in states]
    yield Series("topics_topic_deleted_total", "counter", "records deleted, acks included", deleted)
    yield from _of_queues([(at, topic) for at, topic in named if topic.state.queue is not None], now_ms)
    yield _gauge("topics_topic_metrics_truncated", "1 if topics were left out", int(has_more))


def _of_queues(queues: Sequence[tuple[str, TopicDetail]], now_ms: int) -> Iterator[Series]:
    counts = [(at, topic.state.queue) for at, topic in queues if topic.state.queue is not None]
    ages = [
        (at, 0.0 if topic.oldest_ready_ts is None else max(0, now_ms - topic.oldest_ready_ts) / 1000)
        for at, topic in queues
    ]
    yield Series("topics_topic_queue_ready", "gauge", "jobs to be claimed", [(at, q.ready) for at, q in counts])
    yield Series("topics_topic_queue_in_flight", "gauge", "jobs under a lease", [(at, q.in_flight) for at, q in counts])
    yield Series("topics_topic_queue_delayed", "gauge", "jobs that are delayed", [(at, q.delayed) for at, q in counts])
    yield Series(
        "topics_topic_dead_lettered_total", "counter", "jobs given up", [(at, q.dead_lettered) for at, q in counts]
    )
    yield Series("topics_topic_oldest_ready_seconds", "gauge", "age of the oldest job that nobody holds", ages)


def of_cursors(lags: Iterable[tuple[str, str, int]]) -> Series:
    samples = [(f'{{topic="{escaped(topic)}",cursor="{escaped(one)}"}}', lag) for topic, one, lag in lags]
    return Series("topics_cursor_lag", "gauge", "seqs between a named cursor and the head", samples)


def of_routers(routers: Iterable[RouterState]) -> Series:
    lags = [(f'{{router="{escaped(router.router)}"}}', router.lag) for router in routers]
    return Series("topics_router_lag", "gauge", "seqs of its source that a router has not looked at", lags)


# --- forms


def _gauge(name: str, meaning: str, value: int | float) -> Series:
    return Series(name, "gauge", meaning, [("", value)])


def _counter(name: str, meaning: str, value: int | float) -> Series:
    return Series(name, "counter", meaning, [("", value)])


def _histogram(
    label: str, bounds: Sequence[int | float], buckets: Sequence[int], total: int | float
) -> list[tuple[str, int | float]]:
    """The samples of a histogram. `buckets` are not cumulative, and one more than `bounds`."""
    at, more = (f"{{{label}}}", f"{label},") if label else ("", "")
    counts = list(accumulate(buckets))
    ends = [*(f"{bound:.10g}" for bound in bounds), "+Inf"]
    samples: list[tuple[str, int | float]] = [
        (f'_bucket{{{more}le="{end}"}}', count) for end, count in zip(ends, counts, strict=True)
    ]
    return [*samples, (f"_sum{at}", total), (f"_count{at}", counts[-1])]
