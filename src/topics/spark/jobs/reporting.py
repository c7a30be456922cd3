"""`topics report`: throughput, sizes, lag, routers, gaps, queues and dead letters, as one HTML file.

    report(spark, "report.html", url="http://127.0.0.1:4000", seconds=10)
    report(None, "report.html")                     without Spark
    report(None, "report.html", url="http://a:4000,http://b:4000")      the topics of both servers

What a server knows of the past is its live records: throughput is counted by their times. It keeps no record
of finished jobs, so how long jobs wait and run is watched for some seconds; besides, the age of what waits now is told.

Owned here: what is asked. `counting` counts records, in Spark or without it, and `paper` puts it all on a page.
"""

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics.client import Client, Router, TopicOnSeveralServers, TopicState
from topics.clock import Clock, SystemClock
from topics.errors import InvalidRequest, RouterNotFound, TopicNotFound
from topics.reader import Lost
from topics.spark.origins import clipped
from topics.spark.report.counting import AGES_MS, OLDER, Alone, Counting, OnSpark
from topics.spark.runs.progress import Progress
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS: Final = 120
STEPS_S: Final = (1, 5, 10, 60, 300, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
POLL_S: Final = 0.25
RETRIES: Final = 5  # of a call; a report need not outlive a restart of the server


@dataclass
class Queue:
    """A queue: what waits, what runs, what was given up."""

    topic: str
    ready: int
    in_flight: int
    dead_lettered: int
    waiting: dict[str, int] = field(default_factory=dict)  # age → jobs that are ready
    running: dict[str, int] = field(default_factory=dict)  # age of the lease → jobs in flight
    waits_ms: list[int] = field(default_factory=list)  # from the write to a claim, of jobs claimed while it was watched
    runs_ms: list[int] = field(default_factory=list)  # from a claim to its end, likewise


@dataclass
class Behind:
    """A reader that remembers where it is: a pipeline's checkpoint, or a lake."""

    reader: str
    topic: str
    seq: int
    lag: int


@dataclass
class Server:
    """A server as it is now."""

    url: str
    version: str
    uptime_ms: int
    metrics: dict[str, Any]


@dataclass
class Report:
    """All that goes on the page."""

    servers: list[Server]
    made_ms: int
    states: list[TopicState]
    homes: dict[str, str]  # topic → url of its server
    start_ms: int = 0
    step_ms: int = 1
    records: dict[str, list[float]] = field(default_factory=dict)  # by topic, for each step of time
    bytes: dict[str, list[float]] = field(default_factory=dict)
    gaps: dict[str, list[Lost]] = field(default_factory=dict)
    queues: list[Queue] = field(default_factory=list)
    letters: dict[tuple[str, str, str], int] = field(default_factory=dict)  # queue, reason, deliveries → letters
    behind: list[Behind] = field(default_factory=list)
    routers: list[Router] = field(default_factory=list)
    watched_s: float = 0.0


def report(
    spark: "SparkSession | None",
    file: str,
    *,
    url: str | None = None,
    server: Connection | None = None,
    pattern: str | None = None,
    seconds: float = 5.0,
    checkpoints: Sequence[str] = (),
    lakes: Sequence[str] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
    pause: Callable[[float], object] | None = None,
) -> Report:
    """Write the report into `file`, whole or not at all. Queues are watched for `seconds`."""
    from topics.spark.report import paper

    server = replace(server or Connection.load(url), retries=RETRIES)
    progress = progress or Progress("report")
    with ExitStack() as stack:
        clients = {url: stack.enter_context(server.at(url).open()) for url in server.urls}
        homes = _homes(clients, _matching(pattern))
        counting = Alone(lambda topic: clients[homes[topic]]) if spark is None else OnSpark(spark, server)
        maker = _Maker(clients, homes, counting, clock or SystemClock(), pause or threading.Event().wait, progress)
        made = maker.make(seconds)
        made.behind = [
            *(one for place in checkpoints for one in _of_checkpoint(place, made.states)),
            *(one for root in lakes for one in _of_lake(root, made.states)),
        ]
    temporary = f"{file}.{os.getpid()}.tmp"
    try:
        Path(temporary).write_text(paper.page(made))
        os.replace(temporary, file)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}") from None
    return made


