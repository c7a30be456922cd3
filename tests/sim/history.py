"""A simulated history: lives of a server on one disk, each begun on what the one before has left, all of it checked.

    run(plan_of(17))              # Broken: what is wrong, with the seed and the trace

Owns the order of lives, how each ends, and what is asked of the server then. What is right is said by the accounts of
what its clients were told (tests/pipelining): what a life finds at its start is held against what was told in those
before, and what the last one leaves is read twice, and given out.
"""

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from tests.crash.bounds import small_bounds
from tests.pipelining.check import End, check, is_same, nothing_is_stuck
from tests.pipelining.look import Found, drain, look
from tests.pipelining.told import Told
from tests.sim.plan import LifePlan, Plan
from tests.sim.play import Play
from tests.sim.trace import Trace
from tests.sim.world import Host, Lifeline, SimulatedLoop, SlowDisk, ended, quiet
from topics.errors import ShuttingDown, StorageError
from topics.testing.clock import ManualClock
from topics.testing.disk import Choose, Crashed, Outcome

RANK: tuple[End, ...] = ("alive", "stop", "kill", "power loss")
OUTCOMES: tuple[Outcome, ...] = ("lost", "kept", "torn")
EXPECTED = (StorageError, OSError, Crashed, ShuttingDown)  # errors that may be logged while a disk fails


class Broken(AssertionError):
    """A history in which something is wrong."""

    def __init__(self, plan: Plan, error: BaseException, trace: Trace) -> None:
        super().__init__(f"seed {plan.seed}: {type(error).__name__}: {error}")
        self.plan, self.error, self.trace = plan, error, trace


class Complaints(logging.Handler):
    """Errors that the server only logs, but for those of a disk that fails, and of a process that is dead."""

    def __init__(self, is_dead: Callable[[], bool]) -> None:
        super().__init__(logging.ERROR)
        self._is_dead = is_dead
        self.found: list[BaseException] = []
        self.has_failed_to_stop = False  # a graceful stop did without its checkpoint

    def emit(self, record: logging.LogRecord) -> None:
        self.has_failed_to_stop |= record.msg.startswith("the last checkpoint failed")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EXPECTED) and not self._is_dead():
            self.found.append(error)


class History:
    """The lives that a plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.complaints = Complaints(lambda: self.disk.is_dead)
        self.clock = ManualClock()
        self.trace = Trace(self.clock)
        self.told = Told(clock=self.clock.now_ms)
        self.disk = SlowDisk()
        self._end: End = "kill"  # how lives have ended that nobody has looked at since
        self._before: Play | None = None
        self._is_faulty = False

    async def run(self) -> None:
        strays = quiet(lambda: self.disk.is_dead)
        for number in range(len(self.plan.lives)):
            self.trace.life = number
            await self._live(number)
        await self._last_look()
        if strays:
            raise strays[0]

    async def _live(self, number: int) -> None:
        life = self.plan.lives[number]
        self.trace.add("server", "starts", life)
        self._is_faulty = bool(life.faults)
        self.told.is_faulty |= self._is_faulty
        point = life.point()
        self.disk.hooks = [*([] if point is None else [Lifeline(point)]), *(fault.hook() for fault in life.faults)]
        play = Play(self.plan, number, self.disk, self.told, self.clock, self.trace, self._before)
        has_stopped = False
        try:
            await play.run(self._began)
            if not self.disk.is_dead and not play.is_cut_short:
                await self._check_end(play)
            if not self.disk.is_dead and life.end == "stop":
                has_stopped = await self._stop(play)
        except (StorageError, OSError) as error:
            if not self._is_faulty:
                raise
            self.trace.add("server", "fails", error)
        await play.host.end()
        self._before = play
        self._died(life, has_stopped)
        self.clock.advance(life.pause_ms)

    def _began(self, found: Found) -> None:
        """The server has started: what it has is what was told."""
        check(self.told, found, self._end)
        self.told.adopt(found)
        self.told.is_faulty = self._is_faulty
        self._end = "alive"

    async def _check_end(self, play: Play) -> None:
        """All is answered, and there."""
        unanswered = play.unanswered()
        assert not unanswered, f"G15: never answered: {unanswered}"
        await play.host.finished(play.settle())
        found = await play.host.finished(play.host.look(look()))
        if found is not None:
            check(self.told, found, "alive")
            await play.host.finished(play.check_streams(found))

    async def _stop(self, play: Play) -> bool:
        """Stop gracefully; whether that came to its end."""
        self.told.may_have_stopped = True
        self.complaints.has_failed_to_stop = False
        await play.host.finished(play.stop())
        return not self.disk.is_dead and not self._is_faulty and not self.complaints.has_failed_to_stop

    def _died(self, life: LifePlan, has_stopped: bool) -> None:
        """What the next life finds."""
        end: End = "kill"
        if life.end == "power loss" or (has_stopped and life.outcome % 2):  # a stop has synced everything
            choose: Choose | Random | Outcome = Random(life.outcome)
            if life.outcome % 4 < len(OUTCOMES):
                choose = OUTCOMES[life.outcome % 4]
            after = self.disk.power_loss(choose)
            end = "power loss"
        else:
            after = self.disk.kill()
        if has_stopped:
            end = "stop"
        assert isinstance(after, SlowDisk)
        self.trace.add("server", "is dead", f"{end}, after {len(self.disk.operations)} operations of the disk")
        self.disk = after
        self._end = max(self._end, end, key=RANK.index)

    async def _last_look(self) -> None:
        """Recover, check; recover again, and see that it is the same; claim all jobs."""
        found = await self._on_a_host(self.disk, 8, look())
        check(self.told, found, self._end)
        host = Host(self.disk.kill(), self.clock, self.plan.seed, 9)
        await host.server.recover()
        is_same(found, await host.look(look()))
        claimed = await host.look(drain(found))
        nothing_is_stuck(found, claimed, await host.look(look()))
        await host.end()

    async def _on_a_host(self, disk: SlowDisk, life: int, looking: Any) -> Found:
        host = Host(disk, self.clock, self.plan.seed, life)
        await host.server.recover()
        found: Found = await host.look(looking)
        await host.end()
        return found


def run(plan: Plan) -> Trace:
    """Play a history to its end. Broken: something is wrong in it."""
    history = History(plan)
    loop = SimulatedLoop(history.clock)
    logger = logging.getLogger("topics")
    before = (logger.level, logger.propagate)
    logger.addHandler(history.complaints)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        with small_bounds():
            loop.run_until_complete(history.run())
            if history.complaints.found:
                raise history.complaints.found[0]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Broken(plan, error, history.trace) from error
    finally:
        loop.run_until_complete(ended(set()))
        logger.removeHandler(history.complaints)
        logger.level, logger.propagate = before
        loop.close()
    return history.trace
