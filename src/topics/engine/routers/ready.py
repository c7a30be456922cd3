"""Routers that have something to do, in the order in which they are served.

Invariants
- Dests take turns, a step each.
- Routers into one dest take turns in the order in which they were created, also if they were blocked. The turn of a
  router lasts until it has come to the head that its source had when the turn began, or is blocked; while it loads a
  page, the dest waits. So no router overtakes an older one, and none waits for ever.
- Routers that are served together change different topics, and none reads a topic that another one changes.
"""

from collections import OrderedDict
from collections.abc import Container, Mapping
from itertools import islice
from typing import Final

from topics.core.routing.table import Router, Routers
from topics.core.state import State

TOGETHER_MAX: Final = 1024  # routers whose steps may share a frame


class ReadyRouters:
    """The ready routers of an instance."""

    def __init__(self) -> None:
        self._news: dict[int, None] = {}  # sources that were written to; their routers are yet to become ready
        self._dests: OrderedDict[int, set[int]] = OrderedDict()  # dest → its ready routers; dests in order
        self._paused: dict[int, set[int]] = {}  # the same for dests that wait for a page
        self._turns: dict[int, tuple[int, int]] = {}  # dest with several ready routers → whose turn it is, up to where

    def __bool__(self) -> bool:
        return bool(self._dests or self._news)

    def __contains__(self, router: Router) -> bool:
        return router.source in self._news or self.is_queued(router)

    def is_queued(self, router: Router) -> bool:
        return any(router.id in queue.get(router.dest, ()) for queue in (self._dests, self._paused))

    def clear(self) -> None:
        for part in (self._news, self._dests, self._paused, self._turns):
            part.clear()

    def add_source(self, source: int) -> None:
        """The routers of a source have something to do, but for those that are blocked."""
        self._news[source] = None

    def add(self, router: Router) -> None:
        ids = self._paused.get(router.dest) if self._paused else None
        if ids is None:
            ids = self._dests.get(router.dest)
        if ids is None:
            self._dests[router.dest] = {router.id}
        else:
            ids.add(router.id)

    def served(self, router: Router, state: State) -> None:
        """The router takes a step: others are next, unless it becomes ready again in its turn."""
        dest = router.dest
        if self._paused and dest in self._paused:
            self._paused[dest].discard(router.id)
            return
        ids = self._dests[dest]
        ids.discard(router.id)
        if ids:
            holder, head = self._turns.get(dest, (0, 0))
            if holder != router.id or router.cursor >= head:
                self._turns[dest] = (router.id, state.by_id[router.source].log.head)
            self._dests.move_to_end(dest)
        else:
            del self._dests[dest]
            if self._turns:
                self._turns.pop(dest, None)

    def pause(self, dest: int) -> None:
        """A router into this dest loads a page."""
        self._paused.setdefault(dest, set()).update(self._dests.pop(dest, ()))

    def go_on(self, dest: int) -> None:
        """The page is loaded, or cannot be."""
        ids = self._paused.pop(dest, None)
        if ids:
            self._dests[dest] = ids

    def peek(self, routers: Mapping[int, Router]) -> Router | None:
        """The router that is served next, unless sources have news."""
        return next((routers.get(self._next(dest, routers)) for dest in self._dests), None)

    def next_together(self, routers: Routers, blocked: Container[int]) -> list[Router]:
        """The next routers whose steps may be committed together; they stay ready until they are served."""
        news, self._news = self._news, {}
        for source in news:
            for router in routers.outgoing.get(source, {}).values():
                if router.id not in blocked:
                    self.add(router)
        together: list[Router] = []
        changed: set[int] = set()
        read: set[int] = set()
        for dest, ids in list(islice(self._dests.items(), TOGETHER_MAX)):
            next_router = routers.by_id.get(next(iter(ids)) if len(ids) == 1 else self._next(dest, routers.by_id))
            if next_router is None:  # it was deleted
                ids.intersection_update(routers.by_id)
                if not ids:
                    del self._dests[dest]
            elif next_router.source not in changed and dest not in read:
                together.append(next_router)
                changed.add(dest)
                read.add(next_router.source)
        return together

    def _next(self, dest: int, routers: Mapping[int, Router]) -> int:
        ids = self._dests[dest]
        if len(ids) == 1:
            return next(iter(ids))
        holder, head = self._turns.get(dest, (0, 0))
        if holder in ids and holder in routers and routers[holder].cursor < head:
            return holder
        return min((id for id in ids if id > holder), default=min(ids))
