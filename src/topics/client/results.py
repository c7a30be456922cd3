"""What a client returns: frozen structs with the fields of the API, in its order (Appendix A).

Unknown fields are skipped (CV1). Records, jobs and events of a watch are those of `record_types`.
"""

from typing import Generic, Literal, TypeVar

from msgspec import Struct

from topics.client.record_types import CaughtUp as CaughtUp
from topics.client.record_types import ExportInfo as ExportInfo
from topics.client.record_types import Job as Job
from topics.client.record_types import Lost as Lost
from topics.client.record_types import NewRecord as NewRecord
from topics.client.record_types import Record as Record
from topics.client.record_types import Records as Records
from topics.client.record_types import TopicGone as TopicGone
from topics.client.record_types import TypedRecord as TypedRecord
from topics.client.record_types import WatchEvent as WatchEvent
from topics.model import Durability, Tombstone, TopicConfig, TopicType

T = TypeVar("T")


class Performance(Struct, frozen=True):
    """Where the server's time went. A figure that the answer lacks is 0."""

    server_total_ms: float = 0.0
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0
    throttle_wait_ms: float = 0.0
    records_scanned: int = 0


class ConfigWarning(Struct, frozen=True):
    """What about a config that was accepted may not be as it was meant."""

    code: str
    field: str
    message: str


class Written(Struct, frozen=True, kw_only=True):
    """`deduped`: the key was known, so nothing was appended; for example a retry after a lost answer.

    `mismatch`: and the records that were written under it are others.
    """

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    mismatch: bool = False
    warnings: list[ConfigWarning] = []
    performance: Performance = Performance()

    @property
    def seqs(self) -> range:
        """The seqs of the records, in the order of the call."""
        return range(self.first_seq, self.last_seq + 1)


class Diff(Struct, frozen=True, kw_only=True):
    """Records above a cursor; `next_from_seq` is the next one. `tombstone`: what was lost in front of them."""

    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: Performance = Performance()


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """Part of a list; `next_cursor` leads to the next part."""

    items: list[T]
    next_cursor: str | None = None


class Evicting(Struct, frozen=True):
    """Live records that a config would take at once."""

    records: int
    bytes: int


class TopicPut(Struct, frozen=True, kw_only=True):
    """Only a dry run has `would_evict`."""

    topic: str
    created: bool
    config: TopicConfig
    warnings: list[ConfigWarning] = []
    dry_run: bool = False
    would_evict: Evicting | None = None
    performance: Performance = Performance()


class QueueCounts(Struct, frozen=True):
    """`delayed`: jobs that are hidden for now, and in neither `ready` nor `in_flight`."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int = 0


class TopicState(Struct, frozen=True, kw_only=True):
    """A topic as it is: how far it goes, what it holds, what it has lost."""

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
    queue: QueueCounts | None = None  # queues only
    written_total: int = 0  # of this instance: count + lost_total + expired_total + deleted_total
    lost_total: int = 0
    expired_total: int = 0
    deleted_total: int = 0
    seconds_until_loss: float | None = None  # None: that is not foreseen
    paused: bool = False  # a queue that hands out no jobs for now
    performance: Performance = Performance()


class Loss(Struct, frozen=True, kw_only=True):
    """A range that was lost, and when; some of its seqs may have been deleted before."""

    gap_from: int
    gap_to: int
    reason: Literal["cap", "ttl", "mixed", "source_trim"]
    ts: int


class LossList(Struct, frozen=True, kw_only=True):
    losses: list[Loss]


class LiveRuns(Struct, frozen=True, kw_only=True):
    """Which seqs above `after` and up to `last` are live, as runs (first, last); the others are in `lost`, or deleted.

    `last` may be lower than what was asked for: ask again above it.
    """

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    after: int
    last: int
    live: list[tuple[int, int]]
    lost: list[Tombstone]
    performance: Performance = Performance()


class RecordShown(Struct, frozen=True, kw_only=True):
    """One record, and the instance of the topic that it is in."""

    topic: str
    epoch: int
    record: Record
    performance: Performance = Performance()


class CursorShown(Struct, frozen=True, kw_only=True):
    """A named cursor: `lost` seqs above it are lost, and the first live one will be in `seconds_until_loss`."""

    topic: str
    name: str
    seq: int
    epoch: int
    lag: int
    lost: int
    seconds_until_loss: float | None
    updated_ts: int
    created: bool | None = None  # of a PUT only
    performance: Performance = Performance()


NamedCursor = CursorShown


class CursorPage(Page[CursorShown], frozen=True, kw_only=True, rename={"items": "cursors"}):
    items: list[CursorShown]


class CursorDeleted(Struct, frozen=True, kw_only=True):
    """`deleted` is False if there was no such cursor."""

    topic: str
    name: str
    deleted: bool
    performance: Performance = Performance()


class JobCounts(Struct, frozen=True, kw_only=True):
    """The jobs of a queue in a list. `dead`: letters that wait in its dead_letter topic; None: it has none."""

    ready: int
    in_flight: int
    delayed: int
    dead: int | None
    paused: bool


class CursorCounts(Struct, frozen=True, kw_only=True):
    """How many named cursors a topic has, and how far the last of them is behind."""

    count: int
    max_lag: int


class TopicListed(Struct, frozen=True, kw_only=True, rename={"durability": "class"}):
    """From `type` on only with `detail=True`. Rates are records per second, of the last 60 s."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int | None = None  # None: an older server, which does not list it
    type: TopicType | None = None
    durability: Durability | None = None
    written_rate: float | None = None
    read_rate: float | None = None
    oldest_ts: int | None = None
    newest_ts: int | None = None
    lost_total: int | None = None
    deleted_total: int | None = None
    queue: JobCounts | None = None
    cursors: CursorCounts | None = None
    memory_bytes: int | None = None  # None: an older server, or no details


