"""Rounds: when topics are served to those who follow them, and in which order.

Owns which topics are ready, the pass per turn of the loop that serves them, and the topics that pressure keeps back.
What serving a topic means is `delivery`'s. Must not know: how a topic is read, what a frame is.

A topic with news is marked ready, and one pass per turn of the loop serves all that are ready, each once. A pass ends
after SLICE_S, so that neither a long backlog nor many readers keep the loop for themselves; from then on priority
counts (PR4). Under pressure passes come later, and topics of negative priority wait until it is over (PR5, PR6).

Invariant: a hub is ready (`is_ready`) exactly while it is in the queue, being served, or deferred.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from topics.clock import Clock, SystemClock
from topics.server.live.feeds import Feed, Hub, Reader
from topics.server.live.pressure import COALESCING_AT, RETRY_AFTER_MS, Pressure

SLICE_S: Final = 0.003  # of real time; a pass that takes longer lets the loop turn
AT_ONCE_MAX: Final = 4  # feeds that an ack may wait for
COALESCED_MS_MAX: Final = 50  # what is new waits so long at full pressure, so that frames become fewer and larger
PRIORITY_PER_MS: Final = 1.0  # by which a topic rises while it waits

real_clock = SystemClock()  # slices are about this process, whatever the clock of the engine says


class ReadyTopics:
    """Topics to be served: first come, first served; by priority while one pass cannot serve them all (PR4)."""

    def __init__(self, rank: Callable[[Hub], float]) -> None:
        self._rank = rank
        self._fifo: deque[Hub] = deque()
        self._heap: list[tuple[tuple[float, int], Hub]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._fifo) + len(self._heap)

    def add(self, hub: Hub) -> None:
        hub.is_ready = True
        self._count += 1
        hub.order = (self._rank(hub), self._count) if self._heap else (0.0, self._count)
        if self._heap:
            heapq.heappush(self._heap, (hub.order, hub))
        else:
            self._fifo.append(hub)

    def feeds_at_most(self, count: int) -> bool:
        """Whether no more than so many feeds are to be served."""
        if self._heap or len(self._fifo) > count:
            return False
        return sum(len(hub.feeds) if hub.is_dirty else len(hub.pending) for hub in self._fifo) <= count

    def pop(self) -> Hub:
        """The next topic. It counts as ready until it has been served, so that it is not added again meanwhile."""
        return heapq.heappop(self._heap)[1] if self._heap else self._fifo.popleft()

    def put_back(self, hub: Hub) -> None:
        """A topic could not be served to the end: it keeps its place."""
        if self._heap:
            heapq.heappush(self._heap, (hub.order, hub))
        else:
            self._fifo.appendleft(hub)

    def fall_behind(self) -> None:
        """A pass was too short for all: from here on priority counts, until no topic is left."""
        while self._fifo:
            hub = self._fifo.popleft()
            hub.order = (self._rank(hub), hub.order[1])
            heapq.heappush(self._heap, (hub.order, hub))


class DeferredTopics:
    """The topics that pressure holds back, and which readers were told so."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
        self.hubs: dict[Hub, None] = {}
        self._episodes = 0  # of pressure at which topics are deferred

    def must_wait(self, hub: Hub) -> bool:
        """Whether pressure holds a topic back; never one that is gone, which is announced at once."""
        return self._pressure.is_deferring and not hub.topic.is_gone and hub.topic.priority < 0

    def add(self, hub: Hub) -> None:
        """Hold a topic back, and tell its readers, once per episode (PR6)."""
        self.hubs[hub] = None
        for feed in list(hub.feeds):
            self.advise(feed.reader)

    def advise(self, reader: Reader | None) -> None:
        """Tell a reader which of its topics are held back."""
        if reader is not None and reader.advised_in != self._episodes and not reader.is_stuck():
            reader.advised_in = self._episodes
            names = [feed.name for feed in reader.feeds.values() if feed.hub and feed.hub.topic.priority < 0]
            reader.paced(sorted(names), RETRY_AFTER_MS)

    def discard(self, hub: Hub) -> None:
        self.hubs.pop(hub, None)

    def begin_episode(self) -> None:
        self._episodes += 1

    def end_episode(self) -> Iterable[Hub]:
        """Let go of all topics."""
        hubs, self.hubs = self.hubs, {}
        return hubs


