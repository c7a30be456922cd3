"""The forwarder: routers at work, in the background and for readers who are to see what was written (DF9).

Owns which routers have something to do and how much of the loop's time forwarding takes.
A step is decided by the core and committed by the ledger; the routers of one pass share their frames.

How it works. A commit to a source marks it dirty, which costs the writer a look-up. A pass, at the end of the turn,
takes the routers of dirty sources in the order in which they became ready, one step each, and commits all steps of
one class as one frame. A router that is not done goes to the end of the queue. While others work on the loop, passes
take a small share of its time; an idle loop is theirs.

Invariants
- A router that is behind is ready, blocked, loading, or waits for what its dest in memory may not show yet.
- Steps that are committed together change different topics, and none reads a topic that another one changes.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from topics.clock import Clock
from topics.core.decide import Caps
from topics.core.routing.steps import Step, Walked, place, stamp_of, walk
from topics.core.routing.table import HOPS_MAX, Router
from topics.core.state import Topic
from topics.core.topic.pages import Cold, PageAddress
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.engine.loading import Loader
from topics.engine.routers.blocked import BlockedRouters
from topics.errors import CommitFailed, Refusal, StorageError, TopicsError

PASS_ROUTERS: Final = 1024  # whose steps may share a frame
SLICE_S: Final = 0.000_5  # of forwarding before others get their turn, half of it to decide and half to commit
CARRY_S: Final = 0.002  # the same for a reader who waits for it
IDLE_S: Final = 0.000_05  # a turn of the loop that takes no longer has nothing else to do
SHARE: Final = 0.08  # of the loop's time, so that the records of several writes go together …
SHARE_BEHIND: Final = 0.5  # … if others leave half of the time unused, and what is next was written so long ago
BEHIND_MS: Final = 100
SHARE_LATE: Final = 0.25  # … if they do not, and it was written so long ago
LATE_MS: Final = 5_000
SHARED_MIN: Final = 64  # records of a walk that is shared though there are more by now; less is soon found anew
WALKS_BYTES: Final = 16 * 1024 * 1024  # of records in walks kept for routers that stand where another one stood


class Forwarder:
    """The routers of an instance, at work."""

    def __init__(
        self,
        ledger: Ledger,
        gates: Gates,
        clock: Clock,
        caps: Caps,
        loader: Loader,
        is_deferred: Callable[[Topic], bool],
    ) -> None:
        self._is_deferred = is_deferred  # a topic's routers are held back under pressure (PR5)
        self._ledger = ledger
        self._gates = gates
        self._clock = clock
        self._caps = caps
        self._loader = loader
        self._is_running = False
        self._is_scheduled = False
        self._dirty: dict[int, None] = {}  # sources with news
        self._ready: deque[int] = deque()  # routers, in the order in which they are served
        self._queued: set[int] = set()  # those in `_ready`
        self._blocked = BlockedRouters(ledger, clock, self._enqueue)
        self._loading: dict[int, asyncio.Task[None]] = {}  # by router
        self._held: dict[tuple[int, int], deque[tuple[int, Gate]]] = {}  # source, dest in memory → heads, gates
        self._shown: dict[tuple[int, int], int] = {}  # the highest of these heads whose gate was open
        self._walks: OrderedDict[Any, Walked] = OrderedDict()  # what routers of one source have found, for the others
        self._walked_bytes = 0
        self._carried = 0  # the dest that was just carried on, and is about to be read
        self._ended_at = 0.0  # when the last pass ended …
        self._took_s = 0.0  # … how long it took …
        self._worked_s = 0.0  # … and what this thread had worked by then
        self._changed_at = 0.0  # when a source was last written to

    # --- life

    def start(self) -> None:
        """Forward from now on, first of all what is there already."""
        self._is_running = True
        self._blocked.start()
        self._dirty.update(dict.fromkeys(self._ledger.state.routers.outgoing))
        if self._dirty:
            self._schedule()

    def restart(self) -> None:
        """The state is another one: start over."""
        for task in self._loading.values():
            task.cancel()
        for kept in (self._dirty, self._ready, self._queued, self._loading):
            kept.clear()
        for more in (self._held, self._shown):
            more.clear()
        self._forget_walks()
        self._blocked.clear()
        if self._is_running:
            self.start()

    async def drain(self) -> None:
        """Forward all that can be forwarded (SC3)."""
        self._is_deferred = lambda topic: False
        self.resume()
        for _ in range(HOPS_MAX + 1):
            behind = [dest for dest in list(self._ledger.state.routers.incoming) if self._is_behind(dest)]
            for dest in behind:
                await self.make_all_copies(dest)
            if not behind or self._ledger.broken is not None:
                return

    def resume(self) -> None:
        """Routers that were held back under pressure go on."""
        self._blocked.resume()

    async def stop(self) -> None:
        self._is_running = False
        await self._blocked.stop()
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to forward that need not wait for room, or for a sync."""
        return self._is_running and (self._is_scheduled or bool(self._ready or self._dirty or self._loading))

    def trouble(self, router: Router) -> TopicsError | None:
        """Why a router cannot go on; None: it can."""
        return self._blocked.error_of(router.id)

    def _is_behind(self, dest: int) -> bool:
        """Whether routers into a topic have something to do, and can."""
        state = self._ledger.state
        return any(
            router.cursor < state.by_id[router.source].log.head and router.id not in self._blocked
            for router in state.routers.incoming.get(dest, {}).values()
        )

    # --- who has something to do

    def changed(self, topic: Topic) -> None:
        """A source has news, or a dest may have room."""
        if topic.id in self._ledger.state.routers.outgoing:
            self._dirty[topic.id] = None
            self._changed_at = self._clock.monotonic()
        if topic.id in self._ledger.watched:
            for router in self._ledger.state.routers.incoming.get(topic.id, {}).values():
                if router.id in self._blocked:
                    self._enqueue(router.id)
        self._schedule(self._yield)

    def _schedule(self, turn: Callable[[], None] | None = None) -> None:
        if self._is_running and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(turn or self._turn)

    def _yield(self) -> None:
        """Those who wait for the write that was just flushed go on first."""
        asyncio.get_running_loop().call_soon(self._turn)

    def _enqueue(self, router: int) -> None:
        if router not in self._queued:
            self._queued.add(router)
            self._ready.append(router)
            self._schedule()

    def _expand(self) -> None:
        """The routers of dirty sources are ready, but for those that are blocked."""
        outgoing = self._ledger.state.routers.outgoing
        dirty, self._dirty = self._dirty, {}
        for source in dirty:
            for router in outgoing.get(source, ()):
                if router not in self._queued and router not in self._blocked:
                    self._queued.add(router)
                    self._ready.append(router)

    # --- passes

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        started = self._clock.monotonic()
        wait_s = self._wait_s(started)
        if wait_s > 0:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(wait_s, self._turn)
            return
        try:
            self._work(started + SLICE_S / 2)
        finally:
            self._ended_at = self._clock.monotonic()
            self._took_s = self._ended_at - started
            self._worked_s = self._clock.worked()
            if self._ready or self._dirty:
                self._schedule()
            else:
                self._forget_walks()

    def _wait_s(self, now: float) -> float:
        """How long to leave the loop to others, so that forwarding takes its share of the time and no more."""
        others_s = now - self._ended_at
        if others_s < IDLE_S and self._changed_at <= self._ended_at:
            return 0.0
        return self._took_s / self._share(others_s) - others_s

    def _share(self, others_s: float) -> float:
        """Which part of the loop's time is forwarding's, when others have had it for so long."""
        age_ms = self._age_ms()
        if age_ms > BEHIND_MS and self._clock.worked() - self._worked_s < others_s / 2:
            return SHARE_BEHIND
        return SHARE_LATE if age_ms > LATE_MS else SHARE

    def _age_ms(self) -> int:
        """How long ago the record was written that the next router forwards. It is another one each time."""
        state = self._ledger.state
        router = state.routers.by_id.get(self._ready[0]) if self._ready else None
        if router is None:
            return 0
        part = state.by_id[router.source].log.part_at(router.cursor + 1)
        if part is None:
            return 0
        row = min(part.row_from(router.cursor + 1), part.count - 1)
        return self._clock.now_ms() - part.ts_at(row)

    def _work(self, until: float) -> None:
        """Steps of ready routers, until the time is over or none is left."""
        while True:
            self._expand()
            routers = self._next_routers()
            if not routers:
                return
            self._commit(self._decide(routers, until))
            if self._clock.monotonic() >= until:
                return

    def _next_routers(self) -> list[Router]:
        """The next ones whose steps may be committed together."""
        by_id = self._ledger.state.routers.by_id
        taken: list[Router] = []
        later: list[int] = []
        changed: set[int] = set()
        read: set[int] = set()
        for _ in range(min(len(self._ready), PASS_ROUTERS)):
            router_id = self._ready.popleft()
            router = by_id.get(router_id)
            if router is None:
                self._queued.discard(router_id)
            elif router.source in changed or router.dest in changed or router.dest in read:
                later.append(router_id)
            else:
                self._queued.discard(router_id)
                taken.append(router)
                changed.add(router.dest)
                read.add(router.source)
        self._ready.extendleft(reversed(later))
        return taken

    def _put_back(self, routers: Sequence[Router]) -> None:
        self._queued.update(router.id for router in routers)
        self._ready.extendleft(router.id for router in reversed(routers))

    def _decide(self, routers: Sequence[Router], until: float) -> list[Step]:
        """The steps of these routers; those that the time does not suffice for keep their place."""
        for router in routers:
            self._expire(router)
        steps: list[Step] = []
        for number, router in enumerate(routers):
            step = self._step(router)
            if step is not None:
                if step.losers and steps:  # it changes further topics: it comes alone
                    self._put_back(routers[number:])
                    break
                steps.append(step)
            if (step is not None and step.losers) or self._clock.monotonic() >= until:
                self._put_back(routers[number + 1 :])
                break
        return steps

    def _expire(self, router: Router) -> None:
        """What has expired is neither forwarded, nor does it fill the dest (TM7, WR13)."""
        for topic in (self._ledger.state.by_id[router.source], self._ledger.state.by_id[router.dest]):
            if topic.config.ttl_ms:
                self._ledger.current(topic.name)

    # --- one step

    def _step(self, router: Router) -> Step | None:
        """What a router does next. None: nothing, or it has to wait for something."""
        state = self._ledger.state
        source, dest = state.by_id[router.source], state.by_id[router.dest]
        last = source.log.head if dest.is_logged else self._readable(source, dest)
        if router.cursor >= last:
            return None
        if self._is_deferred(dest) or self._is_deferred(source):
            self._blocked.add(router, None)
            return None
        try:
            return self._place(router, source, last)
        except Cold as cold:
            self._load(router, cold.missing)
        except (Refusal, StorageError) as error:
            self._blocked.add(router, error)
        return None

    def _place(self, router: Router, source: Topic, last: int) -> Step | None:
        is_referable = source.is_logged and router.cursor >= source.referable_after
        if source.is_logged and not is_referable:
            last = min(last, source.referable_after)
        found = partial(self._walk, router, source, last)
        return place(self._ledger.state, router, found, self._clock.now_ms(), self._caps, is_referable)

    def _walk(self, router: Router, source: Topic, last: int, records_max: int) -> Walked:
        """What lies behind a router's cursor; routers of one source that do the same with it share it."""
        stamp = stamp_of(self._ledger.state, router)
        if stamp is not None:
            dest = self._ledger.state.by_id[router.dest]

            def is_known(seq: int) -> bool:
                copy = dest.stamps.find(router.name, source.id, source.epoch, seq)
                return copy > 0 and dest.log.is_live(copy)

            return walk(source, router, last, stamp, is_known, self._loader.rows, records_max)
        definition, log = router.definition, source.log
        # What lies behind a cursor grows at its end only, as long as nothing is deleted or lost.
        key = (source.id, router.cursor, records_max, log.deleted, log.lost, log.floor)
        key += (definition.match, definition.preserve_node, definition.preserve_tag)  # type: ignore[assignment]
        known = self._walks.get(key)
        if known is not None and (known.reached == last or (known.reached < last and known.copied >= SHARED_MIN)):
            return known
        walked = walk(source, router, last, None, lambda seq: False, self._loader.rows, records_max)
        if known is None:
            self._walks[key] = walked
            self._walked_bytes += sum(walked.sizes)
            while self._walked_bytes > WALKS_BYTES:
                self._walked_bytes -= sum(self._walks.popitem(last=False)[1].sizes)
        return walked

    def _forget_walks(self) -> None:
        self._walks.clear()
        self._walked_bytes = 0

    def _readable(self, source: Topic, dest: Topic) -> int:
        """The head of a source as far as it is there for good: copies in memory cannot be undone."""
        gates, key, head = self._gates, (source.id, dest.id), source.log.head
        one, other = gates.of(source), gates.of(dest)
        gate = Gate(max(one.synced_at, other.synced_at), one.written_at, one.generation)
        held = self._held.setdefault(key, deque())
        if not held or held[-1][0] < head:
            held.append((head, gate))
            if not gates.is_open(gate):
                gates.when_open(gate, lambda _: self._opened(source))
        while held and gates.is_open(held[0][1]):
            self._shown[key] = held.popleft()[0]
        if not held:
            del self._held[key]
        return self._shown.get(key, 0)

    def _opened(self, source: Topic) -> None:
        self._dirty[source.id] = None
        self._schedule()

    # --- commits

    def _commit(self, steps: Sequence[Step]) -> None:
        """Commit steps, those of one class as one frame; a router that is not done goes to the end of the queue."""
        groups: dict[tuple[bool, int], list[Step]] = {}
        for step in steps:
            waits = step.dest.config.durability == "fsync"
            groups.setdefault((waits, 0 if waits else self._ledger.durable_at(step.source)), []).append(step)
        for group in groups.values():
            self._commit_group(group)
        for step in steps:
            router = step.router
            if router.id not in self._blocked and router.cursor < step.source.log.head:
                self._enqueue(router.id)

    def _commit_group(self, group: Sequence[Step]) -> None:
        ledger = self._ledger
        logged = [step for step in group if step.dest.is_logged]
        try:
            if logged:
                ledger.commit([entry for step in logged for entry in step.entries])
        except CommitFailed as failure:
            for step in logged:
                self._blocked.add(step.router, failure)
            return
        for step in group:
            try:
                if not step.dest.is_logged:
                    ledger.commit(step.entries)
            except CommitFailed as failure:  # of the holes that it leaves in a dest that is logged
                self._blocked.add(step.router, failure)
            else:
                self._blocked.remove(step.router)

    # --- segments

    def _load(self, router: Router, missing: PageAddress | int) -> None:
        """Bring in a page of a segment that a router needs, off the loop."""
        self._blocked.remove(router)
        if router.id not in self._loading:
            self._loading[router.id] = asyncio.create_task(self._load_page(router, missing))

    async def _load_page(self, router: Router, missing: PageAddress | int) -> None:
        try:
            await self._loader.load(missing)
        except (TopicsError, OSError) as error:
            self._blocked.add(router, error if isinstance(error, TopicsError) else TopicsError(str(error)))
        finally:
            self._loading.pop(router.id, None)
        if router.id not in self._blocked:
            self._enqueue(router.id)

    # --- read your writes

    def make_copies(self, dest: Topic) -> None:
        """Make the copies of all that was committed upstream of a topic (DF9). Cold: it takes more than a slice."""
        if dest.id not in self._ledger.state.routers.incoming:
            return
        if self._carried == dest.id:
            self._carried = 0
            return
        until = self._clock.monotonic() + CARRY_S
        for router in self._upstream(dest.id, set()):
            if not self._catch_up(router, until):
                raise Cold(dest.id)

    async def make_all_copies(self, dest: int) -> None:
        """The same, however long it takes; the topic is then read without asking again."""
        state = self._ledger.state
        for router in list(self._upstream(dest, set())):
            head = state.by_id[router.source].log.head if router.source in state.by_id else 0
            while state is self._ledger.state and state.routers.by_id.get(router.id) is router:
                if self._catch_up(router, self._clock.monotonic() + CARRY_S, head):
                    break
                await self._wait_for(router)
        self._carried = dest
        asyncio.get_running_loop().call_soon(self._forget_carried)

    async def _wait_for(self, router: Router) -> None:
        """Wait for what keeps a router, which is not blocked, from going on."""
        loading = self._loading.get(router.id)
        if loading is not None:
            await asyncio.wait([loading])
            return
        held = self._held.get((router.source, router.dest))
        if held:
            try:
                await self._gates.wait_open(held[-1][1], at_once=True)
            except CommitFailed:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)

    def _forget_carried(self) -> None:
        self._carried = 0

    def _upstream(self, dest: int, seen: set[int]) -> Iterator[Router]:
        """The routers on all ways into a topic, each once, those nearer to the sources first."""
        for router in list(self._ledger.state.routers.incoming.get(dest, {}).values()):
            if router.id not in seen:
                seen.add(router.id)
                yield from self._upstream(router.source, seen)
                yield router

    def _catch_up(self, router: Router, until: float, head: int | None = None) -> bool:
        """Forward what the source has by now, or has up to `head`. False: it takes longer than that."""
        if head is None:
            head = self._ledger.state.by_id[router.source].log.head
        if router.cursor >= head:
            return True
        self._expire(router)
        while router.cursor < head:
            if router.id in self._blocked and router.id not in self._queued:
                return True
            step = None if router.id in self._loading else self._step(router)
            if step is None:
                return router.id in self._blocked or router.cursor >= head
            self._commit([step])
            if router.cursor < head and self._clock.monotonic() >= until:
                return False
        return True
