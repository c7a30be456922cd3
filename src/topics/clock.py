"""Time. The only module that reads a clock; everything else is given one.

`now_ms` is the wall clock in epoch milliseconds, the time of records and
leases. `monotonic` is for durations shown in answers and for deadlines of
waits; it never steps.
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
