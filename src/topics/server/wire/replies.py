"""What answers say: one struct per answer of the API, in the order of its fields.

The OpenAPI document is made of these types. The hottest answers are put together from bytes instead, in `rendered`;
their structs describe them. Rules: CV5, CV9, CV11, Appendix A.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.engine.answers import (
    Job,
    LeaseView,
    QueueCounts,
    RouterState,
    TopicState,
)
from topics.errors import Throttled, TopicsError
from topics.model import Guarantee, Record, Tombstone, TopicConfig, TopicType
from topics.server.transport.exchange import Answer
from topics.server.wire.advice import Warned

HIDDEN: Final = "*"  # stands for a name that the caller's key may not name (AU16)

encode = msgspec.json.Encoder().encode


class Performance(Struct):
    """Times in milliseconds."""

    server_total_ms: float


class SyncPerformance(Struct):
    """Of a delete: `fsync_ms` is 0.0 for every class but fsync."""

    server_total_ms: float
    fsync_ms: float


class WritePerformance(Struct):
    server_total_ms: float
    wal_append_ms: float
    fsync_ms: float
    throttle_wait_ms: float


class DiffPerformance(Struct):
    server_total_ms: float
    records_scanned: int
    throttle_wait_ms: float


class Evicting(Struct):
    """Live records that a config would evict at once."""

    records: int
    bytes: int


class TopicPut(Struct, kw_only=True):
    """`dry_run` and `would_evict` are in the answer to a dry run, `warnings` only if there are some."""

    topic: str
    created: bool
    config: TopicConfig
    warnings: list[Warned] | UnsetType = UNSET
    dry_run: Literal[True] | UnsetType = UNSET
    would_evict: Evicting | UnsetType = UNSET
    performance: Performance


class TopicShown(Struct, kw_only=True):
    topic: str
    epoch: int
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | UnsetType = UNSET
    written_total: int
    lost_total: int
    expired_total: int
    deleted_total: int
    seconds_until_loss: float | None
    paused: bool | UnsetType = UNSET
    performance: Performance


class TopicListed(Struct):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int | UnsetType = UNSET  # if it is asked for


class TopicGone(Struct):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class Written(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    mismatch: Literal[True] | UnsetType = UNSET
    warnings: list[Warned] | UnsetType = UNSET
    performance: WritePerformance


class Diff(Struct):
    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: DiffPerformance


class RecordsDeleted(Struct, kw_only=True):
    """`dry_run` and `deleted_bytes` are in the answer to a dry run."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    dry_run: Literal[True] | UnsetType = UNSET
    deleted_bytes: int | UnsetType = UNSET
    performance: SyncPerformance


