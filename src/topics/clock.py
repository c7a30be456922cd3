"""Time. The only module that reads a clock; everything else is given one.

`now_ms` is the wall clock in epoch milliseconds, the time of records and leases. `monotonic` is for durations shown in
answers and for deadlines of waits; it never steps.
"""

import asyncio
import time
from typing import Any, Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point."""
        ...

    def cpu_seconds(self) -> float:
        """Processor time that this thread has used."""
        ...

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        """Return when `future` is done or the time is over; the future is left as it is."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.perf_counter()

    def cpu_seconds(self) -> float:
        return time.thread_time()

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        await asyncio.wait([future], timeout=max(0.0, timeout_ms / 1000))


class Alarm:
    """Wakes the one task that sleeps by it. If it is awake when the alarm goes off, it does not fall asleep again.

    `is_ringing` stays until whoever was woken sets it back.
    """

    def __init__(self) -> None:
        self.is_ringing = False
        self._sleep: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.is_ringing = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    async def sleep(self, clock: Clock, timeout_ms: float | None) -> None:
        """Wait until the alarm goes off, at most so long; None = as long as it takes."""
        if not self.is_ringing:
            self._sleep = asyncio.get_running_loop().create_future()
            await (self._sleep if timeout_ms is None else clock.wait(self._sleep, timeout_ms))
