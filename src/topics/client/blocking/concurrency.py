"""Waiting, and running handlers side by side, in threads. Written by hand, as is its twin in `aio`."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event as Event
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from topics.client.results import Job
from topics.clock import SystemClock

Handler: TypeAlias = Callable[[Job], object]
Runner: TypeAlias = Future[object]  # a handler at work


class BlockingClock(Protocol):
    """Time for a blocking client."""

    def monotonic(self) -> float: ...

    def pause(self, seconds: float, over: Event) -> None:
        """Return after the time, or when `over` is set."""
        ...


class SystemPause(SystemClock):
    """The machine's time."""

    def pause(self, seconds: float, over: Event) -> None:
        over.wait(seconds)


def system_clock() -> BlockingClock:
    return SystemPause()


def pause(clock: BlockingClock, seconds: float, over: Event) -> None:
    """Wait so long, or until `over` is set."""
    clock.pause(seconds, over)


class Handlers:
    """Runs one handler for many jobs at a time, each in a thread."""

    def __init__(self, handler: Handler, slots: int) -> None:
        self._handler = handler
        self._threads = ThreadPoolExecutor(slots, "topics-worker")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def start(self, job: Job) -> Runner:
        return self._threads.submit(self._handler, job)

    def interrupt(self, runners: Iterable[Runner], error: BaseException) -> None:
        """The worker ends with an error. A thread cannot be cancelled: its handler is waited for."""


def ended(runners: Iterable[Runner], seconds: float) -> set[Runner]:
    """Those that have ended, as soon as there is one, or none after the time."""
    return wait(runners, seconds, FIRST_COMPLETED).done


def failure_of(runner: Runner) -> BaseException | None:
    return runner.exception()


class Enterable(Protocol):
    def __enter__(self) -> Any: ...


E = TypeVar("E", bound=Enterable)


def started(export: E) -> E:
    """An export of a blocking client begins at once; a `with` only ends it."""
    export.__enter__()
    return export
