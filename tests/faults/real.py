"""A server on a real directory, with its helper processes; and children that run under limits or without rights.

`Journal` is what a client was told; the nursery makes children that serve a directory and say
what they could do.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

from topics.engine import Engine
from topics.engine.durability import checkpoint
from topics.errors import StorageError
from topics.storage.disk import RealDisk
from topics.testing.clock import ManualClock

NOBODY = 65534
TOPICS = ("fsync", "disk")


@contextmanager
def directory() -> Iterator[Path]:
    """A directory that anybody may enter."""
    with tempfile.TemporaryDirectory(prefix="topics-faults-") as made:
        os.chmod(made, 0o755)
        data = Path(made) / "data"
        data.mkdir()
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
        yield data
        os.chmod(data, 0o755)


class Real:
    """An engine on a real directory, and what its client was told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk(path, sync="process")
        self.clock = ManualClock()
        self.engine = Engine.open(str(path), clock=self.clock, disk=self.disk, background=False)
        self.acked: dict[str, list[str]] = {name: [] for name in TOPICS}
        self.refused: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator["Real"]:
        with directory() as path:
            real = cls(path)
            await real.engine.start()
            try:
                yield real
            finally:
                await real.engine.close()
            await real.check()

    async def append(self, name: str, value: str) -> bool:
        try:
            await self.engine.append(name, [{"data": value}], config={"durability": name})
        except StorageError:
            self.refused.add(value)
            return False
        self.acked[name].append(value)
        return True

    async def appends(self, count: int, prefix: str) -> None:
        for number in range(count):
            for name in TOPICS:
                await self.append(name, f"{prefix} {name} {number}")

    async def settle(self) -> None:
        """The log has gone on."""
        for _ in range(20):
            if await self.append("fsync", f"settled {len(self.acked['fsync'])}"):
                return
            self.clock.advance(1100)
            await self.engine.tick()
        raise AssertionError("the log does not go on")

    async def check(self) -> None:
        """The next server has what was acked, in order, and nothing else (G1, G2)."""
        async with Engine.open(str(self.path), clock=ManualClock(), background=False) as engine:
            for name, values in self.acked.items():
                found, after = [], 0
                while not (answer := await engine.read(name, after, limit=1000)).caught_up or answer.records:
                    found += [bytes(record.data).decode().strip('"') for record in answer.records]
                    after = answer.next_from_seq
                assert found == values, f"G1, G2: {name}: {len(found)} records, not {len(values)}"

    @property
    def sealer_pid(self) -> int | None:
        return self.engine._ledger.store._sealer.helper_pid

    async def seal(self, prefix: str) -> None:
        """A checkpoint that is large enough for the helper."""
        least, checkpoint.LARGE_BYTES_MIN = checkpoint.LARGE_BYTES_MIN, 1
        try:
            await self.appends(20, prefix)
            await self.engine.checkpoint()
        finally:
            checkpoint.LARGE_BYTES_MIN = least


NURSERY = """
import asyncio, json, os, resource, sys
from topics.engine import Engine
from topics.errors import TopicsError
from topics.storage.disk import RealDisk
from topics.testing.disk import MemoryDisk

async def rehearse():  # what is imported late is imported now: without rights it may be out of reach
    async with Engine.open("memory", disk=MemoryDisk(), background=False) as engine:
        await engine.append("t", [{"data": 1}])

async def serve(path, count, size):
    engine = Engine.open(path, disk=RealDisk(path), background=False)
    await engine.start()
    print("started")
    for n in range(count):
        try:
            await engine.append("fsync", [{"data": f"{n} " + "x" * size}], config={"durability": "fsync"})
            print("acked", n)
        except TopicsError as error:
            print("refused", n, type(error).__name__)
    print("read", len((await engine.read("fsync", limit=1000)).records))

def born(path, count, size, *limits):
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(NOBODY); os.setuid(NOBODY)
    for limit in limits:
        name, value = limit.split("=")
        resource.setrlimit(getattr(resource, name), (int(value), int(value)))
    try:
        asyncio.run(serve(path, count, size))
    except (TopicsError, OSError) as error:
        print("stopped", type(error).__name__, str(error).replace(chr(10), " "))

asyncio.run(rehearse())
for line in sys.stdin:
    if (pid := os.fork()) == 0:
        try:
            born(*json.loads(line))
            code = 0
        except BaseException as error:
            print("failed", repr(error))
            code = 1
        sys.stdout.flush()
        os._exit(code)  # as killed
    os.waitpid(pid, 0)
    print("end", flush=True)
""".replace("NOBODY", str(NOBODY))


@cache
def nursery() -> "subprocess.Popen[str]":
    """A process that makes others, which need not import anything any more. It ends with this one."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", NURSERY]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def child(path: Path, count: int = 3, size: int = 10, *limits: str) -> list[list[str]]:
    """What a server without rights, and under these limits, says on this directory; then it is killed."""

    def talk() -> list[list[str]]:
        process = nursery()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([str(path), count, size, *limits]) + "\n")
        process.stdin.flush()
        said: list[list[str]] = []
        while (line := process.stdout.readline()) != "end\n":
            assert line, "the nursery has ended"
            said.append(line.split())
        return said

    said = await asyncio.to_thread(talk)
    assert said[-1][0] != "failed", said
    return said


def acked(said: list[list[str]]) -> list[int]:
    return [int(line[1]) for line in said if line[0] == "acked"]


def refused(said: list[list[str]]) -> list[int]:
    return [int(line[1]) for line in said if line[0] == "refused"]


def read(said: list[list[str]]) -> int:
    return next(int(line[1]) for line in said if line[0] == "read")


def stopped(said: list[list[str]]) -> str:
    """Why it did not start."""
    assert said[-1][0] == "stopped", said
    return " ".join(said[-1][1:])
