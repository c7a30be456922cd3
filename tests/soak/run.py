"""A soak: a server process under a mixed load for some time, and what it uses, sampled every few seconds.

Owns the process, the samples and the words at the end. What is done is up to `load`, what is flat to `verdict`.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.soak.load import Load
from tests.soak.verdict import MIB, Sample, Verdict
from topics.clock import SystemClock
from topics.testing.server import ServerProcess

ENVIRON = {
    "TOPICS_CACHE_BYTES": str(16 * MIB),
    "TOPICS_SEGMENT_MAX_AGE_MS": "5000",  # checkpoints come often, so that disk and memory turn over in a short run
    "TOPICS_LOG_LEVEL": "warning",
}


@dataclass
class Soak:
    samples: list[Sample]
    counts: dict[str, int]
    output: str  # of the server

    @property
    def writes(self) -> int:
        return sum(sample.writes for sample in self.samples)


def soaked(directory: Path, seed: int, every_s: float, is_over: Callable[[list[Sample], dict[str, int]], bool]) -> Soak:
    """Run until `is_over`, which is asked after each sample; the server must end well."""
    with ServerProcess(directory, ENVIRON) as server:
        load = Load("http://{}:{}".format(*server.address), seed)
        samples = asyncio.run(_run(server, load, every_s, is_over))
        code = server.stop()
        assert code == 0, f"SIGTERM ended the server with {code}"
        return Soak(samples, dict(load.counts), server.output)


async def _run(
    server: ServerProcess, load: Load, every_s: float, is_over: Callable[[list[Sample], dict[str, int]], bool]
) -> list[Sample]:
    clock, stop, samples = SystemClock(), asyncio.Event(), list[Sample]()
    started = clock.monotonic()

    async def sampling() -> None:
        while not is_over(samples, load.counts):
            await asyncio.sleep(every_s)
            samples.append(sample(server, clock.monotonic() - started, load.take_latencies()))
        stop.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(stop))
        group.create_task(sampling())
    return samples


def sample(server: ServerProcess, at_s: float, latencies_ms: list[float]) -> Sample:
    """What the server uses now, and the latencies since the sample before."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
    memory_bytes = int(status["RssAnon"].split()[0]) * 1024
    p99 = quantiles(latencies_ms, n=100)[98] if len(latencies_ms) > 1 else 0.0
    return Sample(
        at_s,
        memory_bytes,
        len(os.listdir(f"/proc/{server.pid}/fd")),
        int(status["Threads"]),
        disk_bytes(server.data),
        len(latencies_ms),
        median(latencies_ms) if latencies_ms else 0.0,
        p99,
        max(latencies_ms, default=0.0),
    )


def disk_bytes(directory: Path) -> int:
    """The space that its files take; they come and go meanwhile."""
    taken = 0
    for name in os.listdir(directory):
        try:
            taken += (directory / name).stat().st_blocks * 512
        except FileNotFoundError:
            pass
    return taken


def said(verdict: Verdict) -> str:
    unit, size = ("MiB", MIB) if verdict.name.endswith("_bytes") else ("", 1)
    name = verdict.name.removesuffix("_bytes")
    word = "flat" if verdict.is_flat else "NOT FLAT"
    rise, allowed = verdict.rise / size, verdict.allowed / size
    return f"{name:<12} {word}: {verdict.median / size:.1f} {unit}, {rise:+.1f} by its slope, {allowed:.1f} allowed"
