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
    is_long: bool = False  # only measured with --long

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
    Figure("replay 1 M, single records", "bench.engine replay", "singles_per_s", "records/s", 1_000_000, "higher"),
    Figure("memory of resident records, times payload", "bench.engine memory", "resident_ratio", "", 1.5),
    Figure("memory per sealed record", "bench.engine memory", "sealed_bytes", "B", 16),
    Figure("longest pause: writes and checkpoints at 1 M", "bench.engine pauses", "checkpoint_ms", "ms", 10),
    Figure("longest pause: cap takes 1 M away", "bench.engine pauses", "evict_ms", "ms", 10),
    Figure("longest pause: delete by tag of 1 M", "bench.engine pauses", "delete_ms", "ms", 10),
    Figure("append at 10 M records against 1 k", "bench.engine depth", "ratio", "", 1.3),
    Figure("append with 100 k topics against 1", "bench.engine width", "ratio", "", 1.3),
]


def _wire(name: str, program: str, key: str, unit: str = "/s", *, has_ceiling: bool = False) -> list[Figure]:
    """A rate over the wire, what a record takes of the processor on either side, and the most that its client can."""
    figures = [
        Figure(name, program, f"{key}_per_s", unit, None, "higher"),
        Figure("… CPU of the server per record", program, f"{key}_server_us", "µs", None),
        Figure("… CPU of the client per record", program, f"{key}_client_us", "µs", None),
    ]
    ceiling = Figure("… same client, null server", program, f"{key}_ceiling_per_s", unit, None, "higher")
    return [*figures, ceiling] if has_ceiling else figures


def _beside_redis(ours: tuple[str, str], redis: tuple[str, str], target: float, unit: str = "/s") -> list[Figure]:
    """Name and key of ours and of theirs, each with its costs, and the ratio of the rates."""
    return [
        *_wire(*_named(ours), unit, has_ceiling=True),
        *_wire(*_named(redis), unit),
        Figure("… ratio", "bench.server", f"{ours[1]}_ratio", "", target, "higher"),
    ]


def _named(name_and_key: tuple[str, str]) -> tuple[str, str, str]:
    name, key = name_and_key
    return name, "bench.server", key


SERVER = [
    *_beside_redis(
        ("one record per POST, 64 connections, disk", "single"), ("Redis XADD, everysec", "redis_single"), 0.8
    ),
    *_beside_redis(
        ("one record per POST, 64 connections, fsync", "fsync"), ("Redis XADD, always", "redis_always"), 0.8
    ),
    *_beside_redis(
        ("100 records per POST, 16 connections", "batch"),
        ("Redis XADD, 100 pipelined", "redis_batch"),
        2.5,
        "records/s",
    ),
    *_beside_redis(
        ("diff of 1000, 16 connections", "diff"), ("Redis XRANGE COUNT 1000", "redis_diff"), 3.0, "records/s"
    ),
    Figure("p99 of a lone write, disk", "bench.server", "lone_disk_ms", "ms", 1.0),
    Figure("p99 of a lone write, fsync, in fdatasyncs", "bench.server", "lone_fsyncs", "", 3.0),
    Figure("median fdatasync after a small write", "bench.server", "fdatasync_ms", "ms", None),
]


def _connections() -> list[Figure]:
    """Each step: ours, its ceiling, Redis, the ratio."""
    steps = {
        "c1": "1 connection",
        "c16": "16 connections",
        "c256": "256 connections",
        "t1": "64 connections, 1 topic",
        "t1000": "64 connections, 1,000 topics",
    }
    figures = []
    for key, title in steps.items():
        figures += _wire(f"one record per POST, {title}", "bench.connections", key)
        figures.append(_rate(f"null server, {title}", "bench.connections", f"{key}_ceiling_per_s"))
        figures += _wire(f"Redis XADD, {title}".replace("topic", "stream"), "bench.connections", f"redis_{key}")
        figures.append(Figure("… ratio to Redis", "bench.connections", f"{key}_ratio", "", None, "higher"))
    ratio = Figure("1,000 topics against 1", "bench.connections", "topics_ratio", "", None, "higher")
    return [*figures, ratio]


def _rate(name: str, program: str, key: str, unit: str = "/s") -> Figure:
    return Figure(name, program, key, unit, None, "higher")


CONNECTIONS = _connections()

