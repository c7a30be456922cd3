"""Routers that have something to do, in the order in which they are served.

Invariants
- Dests take turns. Routers into one dest take turns, too, in the order in which they were created: a router that
  becomes ready, for whatever reason, is served before those that were created after it, unless it was served already in
  this round.
- Routers that are served together change different topics, and none reads a topic that another one changes.
"""

from collections import OrderedDict
from collections.abc import Container, Mapping
from itertools import islice
from typing import Final

from topics.core.routing.table import Router, Routers

TOGETHER_MAX: Final = 1024  # routers whose steps may share a frame


class ReadyRouters:
    """The ready routers of an instance."""

    def __init__(self) -> None:
        self._news: dict[int, None] = {}  # sources that were written to; their routers are yet to become ready
        self._dests: OrderedDict[int, set[int]] = OrderedDict()  # dest → its ready routers; dests in order
        self._served: dict[int, int] = {}  # dest with more ready routers → the one that was served last

    def __bool__(self) -> bool:
        return bool(self._dests or self._news)

    def __contains__(self, router: Router) -> bool:
        return router.source in self._news or self.is_queued(router)

    def is_queued(self, router: Router) -> bool:
        return router.id in self._dests.get(router.dest, ())

    def clear(self) -> None:
        self._news.clear()
        self._dests.clear()
        self._served.clear()

    def add_source(self, source: int) -> None:
        """The routers of a source have something to do, but for those that are blocked."""
        self._news[source] = None

    def add(self, router: Router) -> None:
        ids = self._dests.get(router.dest)
        if ids is None:
            self._dests[router.dest] = {router.id}
        else:
            ids.add(router.id)

    def remove(self, router: Router) -> None:
        """The router was served, or is gone: the turn of its dest is over."""
        ids = self._dests.get(router.dest, set())
        ids.discard(router.id)
        if ids:
            self._served[router.dest] = router.id
            self._dests.move_to_end(router.dest)
        else:
            self._dests.pop(router.dest, None)
            self._served.pop(router.dest, None)

    def peek(self, routers: Mapping[int, Router]) -> Router | None:
        """The router that is served next, unless sources have news."""
        return next((routers.get(self._next(dest)) for dest in self._dests), None)

    def next_together(self, routers: Routers, blocked: Container[int]) -> list[Router]:
        """The next routers whose steps may be committed together; they stay ready until they are removed."""
        self._take_news(routers, blocked)
        together: list[Router] = []
        changed: set[int] = set()
        read: set[int] = set()
        for dest in list(islice(self._dests, TOGETHER_MAX)):
            router = routers.by_id.get(self._next(dest))
            if router is None:
                self._forget_gone(dest, routers)
            elif router.source not in changed and dest not in read:
                together.append(router)
                changed.add(dest)
                read.add(router.source)
        return together

    def _take_news(self, routers: Routers, blocked: Container[int]) -> None:
        news, self._news = self._news, {}
        for source in news:
            for router in routers.outgoing.get(source, {}).values():
                if router.id not in blocked:
                    self.add(router)

    def _next(self, dest: int) -> int:
        ids = self._dests[dest]
        if len(ids) == 1:
            return next(iter(ids))
        served = self._served.get(dest, 0)
        return min((id for id in ids if id > served), default=min(ids))

    def _forget_gone(self, dest: int, routers: Routers) -> None:
        self._dests[dest].intersection_update(routers.by_id)
        if not self._dests[dest]:
            del self._dests[dest]
            self._served.pop(dest, None)
