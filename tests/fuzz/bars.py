"""What an input may cost: CPU time in one piece and in all, and memory.

A single measurement may be noise, so one above a bar counts only if the input costs as much every time it is tried
again. `FACTOR` is for what the measurement itself costs: coverage makes Python several times slower.
"""

import resource
import time
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.05  # of CPU, in one piece: what another connection may have to wait for
TOTAL_S: Final = 2.0  # of CPU, on the loop and beside it, for an input of at most INPUT_BYTES_MAX
MEMORY_BYTES: Final = 64 * 1024 * 1024  # beyond the bytes that were sent
REPEATS: Final = 4
FACTOR = 2.0


class TooMuch(AssertionError):
    """An input costs more than a bar allows, time and again."""


class Meter:
    """What one input has cost so far."""

    def __init__(self) -> None:
        self.turn_s = 0.0  # the longest piece
        self.total_s = 0.0
        self._peak_before = peak_bytes()

    def run(self, work: Callable[[], object], beside: Callable[[], float] = lambda: 0.0) -> None:
        """Do one piece of work; what it did `beside` the loop counts to the total only."""
        before_s, beside_s = time.thread_time(), beside()
        work()
        took_s = time.thread_time() - before_s
        self.turn_s = max(self.turn_s, took_s - (beside() - beside_s))
        self.total_s += took_s

    @property
    def grown_bytes(self) -> int:
        """By how much the most memory that the process ever had has grown."""
        return peak_bytes() - self._peak_before

    def excess(self, sent_bytes: int) -> str:
        """What was too much; empty if nothing was."""
        if self.turn_s > TURN_S * FACTOR:
            return f"{self.turn_s * 1000:.0f} ms of CPU in one piece"
        if self.total_s > TOTAL_S * FACTOR:
            return f"{self.total_s:.1f} s of CPU"
        if self.grown_bytes > sent_bytes + MEMORY_BYTES:
            return f"{self.grown_bytes >> 20} MiB of memory for {sent_bytes} bytes"
        return ""


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(cost: Callable[[], tuple[Meter, int]]) -> None:
    """Pay once; if that is too much, pay again, and fail if it is too much every time."""
    meter, sent_bytes = cost()
    excess = meter.excess(sent_bytes)
    if not excess:
        return
    if "memory" not in excess:  # the most memory ever is not reached twice
        for _ in range(REPEATS):
            meter, sent_bytes = cost()
            if not meter.excess(sent_bytes):
                return
    raise TooMuch(excess)
