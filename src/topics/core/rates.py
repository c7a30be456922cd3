"""How fast a running total grows: one sample a second, kept for a minute.

Owned here: what `records of the last 60 s` means. Pure; nothing of it is logged. A sample is taken by the first growth
of each second, so whoever counts pays one comparison per growth. A topic that nobody writes to has no samples.
"""

from array import array
from bisect import bisect_right
from typing import Final

SECONDS: Final = 60


class Pace:
    """The last minute of a running total."""

    __slots__ = ("_seconds", "_totals")

    def __init__(self) -> None:
        self._seconds = array("q")  # of samples, ascending …
        self._totals = array("q")  # … and the total before the first growth in each

    def sample(self, now_ms: int, total: int) -> int:
        """Note the total before it grows. Gives the time from which on the next sample is due."""
        second = now_ms // 1000
        if not self._seconds or second > self._seconds[-1]:
            stale = bisect_right(self._seconds, second - SECONDS)
            del self._seconds[:stale], self._totals[:stale]
            self._seconds.append(second)
            self._totals.append(total)
        return (second + 1) * 1000

    def shift(self, count: int) -> None:
        """The total grew by `count` that do not count."""
        self._totals = array("q", [total + count for total in self._totals])

    def grown(self, now_ms: int, total: int) -> int:
        """By how much the total has grown in the last minute."""
        index = bisect_right(self._seconds, now_ms // 1000 - SECONDS)
        return total - self._totals[index] if index < len(self._totals) else 0
