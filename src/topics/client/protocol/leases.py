"""What a worker was told to do, and the leases of the jobs that it runs. Knows no socket and no thread."""

import inspect
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from topics.client.errors import (
    CannotConnect,
    ClientClosed,
    ClientError,
    NotReady,
    ShuttingDown,
    Throttled,
    UnexpectedAnswer,
)
from topics.client.hooks import logger
from topics.client.results import Job, NewRecord
from topics.errors import InvalidRequest


class Runner(Protocol):
    """What runs a handler: a task, or a thread's."""

    def done(self) -> bool: ...


R = TypeVar("R", bound=Runner)

DELAY_MAX_MS: Final = 300_000
EXTEND_PART: Final = 3  # a lease is extended when a third of it is over
DOUBLINGS_MAX: Final = 30
CLAIM_MAX: Final = 1_000  # the server's own limit, unless it was set

Outcome = Literal["acked", "retried", "rejected", "failed", "timed_out", "lost", "given_back"]


class Retry(Exception):
    """Raise it in a handler to have the job again after `delay` seconds, or after the worker's own delay."""

    def __init__(self, delay: float | None = None) -> None:
        super().__init__("a handler asks to have its job again")
        if delay is not None and delay < 0:
            raise InvalidRequest(f"delay is {delay}; it must not be negative")
        self.delay = delay


