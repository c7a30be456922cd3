"""Waiting, and running handlers side by side, in threads. Written by hand, as is its twin in `aio`."""

import atexit
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from threading import Condition as Condition
from threading import Lock, Thread
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from topics.client.protocol.stopping import Stop
from topics.clock import SystemClock

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTIONS = (KeyboardInterrupt,)  # what ends a call from outside


class Event(Stop):
    """A Stop that threads may wait for. Not `threading.Event`, which a signal handler must not set."""

    def wait(self, seconds: float) -> bool:
        """Return when it is set, or after the time; whether it is set."""
        over = Lock()
        over.acquire()
        with self.ending(lambda: _release(over)):
            over.acquire(timeout=max(0.0, seconds))
        return self.is_set()


def _release(lock: Lock) -> None:
    try:
        lock.release()
    except RuntimeError:  # it was released before
        pass


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


class Enterable(Protocol):
    def __enter__(self) -> Any: ...


E = TypeVar("E", bound=Enterable)


def started(export: E) -> E:
    """An export of a blocking client begins at once; a `with` only ends it."""
    export.__enter__()
    return export


def beside(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The result of work that takes long. A blocking client has nothing else to do meanwhile."""
    return work(*args, **named)


class Inbox(Generic[T]):
    """What happened, for one thread that waits. Any thread and any signal handler may put something in."""

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()  # its put takes no lock that a signal handler could wait for

    def put(self, item: T) -> None:
        self._items.put(item)

    def take(self, seconds: float) -> list[T]:
        """All there is, as soon as there is something; nothing after the time."""
        items: list[T] = []
        try:
            items.append(self._items.get(timeout=max(0.0, seconds)))
            while True:
                items.append(self._items.get_nowait())
        except Empty:
            return items


Handler: TypeAlias = Callable[..., object]


class Runner:
    """A handler at work in a thread."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def end(self, failure: BaseException | None) -> None:
        self.failure = failure
        self._is_done = True


class Handlers:
    """Runs handlers side by side, each in a thread, and puts each runner that has ended into an inbox."""

    def __init__(self, inbox: Inbox[Any]) -> None:
        self._inbox = inbox

    def start(
        self,
        known: Callable[[Runner], None],
        span: AbstractContextManager[object],
        handler: Handler,
        *arguments: object,
    ) -> None:
        """Run a handler within a span, once its runner is made known."""
        runner = Runner()
        known(runner)

        def run() -> None:
            try:
                with span:
                    handler(*arguments)
            except BaseException as failure:
                runner.end(failure)
            else:
                runner.end(None)
            self._inbox.put(runner)

        try:
            Thread(target=run, name="topics-worker", daemon=True).start()
        except RuntimeError as failure:  # no more threads: the job is given back
            runner.end(failure)
            self._inbox.put(runner)

    def abandon(self, runner: Runner) -> None:
        """Nobody waits for this one any more. A thread cannot be cancelled: it goes on until its handler returns."""

    def interrupt(self, runners: Iterable[Runner], error: BaseException) -> None:
        """The worker ends with an error. Its handlers are waited for."""


def failure_of(runner: Runner) -> BaseException | None:
    return runner.failure


Receipt: TypeAlias = "Future[int]"


def new_receipt() -> Receipt:
    return Future()


def resolve(receipt: Receipt, seq: int | None, failure: Exception | None) -> None:
    """Tell what became of a record. Nobody has to look."""
    if not receipt.set_running_or_notify_cancel():
        return
    if failure is None:
        receipt.set_result(seq or 0)
    else:
        receipt.set_exception(failure)


def wait_for(changed: Condition, seconds: float | None) -> None:
    """Wait until it is notified, or until the time is over."""
    changed.wait(seconds)


class Side:
    """Something that runs beside the caller, until it ends by itself; `close` is called if the program ends first."""

    def __init__(self, run: Callable[[], None], close: Callable[[], object]) -> None:
        self._close = close
        self._thread = Thread(target=run, name="topics-producer", daemon=True)
        self._thread.start()
        atexit.register(close)

    def join(self) -> None:
        self._thread.join()
        atexit.unregister(self._close)
