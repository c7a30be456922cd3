"""Queues: the calls, and workers that claim, run, settle and extend."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Pausing, Script, answer
from topics.client import Client, Job
from topics.errors import NotAQueue, TopicNotFound
from topics.testing.patience import PATIENCE_MS, PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ServerThread


def fill(client: Any, topic: str, *values: object) -> None:
    client.append(topic, [{"data": value} for value in values])


def test_jobs_are_claimed_acked_and_given_back(client: Any, topic: str) -> None:
    """QU4, QU9, QU12"""
    client.put_topic(topic, type="queue")
    client.append(topic, [{"data": {"n": 1}, "tag": "t", "meta": {"k": 1}}, {"data": 2}, {"data": 3}])
    claimed = client.claim(topic, "w", max_jobs=2, lease_ms=5000)
    first, second = claimed.claimed
    assert isinstance(first, Job) and (claimed.count, claimed.ready) == (2, 1)
    assert (first.seq, first.value, first.tag, first.meta_value, first.deliveries) == (1, {"n": 1}, "t", {"k": 1}, 1)
    acked = client.ack(topic, "w", [first])
    assert (acked.acked, acked.skipped, acked.in_flight) == (1, [], 1)
    assert client.nack(topic, "w", [second]).nacked == 1
    again = client.claim(topic, "w").claimed[0]
    assert (again.seq, again.deliveries) == (2, 2)
    counts = client.state(topic).queue
    assert (counts.ready, counts.in_flight, counts.dead_lettered) == (1, 1, 0)


def test_a_job_counts_only_under_the_lease_it_was_claimed_with(client: Any, topic: str) -> None:
    """QU9, QU20, QU22"""
    client.put_topic(topic, type="queue")
    fill(client, topic, 1)
    old = client.claim(topic, "w").claimed[0]
    client.nack(topic, "w", [old])
    new = client.claim(topic, "w").claimed[0]
    assert client.ack(topic, "w", [old]).skipped == [1]
    assert client.extend(topic, "w", [old], lease_ms=1000).skipped == [1]
    assert client.ack(topic, "w", [new.seq]).acked == 1
    assert client.ack(topic, "w", [new]).skipped == [1]


def test_a_lease_is_extended_from_now(server: ServerThread, client: Any, topic: str) -> None:
    """QU13"""
    client.put_topic(topic, type="queue")
    fill(client, topic, 1)
    job = client.claim(topic, "w", lease_ms=1000).claimed[0]
    server.advance(900)
    extended = client.extend(topic, "w", [job], lease_ms=5000)
    assert (extended.extended, extended.deadlines) == (1, {1: server.clock.now_ms() + 5000})
    server.advance(4000)
    assert client.claim(topic, "other").claimed == []
    assert client.ack(topic, "w", [job]).acked == 1


def test_dead_letters_are_brought_back_and_leases_listed(client: Any, topic: str) -> None:
    """QU14"""
    client.put_topic(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    fill(client, topic, 1, 2, 3)
    for job in client.claim(topic, "w", max_jobs=3).claimed:
        client.nack(topic, "w", [job])
    assert client.claim(topic, "w", max_jobs=3).claimed == []
    tried = client.redrive(topic, max_jobs=2, dry_run=True)
    assert (tried.redriven, tried.remaining, tried.redriven_bytes, tried.dry_run) == (2, 1, 2, True)
    redriven = client.redrive(topic, max_jobs=2)
    assert (redriven.redriven, redriven.remaining, redriven.dead_letter) == (2, 1, f"{topic}.dead")
    assert client.redrive(topic).redriven == 1
    jobs = client.claim(topic, "w", max_jobs=3).claimed
    assert [job.value for job in jobs] == [1, 2, 3]
    leases = list(client.leases(topic, page_size=2))
    assert [(lease.seq, lease.node, lease.deadline) for lease in leases] == [(j.seq, "w", j.deadline) for j in jobs]


def test_only_a_queue_hands_out_jobs(client: Any, topic: str) -> None:
    """QU1"""
    with pytest.raises(TopicNotFound):
        client.claim(topic, "w")
    client.put_topic(topic)
    with pytest.raises(NotAQueue):
        client.claim(topic, "w")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose time passes."""
    with ServerProcess(tmp_path_factory.mktemp("queue")) as server:
        yield server


class Working:
    """A worker at work in a thread, of either client; `handle` is called with each job."""

    def __init__(self, client: Any, topic: str, handle: Callable[[Job], object], **options: Any) -> None:
        is_async = not isinstance(client, Client)

        async def handling(job: Job) -> None:
            await asyncio.to_thread(handle, job)

        self._worker = client.worker(topic, "w", handling if is_async else handle, poll_ms=50, **options)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as failure:
            self._failure = failure

    def ask_to_stop(self) -> None:
        self._worker.stop()

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the worker does not stop"
        if self._failure is not None:
            raise self._failure


