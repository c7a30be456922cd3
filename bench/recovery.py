"""A restart after `kill -9`, as an operator sees it. `python -m bench.recovery SIZE [--quick]` prints JSON.

A server is filled with a million records (`1m`) or ten (`10m`), in requests of 1,000, and killed as soon as the last
is acknowledged. The clock runs from the start of the process until it says that it is ready; then every record must be
there.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench import peers
from bench.processes import resident_bytes, tree_cpu_seconds
from bench.server import DATA
from bench.wire import http
from topics.testing.server import ServerProcess

SIZES: Final = {"1m": 1_000_000, "10m": 10_000_000}
QUICK: Final = 5000
BATCH: Final = 1000


def fill(server: ServerProcess, records: int) -> None:
    record = '{"data":' + DATA + "}"
    body = '{"disable_backpressure":true,"records":[' + ",".join([record] * BATCH) + "]}"
    request = http.request("POST", "/v0/topics/t?return_seqs=false", body.encode())
    with http.connect(server.address) as connection:
        for _ in range(records // BATCH):
            http.exchange(connection, request)


def measure(directory: Path, records: int) -> dict[str, float]:
    with ServerProcess(directory / "topics") as server:
        fill(server, records)
        server.kill()
        started = time.perf_counter()
        server.start()
        seconds = time.perf_counter() - started
        cpu_s, resident = tree_cpu_seconds(server.pid), resident_bytes(server.pid)
        found = http.ask(server.address, "GET", "/v0/topics/t")["count"]
    if found != records:
        raise RuntimeError(f"{found} of {records} records are there after a kill")
    return {
        "ready_s": seconds,
        "cpu_s": cpu_s,
        "records_per_s": records / seconds,
        "resident_mib": resident / 2**20,
    }


def main() -> None:
    peers.end_on_signals()
    records = QUICK if "--quick" in sys.argv else SIZES[sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), records)))


if __name__ == "__main__":
    main()
