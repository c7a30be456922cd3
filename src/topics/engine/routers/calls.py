"""Routers as callers see them: create, change, look at, list, delete. What they do is forwarding.py's.

Answers are held at the ledger's gate like all others: what is shown of a router is as durable as its dest, that there
is one at all is synced.
"""

from bisect import bisect_right
from collections.abc import Callable

from topics.core import decide
from topics.core.decide import Caps
from topics.core.routing.table import PutRouter, Router
from topics.engine.answers import RouterState
from topics.engine.ledger import Gate, Ledger
from topics.engine.routers.forwarder import Behind, Forwarder
from topics.errors import CommitFailed, Refusal, RouterNotFound


class Routing:
    """The routers of an instance."""

    def __init__(self, ledger: Ledger, forwarder: Forwarder, caps: Caps) -> None:
        self._ledger = ledger
        self._forwarder = forwarder
        self._caps = caps
        self._names: list[str] = []  # sorted, as of `_names_version`
        self._names_version: tuple[object, int] | None = None

    async def put(self, command: PutRouter) -> tuple[bool, RouterState]:
        """Create or change a router. Gives whether it was created, and what it is."""
        ledger = self._ledger
        for name in (command.source, command.dest, command.source):
            await ledger.settled(name)
        try:
            decided = decide.put_router(ledger.state, command, self._caps)
        except Refusal:
            await ledger.wait_open(ledger.gate(None))
            raise
        is_new = command.router not in ledger.state.routers.by_name
        if decided:
            await ledger.commit_change(None, decided)
        router = ledger.state.routers.by_name[command.router]
        shown, gate = self._state(router), self._gate([router])
        await ledger.wait_open(gate)
        return is_new, shown

    async def show(self, name: str) -> RouterState:
        """One router, after all that its source has was forwarded (DF9)."""
        ledger = self._ledger
        while True:
            router = ledger.state.routers.by_name.get(name)
            if router is None:
                await ledger.wait_open(ledger.gate(None), at_once=True)
                raise RouterNotFound(name)
            try:
                self._forwarder.carry(ledger.state.by_id[router.dest])
                shown = self._state(router)
                await ledger.wait_open(self._gate([router]), at_once=True)
                return shown
            except Behind as behind:
                await self._forwarder.carry_on(behind.dest)
            except CommitFailed:
                continue

    async def delete(self, name: str) -> bool:
        """Delete a router; its copies stay. False: there was none."""
        ledger = self._ledger
        decided = decide.delete_router(ledger.state, name)
        if decided:
            await ledger.commit_change(None, decided)
        await ledger.wait_open(ledger.gate(None))
        return bool(decided)

    async def list_after(
        self, after: str, count: int, wanted: Callable[[RouterState], bool]
    ) -> tuple[list[RouterState], bool]:
        """Up to `count` routers whose names are above `after` and wanted, sorted; and whether there are more."""
        while True:
            shown, gate, has_more = self._list(after, count, wanted)
            try:
                await self._ledger.wait_open(gate, at_once=True)
                return shown, has_more
            except CommitFailed:
                continue

    def _list(
        self, after: str, count: int, wanted: Callable[[RouterState], bool]
    ) -> tuple[list[RouterState], Gate, bool]:
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
                    return shown, self._gate(found), True
                found.append(routers.by_name[name])
                shown.append(state)
        return shown, self._gate(found), False

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
        gates = [self._ledger.gate(state.by_id[router.dest]) for router in routers]
        synced_at = max([state.names_at, *(gate.synced_at for gate in gates)])
        written_at = max([0, *(gate.written_at for gate in gates)])
        return Gate(synced_at, written_at, self._ledger.wal.generation)