def is_drained(client: Any, topic: str) -> bool:
    return bool(client.state(topic, touch=False).count == 0)


@pytest.mark.process
def test_a_worker_runs_every_job_and_acks_it(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    client.put_topic(topic, type="queue")
    fill(client, topic, *range(20))
    done: list[int] = []
    working = Working(client, topic, lambda job: done.append(job.value), slots=3)
    wait_until("jobs are left", lambda: is_drained(client, topic))
    fill(client, topic, *range(20, 25))
    wait_until("jobs are left", lambda: is_drained(client, topic))
    working.stop()
    assert sorted(done) == list(range(25))


@pytest.mark.process
def test_a_job_that_fails_comes_again_and_ends_as_a_dead_letter(
    real: ServerProcess, connect: Connect, topic: str
) -> None:
    """QU6, QU14"""
    client = connect(real.address)
    client.put_topic(topic, type="queue", max_deliveries=3, dead_letter=f"{topic}.dead")
    fill(client, topic, "bad", "flaky", "good")
    tries: Counter[str] = Counter()

    def handle(job: Job) -> None:
        tries[job.value] += 1
        assert job.deliveries == tries[job.value]
        if job.value == "bad" or (job.value == "flaky" and job.deliveries == 1):
            raise ValueError(job.value)

    working = Working(client, topic, handle, delay_ms=1)
    wait_until("jobs are left", lambda: is_drained(client, topic))
    working.stop()
    assert tries == {"bad": 3, "flaky": 2, "good": 1}
    assert [record.value for record in client.diff(f"{topic}.dead").records] == ["bad"]


@pytest.mark.process
def test_the_lease_of_a_long_job_is_extended(real: ServerProcess, connect: Connect, topic: str) -> None:
    """QU13"""
    client = connect(real.address)
    helper = Client("http://{}:{}".format(*real.address), "")
    client.put_topic(topic, type="queue")
    fill(client, topic, "long")
    runs: list[int] = []

    def handle(job: Job) -> None:
        runs.append(job.deliveries)

        def is_far_on() -> bool:
            assert helper.claim(topic, "thief").claimed == []
            return helper.health().uptime_ms > begun + 2000

        begun = helper.health().uptime_ms
        wait_until("no time passes", is_far_on)

    working = Working(client, topic, handle, lease_ms=1500)
    wait_until("jobs are left", lambda: is_drained(helper, topic))
    working.stop()
    assert runs == [1]
    helper.close()


@pytest.mark.process
def test_a_worker_that_stops_finishes_what_it_has_begun(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    client.put_topic(topic, type="queue")
    fill(client, topic, *range(5))
    done: list[int] = []

    begun, released = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        released.wait(PATIENCE_S)
        done.append(job.value)

    working = Working(client, topic, handle)
    assert begun.wait(PATIENCE_S)
    working.ask_to_stop()
    released.set()
    working.stop()
    assert done == [0]
    state = client.state(topic)
    assert (state.count, state.queue.in_flight) == (4, 0)


@pytest.mark.process
def test_a_worker_outlives_its_server(connect: Connect, tmp_path: Path) -> None:
    """At least once, and nothing is left behind."""
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        client = connect(server.address, retries=1000, timeout_ms=PATIENCE_MS)
        client.put_topic("jobs", type="queue", lease_ms=1000)
        fill(client, "jobs", *range(30))
        done: set[int] = set()
        working = Working(client, "jobs", lambda job: done.add(job.value), lease_ms=1000, slots=2)
        wait_until("no job is done", lambda: done)
        server.kill()
        server.start()
        wait_until("jobs are left", lambda: is_drained(client, "jobs"))
        working.stop()
    assert done == set(range(30))


STATE = answer(
    b'{"topic":"t","epoch":1,"type":"queue","head_seq":0,"earliest_seq":1,"next_seq":1,"count":0,"bytes":0,'
    b'"config":{},"effective_priority":0,"last_write_ts":null,"last_read_ts":null}'
)


def test_a_worker_whose_server_is_away_can_be_stopped(script: Script, connect: Connect) -> None:
    """Its pause ends with the call of `stop`."""
    server = script([STATE])
    clock = Pausing()
    working = Working(connect(server.address, clock=clock), "t", print)
    assert clock.begun.wait(PATIENCE_S)
    working.stop()


@pytest.mark.process
def test_a_worker_of_no_queue_says_so(real: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(real.address)
    client.put_topic(topic)
    with pytest.raises(NotAQueue):
        client.worker(topic, "w", print).run()


def test_a_queue_is_paused_and_goes_on(client: Any, topic: str) -> None:
    """QU23"""
    client.put_topic(topic, type="queue")
    fill(client, topic, 1)
    assert client.pause(topic).paused is True
    claimed = client.claim(topic, "w")
    assert (claimed.claimed, claimed.paused, client.state(topic).paused) == ([], True, True)
    assert client.resume(topic).paused is False
    assert client.claim(topic, "w").count == 1
