"""One record per request at each log, by the same client. `python -m bench.appends [--quick]` prints one JSON object.

64 writers on kept connections, on one epoll loop in a process of its own, each waiting for its acknowledgement. All
servers are up at once, on loopback, with their files side by side; one is written to after the other. The client is
Python and takes a core to itself: what a server could do with more clients is not seen here, what it needs of the
processor for a record is. Peers that are not installed are left out.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import peers
from bench.peers import Peer
from bench.processes import Load, tree_cpu_seconds
from bench.systems.logs import DurableStream, JetStream, Log, NullLog, PostgresTable, RedisLog, TopicsLog, null_answers
from bench.systems.rabbit import RabbitStream
from bench.wire import null
from bench.wire.epoll import Latency, converse, in_processes, latency_of
from topics.testing.server import ServerProcess

WRITERS: Final = 64
SECONDS: Final = 2.0
QUICK_SECONDS: Final = 0.3
WARM_S: Final = 0.3

Logs = dict[str, tuple[Log, Peer]]


def write(log: Log, seconds: float, ready: Callable[[], object]) -> tuple[Latency, int, float, float]:
    """For so long; the times, how many, seconds and CPU of this process."""
    times: list[int] = []
    connections = [log.connect(number) for number in range(WRITERS)]
    ready()
    started, cpu_s = time.monotonic(), time.process_time()
    ending = started + seconds
    converse([(one, log.write(number, ending, times)) for number, one in enumerate(connections)])
    elapsed, cpu_s = time.monotonic() - started, time.process_time() - cpu_s
    for connection in connections:
        connection.close()
    return latency_of(times), len(times), elapsed, cpu_s


def appended(key: str, log: Log, peer: Peer, seconds: float) -> dict[str, float]:
    in_processes(1, lambda _, ready: write(log, min(seconds, WARM_S), ready))
    server_s = tree_cpu_seconds(peer.pid)
    ((latency, count, elapsed, client_s),) = in_processes(1, lambda _, ready: write(log, seconds, ready))
    load = Load(count, elapsed, tree_cpu_seconds(peer.pid) - server_s, client_s)
    return load.figures(key) | {f"{key}_p50_ms": latency.p50_ms, f"{key}_p99_ms": latency.p99_ms}


@contextmanager
def logs(directory: Path) -> Iterator[Logs]:
    """Those that are there."""
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(ServerProcess(directory / "topics"))
        ours = Peer(server.address, server.pid)
        disk = TopicsLog(ours.address, "disk", "disk")
        found: Logs = {"disk": (disk, ours)}
        found["fsync"] = TopicsLog(ours.address, "fsync", "fsync"), ours
        if peers.has("redis-server"):
            for key, policy in (("redis", "everysec"), ("redis_always", "always")):
                peer = enter(peers.redis(directory / key, policy))
                found[key] = RedisLog(peer.address), peer
        if peers.has("nats-server"):
            peer = enter(peers.nats(directory / "nats", is_jetstream=True))
            found["jetstream"] = JetStream(peer.address), peer
        if peers.has("initdb", "postgres", "pg_isready"):
            peer = enter(peers.postgres(directory / "postgres"))
            found["postgres"] = PostgresTable(peer.address, "written", False), peer
            found["postgres_synced"] = PostgresTable(peer.address, "synced", True), peer
        if peers.has_durable_streams():
            peer = enter(peers.durable_streams(directory / "durable"))
            found["durable"] = DurableStream(peer.address), peer
        if peers.has_rabbitmq():
            peer = enter(peers.rabbitmq(directory / "rabbitmq"))
            found["rabbitmq"] = RabbitStream(peer.address), peer
        nothing = enter(null.constant(null_answers(disk)))
        found["null"] = NullLog(nothing.address, "disk"), nothing
        yield found


def measure(directory: Path, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    with logs(directory) as found:
        for key, (log, peer) in found.items():
            figures |= appended(key, log, peer, seconds)
    return figures


def main() -> None:
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), QUICK_SECONDS if "--quick" in sys.argv else SECONDS)))


if __name__ == "__main__":
    main()
