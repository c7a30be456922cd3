"""Playing a script: the engine on a hostile disk, the oracle beside it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tests.crash.check import Aftermath, check_recovered
from tests.crash.history import History
from tests.crash.script import Advance, Checkpoint, Operation, Restart, Script, StepClock, Together
from topics.engine import Engine
from topics.errors import Refusal, StorageError
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Crashed, Hook, MemoryDisk

TURNS_MAX = 5_000  # no script takes this many turns of the loop


class Hung(AssertionError):
    """The engine neither answers nor fails (G15)."""


class Run:
    """One play of a script on one disk."""

    def __init__(self, script: Script, hooks: Iterable[Hook] = (), *, is_faulty: bool = False) -> None:
        self.script = script
        self.disk = MemoryDisk(hooks=hooks)
        self.clock = ManualClock()
        self.history = History(is_faulty=is_faulty)
        self.engine: Engine | None = None
        self.is_up = False  # the engine runs
        self.stop = ""  # how the script stops it just now
        self.start_failure: BaseException | None = None
        self.is_faulty = is_faulty  # the disk may fail without dying

    @property
    def settings(self) -> Settings:
        return Settings(segment_max_events=self.script.segment_max_events)

    def open(self, disk: MemoryDisk) -> Engine:
        return Engine.open("x", self.settings, clock=self.clock, disk=disk, background=False)

    async def play(self) -> None:
        """Play to the end, or to the death of the disk."""
        await finished(self._play(), lambda: self.disk.is_dead)

    async def _play(self) -> None:
        if not await self._start():
            return
        for step in self.script.steps:
            if isinstance(step, Advance):
                self.clock.advance(step.ms)
            elif isinstance(step, StepClock):
                self.clock.set(self.clock.now_ms() + step.ms)
            elif isinstance(step, Restart):
                if not await self._restart(step.how):
                    return
            elif isinstance(step, Together):
                tasks = []
                for operation in step.operations:
                    tasks.append(asyncio.ensure_future(self._call(operation)))
                    for _ in range(step.turns):
                        await asyncio.sleep(0)
                await asyncio.gather(*tasks)
            else:
                await self._call(step)

    async def _start(self) -> bool:
        self.engine = self.open(self.disk)
        try:
            await self.engine.start()
        except (OSError, StorageError) as error:
            if not self.is_faulty:
                raise
            self.start_failure = error
            return False
        self.is_up = True
        return True

    async def _call(self, operation: Operation) -> None:
        engine = self.engine
        assert engine is not None
        heads = {(name, topic.epoch): topic.head for name, topic in self.history.now._topics.items()}
        call = self.history.submit(operation, self.clock.now_ms())
        try:
            answer = await operation.carry_out(engine)
        except Refusal as refusal:
            call.status, call.answer = "refused", type(refusal)
        except (StorageError, OSError):
            self.history.failed(call)
        else:
            self.history.acked(call, answer, engine)
            if isinstance(operation, Checkpoint):
                self.history.checkpointed = heads
        while engine.forwarder.is_busy and not self.disk.is_dead:  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0)

    async def _restart(self, how: str) -> bool:
        engine, hooks = self.engine, self.disk.hooks
        assert engine is not None
        self.stop = how
        if how == "gracefully":
            await engine.close()
            after = self.disk.kill()
        else:
            after = self.disk.kill() if how == "kill" else self.disk.power_loss(how)  # type: ignore[arg-type]
            self.disk.is_dead = True
        after.hooks = hooks
        self.disk, self.is_up = after, False
        if not await self._start():
            return False
        is_graceful = how == "gracefully"
        aftermath = Aftermath(
            how,
            is_power_loss=how not in ("gracefully", "kill"),
            is_clean=is_graceful and not self.is_faulty,
            may_be_clean=is_graceful,
        )
        adopted = await check_recovered(self.history, self.engine, self.clock, aftermath)  # type: ignore[arg-type]
        self.history.adopt(adopted)
        self.stop = ""
        return True


async def finished(work: Coroutine[Any, Any, Any], is_over: Callable[[], bool] = lambda: False) -> Any:
    """The result of `work`, or None if it `is_over` before; then nothing that it began goes on."""
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done() and not is_over() and turns < TURNS_MAX:
        turns += 1
        await asyncio.sleep(0)
    waiting = [str(other.get_coro()) for other in asyncio.all_tasks() - before if not other.done()]
    is_done = task.done()
    if not is_done or is_over():
        await _ended(before)
    if is_over() and (task.cancelled() or not is_done or isinstance(task.exception(), Crashed)):
        return None
    if not is_done:
        raise Hung(f"nothing moves any more: {waiting}")
    return task.result()


async def _ended(before: "set[asyncio.Task[Any]]") -> None:
    """End every task that was begun since."""
    for _ in range(50):
        others = [task for task in asyncio.all_tasks() - before if not task.done()]
        for task in others:
            task.cancel()
        if not others:
            return
        await asyncio.sleep(0)