class LiveRuns(Struct):
    """Which seqs above `after` and up to `last` are live, as runs; what else was lost is in `lost`, or deleted."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    after: int
    last: int
    live: list[list[int]]  # each first and last
    lost: list[Tombstone]
    performance: Performance


class WatchedTopic(Struct):
    """Where a session starts in a topic."""

    epoch: int
    from_seq: int
    head_seq: int
    earliest_seq: int


class Watching(Struct):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


class ClaimPerformance(Struct):
    server_total_ms: float
    throttle_wait_ms: float


class JobsClaimed(Struct):
    topic: str
    claimed: list[Job]
    count: int
    ready: int
    paused: bool
    performance: ClaimPerformance


class JobsAcked(Struct):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: SyncPerformance


class JobsNacked(Struct):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class LeasesExtended(Struct):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


class LettersRedriven(Struct, kw_only=True):
    """`dry_run` and `redriven_bytes` are in the answer to a dry run."""

    topic: str
    dead_letter: str
    redriven: int
    remaining: int
    dry_run: Literal[True] | UnsetType = UNSET
    redriven_bytes: int | UnsetType = UNSET
    performance: Performance


class QueuePaused(Struct):
    topic: str
    paused: bool
    performance: Performance


class LeaseList(Struct, kw_only=True):
    topic: str
    leases: list[LeaseView]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class RouterShown(Struct, kw_only=True):
    """`created` is in the answer to a PUT; total, lag, state and what it is blocked by are in that to a GET."""

    router: str
    created: bool | UnsetType = UNSET
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int | UnsetType = UNSET
    lag: int | UnsetType = UNSET
    state: Literal["running", "blocked"] | UnsetType = UNSET
    blocked_by: str | UnsetType = UNSET
    performance: Performance


class RouterGone(Struct):
    router: str
    deleted: bool
    performance: Performance


class TicketGiven(Struct):
    """`expires_ts` in milliseconds of the epoch."""

    ticket: str
    expires_ts: int
    performance: Performance


class Me(Struct):
    """A key, to its holder. No prefixes: any name. `name` is null for a key of the environment, and without auth."""

    name: str | None
    scopes: list[str]
    prefixes: list[str]
    performance: Performance


class ConnectionListed(Struct):
    """A stream or a socket. `key` is the name of its key, `lag` what it has not been sent of its topics."""

    id: str
    kind: Literal["watch", "events", "work", "ws"]
    key: str | None
    remote: str
    topics: list[str]
    lag: int
    held_bytes: int
    age_ms: int


class ConnectionList(Struct, kw_only=True):
    connections: list[ConnectionListed]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class ConnectionGone(Struct):
    deleted: bool
    performance: Performance


class Health(Struct):
    status: Literal["ok"]
    version: str
    uptime_ms: int


class Ready(Struct):
    status: Literal["ready"]
    wal_replay_complete: bool
    topics: int


class ErrorBody(Struct):
    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class Error(Struct):
    error: ErrorBody


def config_shown(config: TopicConfig, may_name: Callable[[str], bool]) -> TopicConfig:
    """A config as seen by a key that may name only some topics."""
    if config.dead_letter is None or may_name(config.dead_letter):
        return config
    return msgspec.structs.replace(config, dead_letter=HIDDEN)


def topic_shown(state: TopicState, may_name: Callable[[str], bool], performance: Performance) -> TopicShown:
    return TopicShown(
        topic=state.topic,
        epoch=state.epoch,
        type=state.config.type,
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        next_seq=state.head_seq + 1,
        count=state.count,
        bytes=state.bytes,
        config=config_shown(state.config, may_name),
        effective_priority=state.effective_priority,
        last_write_ts=state.last_write_ts,
        last_read_ts=state.last_read_ts,
        queue=UNSET if state.queue is None else state.queue,
        written_total=state.written_total,
        lost_total=state.lost_total,
        expired_total=state.expired_total,
        deleted_total=state.deleted_total,
        seconds_until_loss=state.seconds_until_loss,
        paused=UNSET if state.queue is None else state.paused,
        performance=performance,
    )


def router_put(state: RouterState, created: bool, performance: Performance) -> RouterShown:
    return _router(state, performance, created=created)


def router_shown(state: RouterState, performance: Performance) -> RouterShown:
    return _router(
        state,
        performance,
        forwarded_total=state.forwarded_total,
        lag=state.lag,
        state=state.state,
        blocked_by=UNSET if state.blocked_by is None else state.blocked_by,
    )


def _router(shown: RouterState, performance: Performance, **more: Any) -> RouterShown:
    definition = shown.definition
    return RouterShown(
        router=shown.router,
        source=shown.source,
        dest=shown.dest,
        preserve_node=definition.preserve_node,
        preserve_tag=definition.preserve_tag,
        filter=None if definition.match is None else list(definition.match.as_tuple()),
        allow_cycle=definition.allow_cycle,
        guarantee=definition.guarantee,
        performance=performance,
        **more,
    )


def topic_listed(state: TopicState, with_epoch: bool = False) -> TopicListed:
    return TopicListed(
        state.topic,
        state.head_seq,
        state.earliest_seq,
        state.count,
        state.bytes,
        state.config.durable,
        state.effective_priority,
        state.epoch if with_epoch else UNSET,
    )


def refusal(error: TopicsError) -> Answer:
    """The answer that an error stands for."""
    body = ErrorBody(error.code, error.message or error.code, error.detail or UNSET)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.status in (429, 503):
        wait_ms = error.detail.get("retry_after_ms", 0) if isinstance(error, Throttled) else 0
        headers = ((b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))),)
    elif error.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    return Answer(error.status, encode(Error(body)), headers)
