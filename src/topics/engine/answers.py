"""What the engine answers."""

from typing import Literal

import msgspec
from msgspec import Struct

from topics.core.forecast import seconds_until_loss, ts_of
from topics.core.queue.jobs import oldest_ready
from topics.core.state import Topic
from topics.core.topic.config import effective_priority
from topics.core.topic.losses import Loss, lost_above
from topics.core.topic.walk import Plan
from topics.model import Record, RouterDefinition, Tombstone, TopicConfig
from topics.storage.log_progress import Counters


class WriteResult(Struct, frozen=True, gc=False):
    """The answer to an append."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    mismatch: bool = False  # deduped, but the records of the first write were others


class ReadResult(Struct, frozen=True):
    """The answer to a read. `texts` hold the records' JSON, joined by commas; `records` decodes them."""

    topic: str
    epoch: int
    texts: list[bytes]
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    scanned: int
    tombstone: Tombstone | None
    nodes: frozenset[str] = frozenset()  # of the records

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    @property
    def records(self) -> list[Record]:
        return _decode_records(b"[" + b",".join(self.texts) + b"]")


class DeleteResult(Struct, frozen=True):
    """The answer to a delete: how many records it took, and the topic after it."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    deleted_bytes: int = 0  # sizes of the records that it took


class TopicPut(Struct, frozen=True):
    """What a PUT of a topic does: whether it creates it, its config, and what this takes of the records."""

    created: bool
    config: TopicConfig
    evicted_records: int
    evicted_bytes: int


class QueueCounts(Struct, frozen=True):
    """The jobs of a queue: live ones without lease and delay, those under a lease, those moved away, those delayed."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int


class Claimed(Struct):
    """Jobs handed out to one claimer. `texts` are claim items, as JSON."""

    topic: str
    topic_id: int
    texts: list[bytes]
    leases: list[tuple[int, int, int, int]]  # of each: seq, lease number, deadline, deliveries
    ready: int
    paused: bool = False  # the queue hands out nothing for now

    @property
    def jobs(self) -> list["Job"]:
        return [_decode_job(text) for text in self.texts]


