"""Claimers that wait: claims within the window of a cohort, and workers that stay (QU7, WK2, WK4).

Owns who waits for which queue, the windows, and when a pass is made for them; the pass itself is `Queues.hand_out`.
Must not know: HTTP, how jobs reach a worker.

A queue has a *crew* while anyone waits for it. A worker with room for more jobs is *hungry*. Whatever may make jobs
claimable or give a worker room (an append, an ack, a nack, a delete) wakes the crew; a lease or delay that ends by
itself is waited for, one wait per crew. Jobs are dealt one each in turn, and whoever was served goes to the end of
the line, so that shares are even. Nothing polls. A pass over a paused queue hands out nothing; that it goes on again is
a change of the topic, which wakes the crew.

With `claim_jitter_ms` the first claim, or the first claimable job while workers are hungry, opens a window. All claims
that come before its end form a cohort, which one pass serves.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from topics.clock import Alarm
from topics.core.queue.jobs import Queue
from topics.core.queue.leasing import Claimer
from topics.core.state import Topic
from topics.engine.answers import Claimed
from topics.engine.gate import Gate, Hall
from topics.engine.queues.claims import LOADS_MAX, Queues
from topics.engine.queues.turns import Turns
from topics.errors import CommitFailed, NotAQueue, Refusal, StorageError, TopicNotFound, TopicsError

PASS_JOBS_MAX = 1000  # handed out to workers in one turn of the loop
RETRY_MS = 1000  # after which jobs that could not be dead-lettered are tried again

logger = logging.getLogger("topics.engine.queues.crews")


class Worker(Claimer):
    """A claimer that stays. Subclasses say how jobs reach it."""

    __slots__ = ("held", "jobs_max", "topic_id")

    def __init__(self, node: str, jobs_max: int, lease_ms: int | None) -> None:
        super().__init__(node, 0, lease_ms)
        self.jobs_max = jobs_max
        self.held: dict[int, int] = {}  # lease number → seq, of its leases that have not ended
        self.topic_id = 0  # of the queue that it works for

    @property
    def room(self) -> int:
        """How many jobs the worker can take now."""
        return self.jobs_max - len(self.held)

    @property
    def can_take(self) -> bool:
        """Whether the worker takes any jobs at present."""
        raise NotImplementedError

    def deliver(self, claimed: Claimed) -> None:
        """Hand the worker jobs that may be shown."""
        raise NotImplementedError

    def dismissed(self, error: TopicsError) -> None:
        """There will be no more jobs."""
        raise NotImplementedError

    def paced(self) -> None:
        """Jobs are held back until there is less pressure."""


class _Waiting(Claimer):
    """A claim that waits for the end of a window."""

    __slots__ = ("answer",)

    def __init__(self, claimer: Claimer) -> None:
        super().__init__(claimer.node, claimer.wanted, claimer.lease_ms)
        self.answer: asyncio.Future[tuple[Claimed, Gate] | None] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        return self.answer.done()

    def leave(self, _: object) -> None:
        if not self.is_gone:
            self.answer.set_result(None)

    def refuse(self, error: Exception) -> None:
        if not self.is_gone:
            self.answer.set_exception(error)


class _Crew:
    """All that wait for one queue."""

    def __init__(self, topic: Topic) -> None:
        self.id = topic.id
        self.name = topic.name
        self.queue: Queue = topic.queue
        self.claims: list[_Waiting] = []
        self.window: asyncio.Task[None] | None = None
        self.workers: set[Worker] = set()
        self.hungry: dict[Worker, None] = {}  # in the order in which they are served
        self.holders: dict[int, Worker] = {}  # lease number → worker
        self.task: asyncio.Task[None] | None = None
        self.is_paced = False
        self.alarm = Alarm()
        self.wake = self.alarm.ring

    def adopt(self, queue: Queue) -> None:
        """Go on with another state of the queue: after a failure of the log, leases may be gone."""
        self.queue = queue
        queue.ended = [
            number for number, worker in self.holders.items() if not queue.has_lease(worker.held[number], number)
        ]

    def note_ended(self) -> None:
        """Leases that have ended give their workers room."""
        if self.queue.ended:
            ended, self.queue.ended = self.queue.ended, []
            for number in ended:
                worker = self.holders.pop(number, None)
                if worker is not None:
                    worker.held.pop(number, None)
                    self.feed(worker)

    def feed(self, worker: Worker) -> None:
        """Let a worker stand in line if it can take something."""
        if worker in self.workers and worker.room > 0 and worker.can_take:
            self.hungry.setdefault(worker)
        else:
            self.hungry.pop(worker, None)

    def line(self, jobs: int) -> list[Worker]:
        """The workers to be served next when there are this many jobs, with what each may take."""
        self.note_ended()
        line: list[Worker] = []
        for worker in list(self.hungry):
            if len(line) == jobs:
                break
            if worker.can_take:
                line.append(worker)
            else:
                del self.hungry[worker]
        share = max(1, PASS_JOBS_MAX // max(1, len(line)))
        for worker in line:
            worker.wanted = min(worker.room, share)
        return line

    def idle_ms(self, now: int, *, is_paused: bool) -> int | None:
        """How long nothing changes by itself; None = for ever."""
        end = self.queue.next_end()
        idle_ms = [] if end is None else [max(0, end - now)]
        if self.queue.exhausted and self.hungry and not is_paused:
            idle_ms.append(RETRY_MS)
        return min(idle_ms, default=None)

    def hold(self, worker: Worker, claimed: Claimed) -> None:
        """A worker was served: it goes to the end of the line, or leaves it."""
        for seq, number, _, _ in claimed.leases:
            worker.held[number] = seq
            self.holders[number] = worker
        self.hungry.pop(worker, None)
        self.feed(worker)


class Crews:
    """All crews of an instance: one for each queue for which somebody waits."""

    def __init__(self) -> None:
        self.by_id: dict[int, _Crew] = {}  # of the topic

    def of(self, topic: Topic) -> _Crew:
        return self.by_id.get(topic.id) or self.by_id.setdefault(topic.id, _Crew(topic))

    def wake(self, topic_id: int) -> None:
        """Jobs of a topic may have become claimable, or workers may have got room."""
        crew = self.by_id.get(topic_id)
        if crew is not None:
            crew.wake()

    def wake_all(self) -> None:
        for crew in self.by_id.values():
            crew.wake()

    def disband(self, crew: _Crew) -> None:
        """Forget a crew if nobody waits any more."""
        if crew.task is None and crew.window is None and not crew.claims:
            self.by_id.pop(crew.id, None)


class Workers:
    """Serves the crews of one instance."""

    def __init__(self, hall: Hall, queues: Queues, turns: Turns, is_deferred: Callable[[Topic], bool]) -> None:
        self._ledger, self._loader, self._clock = hall.ledger, hall.loader, hall.clock
        self._turns = turns
        self._is_deferred = is_deferred  # pressure keeps a queue's jobs from workers (PR5)
        self._queues = queues
        self.crews = Crews()

    async def stop(self) -> None:
        """End all waiting, for the end of the engine."""
        tasks = [task for crew in self.crews.by_id.values() for task in (crew.task, crew.window) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- claims

    async def claim(self, name: str, claimer: Claimer, stop: "asyncio.Future[None] | None" = None) -> Claimed:
        """Hand jobs out to one claimer, at the end of the queue's window if it has one. `stop`: it is gone."""
        topic = self._ledger.state.topics.get(name)
        if topic is None or not topic.is_queue or not topic.config.claim_jitter_ms:
            return await self._queues.claim(name, claimer)
        waiting, crew = _Waiting(claimer), self.crews.of(topic)
        crew.claims.append(waiting)
        self._open_window(crew, topic)
        if stop is not None:
            stop.add_done_callback(waiting.leave)
        served = await waiting.answer
        if served is None:
            return Claimed(name, topic.id, [], [], topic.queue.ready(topic.log.count), topic.paused)
        await self._queues.shown(*served)
        return served[0]

    def _open_window(self, crew: _Crew, topic: Topic) -> None:
        if crew.window is None:
            crew.window = asyncio.get_running_loop().create_task(self._serve_cohort(crew, topic.config.claim_jitter_ms))

    async def _serve_cohort(self, crew: _Crew, window_ms: int) -> None:
        claims = crew.claims

        def cohort(topic: Topic) -> list[Claimer]:
            line = crew.line(len(crew.workers))
            return [*(claim for claim in claims if not claim.is_gone), *line]

        error: Exception = CommitFailed("the engine is closed")
        try:
            await self._clock.wait(asyncio.get_running_loop().create_future(), window_ms)
            crew.window, crew.claims = None, []  # whoever comes from now on is of the next cohort
            await self._serve(crew, cohort)
        except (TopicsError, OSError) as refusal:
            error = refusal
        finally:
            for claim in claims:
                claim.refuse(error)
            crew.wake()
            self.crews.disband(crew)

    # --- workers

    def join(self, name: str, worker: Worker) -> None:
        """Give a worker jobs of a queue from now on."""
        topic = self._queues.queue(name)
        crew = self.crews.of(topic)
        worker.topic_id = topic.id
        crew.workers.add(worker)
        if crew.task is None:
            crew.adopt(topic.queue)
            self._ledger.listeners.listen(crew.id, crew.wake)
            crew.task = asyncio.get_running_loop().create_task(self._run(crew))
        self.resume(worker)

    def leave(self, worker: Worker) -> None:
        """A worker is gone; what it holds is free at once (WK5)."""
        crew = self.crews.by_id.get(worker.topic_id)
        if crew is not None:
            self._turns.ack_waiting(crew.name)
            crew.note_ended()
            crew.workers.discard(worker)
            crew.hungry.pop(worker, None)
            for number in worker.held:
                crew.holders.pop(number, None)
            crew.wake()
        leases = [(seq, number) for number, seq in worker.held.items()]
        worker.held.clear()
        self._queues.release(worker.topic_id, leases)

    def resume(self, worker: Worker) -> None:
        """A worker takes jobs, or takes them again."""
        crew = self.crews.by_id.get(worker.topic_id)
        if crew is not None:
            crew.feed(worker)
            crew.wake()

    async def _run(self, crew: _Crew) -> None:
        """Serve the workers of a queue for as long as there are some."""
        try:
            while crew.workers:
                crew.alarm.is_ringing = False
                topic = self._present(crew)
                if topic is None:
                    return
                try:
                    await self._feed(crew, topic)
                    idle_ms = crew.idle_ms(self._clock.now_ms(), is_paused=topic.paused)
                except Refusal:
                    continue  # the queue is gone
                except (StorageError, OSError) as error:
                    logger.error('jobs of "%s" cannot be handed out: %s', crew.name, error)
                    idle_ms = RETRY_MS
                await crew.alarm.sleep(self._clock, idle_ms)
        finally:
            crew.task = None
            crew.queue.ended = None
            self._ledger.listeners.unlisten(crew.id, crew.wake)
            self.crews.disband(crew)

    def _present(self, crew: _Crew) -> Topic | None:
        """The queue as it is now. If it is gone, its workers are told."""
        topic = self._ledger.current(crew.name)
        if topic is None or topic.id != crew.id:
            is_log = topic is not None and not topic.is_queue
            error = NotAQueue(crew.name) if is_log else TopicNotFound(crew.name)
            for worker in list(crew.workers):
                crew.workers.discard(worker)
                worker.dismissed(error)
            return None
        if topic.queue is not crew.queue:
            crew.adopt(topic.queue)
        crew.note_ended()
        return topic

    async def _feed(self, crew: _Crew, topic: Topic) -> None:
        """Hand out what there is to those who are hungry."""
        was_paced, crew.is_paced = crew.is_paced, bool(crew.hungry) and self._is_deferred(topic)
        if crew.is_paced:
            for worker in () if was_paced else list(crew.workers):
                worker.paced()
        elif not topic.config.claim_jitter_ms:
            is_served = True
            while is_served:
                is_served = await self._serve(crew, lambda topic: crew.line(topic.queue.ready(topic.log.count))) > 0
                await asyncio.sleep(0)  # let others have their turn
        elif crew.hungry and not topic.paused and topic.queue.ready(topic.log.count):
            self._open_window(crew, topic)

    # --- both

    async def _serve(self, crew: _Crew, present: Callable[[Topic], Sequence[Claimer]]) -> int:
        """One pass for the claimers present now. Returns how many jobs were handed out."""

        def hand_out(takes_what_is_warm: bool) -> tuple[Sequence[Claimer], list[Claimed], Gate | None]:
            topic = self._queues.claimable(crew.name)
            if topic.id != crew.id:
                raise TopicNotFound(crew.name)
            if topic.queue is not crew.queue and crew.task is not None:
                crew.adopt(topic.queue)
            claimers = present(topic)
            if not claimers:
                return (), [], None
            return claimers, *self._queues.hand_out(topic, claimers, takes_what_is_warm=takes_what_is_warm)

        claimers, hands, gate = await self._loader.until_warm(hand_out, LOADS_MAX)
        for claimer, claimed in zip(claimers, hands, strict=True):
            assert gate is not None
            self._give(crew, claimer, claimed, gate)
        return sum(len(claimed.texts) for claimed in hands)

    def _give(self, crew: _Crew, claimer: Claimer, claimed: Claimed, gate: Gate) -> None:
        """Hand a claimer what it got in a pass, when that may be shown."""
        if isinstance(claimer, _Waiting):
            claimer.answer.set_result((claimed, gate))
        elif isinstance(claimer, Worker) and claimed.texts:
            crew.hold(claimer, claimed)
            self._queues.when_shown(
                [claimed], gate, lambda failure: None if failure is not None else claimer.deliver(claimed)
            )
