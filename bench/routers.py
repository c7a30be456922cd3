"""Figures of routers. `python -m bench.routers [growth] [--quick]` prints one JSON object.

Forwarding is measured from outside: wrk writes to a source, and the clock runs
from the first write until its last copy stands in the dest. So each figure
includes the cost of the writes themselves; the same load on a topic without a
router is shown beside it. Each figure has a server of its own, so that none
pays for what another left to be sealed. There is no peer.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import peers
from bench.peers import Address
from bench.processes import tree_cpu_seconds
from bench.server import DATA, Bench
from bench.wire import http
from bench.wire.epoll import Latency, latency_of
from topics.testing.server import ServerProcess

SECONDS: Final = 4
QUICK_SECONDS: Final = 1
ROUTERS: Final = 100
GROWTH: Final = (1, 10, 100, 1000)  # routers of one source
GROWTH_BATCH: Final = 100
GROWTH_RECORDS: Final = 5000
LONE_WRITES: Final = 1000
LONE_RATE: Final = 200  # per second
DEST_CAP: Final = 1000  # records that each of many dests keeps
PATIENCE_S: Final = 120.0


def body(count: int) -> str:
    """A write that waits while the disk is behind, rather than be refused."""
    return '{"disable_backpressure":true,"records":[' + ",".join(['{"data":' + DATA + "}"] * count) + "]}"


class Routed:
    """A server whose topics are forwarded."""

    def __init__(self, server: ServerProcess, directory: Path, seconds: int) -> None:
        self._address: Address = server.address
        self._pid = server.pid
        self._bench = Bench(server, directory, seconds)

    def attach(self, source: str, dests: int) -> list[str]:
        """A source with so many routers; the names of their dests."""
        http.ask(self._address, "PUT", f"/v0/topics/{source}")
        names = [f"{source}-{number}" for number in range(dests)]
        for name in names:
            if dests > 1:
                http.ask(self._address, "PUT", f"/v0/topics/{name}", {"cap_records": DEST_CAP})
            http.ask(self._address, "PUT", f"/v0/routers/to-{name}", {"source": source, "dest": name})
        return names

    def head(self, topic: str) -> int:
        return int(http.ask(self._address, "GET", f"/v0/topics/{topic}?touch=false")["head_seq"])

    def settle(self, source: str, dests: list[str]) -> None:
        """Wait until every dest has all of the source."""
        deadline = time.monotonic() + PATIENCE_S
        for dest in dests:
            while self.head(dest) < self.head(source):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{dest} has {self.head(dest)} of {self.head(source)} records of {source}")
                time.sleep(0.002)

    def forwarded_per_s(self, source: str, dests: int, records: int, connections: int) -> float:
        """Records per second of writes with so many records, until all are in the dests."""
        names = self.attach(source, dests)
        started = time.monotonic()
        self.write(source, records, connections)
        self.settle(source, names)
        return self.head(source) / (time.monotonic() - started)

    def fan(self, source: str, routers: int, records: int) -> dict[str, float]:
        """So many records, 100 at a time and one after the other, to a source with so many routers."""
        names = self.attach(source, routers)
        request = http.request("POST", f"/v0/topics/{source}?return_seqs=false", body(GROWTH_BATCH).encode())
        times, server_s, started = [], tree_cpu_seconds(self._pid), time.monotonic()
        with http.connect(self._address) as connection:
            for _ in range(records // GROWTH_BATCH):
                asked = time.perf_counter_ns()
                http.exchange(connection, request)
                times.append(time.perf_counter_ns() - asked)
        self.settle(source, names)
        seconds, server_s = time.monotonic() - started, tree_cpu_seconds(self._pid) - server_s
        return {
            "copies_per_s": records * routers / seconds,
            "copy_us": server_s / (records * routers) * 1e6,
            "ack_p50_ms": latency_of(times).p50_ms,
        }

    def write(self, source: str, records: int, connections: int) -> float:
        """Writes per second that are acked."""
        path = f"/v0/topics/{source}?return_seqs=false"
        return self._bench.wrk(path, body(records), connections).per_s

    def lone_ack(self, source: str, count: int) -> Latency:
        """Of single records at LONE_RATE, one after the other on one connection."""
        request = http.request("POST", f"/v0/topics/{source}?return_seqs=false", body(1).encode())
        times = []
        with http.connect(self._address) as connection:
            began = time.monotonic()
            for number in range(count):
                time.sleep(max(0.0, began + number / LONE_RATE - time.monotonic()))
                started = time.perf_counter_ns()
                http.exchange(connection, request)
                times.append(time.perf_counter_ns() - started)
        return latency_of(times[count // 10 :])


@contextmanager
def server(seconds: int) -> Iterator[Routed]:
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        directory = Path(path).absolute()
        with ServerProcess(directory / "topics") as process:
            yield Routed(process, directory, seconds)


def forwarding(seconds: int, dests: int, records: int, connections: int) -> float:
    with server(seconds) as routed:
        return routed.forwarded_per_s("source", dests, records, connections)


def acks(name: str, dests: int, seconds: int, lone_writes: int) -> dict[str, float]:
    """What the writers of a source see that has so many routers."""
    with server(seconds) as routed:
        names = routed.attach("source", dests)
        lone = routed.lone_ack("source", lone_writes)
        routed.settle("source", names)
        figures = {f"{name}_p50_ms": lone.p50_ms, f"{name}_p99_ms": lone.p99_ms}
        figures[f"{name}_acks_per_s"] = routed.write("source", 1, 64)
        routed.settle("source", names)
        return figures


def growth(seconds: int, records: int, counts: Sequence[int]) -> dict[str, float]:
    """The same writes with 1 to 1,000 routers: what a copy costs, and how long the last one takes."""
    figures: dict[str, float] = {}
    for routers in counts:
        with server(seconds) as routed:
            written = max(records, records * 40 // routers)  # few routers need more for their CPU to be seen
            figures |= {f"{name}_{routers}": value for name, value in routed.fan("source", routers, written).items()}
    figures["copy_us_ratio"] = figures[f"copy_us_{counts[-1]}"] / (figures[f"copy_us_{counts[0]}"] or 1.0)
    return figures


def measure(seconds: int, lone_writes: int) -> dict[str, float]:
    figures = {
        "unrouted_batch_per_s": forwarding(seconds, 0, 100, 16),
        "batch_per_s": forwarding(seconds, 1, 100, 16),
        "unrouted_single_per_s": forwarding(seconds, 0, 1, 64),
        "single_per_s": forwarding(seconds, 1, 1, 64),
        **acks("none", 0, seconds, lone_writes),
        **acks("many", ROUTERS, seconds, lone_writes),
    }
    figures["p50_ratio"] = figures["many_p50_ms"] / figures["none_p50_ms"]
    figures["p99_ratio"] = figures["many_p99_ms"] / figures["none_p99_ms"]
    figures["acks_ratio"] = figures["none_acks_per_s"] / figures["many_acks_per_s"]
    return figures


def main() -> None:
    peers.require("wrk")
    peers.end_on_signals()
    is_quick = "--quick" in sys.argv
    seconds = QUICK_SECONDS if is_quick else SECONDS
    if "growth" in sys.argv:
        print(json.dumps(growth(seconds, GROWTH_BATCH if is_quick else GROWTH_RECORDS, GROWTH[: 3 if is_quick else 4])))
    else:
        print(json.dumps(measure(seconds, LONE_WRITES // 5 if is_quick else LONE_WRITES)))


if __name__ == "__main__":
    main()
