"""Waiting, and running handlers side by side, in asyncio. Written by hand, as is its twin in `blocking`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, Self, TypeAlias, TypeVar

from topics.client.results import Job
from topics.clock import SystemClock

AsyncHandler: TypeAlias = Callable[[Job], Awaitable[object]]
AsyncRunner: TypeAlias = asyncio.Task[object]  # a handler at work
E = TypeVar("E")


class AsyncClock(Protocol):
    """Time for an AsyncClient; every `topics.clock.Clock` will do."""

    def monotonic(self) -> float: ...

    async def wait(self, future: "asyncio.Future[None]", timeout_ms: float) -> None:
        """Return when `future` is done or the time is over."""
        ...


def system_clock() -> AsyncClock:
    return SystemClock()


class AsyncEvent:
    """A flag that ends pauses. Any thread may set it, and any event loop may wait for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._pauses: set[asyncio.Future[None]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for ended in tuple(self._pauses):
            if not (loop := ended.get_loop()).is_closed():
                loop.call_soon_threadsafe(_end, ended)

    async def pause(self, clock: AsyncClock, seconds: float) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._pauses.add(ended)
        if self._is_set:
            _end(ended)
        try:
            await clock.wait(ended, seconds * 1000)
        finally:
            self._pauses.discard(ended)


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)


async def pause(clock: AsyncClock, seconds: float, over: AsyncEvent) -> None:
    """Wait so long, or until `over` is set."""
    await over.pause(clock, seconds)


class AsyncHandlers:
    """Runs one handler for many jobs at a time, each in a task."""

    def __init__(self, handler: AsyncHandler, slots: int) -> None:
        self._handler = handler

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def start(self, job: Job) -> AsyncRunner:
        return asyncio.ensure_future(self._run(job))

    async def _run(self, job: Job) -> object:
        return await self._handler(job)

    def interrupt(self, runners: Iterable[AsyncRunner], error: BaseException) -> None:
        """The worker ends with an error. If it was cancelled, its handlers are, too, and their jobs are given back."""
        if isinstance(error, asyncio.CancelledError):
            for runner in runners:
                runner.cancel()


async def ended(runners: Iterable[AsyncRunner], seconds: float) -> set[AsyncRunner]:
    """Those that have ended, as soon as there is one, or none after the time."""
    return (await asyncio.wait(runners, timeout=seconds, return_when=asyncio.FIRST_COMPLETED))[0]


def failure_of(runner: AsyncRunner) -> BaseException | None:
    return asyncio.CancelledError() if runner.cancelled() else runner.exception()


def started(export: E) -> E:
    """An export of an AsyncClient begins with its `async with`: nothing can be awaited before."""
    return export
