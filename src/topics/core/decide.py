"""Decisions: what a command does to the state, as entries, or why it is refused.

`decide` reads the state and changes nothing; the entries it gives are logged and then applied. A refusal is raised.
Expiry comes first: before a command looks at a topic, the caller applies what `expiry` gives (WR13, TM14).

Decisions about jobs are in core/queue (leasing.py, letters.py); an ack and a dead letter delete by `deletion` here.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from topics.core.entries import (
    AnyEntry,
    Appended,
    CursorRemoved,
    CursorSet,
    Deleted,
    Evicted,
    Expired,
    HeadInherited,
    Leased,
    QueuePaused,
    Released,
    RouterRemoved,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.memory import ROW, TAGGED_ROW, TOPIC, WRITE, of_key, used
from topics.core.routing.table import PutRouter, check_router, holes, router_entries
from topics.core.state import State, Topic
from topics.core.topic.blocks import BLOCK, Blocks, blocks_of
from topics.core.topic.config import ConfigIn, resolve
from topics.core.topic.records import Batch
from topics.core.topic.reservation import Reservation
from topics.errors import (
    CursorMoved,
    EpochMismatch,
    IdempotencyMismatch,
    InvalidRequest,
    NotAQueue,
    RecordTooLarge,
    Throttled,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model import TopicConfig, is_topic_name

EVICTED = 32  # what the text of a record has at least beside its data and meta, in a write of its own


class Caps(NamedTuple):
    """Bounds of the whole instance; 0 = off."""

    max_topics: int = 0
    max_total_bytes: int = 0
    max_routers: int = 0
    max_cursors: int = 0  # of each topic
    max_memory_bytes: int = 0


class PutTopic(Struct, frozen=True, gc=False):
    topic: str
    config: ConfigIn


class DeleteTopic(Struct, frozen=True, gc=False):
    topic: str
    if_empty: bool = False
    epoch: int | None = None  # None = of any instance


class Append(Struct, frozen=True, gc=False):
    topic: str
    batch: Batch
    key: str | None = None  # idempotency key
    create: bool | None = None  # None = as config.auto_create says
    config: ConfigIn | None = None  # counts only if this write creates the topic
    refuses_mismatch: bool = False  # refuse it if the key stands for other records


class Delete(Struct, frozen=True, gc=False):
    """Delete the live records below `before` (if given) and among `blocks` (if given)."""

    topic: str
    before: int | None = None
    blocks: Blocks | None = None  # what the tag predicate selected, see `Log.matching`


class PutCursor(Struct, frozen=True, gc=False):
    topic: str
    name: str
    seq: int
    epoch: int | None = None  # of the instance that it is meant for; None = whichever there is
    if_seq: int | None | UnsetType = UNSET  # where it must stand now; None = there must be none


class Appending(Struct, frozen=True, gc=False):
    """What an Append will have done once its entries are applied."""

    first: int
    last: int
    created: bool
    deduped: bool
    mismatch: bool = False  # deduped, but the records of the first write were others


def expiry(state: State, topic: Topic, now: int) -> list[AnyEntry]:
    """The entries that take away what has expired by now, if anything has."""
    expired = _expiry(topic, topic.config.ttl_ms, now)
    return [] if expired is None else [*holes(state, topic, expired.last, topic.log.head + 1, now), expired]


def put_topic(state: State, command: PutTopic, now: int, caps: Caps) -> tuple[list[AnyEntry], TopicConfig]:
    """Create a topic or replace its config. No entries: it is already as asked."""
    topic = state.topics.get(command.topic)
    if topic is None:
        _check_name(command.topic)
        config = resolve(command.topic, command.config)
        created = _creation(state, command.topic, config, caps)
        check_memory(state, caps, TOPIC)
        return [created], config
    config = resolve(command.topic, command.config, topic.config)
    if config == topic.config:
        return [], config
    return _reconfiguration(state, topic, config, now), config


def delete_topic(state: State, command: DeleteTopic) -> list[AnyEntry]:
    """Delete a topic with all it owns. No entries: there is no such topic."""
    topic = state.topics.get(command.topic)
    if topic is None:
        return []
    if command.epoch not in (None, topic.epoch):
        raise EpochMismatch(topic.name, topic.epoch, command.epoch)
    if command.if_empty and topic.log.count:
        raise TopicNotEmpty(
            f'topic "{topic.name}" has {topic.log.count} live records', topic=topic.name, count=topic.log.count
        )
    return [TopicDeleted(topic.id)]


def pause(state: State, name: str, paused: bool) -> list[AnyEntry]:
    """Let a queue hand out no jobs, or hand them out again. No entries: it is already so."""
    topic = require(state, name)
    if not topic.is_queue:
        raise NotAQueue(name)
    return [] if topic.paused is paused else [QueuePaused(topic.id, paused)]


def put_router(state: State, command: PutRouter, caps: Caps) -> list[AnyEntry]:
    """Create or change a router, and the topics that it needs. No entries: it is already as asked."""
    is_changed = check_router(state, command, caps.max_routers)
    if command.router not in state.routers.by_name:
        check_memory(state, caps)
    absent = [name for name in (command.source, command.dest) if name not in state.topics]
    if caps.max_topics and absent and len(state.topics) + len(absent) > caps.max_topics:
        raise _too_many_topics(absent[-1], caps.max_topics)
    created = [TopicCreated(id, name, id, TopicConfig()) for id, name in enumerate(absent, state.next_id)]
    return [*created, *router_entries(state, command, created)] if is_changed else []


def delete_router(state: State, name: str) -> list[AnyEntry]:
    """Delete a router. No entries: there is no such router."""
    router = state.routers.by_name.get(name)
    return [] if router is None else [RouterRemoved(router.id, name)]


def append(state: State, command: Append, now: int, caps: Caps) -> tuple[list[AnyEntry], Appending]:
    """Append a batch, creating the topic if need be. No entries: the key was seen before."""
    topic = state.topics.get(command.topic)
    if topic is None:
        return _append_creating(state, command, now, caps)
    key, config, log, batch = command.key, topic.config, topic.log, command.batch
    if key is not None:
        written = topic.keys.find(key, config.idempotency_window_ms, now)
        if written is not None:
            mismatch = written.differs(batch.digest)
            if mismatch and command.refuses_mismatch:
                raise IdempotencyMismatch(topic.name, key, written.first, written.last)
            return [], Appending(written.first, written.last, False, True, mismatch)
    if batch.has_delays:
        _check_delays(topic.name, config)
    first = log.head + 1
    last = log.head + len(batch.sizes)
    ts = max(now, log.last_ts)
    entries: list[AnyEntry] = [Appended(topic.id, first, ts, batch, key)]
    evicted = 0
    if config.cap_records or config.cap_bytes:
        evicted = admit(topic.name, config, topic, batch)
        if evicted:
            entries.append(Evicted(topic.id, evicted, now))
    if caps.max_total_bytes:
        check_total(state, topic, batch, evicted, caps)
    if 0 < caps.max_memory_bytes < state.memory + state.memory_beside + 2 * len(batch.body):
        _check_growth(state, topic, batch, key, evicted, caps)
    if last > topic.reservation.ample_through:
        entries += topic.reservation.renewal(topic.id, config, last)
    if evicted and topic.id in state.routers.outgoing:
        entries = [*holes(state, topic, evicted, first, now), *entries]
    return entries, Appending(first, last, False, False)


def delete(state: State, command: Delete) -> list[AnyEntry]:
    """Delete records. No entries: nothing live is selected."""
    topic = require(state, command.topic)
    log = topic.log
    bound = log.head + 1 if command.before is None else min(command.before, log.head + 1)
    if command.blocks is None:
        count = log.measure(bound, ())
        return [Deleted(topic.id, bound, [], count)] if bound > log.earliest else []
    masks = []
    for number, selected in sorted(command.blocks.items()):
        mask = selected & ((1 << max(0, min(BLOCK, bound - number * BLOCK))) - 1)
        if mask:
            masks.append((number, mask))
    return [_deleted(topic, masks, log.measure(0, masks))] if masks else []


def deletion(topic: Topic, *groups: Sequence[int]) -> Deleted:
    """The entry that deletes these live records, none twice. Damaged: what it would have to look at cannot be read."""
    masks: Blocks = {}
    count = 0
    for seqs in groups:
        first, last = min(seqs), max(seqs)
        count += len(seqs)
        number = first // BLOCK
        if last - first == len(seqs) - 1 and number == last // BLOCK:  # in a row, as jobs are claimed
            masks[number] = masks.get(number, 0) | (1 << len(seqs)) - 1 << first % BLOCK
        else:
            for number, mask in blocks_of(seqs).items():
                masks[number] = masks.get(number, 0) | mask
    if topic.log.has_sealed:
        count = topic.log.measure(0, masks.items())
    return _deleted(topic, masks.items(), count)


def _deleted(topic: Topic, masks: Iterable[tuple[int, int]], count: int) -> Deleted:
    blocks = [(number, mask.to_bytes((mask.bit_length() + 7) // 8, "little")) for number, mask in masks]
    return Deleted(topic.id, 0, blocks, count)


def put_cursor(state: State, command: PutCursor, now: int, caps: Caps) -> list[AnyEntry]:
    """Let a named cursor stand at a seq (NC1)."""
    topic, name = require(state, command.topic), command.name
    if not is_topic_name(name):
        raise InvalidRequest(
            f'"{name}" is not a valid name of a cursor: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit'
        )
    if command.epoch is not None and command.epoch != topic.epoch:
        raise EpochMismatch(topic.name, topic.epoch, command.epoch)
    present = topic.cursors.get(name)
    if command.if_seq is not UNSET and command.if_seq != (None if present is None else present.seq):
        raise CursorMoved(topic.name, name, None if present is None else present.seq)
    if command.seq > topic.log.head:
        raise InvalidRequest(f'seq is {command.seq}, above the head of topic "{topic.name}", {topic.log.head}')
    if present is None and caps.max_cursors and len(topic.cursors) >= caps.max_cursors:
        raise Throttled(
            f'cursor "{name}" would be one more than the {caps.max_cursors} cursors allowed for topic "{topic.name}"; '
            "delete some that nobody needs",
            limit="max_cursors",
            max=caps.max_cursors,
        )
    if present is None:
        check_memory(state, caps)
    return [CursorSet(topic.id, name, command.seq, now)]


def delete_cursor(topic: Topic, name: str) -> list[AnyEntry]:
    """Forget a named cursor. No entries: there is no such cursor."""
    return [CursorRemoved(topic.id, name)] if name in topic.cursors else []


def head_inherited(topic: Topic) -> HeadInherited:
    """What the log has to know of a topic whose records it does not have, from here on."""
    log = topic.log
    lost, losses = max(log.highest_live(log.head), log.floor - 1), log.losses_of_all(log.last_ts)
    return HeadInherited(topic.id, log.head, lost, log.deleted, losses, log.expired, log.trimmed)


def require(state: State, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise TopicNotFound(name)
    return topic


def _append_creating(state: State, command: Append, now: int, caps: Caps) -> tuple[list[AnyEntry], Appending]:
    given = command.config or ConfigIn()
    may_create = command.create if command.create is not None else given.auto_create is not False
    if not may_create:
        raise TopicNotFound(command.topic)
    _check_name(command.topic)
    config = resolve(command.topic, given)
    created = _creation(state, command.topic, config, caps)
    batch = command.batch
    if batch.has_delays:
        _check_delays(command.topic, config)
    count = len(batch.sizes)
    entries: list[AnyEntry] = [created, Appended(created.topic, 1, now, batch, command.key)]
    evicted = admit(command.topic, config, Topic(0, command.topic, 0, config), batch)
    if evicted:
        entries.append(Evicted(created.topic, evicted, now))
    if caps.max_total_bytes:
        check_total(state, None, batch, evicted, caps)
    check_memory(state, caps, TOPIC + _weight(batch, command.key))
    entries += Reservation().renewal(created.topic, config, count)
    return entries, Appending(1, count, True, False)


def _creation(state: State, name: str, config: TopicConfig, caps: Caps) -> TopicCreated:
    if caps.max_topics and len(state.topics) >= caps.max_topics:
        raise _too_many_topics(name, caps.max_topics)
    return TopicCreated(state.next_id, name, state.next_id, config)


def _too_many_topics(name: str, topics_max: int) -> Throttled:
    return Throttled(
        f'topic "{name}" would be one more than the {topics_max} topics allowed', limit="max_topics", max=topics_max
    )


def _expiry(topic: Topic, ttl_ms: int, now: int) -> Expired | None:
    log = topic.log
    if not ttl_ms or not log.count or now - log.earliest_ts <= ttl_ms:
        return None
    return Expired(topic.id, log.expired_through(now - ttl_ms), now)


def _reconfiguration(state: State, topic: Topic, config: TopicConfig, now: int) -> list[AnyEntry]:
    """The new config, and what follows from it at once (TP7, TP17, DU5)."""
    entries: list[AnyEntry] = [TopicConfigured(topic.id, config)]
    log = topic.log
    if not topic.is_logged and config.durability != "ephemeral":
        entries.append(head_inherited(topic))
    entries += topic.reservation.renewal_for_class(topic.id, config, log.head)
    if config.leases_durable and not topic.config.leases_durable and topic.is_logged:
        entries += _leases_to_keep(topic)
    return entries + retention(state, topic, config, now)


def _leases_to_keep(topic: Topic) -> list[AnyEntry]:
    """What a queue has to log that keeps its leases from now on: those there are, and the delays (QU18)."""
    queue = topic.queue
    by_node: dict[str, list[tuple[int, int, int, int]]] = {}
    for seq, (offset, node, deadline, deliveries) in queue.leases.items():
        by_node.setdefault(node, []).append((seq, offset + seq, deadline, deliveries))
    entries: list[AnyEntry] = [Leased(topic.id, node, leases) for node, leases in by_node.items()]
    given_back = [(seq, 0, start) for seq, start in queue.delayed.items() if seq in queue.deliveries]
    if given_back:
        entries.append(Leased(topic.id, "", [(seq, 0, 0, queue.deliveries[seq]) for seq, _, _ in given_back]))
        entries.append(Released(topic.id, given_back))
    return entries


def retention(state: State, topic: Topic, config: TopicConfig, now: int) -> list[AnyEntry]:
    """What `config` takes away of the records there are: age first, then caps. Holes that this leaves come first."""
    entries: list[AnyEntry] = []
    log = topic.log
    expired = _expiry(topic, config.ttl_ms, now)
    if expired is not None:
        entries.append(expired)
    if config.discard == "old":
        evicted = log.overflow(config.cap_records, config.cap_bytes)
        if evicted > (0 if expired is None else expired.last):
            entries.append(Evicted(topic.id, evicted, now))
    if not entries:
        return []
    last = max(entry.last for entry in entries if isinstance(entry, Expired | Evicted))
    return [*holes(state, topic, last, log.head + 1, now), *entries]


def admit(name: str, config: TopicConfig, topic: Topic, batch: Batch) -> int:
    """Check a batch against the topic's caps. Gives the last seq that must be evicted for it, or 0."""
    if not config.cap_records and not config.cap_bytes:
        return 0
    if config.cap_bytes:
        _check_against_cap(config.cap_bytes, batch.sizes)
    if config.discard == "old":
        return topic.log.overflow(config.cap_records, config.cap_bytes, batch.sizes)
    log, count, size = topic.log, len(batch.sizes), sum(batch.sizes)
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
        raise RecordTooLarge(
            f"the batch of {count} records and {size} bytes can never fit the caps of topic "
            f'"{name}": {config.cap_records} records, {config.cap_bytes} bytes (0 = no cap)'
        )
    if (config.cap_records and log.count + count > config.cap_records) or (
        config.cap_bytes and log.bytes + size > config.cap_bytes
    ):
        raise TopicFull(
            f'topic "{name}" is full: {log.count} records, {log.bytes} bytes; {count} records, {size} bytes do not fit',
            topic=name,
            cap_records=config.cap_records,
            cap_bytes=config.cap_bytes,
            head_seq=log.head,
            earliest_seq=log.earliest,
        )
    return 0