LOGS = {
    "disk": "ours, disk",
    "fsync": "ours, fsync",
    "redis": "Redis stream, everysec",
    "redis_always": "Redis stream, always",
    "jetstream": "NATS JetStream, file",
    "postgres": "PostgreSQL, synchronous_commit off",
    "postgres_synced": "PostgreSQL, synchronous_commit on",
    "rabbitmq": "RabbitMQ stream",
    "durable": "Durable Streams on Node.js",
    "null": "null server",
}
APPENDS = [
    figure
    for key, system in LOGS.items()
    for figure in (
        *_wire(f"append, 64 writers: {system}", "bench.appends", key),
        Figure("… p50 of an append", "bench.appends", f"{key}_p50_ms", "ms", None),
        Figure("… p99 of an append", "bench.appends", f"{key}_p99_ms", "ms", None),
    )
]

KINDS = {
    "write": "a write",
    "delivery": "a delivery over SSE",
    "read": "a read of 100",
    "put": "8 jobs put",
    "claim": "a claim of 8",
    "ack": "an ack of 8",
}
PERCENTILES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
NULL_SHOWN = {kind: () if kind == "delivery" else ("p50", "p99") for kind in KINDS}  # nobody watches the null server
MIXED = [
    *(
        Figure(f"mixed load, {shown} of {title}", "bench.mixed", f"ours_{kind}_{key}_ms", "ms", None)
        for kind, title in KINDS.items()
        for key, shown in PERCENTILES.items()
    ),
    Figure("… CPU of the server", "bench.mixed", "ours_server_cpu", "cores", None),
    Figure("… CPU of the two client processes", "bench.mixed", "ours_client_cpu", "cores", None),
    *(
        Figure(f"same client, null server: {key} of {title}", "bench.mixed", f"null_{kind}_{key}_ms", "ms", None)
        for kind, title in KINDS.items()
        for key in NULL_SHOWN[kind]
    ),
]

ROOMS = {
    "others": "others only",
    "all": "everybody",
    "nchan": "nchan",
    "null": "null hub",
}
ROOM_SIZES = (10, 20, 40, 60, 100, 150)
ROOM = [
    *(
        Figure(
            f"participants of an audio room, hearing {title}" if key in ("others", "all") else f"… {title}",
            "bench.room",
            f"{key}_held",
            "",
            40 if key == "others" else None,
            "higher",
        )
        for key, title in ROOMS.items()
    ),
    *(
        figure
        for key, title in ROOMS.items()
        for size in ROOM_SIZES
        for figure in (
            Figure(f"room of {size}, {title}: p99", "bench.room", f"{key}_{size}_p99_ms", "ms", None),
            *(
                Figure(f"… {shown}", "bench.room", f"{key}_{size}_{name}", unit, None)
                for name, shown, unit in (
                    ("lost", "records lost", ""),
                    ("p50_ms", "p50", "ms"),
                    ("server_cpu", "CPU of the server", "cores"),
                    ("client_cpu", "CPU of the client", "cores"),
                )
                if size in (40, 100)
            ),
        )
    ),
]

CHURN = [
    *_wire("batches of 100, no limits", "bench.churn", "plain", "records/s"),
    *_wire("batches of 100, cap of 10,000 records", "bench.churn", "cap", "records/s"),
    Figure("… CPU of the server against no limits", "bench.churn", "cap_ratio", "", None),
    Figure("… disk in use after a stop", "bench.churn", "cap_disk_mib", "MiB", None),
    *_wire("batches of 100, TTL of 0.5 s", "bench.churn", "ttl", "records/s"),
    Figure("… CPU of the server against no limits", "bench.churn", "ttl_ratio", "", None),
    Figure("… disk in use after a stop", "bench.churn", "ttl_disk_mib", "MiB", None),
]

TAGS = [
    Figure("first delete by tag at 1 M tags", "bench.growth tags", "first_ms", "ms", None),
    Figure("delete by one tag at 1 M tags: p50", "bench.growth tags", "one_p50_us", "µs", None),
    Figure("… p99", "bench.growth tags", "one_p99_us", "µs", None),
    Figure("delete by prefix, 1,000 of 1 M tags: p50", "bench.growth tags", "prefix_p50_us", "µs", None),
    Figure("delete by prefix of all that is left, per record", "bench.growth tags", "rest_ns", "ns", None),
]

