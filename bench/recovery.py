"""Restarts, as an operator sees them. `python -m bench.recovery NAME [--quick]` prints one JSON object.

`1m`, `10m`: a server is filled with so many records, in requests of 1,000, and killed as soon as the last is
acknowledged. The clock runs from the start of the process until it says that it is ready; then every record must be
there. `topics`: a server is started on 100,000 topics of one record, left by a graceful stop. `memory`: what a server
has resident after two million records that nobody read.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from bench import peers
from bench.engine import RECORD
from bench.processes import resident_bytes, tree_cpu_seconds
from bench.server import DATA
from bench.wire import http
from topics.engine import Engine
from topics.testing.server import ServerProcess

SIZES: Final = {"1m": 1_000_000, "10m": 10_000_000, "topics": 100_000, "memory": 2_000_000}
QUICK: Final = 5000
BATCH: Final = 1000


def fill(server: ServerProcess, records: int) -> None:
    record = '{"data":' + DATA + "}"
    body = '{"disable_backpressure":true,"records":[' + ",".join([record] * BATCH) + "]}"
    request = http.request("POST", "/v0/topics/t?return_seqs=false", body.encode())
    with http.connect(server.address) as connection:
        for _ in range(records // BATCH):
            http.exchange(connection, request)


async def create(data: Path, topics: int) -> None:
    """A data directory with so many topics of a record each, left as by a graceful stop."""
    async with Engine.open(str(data), background=False) as engine:
        names = [f"topic-{number}" for number in range(topics)]
        for start in range(0, topics, BATCH):
            await asyncio.gather(*(engine.append(name, RECORD) for name in names[start : start + BATCH]))
        await engine.checkpoint()  # the one of a stop is given up when a machine is too slow


def restarted(directory: Path, topics: int) -> dict[str, float]:
    server = ServerProcess(directory / "topics")
    server.directory.mkdir()
    uvloop.run(create(server.data, topics))
    started = time.perf_counter()
    with server:
        seconds = time.perf_counter() - started
        found = {"ready_s": seconds, "cpu_s": tree_cpu_seconds(server.pid)}
        http.ask(server.address, "GET", f"/v0/topics/topic-{topics - 1}")
    return found


def remembered(directory: Path, records: int) -> dict[str, float]:
    with ServerProcess(directory / "topics") as server:
        fill(server, records)
        return {"resident_mb": resident_bytes(server.pid) / 1e6}


def killed(directory: Path, records: int) -> dict[str, float]:
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
    name = sys.argv[1]
    count = QUICK if "--quick" in sys.argv else SIZES[name]
    measure = {"topics": restarted, "memory": remembered}.get(name, killed)
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), count)))


if __name__ == "__main__":
    main()
