"""The pace of what many ask for at once: all of it together has a share of each turn of the event loop (LM10).

Every step of a call that goes on in a task is short by itself. But a client may ask for a hundred things at once, over
HTTP/2, and a hundred short steps in one turn are a long one. Once the share is used up, further steps wait, and then
each turn has one of them, in the order in which they came. The same holds for connections on which more has come than
is done at once: they take `Turns`. Must not know: what the calls and the connections do.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.005  # of one turn of the loop, for the steps of all calls


def call_soon(turn: Callable[[], None]) -> None:
    """Call `turn` in the next turn of the event loop."""
    asyncio.get_running_loop().call_soon(turn)


class Pace:
    """What the steps of calls have had of this turn, and those that wait for another one."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.has_to_wait = False
        self._spent_s = 0.0
        self._is_due = False  # the end of the turn will be noticed
        self._waiting: deque[asyncio.Future[None]] = deque()

    def add(self, spent_s: float) -> None:
        """A step has taken so long."""
        self._spent_s += spent_s
        if self._spent_s > TURN_S:
            self.has_to_wait = True
        self._notice_end()

    def next_turn(self) -> "asyncio.Future[None]":
        """Done when the step of whoever waits for it may be taken."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._notice_end()
        return turn

    def _notice_end(self) -> None:
        if not self._is_due:
            self._is_due = True
            call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        self._spent_s, self._is_due = 0.0, False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self.has_to_wait = bool(self._waiting)
        if self.has_to_wait:
            self._notice_end()


class Turns:
    """Connections that wait for a turn of their own: one after the other has one, as long as the share lasts."""

    def __init__(self, monotonic: Callable[[], float], soon: Callable[[Callable[[], None]], None] = call_soon) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.monotonic = monotonic
        self._soon = soon
        self._is_due = False

    @property
    def share_s(self) -> float:
        """For how long a connection may go on at once; 0: others wait, so it does one thing."""
        return 0.0 if self.waiting else TURN_S

    def add(self, turn: Callable[[], None]) -> None:
        """Call `turn` in a later turn of the event loop, behind those that wait already."""
        self.waiting.append(turn)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._serve)

    def _serve(self) -> None:
        """Those that are added meanwhile have the next turn of the loop."""
        self._is_due = False
        late_at, waiting = self.monotonic() + TURN_S, self.waiting
        try:
            for _ in range(len(waiting)):
                waiting.popleft()()
                if self.monotonic() > late_at:
                    break
        finally:
            if waiting:
                self._serve_soon()


class Paced(Generic[T]):
    """A coroutine whose steps keep to a pace; to be awaited once."""

    def __init__(self, work: Coroutine[Any, Any, T], pace: Pace) -> None:
        self._work = work
        self._pace = pace

    def __await__(self) -> Generator[Any, Any, T]:
        work, pace = self._work, self._pace
        try:
            # An exception has a traceback, and so this frame: what leads from here to it would be a cycle.
            wakes: Any = None
            error: BaseException | None = None
            while True:
                if pace.has_to_wait and error is None:
                    try:
                        yield from pace.next_turn()
                    except asyncio.CancelledError as cancelled:
                        error = cancelled
                began = pace.monotonic()
                try:
                    waits_for = work.send(wakes) if error is None else work.throw(error)
                except StopIteration as ended:
                    given: T = ended.value
                    return given
                finally:
                    wakes = error = None
                    pace.add(pace.monotonic() - began)
                try:
                    wakes = yield waits_for
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    error = thrown
                finally:
                    waits_for = None
        finally:
            work.close()
