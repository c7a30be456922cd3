"""One instance of topics: how the parts of the engine are put together, and all that can be done at once.

    result, gate = instance.append_now(Append("orders", batch))
    instance.when_open(gate, lambda failure: ...)       # the answer may leave now, or what keeps it from leaving

The synchronous half of the engine, which the hot paths of the server talk to. A call here neither awaits nor blocks: it
runs to its end in one turn of the event loop, and gives its result with the gate behind which the result may be shown.
Coroutines for callers that would rather wait are in engine.py. All state lives on one event loop; there are no locks.

Owns the parts, their start and their end. Must not know: HTTP, the form in which a caller has its arguments. Nobody
outside the engine reaches past it. What callers wait for is in its rooms: `changes`, `reading`, `queues`, `routing`,
`cursors`, `overview`, `survey`; its numbers are in `figures`; all else that the server needs has a name here.
"""

import asyncio
from functools import partial
from typing import Self

from topics.clock import Clock, SystemClock
from topics.core import decide
from topics.core.decide import Append, Caps
from topics.core.queue.leasing import Ack, Claimer
from topics.core.state import State, Topic
from topics.core.topic.config import effective_priority
from topics.core.topic.pages import Cache, Cold, PageAddress, Projection
from topics.core.topic.walk import Query
from topics.engine.answers import WriteResult
from topics.engine.changes import Changes
from topics.engine.durability.store import Store
from topics.engine.gate import Gate, Gates, Hall
from topics.engine.ledger import Ledger
from topics.engine.loading import Loader
from topics.engine.queues.claims import Queues
from topics.engine.queues.crews import Worker, Workers
from topics.engine.queues.turns import Turns
from topics.engine.reads import Reading
from topics.engine.routers.calls import Routing
from topics.engine.routers.forwarder import Forwarder
from topics.engine.routers.owed import OwedCopies
from topics.engine.seeing.figures import Figures
from topics.engine.seeing.footprint import Footprint
from topics.engine.seeing.named_cursors import NamedCursors
from topics.engine.seeing.overview import Overview, TopicFilter
from topics.engine.seeing.survey import Survey
from topics.engine.upkeep import Upkeep
from topics.errors import UnusableDirectory
from topics.model import TopicConfig
from topics.settings import Settings
from topics.storage.disk import Disk, RealDisk
from topics.storage.wal import Wal, end_turn, write_zeros_ahead
from topics.tuning import memory_allowed

# The instance, and what its callers hand to it or get from it.
__all__ = [
    "Ack",
    "Append",
    "Claimer",
    "Cold",
    "Followed",
    "Gate",
    "Instance",
    "PageAddress",
    "Projection",
    "Query",
    "TopicFilter",
    "Worker",
]

SILENT_MS = 4_000  # a helper that is silent for once to twice as long when the engine ends hangs
PAGES_SIXTEENTHS = (3, 1)  # of the cache that rendered pages may take: of records in memory, and of sealed ones
CLOSE_S = 12.0  # for closing an engine, unless told otherwise: enough to give up on a helper that hangs


