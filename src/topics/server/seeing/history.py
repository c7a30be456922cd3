"""What happened lately: a sample a second for ten minutes, and one of ten seconds for a day (OB2).

Owns the samples and when they are taken. Must not know: HTTP, how samples are shown to whom.

A sample holds what was counted since the one before, and how things stood at its end. Samples are rows of numbers in
two rings of fixed size, made at the start: nine thousand rows, one megabyte. Nothing of it survives the process. A
timer looks several times a second whether a sample is due by the server's clock; if the process could not run for a
while there is one sample for all of that time, and `ts` shows the gap.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator
from math import inf, isnan, nan
from typing import Final

from msgspec import Struct

from topics.clock import Clock
from topics.engine.instance import Instance
from topics.server.live.pressure import Pressure
from topics.server.seeing.traffic import Traffic, quantile_s
from topics.tuning import resident_bytes

logger = logging.getLogger("topics.server")

LOOK_S: Final = 0.1
FINE_MS: Final = 1000
FINE_SAMPLES: Final = 600
COARSE_MS: Final = 10_000
COARSE_SAMPLES: Final = 8640
FORECAST_S_MIN: Final = 60.0  # a forecast of less is none
HISTORY_MS_DEFAULT: Final = 60_000
HISTORY_MS_MAX: Final = COARSE_MS * COARSE_SAMPLES


class Errors(Struct, rename={"client": "4xx", "server": "5xx"}):
    """Requests that were answered with an error."""

    client: int
    server: int


class Sample(Struct):
    """What happened in one interval, which ended at `ts`, and how things stood then.

    Times are of requests that did not wait by their client's wish, null if there were none. `pressure` is the highest.
    """

    ts: int
    written: int
    read: int
    delivered: int
    requests: int
    errors: Errors
    p50_ms: float | None
    p99_ms: float | None
    pressure: float
    memory_bytes: int
    disk_free_bytes: int | None
    lost: int


Counts = tuple[int, ...]  # written, read, delivered, requests, 4xx, 5xx, lost
WIDTH: Final = 13  # numbers of a row


class Ring:
    """The last rows of one interval."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._numbers = array("d", bytes(8 * WIDTH * rows))
        self._next = 0  # rows ever added

    @property
    def size_bytes(self) -> int:
        return len(self._numbers) * self._numbers.itemsize

    def add(self, row: "array[float]") -> None:
        start = self._next % self._rows * WIDTH
        self._numbers[start : start + WIDTH] = row
        self._next += 1

    @property
    def newest(self) -> Sample:
        """There must be one."""
        start = (self._next - 1) % self._rows * WIDTH
        return _sample(self._numbers[start : start + WIDTH])

    def since(self, ts: int) -> Iterator[Sample]:
        """The samples that ended after `ts`, the oldest first."""
        for number in range(max(0, self._next - self._rows), self._next):
            start = number % self._rows * WIDTH
            if self._numbers[start] > ts:
                yield _sample(self._numbers[start : start + WIDTH])


def _sample(row: "array[float]") -> Sample:
    ts, written, read, delivered, requests, client, server, lost = map(int, row[:8])
    p50_ms, p99_ms, pressure, memory, free = row[8:]
    return Sample(
        ts=ts,
        written=written,
        read=read,
        delivered=delivered,
        requests=requests,
        errors=Errors(client, server),
        p50_ms=None if isnan(p50_ms) else round(p50_ms, 3),
        p99_ms=None if isnan(p99_ms) else round(p99_ms, 3),
        pressure=round(pressure, 3),
        memory_bytes=int(memory),
        disk_free_bytes=None if isnan(free) else int(free),
        lost=lost,
    )


def seconds_until_full(ring: Ring, since: int) -> float | None:
    """When the disk is full if it goes on filling as it has since then; None: it does not fill, or nobody knows."""
    known = [(one.ts, one.disk_free_bytes) for one in ring.since(since) if one.disk_free_bytes is not None]
    if len(known) < 2:
        return None
    (began, before), (ended, now) = known[0], known[-1]
    seconds, taken = (ended - began) / 1000, before - now
    return None if seconds < FORECAST_S_MIN or taken <= 0 else round(now * seconds / taken, 1)


class Interval:
    """Samples of one length, and what was counted when the last one was taken."""

    def __init__(self, length_ms: int, rows: int) -> None:
        self.length_ms = length_ms
        self.ring = Ring(rows)
        self.due = -inf  # by the monotonic clock
        self.pressure = 0.0  # the highest since the last sample
        self.counts: Counts = ()
        self.times: list[int] = []

    def begin(self, now: float, counts: Counts, times: list[int]) -> None:
        length_s = self.length_ms / 1000
        is_late = now - self.due >= length_s  # by a whole sample: it is not made up for
        self.due = (now if is_late else self.due) + length_s
        self.counts, self.times, self.pressure = counts, times, 0.0


class History:
    """The samples of one server. `delivered` gives how many records were pushed so far."""

    def __init__(self, engine: Instance, traffic: Traffic, pressure: Pressure, delivered: Callable[[], int]) -> None:
        self._engine = engine
        self._clock: Clock = engine.clock
        self._traffic = traffic
        self._pressure = pressure
        self._delivered = delivered
        self.fine = Interval(FINE_MS, FINE_SAMPLES)
        self.coarse = Interval(COARSE_MS, COARSE_SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = False
        self.listeners: set[Callable[[Sample], None]] = set()  # called with every new sample of a second

    # --- life

    def start(self) -> None:
        """Count from now on."""
        now, counts, times = self._clock.monotonic(), self._counts(), self._traffic.times()
        for interval in (self.fine, self.coarse):
            interval.begin(now, counts, times)
        self._has_begun = True
        self._look_later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._look_later()
        try:
            self.take()
        except Exception:
            logger.exception("a sample of the server's history could not be taken")

    # --- samples

    def asked(self, history_ms: int) -> Interval:
        """The interval whose samples reach back so far."""
        return self.fine if history_ms <= FINE_MS * FINE_SAMPLES else self.coarse

    def take(self) -> None:
        """Take the samples that are due."""
        if not self._has_begun:
            return
        now, level = self._clock.monotonic(), self._pressure.level
        for interval in (self.fine, self.coarse):
            interval.pressure = max(interval.pressure, level)
        if now < self.fine.due:
            return
        counts, times = self._counts(), self._traffic.times()
        memory, (free, _) = resident_bytes(), self._engine.figures.disk_room()
        for interval in (self.fine, self.coarse):
            if now >= interval.due:
                interval.ring.add(self._row(interval, counts, times, memory, free))
                interval.begin(now, counts, times)
        if self.listeners:
            newest = self.fine.ring.newest
            for listener in list(self.listeners):
                listener(newest)

    def _row(
        self, interval: Interval, counts: Counts, times: list[int], memory: int, free: int | None
    ) -> "array[float]":
        # What the engine counts starts anew when the log has failed and was read back.
        grown = [max(0, new - old) for new, old in zip(counts, interval.counts, strict=True)]
        buckets = [new - old for new, old in zip(times, interval.times, strict=True)]
        p50_s, p99_s = quantile_s(buckets, 0.5), quantile_s(buckets, 0.99)
        return array(
            "d",
            (
                self._clock.now_ms(),
                *grown,
                nan if p50_s is None else p50_s * 1000,
                nan if p99_s is None else p99_s * 1000,
                interval.pressure,
                memory,
                nan if free is None else free,
            ),
        )

    def _counts(self) -> Counts:
        written, read, lost = self._engine.figures.flows()
        return (written, read, self._delivered(), *self._traffic.totals(), lost)