def _homes(clients: Mapping[str, Client], matches: Any) -> dict[str, str]:
    """The topics, each with the server that has it."""
    homes: dict[str, str] = {}
    for url, client in clients.items():
        for listed in client.topics():
            if matches(listed.topic):
                if listed.topic in homes:
                    raise TopicOnSeveralServers(listed.topic, [homes[listed.topic], url])
                homes[listed.topic] = url
    return homes


@dataclass
class _Maker:
    """Asks, counts and watches."""

    _clients: Mapping[str, Client]
    _homes: dict[str, str]
    _counting: Counting
    _clock: Clock
    _pause: Callable[[float], object]
    _progress: Progress

    def make(self, seconds: float) -> Report:
        states = list(self._states())
        made = Report(
            servers=[_seen(url, client) for url, client in self._clients.items()],
            made_ms=self._clock.now_ms(),
            states=states,
            homes=self._homes,
            routers=list(self._routers({state.topic for state in states})),
        )
        made.gaps = {state.topic: lost for state in states if (lost := self._lost(state))}
        made.queues = [self._queue(state) for state in states if state.queue is not None]
        if made.queues and seconds > 0:
            made.watched_s = seconds
            self._watch(made.queues, {state.topic: state for state in states}, seconds)
        self._count(made)
        self._sort_letters(made)
        return made

    def _client(self, topic: str) -> Client:
        return self._clients[self._homes[topic]]

    def _states(self) -> Iterable[TopicState]:
        for name in self._homes:
            with suppress(TopicNotFound):  # deleted meanwhile
                yield self._client(name).state(name, touch=False)

    def _routers(self, topics: set[str]) -> Iterable[Router]:
        """Those from or to one of the topics, each as it is now."""
        for url, client in self._clients.items():
            here = {topic for topic in topics if self._homes[topic] == url}
            for listed in client.routers():
                if here & {listed.source, listed.dest}:
                    with suppress(RouterNotFound):  # deleted meanwhile
                        yield client.router(listed.router)

    def _lost(self, state: TopicState) -> list[Lost]:
        if not state.head_seq:
            return []
        try:
            with closing(self._client(state.topic).export(state.topic)) as export:
                return clipped(export.info.lost, 0, state.head_seq)
        except TopicNotFound:
            return []

    # --- throughput

    def _count(self, made: Report) -> None:
        """Records and bytes over time, of what is live."""
        filled = [state for state in made.states if state.count]
        if not filled:
            return
        first = min(self._first_ts(state) for state in filled)
        last = max(state.last_write_ts or 0 for state in filled)
        made.step_ms = step_of(max(0, last - first))
        made.start_ms = first // made.step_ms * made.step_ms
        count = (last - made.start_ms) // made.step_ms + 1
        names = [state.topic for state in filled]
        for step in self._counting.steps(names, made.start_ms, made.step_ms, count):
            made.records.setdefault(step.topic, [0.0] * count)[step.number] = step.records
            made.bytes.setdefault(step.topic, [0.0] * count)[step.number] = step.bytes
        self._progress.update(rows=int(sum(map(sum, made.records.values()))))

    def _first_ts(self, state: TopicState) -> int:
        client, cursor = self._client(state.topic), max(0, state.earliest_seq - 1)
        records = client.diff(state.topic, cursor, limit=1, include_meta=False).records
        return records[0].ts if records else state.last_write_ts or 0

    # --- queues

    def _queue(self, state: TopicState) -> Queue:
        assert state.queue is not None
        found = Queue(state.topic, state.queue.ready, state.queue.in_flight, state.queue.dead_lettered)
        now = self._clock.now_ms()
        leased = set()
        running: list[int] = []
        for lease in self._client(state.topic).leases(state.topic):
            leased.add(lease.seq)
            running.append(now - (lease.deadline - state.config.lease_ms))
        found.running = ages(running)
        if state.count:
            found.waiting = self._counting.ages(state.topic, now, leased)
        return found

    def _watch(self, queues: Sequence[Queue], states: dict[str, TopicState], seconds: float) -> None:
        """See which jobs are claimed, and which leases end."""
        began: dict[tuple[str, int, int], int] = {}  # topic, seq, delivery → when it was claimed
        known = {queue.topic: self._leases(states[queue.topic]) for queue in queues}
        end = self._clock.monotonic() + seconds
        while self._clock.monotonic() < end:
            self._pause(POLL_S)
            now = self._clock.now_ms()
            for queue in queues:
                leases = self._leases(states[queue.topic])
                for key, claimed in leases.items():
                    if key not in known[queue.topic]:
                        began[key] = claimed
                        queue.waits_ms.extend(self._wait(queue.topic, key[1], claimed))
                for key in known[queue.topic].keys() - leases.keys():
                    if key in began:
                        queue.runs_ms.append(max(0, now - began.pop(key)))
                known[queue.topic] = leases

    def _leases(self, state: TopicState) -> dict[tuple[str, int, int], int]:
        try:
            return {
                (state.topic, lease.seq, lease.deliveries): lease.deadline - state.config.lease_ms
                for lease in self._client(state.topic).leases(state.topic)
            }
        except TopicNotFound:
            return {}

    def _wait(self, topic: str, seq: int, claimed: int) -> list[int]:
        """How long a job had waited when it was claimed; nothing if it is done already."""
        records = self._client(topic).diff(topic, seq - 1, limit=1, include_meta=False).records
        return [max(0, claimed - record.ts) for record in records if record.seq == seq]

    # --- dead letters

    def _sort_letters(self, made: Report) -> None:
        names = {state.topic for state in made.states if state.count}
        topics = sorted({name for state in made.states if (name := state.config.dead_letter) in names and name})
        if topics:
            made.letters = self._counting.letters(topics)


