"""The world of a simulated server: a loop on the clock by hand, a disk that takes its time, the server and its wire.

Owns what a process has around it. Must not know: what clients ask, what is right.

Nothing in here waits for real time or uses a thread: timers follow the clock by hand, work off the loop takes as many
turns of the loop as the disk's `turns` says. So everything that happens follows from the calls that are made.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.pipelining.clients import Answer, Http1
from tests.pipelining.look import Look
from topics.engine import Engine
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Crashed, Hook, Interruption, MemoryDisk, Operation
from topics.testing.wire import Wire

T = TypeVar("T")

SEGMENT_MAX_EVENTS = (3, 20, 1000)  # by seed: long checkpoints, and short ones that come more often
CACHE_BYTES = (1 << 27, 3000)  # by seed: everything stays in memory, or few pages of segments do
HIGH_BYTES = 2000  # a client that does not read is noticed after a few answers
TURNS_MAX = 20_000  # nothing takes as many turns of the loop
IDLE_TURNS_MAX = 40  # turns in which nothing happens; then it is time that is waited for
SILENT_TURNS_MAX = 300  # in which the server works, and says nothing
IDLE_MS = 1001
LAST_TURNS = 5  # in which what a dead process had scheduled comes to nothing
IDLE_PAUSES_MAX = 40


class Hung(AssertionError):
    """Something neither ends nor fails (G15)."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of the clock by hand. Whoever runs on it must not wait for anything else."""

    def __init__(self, clock: ManualClock) -> None:
        self._simulated = clock
        super().__init__()

    def time(self) -> float:
        return self._simulated.monotonic()

    def forget_timers(self) -> None:
        """The process that has set them is dead."""
        for timer in list(self._scheduled):  # type: ignore[attr-defined]
            timer.cancel()


class SlowDisk(MemoryDisk):
    """A disk whose work off the loop takes some turns: as many as `turns` gives, each time anew."""

    async def run(self, work: Callable[[], T]) -> T:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        return await super().run(work)


class Lifeline:
    """A hook that cuts the wire at the moment at which the process dies: a dead one says nothing any more."""

    def __init__(self, point: Hook) -> None:
        self.point = point
        self.wire: Wire | None = None

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        interruption = self.point(disk, operation)
        if interruption is not None and isinstance(interruption.error, Crashed) and self.wire is not None:
            self.wire.cut()
        return interruption


class Host:
    """A server in memory, on a disk. `variant` chooses its settings."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock, variant: int, life: int = 0) -> None:
        self.disk = disk
        self.clock = clock
        self._before = asyncio.all_tasks()
        settings = Settings(segment_max_events=SEGMENT_MAX_EVENTS[variant % len(SEGMENT_MAX_EVENTS)])
        self.engine = Engine.open("memory", settings, disk=disk, clock=clock, background=False)
        self.engine.queues._next_number = (life + 1) << 58  # else lease ids, and so the sizes of requests, are random
        for shelf in self.engine._cache.shelves:
            shelf.bytes_max = CACHE_BYTES[variant % len(CACHE_BYTES)]
        self.server = Server.open(settings, engine=self.engine, source=lambda: 0.0)
        self.server.app.delivery.rounds.slice_s = math.inf  # of real time
        self.server.listener.connections._clock = clock  # else how long a turn takes would decide what is done in it
        self.wire = Wire(self.server.listener.connections, high_bytes=HIGH_BYTES)
        for hook in disk.hooks:
            if isinstance(hook, Lifeline):
                hook.wire = self.wire

    async def end(self) -> None:
        """kill -9: whatever is on the disk stays, and nothing goes on."""
        self.wire.cut()
        self.disk.is_dead = True
        self.engine.forwarder._is_running = False  # else it would have turns for ever
        await ended(self._before)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.forget_timers()

    async def finished(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if the disk died before. Then nothing that was begun goes on."""
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(work)
        for _ in range(TURNS_MAX):
            if task.done() or self.disk.is_dead:
                break
            await asyncio.sleep(0)
        is_dead, is_done = self.disk.is_dead, task.done()
        if is_dead or not is_done:
            await ended(before)
        if is_dead and not (is_done and not task.cancelled() and is_contradiction(task.exception())):
            return None
        if not is_done:
            raise Hung("nothing comes to an end")
        return task.result()

    async def look(self, looking: Look[T]) -> T:
        """Carry out a look over a connection of its own."""
        line, client = self.wire.connect(), Http1(1 << 30)
        answers: list[Answer] | None = None
        while True:
            try:
                asked = looking.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                line.end()
                return end.value  # type: ignore[no-any-return]
            line.send(b"".join([client.ask(request) for request in asked]))
            answers = []
            for _ in range(TURNS_MAX):
                answers += client.receive(line.take())  # type: ignore[arg-type]
                if len(answers) == len(asked):
                    break
                await asyncio.sleep(0)
            else:
                raise Hung(f"of {len(asked)} requests {len(answers)} are answered")


def is_contradiction(error: BaseException | None) -> bool:
    """Whether an error says that something told is wrong, rather than that a dead process fails."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return isinstance(error, AssertionError) and trace is not None and "/tests/" in trace.tb_frame.f_code.co_filename


async def ended(before: "set[asyncio.Task[Any]]") -> None:
    """End every task that was begun since; one that has not run yet first takes over what it was to run.

    What a dead process had scheduled may still begin some: it is over when some turns have passed without any.
    """
    me, idle_turns = asyncio.current_task(), 0
    while idle_turns < LAST_TURNS:
        others = [task for task in asyncio.all_tasks() - before if not task.done() and task is not me]
        idle_turns = 0 if others else idle_turns + 1
        await asyncio.sleep(0)
        for task in others:
            task.cancel()


def quiet(is_dead: Callable[[], bool]) -> list[BaseException]:
    """List the errors that nobody handles, but for those of a process that is dead."""
    strays: list[BaseException] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Crashed) and not is_dead():
            strays.append(error)

    asyncio.get_running_loop().set_exception_handler(note)
    return strays
