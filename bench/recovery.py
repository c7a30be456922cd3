"""Restarts, as an operator sees them. `python -m bench.recovery NAME [--quick]` prints one JSON object.

`1m`, `10m`: a server is filled with so many records, in requests of 1,000, and killed as soon as the last is
acknowledged. The clock runs from the start of the process until it says that it is ready; then every record must be
there. `posted`: records that come one per POST on 64 connections are read back from the log, as after a kill.
`topics`: a server is started on 100,000 topics of one record, left by a graceful stop. `memory`: what a server has
resident after two million records that nobody read.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from bench import peers
from bench.engine import RECORD
from bench.peers import Peer
from bench.processes import resident_bytes, tree_cpu_seconds
from bench.server import DATA, ONE
from bench.wire import http, wrk
from topics.engine import Engine
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.server import ServerProcess
from topics.tuning import tune_process

# Records, topics, or seconds for which records come one per POST.
SIZES: Final = {"posted": 10, "1m": 1_000_000, "10m": 10_000_000, "topics": 100_000, "memory": 2_000_000}
QUICK_RECORDS: Final = 5000
QUICK: Final = {"posted": 1}
BATCH: Final = 1000
POSTERS: Final = 64


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


def posted(directory: Path, seconds: int) -> dict[str, float]:
    tune_process()
    return {"replayed_per_s": uvloop.run(replayed(directory, seconds))}


async def replayed(directory: Path, seconds: int) -> float:
    """Records per second at which a log is read back."""
    data, killed = directory / "data", directory / "killed"
    engine = Engine.open(str(data), background=False)  # so that no checkpoint takes records out of the log
    async with Server.open(Settings(host="127.0.0.1", port=0), engine=engine) as server:
        peer, path = Peer(server.listener.address, os.getpid()), "/v0/topics/t?return_seqs=false"
        count = (await asyncio.to_thread(wrk.drive, peer, [path], ONE, POSTERS, seconds, directory)).count
        shutil.copytree(data, killed, ignore=shutil.ignore_patterns("lock"))
    engine = Engine.open(str(killed), background=False)
    started = time.perf_counter()
    await engine.start()
    seconds_taken = time.perf_counter() - started
    found = (await engine.topic_state("t")).count
    await engine.close()
    if found < count:
        raise RuntimeError(f"{found} of {count} records are there after a kill")
    return found / seconds_taken


def main() -> None:
    peers.end_on_signals()
    name = sys.argv[1]
    count = QUICK.get(name, QUICK_RECORDS) if "--quick" in sys.argv else SIZES[name]
    measure = {"topics": restarted, "memory": remembered, "posted": posted}.get(name, killed)
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), count)))


if __name__ == "__main__":
    main()
