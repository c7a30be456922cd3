"""Figures of the embedded engine. `python -m bench.engine NAME` prints one JSON object."""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import uvloop
from msgspec import Raw

from topics.core.decide import Append
from topics.core.topic.records import RecordIn, parse_write
from topics.engine import Engine
from topics.model import TagMatch
from topics.settings import Settings
from topics.tuning import tune_process

DATA = b'{"sku":"AEROPRESS-GO","qty":1,"total":3499,"customer":"c-123456","note":"' + b"x" * 125 + b'"}'
RECORD = [RecordIn(Raw(DATA))]
SETTINGS = Settings()


def body_of(count: int, tag: bytes = b"") -> bytes:
    record = b'{"data":' + DATA + (b',"tag":"' + tag + b'"' if tag else b"") + b"}"
    return b'{"records":[' + b",".join([record] * count) + b"]}"


@asynccontextmanager
async def directory() -> AsyncIterator[str]:
    path = tempfile.mkdtemp(prefix="topics-bench-", dir=".")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def write_batches(engine: Engine, name: str, batches: int, tag: bytes = b"") -> None:
    body = body_of(1000, tag)
    for _ in range(batches):
        _, batch = parse_write(body, SETTINGS)
        await engine.append_batch(Append(name, batch))


async def write_singles(engine: Engine, name: str, count: int, writers: int = 64) -> float:
    """Seconds that `count` single appends take from `writers` tasks."""

    async def write(share: int) -> None:
        for _ in range(share):
            await engine.append(name, RECORD)

    started = time.perf_counter()
    await asyncio.gather(*(write(count // writers) for _ in range(writers)))
    return time.perf_counter() - started


async def batches() -> dict[str, float]:
    async with directory() as path, Engine.open(path) as engine:
        await engine.put_topic("t")
        await write_batches(engine, "t", 20)
        started = time.perf_counter()
        await write_batches(engine, "t", 1000)
        return {"records_per_s": 1_000_000 / (time.perf_counter() - started)}


async def singles() -> dict[str, float]:
    async with directory() as path, Engine.open(path) as engine:
        await engine.put_topic("disk", {"durability": "disk"})
        await engine.put_topic("fsync", {"durability": "fsync"})
        await write_singles(engine, "disk", 6400)
        disk = await write_singles(engine, "disk", 128_000)
        fsync = await write_singles(engine, "fsync", 64_000)
        return {"disk_us": disk / 128_000 * 1e6, "fsync_per_s": 64_000 / fsync}


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1e6


async def reads() -> dict[str, float]:
    async with directory() as path, Engine.open(path, background=False) as engine:
        await write_batches(engine, "t", 200)
        uncached = [await timed(lambda n=n: engine.read("t", n * 1000, 1000)) for n in range(100)]
        cached = [await timed(lambda n=n: engine.read("t", n * 1000, 1000)) for n in range(100)]
        await engine.checkpoint()
        await engine.read("t", 0, 1000)
        sealed = [await timed(lambda n=n: engine.read("t", n * 1000, 1000)) for n in range(10, 190)]
        return {"uncached_us": median(uncached), "cached_us": median(cached), "sealed_us": median(sealed)}


async def replay() -> dict[str, float]:
    return {
        "batches_per_s": await _replayed(lambda engine: write_batches(engine, "t", 1000)),
        "singles_per_s": await _replayed(lambda engine: write_singles(engine, "t", 1_000_000, 1000)),
    }


async def _replayed(fill: Callable[[Engine], Awaitable[object]]) -> float:
    """Records per second at which a log of a million records is read back after a kill."""
    async with directory() as path:
        engine = Engine.open(path, background=False)
        await engine.start()
        await fill(engine)
        killed = path + "/killed"
        shutil.copytree(path, killed, ignore=shutil.ignore_patterns("lock", "killed"))
        await engine.close()
        started = time.perf_counter()
        again = Engine.open(killed, background=False)
        await again.start()
        seconds = time.perf_counter() - started
        count = (await again.topic_state("t")).count
        await again.close()
        return count / seconds


def anonymous_bytes() -> int:
    """Memory of this process that is not backed by files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell RssAnon")


async def memory() -> dict[str, float]:
    async with directory() as path:
        async with Engine.open(path, background=False) as engine:
            await write_singles(engine, "t", 6400)
            before = anonymous_bytes()
            await write_singles(engine, "t", 512_000)
            resident = (anonymous_bytes() - before) / (512_000 * len(DATA))
        async with Engine.open(path) as engine:
            await write_batches(engine, "t", 2000)
        before = anonymous_bytes()
        async with Engine.open(path, background=False) as engine:
            count = (await engine.topic_state("t")).count
            sealed = (anonymous_bytes() - before) / count
        return {"resident_ratio": resident, "sealed_bytes": max(0.0, sealed)}


class PauseMeter:
    """The longest time for which the event loop did not turn."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "PauseMeter":
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now - last) * 1000)
            last = now


async def pauses() -> dict[str, float]:
    async with directory() as path, Engine.open(path) as engine:
        await engine.put_topic("capped", {"durability": "ephemeral"})
        await engine.put_topic("tagged", {"durability": "ephemeral"})
        await write_batches(engine, "capped", 1000)
        for number in range(1000):
            await write_batches(engine, "tagged", 1, b"user-%d:x" % (number % 50))
        async with PauseMeter() as under_load:
            await write_singles(engine, "t", 64_000)
            await write_batches(engine, "t", 300)
            await engine.checkpoint()
        async with PauseMeter() as evicting:
            await engine.put_topic("capped", {"durability": "ephemeral", "cap_records": 10})
            await asyncio.sleep(0.5)
        async with PauseMeter() as deleting:
            deleted = await engine.delete("tagged", match=TagMatch("Glob", "user-"))
            await asyncio.sleep(0.5)
        assert deleted.deleted == 1_000_000
        return {
            "checkpoint_ms": under_load.longest_ms,
            "evict_ms": evicting.longest_ms,
            "delete_ms": deleting.longest_ms,
        }


async def depth() -> dict[str, float]:
    async with directory() as path, Engine.open(path) as engine:
        await write_singles(engine, "t", 1024)
        shallow = min([await write_singles(engine, "t", 12_800) for _ in range(3)])
        await write_batches(engine, "t", 10_000)
        await engine.checkpoint()
        deep = min([await write_singles(engine, "t", 12_800) for _ in range(3)])
        return {"ratio": deep / shallow}


async def width() -> dict[str, float]:
    async with directory() as path, Engine.open(path) as engine:
        await write_singles(engine, "t", 1024)
        narrow = min([await write_singles(engine, "t", 12_800) for _ in range(3)])
        names = [f"topic-{number}" for number in range(99_999)]
        for start in range(0, len(names), 1000):
            await asyncio.gather(*(engine.put_topic(name) for name in names[start : start + 1000]))
        await engine.checkpoint()

        async def write(some: list[str]) -> None:
            for name in some:
                await engine.append(name, RECORD)

        async def spread(offset: int) -> float:
            chosen = names[offset :: len(names) // 12_800][:12_800]
            started = time.perf_counter()
            await asyncio.gather(*(write(chosen[n::64]) for n in range(64)))
            return (time.perf_counter() - started) * 12_800 / len(chosen)

        wide = min([await spread(offset) for offset in range(3)])
        return {"ratio": wide / narrow}


if __name__ == "__main__":
    tune_process()
    print(json.dumps(uvloop.run(globals()[sys.argv[1]]())))
