"""Loading: whatever is needed and not in memory yet, and trying again once it is.

The core never waits: where it lacks a page of a segment, or copies that routers still owe a topic, it raises `Cold`.
Here is the one way on: `load` brings in what is missing, off the loop, once for all who lack it; `until_warm` tries
again. A page that somebody waits for stays in the cache until that caller has tried again, however small the cache is;
so every call ends.

Owns the pages under way and the decoded rows that routers read. Must not know: who asks, and what for.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from topics.core.topic.pages import NEXT_TURN, NO_ROW, PAUSE, Cache, Cold, PageAddress, page_around, render, set_borders
from topics.core.topic.parts import Chunk, Part, Sealed
from topics.errors import Damaged
from topics.model import Columns, TagMatch

T = TypeVar("T")

ROW_PAGES_MAX: Final = 8  # pages of decoded rows that are kept
PAUSES_MAX: Final = 100  # of one call, before it has to do with what is there: a small cache may not keep what it made

Run = Callable[[Callable[[], Any]], Awaitable[Any]]


class Loader:
    """Brings in what an instance lacks."""

    def __init__(self, cache: Cache, run: Run, is_in_force: Callable[[Sealed], bool]) -> None:
        self._cache = cache
        self._run = run
        self._is_in_force = is_in_force
        self.make_copies: Callable[[int], Awaitable[None]] | None = None  # that routers owe a topic
        self._loading: dict[Hashable, asyncio.Task[None]] = {}
        self._rows: OrderedDict[PageAddress, Columns] = OrderedDict()

    def clear(self) -> None:
        """The state was rebuilt: its parts are new ones."""
        self._cache.clear()
        self._rows.clear()

    def rows(self, part: Part, start: int, stop: int) -> Columns:
        """Rows of one page of a part, decoded."""
        if isinstance(part, Chunk):
            return part.columns(start, stop)
        first, _ = page_around(part, start)
        address = PageAddress(part, first, None)
        page = self._rows.get(address)
        if page is None:
            raise Cold(address)
        return page.select([(start - first, stop - first)])

    async def until_warm(self, make: Callable[[bool], T], loads_max: int | None = None) -> T:
        """What `make` gives once nothing is missing any more.

        `make(True)` has to do with what is warm, if that is something at all. It is called when a call needs more pages
        than the cache keeps, or more than `loads_max`, or pauses too often, and when a page is damaged: only a call
        that begins with the damage fails.
        """
        loaded: set[object] = set()
        pauses = 0
        takes_what_is_warm = False
        kept: Hashable = None
        try:
            while True:
                try:
                    return make(takes_what_is_warm)
                except Cold as cold:
                    missing = cold.missing
                    self._cache.let_go(kept)
                    self._cache.keep(missing)
                    kept = missing
                try:
                    await self.load(missing)
                except Damaged:
                    if takes_what_is_warm:
                        raise
                    takes_what_is_warm = True
                if isinstance(missing, PageAddress):
                    takes_what_is_warm |= missing in loaded or len(loaded) == loads_max
                    loaded.add(missing)
                elif missing == PAUSE:
                    pauses += 1
                    takes_what_is_warm |= pauses >= PAUSES_MAX
        finally:
            self._cache.let_go(kept)

    async def load(self, missing: "PageAddress | int") -> None:
        """Bring in a page, or the copies that routers owe the topic with this id; or let others have their turn."""
        if missing in (PAUSE, NEXT_TURN):
            await asyncio.sleep(0)
            return
        if not isinstance(missing, PageAddress):
            assert self.make_copies is not None, "a topic is owed copies, and nobody makes them"
            await self.make_copies(missing)
            return
        loading = self._loading.get(missing)
        if loading is None:
            loading = self._loading[missing] = asyncio.create_task(self._load_page(missing))
        await asyncio.shield(loading)

    async def _load_page(self, address: PageAddress) -> None:
        """In one turn the page is there and no longer under way: another one may drop it in the next."""
        part = address.part
        match = address.projection
        try:
            if isinstance(match, TagMatch):
                self._cache.load_matches(part, match, await self._run(lambda: array("I", sorted(part.matching(match)))))
                return
            if address.start == NO_ROW:
                await self._run(partial(set_borders, part))
            elif address.projection is None:
                self._rows[address] = await self._run(partial(part.columns, *page_around(part, address.start)))
                if len(self._rows) > ROW_PAGES_MAX:
                    self._rows.popitem(last=False)
            else:
                self._cache.load(address, await self._run(lambda: render(address)))
        except Damaged:
            if self._is_in_force(part):
                raise
        finally:
            del self._loading[address]