class Job(Struct, frozen=True, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag"}):
    """A job as its worker gets it. `data` and `meta` are the JSON texts that were written."""

    seq: int
    lease_id: str
    deadline: int
    ts: int
    deliveries: int
    data: msgspec.Raw
    tag: str | None = None
    meta: msgspec.Raw = msgspec.Raw()


class LeaseChange(Struct, frozen=True):
    """The answer to an ack, nack or extend: what it reached, what not, and the queue after it."""

    topic: str
    done: list[int]
    skipped: list[int]
    ready: int
    in_flight: int
    deadline: int = 0  # of an extend


class LeaseView(Struct, frozen=True, rename={"seq": "$seq"}):
    """Who holds a job, and until when. The lease's id is its holder's."""

    seq: int
    node: str
    deadline: int
    deliveries: int


class Redriven(Struct, frozen=True):
    """The answer to a redrive: dead letters that are jobs again, and those that are still letters."""

    topic: str
    dead_letter: str
    redriven: int
    remaining: int
    redriven_bytes: int = 0  # sizes of those that are jobs again


class Moved(Struct, frozen=True):
    """The answer to a move of jobs: those that are in the other topic now, and those that are where they were."""

    topic: str
    dest: str
    moved: list[int]
    skipped: list[int]


class TopicState(Struct, frozen=True):
    """A topic as it is now."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    count: int
    bytes: int
    config: TopicConfig
    last_write_ts: int | None
    last_read_ts: int | None
    effective_priority: int  # the priority in use now (PR1)
    queue: QueueCounts | None  # queues only
    written_total: int = 0  # of this instance: live + lost + expired + deleted
    lost_total: int = 0  # to caps, crashes and sources that had lost them
    expired_total: int = 0
    deleted_total: int = 0
    seconds_until_loss: float | None = None  # of the earliest record; None: that is not foreseen (LS3)
    paused: bool = False  # a queue that hands out no jobs for now


class CursorState(Struct, frozen=True):
    """A named cursor as it is now."""

    topic: str
    name: str
    seq: int
    epoch: int
    lag: int  # seqs up to the head
    lost: int  # of these the ones that are lost
    seconds_until_loss: float | None  # of the first live record above it; None: that is not foreseen
    updated_ts: int


class RecordResult(Struct, frozen=True):
    """One record of a topic. `text` is its JSON; `record` decodes it."""

    topic: str
    epoch: int
    text: bytes

    @property
    def record(self) -> Record:
        return _decode_record(self.text)


class TopicDetail(Struct, frozen=True):
    """A topic as an overview shows it."""

    state: TopicState
    read_total: int  # records handed out since the start of the process
    trimmed_total: int  # of those lost: the ones that sources of routers had lost
    written_lately: int  # records of the last 60 s …
    read_lately: int  # … in and out
    cursors: int
    cursors_lag: int  # the largest
    oldest_ts: int | None  # of its live records …
    newest_ts: int | None  # … None: there are none
    dead_letters: int | None  # waiting in its dead_letter topic, whatever queue they are from; None: it has none
    oldest_ready_ts: int | None  # when the oldest job that nobody holds was written; None: there is none
    memory_bytes: int = 0  # what it weighs in memory, by estimate (LM14)


class Sums(Struct):
    """What some topics hold, have taken in and have lost, together."""

    topics: int = 0
    count: int = 0
    bytes: int = 0
    written_lately: int = 0  # records of the last 60 s …
    read_lately: int = 0  # … in and out
    lost: int = 0  # without those that expired
    expired: int = 0
    deleted: int = 0
    ready: int = 0  # jobs of queues

    def join(self, other: "Sums") -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Branch(Struct):
    """All topics whose names begin with `prefix`, or the one topic of this name."""

    prefix: str
    is_topic: bool
    sums: Sums


class LossSeen(Struct, frozen=True):
    """A loss, and the named cursors that stand below its end: how many, and the first by name."""

    topic: str
    loss: Loss
    cursors: list[str]
    hit: int


TroubleKind = Literal["paused", "no_dead_letter", "dead_letters", "cursor_lost"]


class Trouble(Struct, frozen=True):
    """Something about a topic that is worth a look; what the number counts depends on the kind."""

    kind: TroubleKind
    topic: str
    number: int
    name: str | None = None  # of a cursor


class Checkpoints(Struct):
    """The checkpoints of this process, the last one at a stop left out."""

    taken: int = 0
    failed: int = 0
    is_running: bool = False
    last_ts: int | None = None  # when the last good one ended …
    last_ms: float | None = None  # … and how long it took
    failure: str | None = None  # why the last one failed; None: it did not
    log_bytes: int = 0  # log that the next one will make superfluous …
    due_bytes: int = 0  # … and at how much it is due
    due_ms: int = 0  # after how long it is due if anything has changed


class RouterState(Struct, frozen=True):
    """A router as it is now."""

    router: str
    source: str
    dest: str
    definition: RouterDefinition
    forwarded_total: int
    lag: int  # seqs of the source that it has not looked at
    state: Literal["running", "blocked"]
    blocked_by: str | None  # why it cannot go on


class InstanceCounters(Struct, frozen=True):
    """Counts of what an instance holds."""

    topics: int
    topics_by_class: dict[str, int]  # durability class → topics; a class without any may be missing
    routers: int
    records: int  # live ones …
    bytes: int  # … and their sizes
    queues: int
    leases: int
    log: Counters  # what it has done since the start …
    queue_depth: int  # … frames that wait for it now …
    is_read_only: bool  # … and whether it takes no more


_decode_records = msgspec.json.Decoder(list[Record]).decode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_job = msgspec.json.Decoder(Job).decode


def read_result(topic: Topic, plan: Plan) -> ReadResult:
    return ReadResult(
        topic.name,
        topic.epoch,
        plan.texts(),
        plan.count,
        plan.next,
        plan.head,
        plan.earliest,
        plan.scanned,
        plan.tombstone,
        plan.nodes(),
    )


def topic_state(topic: Topic, now: int) -> TopicState:
    log = topic.log
    return TopicState(
        topic.name,
        topic.epoch,
        log.head,
        log.earliest,
        log.floor,
        log.count,
        log.bytes,
        topic.config,
        topic.last_write_ts,
        topic.notes.last_read_ms,
        effective_priority(topic.config, topic.notes.last_read_ms, now),
        _queue_counts(topic) if topic.config.type == "queue" else None,
        log.head,
        log.lost - log.expired,
        log.expired,
        log.deleted,
        seconds_until_loss(topic, now),
        topic.paused,
    )


def cursor_state(topic: Topic, name: str, now: int) -> CursorState:
    seq, ts = topic.cursors[name]
    lost = lost_above(topic.log.losses, seq)
    return CursorState(
        topic.name, name, seq, topic.epoch, topic.log.head - seq, lost, seconds_until_loss(topic, now, seq), ts
    )


def topic_detail(topic: Topic, now: int, dead_letters: Topic | None) -> TopicDetail:
    """A topic in detail. `dead_letters`: the dead_letter topic that its config names, if it exists."""
    log, notes, cursors = topic.log, topic.notes, topic.cursors
    oldest = newest = ready = None
    if log.count:
        oldest = log.earliest_ts
        newest = log.last_ts if log.is_live(log.head) else ts_of(topic, log.highest_live(log.head))
        seq = oldest_ready(topic.queue, log) if topic.is_queue else None
        ready = None if seq is None else ts_of(topic, seq)
    waiting = None
    if topic.is_queue and topic.config.dead_letter is not None:
        waiting = 0 if dead_letters is None else dead_letters.log.count
    return TopicDetail(
        topic_state(topic, now),
        notes.read_total,
        log.trimmed,
        log.written_lately(now),
        notes.read_lately(now),
        len(cursors),
        log.head - min(cursor.seq for cursor in cursors.values()) if cursors else 0,
        oldest,
        newest,
        waiting,
        ready,
        topic.weight,
    )


def _queue_counts(topic: Topic) -> QueueCounts:
    queue = topic.queue
    return QueueCounts(queue.ready(topic.log.count), len(queue.leases), queue.dead_lettered, len(queue.delayed))