class Reject(Exception):
    """Raise it in a handler for a job that will never succeed: it goes to the queue's dead-letter topic at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(Exception):
    """A handler ran for longer than `max_run_ms`."""


class JobDone(Struct, frozen=True):
    """What became of the jobs of one run of a handler, and how long it ran. `failure` is what the handler raised."""

    topic: str
    jobs: tuple[Job, ...]
    outcome: Outcome
    seconds: float
    failure: BaseException | None


class WorkerPlan(Struct, frozen=True, kw_only=True):
    """How a worker works. Times are in milliseconds."""

    topic: str
    node: str
    slots: int  # handlers that run at a time
    lease_ms: int
    delay_ms: int  # after the first failure of a job
    poll_ms: int  # how often to look for jobs whose lease or delay has ended
    batch: int | None = None  # jobs for one run of the handler; None: one, and not as a list
    max_run_ms: int | None = None
    rate: float | None = None  # jobs per second
    on_done: Callable[[JobDone], object] | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "lease_ms", "poll_ms", "batch", "max_run_ms", "rate"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise InvalidRequest(f"{name} is {number}; it must be above 0")

    def nack_delay_ms(self, jobs: tuple[Job, ...]) -> int:
        deliveries = max(job.deliveries for job in jobs)
        doublings: int = 1 << min(max(deliveries - 1, 0), DOUBLINGS_MAX)
        return min(DELAY_MAX_MS, self.delay_ms * doublings)

    def runs_of(self, jobs: list[Job]) -> list[tuple[Job, ...]]:
        """The jobs of a claim, as handlers get them."""
        size = self.batch or 1
        return [tuple(jobs[n : n + size]) for n in range(0, len(jobs), size)]


class Allowance:
    """How many jobs may be claimed, so that there are at most `rate` per second."""

    def __init__(self, rate: float | None, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._at = monotonic()
        self._jobs = 1.0

    def now(self, wanted: int) -> int:
        """How many of the jobs wanted may be claimed now."""
        if self._rate is None:
            return wanted
        at = self._monotonic()
        self._jobs = min(max(1.0, self._rate), self._jobs + (at - self._at) * self._rate)
        self._at = at
        return min(wanted, int(self._jobs))

    def spend(self, jobs: int) -> None:
        self._jobs -= jobs if self._rate is not None else 0

    def next_s(self) -> float:
        """How long until another job may be claimed."""
        return 0.0 if self._rate is None else max(0.0, (1.0 - self._jobs) / self._rate)


class Run(Generic[R]):
    """The jobs of one run of a handler, and since when it runs."""

    def __init__(self, jobs: tuple[Job, ...], context: Any, began_at: float) -> None:
        self.jobs = jobs
        self.context = context
        self.began_at = began_at


class Leases(Generic[R]):
    """The jobs that run, by what runs them, and when to extend their leases.

    Handlers extend leases themselves, from threads of their own, while the worker looks through them.
    """

    def __init__(self, plan: WorkerPlan, monotonic: Callable[[], float]) -> None:
        self._plan = plan
        self._monotonic = monotonic
        self._renewed: dict[int, float] = {}  # seq → when the lease was taken or extended
        self._lock = Lock()
        self.running: dict[R, Run[R]] = {}

    @property
    def free(self) -> int:
        """How many jobs can start now."""
        return min(CLAIM_MAX, (self._plan.slots - len(self.running)) * (self._plan.batch or 1))

    def add(self, runner: R, run: Run[R], claimed_at: float) -> None:
        with self._lock:
            self.running[runner] = run
            self._renewed |= {job.seq: claimed_at for job in run.jobs}

    def end(self, runner: R) -> tuple[Run[R], tuple[Job, ...]] | None:
        """The run that has ended, and those of its jobs whose leases still hold. None if it was ended before."""
        with self._lock:
            run = self.running.pop(runner, None)
            if run is None:
                return None
            return run, tuple(job for job in run.jobs if self._renewed.pop(job.seq, None) is not None)

    def ended(self) -> list[R]:
        """The runners that are done, and whose jobs are not settled yet."""
        return [runner for runner in self.running if runner.done()]

    def overdue(self) -> list[R]:
        """The runners that run for too long."""
        if self._plan.max_run_ms is None:
            return []
        limit = self._monotonic() - self._plan.max_run_ms / 1000
        return [runner for runner, run in self.running.items() if run.began_at <= limit]

    def due(self) -> list[Job]:
        """The jobs whose leases should be extended now."""
        limit = self._monotonic() - self._plan.lease_ms / 1000 / EXTEND_PART
        jobs = [job for run in self.running.values() for job in run.jobs]
        return [job for job in jobs if self._renewed.get(job.seq, limit + 1) <= limit][:CLAIM_MAX]

    def extended(self, jobs: list[Job], skipped: list[int], deadlines: Mapping[int, int], at: float) -> None:
        with self._lock:
            runs = {job.seq: run for run in self.running.values() for job in run.jobs}
            for job in jobs:
                run = runs.get(job.seq)
                if job.seq in skipped:
                    self._renewed.pop(job.seq, None)
                    logger.warning("the lease of job %d of %s was lost", job.seq, self._plan.topic)
                    if run is not None:
                        run.context.end()
                elif job.seq in self._renewed:
                    self._renewed[job.seq] = at
                    if run is not None:
                        run.context.deadline = deadlines.get(job.seq, run.context.deadline)

    def patience_s(self) -> float:
        """How long only the end of a handler matters."""
        now = self._monotonic()
        with self._lock:
            ends = [at + self._plan.lease_ms / 1000 / EXTEND_PART for at in self._renewed.values()]
        if self._plan.max_run_ms is not None:
            ends += [run.began_at + self._plan.max_run_ms / 1000 for run in self.running.values()]
        left = max(0.01, min(ends) - now) if ends else self._plan.poll_ms / 1000
        return min(left, self._plan.poll_ms / 1000) if self.free else left


def wants_context(handler: Callable[..., object]) -> bool:
    """Does a handler take a second argument?"""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in places) > 1


def letter_of(queue: str, job: Job, reason: str) -> NewRecord:
    """A rejected job as its dead-letter topic gets it: as the server writes one, with the reason before (QU14)."""
    meta = {
        **(job.meta_value or {}),
        "reason": reason,
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": str(job.deliveries),
        "$dead_letter_src_seq": str(job.seq),
    }
    return NewRecord(msgspec.Raw(bytes(job.data)), job.tag, None, meta)


def is_passing(error: Exception) -> bool:
    """May another try succeed soon? The server may be restarting, or the network down."""
    if isinstance(error, ClientError):
        return not isinstance(error, UnexpectedAnswer | CannotConnect | ClientClosed)
    return isinstance(error, Throttled | NotReady | ShuttingDown)
