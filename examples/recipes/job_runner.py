"""A job runner in the manner of Celery, in one file, over a queue: tasks, delays, retries, results, a worker.

    jobs = Jobs(Client(), "jobs")

    @jobs.task(retries=3)
    def resize(path: str, width: int) -> str: ...

    pending = resize.delay("a.png", width=256)     # in the web process
    resize.later(60, "a.png", width=256)           # not before a minute has passed
    print(pending.result(timeout_s=10))            # waits for it

    jobs.work(slots=4)                             # in a worker process, until SIGTERM

A task that raises is tried again, later each time, up to `retries` times; then its error is its result.
What a worker that was killed had in hand goes to another one when its lease ends. A task may run twice, so write tasks
that may. Results are records of `jobs.results`, which keeps them for a day.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from topics import Client, Job, Reject, Retry
from topics.client import JobContext, Worker

P = ParamSpec("P")
T = TypeVar("T")
DAY_MS = 86_400_000


class TaskFailed(Exception):
    """The task raised in every try; the message is that of the last."""


@dataclass(frozen=True)
class Pending(Generic[T]):
    """A task that was called."""

    jobs: "Jobs"
    id: str

    def result(self, timeout_s: float = 60.0) -> T:
        """Wait for what it returned. TaskFailed: it raised. TimeoutError: it is not done yet."""
        return self.jobs.result_of(self.id, timeout_s)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Task(Generic[P, T]):
    """A function that workers run. Calling it runs it here."""

    jobs: "Jobs"
    name: str
    function: Callable[P, T]
    retries: int

    def __call__(self, *args: P.args, **named: P.kwargs) -> T:
        return self.function(*args, **named)

    def delay(self, *args: P.args, **named: P.kwargs) -> Pending[T]:
        """Have it run as soon as a worker is free."""
        return Pending(self.jobs, self.jobs.send(self.name, args, named))

    def later(self, seconds: float, *args: P.args, **named: P.kwargs) -> Pending[T]:
        """Have it run after this many seconds."""
        return Pending(self.jobs, self.jobs.send(self.name, args, named, round(seconds * 1000)))


class Jobs:
    """The tasks of a program, and the queue that carries them."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._results = f"{queue}.results"
        self._tasks: dict[str, Task[Any, Any]] = {}
        client.put_topic(queue, type="queue", dead_letter=f"{queue}.dead", max_deliveries=0)
        client.put_topic(self._results, ttl_ms=DAY_MS)
        self.worker: Worker | None = None

    def task(self, *, retries: int = 3) -> Callable[[Callable[P, T]], Task[P, T]]:
        """Make a function a task. Its name is that of the function: keep it while there are jobs of it."""

        def made(function: Callable[P, T]) -> Task[P, T]:
            task = Task(self, function.__qualname__, function, retries)
            self._tasks[task.name] = task
            return task

        return made

    def send(self, task: str, args: Any, named: Any, delay_ms: int | None = None) -> str:
        id = uuid.uuid4().hex
        call = {"args": args, "named": named}
        self._client.send(self._queue, call, tag=task, meta={"id": id}, delay_ms=delay_ms, idempotency_key=id)
        return id

    def result_of(self, id: str, timeout_s: float) -> Any:
        ends_at = time.monotonic() + timeout_s
        seq, epoch = 0, None
        while (left_s := ends_at - time.monotonic()) > 0:
            wait_ms = min(20_000, round(left_s * 1000))
            diff = self._client.diff(self._results, seq, epoch=epoch, filter=id, wait_ms=wait_ms)
            for record in diff.records:
                outcome = record.value
                if "error" in outcome:
                    raise TaskFailed(outcome["error"])
                return outcome["value"]
            seq, epoch = diff.next_from_seq, diff.epoch
        raise TimeoutError(f"job {id} is not done after {timeout_s} s")

    def work(self, name: str = "worker", *, slots: int = 1, handle_signals: bool = True) -> None:
        """Run jobs until SIGTERM, or until `stop`. Use a name of its own for each process."""
        self.worker = self._client.worker(self._queue, name, self._run, slots=slots)
        self.worker.run(handle_signals=handle_signals)

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def _run(self, job: Job, context: JobContext) -> None:
        task = self._tasks.get(job.tag or "")
        if task is None:
            raise Reject(f"this worker has no task {job.tag!r}")
        id = (job.meta_value or {}).get("id", str(job.seq))
        try:
            outcome = {"value": task.function(*job.value["args"], **job.value["named"])}
        except (Retry, Reject):
            raise
        except Exception as error:
            if context.deliveries <= task.retries:
                raise
            outcome = {"error": f"{type(error).__name__}: {error}"}
        self._client.send(self._results, outcome, tag=id, idempotency_key=id)
