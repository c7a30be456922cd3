"""What the engine answers."""

import msgspec
from msgspec import Struct

from topics.core.config import effective_priority
from topics.core.log import Plan
from topics.core.machine import Topic
from topics.model import Record, Tombstone, TopicConfig


class WriteResult(Struct, frozen=True):
    """The answer to an append."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool


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


class QueueCounts(Struct, frozen=True):
    """The jobs of a queue: live ones without lease and delay, those under a lease, those moved away."""

    ready: int
    in_flight: int
    dead_lettered: int


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


_decode_records = msgspec.json.Decoder(list[Record]).decode


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
        topic.last_read_ms,
        effective_priority(topic.config, topic.last_read_ms, now),
        _queue_counts(topic, now) if topic.config.type == "queue" else None,
    )


def _queue_counts(topic: Topic, now: int) -> QueueCounts:
    queue, is_live = topic.queue, topic.log.is_live
    leased = [seq for seq, (_, _, deadline) in queue.leases.items() if now <= deadline and is_live(seq)]
    delayed = [seq for seq, start in queue.delayed.items() if now < start and is_live(seq)]
    return QueueCounts(topic.log.count - len(leased) - len(delayed), len(leased), queue.dead_lettered)
