"""Workers: claim jobs of a queue, run a handler for each, and settle them.

A job whose handler returns is acked; one whose handler raises is given back, to be claimed again after a delay that
doubles with every delivery. While a handler runs its lease is extended; a lease that was lost all the same is not
acked, since somebody else may have the job. Only as many jobs are claimed as can start at once. Delivery is at least
once: a handler may see a job again, e.g. when its worker is killed.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from msgspec import Struct

from topics.client import calls
from topics.client.answers import Job
from topics.client.errors import ApiError, ClientError, NotReady, ShuttingDown, Throttled, UnexpectedAnswer

if TYPE_CHECKING:
    from topics.client.aio import AsyncClient
    from topics.client.aio_transport import AioCaller
    from topics.client.sync import Client
    from topics.client.transport import Caller

F = TypeVar("F")
P = ParamSpec("P")

logger = logging.getLogger("topics.client")

DELAY_MAX_MS: Final = 300_000
EXTEND_PART: Final = 3  # a lease is extended when a third of it is over
DOUBLINGS_MAX: Final = 30


class Plan(Struct, frozen=True):
    """What a worker was told. Times in milliseconds."""

    topic: str
    node: str
    slots: int  # handlers at a time
    lease_ms: int
    delay_ms: int  # after a first failure
    poll_ms: int  # how often to look for jobs whose lease or delay has ended

    def nack_delay_ms(self, job: Job) -> int:
        doublings: int = 1 << min(max(job.deliveries - 1, 0), DOUBLINGS_MAX)
        return min(DELAY_MAX_MS, self.delay_ms * doublings)


class Leases(Generic[F]):
    """The jobs that run, by what runs them, and when their leases are to be extended."""

    def __init__(self, plan: Plan, monotonic: Callable[[], float]) -> None:
        self._plan = plan
        self._monotonic = monotonic
        self._renewed: dict[int, float] = {}  # seq → when the lease was taken or extended
        self.running: dict[F, Job] = {}

    @property
    def free(self) -> int:
        return self._plan.slots - len(self.running)

    def add(self, runner: F, job: Job, claimed_at: float) -> None:
        self.running[runner] = job
        self._renewed[job.seq] = claimed_at

    def end(self, runner: F) -> tuple[Job, bool]:
        """The job that a runner has finished, and whether its lease was kept."""
        job = self.running.pop(runner)
        return job, self._renewed.pop(job.seq, None) is not None

    def due(self) -> list[Job]:
        """The jobs whose leases are to be extended now."""
        limit = self._monotonic() - self._plan.lease_ms / 1000 / EXTEND_PART
        return [job for job in self.running.values() if self._renewed.get(job.seq, limit + 1) <= limit]

    def extended(self, jobs: list[Job], skipped: list[int], at: float) -> None:
        for job in jobs:
            if job.seq in skipped:
                del self._renewed[job.seq]
                logger.warning("the lease of job %d of %s was lost", job.seq, self._plan.topic)
            else:
                self._renewed[job.seq] = at

    def patience_s(self) -> float:
        """How long nothing but the end of a handler matters."""
        due = min(self._renewed.values(), default=self._monotonic()) + self._plan.lease_ms / 1000 / EXTEND_PART
        left = max(0.01, due - self._monotonic()) if self._renewed else self._plan.poll_ms / 1000
        return min(left, self._plan.poll_ms / 1000) if self.free else left


def is_passing(error: Exception) -> bool:
    """May it be otherwise soon? The server restarts, or the network is down."""
    if isinstance(error, ClientError):
        return not isinstance(error, UnexpectedAnswer)
    return isinstance(error, Throttled | NotReady | ShuttingDown)


class Worker:
    """A worker of a blocking client. `run` returns after `stop`, when the jobs that run are settled."""

    def __init__(self, client: "Client", caller: "Caller", plan: Plan, handler: Callable[[Job], object]) -> None:
        self._client = client
        self._caller = caller
        self._plan = plan
        self._handler = handler
        self._monotonic = caller.monotonic
        self._leases: Leases[Future[object]] = Leases(plan, self._monotonic)
        self._stopping = threading.Event()
        self._seen = 0  # head of the topic before the last claim
        self._claims_from = 0.0

    def stop(self) -> None:
        """Claim no more; from any thread, or from the handler."""
        self._stopping.set()

    def run(self) -> None:
        self._seen = self._client.state(self._plan.topic, touch=False).head_seq
        with ThreadPoolExecutor(self._plan.slots, "topics-worker") as pool:
            try:
                while not self._stopping.is_set():
                    self._work(pool)
            finally:
                while self._leases.running:
                    self._attend()

    def _work(self, pool: ThreadPoolExecutor) -> None:
        has_claimed = bool(self._leases.free) and self._claim(pool)
        if self._leases.running:
            self._attend()
        elif not has_claimed:
            self._await_news()

    def _claim(self, pool: ThreadPoolExecutor) -> bool:
        """Tried once: while it fails, leases are extended and jobs settled."""
        plan, at = self._plan, self._monotonic()
        if at < self._claims_from:
            return False
        try:
            answer = self._caller.run_once(calls.claim(plan.topic, plan.node, self._leases.free, plan.lease_ms))
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        for job in answer.claimed:
            self._leases.add(pool.submit(self._handler, job), job, at)
        return bool(answer.claimed)

    def _await_news(self) -> None:
        plan = self._plan
        try:
            answer = self._caller.run_once(calls.diff(plan.topic, self._seen, limit=1, wait_ms=plan.poll_ms))
            self._seen = answer.head_seq
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            self._caller.pause(plan.poll_ms / 1000, self._stopping)

    def _hold_on(self, error: ApiError | ClientError) -> None:
        """Claim nothing for a while; what will not pass is raised."""
        if not is_passing(error):
            raise error
        logger.warning("worker of %s: %s", self._plan.topic, error)
        self._claims_from = self._monotonic() + self._plan.poll_ms / 1000

    def _attend(self) -> None:
        """Wait for a handler to end, or for a lease to be extended, and settle what has ended."""
        done, _ = wait(list(self._leases.running), self._leases.patience_s(), FIRST_COMPLETED)
        for runner in done:
            job, is_ours = self._leases.end(runner)
            if is_ours:
                self._try(self._settle, job, runner.exception())
        if due := self._leases.due():
            self._try(self._extend, due)

    def _settle(self, job: Job, failure: BaseException | None) -> None:
        plan = self._plan
        if failure is None:
            self._client.ack(plan.topic, plan.node, [job])
            return
        logger.warning("job %d of %s failed", job.seq, plan.topic, exc_info=failure)
        self._client.nack(plan.topic, plan.node, [job], delay_ms=plan.nack_delay_ms(job))

    def _extend(self, jobs: list[Job]) -> None:
        plan, at = self._plan, self._monotonic()
        answer = self._client.extend(plan.topic, plan.node, jobs, lease_ms=plan.lease_ms)
        self._leases.extended(jobs, answer.skipped, at)

    def _try(self, call: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """What cannot be settled now is delivered again when its lease ends."""
        try:
            call(*args, **named)
        except (ApiError, ClientError) as error:
            logger.warning("worker of %s: %s", self._plan.topic, error)


class AsyncWorker:
    """A worker of an AsyncClient; handlers are coroutines. `run` returns after `stop`; if it is cancelled, so are
    the handlers, and their jobs are given back."""

    def __init__(
        self, client: "AsyncClient", caller: "AioCaller", plan: Plan, handler: Callable[[Job], Awaitable[object]]
    ) -> None:
        self._client = client
        self._caller = caller
        self._plan = plan
        self._handler = handler
        self._monotonic = caller.monotonic
        self._leases: Leases[asyncio.Task[Any]] = Leases(plan, self._monotonic)
        self._stopping = asyncio.Event()
        self._seen = 0  # head of the topic before the last claim
        self._claims_from = 0.0

    def stop(self) -> None:
        """Claim no more."""
        self._stopping.set()

    async def run(self) -> None:
        self._seen = (await self._client.state(self._plan.topic, touch=False)).head_seq
        try:
            while not self._stopping.is_set():
                await self._work()
        except asyncio.CancelledError:
            for runner in self._leases.running:
                runner.cancel()
            raise
        finally:
            while self._leases.running:
                await self._attend()

    async def _work(self) -> None:
        has_claimed = bool(self._leases.free) and await self._claim()
        if self._leases.running:
            await self._attend()
        elif not has_claimed:
            await self._await_news()

    async def _claim(self) -> bool:
        """Tried once: while it fails, leases are extended and jobs settled."""
        plan, at = self._plan, self._monotonic()
        if at < self._claims_from:
            return False
        try:
            answer = await self._caller.run_once(calls.claim(plan.topic, plan.node, self._leases.free, plan.lease_ms))
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        for job in answer.claimed:
            self._leases.add(asyncio.ensure_future(self._handle(job)), job, at)
        return bool(answer.claimed)

    async def _await_news(self) -> None:
        plan = self._plan
        try:
            answer = await self._caller.run_once(calls.diff(plan.topic, self._seen, limit=1, wait_ms=plan.poll_ms))
            self._seen = answer.head_seq
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            await self._caller.pause(plan.poll_ms / 1000)

    def _hold_on(self, error: ApiError | ClientError) -> None:
        """Claim nothing for a while; what will not pass is raised."""
        if not is_passing(error):
            raise error
        logger.warning("worker of %s: %s", self._plan.topic, error)
        self._claims_from = self._monotonic() + self._plan.poll_ms / 1000

    async def _handle(self, job: Job) -> None:
        await self._handler(job)

    async def _attend(self) -> None:
        """Wait for a handler to end, or for a lease to be extended, and settle what has ended."""
        timeout = self._leases.patience_s()
        done, _ = await asyncio.wait(self._leases.running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for runner in done:
            job, is_ours = self._leases.end(runner)
            failure = asyncio.CancelledError() if runner.cancelled() else runner.exception()
            if is_ours:
                await self._try(self._settle(job, failure))
        if due := self._leases.due():
            await self._try(self._extend(due))

    async def _settle(self, job: Job, failure: BaseException | None) -> None:
        plan = self._plan
        if failure is None:
            await self._client.ack(plan.topic, plan.node, [job])
            return
        logger.warning("job %d of %s failed", job.seq, plan.topic, exc_info=failure)
        await self._client.nack(plan.topic, plan.node, [job], delay_ms=plan.nack_delay_ms(job))

    async def _extend(self, jobs: list[Job]) -> None:
        plan, at = self._plan, self._monotonic()
        answer = await self._client.extend(plan.topic, plan.node, jobs, lease_ms=plan.lease_ms)
        self._leases.extended(jobs, answer.skipped, at)

    async def _try(self, call: Awaitable[None]) -> None:
        """What cannot be settled now is delivered again when its lease ends."""
        try:
            await call
        except (ApiError, ClientError) as error:
            logger.warning("worker of %s: %s", self._plan.topic, error)
