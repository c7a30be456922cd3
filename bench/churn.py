"""Topics that lose as much as they take: by a cap, by a TTL. `python -m bench.churn [--quick]` prints JSON.

wrk writes batches of 100 to a topic without limits, to one with a cap of 10,000 records, and to one whose records
expire after half a second, each on a server of its own. In the end the cap must be kept, what has expired must be gone,
and the disk must have been given back.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench import peers
from bench.processes import Load
from bench.server import DATA, Bench
from bench.wire import http
from topics.testing.server import ServerProcess

CAP: Final = 10_000
TTL_MS: Final = 500
BATCH: Final = 100
SECONDS: Final = 3
QUICK_SECONDS: Final = 1
PATIENCE_S: Final = 300.0
CONFIGS: Final[Mapping[str, Mapping[str, object]]] = {
    "plain": {},
    "cap": {"cap_records": CAP},
    "ttl": {"ttl_ms": TTL_MS},
}
BODY: Final = '{"disable_backpressure":true,"records":[' + ",".join(['{"data":' + DATA + "}"] * BATCH) + "]}"


def on_disk(directory: Path) -> int:
    """Blocks in use, not lengths of files: those of the log are reserved in advance."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # removed meanwhile
    return total


def churned(config: Mapping[str, object], place: Path, seconds: int) -> tuple[Load, int]:
    """What the writes cost, and the bytes on disk once the topic has settled."""
    with ServerProcess(place / "topics") as server:
        http.ask(server.address, "PUT", "/v0/topics/t", dict(config) or None)
        load = Bench(server, place, seconds).wrk("/v0/topics/t?return_seqs=false", BODY, 16)
        if "ttl_ms" in config:
            wait_until_empty(server)
        count = http.ask(server.address, "GET", "/v0/topics/t?touch=false")["count"]
        if count > config.get("cap_records", load.count * BATCH + 16 * BATCH):
            raise RuntimeError(f"the topic has {count} records, its config is {config}")
        server.stop()  # with a last checkpoint
        return load, on_disk(server.data)


def wait_until_empty(server: ServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while http.ask(server.address, "GET", "/v0/topics/t?touch=false")["count"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"records are there {PATIENCE_S:.0f} s after the last write; they live for {TTL_MS} ms")
        time.sleep(0.05)


def measure(directory: Path, seconds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, config in CONFIGS.items():
        place = directory / name
        place.mkdir()
        load, size = churned(config, place, seconds)
        figures |= load.figures(name, BATCH)
        figures[f"{name}_disk_mib"] = size / 2**20
    for name in ("cap", "ttl"):
        figures[f"{name}_ratio"] = figures[f"{name}_server_us"] / figures["plain_server_us"]
    return figures


def main() -> None:
    peers.require("wrk")
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), QUICK_SECONDS if "--quick" in sys.argv else SECONDS)))


if __name__ == "__main__":
    main()
