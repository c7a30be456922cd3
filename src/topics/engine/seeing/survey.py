"""All topics summed up: names as a tree with sums, the losses of all, the cursors that will lose next (OB6, OB7).

There may be a hundred thousand topics, so a survey is made in many turns of the loop, and one at a time. What it tells
of a topic is as of the turn that looked at it, and is shown when all that it depends on may be. Nothing here counts as
a read. Must not know: who is asking, beyond the names that a filter lets through.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from heapq import nlargest, nsmallest
from typing import Final, TypeVar

from topics.core.forecast import ts_of
from topics.core.state import Topic
from topics.core.topic.losses import Loss, lost_above
from topics.engine.answers import Branch, CursorState, LossSeen, Sums, Trouble, TroubleKind, cursor_state
from topics.engine.gate import Gate, Hall
from topics.engine.seeing.overview import EVERY, Overview, TopicFilter
from topics.errors import CommitFailed

LOOKED_AT: Final = 1000  # topics in one turn of the loop
LOSSES_LOOKED_AT: Final = 20_000  # losses likewise
CURSORS_LOOKED_AT: Final = 4000  # cursors likewise
NAMED_MAX: Final = 20  # cursors that are named with a loss
STEP: Final = re.compile(r"[^:.]*[:.]?")  # of a name, up to and with the next separator

T = TypeVar("T")


class Survey:
    """The topics of an instance, summed up for those who look at all of them."""

    def __init__(self, hall: Hall, overview: Overview) -> None:
        self._ledger, self._gates, self._clock = hall.ledger, hall.gates, hall.clock
        self._overview = overview
        self._surveying = asyncio.Lock()  # one survey at a time is made

    async def branches(self, after: str, count: int, wanted: TopicFilter = EVERY) -> tuple[Sums, list[Branch], bool]:
        """The next step below the prefix of the filter: all of it summed up, up to `count` branches above `after`,
        sorted; and whether there are more."""

        async def look() -> tuple[tuple[Sums, list[Branch], bool], Gate]:
            found, others, gate, has_more = list[Branch](), Sums(), self._gates.of(None), False
            start, branch = len(wanted.prefix), Branch("", False, others)
            async for topics in self._scanned(wanted):
                now = self._clock.now_ms()
                for topic in topics:
                    if topic.log.head:
                        gate = gate.join(self._gates.of(topic))
                    if topic.is_queue:
                        self._ledger.pass_time(topic)
                    prefix, is_topic = _step(topic.name, start)
                    if prefix <= after:
                        branch = Branch(prefix, is_topic, others)
                    elif branch.prefix != prefix or branch.is_topic != is_topic:
                        has_more = has_more or len(found) == count
                        branch = Branch(prefix, is_topic, others if has_more else Sums())
                        if not has_more:
                            found.append(branch)
                    _add(branch.sums, topic, now)
            for branch in found:
                others.join(branch.sums)
            return (others, found, has_more), gate

        return await self._shown(look)

    async def losses(self, count: int, wanted: TopicFilter = EVERY) -> list[LossSeen]:
        """The newest losses of all topics, the newest first."""

        async def look() -> tuple[list[LossSeen], Gate]:
            found: list[tuple[int, str, Loss]] = []
            fresh: list[tuple[int, str, Loss]] = []
            async for topics in self._scanned(wanted):
                for topic in topics:
                    least = found[-1][0] if len(found) == count else -1
                    fresh += [(loss.ts, topic.name, loss) for loss in topic.log.losses if loss.ts > least]
                    if len(fresh) > LOSSES_LOOKED_AT:
                        found, fresh = nlargest(count, [*found, *fresh], key=_age), []
                        await asyncio.sleep(0)
                found, fresh = nlargest(count, [*found, *fresh], key=_age), []
            gate, seen = self._gates.of(None), list[LossSeen]()
            for _, name, loss in found:
                for topic in self._meant((name,), wanted):
                    gate = gate.join(self._gates.of(topic))
                    hit = [one for one, cursor in topic.cursors.items() if cursor.seq < loss.last]
                    seen.append(LossSeen(name, loss, nsmallest(NAMED_MAX, hit), len(hit)))
            return seen, gate

        return await self._shown(look)

    async def endangered(self, count: int, wanted: TopicFilter = EVERY) -> list[CursorState]:
        """Of each topic the named cursor that is furthest behind, if it is about to lose; those that lose next first.

        Whoever is furthest behind loses first."""

        async def look() -> tuple[list[CursorState], Gate]:
            found: list[CursorState] = []
            gate = self._gates.of(None)
            async for topics in self._scanned(wanted):
                now = self._clock.now_ms()
                for topic in topics:
                    if not topic.cursors:
                        continue
                    name = min(topic.cursors, key=lambda one, cursors=topic.cursors: cursors[one].seq)  # type: ignore[misc]
                    state = cursor_state(topic, name, now)
                    if state.lag and state.seconds_until_loss is not None:
                        gate = gate.join(self._gates.of(topic))
                        found.append(state)
                found = nsmallest(count, found, key=lambda state: state.seconds_until_loss or 0.0)
            return found, gate

        return await self._shown(look)

    async def cursor_lags(self, count: int, wanted: TopicFilter = EVERY) -> list[tuple[str, str, int]]:
        """The named cursors that are furthest behind: topic, cursor, lag; at most `count`."""

        async def look() -> tuple[list[tuple[str, str, int]], Gate]:
            found: list[tuple[int, str, str]] = []
            gate = self._gates.of(None)
            async for topics in self._scanned(wanted):
                for topic in topics:
                    if not topic.cursors:
                        continue
                    gate, head = gate.join(self._gates.of(topic)), topic.log.head
                    found += [(cursor.seq - head, topic.name, one) for one, cursor in topic.cursors.items()]
                    if len(found) > count + CURSORS_LOOKED_AT:
                        found = sorted(found)[:count]
                        await asyncio.sleep(0)
            return [(name, one, -behind) for behind, name, one in sorted(found)[:count]], gate

        return await self._shown(look)

    async def troubles(self, count: int, wanted: TopicFilter = EVERY) -> dict[TroubleKind, tuple[int, list[Trouble]]]:
        """What is worth a look, by kind: how many there are, and those that weigh most, at most `count`."""

        async def look() -> tuple[dict[TroubleKind, tuple[int, list[Trouble]]], Gate]:
            found: dict[TroubleKind, tuple[int, list[Trouble]]] = {}
            gate = self._gates.of(None)
            async for topics in self._scanned(wanted):
                fresh: dict[TroubleKind, list[Trouble]] = {}
                for topic in topics:
                    letter = topic.config.dead_letter
                    letters = self._meant((letter,), TopicFilter(allowed=wanted.allowed)) if letter is not None else ()
                    for one in _troubles(topic, next(iter(letters), None)):
                        gate = gate.join(self._gates.of(topic))
                        fresh.setdefault(one.kind, []).append(one)
                for kind, more in fresh.items():
                    known, most = found.get(kind, (0, []))
                    found[kind] = known + len(more), nlargest(count, [*most, *more], key=lambda one: one.number)
            return found, gate

        return await self._shown(look)

    async def times(self, name: str, seqs: list[int]) -> list[tuple[int, int]]:
        """Seq and time of the first live record at or above each of `seqs`, ascending, each once."""

        def look(takes_what_is_warm: bool) -> tuple[list[tuple[int, int]], Gate]:
            topic = self._ledger.existing(name)
            log, found = topic.log, dict[int, int]()
            for seq in sorted(set(seqs)):
                if live := next(log.live_after(max(seq, 1) - 1), 0):
                    found[live] = ts_of(topic, live)
            return list(found.items()), self._gates.of(topic)

        return await self._gates.shown(name, look)

    # --- looking at all

    async def _scanned(self, wanted: TopicFilter) -> AsyncIterator[list[Topic]]:
        """The topics that are meant, by name, some of them per turn of the loop."""
        names = await self._overview.names()
        for at in range(0, len(names), LOOKED_AT):
            yield self._meant(names[at : at + LOOKED_AT], wanted)
            await asyncio.sleep(0)

    def _meant(self, names: Sequence[str], wanted: TopicFilter) -> list[Topic]:
        topics = self._ledger.state.topics
        return [topics[name] for name in wanted.among(names, topics)]

    async def _shown(self, look: Callable[[], Awaitable[tuple[T, Gate]]]) -> T:
        """What a look gives, when it may be shown; another look if the log failed meanwhile."""
        while True:
            async with self._surveying:
                answer, gate = await look()
            try:
                await self._gates.wait_open(gate, at_once=True)
            except CommitFailed:
                await asyncio.sleep(0)  # as in `Gates.shown`
                continue
            return answer


def _add(sums: Sums, topic: Topic, now: int) -> None:
    log = topic.log
    sums.topics += 1
    if not log.head:
        return
    sums.count += log.count
    sums.bytes += log.bytes
    sums.written_lately += log.written_lately(now)
    sums.read_lately += topic.notes.read_lately(now)
    if log.lost:
        sums.lost += log.lost - log.expired
        sums.expired += log.expired
    sums.deleted += log.deleted
    if topic.config.type == "queue":
        sums.ready += topic.queue.ready(log.count)


def _troubles(topic: Topic, letters: Topic | None) -> Iterator[Trouble]:
    """What is worth a look about a topic; `letters` is its dead_letter topic, if that is there and may be named."""
    for name, cursor in topic.cursors.items():
        if cursor.seq < topic.log.floor - 1 and (lost := lost_above(topic.log.losses, cursor.seq)):
            yield Trouble("cursor_lost", topic.name, lost, name)
    if topic.is_queue:
        if topic.paused:
            yield Trouble("paused", topic.name, topic.log.count)
        if topic.config.max_deliveries and topic.config.dead_letter is None:
            yield Trouble("no_dead_letter", topic.name, topic.config.max_deliveries)
        if letters is not None and letters.log.count:
            yield Trouble("dead_letters", topic.name, letters.log.count)


def _age(seen: tuple[int, str, Loss]) -> tuple[int, str, int]:
    ts, name, loss = seen
    return ts, name, loss.first


def _step(name: str, start: int) -> tuple[str, bool]:
    """The branch of a name below a prefix of this length, and whether it is the topic itself."""
    found = STEP.match(name, start)
    end = start if found is None else found.end()
    return name[:end], end == start or (end == len(name) and name[-1] not in ":.")