class Rounds:
    """The passes of one server.

    `serve` gives the readers of a topic what is new, until a point in time; False if that came too soon for all.
    """

    def __init__(self, clock: Clock, pressure: Pressure, serve: Callable[[Hub, float], bool]) -> None:
        self.slice_s = SLICE_S
        self.ready = ReadyTopics(self._rank)
        self._clock = clock
        self._pressure = pressure
        self._serve = serve
        self.deferred = DeferredTopics(pressure)
        self._is_scheduled = False
        self._next: asyncio.Handle | None = None  # the pass that is scheduled, if it is one at the end of this turn
        self._tasks: set[asyncio.Task[None]] = set()
        pressure.listen(self._deferring)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run something in a task, until `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- when a pass is due

    def wake(self, hub: Hub) -> None:
        """There may be something new in the topic, or it is gone."""
        hub.is_dirty = True
        if hub in self.deferred.hubs and not self.deferred.must_wait(hub):
            self.deferred.discard(hub)
            hub.is_ready = False
        self.serve_soon(hub)

    def serve_soon(self, hub: Hub) -> None:
        """Serve the feeds of a topic that wait, in the next pass."""
        if not hub.is_ready:
            self.ready.add(hub)
            self._schedule()

    def push_soon(self, feed: Feed) -> None:
        """Serve one feed in the next pass."""
        hub = feed.hub
        feed.is_behind = False
        if hub is not None:
            hub.pending.append(feed)
            if not hub.is_ready:
                self.ready.add(hub)
                self._schedule()
            elif hub in self.deferred.hubs:
                self.deferred.advise(feed.reader)

    def _schedule(self, *, is_late: bool = False) -> None:
        """Schedule a pass for the end of this turn, or for later under pressure, so that frames become larger."""
        if self._is_scheduled:
            return
        self._is_scheduled = True
        level = self._pressure.level
        if level < COALESCING_AT or is_late:
            self._next = asyncio.get_running_loop().call_soon(self._pass)
        else:
            self.spawn(self._pass_later(min(1.0, level) * COALESCED_MS_MAX))

    async def _pass_later(self, wait_ms: float) -> None:
        await self._clock.wait(asyncio.get_running_loop().create_future(), wait_ms)
        self._pass()

    def serve_at_once(self) -> None:
        """For the engine, as the last thing of a turn of the log's: serve what is ready if that is not much.

        A lone record then leaves in the turn of its ack, which the loop sends at the end of the turn.
        """
        if self._next is not None and self.ready.feeds_at_most(AT_ONCE_MAX):
            self._next.cancel()
            self._pass()

    def _pass(self) -> None:
        self._next = None
        try:
            self._serve_ready()
        finally:
            self._is_scheduled = False
            if len(self.ready):
                self._schedule(is_late=True)

    def _serve_ready(self) -> None:
        """Serve each topic that is ready now, once; what is left comes in the next pass."""
        slice_end = real_clock.monotonic() + self.slice_s
        for _ in range(len(self.ready)):
            hub = self.ready.pop()
            if self.deferred.must_wait(hub):
                self.deferred.add(hub)
                continue
            if not self._serve(hub, slice_end):
                self.ready.put_back(hub)
                self.ready.fall_behind()
                break
            hub.is_ready = False
            if (hub.pending or hub.is_dirty) and hub.feeds:
                self.ready.add(hub)
            if real_clock.monotonic() >= slice_end:
                self.ready.fall_behind()
                break

    def _rank(self, hub: Hub) -> float:
        """Smaller comes first. All topics that wait rise at the same rate, so their order never changes."""
        return self._clock.now_ms() * PRIORITY_PER_MS - hub.topic.priority

    # --- pressure

    def _deferring(self, is_deferring: bool) -> None:
        """For Pressure: an episode begins or ends."""
        if is_deferring:
            self.deferred.begin_episode()
            return
        for hub in self.deferred.end_episode():
            self.ready.add(hub)
            self._schedule()
