"""Figures of queues beside Redis, beanstalkd, NATS and PostgreSQL. `python -m bench.queues [--quick]` prints JSON.

Every queue is filled, then emptied by 50 workers on kept connections in two
processes, each claiming 8 jobs and acking them. All servers are up at once, on
loopback, with their files side by side; one queue is worked at after the other.
The last is a server that does nothing: more jobs than there the workers cannot do.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench import peers
from bench.peers import Peer
from bench.processes import Load, tree_cpu_seconds
from bench.systems.jobs import (
    FILL,
    Beanstalk,
    Done,
    JetStreamQueue,
    NullQueue,
    PostgresDelete,
    PostgresLease,
    Queue,
    RedisStream,
    TopicsQueue,
    null_answers,
)
from bench.wire import null
from bench.wire.epoll import FORK, converse, in_processes, latency_of
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
    names = [f"w{number}-{index}" for index in range(len(done))]
    conversations = [(queue.connect(name), queue.work(name, mine)) for name, mine in zip(names, done, strict=True)]
    ready()
    started, cpu_s = time.monotonic(), time.process_time()
    converse(conversations)
    return Share(started, time.monotonic(), time.process_time() - cpu_s, done)


def drained(name: str, queue: Queue, peer: Peer, jobs: int) -> dict[str, float]:
    """Fill the queue and have it emptied; once before, with a few jobs, to warm up."""
    queue.fill(FILL)
    in_processes(PROCESSES, lambda number, ready: work(queue, number, ready))
    queue.fill(jobs)
    server_s = tree_cpu_seconds(peer.pid)
    shares = in_processes(PROCESSES, lambda number, ready: work(queue, number, ready))
    server_s = tree_cpu_seconds(peer.pid) - server_s
    done = [worker for share in shares for worker in share.done]
    counts = [worker.jobs for worker in done]
    if sum(counts) != jobs:
        raise RuntimeError(f"{name}: {sum(counts)} of {jobs} jobs were done")
    claims = latency_of([claim for worker in done for claim in worker.claims_ns])
    seconds = max(share.ended for share in shares) - min(share.started for share in shares)
    return {
        **Load(jobs, seconds, server_s, sum(share.cpu_s for share in shares)).figures(name),
        f"{name}_p50_ms": claims.p50_ms,
        f"{name}_p99_ms": claims.p99_ms,
        f"{name}_cv": statistics.pstdev(counts) / statistics.mean(counts),
    }


@contextmanager
def systems(directory: Path) -> Iterator[dict[str, tuple[Queue, Peer]]]:
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(ServerProcess(directory / "topics"))
        ours = Peer(server.address, server.pid)
        redis = enter(peers.redis(directory / "redis"))
        redis_always = enter(peers.redis(directory / "redis-always", "always"))
        beanstalkd = enter(peers.beanstalkd(directory / "beanstalkd"))
        beanstalkd_always = enter(peers.beanstalkd(directory / "beanstalkd-always", "-f0"))
        nats = enter(peers.nats(directory / "nats", is_jetstream=True))
        postgres = enter(peers.postgres(directory / "postgres"))
        owed = FORK.RawValue("Q", 0)
        nothing = enter(null.constant(null_answers(ours.address, "null", owed)))
        yield {
            "disk": (TopicsQueue(ours.address, "disk", durability="disk"), ours),
            "redis": (RedisStream(redis.address), redis),
            "beanstalkd": (Beanstalk(beanstalkd.address), beanstalkd),
            "jetstream": (JetStreamQueue(nats.address), nats),
            "postgres": (PostgresDelete(postgres.address, "jobs"), postgres),
            "postgres_lease": (PostgresLease(postgres.address, "leased"), postgres),
            "fsync": (TopicsQueue(ours.address, "fsync", durability="fsync"), ours),
            "redis_always": (RedisStream(redis_always.address), redis_always),
            "beanstalkd_always": (Beanstalk(beanstalkd_always.address), beanstalkd_always),
            "jitter": (TopicsQueue(ours.address, "jitter", durability="disk", claim_jitter_ms=JITTER_MS), ours),
            "null": (NullQueue(nothing.address, "null", owed), nothing),
        }


def measure(directory: Path, jobs: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with systems(directory) as found:
        for name, (queue, peer) in found.items():
            figures |= drained(name, queue, peer, jobs)
    for other in ("redis", "beanstalkd", "jetstream", "postgres", "postgres_lease"):
        figures[f"disk_to_{other}"] = figures["disk_per_s"] / figures[f"{other}_per_s"]
    for other in ("disk", "redis_always", "beanstalkd_always"):
        figures[f"fsync_to_{other}"] = figures["fsync_per_s"] / figures[f"{other}_per_s"]
    return figures


def main() -> None:
    peers.require("redis-server", "beanstalkd", "nats-server", "initdb", "postgres", "pg_isready")
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), QUICK_JOBS if "--quick" in sys.argv else JOBS)))


if __name__ == "__main__":
    main()
