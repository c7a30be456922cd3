# Generated from src/topics/client/aio/queue_calls.py by `python -m tools.blocking_client`. Do not edit.
"""Calls of a Client about queues: claims, acks and the like, and workers."""

from collections.abc import Callable, Sequence

from topics.client import results
from topics.client.arguments import Match
from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import Handler
from topics.client.blocking.streams import Listing
from topics.client.blocking.worker import Worker
from topics.client.protocol import operations
from topics.client.protocol.leases import JobDone, WorkerPlan
from topics.client.results import Job


class QueueCalls:
    """What a Client does with queues."""

    _caller: Caller

    def claim(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> results.Claimed:
        """Lease up to `max_jobs` jobs of a queue. It may have fewer, or none."""
        return self._caller.run(operations.claim(topic, node, max_jobs, lease_ms))

    def ack(self, topic: str, node: str, jobs: Sequence[Job | int]) -> results.Acked:
        """Complete jobs. A Job, unlike a seq, counts only under the lease it was claimed with."""
        return self._caller.run(operations.change_leases("ack", results.Acked, topic, node, jobs))

    def nack(self, topic: str, node: str, jobs: Sequence[Job | int], *, delay_ms: int = 0) -> results.Nacked:
        """Give jobs back, to be claimed again after the delay."""
        return self._caller.run(operations.change_leases("nack", results.Nacked, topic, node, jobs, delay_ms=delay_ms))

    def extend(self, topic: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int) -> results.Extended:
        """Make leases end `lease_ms` from now."""
        return self._caller.run(
            operations.change_leases("extend", results.Extended, topic, node, jobs, lease_ms=lease_ms)
        )

    def redrive(
        self, topic: str, *, match: Match | None = None, max_jobs: int | None = None, dry_run: bool = False
    ) -> results.Redriven:
        """Bring dead letters back into their queue: all, those whose tag matches, or at most `max_jobs`.

        With `dry_run`, none: the result says what would come back.
        """
        return self._caller.run(operations.redrive(topic, match, max_jobs, dry_run))

    def pause(self, topic: str) -> results.QueuePaused:
        """Let a queue hand out no jobs until it is resumed; it takes everything else."""
        return self._caller.run(operations.pause(topic, "pause"))

    def resume(self, topic: str) -> results.QueuePaused:
        """Let a queue hand out jobs again."""
        return self._caller.run(operations.pause(topic, "resume"))

    def leases(self, topic: str, *, page_size: int = 1000) -> Listing[results.Lease]:
        """Who holds which jobs of a queue, by seq; pages are fetched as needed."""
        return Listing(self._caller, lambda cursor: operations.list_leases(topic, page_size, cursor))

    def worker(
        self,
        topic: str,
        node: str,
        handler: Handler,
        *,
        slots: int = 1,
        lease_ms: int = 30_000,
        delay_ms: int = 1_000,
        poll_ms: int = 1_000,
        batch: int | None = None,
        max_run_ms: int | None = None,
        rate: float | None = None,
        on_done: Callable[[JobDone], object] | None = None,
    ) -> Worker:
        """A worker that runs `handler` for the jobs of a queue, `slots` at a time. Call its `run` to start.

        A handler gets a job, or with `batch` a list of up to that many, and a context if it takes a second argument. A
        handler that runs for longer than `max_run_ms` is given up, and its jobs are given back. At most `rate` jobs are
        claimed per second. `on_done` is called with what became of the jobs of each run.
        """
        plan = WorkerPlan(
            topic=topic,
            node=node,
            slots=slots,
            lease_ms=lease_ms,
            delay_ms=delay_ms,
            poll_ms=poll_ms,
            batch=batch,
            max_run_ms=max_run_ms,
            rate=rate,
            on_done=on_done,
        )
        return Worker(self._caller, plan, handler)
