"""Metrics, as Prometheus text or JSON (HM3-HM6).

What is shown of topics waits for its gate like any read, and a key sees only the topics that it may name (AU14). A
scrape is made in many turns of the loop, and one at a time: there may be a hundred thousand topics to choose from, and
a client that asks a hundred times at once.
"""

import asyncio
from contextlib import suppress
from itertools import chain
from typing import Final

from msgspec import Struct

from topics.engine.answers import InstanceCounters, RouterState, TopicDetail
from topics.engine.instance import TopicFilter
from topics.errors import InvalidRequest, StorageError
from topics.server.call import Call
from topics.server.handlers.routers import may_see
from topics.server.seeing import exposition

ROUTERS_MAX: Final = 1000  # routers with a series of their own
CURSORS_MAX: Final = 1000  # the same for named cursors: those that are furthest behind
TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
LINES_MAX: Final = 2000  # that are put together in one turn of the loop


class WalMetrics(Struct):
    """The log since the start."""

    fsyncs: int
    frames: int
    batches: int
    bytes_written: int
    rotations: int
    queue_depth: int
    queue_depth_peak: int
    submit_full_total: int
    read_only: bool
    fsync_count: int
    fsync_micros_total: int


class Metrics(Struct):
    """The JSON form."""

    topics: int
    topics_ephemeral: int
    topics_memory: int
    topics_disk: int
    topics_fsync: int
    routers: int
    records_live: int
    bytes_live: int
    queue_topics: int
    queue_leases_in_flight: int
    sse_connections: int
    watch_sessions: int
    ready: bool
    replay_progress: float
    uptime_ms: int
    wal: WalMetrics


async def metrics(call: Call) -> None:
    if _wants_json(call):
        call.answer(200, _metrics(call, call.app.engine.figures.counters()))
        return
    async with call.app.scraping:
        if call.exchange.is_lost:
            raise InvalidRequest("the client was gone before its scrape began")
        text = await _scrape(call)
    call.respond(200, text, (), TEXT)


async def _scrape(call: Call) -> bytes:
    app, key = call.app, call.key
    engine, wanted = app.engine, TopicFilter(allowed=key.prefixes)
    topics: list[TopicDetail] = []
    routers: list[RouterState] = []
    lags: list[tuple[str, str, int]] = []
    has_more = False
    if app.is_serving or app.is_draining:
        with suppress(StorageError):  # then nothing can be said of single topics
            topics, has_more = await engine.overview.most_active(app.settings.max_metrics_topics, wanted)
            lags = await engine.survey.cursor_lags(CURSORS_MAX, wanted)
            routers, _ = await engine.routing.list_after("", ROUTERS_MAX, lambda router: may_see(key, router))
    counters = engine.figures.counters()
    await asyncio.sleep(0)
    series = chain(
        exposition.of_contents(counters),
        exposition.of_server(app),
        exposition.of_log(counters),
        exposition.of_requests(app.traffic),
        exposition.of_process(app),
        exposition.of_topics(topics, has_more, app.clock.now_ms()),
        (exposition.of_cursors(lags), exposition.of_routers(routers)),
    )
    texts, lines = list[str](), 0
    for one in series:
        texts.append(exposition.text_of(one))
        lines += len(one.samples)
        if lines > LINES_MAX:
            lines = 0
            await asyncio.sleep(0)
    return "".join(texts).encode()


def _wants_json(call: Call) -> bool:
    accepted = b",".join(call.request.header_values(b"accept")).lower()
    return any(choice.partition(b";")[0].strip() == b"application/json" for choice in accepted.split(b","))


def _metrics(call: Call, counters: InstanceCounters) -> Metrics:
    app = call.app
    classes = {name: counters.topics_by_class.get(name, 0) for name in exposition.CLASSES}
    return Metrics(
        topics=counters.topics,
        topics_ephemeral=classes["ephemeral"],
        topics_memory=classes["memory"],
        topics_disk=classes["disk"],
        topics_fsync=classes["fsync"],
        routers=counters.routers,
        records_live=counters.records,
        bytes_live=counters.bytes,
        queue_topics=counters.queues,
        queue_leases_in_flight=counters.leases,
        sse_connections=app.slots.streams,
        watch_sessions=app.slots.sessions,
        ready=app.is_serving and app.engine.obstacle() is None,
        replay_progress=round(min(1.0, app.engine.replay_progress), 4),
        uptime_ms=app.uptime_ms,
        wal=_wal(counters),
    )


def _wal(counters: InstanceCounters) -> WalMetrics:
    log = counters.log
    return WalMetrics(
        fsyncs=log.fsyncs,
        frames=log.frames,
        batches=log.batches,
        bytes_written=log.bytes_written,
        rotations=log.rotations,
        queue_depth=counters.queue_depth,
        queue_depth_peak=log.queue_depth_peak,
        submit_full_total=log.full_total,
        read_only=counters.is_read_only,
        fsync_count=log.fsyncs,
        fsync_micros_total=log.fsync_micros,
    )
