"""What is measured, and what is aimed for."""

from typing import Literal, NamedTuple

from tools.jars import version


class Figure(NamedTuple):
    name: str
    program: str  # module and arguments; prints one JSON object of key → value
    key: str
    unit: str
    target: float | None  # None = shown only
    better: Literal["higher", "lower"] = "lower"

    def is_met(self, value: float) -> bool:
        if self.target is None:
            return True
        return value >= self.target if self.better == "higher" else value <= self.target

    def shown(self, value: float) -> str:
        digits = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        return f"{digits} {self.unit}".strip()

    def shown_target(self) -> str:
        if self.target is None:
            return "–"
        return ("≥ " if self.better == "higher" else "≤ ") + self.shown(self.target)


ENGINE = [
    Figure("append, batches of 1000", "bench.engine batches", "records_per_s", "records/s", 1_200_000, "higher"),
    Figure("append, one record, 64 writers, disk", "bench.engine singles", "disk_us", "µs", 10),
    Figure("append, one record, 64 writers, fsync", "bench.engine singles", "fsync_per_s", "acks/s", 25_000, "higher"),
    Figure("read 1000, rendered before", "bench.engine reads", "cached_us", "µs", 60),
    Figure("read 1000, first time, in memory", "bench.engine reads", "uncached_us", "µs", 1000),
    Figure("read 1000, first time, from a segment", "bench.engine reads", "sealed_us", "µs", 1000),
    Figure("replay 1 M, batches of 1000", "bench.engine replay", "batches_per_s", "records/s", 1_000_000, "higher"),
    Figure("replay 1 M, single records", "bench.engine replay", "singles_per_s", "records/s", None, "higher"),
    Figure("memory of resident records, times payload", "bench.engine memory", "resident_ratio", "", 1.5),
    Figure("memory per sealed record", "bench.engine memory", "sealed_bytes", "B", 16),
    Figure("longest pause: writes and checkpoints at 1 M", "bench.engine pauses", "checkpoint_ms", "ms", 10),
    Figure("longest pause: cap takes 1 M away", "bench.engine pauses", "evict_ms", "ms", 10),
    Figure("longest pause: delete by tag of 1 M", "bench.engine pauses", "delete_ms", "ms", 10),
    Figure("append at 10 M records against 1 k", "bench.engine depth", "ratio", "", 1.3),
    Figure("append with 100 k topics against 1", "bench.engine width", "ratio", "", 1.3),
]

SERVER = [
    Figure("one record per POST, 64 connections, disk", "bench.server", "single_per_s", "/s", None, "higher"),
    Figure("Redis XADD, everysec", "bench.server", "redis_single_per_s", "/s", None, "higher"),
    Figure("… ratio", "bench.server", "single_ratio", "", 0.8, "higher"),
    Figure("one record per POST, 64 connections, fsync", "bench.server", "fsync_per_s", "/s", None, "higher"),
    Figure("Redis XADD, always", "bench.server", "redis_always_per_s", "/s", None, "higher"),
    Figure("… ratio", "bench.server", "fsync_ratio", "", 0.8, "higher"),
    Figure("100 records per POST, 16 connections", "bench.server", "batch_per_s", "records/s", None, "higher"),
    Figure("Redis XADD, 100 pipelined", "bench.server", "redis_batch_per_s", "records/s", None, "higher"),
    Figure("… ratio", "bench.server", "batch_ratio", "", 2.0, "higher"),
    Figure("diff of 1000, 16 connections", "bench.server", "diff_per_s", "records/s", None, "higher"),
    Figure("Redis XRANGE COUNT 1000", "bench.server", "redis_diff_per_s", "records/s", None, "higher"),
    Figure("… ratio", "bench.server", "diff_ratio", "", 1.3, "higher"),
    Figure("p99 of a lone write, disk", "bench.server", "lone_disk_ms", "ms", 1.0),
    Figure("p99 of a lone write, fsync, in fdatasyncs", "bench.server", "lone_fsyncs", "", 3.0),
    Figure("median fdatasync after a small write", "bench.server", "fdatasync_ms", "ms", None),
]

STREAMS = {
    "sse": "our SSE",
    "nchan_sse": "nchan SSE",
    "ws": "our WebSocket",
    "nchan_ws": "nchan WebSocket",
    "nats": "NATS",
}


