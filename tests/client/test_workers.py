"""Workers that are told more: Retry, Reject, context, max_run, batches, rates, delays, signals, stop now."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.client.conftest import Connect, Skipping
from topics.client import Client, Job, JobDone, Reject, Retry
from topics.client.blocking.concurrency import Handlers, Inbox
from topics.client.protocol.leases import Allowance, wants_context
from topics.errors import InvalidRequest, TopicNotFound
from topics.testing.patience import PATIENCE_MS, PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ServerThread


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("workers")) as server:
        yield server


class Working:
    """A worker of either client, in a thread; `handle` is called in a thread, with a job or more."""

    def __init__(self, client: Any, topic: str, handle: Any, **options: Any) -> None:
        async def one(job: Any) -> None:
            await asyncio.to_thread(handle, job)

        async def two(job: Any, context: Any) -> None:
            await asyncio.to_thread(handle, job, context)

        handling = (two if wants_context(handle) else one) if not isinstance(client, Client) else handle
        self.worker = client.worker(topic, "w", handling, poll_ms=20, on_done=self._note, **options)
        self.done: list[JobDone] = []
        self._thread = threading.Thread(target=self.worker.run)
        self._thread.start()

    def _note(self, done: JobDone) -> None:
        self.done.append(done)

    @property
    def outcomes(self) -> list[str]:
        return [done.outcome for done in self.done]

    def stop(self, **how: Any) -> None:
        self.worker.stop(**how)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def queue(client: Any, topic: str, count: int, **config: Any) -> None:
    client.put_topic(topic, type="queue", **config)
    client.append(topic, [{"data": n, "tag": "t", "meta": {"k": n}} for n in range(count)])


@pytest.mark.process
def test_a_handler_asks_to_have_its_job_again(real: ServerProcess, connect: Connect, topic: str) -> None:
    """QU12"""
    client = connect(real.address)
    queue(client, topic, 1)

    def handle(job: Job) -> None:
        if job.deliveries < 3:
            raise Retry(delay=0)

    working = Working(client, topic, handle, delay_ms=PATIENCE_MS)
    wait_until("it is not done", lambda: len(working.done) == 3)
    working.stop()
    assert working.outcomes == ["retried", "retried", "acked"]


@pytest.mark.process
def test_a_rejected_job_is_a_dead_letter_that_can_be_redriven(
    real: ServerProcess, connect: Connect, topic: str
) -> None:
    """QU14, QU24"""
    client = connect(real.address)
    queue(client, topic, 2, dead_letter=f"{topic}.dead", max_deliveries=99)

    def handle(job: Job) -> None:
        if job.value == 1:
            raise Reject("no such customer")

    working = Working(client, topic, handle)
    wait_until("it is not done", lambda: len(working.done) == 2)
    working.stop()
    assert sorted(working.outcomes) == ["acked", "rejected"]
    (letter,) = client.diff(f"{topic}.dead", include_tags=True).records
    assert (letter.value, letter.tag, letter.meta_value["reason"]) == (1, "t", "no such customer")
    assert letter.meta_value["$dead_letter_from"] == topic
    assert client.redrive(topic).redriven == 1 and client.state(topic).count == 1


@pytest.mark.process
def test_a_handler_that_hangs_is_given_up_with_its_lease(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    queue(client, topic, 1)
    released = threading.Event()
    contexts: list[Any] = []

    def handle(job: Job, context: Any) -> None:
        contexts.append(context)
        if job.deliveries == 1:
            released.wait(PATIENCE_S)

    working = Working(client, topic, handle, max_run_ms=50, delay_ms=0)
    wait_until("it is not done", lambda: "acked" in working.outcomes)
    released.set()
    working.stop()
    assert working.outcomes[0] == "timed_out" and contexts[0].is_over and client.state(topic).count == 0


def test_a_run_is_known_before_its_handler_can_extend_it() -> None:
    known: list[object] = []
    seen: list[int] = []
    inbox: Inbox[object] = Inbox()
    handlers = Handlers(inbox)
    for _ in range(200):
        handlers.start(known.append, nullcontext(), lambda: seen.append(len(known)))
        inbox.take(PATIENCE_S)
    assert seen == list(range(1, 201))


@pytest.mark.process
def test_a_handler_learns_of_its_run_and_extends_it(real: ServerProcess, connect: Connect, topic: str) -> None:
    """QU13"""
    client = connect(real.address)
    queue(client, topic, 1)
    seen: list[tuple[int, int, int]] = []

    def handle(job: Job, context: Any) -> None:
        before = context.deadline
        if isinstance(client, Client):
            context.extend(600_000)
        else:
            asyncio.run_coroutine_threadsafe(context.extend(600_000), client._loop).result(PATIENCE_S)
        seen.append((context.deliveries, before, context.deadline))

    working = Working(client, topic, handle)
    wait_until("it is not done", lambda: working.done)
    working.stop()
    ((deliveries, before, after),) = seen
    assert deliveries == 1 and after > before + 500_000 and working.outcomes == ["acked"]


@pytest.mark.process
def test_jobs_come_in_batches(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    queue(client, topic, 25)
    sizes: list[int] = []
    working = Working(client, topic, lambda jobs: sizes.append(len(jobs)), batch=10)
    wait_until("it is not done", lambda: sum(sizes) == 25 and client.state(topic, touch=False).count == 0)
    working.stop()
    assert sizes == [10, 10, 5] and working.outcomes == ["acked"] * 3


@pytest.mark.process
def test_stop_now_waits_for_no_handler_and_gives_its_jobs_back(
    real: ServerProcess, connect: Connect, topic: str
) -> None:
    client = connect(real.address)
    queue(client, topic, 2)
    begun, released = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        released.wait(PATIENCE_S)

    working = Working(client, topic, handle)
    assert begun.wait(PATIENCE_S)
    working.stop(now=True)
    counts = client.state(topic).queue
    assert (counts.ready, counts.in_flight) == (2, 0) and working.outcomes == ["given_back"]
    released.set()


SOURCE = """
import sys, threading
from topics import Client
client = Client(sys.argv[1])
hangs = sys.argv[3] == "hang"
def handle(job):
    print("item", flush=True)
    if hangs: threading.Event().wait()
