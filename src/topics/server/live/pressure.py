"""Pressure: how close the server is to its limit, and which requests have to wait because of it.

Owns the measurement (lag of the event loop, fill of the log's queue, PR5) and the parking of requests (PR7). Must not
know: routes, what a request does.

The level is between 0.0 and 1.0. At REFUSING_AT, or while the log's queue is full, requests are parked; a parked
request goes on as soon as the pressure is gone, and is refused after PARKED_MS_MAX. Before that, from SLOWING_AT of the
log's queue on, writes are slowed: each waits in proportion to its size, and longer as the queue fills. A client that
waits for its answers settles at the pace of the disk, and is not refused.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from topics.clock import Clock, SystemClock
from topics.errors import Throttled

MEASURE_S: Final = 0.05
LAG_S_MAX: Final = 1.0  # at this lag the loop is at its limit
DECAY: Final = 0.5  # weight of the last measurement in the next
COALESCING_AT: Final = 0.25  # pushes wait a little from here on, so that frames become fewer and larger
DEFERRING_AT: Final = 0.5  # pushes and routers of low priority wait from here on …
RESUMING_AT: Final = 0.25  # … until here
SLOWING_AT: Final = 0.75  # of the log's queue: writes wait a little from here on
SLOWED_BYTES: Final = 64 * 1024  # a write of as many waits up to PARKED_MS_MAX as the queue gets full
SLOWED_MS_MIN: Final = 10.0  # a shorter wait is none: it would cost more than it spares
REFUSING_AT: Final = 1.0
PARKED_MS_MAX: Final = 1000
RETRY_AFTER_MS: Final = 1000


class LoopLag:
    """How late the event loop runs its timers, as a fraction of LAG_S_MAX. In real time, whatever the clock."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._expected_at = 0.0
        self.level = 0.0

    def expect(self) -> None:
        self._expected_at = self._clock.monotonic() + MEASURE_S

    def measure(self) -> None:
        late_s = max(0.0, self._clock.monotonic() - self._expected_at)
        self.level = min(1.0, max(late_s / LAG_S_MAX, self.level * DECAY))


class Pressure:
    def __init__(self, clock: Clock, fill: Callable[[], float], source: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._lag = LoopLag()
        self._timer: asyncio.TimerHandle | None = None
        self._parked: set[asyncio.Future[None]] = set()
        self._slowed: set[asyncio.Future[None]] = set()
        self._fill = fill
        self.source = source or (lambda: max(self._lag.level, fill()))
        self.level = 0.0
        self.is_deferring = False
        self._listeners: list[Callable[[bool], None]] = []  # of `is_deferring`
        self.is_refusing = False  # a request has to wait
        self._slowing_ms = 0.0  # for a write of SLOWED_BYTES
        self.parked_total = 0
        self.refused_total = 0

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` when deferring begins (True), and when it ends."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Measure from now on, every MEASURE_S."""
        self._lag.expect()
        self._timer = asyncio.get_running_loop().call_later(MEASURE_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._lag.measure()
        self.measure()
        self.start()

    def measure(self) -> None:
        """Read the source, tell the listeners, and let parked requests go on if there is no need to wait."""
        self.level = self.source()
        was_deferring = self.is_deferring
        self.is_deferring = self.level >= (RESUMING_AT if was_deferring else DEFERRING_AT)
        if self.is_deferring is not was_deferring:
            for listener in self._listeners:
                listener(self.is_deferring)
        fill = self._fill()
        self.is_refusing = self.level >= REFUSING_AT or fill >= REFUSING_AT
        above = max(0.0, fill - SLOWING_AT) / (REFUSING_AT - SLOWING_AT)
        self._slowing_ms = PARKED_MS_MAX * min(1.0, above * above)
        if not self.is_refusing:
            _relieve(self._parked)
        if not self._slowing_ms:
            _relieve(self._slowed)

    def slows(self, size: int) -> bool:
        """Whether a write of so many bytes has to wait, if it is not parked."""
        return self._slowing_ms > 0.0 and self.slowed_ms(size) > 0.0

    def slowed_ms(self, size: int) -> float:
        """How long a write of so many bytes waits at this fill of the log's queue."""
        wait_ms = min(PARKED_MS_MAX, self._slowing_ms * size / SLOWED_BYTES)
        return wait_ms if wait_ms >= SLOWED_MS_MIN else 0.0

    async def hold(self, size: int, stop: "asyncio.Future[None]", *, for_ever: bool = False) -> float:
        """Let a write of so many bytes wait as long as it has to; gives and raises what `park` does."""
        started = self._clock.monotonic()
        if not self.is_refusing:
            await self._wait(self._slowed, self.slowed_ms(size), stop)
        if self.is_refusing:
            await self.park(stop, for_ever=for_ever)
        return (self._clock.monotonic() - started) * 1000

    async def park(self, stop: "asyncio.Future[None]", *, for_ever: bool = False) -> float:
        """Wait until the pressure is gone; gives how long that took, in milliseconds. Throttled: it took too long.

        `stop` ends the wait as well: nobody waits for the answer any more, or the server is about to stop.
        """
        started = self._clock.monotonic()
        self.parked_total += 1
        while self.is_refusing:
            waited_ms = (self._clock.monotonic() - started) * 1000
            if stop.done() or (waited_ms >= PARKED_MS_MAX and not for_ever):
                self.refused_total += 1
                raise Throttled("the server is at its limit; try again later", retry_after_ms=RETRY_AFTER_MS)
            await self._wait(self._parked, PARKED_MS_MAX if for_ever else PARKED_MS_MAX - waited_ms, stop)
        return (self._clock.monotonic() - started) * 1000

    async def _wait(self, waiting: "set[asyncio.Future[None]]", wait_ms: float, stop: "asyncio.Future[None]") -> None:
        relief = asyncio.get_running_loop().create_future()

        def stopped(_: object) -> None:
            if not relief.done():
                relief.set_result(None)

        stop.add_done_callback(stopped)
        waiting.add(relief)
        try:
            await self._clock.wait(relief, wait_ms)
        finally:
            waiting.discard(relief)
            with suppress(ValueError):
                stop.remove_done_callback(stopped)


def _relieve(waiting: "set[asyncio.Future[None]]") -> None:
    for relief in waiting:
        if not relief.done():
            relief.set_result(None)
