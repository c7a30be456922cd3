"""The forwarder: routers at work in the background.

Owns when passes run, the steps that they decide, and their commits. A step is decided by the core and committed by the
ledger. Must not know who reads the copies (owed.py) or how the core makes them.

How it works. A commit to a source makes its routers ready, which costs the writer a look-up. A pass, at the end of the
turn, takes the ready routers in their order (ready.py), one step each, and commits all steps of one class as one
frame. A router that is not done is ready again. How much time passes take is said by pacing.py.

Invariant, which `check` asserts between passes: a router that is behind is ready, blocked, loading, or waits for what
its dest in memory may not show yet.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from topics.core.routing.steps import Step, fit, place
from topics.core.routing.table import Router
from topics.core.state import Topic
from topics.core.topic.pages import Cold, PageAddress
from topics.engine.gate import Hall
from topics.engine.routers.blocked import BlockedRouters
from topics.engine.routers.lasting import LastingHeads
from topics.engine.routers.pacing import Pacing
from topics.engine.routers.ready import ReadyRouters
from topics.engine.routers.walks import Walks
from topics.errors import CommitFailed, Refusal, StorageError, TopicsError

DECIDE_S: Final = 0.000_25  # a pass decides on steps for this long, and takes about as long to commit them


class Forwarder:
    """The routers of an instance, at work."""

    def __init__(self, hall: Hall, is_deferred: Callable[[Topic], bool]) -> None:
        self._ledger, self._loader, self._clock, self._caps = hall.ledger, hall.loader, hall.clock, hall.caps
        self._is_deferred = is_deferred  # the routers of a topic wait while there is pressure (PR5)
        self._is_running = False
        self._is_scheduled = False
        self.ready = ReadyRouters()
        self.blocked = BlockedRouters(hall.ledger, hall.clock, self._add)
        self.loading: dict[int, asyncio.Task[None]] = {}  # by router
        self.lasting = LastingHeads(hall.gates, self._add_source)
        self._walks = Walks(hall.loader.rows)
        self._pacing = Pacing(hall.clock)

    # --- life

    def start(self) -> None:
        """Forward from now on, first of all what is there already."""
        self._is_running = True
        self.blocked.start()
        for source in self._ledger.state.routers.outgoing:
            self.ready.add_source(source)
        if self.ready:
            self._schedule()

    def restart(self) -> None:
        """The state is another one: start over."""
        for task in self.loading.values():
            task.cancel()
        for part in (self.ready, self.blocked, self.loading, self.lasting, self._walks):
            part.clear()
        if self._is_running:
            self.start()

    def end_deferral(self) -> None:
        """From now on no router is deferred, whatever the pressure."""
        self._is_deferred = lambda topic: False
        self.blocked.resume()

    async def stop(self) -> None:
        self._is_running = False
        await self.blocked.stop()
        tasks = list(self.loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to forward that need not wait for room, or for a sync."""
        return self._is_running and bool(self._is_scheduled or self.ready or self.loading)

    def trouble(self, router: Router) -> TopicsError | None:
        """Why a router cannot go on; None: it can."""
        blocked = self.blocked.by_id.get(router.id)
        return None if blocked is None else blocked.error

    def check(self) -> None:
        """Assert the invariants; not in the middle of a pass."""
        state = self._ledger.state
        for router in state.routers.by_id.values():
            waits = router.id in self.blocked or router.id in self.loading or self.lasting.gate_of(router) is not None
            is_behind = router.cursor < state.by_id[router.source].log.head
            assert waits or not is_behind or router in self.ready, f"router {router.name} is forgotten"
            assert router.id not in self.blocked or router.dest in self._ledger.awaited, f"{router.name} stays blocked"
        if self._is_running and self.ready:
            assert self._is_scheduled, "routers are ready and no pass is due"

    # --- who has something to do

    def changed(self, topic: Topic) -> None:
        """A source has news, or a dest may have room."""
        routers = self._ledger.state.routers
        if topic.id in routers.outgoing:
            self.ready.add_source(topic.id)
            self._pacing.source_written()
        if topic.id in self._ledger.awaited:
            for router in routers.incoming.get(topic.id, {}).values():
                if router.id in self.blocked:
                    self.ready.add(router)
        self._schedule(self._yield)

    def _add(self, router: Router) -> None:
        self.ready.add(router)
        self._schedule()

    def _add_source(self, source: Topic) -> None:
        self.ready.add_source(source.id)
        self._schedule()

    def _schedule(self, turn: Callable[[], None] | None = None) -> None:
        if self._is_running and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(turn or self._turn)

    def _yield(self) -> None:
        """Let those who wait for the write that was just flushed go first."""
        asyncio.get_running_loop().call_soon(self._turn)

    # --- passes

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        started_at = self._clock.monotonic()
        wait_s = 0.0 if self._pacing.is_idle(started_at) else self._pacing.wait_s(started_at, self._age_ms())
        if wait_s > 0:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(wait_s, self._turn)
            return
        try:
            self._pass(started_at + DECIDE_S)
        finally:
            self._pacing.pass_ended(started_at)
            if self.ready:
                self._schedule()
            else:
                self._walks.clear()

    def _age_ms(self) -> int:
        """The age of the record that the next router forwards."""
        state = self._ledger.state
        router = self.ready.peek(state.routers.by_id)
        part = None if router is None else state.by_id[router.source].log.part_at(router.cursor + 1)
        if router is None or part is None:
            return 0
        row = min(part.row_from(router.cursor + 1), part.count - 1)
        return self._clock.now_ms() - part.ts_at(row)

    def _pass(self, until: float) -> None:
        """Take steps of ready routers until the time is over or none is left."""
        while True:
            routers = self.ready.next_together(self._ledger.state.routers, self.blocked.by_id)
            if not routers:
                return
            if sum(map(self.expire, routers)):
                continue  # a dest may have room for other routers first
            self.commit(self._decide(routers, until))
            if self._clock.monotonic() >= until:
                return

    def _decide(self, routers: Sequence[Router], until: float) -> list[Step]:
        """The steps of these routers; those that the time does not suffice for stay ready."""
        steps: list[Step] = []
        for router in routers:
            step = self.step(router)
            if step is not None and step.losers and steps:  # it changes further topics: it comes alone
                break
            self.ready.served(router, self._ledger.state)
            if step is not None:
                steps.append(step)
            if (step is not None and step.losers) or self._clock.monotonic() >= until:
                break
        return steps

    def expire(self, router: Router) -> bool:
        """Drop what has expired: it is not forwarded and fills no dest (TM7, WR13). Gives whether there was any."""
        by_id, has_expired = self._ledger.state.by_id, False
        for topic in (by_id[router.source], by_id[router.dest]):
            if topic.config.ttl_ms:
                count = topic.log.count
                self._ledger.current(topic.name)
                has_expired |= topic.log.count < count
        return has_expired

    def step(self, router: Router) -> Step | None:
        """What a router does next. None: nothing, or it has to wait for something."""
        state = self._ledger.state
        source, dest = state.by_id[router.source], state.by_id[router.dest]
        last = source.log.head if dest.is_logged else self.lasting.of(source, dest)
        if router.cursor >= last:  # what it was to copy is lost, or a gate wakes it, unless it is blocked
            self.blocked.remove(router)
            return None
        if self._is_deferred(dest) or self._is_deferred(source):
            self.blocked.add(router, None)
            return None
        try:
            found = fit(state, router, self._walks.find(state, router, last), self._caps)
            return place(state, router, found, self._clock.now_ms())
        except Cold as cold:
            self._load(router, cold.missing)
        except (Refusal, StorageError) as error:
            self.blocked.add(router, error)
        return None

    def _load(self, router: Router, missing: PageAddress | int) -> None:
        """Bring in a page of a segment that a router needs, off the loop."""
        self.blocked.remove(router)
        if router.id not in self.loading:
            self.ready.pause(router.dest)
            self.loading[router.id] = asyncio.create_task(self._load_page(router, missing))

    async def _load_page(self, router: Router, missing: PageAddress | int) -> None:
        try:
            await self._loader.load(missing)
        except (TopicsError, OSError) as error:
            self.blocked.add(router, error if isinstance(error, TopicsError) else TopicsError(str(error)))
        finally:
            if self.loading.get(router.id) is asyncio.current_task():
                del self.loading[router.id]
                self.ready.go_on(router.dest)
        if router.id not in self.blocked:
            self.ready.add(router)
        self._schedule()

    # --- commits

    def commit(self, steps: Sequence[Step]) -> None:
        """Commit steps, those of one class as one frame. A router that is not done is ready again."""
        groups: dict[tuple[bool, int], list[Step]] = {}
        for step in steps:
            waits = step.dest.config.durability == "fsync"
            groups.setdefault((waits, 0 if waits else self._ledger.durable_at(step.source)), []).append(step)
        for group in groups.values():
            logged = [step for step in group if step.dest.is_logged]
            self._commit_together(logged)
            for step in group:
                if not step.dest.is_logged:
                    self._commit_together([step])
        for step in steps:
            if step.router.id not in self.blocked and step.router.cursor < step.source.log.head:
                self._add(step.router)

    def _commit_together(self, steps: Sequence[Step]) -> None:
        if not steps:
            return
        try:
            self._ledger.commit([entry for step in steps for entry in step.entries])
        except CommitFailed as failure:
            for step in steps:
                self.blocked.add(step.router, failure)
        else:
            for step in steps:
                self.blocked.remove(step.router)