def _seen(url: str, client: Client) -> Server:
    health = client.health()
    return Server(url, health.version, health.uptime_ms, client.metrics())


def step_of(length_ms: int) -> int:
    """The step of time with which a length has at most BUCKETS of them."""
    steps = [seconds * 1000 for seconds in STEPS_S]
    return next((step for step in steps if length_ms // step < BUCKETS), length_ms // BUCKETS + 1)


def ages(values_ms: Iterable[int]) -> dict[str, int]:
    """How many of the values are of which age."""
    names = Counter(next((name for name, limit in AGES_MS.items() if ms < limit), OLDER) for ms in values_ms)
    return {name: names[name] for name in (*AGES_MS, OLDER)}


def _matching(pattern: str | None) -> Any:
    try:
        return re.compile(".*" if pattern is None else pattern).fullmatch
    except re.error as error:
        raise InvalidRequest(f"topics is {pattern!r}: it is not a regular expression: {error}") from None


# --- lag


def _of_checkpoint(place: str, states: Sequence[TopicState]) -> list[Behind]:
    """The pipelines whose checkpoints lie in `place`, or are `place`: how far their last batch went."""
    root = Path(place)
    queries = [root] if (root / "offsets").is_dir() else sorted(one.parent for one in root.glob("*/offsets"))
    if not queries:
        raise InvalidRequest(f"{place} has no checkpoint of a streaming query")
    heads = {state.topic: state.head_seq for state in states}
    found: dict[tuple[str, str], int] = {}
    for query in queries:
        batches = [int(one.name) for one in (query / "offsets").iterdir() if one.name.isdigit()]
        lines = (query / "offsets" / str(max(batches))).read_text().splitlines()[2:] if batches else []
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # of another kind of source
                for topic, at in json.loads(line).items():
                    found[query.name, topic] = int(at["seq"])
    return [Behind(q, topic, seq, max(0, heads[topic] - seq)) for (q, topic), seq in found.items() if topic in heads]


def _of_lake(root: str, states: Sequence[TopicState]) -> list[Behind]:
    lake = Lake.load(root)
    found = []
    for state in states:
        covered = lake.covered(state.topic, state.epoch)
        if covered:
            last = covered[-1][1]
            found.append(Behind(f"lake {root}", state.topic, last, max(0, state.head_seq - last)))
    return found
