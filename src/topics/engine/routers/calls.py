"""Routers as callers see them: create, change, look at, list, delete. What routers do is forwarder.py's.

Answers wait at the gate like all others: what is shown of a router is as durable as its dest, and that there is one at
all is synced.
"""

from bisect import bisect_right
from collections.abc import Callable

from topics.core import decide
from topics.core.routing.table import PutRouter, Router
from topics.engine.answers import RouterState
from topics.engine.gate import Gate, Hall
from topics.engine.routers.forwarder import Forwarder
from topics.engine.routers.owed import OwedCopies
from topics.errors import RouterNotFound


class Routing:
    """The routers of an instance."""

    def __init__(self, hall: Hall, forwarder: Forwarder, owed: OwedCopies) -> None:
        self._ledger, self._gates, self._caps = hall.ledger, hall.gates, hall.caps
        self._forwarder = forwarder
        self._owed = owed
        self._names: list[str] = []  # sorted, as of `_names_version`
        self._names_version: tuple[object, int] | None = None

    async def put(self, command: PutRouter, may_replace: Callable[[str, str], None]) -> tuple[bool, RouterState]:
        """Create or change a router. Gives whether it was created, and what it is. `may_replace`: see the engine's."""
        ledger = self._ledger
        for name in (command.source, command.dest, command.source):
            await ledger.changes.when_unchanging(name)
        present = ledger.state.routers.by_name.get(command.router)
        async with self._gates.refusing(None):
            if present is not None:
                may_replace(ledger.state.by_id[present.source].name, ledger.state.by_id[present.dest].name)
            decided = decide.put_router(ledger.state, command, self._caps)
        is_new = present is None
        if decided:
            ledger.commit(decided)
        router = ledger.state.routers.by_name[command.router]
        shown, gate = self._state(router), self._gate([router])
        await self._gates.wait_open(gate)
        return is_new, shown

    async def show(self, name: str) -> RouterState:
        """One router, after all that its source has was forwarded (DF9)."""

        def look(takes_what_is_warm: bool) -> tuple[RouterState, Gate]:
            state = self._ledger.state
            router = state.routers.by_name.get(name)
            if router is None:
                raise RouterNotFound(name)
            self._owed.make(state.by_id[router.dest])
            return self._state(router), self._gate([router])

        return await self._gates.shown(None, look)

    async def delete(self, name: str) -> bool:
        """Delete a router; its copies stay. False: there was none."""
        ledger = self._ledger
        decided = decide.delete_router(ledger.state, name)
        if decided:
            ledger.commit(decided)
        await self._gates.wait_open(self._gates.of(None))
        return bool(decided)

    async def list_after(
        self, after: str, count: int, wanted: Callable[[RouterState], bool] = lambda router: True
    ) -> tuple[list[RouterState], bool]:
        """Up to `count` routers whose names are above `after` and wanted, sorted; and whether there are more."""
        return await self._gates.shown(None, lambda _: self._list(after, count, wanted))

    def _list(
        self, after: str, count: int, wanted: Callable[[RouterState], bool]
    ) -> tuple[tuple[list[RouterState], bool], Gate]:
        routers = self._ledger.state.routers
        version = (routers, routers.version)
        if self._names_version != version:
            self._names, self._names_version = sorted(routers.by_name), version
        found: list[Router] = []
        shown: list[RouterState] = []
        for name in self._names[bisect_right(self._names, after) :]:
            state = self._state(routers.by_name[name])
            if wanted(state):
                if len(shown) == count:
                    return (shown, True), self._gate(found)
                found.append(routers.by_name[name])
                shown.append(state)
        return (shown, False), self._gate(found)

    def _state(self, router: Router) -> RouterState:
        by_id = self._ledger.state.by_id
        source, dest = by_id[router.source], by_id[router.dest]
        trouble = self._forwarder.trouble(router)
        return RouterState(
            router.name,
            source.name,
            dest.name,
            router.definition,
            router.total,
            source.log.head - router.cursor,
            "running" if trouble is None else "blocked",
            None if trouble is None else trouble.message,
        )

    def _gate(self, routers: list[Router]) -> Gate:
        state = self._ledger.state
        gate = self._gates.of(None)
        for router in routers:
            gate = gate.join(self._gates.of(state.by_id[router.dest]))
        return gate
