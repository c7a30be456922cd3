"""A process to be killed: an engine, many writers and readers, and every ack and every record seen on stdout.

    python writer.py DIRECTORY ROUND

Lines: `acked TOPIC FIRST LAST KEY`, `seen TOPIC SEQ DATA`, `ready`. SIGTERM stops it gracefully.
"""

import asyncio
import os
import signal
import sys

from topics.engine import Engine
from topics.settings import Settings

TOPICS = ("fsync", "disk", "memory")
WRITERS = 8  # per topic


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


async def write(engine: Engine, topic: str, writer: str) -> None:
    """Write batches of one to three records for ever; each record says who wrote it."""
    number = 0
    while True:
        key = f"{writer}.{number}"
        records = [{"data": f"{key}.{n}", "tag": f"{writer}:{n}"} for n in range(1 + number % 3)]
        done = await engine.append(topic, records, key=key, config={"durability": topic})
        say(f"acked {topic} {done.first_seq} {done.last_seq} {key}")
        number += 1


async def read(engine: Engine, topic: str) -> None:
    """Tell of every record that can be read."""
    after = (await engine.topic_state(topic)).head_seq
    while True:
        answer = await engine.read(topic, after, wait_ms=30_000)
        for record in answer.records:
            say(f"seen {topic} {record.seq} {bytes(record.data).decode()}")
        after = answer.next_from_seq


async def main(directory: str, round_: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Engine.open(directory, Settings(segment_max_events=40)) as engine:
        for topic in TOPICS:
            await engine.put_topic(topic, {"durability": topic})
        say("ready")
        tasks = [asyncio.create_task(read(engine, topic)) for topic in TOPICS]
        tasks += [asyncio.create_task(write(engine, t, f"{round_}.{n}")) for t in TOPICS for n in range(WRITERS)]
        tasks.append(asyncio.create_task(checkpoint(engine)))
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def checkpoint(engine: Engine) -> None:
    """Take one checkpoint after the other."""
    while True:
        await engine.checkpoint()
        await asyncio.sleep(0.02)


asyncio.run(main(*sys.argv[1:]))
