"""Calls that go on in tasks, and connections that have much to do, share a part of each turn of the loop (LM10)."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from topics.server.paced import TURN_S, Pace, Paced, Turns
from topics.testing.clock import ManualClock

STEP_MS = 2
CALLS = 100


class Steps:
    """Calls whose every step takes some time by the clock; which ones were taken in which turn of the loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pace = Pace(self.clock.monotonic)
        self.turns: list[list[int]] = [[]]

    async def call(self, number: int, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(STEP_MS)
            self.turns[-1].append(number)
            await asyncio.sleep(0)

    async def run(self, calls: int, steps: int) -> None:
        async def run(number: int) -> None:
            await Paced(self.call(number, steps), self.pace)

        tasks = [asyncio.create_task(run(number)) for number in range(calls)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.turns.append([])


async def test_many_calls_have_no_more_of_a_turn_than_a_few() -> None:
    """LM10"""
    steps = Steps()
    await steps.run(CALLS, 3)
    assert sum(map(len, steps.turns)) == 3 * CALLS
    assert max(map(len, steps.turns)) <= TURN_S * 1000 / STEP_MS + 2


async def test_calls_that_wait_go_on_in_the_order_in_which_they_came() -> None:
    """LM10: nobody is passed over."""
    steps = Steps()
    await steps.run(CALLS, 1)
    assert [number for turn in steps.turns for number in turn] == list(range(CALLS))


async def test_whoever_is_alone_waits_for_nobody() -> None:
    """LM10: a step takes as many turns of the loop as it would without a pace."""
    steps = Steps()
    await steps.run(1, 5)
    assert sum(1 for turn in steps.turns if turn) == 5 and len(steps.turns) <= 8


async def test_what_is_raised_and_what_cancels_pass_through() -> None:
    """LM10, ER6"""
    pace, seen = Pace(ManualClock().monotonic), list[str]()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("so")

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run(work: "Paced") -> None:
        await work

    with pytest.raises(ValueError, match="so"):
        await run(Paced(fails(), pace))
    task = asyncio.create_task(run(Paced(waits(), pace)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_whoever_waits_for_a_turn_can_be_cancelled() -> None:
    """LM10: the others go on."""
    steps = Steps()

    async def run(number: int) -> None:
        await Paced(steps.call(number, 1), steps.pace)

    tasks = [asyncio.create_task(run(number)) for number in range(10)]
    await asyncio.sleep(0)
    tasks[-2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [number for turn in steps.turns for number in turn] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert isinstance(results[-2], asyncio.CancelledError)


async def test_a_call_that_fails_leaves_nothing_behind() -> None:
    """LM11: what it held is free at once, and not when the garbage collector comes."""
    pace, loop = Pace(ManualClock().monotonic), asyncio.get_running_loop()

    class Held:
        pass

    def fail() -> None:
        raise ValueError("so")

    async def call(held: Held) -> None:
        await loop.run_in_executor(None, fail)

    async def run(held: Held) -> None:
        try:
            await Paced(call(held), pace)
        except ValueError:
            pass

    gc.collect()
    gc.disable()
    try:
        held = Held()
        left = weakref.ref(held)
        task = asyncio.create_task(run(held))
        del held
        await task
        del task
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


class Visits:
    """Connections that have much to do, each for some time by the clock; who was served in which turn of the loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(self.clock.monotonic, self.soon.append)
        self.served: list[int] = []

    def add(self, number: int, visits: int = 1) -> None:
        self.turns.add(partial(self._serve, number, visits))

    def _serve(self, number: int, visits: int) -> None:
        self.clock.advance(STEP_MS)
        self.served.append(number)
        if visits > 1:
            self.add(number, visits - 1)

    def turn(self) -> list[int]:
        """A turn of the loop; who was served in it."""
        self.served = []
        due = self.soon[:]
        self.soon.clear()
        for call in due:
            call()
        return self.served


def test_connections_that_wait_have_a_share_of_a_turn_and_none_is_passed_over() -> None:
    """LM10: whoever comes is behind those that wait, and before those that have been served."""
    visits = Visits()
    for number in range(4):
        visits.add(number, visits=3)
    assert visits.turn() == [0, 1, 2]
    visits.add(9)
    assert [visits.turn(), visits.turn()] == [[3, 0, 1], [2, 9, 3]]
    while visits.turn():
        pass
    assert not visits.turns.waiting


def test_a_connection_that_fails_in_its_turn_does_not_keep_the_others_from_theirs() -> None:
    """LM10"""
    visits = Visits()

    def fail() -> None:
        raise RuntimeError

    visits.turns.add(fail)
    visits.add(1)
    with pytest.raises(RuntimeError):
        visits.turn()
    assert visits.turn() == [1]


def test_a_connection_may_go_on_for_long_only_while_no_other_waits() -> None:
    """LM10"""
    visits = Visits()
    assert visits.turns.share_s == TURN_S
    visits.add(1)
    assert visits.turns.share_s == 0
    visits.turn()
    assert visits.turns.share_s == TURN_S
