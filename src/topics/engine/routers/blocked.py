"""Routers that cannot go on: which, why, and when each is tried again.

Owns the blocked routers of an instance and the one timer for all of them. Must not know what routers do: a router whose
time has come is handed back to the forwarder.

Invariants: a blocked router is tried again when its dest changes (`Ledger.awaited`), or after a time that doubles with
each failure. A router that is deferred under pressure is blocked without an error, and tried again soon.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from topics.clock import Clock
from topics.core.routing.table import Router
from topics.engine.ledger import Ledger
from topics.errors import TopicsError

RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 5_000
DEFERRED_MS: Final = 100


class Blocked(Struct):
    """Why a router cannot go on, and when it is tried again. No error: it is deferred."""

    error: TopicsError | None
    delay_ms: float
    retry_at: float


class BlockedRouters:
    """The blocked routers of an instance, by id."""

    def __init__(self, ledger: Ledger, clock: Clock, try_again: Callable[[Router], None]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._try_again = try_again
        self.by_id: dict[int, Blocked] = {}
        self._is_running = False
        self._retrying: asyncio.Task[None] | None = None
        self._retry_soon: asyncio.Future[None] | None = None

    def __contains__(self, router: int) -> bool:
        return router in self.by_id

    def start(self) -> None:
        """Try them again from now on."""
        self._is_running = True

    def clear(self) -> None:
        self.by_id.clear()
        self._ledger.awaited.clear()

    async def stop(self) -> None:
        self._is_running = False
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])

    def add(self, router: Router, error: TopicsError | None) -> None:
        """Try a router again later, after twice the time of the last attempt."""
        before = self.by_id.get(router.id)
        delay_ms: float = RETRY_MS_MIN if error is not None else DEFERRED_MS
        if before is not None and error is not None and before.error is not None:
            delay_ms = min(RETRY_MS_MAX, before.delay_ms * 2)
        self.by_id[router.id] = Blocked(error, delay_ms, self._clock.monotonic() + delay_ms / 1000)
        self._ledger.awaited.add(router.dest)
        if self._retrying is None and self._is_running:
            self._retrying = asyncio.create_task(self._retry())
        elif self._retry_soon is not None and not self._retry_soon.done():
            self._retry_soon.set_result(None)

    def remove(self, router: Router) -> None:
        """The router can go on."""
        if self.by_id.pop(router.id, None) is not None:
            others = self._ledger.state.routers.incoming.get(router.dest, ())
            if not any(other in self.by_id for other in others):
                self._ledger.awaited.discard(router.dest)

    def resume(self) -> None:
        """Deferred routers go on."""
        for router, blocked in self._present():
            if blocked.error is None:
                self.remove(router)
                self._try_again(router)

    def _present(self) -> list[tuple[Router, Blocked]]:
        """Those that are blocked; routers that were deleted are forgotten."""
        routers = self._ledger.state.routers.by_id
        for gone in self.by_id.keys() - routers.keys():
            del self.by_id[gone]
        return [(routers[router], blocked) for router, blocked in self.by_id.items()]

    async def _retry(self) -> None:
        """Try each again when it is due."""
        try:
            while self.by_id:
                now = self._clock.monotonic()
                for router, blocked in self._present():
                    if blocked.retry_at <= now:
                        if blocked.error is None:
                            self.remove(router)
                        self._try_again(router)
                waits = [one.retry_at for one in self.by_id.values() if one.retry_at > now]
                if self.by_id:
                    self._retry_soon = asyncio.get_running_loop().create_future()
                    wait_ms = (min(waits) - now) * 1000 if waits else RETRY_MS_MIN
                    await self._clock.wait(self._retry_soon, max(1.0, wait_ms))
        finally:
            self._retrying = self._retry_soon = None