class Instance:
    """A data directory, open once `start` has returned."""

    def __init__(self, disk: Disk, settings: Settings, clock: Clock, *, background: bool = True) -> None:
        self.settings = settings
        self.clock = clock
        self._disk = disk
        self._has_background = background
        self._is_started = False
        self._is_deferring = False
        self._caps = Caps(
            settings.max_topics,
            settings.max_total_bytes,
            settings.max_routers,
            settings.max_cursors,
            settings.max_memory_bytes or memory_allowed(),
        )
        self._cache = Cache(*(settings.cache_bytes * sixteenths // 16 for sixteenths in PAGES_SIXTEENTHS))
        store = Store(disk, clock, settings)
        self._ledger = ledger = Ledger(store, clock)
        self._loader = loader = Loader(self._cache, disk.run, store.catalogue.is_in_force)
        self._gates = gates = Gates(ledger, loader)
        hall = Hall(ledger, gates, loader, self._cache, clock, self._caps)
        self.wal: Wal = ledger.wal
        self._upkeep = Upkeep(hall, settings)
        self.changes = Changes(hall)
        self.forwarder = Forwarder(hall, self._is_deferred)
        self._owed = owed = OwedCopies(hall, self.forwarder)
        self.routing = Routing(hall, self.forwarder, owed)
        self.reading = reading = Reading(hall, owed.make, disk)
        self.cursors = NamedCursors(hall)
        self.overview = Overview(hall)
        self.survey = Survey(hall, self.overview)
        self.footprint = Footprint(ledger, self._caps)
        self.figures = Figures(ledger, disk)
        self.queues = Queues(hall, owed.make)
        self._turns = turns = Turns(self.queues, gates)
        self.workers = Workers(hall, self.queues, turns, self._is_deferred)
        # Who is told by whom.
        ledger.on_commit = self._upkeep.committed
        ledger.on_source_change = self.forwarder.changed
        ledger.on_rebuilt = self._rebuilt
        loader.make_copies = owed.make_all
        self.queues.on_claimable = self.workers.crews.wake
        # What the server's hot paths call, and what a part answers as it is: bound here, and described there.
        self.read_now = reading.read_now
        self.read_in_turn = reading.read_in_turn
        self.load = loader.load  # a coroutine: brings in what a Cold says is missing
        self.keep_page, self.let_page_go = self._cache.keep, self._cache.let_go
        self.drop_idle_pages = self._cache.drop_idle
        self.drop_maps = store.catalogue.maps.shrink
        self.cursor_before = reading.cursor_before
        self.claim_soon = turns.claim  # at the end of this turn, with the others that come in it
        self.ack_soon = turns.ack
        self.nack_now = self.queues.nack
        self.extend_now = self.queues.extend
        self.check_queue = self.queues.queue  # refuses a name that is not a queue's
        self.add_worker = self.workers.join
        self.resume_worker = self.workers.resume
        self.remove_worker = self.workers.leave
        self.is_open = gates.is_open
        self.when_open = gates.when_open
        self.end_turn = partial(end_turn, self.wal)  # write the log now; only for a turn of its own
        self.obstacle = ledger.obstacle
        self.checkpoints = self._upkeep.checkpointing.counts
        self.listen = ledger.listeners.listen
        self.unlisten = ledger.listeners.unlisten
        self.when_told = ledger.listeners.when_told
        self.gate = gates.of_name  # for what was just seen of a topic, or of there being none
        self.make_room = partial(write_zeros_ahead, self.wal)  # a coroutine: for a large write, in turns of the loop

    @classmethod
    def open(
        cls,
        path: str,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        background: bool = True,
    ) -> Self:
        """An engine on the data directory `path`, created if absent; `start` recovers it.

        `background=False` leaves checkpoints and syncs in the background to the caller.
        """
        return cls(disk or RealDisk(path), settings or Settings(), clock or SystemClock(), background=background)

    # --- life

    async def start(self) -> None:
        """Lock the directory and recover. On a refusal nothing has changed."""
        try:
            self._disk.lock()
            await self._ledger.start()
        except BaseException as error:
            self._disk.unlock()
            self._disk.close()
            if isinstance(error, OSError):
                raise UnusableDirectory(f"{self._disk.path} cannot be used: {error}") from error
            raise
        self._is_started = True
        self.forwarder.start()
        if self._has_background:
            self._upkeep.start()

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Take a last checkpoint and let go of the directory.

        What can be left to the next start (copies of routers, the checkpoint) is left to it when the time is over.
        """
        if not self._is_started:
            return
        self._is_started = False
        now = self.clock.monotonic()
        watching = asyncio.create_task(_kill_silent_helpers(self._ledger.store, self.clock))
        try:
            await self.workers.stop()
            await self._owed.make_everywhere(now + within_s / 2)
            await self.forwarder.stop()
            await self._upkeep.stop(now + within_s)
        finally:
            watching.cancel()
            self._ledger.store.close()
            self._disk.unlock()
            self._disk.close()

    def _rebuilt(self) -> None:
        """The log failed, and the state was rebuilt: its parts are others."""
        self.forwarder.restart()
        self._loader.clear()
        self.queues.rebuilt()

    # --- the whole

    @property
    def state(self) -> State:
        """The state at the end of the log. For the engine itself, and for tests that look inside."""
        return self._ledger.state

    @property
    def replay_progress(self) -> float:
        """How much of the log is replayed: 0.0 to 1.0."""
        return self._ledger.store.progress

    @property
    def fill(self) -> float:
        """How full the way to the disk is: at 1.0 and above writes should wait."""
        return self._upkeep.fill

    # --- pressure

    def defer(self, is_deferring: bool) -> None:
        """While the server is under pressure, routers and workers of topics of negative priority wait (PR5)."""
        self._is_deferring = is_deferring
        if not is_deferring:
            self.forwarder.blocked.resume()
        self.workers.crews.wake_all()

    def _is_deferred(self, topic: Topic) -> bool:
        if not self._is_deferring:
            return False
        return effective_priority(topic.config, topic.notes.last_read_ms, self.clock.now_ms()) < 0

    # --- appends and gates

    def append_now(self, command: Append) -> tuple[WriteResult, Gate]:
        """Append a batch. The result holds, and may be shown, once the gate is open."""
        ledger = self._ledger
        state = ledger.state
        topic = state.topics.get(command.topic)
        if topic is not None and topic.config.ttl_ms:
            ledger.current(command.topic)
        bytes_max = self._caps.max_total_bytes
        if bytes_max and state.bytes + sum(command.batch.sizes) > bytes_max:
            for expiring in list(state.expiring.values()):
                ledger.current(expiring.name)
        decided, done = decide.append(state, command, self.clock.now_ms(), self._caps)
        if decided:
            ledger.commit(decided)
            topic = topic or state.topics[command.topic]
        first, last = done.first, done.last
        count = last - first + 1
        result = WriteResult(command.topic, first, last, last, count, done.created, done.deduped, done.mismatch)
        return result, self._gates.of(topic)

    # --- single topics and routers

    def config_of(self, name: str) -> TopicConfig | None:
        """A topic's config; None: there is no such topic."""
        topic = self._ledger.state.topics.get(name)
        return None if topic is None else topic.config

    def router_ends(self, name: str) -> tuple[str, str] | None:
        """The names of a router's source and dest; None: there is no such router."""
        state = self._ledger.state
        router = state.routers.by_name.get(name)
        return None if router is None else (state.by_id[router.source].name, state.by_id[router.dest].name)

    def follow(self, name: str) -> "Followed | None":
        """A topic, for somebody who goes on looking at it; None: there is no such topic."""
        topic = self._ledger.state.topics.get(name)
        return None if topic is None else Followed(self._ledger, self.clock, topic)


async def _kill_silent_helpers(store: Store, clock: Clock) -> None:
    """Keep a helper that hangs from holding up the shutdown."""
    while True:
        await clock.wait(asyncio.get_running_loop().create_future(), SILENT_MS)
        store.kill_silent_helpers()


class Followed:
    """One instance of a topic, as it is now, and as it last was once it is gone."""

    __slots__ = ("_clock", "_ledger", "_topic", "id", "name")

    def __init__(self, ledger: Ledger, clock: Clock, topic: Topic) -> None:
        self.id = topic.id
        self.name = topic.name
        self._ledger = ledger
        self._clock = clock
        self._topic = topic

    @property
    def is_gone(self) -> bool:
        """Whether this instance of the topic was deleted."""
        return self.id not in self._ledger.state.by_id

    def refresh(self) -> bool:
        """Look at the topic as it is now. False: it is gone, and stays as it last was."""
        topic = self._ledger.state.by_id.get(self.id)
        if topic is None:
            return False
        self._topic = topic
        return True

    @property
    def epoch(self) -> int:
        return self._topic.epoch

    @property
    def head(self) -> int:
        return self._topic.log.head

    @property
    def ready_jobs(self) -> int:
        """How many jobs a queue has to hand out; 0 for a log."""
        return self._topic.queue.ready(self._topic.log.count) if self._topic.is_queue else 0

    @property
    def priority(self) -> int:
        """The priority in use now (PR1)."""
        topic = self._ledger.state.by_id.get(self.id, self._topic)
        return effective_priority(topic.config, topic.notes.last_read_ms, self._clock.now_ms())
