"""What a worker was told to do, and the leases of the jobs that it runs. Knows no socket and no thread."""

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from topics.client.errors import ClientError, NotReady, ShuttingDown, Throttled, UnexpectedAnswer
from topics.client.results import Job

R = TypeVar("R")

logger = logging.getLogger("topics.client")

DELAY_MAX_MS: Final = 300_000
EXTEND_PART: Final = 3  # a lease is extended when a third of it is over
DOUBLINGS_MAX: Final = 30


class WorkerPlan(Struct, frozen=True):
    """How a worker works. Times are in milliseconds."""

    topic: str
    node: str
    slots: int  # handlers that run at a time
    lease_ms: int
    delay_ms: int  # after the first failure of a job
    poll_ms: int  # how often to look for jobs whose lease or delay has ended

    def nack_delay_ms(self, job: Job) -> int:
        doublings: int = 1 << min(max(job.deliveries - 1, 0), DOUBLINGS_MAX)
        return min(DELAY_MAX_MS, self.delay_ms * doublings)


class Leases(Generic[R]):
    """The jobs that run, by what runs them, and when to extend their leases."""

    def __init__(self, plan: WorkerPlan, monotonic: Callable[[], float]) -> None:
        self._plan = plan
        self._monotonic = monotonic
        self._renewed: dict[int, float] = {}  # seq → when the lease was taken or extended
        self.running: dict[R, Job] = {}

    @property
    def free(self) -> int:
        return self._plan.slots - len(self.running)

    def add(self, runner: R, job: Job, claimed_at: float) -> None:
        self.running[runner] = job
        self._renewed[job.seq] = claimed_at

    def end(self, runner: R) -> tuple[Job, bool]:
        """The job that a runner has finished, and whether its lease still holds."""
        job = self.running.pop(runner)
        return job, self._renewed.pop(job.seq, None) is not None

    def due(self) -> list[Job]:
        """The jobs whose leases should be extended now."""
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
        """How long only the end of a handler matters."""
        due = min(self._renewed.values(), default=self._monotonic()) + self._plan.lease_ms / 1000 / EXTEND_PART
        left = max(0.01, due - self._monotonic()) if self._renewed else self._plan.poll_ms / 1000
        return min(left, self._plan.poll_ms / 1000) if self.free else left


def is_passing(error: Exception) -> bool:
    """May another try succeed soon? The server may be restarting, or the network down."""
    if isinstance(error, ClientError):
        return not isinstance(error, UnexpectedAnswer)
    return isinstance(error, Throttled | NotReady | ShuttingDown)