RECOVERY = [
    figure
    for key, size in (("1m", "1 M"), ("10m", "10 M"))
    for figure in (
        Figure(f"kill -9, start to ready, {size} records", f"bench.recovery {key}", "ready_s", "s", None),
        Figure("… CPU", f"bench.recovery {key}", "cpu_s", "s", None),
        Figure("… rate", f"bench.recovery {key}", "records_per_s", "records/s", None, "higher"),
        Figure("… memory after it", f"bench.recovery {key}", "resident_mib", "MiB", None),
    )
]
RECOVERY = [
    *(figure._replace(is_long=figure.program.endswith("10m")) for figure in RECOVERY),
    Figure(
        "replay of records that came one per POST, 64 connections",
        "bench.recovery posted",
        "replayed_per_s",
        "records/s",
        1_000_000,
        "higher",
    ),
    Figure("CPU of a restart with 100,000 topics", "bench.recovery topics", "cpu_s", "s", 1.5),
    Figure("… until ready", "bench.recovery topics", "ready_s", "s", None),
    Figure("memory with 2 M records of 200 B in batches, not read", "bench.recovery memory", "resident_mb", "MB", 300),
]

GROWN = {
    "append_us": ("an append", "bench.growth records", "records"),
    "read_us": ("a read of 100 near the end", "bench.growth records", "records"),
    "work_us": ("a claim of 8 and its ack", "bench.growth records", "records"),
    "delete_us": ("a delete by one tag", "bench.growth records", "records"),
    "topic_append_us": ("an append to any topic", "bench.growth topics", "topics"),
    "topic_read_us": ("a read of any topic", "bench.growth topics", "topics"),
}
GROWTH_SIZES = {
    "records": {1: "10 k", 10: "100 k", 100: "1 M"},
    "topics": {1: "100", 10: "1 k", 100: "10 k"},
}
GROWTH = [
    figure
    for key, (title, program, what) in GROWN.items()
    for figure in (
        *(
            Figure(f"CPU of {title}, {size} {what}", program, f"{key}_{times}", "µs", None)
            for times, size in GROWTH_SIZES[what].items()
        ),
        Figure("… 100 times the size against 1", program, f"{key}_ratio", "", None),
    )
]

STREAMS = {
    "sse": "our SSE",
    "nchan_sse": "nchan SSE",
    "ws": "our WebSocket",
    "nchan_ws": "nchan WebSocket",
    "nats": "NATS",
    "durable": "Durable Streams SSE",
    "null": "null hub",
}


def _latency(watchers: int) -> list[Figure]:
    """Of one number of watchers. Each way is followed by its peer and their ratio."""
    program, title = "bench.live latency", f"{watchers:,} watcher{'s' * (watchers > 1)}, 50 writes/s"
    figures = []
    for key, stream in STREAMS.items():
        figures.append(Figure(f"{title}: p50, {stream}", program, f"{key}_{watchers}_p50_ms", "ms", None))
        figures.append(Figure(f"{title}: p99, {stream}", program, f"{key}_{watchers}_p99_ms", "ms", None))
        if key.startswith("nchan_"):
            ratio = key.removeprefix("nchan_") + f"_{watchers}_{{}}_ratio"
            lone = 1.5 if key == "nchan_sse" and watchers == 1 else None
            figures.append(Figure("… ratio of the p50 to nchan's", program, ratio.format("p50"), "", lone))
            target = 1.2 if watchers == 100 else 1.0
            figures.append(Figure("… ratio of the p99 to nchan's", program, ratio.format("p99"), "", target))
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
        figures.append(Figure(f"… CPU of the server per delivery, {stream}", program, f"{key}_server_us", "µs", None))
        figures.append(Figure(f"… CPU of the watchers' process, {stream}", program, f"{key}_client_cpu", "cores", None))
    return figures


