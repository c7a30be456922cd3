"""Workers: claim jobs of a queue, run a handler for each, and settle them.

A job whose handler returns is acked. A job whose handler raises is given back, to be claimed again after a delay that
doubles with every delivery. While a handler runs, its lease is extended; if the lease is lost all the same, the job is
not acked, since somebody else may have it. A worker claims only as many jobs as can start at once. Delivery is at
least once: a handler may see a job again, for example after its worker was killed.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ParamSpec

from topics.client.aio.concurrency import AsyncEvent, AsyncHandler, AsyncHandlers, AsyncRunner, ended, failure_of
from topics.client.errors import ApiError, ClientError
from topics.client.protocol import operations
from topics.client.protocol.leases import Leases, WorkerPlan, is_passing, logger
from topics.client.results import Job

if TYPE_CHECKING:
    from topics.client.aio.caller import AsyncCaller
    from topics.client.aio.client import AsyncClient

P = ParamSpec("P")


class AsyncWorker:
    """A worker of an AsyncClient. `run` returns after `stop`, once the jobs that run are settled."""

    def __init__(self, client: "AsyncClient", caller: "AsyncCaller", plan: WorkerPlan, handler: AsyncHandler) -> None:
        self._client = client
        self._caller = caller
        self._plan = plan
        self._handler = handler
        self._monotonic = caller.monotonic
        self._leases: Leases[AsyncRunner] = Leases(plan, self._monotonic)
        self._stopping = AsyncEvent()
        self._seen = 0  # head of the topic before the last claim
        self._claims_from = 0.0

    def stop(self) -> None:
        """Claim no more. May be called from any thread, or from the handler."""
        self._stopping.set()

    async def run(self) -> None:
        self._seen = (await self._client.state(self._plan.topic, touch=False)).head_seq
        async with AsyncHandlers(self._handler, self._plan.slots) as handlers:
            try:
                while not self._stopping.is_set():
                    await self._work(handlers)
            except BaseException as error:
                handlers.interrupt(self._leases.running, error)
                raise
            finally:
                while self._leases.running:
                    await self._attend()

    async def _work(self, handlers: AsyncHandlers) -> None:
        has_claimed = bool(self._leases.free) and await self._claim(handlers)
        if self._leases.running:
            await self._attend()
        elif not has_claimed:
            await self._await_news()

    async def _claim(self, handlers: AsyncHandlers) -> bool:
        """Claim, in one try: while claims fail, leases are still extended and jobs settled."""
        plan, at = self._plan, self._monotonic()
        if at < self._claims_from:
            return False
        claim = operations.claim(plan.topic, plan.node, self._leases.free, plan.lease_ms)
        try:
            result = await self._caller.run_once(claim)
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        for job in result.claimed:
            self._leases.add(handlers.start(job), job, at)
        return bool(result.claimed)

    async def _await_news(self) -> None:
        plan = self._plan
        try:
            diff = await self._caller.run_once(operations.diff(plan.topic, self._seen, limit=1, wait_ms=plan.poll_ms))
            self._seen = diff.head_seq
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            await self._caller.pause(plan.poll_ms / 1000, self._stopping)

    def _hold_on(self, error: ApiError | ClientError) -> None:
        """Claim nothing for a while. An error that will not pass is raised."""
        if not is_passing(error):
            raise error
        logger.warning("worker of %s: %s", self._plan.topic, error)
        self._claims_from = self._monotonic() + self._plan.poll_ms / 1000

    async def _attend(self) -> None:
        """Wait until a handler ends or a lease is due; settle the ended jobs and extend the due leases."""
        for runner in await ended(self._leases.running, self._leases.patience_s()):
            job, is_ours = self._leases.end(runner)
            if is_ours:
                await self._try(self._settle, job, failure_of(runner))
        if due := self._leases.due():
            await self._try(self._extend, due)

    async def _settle(self, job: Job, failure: BaseException | None) -> None:
        plan = self._plan
        if failure is None:
            await self._client.ack(plan.topic, plan.node, [job])
            return
        logger.warning("job %d of %s failed", job.seq, plan.topic, exc_info=failure)
        await self._client.nack(plan.topic, plan.node, [job], delay_ms=plan.nack_delay_ms(job))

    async def _extend(self, jobs: list[Job]) -> None:
        plan, at = self._plan, self._monotonic()
        extended = await self._client.extend(plan.topic, plan.node, jobs, lease_ms=plan.lease_ms)
        self._leases.extended(jobs, extended.skipped, at)

    async def _try(self, call: Callable[P, Awaitable[None]], *args: P.args, **named: P.kwargs) -> None:
        """A job that cannot be settled now is delivered again when its lease ends."""
        try:
            await call(*args, **named)
        except (ApiError, ClientError) as error:
            logger.warning("worker of %s: %s", self._plan.topic, error)
