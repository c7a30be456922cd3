"""Figures of the server beside Redis. `python -m bench.server` prints one JSON object.

Both run on loopback in one go, one after the other in each round, with the
same payload and number of connections: wrk drives the server, redis-benchmark
drives Redis. `make bench-peers` installs both from Debian.
"""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench import peers
from topics.testing.server import ServerProcess

DATA = '{"sku":"AEROPRESS-GO","qty":1,"total":3499,"customer":"c-123456","note":"' + "x" * 125 + '"}'
SECONDS = 4
SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{body}]]
"""


class Bench:
    """A server under test, asked through wrk or a socket."""

    def __init__(self, server: ServerProcess, directory: Path) -> None:
        self._directory = directory
        self.host, self.port = server.address

    def wrk(self, path: str, body: str, connections: int, seconds: float = SECONDS) -> float:
        """Requests per second of POSTs with `body`."""
        script = self._directory / "post.lua"
        script.write_text(SCRIPT.format(body=body))
        url = f"http://{self.host}:{self.port}{path}"
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url],
            check=True,
            capture_output=True,
            text=True,
        )
        if "Non-2xx" in done.stdout:
            raise RuntimeError(f"the server refused requests:\n{done.stdout}")
        found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    def ask(self, method: str, path: str, body: str) -> None:
        self._post(socket.create_connection((self.host, self.port)), self._request(method, path, body))

    def lone_p99_ms(self, path: str, body: str, count: int = 3000) -> float:
        """The 99th percentile of writes one after the other on one connection."""
        with socket.create_connection((self.host, self.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = self._request("POST", path, body)
            times = []
            for _ in range(count):
                started = time.perf_counter()
                self._post(connection, request)
                times.append((time.perf_counter() - started) * 1000)
        return sorted(times[count // 10 :])[int(count * 0.9 * 0.99)]

    def _request(self, method: str, path: str, body: str) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    @staticmethod
    def _post(connection: socket.socket, request: bytes) -> None:
        connection.sendall(request)
        answer = connection.recv(65536)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer.decode(errors="replace"))


class Redis:
    def __init__(self, port: int) -> None:
        self._port = port

    def per_s(self, *command: str, connections: int, pipeline: int = 1, count: int = 200_000) -> float:
        done = subprocess.run(
            f"redis-benchmark -p {self._port} -c {connections} -P {pipeline} -n {count} --csv".split() + list(command),
            check=True,
            capture_output=True,
            text=True,
        )
        found = re.search(r'","(\d+\.\d+)"', done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    def set(self, name: str, value: str) -> None:
        subprocess.run(
            ["redis-cli", "-p", str(self._port), "config", "set", name, value], check=True, capture_output=True
        )


def fdatasync_ms(directory: Path, count: int = 500) -> float:
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


def measure(directory: Path) -> dict[str, float]:
    with ServerProcess(directory / "topics") as server, peers.redis(directory / "redis") as redis:
        bench = Bench(server, directory)
        peer = Redis(redis.address[1])
        one = '{"records":[{"data":' + DATA + "}]}"
        hundred = '{"records":[' + ",".join(['{"data":' + DATA + "}"] * 100) + "]}"
        for topic, durability in (("disk", "disk"), ("fsync", "fsync"), ("many", "disk")):
            bench.ask("PUT", f"/v0/topics/{topic}", json.dumps({"durability": durability}))
        xadd = ("XADD", "one", "*", "data", DATA)
        figures = {"single_per_s": bench.wrk("/v0/topics/disk?return_seqs=false", one, 64)}
        figures["redis_single_per_s"] = peer.per_s(*xadd, connections=64)
        figures["batch_per_s"] = 100 * bench.wrk("/v0/topics/many?return_seqs=false", hundred, 16)
        figures["redis_batch_per_s"] = peer.per_s(
            "XADD", "many", "*", "data", DATA, connections=16, pipeline=100, count=1_000_000
        )
        figures["diff_per_s"] = 1000 * bench.wrk("/v0/topics/many/diff", '{"from_seq":1000,"limit":1000}', 16)
        figures["redis_diff_per_s"] = 1000 * peer.per_s(
            "XRANGE", "many", "-", "+", "COUNT", "1000", connections=16, count=6000
        )
        figures["lone_disk_ms"] = bench.lone_p99_ms("/v0/topics/disk", one)
        figures["lone_fsync_ms"] = bench.lone_p99_ms("/v0/topics/fsync", one, 1500)
        figures["fdatasync_ms"] = fdatasync_ms(directory)
        figures["fsync_per_s"] = bench.wrk("/v0/topics/fsync?return_seqs=false", one, 64)
        peer.set("appendfsync", "always")
        figures["redis_always_per_s"] = peer.per_s("XADD", "always", "*", "data", DATA, connections=64, count=100_000)
    figures["single_ratio"] = figures["single_per_s"] / figures["redis_single_per_s"]
    figures["fsync_ratio"] = figures["fsync_per_s"] / figures["redis_always_per_s"]
    figures["batch_ratio"] = figures["batch_per_s"] / figures["redis_batch_per_s"]
    figures["diff_ratio"] = figures["diff_per_s"] / figures["redis_diff_per_s"]
    figures["lone_fsyncs"] = figures["lone_fsync_ms"] / figures["fdatasync_ms"]
    return figures


def main() -> None:
    peers.require("wrk", "redis-server", "redis-benchmark", "redis-cli")
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as directory:
        print(json.dumps(measure(Path(directory).absolute())))


if __name__ == "__main__":
    main()