class TopicPage(Page[TopicListed], frozen=True, kw_only=True, rename={"items": "topics"}):
    items: list[TopicListed]


class TopicDeleted(Struct, frozen=True, kw_only=True):
    """`deleted` is False if there was no such topic."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance = Performance()


class RecordsDeleted(Struct, frozen=True, kw_only=True):
    """Only a dry run has `deleted_bytes`."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    dry_run: bool = False
    deleted_bytes: int | None = None
    performance: Performance = Performance()


class Router(Struct, frozen=True, kw_only=True):
    """A router in full. Only a PUT sets `created`; only a GET sets the fields behind it."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    created: bool = False
    forwarded_total: int = 0
    lag: int = 0  # seqs of the source that it has not looked at yet
    state: Literal["running", "blocked"] = "running"
    blocked_by: str | None = None
    performance: Performance = Performance()


class RouterListed(Struct, frozen=True, kw_only=True):
    """A router as a list shows it."""

    router: str
    source: str
    dest: str
    guarantee: Literal["at_least_once", "exactly_once"]
    forwarded_total: int


class RouterPage(Page[RouterListed], frozen=True, kw_only=True, rename={"items": "routers"}):
    items: list[RouterListed]


class RouterDeleted(Struct, frozen=True, kw_only=True):
    """`deleted`: there was such a router."""

    router: str
    deleted: bool
    performance: Performance = Performance()


class Claimed(Struct, frozen=True, kw_only=True):
    """The jobs that a claim leased, and how many more are ready."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    paused: bool = False  # the queue hands out no jobs for now
    performance: Performance = Performance()


class Acked(Struct, frozen=True, kw_only=True):
    """`skipped`: seqs that this node does not hold, for example because an earlier attempt acked them."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance = Performance()


class Nacked(Struct, frozen=True, kw_only=True):
    """How many jobs were given back. `skipped`: seqs that this node does not hold."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance = Performance()


class Extended(Struct, frozen=True, kw_only=True):
    """How many leases were extended. `skipped`: seqs that this node does not hold."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]  # seq → epoch-ms
    performance: Performance = Performance()


class Redriven(Struct, frozen=True, kw_only=True):
    """How many dead letters are jobs again, and how many remain. Only a dry run has `redriven_bytes`."""

    topic: str
    dead_letter: str
    redriven: int
    remaining: int
    dry_run: bool = False
    redriven_bytes: int | None = None
    performance: Performance = Performance()


class QueuePaused(Struct, frozen=True, kw_only=True):
    """Whether a queue hands out no jobs for now."""

    topic: str
    paused: bool
    performance: Performance = Performance()


class Lease(Struct, frozen=True, kw_only=True, rename={"seq": "$seq"}):
    """Who holds a job, and until when (epoch-ms)."""

    seq: int
    node: str
    deadline: int
    deliveries: int


class LeasePage(Page[Lease], frozen=True, kw_only=True, rename={"items": "leases"}):
    items: list[Lease]


class Health(Struct, frozen=True):
    """The server runs."""

    status: str
    version: str
    uptime_ms: int


class Ready(Struct, frozen=True):
    """The server takes calls."""

    status: str
    wal_replay_complete: bool
    topics: int


class Me(Struct, frozen=True, kw_only=True):
    """What a key is to the server. No prefixes: any name. `name` is None for a key of the environment."""

    name: str | None
    scopes: list[str]
    prefixes: list[str]
    performance: Performance = Performance()


class Ticket(Struct, frozen=True, kw_only=True):
    """What stands in for the key in one URL, until `expires_ts` (epoch-ms)."""

    ticket: str
    expires_ts: int
    performance: Performance = Performance()


class ConnectionListed(Struct, frozen=True, kw_only=True):
    """A stream that is open at the server."""

    id: str
    kind: str
    key: str | None
    remote: str
    topics: list[str]
    lag: int
    held_bytes: int
    age_ms: int


class ConnectionPage(Page[ConnectionListed], frozen=True, kw_only=True, rename={"items": "connections"}):
    items: list[ConnectionListed]


class ConnectionClosed(Struct, frozen=True, kw_only=True):
    """`deleted` is False if there was no such connection."""

    deleted: bool
    performance: Performance = Performance()


class WatchedTopic(Struct, frozen=True):
    epoch: int
    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchSession(Struct, frozen=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance = Performance()


class RequestErrors(Struct, frozen=True, kw_only=True, rename={"client": "4xx", "server": "5xx"}):
    """Answers with an error: by the client's fault, and by the server's."""

    client: int
    server: int


class Sample(Struct, frozen=True, kw_only=True):
    """What the server did in an interval that ended at `ts`."""

    ts: int
    written: int
    read: int
    delivered: int
    requests: int
    errors: RequestErrors
    p50_ms: float | None
    p99_ms: float | None
    pressure: float
    memory_bytes: int
    disk_free_bytes: int | None
    lost: int


class Stats(Struct, frozen=True, kw_only=True):
    """The server's history, the oldest sample first."""

    interval_ms: int
    samples: list[Sample]
    performance: Performance = Performance()
