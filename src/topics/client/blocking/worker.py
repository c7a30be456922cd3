# Generated from src/topics/client/aio/worker.py by `python -m tools.blocking_client`. Do not edit.
"""Workers: claim jobs of a queue, run a handler for each, and settle them.

A job whose handler returns is acked. A job whose handler raises is given back, to be claimed again after a delay that
doubles with every delivery; `Retry` and `Reject` say otherwise. While a handler runs, its lease is extended; if the
lease is lost all the same, the job is not acked, since somebody else may have it. A worker claims only as many jobs as
can start at once. Delivery is at least once: a handler may see a job again, for example after its worker was killed.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar

from msgspec.structs import replace

from topics.client import tracing
from topics.client.blocking.concurrency import (
    INTERRUPTIONS,
    Handler,
    Handlers,
    Inbox,
    Runner,
    failure_of,
)
from topics.client.errors import ApiError, ClientClosed, ClientError
from topics.client.hooks import call as call_hook
from topics.client.hooks import logger
from topics.client.protocol import operations
from topics.client.protocol.leases import (
    Allowance,
    JobDone,
    Leases,
    Outcome,
    Reject,
    Retry,
    Run,
    TimedOut,
    WorkerPlan,
    is_passing,
    letter_of,
    wants_context,
)
from topics.client.protocol.stopping import on_signals
from topics.client.results import Acked, Extended, Job, Nacked
from topics.client.values import encode

if TYPE_CHECKING:
    from topics.client.blocking.caller import Caller

P = ParamSpec("P")
T = TypeVar("T")

SETTLE_RETRIES: Final = 10  # some eight seconds


class JobContext:
    """What a handler with a second argument learns of its run. `deadline` (epoch-ms) moves as leases are extended."""

    def __init__(self, worker: "Worker", jobs: tuple[Job, ...]) -> None:
        self._worker = worker
        self.jobs = jobs
        self.deliveries = max(job.deliveries for job in jobs)
        self.deadline = min(job.deadline for job in jobs)
        self.is_over = (
            False  # the lease was lost, the time is over or the worker stops now: nobody waits for the result
        )

    def extend(self, lease_ms: int) -> None:
        """Hold the jobs for so long from now, for example before something that keeps this process busy."""
        self._worker._extend(list(self.jobs), lease_ms)

    def end(self) -> None:
        """Tell the handler that its result counts no more."""
        self.is_over = True


class JobCalls:
    """What a worker asks of the server for the jobs that it holds."""

    def __init__(self, caller: "Caller", plan: WorkerPlan) -> None:
        self._caller = caller
        self._policy = replace(caller.retries, retries=min(caller.retries.retries, SETTLE_RETRIES))
        self._plan = plan

    def ack(self, jobs: Sequence[Job]) -> None:
        self._ask("ack", Acked, jobs)

    def nack(self, jobs: Sequence[Job], delay_ms: int) -> None:
        self._ask("nack", Nacked, jobs, delay_ms=delay_ms)

    def extend(self, jobs: Sequence[Job], lease_ms: int) -> Extended:
        return self._ask("extend", Extended, jobs, lease_ms=lease_ms)

    def reject(self, jobs: Sequence[Job], reason: str) -> None:
        """Write letters to the dead-letter topic, under keys that a second delivery would use, too; then ack."""
        topic = self._plan.topic
        state = self._caller.run(operations.state(topic, touch=False))
        letters = state.config.dead_letter
        if letters is None:
            logger.error("a job of %s was rejected and is gone, as it has no dead_letter: %s", topic, reason)
        for job in jobs if letters is not None else ():
            assert letters is not None
            letter, key = letter_of(topic, job, reason), f"reject {topic} {state.epoch} {job.seq}"
            self._caller.run(operations.append_texts(letters, [encode(letter)], None, key, None))
        self.ack(jobs)

    def _ask(self, verb: Literal["ack", "nack", "extend"], kind: type[T], jobs: Sequence[Job], **fields: int) -> T:
        """Ack, nack or extend. Not for long: meanwhile nothing else is done, and a worker that stops waits for it."""
        operation = operations.change_leases(verb, kind, self._plan.topic, self._plan.node, jobs, **fields)
        return self._caller.run(operation, self._policy)


class Worker:
    """A worker of a Client. `run` returns after `stop`, once the jobs that run are settled."""

    def __init__(self, caller: "Caller", plan: WorkerPlan, handler: Handler) -> None:
        self._caller = caller
        self._calls = JobCalls(caller, plan)
        self._polling = caller.apart()
        self._plan = plan
        self._handler = handler
        self._wants_context = wants_context(handler)
        self._monotonic = caller.monotonic
        self._leases: Leases[Runner] = Leases(plan, self._monotonic)
        self._allowance = Allowance(plan.rate, self._monotonic)
        self._inbox: Inbox[Runner | None] = Inbox()
        self._handlers = Handlers(self._inbox)
        self._is_stopping = False
        self._stops_now = False
        self._seen = 0  # head of the topic before the last claim
        self._claims_from = 0.0

    def stop(self, *, now: bool = False) -> None:
        """Claim no more. With `now`, wait for no handler: their jobs are given back.

        May be called from any thread, from a signal handler, or from the handler.
        """
        self._is_stopping = True
        self._stops_now = self._stops_now or now
        self._polling.stop()
        self._inbox.put(None)

    def run(self, *, handle_signals: bool = False) -> None:
        """Work until `stop`. With `handle_signals`, SIGINT and SIGTERM stop it, and a second one stops it now."""
        try:
            with on_signals(lambda: self.stop(now=self._is_stopping)) if handle_signals else nullcontext():
                self._run()
        except INTERRUPTIONS as error:
            raise error.with_traceback(None)  # noqa: B904 - the frames below say nothing to its reader

    def _run(self) -> None:
        try:
            while not self._is_stopping and not self._begin():
                self._polling.pause(self._plan.poll_ms / 1000)
            while not self._is_stopping:
                self._work()
        except BaseException as error:
            if isinstance(error, ClientClosed) and self._is_stopping:
                return
            self._handlers.interrupt(self._leases.running, error)
            raise
        finally:
            while self._leases.running and not self._stops_now:
                self._attend()
            self._give_back()

    def _begin(self) -> bool:
        """Find the queue. Whether the server is there: it may come up later than its workers."""
        try:
            state = self._polling.run(operations.state(self._plan.topic, touch=False))
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        self._seen = state.head_seq
        return True

    def _work(self) -> None:
        has_claimed = bool(self._leases.free) and self._claim()
        if self._leases.running:
            self._attend()
        elif not has_claimed:
            self._await_news()

    def _claim(self) -> bool:
        """Claim, in one try: while claims fail, leases are still extended and jobs settled."""
        plan, at = self._plan, self._monotonic()
        wanted = self._allowance.now(self._leases.free)
        if at < self._claims_from or not wanted:
            return False
        claim = operations.claim(plan.topic, plan.node, wanted, plan.lease_ms)
        try:
            result = self._caller.run_once(claim)
        except (ApiError, ClientError) as error:
            self._hold_on(error)
            return False
        self._allowance.spend(len(result.claimed))
        for jobs in plan.runs_of(result.claimed):
            context = JobContext(self, jobs)
            arguments = (jobs[0] if plan.batch is None else list(jobs), context)
            known = partial(self._leases.add, run=Run(jobs, context, self._monotonic()), claimed_at=at)
            span = tracing.processing(plan.topic, jobs)
            self._handlers.start(known, span, self._handler, *arguments[: 2 if self._wants_context else 1])
        return bool(result.claimed)

    def _await_news(self) -> None:
        plan = self._plan
        if wait_s := self._allowance.next_s():
            self._inbox.take(wait_s)
            return
        try:
            news = operations.diff(plan.topic, self._seen, limit=1, wait_ms=plan.poll_ms)
            self._seen = (self._polling.run_once(news)).head_seq
        except (ApiError, ClientError) as error:
            if self._is_stopping:
                return
            self._hold_on(error)
            self._polling.pause(plan.poll_ms / 1000)

    def _hold_on(self, error: ApiError | ClientError) -> None:
        """Claim nothing for a while. An error that will not pass is raised."""
        if not is_passing(error):
            raise error
        logger.warning("worker of %s: %s", self._plan.topic, error)
        self._claims_from = self._monotonic() + self._plan.poll_ms / 1000

    def _attend(self) -> None:
        """Wait until a handler ends or something is due; settle what has ended and extend the due leases.

        The inbox only ends the wait: an interrupt may have lost what was taken from it.
        """
        if not self._leases.ended():
            self._inbox.take(self._leases.patience_s())
        for runner in self._leases.ended():
            self._try(self._settle, runner, failure_of(runner))
        for runner in self._leases.overdue():
            self._handlers.abandon(runner)
            self._try(self._settle, runner, TimedOut(f"it ran for more than {self._plan.max_run_ms} ms"))
        if due := self._leases.due():
            self._try(self._extend, due, self._plan.lease_ms)

    def _give_back(self) -> None:
        """Wait for no handler that still runs; others may have its jobs at once. One try: nor for a server."""
        for runner, run in list(self._leases.running.items()):
            self._handlers.abandon(runner)
            run.context.end()
            _, jobs = self._leases.end(runner) or (run, ())
            if jobs:
                nack = operations.change_leases("nack", Nacked, self._plan.topic, self._plan.node, jobs, delay_ms=0)
                self._try(self._caller.run_once, nack)
            self._tell(run, "given_back", None)

    def _settle(self, runner: Runner, failure: BaseException | None) -> None:
        ended = self._leases.end(runner)
        if ended is None:
            return
        run, jobs = ended
        plan = self._plan
        outcome: Outcome = "lost"
        if not jobs:
            pass
        elif failure is None:
            outcome = "acked"
            self._calls.ack(jobs)
        elif isinstance(failure, Retry):
            outcome = "retried"
            delay_ms = plan.nack_delay_ms(jobs) if failure.delay is None else round(failure.delay * 1000)
            self._calls.nack(jobs, delay_ms)
        elif isinstance(failure, Reject):
            outcome = "rejected"
            self._calls.reject(jobs, failure.reason)
        else:
            outcome = "timed_out" if isinstance(failure, TimedOut) else "failed"
            run.context.end()
            logger.warning("job %d of %s failed", jobs[0].seq, plan.topic, exc_info=failure)
            self._calls.nack(jobs, plan.nack_delay_ms(jobs))
        self._tell(run, outcome, failure)

    def _tell(self, run: Run[Runner], outcome: Outcome, failure: BaseException | None) -> None:
        seconds = self._monotonic() - run.began_at
        call_hook(self._plan.on_done, JobDone(self._plan.topic, run.jobs, outcome, seconds, failure))

    def _extend(self, jobs: list[Job], lease_ms: int) -> None:
        plan, at = self._plan, self._monotonic()
        extended = self._calls.extend(jobs, lease_ms)
        self._leases.extended(jobs, extended.skipped, extended.deadlines, at + (lease_ms - plan.lease_ms) / 1000)

    def _try(self, call: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """A job that cannot be settled now is delivered again when its lease ends."""
        try:
            call(*args, **named)
        except (ApiError, ClientError) as error:
            logger.warning("worker of %s: %s", self._plan.topic, error)
