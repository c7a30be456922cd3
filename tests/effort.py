"""Effort: how hard a test that samples tries, sweeps in one test, and how much work a loop does in one piece.

A test that samples tries fully, or a tenth of it in the quick run (`pytest --quick`).

The choice is a profile of Hypothesis, which tests/conftest.py loads before it collects: `@given` follows it by itself,
and what counts its own tries asks here. A sampled test must hold for any number of tries.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

QUICK = "quick"
USUAL = "usual"
TICK_S = 0.001
QUICK_PART = 10  # the quick run tries one in so many

# A busy machine is slow, which is no failure of a test: neither an example nor its making has a deadline.
settings.register_profile(USUAL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile(USUAL), max_examples=10)


def tries(usual: int) -> int:
    """This many, or a tenth of it, but at least two."""
    return max(2, usual // QUICK_PART) if is_quick() else usual


def stride() -> int:
    """For sweeps over everything: every one, or every tenth."""
    return QUICK_PART if is_quick() else 1


def sampled(values: Iterable[Any]) -> list[Any]:
    """For `parametrize`, where values go the same way and take seconds each: every second one is marked `full`."""
    return [pytest.param(value, marks=pytest.mark.full) if n % 2 else value for n, value in enumerate(values)]


def swept(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `parametrize`, for hundreds of values that take microseconds each: one test tries them all.

    A failure names its value. All values share the fixtures of that test.
    """
    tried = list(values)
    assert tried, f"there is no {name} to try"

    def sweep(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def try_all(**given: Any) -> None:
            for value in tried:
                try:
                    test(**given, **{name: value})
                except BaseException as error:
                    error.add_note(f"{name} = {value!r}")
                    raise

        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        try_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return try_all

    return sweep


def is_quick() -> bool:
    return settings.get_current_profile_name() == QUICK


class Turns:
    """The most processor time that a loop's own thread spent in one turn, or in some that follow each other closely."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.worst_s = 0.0
        self._loop = loop
        self._before = time.thread_time()
        self._next = loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.worst_s, self._before = max(self.worst_s, now - self._before), now
        self._next = self._loop.call_later(TICK_S, self._turn)

    def stop(self) -> None:
        """Count what is under way, and no more."""
        self._next.cancel()
        self.worst_s = max(self.worst_s, time.thread_time() - self._before)


@contextmanager
def turns_measured() -> Iterator[Turns]:
    """Measure the turns of the running loop; between two of them there must be an await."""
    turns = Turns(asyncio.get_running_loop())
    try:
        yield turns
    finally:
        turns.stop()
