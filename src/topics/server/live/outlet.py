"""Long-lived connections: heartbeats while they are silent, and clients that do not read.

Owns the timer that all of them share (`Wheel`) and the handling of slow consumers (`Outlet`, SS19, SS26). Must not
know: what is written, topics, HTTP.

A slow consumer costs what its transport buffers and nothing else: while it is blocked, nothing is rendered for it.
Blocked for STALLED_MS it counts as stalled, and its next read says so; blocked for TOO_SLOW_MS it is disconnected. A
client that takes bytes, however slowly, is not blocked.

All times are milliseconds of the monotonic clock.

Invariants: an outlet is in at most one slot of the wheel; there is no timer and no task per connection; the wheel
runs only while it holds something.
"""

import asyncio
import logging
from typing import Final

from topics.clock import Clock

logger = logging.getLogger("topics.server")

TICK_MS: Final = 250
TURN: Final = 64  # outlets checked in one turn of the loop
LOOK_MS: Final = 1  # a blocked outlet is checked at every tick
STALLED_MS: Final = 5000
TOO_SLOW_MS: Final = 30_000
NEVER: Final = 1 << 62


class Outlet:
    """One long-lived connection. Subclasses say how to write to it."""

    __slots__ = ("blocked_at", "is_over", "is_stalled", "sent_at", "slot", "unsent_bytes", "wheel")

    def __init__(self, wheel: "Wheel") -> None:
        self.wheel = wheel
        self.slot = 0  # of the wheel; 0 = in none
        self.blocked_at = NEVER  # since when the peer has taken nothing; NEVER = it is not blocked
        self.unsent_bytes = 0  # as of `blocked_at`
        self.is_stalled = False  # it was blocked for STALLED_MS, and has not been written to since
        self.is_over = False
        self.sent_at = 0  # when something was last sent, where silence is counted from that

    # --- what a subclass gives

    @property
    def is_blocked(self) -> bool:
        """The transport takes no more for now."""
        raise NotImplementedError

    @property
    def buffered(self) -> int:
        """Bytes that the transport holds."""
        raise NotImplementedError

    def beat(self, now: int) -> int:
        """Send a heartbeat if one is due. Returns when to check again; NEVER = not at all."""
        raise NotImplementedError

    def too_slow(self) -> None:
        """End the connection, and try to say why."""
        raise NotImplementedError

    # --- slow consumers

    def is_stuck(self) -> bool:
        """Whether nothing should be written for now. Ask before rendering something, and after writing."""
        if not self.is_blocked:
            return False
        if self.blocked_at == NEVER:
            self.blocked_at, self.unsent_bytes = self.wheel.now, self.buffered
            self.wheel.add(self, self.blocked_at + LOOK_MS)
        return True

    def unblocked(self) -> bool:
        """The transport takes more again. Returns whether the consumer had stalled."""
        was_stalled, self.is_stalled = self.is_stalled, False
        self.blocked_at = NEVER
        return was_stalled

    def check(self, now: int) -> int:
        """Called by the wheel: do what is due by now; returns when to check again."""
        if self.blocked_at == NEVER:
            return self.beat(now)
        if self.buffered < self.unsent_bytes:
            self.blocked_at, self.unsent_bytes = now, self.buffered
        elif now - self.blocked_at >= TOO_SLOW_MS:
            self.too_slow()
            return NEVER
        elif now - self.blocked_at >= STALLED_MS:
            self.is_stalled = True
        return now + LOOK_MS


class Wheel:
    """Calls `check` of each outlet at the time it asked for, in coarse ticks."""

    def __init__(self, clock: Clock, tick_ms: int = TICK_MS) -> None:
        self.clock = clock
        self._tick_ms = tick_ms
        self._slots: dict[int, set[Outlet]] = {}  # by number of tick
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Future[None] | None = None

    @property
    def now(self) -> int:
        """Milliseconds of the monotonic clock."""
        return round(self.clock.monotonic() * 1000)

    def add(self, outlet: Outlet, at: int) -> None:
        """Check `outlet` at this time, or earlier if it asked for an earlier one before."""
        if at == NEVER or outlet.is_over:
            return
        slot = max(1, -(-at // self._tick_ms))
        if outlet.slot:
            if outlet.slot <= slot:
                return
            self.discard(outlet)
        outlet.slot = slot
        self._slots.setdefault(slot, set()).add(outlet)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def discard(self, outlet: Outlet) -> None:
        slot, outlet.slot = self._slots.get(outlet.slot), 0
        if slot is not None:
            slot.discard(outlet)

    def stop(self) -> None:
        """For the end of the server."""
        self._slots.clear()
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    async def _run(self) -> None:
        self._stop = asyncio.get_running_loop().create_future()
        try:
            while self._slots:
                await self.clock.wait(self._stop, self._tick_ms)
                await self._tick()
        finally:
            self._task = None

    async def _tick(self) -> None:
        """Check all outlets that are due. There may be thousands, so the loop turns in between."""
        now = self.now
        due = sorted(number for number in self._slots if number <= now // self._tick_ms)
        for count, outlet in enumerate([outlet for number in due for outlet in self._slots.pop(number)], 1):
            outlet.slot = 0
            if not outlet.is_over:
                self._check(outlet, now)
            if not count % TURN:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # a clock whose waits take no time must not keep the loop

    def _check(self, outlet: Outlet, now: int) -> None:
        try:
            self.add(outlet, outlet.check(now))
        except Exception:
            logger.exception("a stream could not be checked")
