# Generated from src/topics/client/aio/worker.py by `python -m tools.blocking_client`. Do not edit.
"""Workers: claim jobs of a queue, run a handler for each, and settle them.

A job whose handler returns is acked. A job whose handler raises is given back, to be claimed again after a delay that
doubles with every delivery. While a handler runs, its lease is extended; if the lease is lost all the same, the job is
not acked, since somebody else may have it. A worker claims only as many jobs as can start at once. Delivery is at
least once: a handler may see a job again, for example after its worker was killed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

from topics.client.blocking.concurrency import Event, Handler, Handlers, Runner, ended, failure_of
from topics.client.errors import ApiError, ClientError
from topics.client.protocol import operations
from topics.client.protocol.leases import Leases, WorkerPlan, is_passing, logger
from topics.client.results import Job

if TYPE_CHECKING:
    from topics.client.blocking.caller import Caller
    from topics.client.blocking.client import Client

P = ParamSpec("P")


class Worker:
    """A worker of a Client. `run` returns after `stop`, once the jobs that run are settled."""

    def __init__(self, client: "Client", caller: "Caller", plan: WorkerPlan, handler: Handler) -> None:
        self._client = client
        self._caller = caller
        self._plan = plan
        self._handler = handler
        self._monotonic = caller.monotonic
        self._leases: Leases[Runner] = Leases(plan, self._monotonic)
        self._stopping = Event()
        self._seen = 0  # head of the topic before the last claim
        self._claims_from = 0.0

    def stop(self) -> None:
        """Claim no more. May be called from any thread, or from the handler."""
        self._stopping.set()

    def run(self) -> None:
        self._seen = (self._client.state(self._plan.topic, touch=False)).head_seq
        with Handlers(self._handler, self._plan.slots) as handlers:
            try:
                while not self._stopping.is_set():
                    self._work(handlers)
            except BaseException as error:
                handlers.interrupt(self._leases.running, error)
                raise
            finally:
                while self._leases.running:
                    self._attend()

    def _work(self, handlers: Handlers) -> None:
        has_claimed = bool(self._leases.free) and self._claim(handlers)
        if self._leases.running:
            self._attend()
        elif not has_claimed:
            self._await_news()

    def _claim(self, handlers: Handlers) -> bool:
        """Claim, in one try: while claims fail, leases are still extended and jobs settled."""
        plan, at = self._plan, self._monotonic()
        if at < self._claims_from:
            return False
        claim = operations.claim(plan.topic, plan.node, self._leases.free, plan.lease_ms)
        try:
            result = self._caller.run_once(claim)
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        for job in result.claimed:
            self._leases.add(handlers.start(job), job, at)
        return bool(result.claimed)

    def _await_news(self) -> None:
        plan = self._plan
        try:
            diff = self._caller.run_once(operations.diff(plan.topic, self._seen, limit=1, wait_ms=plan.poll_ms))
            self._seen = diff.head_seq
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            self._caller.pause(plan.poll_ms / 1000, self._stopping)

    def _hold_on(self, error: ApiError | ClientError) -> None:
        """Claim nothing for a while. An error that will not pass is raised."""
        if not is_passing(error):
            raise error
        logger.warning("worker of %s: %s", self._plan.topic, error)
        self._claims_from = self._monotonic() + self._plan.poll_ms / 1000

    def _attend(self) -> None:
        """Wait until a handler ends or a lease is due; settle the ended jobs and extend the due leases."""
        for runner in ended(self._leases.running, self._leases.patience_s()):
            job, is_ours = self._leases.end(runner)
            if is_ours:
                self._try(self._settle, job, failure_of(runner))
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
        extended = self._client.extend(plan.topic, plan.node, jobs, lease_ms=plan.lease_ms)
        self._leases.extended(jobs, extended.skipped, at)

    def _try(self, call: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """A job that cannot be settled now is delivered again when its lease ends."""
        try:
            call(*args, **named)
        except (ApiError, ClientError) as error:
            logger.warning("worker of %s: %s", self._plan.topic, error)
