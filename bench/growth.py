"""What an operation costs at 1, 10 and 100 times the size. `python -m bench.growth NAME [--quick]` prints JSON.

In process, by CPU time: an append, a read of 100 among the last 10,000, a claim with its ack and a delete by tag in a
topic of 10,000, 100,000 and 1,000,000 records with as many tags; an append and a read with 100, 1,000 and 10,000
topics. `tags` has the deletes at a million tags in more detail.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

import uvloop

from bench.engine import DATA, RECORD, SETTINGS, directory
from bench.wire.epoll import latency_of
from topics.core.decide import Append
from topics.core.topic.records import parse_write
from topics.engine import Engine
from topics.model import TagMatch
from topics.tuning import tune_process

STEPS: Final = (1, 10, 100)
RECORDS: Final = 10_000
TOPICS: Final = 100
TAGS: Final = 1_000_000
QUICK: Final = 50  # of which a quick run takes one part
BATCH: Final = 1000
CALLS: Final = 1000
DELETES: Final = 100
WARM: Final = 50  # calls that are not counted
PREFIXES: Final = 20


def tag_of(number: int) -> str:
    """A million of them share a thousand prefixes."""
    return f"user-{number % 1000:03}:{number}"


async def fill(engine: Engine, name: str, count: int) -> None:
    """So many records, each with a tag of its own."""
    for start in range(0, count, BATCH):
        tags = (tag_of(number) for number in range(start, min(start + BATCH, count)))
        records = (b'{"data":' + DATA + b',"tag":"%s"}' % tag.encode() for tag in tags)
        _, batch = parse_write(b'{"records":[' + b",".join(records) + b"]}", SETTINGS)
        await engine.append_batch(Append(name, batch))


async def cpu_us(calls: Iterable[Callable[[], Awaitable[object]]]) -> float:
    """CPU of each call, all threads of this process counted; one after the other."""
    count, started = 0, time.process_time()
    for call in calls:
        await call()
        count += 1
    return (time.process_time() - started) / count * 1e6


async def at_size(count: int) -> dict[str, float]:
    chance = random.Random(count)
    places = [count - chance.randrange(min(count, RECORDS)) for _ in range(min(CALLS, count // 2))]
    doomed = chance.sample(range(count), min(DELETES, count // 10))
    async with directory() as path, Engine.open(path, background=False) as engine:
        await engine.put_topic("log")
        await engine.put_topic("jobs", {"type": "queue", "lease_ms": 600_000})
        await fill(engine, "log", count)
        await fill(engine, "jobs", count)
        await engine.checkpoint()

        async def work() -> None:
            claimed = await engine.claim("jobs", "w", 8)
            await engine.ack("jobs", "w", [seq for seq, *_ in claimed.leases])

        def read(place: int) -> Callable[[], Awaitable[object]]:
            return lambda: engine.read("log", place, 100)

        def append() -> Awaitable[object]:
            return engine.append("log", RECORD)

        def delete(place: int) -> Callable[[], Awaitable[object]]:
            return lambda: engine.delete("log", match=TagMatch("Eq", tag_of(place)))

        for call in [delete(doomed.pop()), *[work, read(places[0]), append] * min(WARM, count // 50)]:
            await call()
        return {
            "append_us": await cpu_us([append] * len(places)),
            "read_us": await cpu_us([read(place) for place in places]),
            "work_us": await cpu_us([work] * (len(places) // 8)),
            "delete_us": await cpu_us([delete(place) for place in doomed]),
        }


async def records(part: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for times in STEPS:
        found = await at_size(RECORDS * times // part)
        figures |= {f"{name}_{times}": value for name, value in found.items()}
    return figures | ratios(figures, ("append_us", "read_us", "work_us", "delete_us"))


async def topics(part: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for times in STEPS:
        names = [f"topic-{number}" for number in range(TOPICS * times // part)]
        async with directory() as path, Engine.open(path, background=False) as engine:
            for start in range(0, len(names), BATCH):
                await asyncio.gather(*(engine.append(name, RECORD) for name in names[start : start + BATCH]))
            await engine.checkpoint()
            for call in [_appending(engine, names[0]), _reading(engine, names[0])] * WARM:
                await call()
            chosen = random.Random(times).sample(names, min(TOPICS, len(names)))
            figures[f"topic_append_us_{times}"] = await cpu_us([_appending(engine, name) for name in chosen])
            figures[f"topic_read_us_{times}"] = await cpu_us([_reading(engine, name) for name in chosen])
    return figures | ratios(figures, ("topic_append_us", "topic_read_us"))


def _appending(engine: Engine, name: str) -> Callable[[], Awaitable[object]]:
    return lambda: engine.append(name, RECORD)


def _reading(engine: Engine, name: str) -> Callable[[], Awaitable[object]]:
    return lambda: engine.read(name, 0, 100)


def ratios(figures: dict[str, float], names: Iterable[str]) -> dict[str, float]:
    """What the largest size costs, in costs of the smallest."""
    return {f"{name}_ratio": figures[f"{name}_{STEPS[-1]}"] / figures[f"{name}_{STEPS[0]}"] for name in names}


async def tags(part: int) -> dict[str, float]:
    """Deletes in a topic with a million tags: of one, of all that share a prefix, of the rest."""
    count = TAGS // part
    async with directory() as path, Engine.open(path, background=False) as engine:
        await fill(engine, "t", count)

        async def delete(operator: Literal["Eq", "Glob"], value: str) -> int:
            started = time.perf_counter_ns()
            done = await engine.delete("t", match=TagMatch(operator, value))
            if done.deleted == 0:
                raise RuntimeError(f"nothing has the tag {operator} {value}")
            return time.perf_counter_ns() - started

        first = await delete("Eq", tag_of(count - 1))
        chosen = random.Random(1).sample(range(count - 1), DELETES)
        singles = latency_of([await delete("Eq", tag_of(number)) for number in chosen])
        prefixes = latency_of([await delete("Glob", f"user-{number:03}:") for number in range(PREFIXES)])
        left = (await engine.topic_state("t")).count
        rest = await delete("Glob", "user-")
        return {
            "first_ms": first / 1e6,
            "one_p50_us": singles.p50_ms * 1000,
            "one_p99_us": singles.p99_ms * 1000,
            "prefix_p50_us": prefixes.p50_ms * 1000,
            "rest_ns": rest / max(left, 1),
        }


PROGRAMS: Final = {"records": records, "topics": topics, "tags": tags}

if __name__ == "__main__":
    tune_process()
    print(json.dumps(uvloop.run(PROGRAMS[sys.argv[1]](QUICK if "--quick" in sys.argv else 1))))
