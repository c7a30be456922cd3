"""Waiting, and running handlers side by side, in asyncio. Written by hand, as is its twin in `blocking`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from topics.client.protocol.stopping import Stop
from topics.clock import SystemClock

E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)  # what ends a call from outside


class AsyncClock(Protocol):
    """Time for an AsyncClient; every `topics.clock.Clock` will do."""

    def monotonic(self) -> float: ...

    async def wait(self, future: "asyncio.Future[None]", timeout_ms: float) -> None:
        """Return when `future` is done or the time is over."""
        ...


def system_clock() -> AsyncClock:
    return SystemClock()


def tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call something on the loop, from any thread; nothing if the loop is no more."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


class AsyncEvent(Stop):
    """A Stop that tasks of any event loop may wait for."""

    async def pause(self, clock: AsyncClock, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        with self.ending(lambda: tell(loop, lambda: _end(ended))):
            await clock.wait(ended, seconds * 1000)


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)


async def pause(clock: AsyncClock, seconds: float, over: AsyncEvent) -> None:
    """Wait so long, or until `over` is set."""
    await over.pause(clock, seconds)


def started(export: E) -> E:
    """An export of an AsyncClient begins with its `async with`: nothing can be awaited before."""
    return export


async def beside(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The result of work that takes long: in a thread, so that the loop goes on."""
    return await asyncio.to_thread(work, *args, **named)


class AsyncInbox(Generic[T]):
    """What happened, for one task that waits. Any thread and any signal handler may put something in."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if (waiter := self._waiter) is not None:
            tell(waiter.get_loop(), lambda: _end(waiter))

    async def take(self, seconds: float) -> list[T]:
        """All there is, as soon as there is something; nothing after the time."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if not self._items:
                await asyncio.wait((self._waiter,), timeout=max(0.0, seconds))
        finally:
            self._waiter = None
        return [self._items.popleft() for _ in range(len(self._items))]


AsyncRunner: TypeAlias = "asyncio.Task[object]"  # a handler at work
AsyncHandler: TypeAlias = Callable[..., Awaitable[object]]


class AsyncHandlers:
    """Runs handlers side by side, each in a task, and puts each runner that has ended into an inbox."""

    def __init__(self, inbox: AsyncInbox[Any]) -> None:
        self._inbox = inbox
        self._abandoned: set[AsyncRunner] = set()

    def start(
        self,
        known: Callable[[AsyncRunner], None],
        span: AbstractContextManager[object],
        handler: AsyncHandler,
        *arguments: object,
    ) -> None:
        """Run a handler within a span, once its runner is made known."""

        async def run() -> object:
            with span:
                return await handler(*arguments)

        runner = asyncio.ensure_future(run())
        runner.add_done_callback(self._inbox.put)
        known(runner)

    def abandon(self, runner: AsyncRunner) -> None:
        """Nobody waits for this one any more: cancel it."""
        self._abandoned.add(runner)
        runner.add_done_callback(self._forget)
        runner.cancel()

    def _forget(self, runner: AsyncRunner) -> None:
        self._abandoned.discard(runner)
        failure_of(runner)

    def interrupt(self, runners: Iterable[AsyncRunner], error: BaseException) -> None:
        """The worker ends with an error. If it was cancelled, its handlers are, too, and their jobs are given back."""
        if isinstance(error, asyncio.CancelledError):
            for runner in runners:
                runner.cancel()


def failure_of(runner: AsyncRunner) -> BaseException | None:
    return asyncio.CancelledError() if runner.cancelled() else runner.exception()


AsyncReceipt: TypeAlias = "asyncio.Future[int]"
AsyncCondition: TypeAlias = asyncio.Condition


def new_receipt() -> AsyncReceipt:
    return asyncio.get_running_loop().create_future()


def resolve(receipt: AsyncReceipt, seq: int | None, failure: Exception | None) -> None:
    """Tell what became of a record. Nobody has to look."""
    if receipt.done():
        return
    if failure is None:
        receipt.set_result(seq or 0)
    else:
        receipt.set_exception(failure)
        receipt.exception()


async def wait_for(changed: AsyncCondition, seconds: float | None) -> None:
    """Wait until it is notified, or until the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass


class AsyncSide:
    """Something that runs beside the caller, until it ends by itself."""

    def __init__(self, run: Callable[[], Awaitable[None]], close: Callable[[], object]) -> None:
        self._task = asyncio.ensure_future(run())

    async def join(self) -> None:
        await asyncio.shield(self._task)
