"""Walks: what routers of one source have found, kept for the others that stand where one stood.

Owns this memory, which is bounded and forgotten when nothing is left to do.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from topics.core.routing.steps import Found, GetRows, reach, walk
from topics.core.routing.table import Router
from topics.core.state import State

SHARED_MIN: Final = 64  # records found that are shared though the source has more by now; fewer are soon found anew
KEPT_BYTES: Final = 16 * 1024 * 1024  # of records found


class Walks:
    """What the routers of an instance have found."""

    def __init__(self, rows: GetRows) -> None:
        self._rows = rows
        self._found: OrderedDict[Hashable, Found] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        self._found.clear()
        self._bytes = 0

    def find(self, state: State, router: Router, last: int) -> Found:
        """What lies behind a router's cursor, up to `last`. Cold: a page of it is not in memory."""
        source, definition = state.by_id[router.source], router.definition
        log, last = source.log, reach(source, router, last)
        if definition.guarantee == "exactly_once":  # it depends on the dest
            return walk(state, router, last, self._rows)
        # What lies behind a cursor grows at its end only, as long as nothing is deleted or lost.
        key = (source.id, router.cursor, log.deleted, log.lost, log.floor)
        key += (definition.match, definition.preserve_node, definition.preserve_tag)  # type: ignore[assignment]
        known = self._found.get(key)
        if known is not None:
            if known.reached == last or (known.reached < last and len(known.sizes) >= SHARED_MIN):
                return known
            return walk(state, router, last, self._rows)
        found = self._found[key] = walk(state, router, last, self._rows)
        self._bytes += sum(found.sizes)
        while self._bytes > KEPT_BYTES:
            self._bytes -= sum(self._found.popitem(last=False)[1].sizes)
        return found
