"""A clock that stands still until a test moves it."""


class ManualClock:
    """`advance` lets time pass; `set` steps the wall clock alone, as an operator or NTP does."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._passed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._passed_ms / 1000

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time does not go back; use set() to step the wall clock")
        self._now_ms += ms
        self._passed_ms += ms

    def set(self, ms: int) -> None:
        self._now_ms = ms
