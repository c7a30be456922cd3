"""All topics at a glance: pages by name, walks in other orders, the most active ones (TP10, OB1, HM6).

There may be a hundred thousand topics, so nothing here looks at all of them in one turn of the loop, and a page by name
costs what it shows. Another order is made once per walk: a list of names, kept until nobody has asked for a while. So a
topic whose number changes meanwhile neither comes twice nor is left out. Nothing here counts as a read but `touch`.

Invariants: a list of names is never changed once it is made, so whoever holds one may let the loop turn; what is shown
of a topic is looked up when it is shown, and waits for its gate.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from secrets import token_urlsafe
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, field

from topics.core.state import State, Topic
from topics.engine.answers import TopicDetail, TopicState, topic_detail, topic_state
from topics.engine.gate import Gate, Hall
from topics.errors import InvalidRequest

SCANNED: Final = 4000  # names looked at in one turn of the loop
CAME: Final = 500  # topics that are put among the sorted names one by one
SHOWN: Final = 250  # topics shown in one turn
WALKS_MAX: Final = 16
WALK_S: Final = 300.0  # a walk that nobody has gone on with for so long is over
FRESH_S: Final = 1.0  # a walk that is no older serves another one who asks for the same
PLACE_BITS: Final = 32
PLACE: Final = (1 << PLACE_BITS) - 1

T = TypeVar("T")
S = TypeVar("S", bound=Any)
Order = Literal["-written_rate", "-bytes", "-count", "-lost_total", "-ready", "-activity"]

MEASURES: Final[dict[Order, Callable[[Topic, int], int]]] = {
    "-written_rate": lambda topic, now: topic.log.written_lately(now),
    "-bytes": lambda topic, now: topic.log.bytes,
    "-count": lambda topic, now: topic.log.count,
    "-lost_total": lambda topic, now: topic.log.lost - topic.log.expired,
    "-ready": lambda topic, now: topic.queue.ready(topic.log.count) if topic.is_queue else -1,
    "-activity": lambda topic, now: topic.log.written_lately(now) + topic.notes.read_lately(now),
}


class TopicFilter(Struct, frozen=True):
    """Which topics are meant; what is left out does not matter."""

    prefix: str = ""
    contains: str = ""
    type: str | None = None
    durability: str | None = None
    allowed: tuple[str, ...] = ()  # names must begin with one of these; none = any name

    def among(self, names: Iterable[str], topics: dict[str, Topic]) -> list[str]:
        """Those of `names` that are meant and exist, in their order."""
        found = [name for name in names if name in topics]
        if self.prefix:
            found = [name for name in found if name.startswith(self.prefix)]
        if self.allowed:
            found = [name for name in found if name.startswith(self.allowed)]
        if self.contains:
            found = [name for name in found if self.contains in name]
        if self.type is not None:
            found = [name for name in found if topics[name].config.type == self.type]
        if self.durability is not None:
            found = [name for name in found if topics[name].config.durability == self.durability]
        return found


EVERY: Final = TopicFilter()


class Walk(Struct):
    """The names of topics in some order, as of when it was asked for."""

    asked: tuple[Order, TopicFilter]
    names: list[str]
    begun: float
    used: float
    id: str = field(default_factory=lambda: token_urlsafe(9))


class Overview:
    """The topics of an instance, for those who look at many of them."""

    def __init__(self, hall: Hall) -> None:
        self._ledger, self._gates, self._clock = hall.ledger, hall.gates, hall.clock
        self._names: list[str] = []  # sorted, as of `_version`
        self._version: tuple[State, int, int] | None = None
        self._walks: dict[str, Walk] = {}  # by id, the one used last at the end
        self._naming = asyncio.Lock()  # one list of names at a time is made
        self._ordering = asyncio.Lock()  # one order at a time is made

    # --- by name

    async def states_after(
        self, after: str, count: int, wanted: TopicFilter = EVERY, *, touch: bool = False, skip: int = 0
    ) -> tuple[list[TopicState], bool]:
        """Up to `count` topics whose names are above `after`, sorted; and whether there are more. The first `skip` are
        left out."""
        return await self._after(after, count, wanted, topic_state, touch, skip)

    async def details_after(
        self, after: str, count: int, wanted: TopicFilter = EVERY, *, touch: bool = False, skip: int = 0
    ) -> tuple[list[TopicDetail], bool]:
        """As `states_after`, with details."""
        return await self._after(after, count, wanted, self._detail, touch, skip)

    async def _after(
        self, after: str, count: int, wanted: TopicFilter, show: Callable[[Topic, int], T], touch: bool, skip: int
    ) -> tuple[list[T], bool]:
        found: list[T] = []
        while True:
            names = await self._matching(after, count + 1 - len(found), wanted, skip)
            page = names[: count - len(found)]
            found += await self._shown(page, wanted, show, touch)
            if len(names) == len(page) or len(found) == count:
                return found, len(names) > len(page)
            after, skip = page[-1], 0  # some have gone meanwhile

    async def _matching(self, after: str, count: int, wanted: TopicFilter, skip: int = 0) -> list[str]:
        """The first names above `after` that are meant, at most `count`, without the first `skip`."""
        names, found, width = await self.names(), list[str](), max(count, 64)
        at = max(bisect_right(names, after), bisect_left(names, wanted.prefix))
        while at < len(names) and len(found) < count and names[at].startswith(wanted.prefix):
            meant = wanted.among(names[at : at + width], self._ledger.state.topics)
            found += meant[skip:]
            at, width, skip = at + width, SCANNED, max(0, skip - len(meant))
            await asyncio.sleep(0)
        return found[:count]

    async def names(self) -> list[str]:
        """All names, sorted; not to be changed. The list is made of the one before when topics have come or gone."""
        async with self._naming:
            while True:
                state = self._ledger.state
                topics = state.topics
                version, before = (state, state.gone, len(topics)), self._version
                if before == version:
                    return self._names
                has_lost = before is None or before[:2] != version[:2]
                kept = [name for name in self._names if name in topics] if has_lost else self._names[:]
                missing = len(topics) - len(kept)
                if missing > CAME:
                    new = list(topics.keys() - set(kept))
                    await asyncio.sleep(0)
                    kept = await _merged([kept, *(new[at : at + SCANNED] for at in range(0, missing, SCANNED))])
                else:
                    self._insert(missing, kept)
                self._names, self._version = kept, version

    def _insert(self, missing: int, names: list[str]) -> None:
        """Insert the topics that are not among `names` yet: they are among those that came last."""
        before = len(names)
        for name in reversed(self._ledger.state.topics):
            if len(names) == before + missing:
                break
            at = bisect_left(names, name)
            if at == len(names) or names[at] != name:
                names.insert(at, name)

    # --- in another order

    async def begin(self, order: Order, wanted: TopicFilter) -> str:
        """Put the topics that are meant in order, the largest first, those that are equal by name. Gives the walk."""
        async with self._ordering:
            now = self._clock.monotonic()
            for old in list(self._walks.values()):
                if now - old.used > WALK_S:
                    del self._walks[old.id]
                elif old.asked == (order, wanted) and now - old.begun <= FRESH_S:
                    return self._used(old).id
            walk = Walk((order, wanted), await self._ordered(order, wanted), now, now)
            while len(self._walks) >= WALKS_MAX:
                del self._walks[next(iter(self._walks))]
            self._walks[walk.id] = walk
            return walk.id

    async def go_on(
        self, walk_id: str, at: int, count: int, wanted: TopicFilter, *, touch: bool = False
    ) -> tuple[list[TopicDetail], int | None]:
        """Up to `count` topics of a walk from a place on, and the place behind them; None: there are no more.

        Those that are gone, or are not `wanted` any more, are left out.
        """
        walk = self._walks.get(walk_id)
        if walk is None or self._clock.monotonic() - walk.used > WALK_S:
            raise InvalidRequest("the cursor belongs to a walk that has ended; ask again without it")
        names, found = self._used(walk).names, list[TopicDetail]()
        while at < len(names) and len(found) < count:
            page = names[at : at + count - len(found)]
            found += await self._shown(page, wanted, self._detail, touch)
            at += len(page)
        return found, at if at < len(names) else None

    async def most_active(self, count: int, wanted: TopicFilter = EVERY) -> tuple[list[TopicDetail], bool]:
        """Up to `count` topics, and whether there are more; then those that were written to and read most."""
        names = await self._matching("", count + 1, wanted)
        has_more = len(names) > count
        if has_more:
            names = sorted((await self._ordered("-activity", wanted))[:count])
        return await self._shown(names, wanted, self._detail), has_more

    def _used(self, walk: Walk) -> Walk:
        walk.used = self._clock.monotonic()
        self._walks[walk.id] = self._walks.pop(walk.id)
        return walk

    async def _ordered(self, order: Order, wanted: TopicFilter) -> list[str]:
        names, measure = await self.names(), MEASURES[order]
        ranks: list[list[int]] = []  # what counts, negative, and the place in `chosen`; in stretches
        chosen: list[str] = []
        for at in range(0, len(names), SCANNED):
            topics, now, place = self._ledger.state.topics, self._clock.now_ms(), len(chosen)
            chosen += wanted.among(names[at : at + SCANNED], topics)
            if order == "-ready":
                for topic in [topics[name] for name in chosen[place:]]:
                    if topic.is_queue:
                        self._ledger.pass_time(topic)
            fresh = enumerate(chosen[place:], place)
            ranks.append([(-measure(topics[name], now) << PLACE_BITS) + n for n, name in fresh])
            await asyncio.sleep(0)
        ordered, whole = list[str](), await _merged(ranks)
        for at in range(0, len(whole), SCANNED):
            ordered += [chosen[rank & PLACE] for rank in whole[at : at + SCANNED]]
            await asyncio.sleep(0)
        return ordered

    # --- showing

    async def _shown(
        self, names: list[str], wanted: TopicFilter, show: Callable[[Topic, int], T], touch: bool = False
    ) -> list[T]:
        """These topics as they are now, as far as they are there and meant, some of them per turn of the loop."""
        found: list[T] = []
        for at in range(0, len(names), SHOWN):
            part = names[at : at + SHOWN]
            found += await self._gates.shown(None, lambda _, part=part: self._show(part, wanted, show, touch))  # type: ignore[misc]
            await asyncio.sleep(0)
        return found

    def _show(
        self, names: list[str], wanted: TopicFilter, show: Callable[[Topic, int], T], touch: bool
    ) -> tuple[list[T], Gate]:
        now, gate, found = self._clock.now_ms(), self._gates.of(None), list[T]()
        for name in wanted.among(names, self._ledger.state.topics):
            topic = self._ledger.current(name)
            if topic is not None:
                gate = gate.join(self._gates.of(topic))
                if touch:
                    topic.notes.last_read_ms = now
                found.append(show(topic, now))
        return found, gate

    def _detail(self, topic: Topic, now: int) -> TopicDetail:
        name = topic.config.dead_letter
        return topic_detail(topic, now, None if name is None else self._ledger.state.topics.get(name))


async def _merged(stretches: list[list[S]]) -> list[S]:
    """All of it, sorted. Two stretches are made one per turn of the loop; that is quick once they are sorted."""
    if len(stretches) == 1:
        return sorted(stretches[0])
    while len(stretches) > 1:
        pairs: list[list[S]] = []
        for at in range(0, len(stretches), 2):
            pair = [*stretches[at], *(stretches[at + 1] if at + 1 < len(stretches) else ())]
            pair.sort()
            pairs.append(pair)
            await asyncio.sleep(0)
        stretches = pairs
    return stretches[0] if stretches else []
