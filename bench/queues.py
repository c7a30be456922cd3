"""Figures of queues beside Redis, beanstalkd and PostgreSQL. `python -m bench.queues [--quick]` prints one JSON object.

Every queue is filled, then emptied by 50 workers on kept connections in two
processes, each claiming 8 jobs and acking them. All servers are up at once, on
loopback, with their files side by side; one queue is worked at after the other.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench import peers
from bench.systems.jobs import FILL, Beanstalk, Done, PostgresDelete, PostgresLease, Queue, RedisStream, TopicsQueue
from bench.wire.epoll import converse, in_processes, latency_of
from topics.testing.server import ServerProcess

WORKERS: Final = 50
PROCESSES: Final = 2
JOBS: Final = 20_000
QUICK_JOBS: Final = 2_000
JITTER_MS: Final = 5


class Share(NamedTuple):
    """What one process of workers has done."""

    started: float
    ended: float
    cpu_s: float
    done: list[Done]


def work(queue: Queue, number: int, ready: Callable[[], object]) -> Share:
    done = [Done() for _ in range(number, WORKERS, PROCESSES)]
    workers = [queue.work(f"w{number}-{index}", mine) for index, mine in enumerate(done)]
    conversations = [(queue.connect(), worker) for worker in workers]
    ready()
    started, cpu_s = time.monotonic(), time.process_time()
    converse(conversations)
    return Share(started, time.monotonic(), time.process_time() - cpu_s, done)


def drained(name: str, queue: Queue, jobs: int) -> dict[str, float]:
    """Fill the queue and have it emptied; once before, with a few jobs, to warm up."""
    queue.fill(FILL)
    in_processes(PROCESSES, lambda number, ready: work(queue, number, ready))
    queue.fill(jobs)
    shares = in_processes(PROCESSES, lambda number, ready: work(queue, number, ready))
    done = [worker for share in shares for worker in share.done]
    counts = [worker.jobs for worker in done]
    if sum(counts) != jobs:
        raise RuntimeError(f"{name}: {sum(counts)} of {jobs} jobs were done")
    claims = latency_of([claim for worker in done for claim in worker.claims_ns])
    seconds = max(share.ended for share in shares) - min(share.started for share in shares)
    return {
        f"{name}_per_s": jobs / seconds,
        f"{name}_p50_ms": claims.p50_ms,
        f"{name}_p99_ms": claims.p99_ms,
        f"{name}_cv": statistics.pstdev(counts) / statistics.mean(counts),
        f"{name}_client_cpu": sum(share.cpu_s for share in shares) / seconds,
    }


def measure(directory: Path, jobs: int) -> dict[str, float]:
    with ExitStack() as stack:
        ours = stack.enter_context(ServerProcess(directory / "topics")).address
        redis = stack.enter_context(peers.redis(directory / "redis")).address
        redis_always = stack.enter_context(peers.redis(directory / "redis-always", "always")).address
        beanstalkd = stack.enter_context(peers.beanstalkd(directory / "beanstalkd")).address
        beanstalkd_always = stack.enter_context(peers.beanstalkd(directory / "beanstalkd-always", "-f0")).address
        postgres = stack.enter_context(peers.postgres(directory / "postgres")).address
        queues = {
            "disk": TopicsQueue(ours, "disk", durability="disk"),
            "redis": RedisStream(redis),
            "beanstalkd": Beanstalk(beanstalkd),
            "postgres": PostgresDelete(postgres, "jobs"),
            "postgres_lease": PostgresLease(postgres, "leased"),
            "fsync": TopicsQueue(ours, "fsync", durability="fsync"),
            "redis_always": RedisStream(redis_always),
            "beanstalkd_always": Beanstalk(beanstalkd_always),
            "jitter": TopicsQueue(ours, "jitter", durability="disk", claim_jitter_ms=JITTER_MS),
        }
        figures: dict[str, float] = {}
        for name, queue in queues.items():
            figures |= drained(name, queue, jobs)
    for peer in ("redis", "beanstalkd", "postgres", "postgres_lease"):
        figures[f"disk_to_{peer}"] = figures["disk_per_s"] / figures[f"{peer}_per_s"]
    for peer in ("disk", "redis_always", "beanstalkd_always"):
        figures[f"fsync_to_{peer}"] = figures["fsync_per_s"] / figures[f"{peer}_per_s"]
    return figures


def main() -> None:
    peers.require("redis-server", "beanstalkd", "initdb", "postgres", "pg_isready")
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), QUICK_JOBS if "--quick" in sys.argv else JOBS)))


if __name__ == "__main__":
    main()
