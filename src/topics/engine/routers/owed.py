"""Owed copies: a reader of a dest sees what was written upstream of it before (DF9).

Owns which copies a reader waits for. Makes them by steps of the forwarder, outside of its passes and whatever their
pace.
"""

import asyncio
from collections.abc import Iterator
from math import inf
from typing import Final

from topics.core.routing.table import HOPS_MAX, Router
from topics.core.state import Topic
from topics.core.topic.pages import Cold
from topics.engine.gate import Hall
from topics.engine.routers.forwarder import Forwarder
from topics.errors import CommitFailed

SLICE_S: Final = 0.002  # of forwarding for one reader before others get their turn


class OwedCopies:
    """The copies that the routers of an instance owe its readers."""

    def __init__(self, hall: Hall, forwarder: Forwarder) -> None:
        self._ledger, self._gates, self._clock = hall.ledger, hall.gates, hall.clock
        self._forwarder = forwarder
        self._paid = 0  # the dest that was just paid in full, and is about to be read

    def make(self, dest: Topic) -> None:
        """Make the copies of all that was committed upstream of a topic. Cold: it takes more than a slice."""
        if dest.id not in self._ledger.state.routers.incoming:
            return
        if self._paid == dest.id:
            self._forget_paid()
            return
        until = self._clock.monotonic() + SLICE_S
        for router in self._upstream(dest.id, set()):
            if not self._catch_up(router, self._head(router), until):
                raise Cold(dest.id)

    async def make_all(self, dest: int, end_at: float = inf) -> None:
        """Make them, for as long as it takes or until `end_at`; the topic is then read without asking again."""
        state = self._ledger.state
        for router in list(self._upstream(dest, set())):
            head = self._head(router) if router.source in state.by_id else 0
            while state is self._ledger.state and state.routers.by_id.get(router.id) is router:
                if self._clock.monotonic() > end_at:
                    return
                if self._catch_up(router, head, self._clock.monotonic() + SLICE_S):
                    break
                await self._wait_for(router)
        self._paid = dest
        asyncio.get_running_loop().call_soon(self._forget_paid)

    async def make_everywhere(self, end_at: float) -> None:
        """Forward all that can be forwarded until then (SC3)."""
        self._forwarder.end_deferral()
        for _ in range(HOPS_MAX + 1):
            state, blocked = self._ledger.state, self._forwarder.blocked
            behind = [
                router.dest
                for router in state.routers.by_id.values()
                if router.cursor < self._head(router) and router.id not in blocked
            ]
            for dest in dict.fromkeys(behind):
                await self.make_all(dest, end_at)
            if not behind or self._ledger.broken is not None or self._clock.monotonic() > end_at:
                return

    def _head(self, router: Router) -> int:
        return self._ledger.state.by_id[router.source].log.head

    def _forget_paid(self) -> None:
        self._paid = 0

    def _upstream(self, dest: int, seen: set[int]) -> Iterator[Router]:
        """The routers on all ways into a topic, each once, those nearer to the sources first."""
        for router in list(self._ledger.state.routers.incoming.get(dest, {}).values()):
            if router.id not in seen:
                seen.add(router.id)
                yield from self._upstream(router.source, seen)
                yield router

    def _catch_up(self, router: Router, head: int, until: float) -> bool:
        """Forward what the source has up to `head`, as far as the router is not blocked. False: it takes longer."""
        forwarder = self._forwarder
        if router.cursor < head:
            forwarder.expire(router)
        while router.cursor < head:
            if router.id in forwarder.blocked and not forwarder.ready.is_queued(router):
                return True
            step = None if router.id in forwarder.loading else forwarder.step(router)
            if step is None:
                return router.id in forwarder.blocked or router.cursor >= head
            forwarder.commit([step])
            if router.id in forwarder.blocked:
                return True
            if router.cursor < head and self._clock.monotonic() >= until:
                return False
        return True

    async def _wait_for(self, router: Router) -> None:
        """Wait for what keeps a router, which is not blocked, from going on."""
        loading, gate = self._forwarder.loading.get(router.id), self._forwarder.lasting.gate_of(router)
        if loading is not None:
            await asyncio.wait([loading])
            return
        if gate is not None:
            try:
                await self._gates.wait_open(gate, at_once=True)
                return
            except CommitFailed:
                pass
        await asyncio.sleep(0)