def _latency(watchers: int) -> list[Figure]:
    """Of one number of watchers. Each way is followed by its peer and their ratio."""
    program, title = "bench.live latency", f"{watchers:,} watcher{'s' * (watchers > 1)}, 50 writes/s"
    figures = []
    for key, stream in STREAMS.items():
        figures.append(Figure(f"{title}: p50, {stream}", program, f"{key}_{watchers}_p50_ms", "ms", None))
        figures.append(Figure(f"{title}: p99, {stream}", program, f"{key}_{watchers}_p99_ms", "ms", None))
        if key.startswith("nchan_"):
            ratio = key.removeprefix("nchan_") + f"_{watchers}_p99_ratio"
            figures.append(Figure("… ratio of the p99 to nchan's", program, ratio, "", 1.0))
    return figures


def _saturated() -> list[Figure]:
    program, title, figures = "bench.live saturation", "saturated, 1,000 watchers", []
    for key, stream in STREAMS.items():
        figures.append(Figure(f"{title}: {stream}", program, f"{key}_per_s", "deliveries/s", None, "higher"))
        if key.startswith("nchan_"):
            way = key.removeprefix("nchan_")
            target = {"sse": 1.0, "ws": 0.6}[way]
            figures.append(Figure("… ratio to nchan", program, f"{way}_ratio", "", target, "higher"))
    for key, stream in STREAMS.items():
        figures.append(Figure(f"… CPU of the server, {stream}", program, f"{key}_server_cpu", "cores", None))
        figures.append(Figure(f"… CPU of the watchers' process, {stream}", program, f"{key}_client_cpu", "cores", None))
    return figures


LIVE = [
    *_latency(1),
    *_latency(100),
    *_latency(1000),
    *(
        Figure(
            f"… CPU of the watchers' process at 1,000, {stream}",
            "bench.live latency",
            f"{key}_1000_client_cpu",
            "cores",
            None,
        )
        for key, stream in STREAMS.items()
    ),
    *_saturated(),
    Figure("memory per idle SSE connection, of 1,000", "bench.live idle", "sse_few_bytes", "B", 4096),
    Figure("memory per idle SSE connection, of 10,000", "bench.live idle", "sse_many_bytes", "B", 4096),
    Figure("… nchan, of 10,000", "bench.live idle", "nchan_sse_many_bytes", "B", None),
    Figure("a write reaches 10,000 idle SSE connections", "bench.live idle", "sse_reach_ms", "ms", 1000),
    Figure("… nchan", "bench.live idle", "nchan_sse_reach_ms", "ms", None),
]

QUEUE_SYSTEMS = {
    "disk": "our disk queue",
    "redis": "Redis stream, everysec",
    "beanstalkd": "beanstalkd -b",
    "postgres": "PostgreSQL, deleting",
    "postgres_lease": "PostgreSQL, leasing",
    "fsync": "our fsync queue",
    "redis_always": "Redis stream, always",
    "beanstalkd_always": "beanstalkd -b -f0",
    "jitter": "our disk queue, jitter 5 ms",
}
QUEUES = [
    *(
        figure
        for key, system in QUEUE_SYSTEMS.items()
        for figure in (
            Figure(f"claim 8 and ack, 50 workers: {system}", "bench.queues", f"{key}_per_s", "jobs/s", None, "higher"),
            Figure("… p50 of a claim", "bench.queues", f"{key}_p50_ms", "ms", None),
            Figure("… p99 of a claim", "bench.queues", f"{key}_p99_ms", "ms", None),
            Figure("… CPU of the two client processes", "bench.queues", f"{key}_client_cpu", "cores", None),
        )
    ),
    Figure("jobs/s, disk: ratio to Redis, everysec", "bench.queues", "disk_to_redis", "", 0.8, "higher"),
    Figure("… to beanstalkd -b", "bench.queues", "disk_to_beanstalkd", "", 1.0, "higher"),
    Figure("… to PostgreSQL, deleting", "bench.queues", "disk_to_postgres", "", 1.0, "higher"),
    Figure("… to PostgreSQL, leasing", "bench.queues", "disk_to_postgres_lease", "", 1.0, "higher"),
    Figure("jobs/s, fsync: ratio to our disk queue", "bench.queues", "fsync_to_disk", "", 0.7, "higher"),
    Figure("… to Redis, always", "bench.queues", "fsync_to_redis_always", "", None, "higher"),
    Figure("… to beanstalkd -b -f0", "bench.queues", "fsync_to_beanstalkd_always", "", None, "higher"),
    Figure("jobs per worker: cv, jitter 5 ms", "bench.queues", "jitter_cv", "", 0.1),
    Figure("… cv without jitter", "bench.queues", "disk_cv", "", None),
]