def _check_delays(name: str, config: TopicConfig) -> None:
    if config.type != "queue":
        raise NotAQueue(name, f'records have delay_ms or deliver_at; topic "{name}" is a log, only a queue delays jobs')


def _check_against_cap(cap_bytes: int, sizes: Sequence[int]) -> None:
    largest = max(sizes)
    if largest > cap_bytes:
        raise RecordTooLarge(
            f"records[{sizes.index(largest)}] is {largest} bytes, more than the topic's cap_bytes of {cap_bytes}"
        )


def check_total(state: State, topic: Topic | None, batch: Batch, evicted: int, caps: Caps) -> None:
    """Refuse a batch that brings the instance's live bytes above their bound, those up to `evicted` counted off."""
    total = state.bytes + sum(batch.sizes)
    if total <= caps.max_total_bytes:
        return
    head = 0
    if topic is not None:
        head = topic.log.head
        total -= topic.log.bytes_through(evicted) if evicted else 0
    total -= sum(batch.sizes[: max(0, evicted - head)])
    if total > caps.max_total_bytes:
        raise Throttled(
            f"live records would be {total} bytes, at most {caps.max_total_bytes}",
            limit="max_total_bytes",
            max=caps.max_total_bytes,
        )


def check_memory(state: State, caps: Caps, growth: int = 0) -> None:
    """Refuse what would make the state weigh more than it may. Never asked for what makes it lighter, or may (LM14)."""
    most = caps.max_memory_bytes
    if most and (weight := used(state) + growth) > most:
        raise Throttled(
            f"what is kept in memory would be about {weight} bytes, at most {most}; delete topics, or records of "
            "topics that are kept in memory",
            limit="max_memory_bytes",
            max=most,
        )


def _check_growth(state: State, topic: Topic, batch: Batch, key: str | None, evicted: int, caps: Caps) -> None:
    """The same for a batch. One that evicts from memory as much as it brings is no growth."""
    log = topic.log
    if evicted and key is None and not log.has_sealed:
        freed = log.bytes_through(evicted) + EVICTED * log.count_through(evicted)
        if len(batch.body) <= freed:
            return
    check_memory(state, caps, _weight(batch, key))


def _weight(batch: Batch, key: str | None) -> int:
    """What a batch will weigh in memory."""
    rows = len(batch.sizes) * (ROW + TAGGED_ROW if batch.has_tags else ROW)
    return len(batch.body) + WRITE + rows + (0 if key is None else of_key(key))


def _check_name(name: str) -> None:
    if not is_topic_name(name):
        raise InvalidRequest(
            f'"{name}" is not a valid topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit'
        )
