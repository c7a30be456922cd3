"""What is measured, and what is aimed for."""

from typing import Literal, NamedTuple


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

SECTIONS = {"engine": ENGINE, "server": SERVER}