ROUTERS = [
    Figure(
        "one source, one dest: 100 records per POST", "bench.routers", "batch_per_s", "records/s", 300_000, "higher"
    ),
    Figure("… without a router", "bench.routers", "unrouted_batch_per_s", "records/s", None, "higher"),
    Figure("one source, one dest: one record per POST", "bench.routers", "single_per_s", "records/s", None, "higher"),
    Figure("… without a router", "bench.routers", "unrouted_single_per_s", "records/s", None, "higher"),
    Figure("p50 of the source's ack at 200 writes/s, 100 routers", "bench.routers", "many_p50_ms", "ms", None),
    Figure("… no router", "bench.routers", "none_p50_ms", "ms", None),
    Figure("… ratio", "bench.routers", "p50_ratio", "", 1.1),
    Figure("p99 of the source's ack at 200 writes/s, 100 routers", "bench.routers", "many_p99_ms", "ms", None),
    Figure("… no router", "bench.routers", "none_p99_ms", "ms", None),
    Figure("… ratio", "bench.routers", "p99_ratio", "", 1.1),
    Figure(
        "acks/s of the source, 64 connections, 100 routers", "bench.routers", "many_acks_per_s", "/s", None, "higher"
    ),
    Figure("… no router", "bench.routers", "none_acks_per_s", "/s", None, "higher"),
    Figure("… ratio, none to 100", "bench.routers", "acks_ratio", "", 1.1),
]

# The newest connector that the registry has; Spark runs it, though it is of an earlier version.
KAFKA = f"Kafka {version('kafka', 'kafka_2.13')}, connector {version('kafka-connector', 'spark-sql-kafka-0-10_2.13')}"


def _beside_kafka() -> list[Figure]:
    figures = []
    for key, what in {"scan": "scan over HTTP of 1 M rows", "sink": "sink of 1 M rows"}.items():
        figures.append(Figure(f"{what}, 2 cores", "bench.spark", f"topics_{key}_per_s", "rows/s", None, "higher"))
        figures.append(Figure(f"… {KAFKA}", "bench.spark", f"kafka_{key}_per_s", "rows/s", None, "higher"))
        figures.append(Figure("… ratio", "bench.spark", f"{key}_to_kafka", "", None, "higher"))
    for percent in (50, 90, 99):
        name = f"a write until a stream's batch has it, 50 writes/s: p{percent}"
        figures.append(Figure(name, "bench.spark", f"topics_p{percent}_ms", "ms", None))
        figures.append(Figure("… Kafka", "bench.spark", f"kafka_p{percent}_ms", "ms", None))
    return figures


SPARK = [
    Figure("scan from segments, all columns, 2 cores", "bench.spark", "segments_per_s", "rows/s", None, "higher"),
    Figure("… spark.read.parquet of the same rows, zstd", "bench.spark", "parquet_per_s", "rows/s", None, "higher"),
    Figure("… ratio", "bench.spark", "segments_to_parquet", "", 0.8, "higher"),
    Figure("… a source in Python that does nothing: ratio", "bench.spark", "ready_to_parquet", "", None, "higher"),
    Figure("scan over HTTP, 2 partitions", "bench.spark", "http_per_s", "rows/s", 400_000, "higher"),
    Figure("sink", "bench.spark", "sink_per_s", "rows/s", 150_000, "higher"),
    Figure("… ratio to Spark's null sink", "bench.spark", "sink_to_null", "", None, "higher"),
    Figure("archive", "bench.spark", "archive_per_s", "rows/s", 250_000, "higher"),
    Figure("import of NDJSON", "bench.spark", "import_per_s", "rows/s", 120_000, "higher"),
    Figure("2 cores against 1: scan from segments", "bench.spark", "segments_cores_ratio", "", None, "higher"),
    Figure("… scan over HTTP", "bench.spark", "http_cores_ratio", "", None, "higher"),
    Figure("… sink", "bench.spark", "sink_cores_ratio", "", None, "higher"),
    Figure("start of a session with its first query", "bench.spark", "startup_s", "s", None),
    Figure("memory of the JVM at most", "bench.spark", "jvm_mib", "MiB", None),
    Figure("memory of a Python worker at most", "bench.spark", "worker_mib", "MiB", None),
    *_beside_kafka(),
]

SECTIONS = {
    "engine": ENGINE,
    "server": SERVER,
    "live": LIVE,
    "queues": QUEUES,
    "routers": ROUTERS,
    "spark": SPARK,
}
