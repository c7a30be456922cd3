"""Single writes by the number of connections and of topics. `python -m bench.connections [--quick]` prints JSON.

wrk POSTs one record per request; redis-benchmark does the same to Redis with XADD. Each step has a ceiling: wrk with as
many connections against a server that does nothing but give the same answer.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench import peers
from bench.peers import Peer
from bench.server import DATA, ONE, Redis
from bench.wire import http, wrk
from topics.testing.server import ServerProcess

CONNECTIONS: Final = (1, 16, 256)
TOPICS: Final = (1, 1000)
TOPICS_CONNECTIONS: Final = 64
SECONDS: Final = 2  # wrk takes whole ones
QUICK_SECONDS: Final = 1
REDIS_COUNTS: Final = {1: 30_000, 16: 120_000, 64: 150_000, 256: 150_000}


def path_of(topic: str) -> str:
    return f"/v0/topics/{topic}?return_seqs=false"


class Compared:
    """Ours and Redis, driven in turn."""

    def __init__(self, ours: Peer, redis: Peer, directory: Path, seconds: int, effort: float) -> None:
        self._ours, self._redis = ours, Redis(redis)
        self._directory, self._seconds, self._effort = directory, seconds, effort

    def step(self, key: str, connections: int, topics: list[str]) -> dict[str, float]:
        paths, keys = [path_of(topic) for topic in topics], len(topics)
        figures = wrk.drive(self._ours, paths, ONE, connections, self._seconds, self._directory).figures(key)
        ceiling = wrk.ceiling(self._ours, paths, ONE, connections, 1, self._directory)
        figures[f"{key}_ceiling_per_s"] = ceiling.per_s
        count = int(REDIS_COUNTS[connections] * self._effort)
        stream = f"{key}-__rand_int__" if keys > 1 else key
        redis = self._redis.drive("XADD", stream, "*", "data", DATA, connections=connections, count=count, keys=keys)
        figures |= redis.figures(f"redis_{key}")
        figures[f"{key}_ratio"] = figures[f"{key}_per_s"] / figures[f"redis_{key}_per_s"]
        return figures


def measure(directory: Path, seconds: int, effort: float) -> dict[str, float]:
    with ServerProcess(directory / "topics") as server, peers.redis(directory / "redis") as redis:
        compared = Compared(Peer(server.address, server.pid), redis, directory, seconds, effort)
        names = [f"topic-{number}" for number in range(max(TOPICS))]
        for name in names:
            http.ask(server.address, "PUT", f"/v0/topics/{name}")
        figures: dict[str, float] = {}
        for connections in CONNECTIONS:
            figures |= compared.step(f"c{connections}", connections, names[:1])
        for topics in TOPICS:
            figures |= compared.step(f"t{topics}", TOPICS_CONNECTIONS, names[:topics])
    figures["topics_ratio"] = figures["t1000_per_s"] / figures["t1_per_s"]
    return figures


def main() -> None:
    peers.require("wrk", "redis-server", "redis-benchmark")
    peers.end_on_signals()
    is_quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as directory:
        place = Path(directory).absolute()
        print(json.dumps(measure(place, QUICK_SECONDS if is_quick else SECONDS, 0.02 if is_quick else 1.0)))


if __name__ == "__main__":
    main()