LIVE = [
    *_latency(1),
    *_latency(100),
    *_latency(1000),
    *(
        figure
        for key, stream in STREAMS.items()
        for figure in (
            Figure(
                f"… CPU of the watchers' process at 1,000, {stream}",
                "bench.live latency",
                f"{key}_1000_client_cpu",
                "cores",
                None,
            ),
            Figure(
                f"… CPU of the server per delivery at 1,000, {stream}",
                "bench.live latency",
                f"{key}_1000_server_us",
                "µs",
                None,
            ),
        )
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
    "jetstream": "NATS JetStream, file",
    "postgres": "PostgreSQL, deleting",
    "postgres_lease": "PostgreSQL, leasing",
    "fsync": "our fsync queue",
    "redis_always": "Redis stream, always",
    "beanstalkd_always": "beanstalkd -b -f0",
    "jitter": "our disk queue, jitter 5 ms",
    "null": "null server",
}
QUEUES = [
    *(
        figure
        for key, system in QUEUE_SYSTEMS.items()
        for figure in (
            Figure(f"claim 8 and ack, 50 workers: {system}", "bench.queues", f"{key}_per_s", "jobs/s", None, "higher"),
            Figure("… CPU of the server per job", "bench.queues", f"{key}_server_us", "µs", None),
            Figure("… CPU of the clients per job", "bench.queues", f"{key}_client_us", "µs", None),
            Figure("… p50 of a claim", "bench.queues", f"{key}_p50_ms", "ms", None),
            Figure("… p99 of a claim", "bench.queues", f"{key}_p99_ms", "ms", None),
            Figure("… CPU of the two client processes", "bench.queues", f"{key}_client_cpu", "cores", None),
        )
    ),
    Figure("jobs/s, disk: ratio to Redis, everysec", "bench.queues", "disk_to_redis", "", 0.8, "higher"),
    Figure("… to beanstalkd -b", "bench.queues", "disk_to_beanstalkd", "", 1.0, "higher"),
    Figure("… to NATS JetStream", "bench.queues", "disk_to_jetstream", "", None, "higher"),
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
    *(
        figure
        for count in (1, 10, 100, 1000)
        for figure in (
            _rate(f"copies by {count:,} routers of one source", "bench.routers growth", f"copies_per_s_{count}"),
            Figure("… CPU of the server per copy", "bench.routers growth", f"copy_us_{count}", "µs", None),
            Figure("… p50 of the source's ack, 100 records", "bench.routers growth", f"ack_p50_ms_{count}", "ms", None),
        )
    ),
    Figure("CPU per copy, 1,000 routers against 1", "bench.routers growth", "copy_us_ratio", "", None),
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
    Figure(
        "topics.spark.table, 95 % in the lake, the rest sealed, over HTTP",
        "bench.spark",
        "table_per_s",
        "rows/s",
        None,
        "higher",
    ),
    Figure("… spark.read.parquet of the same rows, zstd", "bench.spark", "beside_per_s", "rows/s", None, "higher"),
    Figure("… ratio", "bench.spark", "table_to_parquet", "", 0.9, "higher"),
    Figure("… the rest just written: ratio", "bench.spark", "fresh_table_to_parquet", "", None, "higher"),
    Figure("scan over HTTP, 2 partitions", "bench.spark", "http_per_s", "rows/s", 400_000, "higher"),
    Figure("sink, 8 partitions", "bench.spark", "sink_per_s", "rows/s", 300_000, "higher"),
    Figure("… CPU of the server per row", "bench.spark", "sink_server_us", "µs", None),
    Figure("… CPU of Spark and its workers per row", "bench.spark", "sink_spark_us", "µs", None),
    Figure("… ratio to Spark's null sink", "bench.spark", "sink_to_null", "", None, "higher"),
    Figure("archive", "bench.spark", "archive_per_s", "rows/s", 250_000, "higher"),
    Figure("import of NDJSON", "bench.spark", "import_per_s", "rows/s", 250_000, "higher"),
    Figure("replay of a lake", "bench.spark", "replay_per_s", "rows/s", 250_000, "higher"),
    Figure("2 cores against 1: scan from segments", "bench.spark", "segments_cores_ratio", "", None, "higher"),
    Figure("… scan over HTTP", "bench.spark", "http_cores_ratio", "", None, "higher"),
    Figure("… sink", "bench.spark", "sink_cores_ratio", "", 1.5, "higher"),
    Figure("… sink, the server on the same core or cores", "bench.spark", "sink_pinned_ratio", "", 1.5, "higher"),
    Figure("start of a session with its first query", "bench.spark", "startup_s", "s", None),
    Figure("memory of the JVM at most", "bench.spark", "jvm_mib", "MiB", None),
    Figure("memory of a Python worker at most", "bench.spark", "worker_mib", "MiB", None),
    *_beside_kafka(),
]

SECTIONS = {
    "engine": ENGINE,
    "server": SERVER,
    "connections": CONNECTIONS,
    "appends": APPENDS,
    "mixed": MIXED,
    "room": ROOM,
    "churn": CHURN,
    "tags": TAGS,
    "recovery": RECOVERY,
    "growth": GROWTH,
    "live": LIVE,
    "queues": QUEUES,
    "routers": ROUTERS,
    "spark": SPARK,
}
