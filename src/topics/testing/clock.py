"""A clock that stands still until a test moves it."""

import asyncio
from typing import Any


class ManualClock:
    """`advance` lets time pass; `set` steps the wall clock alone, as an operator or NTP does."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._passed_ms = 0
        self._waits: dict[asyncio.Future[None], float] = {}  # what ends each wait, and when

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._passed_ms / 1000

    def cpu_seconds(self) -> float:
        return 0.0

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        over = asyncio.get_running_loop().create_future()
        self._waits[over] = self._passed_ms + timeout_ms
        self._end_waits()
        try:
            await asyncio.wait([future, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits.pop(over, None)

    @property
    def waits(self) -> int:
        """How many callers of `wait` have time left, so that a test knows when to advance."""
        return len(self._waits)

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time does not go back; use set() to step the wall clock")
        self._now_ms += ms
        self._passed_ms += ms
        self._end_waits()

    def set(self, ms: int) -> None:
        self._now_ms = ms

    def _end_waits(self) -> None:
        for over in [over for over, end_ms in self._waits.items() if end_ms <= self._passed_ms]:
            del self._waits[over]
            over.set_result(None)
