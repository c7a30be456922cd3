"""A server in memory that an input is sent to: made anew for each, from the same directory, so that nothing lingers.

Owns the loop and its turns, one connection, what the server logs meanwhile and what the input costs. Must not know:
what the bytes mean.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from time import thread_time
from typing import Any, Final

from tests.fuzz.bars import Meter
from topics.engine import Engine
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.wire import Line, Wire

IDLE_TURNS: Final = 60  # without a byte in either direction: nothing comes any more
TURNS_MAX: Final = 20_000
SETTINGS: Final = Settings(segment_max_events=4)


class Beside(ThreadPoolExecutor):
    """Does at once what is to be done beside the loop, and keeps count of the CPU time it takes."""

    spent_s = 0.0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        before_s = thread_time()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        self.spent_s += thread_time() - before_s
        return done


class Complaints(logging.Handler):
    """What the server logs as an error, and what its callbacks raise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@cache
def turns() -> tuple[asyncio.AbstractEventLoop, Beside, Complaints]:
    """One loop for all inputs."""
    loop, beside, complaints = asyncio.SelectorEventLoop(), Beside(1), Complaints()
    loop.set_default_executor(beside)
    loop.set_exception_handler(
        lambda _, context: complaints.found.append(f"{context['message']}: {context.get('exception')!r}")
    )
    logging.getLogger("topics").addHandler(complaints)
    return loop, beside, complaints


@cache
def directory() -> dict[str, bytes]:
    """A directory with a log, a queue and its dead letters, a router, and records in the log and in segments."""

    async def fill() -> MemoryDisk:
        disk = MemoryDisk()
        engine = Engine.open("memory", SETTINGS, disk=disk, clock=ManualClock(), background=False)
        await engine.start()
        await engine.put_topic("t")
        await engine.put_topic("c")
        await engine.put_router("r", "t", "c")
        await engine.put_topic("q", {"type": "queue", "dead_letter": "d", "max_deliveries": 2})
        await engine.append("t", [{"data": {"n": n}, "tag": f"a:{n % 3}", "node": "n"} for n in range(10)], key="k")
        await engine.append("q", [{"data": n} for n in range(10)])
        await engine.checkpoint()
        await engine.append("t", [{"data": [n], "meta": {"m": n}} for n in range(5)])
        await engine.delete("t", before_seq=3)
        await engine.claim("q", "w", 3)
        for _ in range(50):
            await asyncio.sleep(0)
        killed = disk.kill()
        await engine.close()
        return killed

    return turns()[0].run_until_complete(fill()).files()


class Host:
    """A server and one connection to it."""

    def __init__(self) -> None:
        self._loop, self._beside, self._complaints = turns()
        self._complaints.found.clear()
        self.meter = Meter()
        self.sent_bytes = 0
        self._loop.run_until_complete(self._start(MemoryDisk(directory())))
        self.line: Line = self._connect()

    async def _start(self, disk: MemoryDisk) -> None:
        engine = Engine.open("memory", SETTINGS, disk=disk, clock=ManualClock(), background=False)
        engine.queues._next_number = 1 << 58
        self._server = Server.open(SETTINGS, engine=engine, source=lambda: 0.0)
        self._wire = Wire(self._server.listener.connections)
        await self._server.recover()

    def _connect(self) -> Line:
        lines: list[Line] = []
        self._turn(lambda: lines.append(self._wire.connect()))
        return lines[0]

    def _turn(self, first: Callable[[], object] = lambda: None) -> None:
        self._loop.call_soon(first)
        self._loop.call_soon(self._loop.stop)
        self.meter.run(self._loop.run_forever, lambda: self._beside.spent_s)

    def send(self, slices: Iterable[bytes]) -> bytes:
        """Send these reads, and give what comes back until nothing moves any more."""
        slices = [piece for piece in slices if piece]
        self.sent_bytes += sum(map(len, slices))
        self.line.send(*slices)
        came, idle = bytearray(), 0
        for _ in range(TURNS_MAX):
            self._turn()
            taken = self.line.take()
            came += taken
            idle = 0 if taken or self.line.is_sending else idle + 1
            if idle >= IDLE_TURNS:
                break
        else:
            raise AssertionError("the server is still busy after so many turns")
        return bytes(came)

    def end(self) -> None:
        """The client leaves: nothing stays behind, and the server has nothing to complain about."""
        self.line.drop()
        for _ in range(IDLE_TURNS):
            self._turn()
        open_count = self._server.listener.connections.open
        self._wire.cut()
        self._loop.run_until_complete(self._stop())
        assert not open_count, "a connection is left behind"
        assert not self._complaints.found, self._complaints.found[0]

    async def _stop(self) -> None:
        self._server.app.history.stop()
        current = asyncio.current_task()
        for _ in range(20):
            rest = [task for task in asyncio.all_tasks() if task is not current and not task.done()]
            for task in rest:
                task.cancel()
            if not rest:
                return
            await asyncio.sleep(0)


def cut(data: bytes, size: int) -> list[bytes]:
    """The data in reads of so many bytes; 0 = in one."""
    return [data[start : start + size] for start in range(0, len(data), size)] if size else [data]