client.worker(sys.argv[2], "w", handle, poll_ms=60000).run(handle_signals=True)
print("stopped", flush=True)
"""
ASYNC = """
import asyncio, sys
from topics import AsyncClient
async def handle(job):
    print("item", flush=True)
    if sys.argv[3] == "hang": await asyncio.Event().wait()
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await client.worker(sys.argv[2], "w", handle, poll_ms=60000).run(handle_signals=True)
    print("stopped", flush=True)
asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("source", [SOURCE, ASYNC], ids=["blocking", "async"])
@pytest.mark.parametrize("how", ["ends", "hang"])
def test_a_signal_stops_a_worker_and_a_second_one_stops_it_now(
    real: ServerProcess, topic: str, source: str, how: str
) -> None:
    url, name = "http://{}:{}".format(*real.address), f"{topic}-{how}-{source is ASYNC}"
    with Client(url, "") as client:
        queue(client, name, 1)
        with subprocess.Popen(
            [sys.executable, "-c", source, url, name, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None and running.stdout.readline() == "item\n"
            running.send_signal(signal.SIGTERM)
            if how == "hang":
                running.send_signal(signal.SIGINT)
            out, said = running.communicate(timeout=PATIENCE_S)
        assert (out, said, running.returncode) == ("stopped\n", "", 0)
        assert client.state(name).queue.in_flight == 0  # type: ignore[union-attr]


def test_jobs_are_hidden_until_their_time(server: ServerThread, client: Any, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.send(topic, 1, delay_ms=1000)
    client.send(topic, 2, deliver_at=server.clock.now_ms() + 2000)
    with client.producer(topic) as producer:
        producer.send(3, delay_ms=3000)
    assert client.state(topic).queue.delayed == 3 and client.claim(topic, "w").count == 0
    for n in (1, 2, 3):
        server.advance(1000)
        assert [job.value for job in client.claim(topic, "w").claimed] == [n]


def test_a_rate_is_kept() -> None:
    now = [0.0]
    allowance = Allowance(2.0, lambda: now[0])
    assert allowance.now(10) == 1
    allowance.spend(1)
    assert allowance.now(10) == 0 and allowance.next_s() == 0.5
    now[0] = 0.5
    assert allowance.now(10) == 1
    now[0] = 99.0
    assert allowance.now(10) == 2
    assert Allowance(None, lambda: 0.0).now(10) == 10


@pytest.mark.process
def test_a_worker_with_a_rate_runs_every_job(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    queue(client, topic, 5)
    working = Working(client, topic, lambda job: None, rate=100.0, slots=4)
    wait_until("it is not done", lambda: len(working.done) == 5)
    working.stop()


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"batch": 0}, {"rate": -1.0}, {"max_run_ms": 0}])
def test_a_plan_that_makes_no_sense_is_refused(client: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must be above 0"):
        client.worker("t", "w", print, **wrong)


def test_a_worker_waits_for_a_server_that_is_not_there_yet(start: Any, connect: Connect) -> None:
    """The state of the queue is asked for until there is one; an error that will not pass ends it."""
    server = start(starts=False)
    seen: list[Any] = []

    def appear() -> None:
        if len(clock.pauses) == 12:
            server.recover()
            with Client("http://{}:{}".format(*server.address), "") as other:
                other.put_topic("jobs", type="queue")
                other.append("jobs", [{"data": "late"}])

    def handle(job: Job) -> None:
        seen.append(job.value)
        worker.stop()

    async def handling(job: Job) -> None:
        handle(job)

    clock = Skipping(appear)
    client = connect(server.address, clock=clock, retries=2)
    worker = client.worker("jobs", "w", handling if hasattr(client, "_loop") else handle)
    worker.run()
    assert seen == ["late"]
    with pytest.raises(TopicNotFound):
        client.worker("absent", "w", handle).run()
