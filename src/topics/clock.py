"""Time. The only module that reads a clock; everything else is given one.

`now_ms` is the wall clock in epoch milliseconds, the time of records and
leases. `monotonic` is for durations shown in answers and for deadlines of
waits; it never steps.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.perf_counter()
