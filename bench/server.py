"""Figures of the server beside Redis. `python -m bench.server [--quick]` prints one JSON object.

Both run on loopback in one go, one after the other in each round, with the
same payload and number of connections: wrk drives the server, redis-benchmark
drives Redis. Beside each rate is the processor time that a request took on
either side, and what wrk reaches against a server that does nothing but give
the same answers. `make bench-peers` installs both from Debian.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench import peers
from bench.peers import Peer
from bench.processes import Load, own_cpu_seconds, tree_cpu_seconds
from bench.wire import http, wrk
from topics.testing.server import ServerProcess

DATA: Final = '{"sku":"AEROPRESS-GO","qty":1,"total":3499,"customer":"c-123456","note":"' + "x" * 125 + '"}'
ONE: Final = '{"records":[{"data":' + DATA + "}]}"
HUNDRED: Final = '{"records":[' + ",".join(['{"data":' + DATA + "}"] * 100) + "]}"
DIFF: Final = '{"from_seq":1000,"limit":1000}'
SECONDS: Final = 4  # wrk takes whole ones
QUICK_SECONDS: Final = 1
CEILING_S: Final = 2  # at most: a ceiling is shown for comparison only
LONE_WRITES: Final = 3000
FSYNCS: Final = 500


class Bench:
    """A server under test, asked through wrk or a socket."""

    def __init__(self, server: ServerProcess, directory: Path, seconds: int = SECONDS) -> None:
        self.peer = Peer(server.address, server.pid)
        self._directory, self._seconds = directory, seconds

    def wrk(self, path: str, body: str, connections: int) -> Load:
        """POSTs with `body`, as fast as wrk has them answered."""
        return wrk.drive(self.peer, [path], body, connections, self._seconds, self._directory)

    def measured(self, key: str, path: str, body: str, connections: int, scale: int = 1) -> dict[str, float]:
        """The figures of such POSTs with `scale` records each, and their ceiling."""
        figures = self.wrk(path, body, connections).figures(key, scale)
        seconds = min(self._seconds, CEILING_S)
        ceiling = wrk.ceiling(self.peer, [path], body, connections, seconds, self._directory)
        return figures | {f"{key}_ceiling_per_s": ceiling.per_s * scale}

    def lone_p99_ms(self, path: str, body: str, count: int = LONE_WRITES) -> float:
        """The 99th percentile of writes one after the other on one connection."""
        with http.connect(self.peer.address) as connection:
            request = http.request("POST", path, body.encode())
            times = []
            for _ in range(count):
                started = time.perf_counter()
                self._post(connection, request)
                times.append((time.perf_counter() - started) * 1000)
        return sorted(times[count // 10 :])[int(count * 0.9 * 0.99)]

    @staticmethod
    def _post(connection: socket.socket, request: bytes) -> None:
        connection.sendall(request)
        answer = connection.recv(65536)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer.decode(errors="replace"))


class Redis:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def drive(self, *command: str, connections: int, pipeline: int = 1, count: int = 200_000, keys: int = 1) -> Load:
        """The command so many times by redis-benchmark; `__rand_int__` in it is a number below `keys`."""
        server_s, client_s = tree_cpu_seconds(self._peer.pid), own_cpu_seconds()
        port = self._peer.address[1]
        done = subprocess.run(
            f"redis-benchmark -p {port} -c {connections} -P {pipeline} -n {count} -r {keys} --csv".split()
            + list(command),
            check=True,
            capture_output=True,
            text=True,
        )
        found = re.search(r'","(\d+\.\d+)"', done.stdout)
        assert found is not None, done.stdout
        server_s = tree_cpu_seconds(self._peer.pid) - server_s
        return Load(count, count / float(found[1]), server_s, own_cpu_seconds() - client_s)

    def set(self, name: str, value: str) -> None:
        port = str(self._peer.address[1])
        subprocess.run(["redis-cli", "-p", port, "config", "set", name, value], check=True, capture_output=True)


def fdatasync_ms(directory: Path, count: int = FSYNCS) -> float:
    """The median of fdatasync after a small write into a file that was filled with zeros."""
    path = directory / "synced"
    with path.open("wb+", buffering=0) as file:
        file.write(bytes(4 * 1024 * 1024))
        os.fsync(file.fileno())
        times = []
        for number in range(count):
            os.pwrite(file.fileno(), b"x" * 300, number * 300)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return sorted(times)[count // 2]


def measure(directory: Path, seconds: int, effort: float) -> dict[str, float]:
    """`effort` is the share of the usual number of requests, where these are counted."""

    def some(count: int) -> int:
        return int(count * effort)

    with ServerProcess(directory / "topics") as server, peers.redis(directory / "redis") as redis:
        bench = Bench(server, directory, seconds)
        peer = Redis(redis)
        for topic, durability in (("disk", "disk"), ("fsync", "fsync"), ("many", "disk")):
            http.ask(server.address, "PUT", f"/v0/topics/{topic}", {"durability": durability})
        xadd = ("*", "data", DATA)
        figures = bench.measured("single", "/v0/topics/disk?return_seqs=false", ONE, 64)
        figures |= peer.drive("XADD", "one", *xadd, connections=64, count=some(200_000)).figures("redis_single")
        figures |= bench.measured("batch", "/v0/topics/many?return_seqs=false", HUNDRED, 16, scale=100)
        figures |= peer.drive("XADD", "many", *xadd, connections=16, pipeline=100, count=some(1_000_000)).figures(
            "redis_batch"
        )
        figures |= bench.measured("diff", "/v0/topics/many/diff", DIFF, 16, scale=1000)
        figures |= peer.drive("XRANGE", "many", "-", "+", "COUNT", "1000", connections=16, count=some(6000)).figures(
            "redis_diff", scale=1000
        )
        figures["lone_disk_ms"] = bench.lone_p99_ms("/v0/topics/disk", ONE, some(LONE_WRITES))
        figures["lone_fsync_ms"] = bench.lone_p99_ms("/v0/topics/fsync", ONE, some(LONE_WRITES // 2))
        figures["fdatasync_ms"] = fdatasync_ms(directory, some(FSYNCS))
        figures |= bench.measured("fsync", "/v0/topics/fsync?return_seqs=false", ONE, 64)
        peer.set("appendfsync", "always")
        figures |= peer.drive("XADD", "always", *xadd, connections=64, count=some(100_000)).figures("redis_always")
    for ours, theirs in (("single", "single"), ("fsync", "always"), ("batch", "batch"), ("diff", "diff")):
        figures[f"{ours}_ratio"] = figures[f"{ours}_per_s"] / figures[f"redis_{theirs}_per_s"]
    figures["lone_fsyncs"] = figures["lone_fsync_ms"] / figures["fdatasync_ms"]
    return figures


def main() -> None:
    peers.require("wrk", "redis-server", "redis-benchmark", "redis-cli")
    peers.end_on_signals()
    is_quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as directory:
        figures = measure(Path(directory).absolute(), QUICK_SECONDS if is_quick else SECONDS, 0.02 if is_quick else 1.0)
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
