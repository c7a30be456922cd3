"""Decisions: what a command does to the state, as entries, or why it is refused.

`decide` reads the state and changes nothing; the entries it gives are logged
and then applied. A refusal is raised. Expiry comes first: before a command
looks at a topic, the caller applies what `expiry` gives (WR13, TM14).
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from topics.core.config import ConfigIn, resolve
from topics.core.entries import (
    AnyEntry,
    Appended,
    Deleted,
    Evicted,
    Expired,
    HeadKept,
    Reserved,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.log import BLOCK, Blocks
from topics.core.machine import RESERVE, State, Topic
from topics.core.records import Batch
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, TopicFull, TopicNotEmpty, TopicNotFound
from topics.model import TopicConfig, is_topic_name


class Caps(NamedTuple):
    """Bounds of the whole instance; 0 = off."""

    max_topics: int = 0
    max_total_bytes: int = 0


class PutTopic(Struct, frozen=True, gc=False):
    topic: str
    config: ConfigIn


class DeleteTopic(Struct, frozen=True, gc=False):
    topic: str
    if_empty: bool = False


class Append(Struct, frozen=True, gc=False):
    topic: str
    batch: Batch
    key: str | None = None  # idempotency key
    create: bool | None = None  # None = as config.auto_create says
    config: ConfigIn | None = None  # counts only if this write creates the topic


class Delete(Struct, frozen=True, gc=False):
    """Delete the live records below `before` (if given) and among `blocks` (if given)."""

    topic: str
    before: int | None = None
    blocks: Blocks | None = None  # what the tag predicate selected, see `Log.matching`
    is_measured: bool = False  # `Log.matching` has looked at all of it


class Appending(Struct, frozen=True, gc=False):
    """What an Append will have done once its entries are applied."""

    first: int
    last: int
    head: int
    created: bool
    deduped: bool

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def expiry(topic: Topic, now: int) -> Expired | None:
    """The entry that takes away what has expired by now, if anything has."""
    return _expiry(topic, topic.config.ttl_ms, now)


def put_topic(state: State, command: PutTopic, now: int, caps: Caps) -> tuple[list[AnyEntry], TopicConfig]:
    """Create a topic or replace its config. No entries: it is already as asked."""
    topic = state.topic(command.topic)
    if topic is None:
        _check_name(command.topic)
        config = resolve(command.topic, command.config)
        return [_creation(state, command.topic, config, caps)], config
    config = resolve(command.topic, command.config, topic.config)
    if config == topic.config:
        return [], config
    return _reconfiguration(topic, config, now), config


def delete_topic(state: State, command: DeleteTopic) -> list[AnyEntry]:
    """Delete a topic with all it owns. No entries: there is none."""
    topic = state.topic(command.topic)
    if topic is None:
        return []
    if command.if_empty and topic.log.count:
        raise TopicNotEmpty(
            f'topic "{topic.name}" has {topic.log.count} live records', topic=topic.name, count=topic.log.count
        )
    return [TopicDeleted(topic.id)]


def append(state: State, command: Append, now: int, caps: Caps) -> tuple[list[AnyEntry], Appending]:
    """Append a batch, creating the topic if need be. No entries: the key was seen before."""
    topic = state.topics.get(command.topic)
    if topic is None:
        return _append_creating(state, command, now, caps)
    key, config, log, batch = command.key, topic.config, topic.log, command.batch
    if key is not None:
        written = topic.keys.find(key, config.idempotency_window_ms, now)
        if written is not None:
            return [], Appending(written.first, written.last, written.last, False, True)
    first = log.head + 1
    last = log.head + len(batch.sizes)
    entries: list[AnyEntry] = [Appended(topic.id, first, max(now, log.last_ts), batch, key)]
    if config.cap_records or config.cap_bytes:
        evicted = _admit(topic.name, config, topic, batch)
        if evicted:
            entries.append(Evicted(topic.id, evicted))
    if caps.max_total_bytes:
        _check_total(state, sum(batch.sizes), topic, entries, caps)
    if last > topic.reserved - RESERVE // 2 and topic.reserves:
        entries.append(Reserved(topic.id, last + RESERVE))
    return entries, Appending(first, last, last, False, False)


def delete(state: State, command: Delete) -> list[AnyEntry]:
    """Delete records. No entries: nothing live is selected."""
    topic = require(state, command.topic)
    log = topic.log
    bound = log.head + 1 if command.before is None else min(command.before, log.head + 1)
    if command.blocks is None:
        log.measure(bound, ())
        return [Deleted(topic.id, bound, [])] if bound > log.earliest else []
    masks = []
    for number, selected in sorted(command.blocks.items()):
        mask = selected & ((1 << max(0, min(BLOCK, bound - number * BLOCK))) - 1)
        if mask:
            masks.append((number, mask))
    if not command.is_measured:
        log.measure(0, masks)
    blocks = [(number, mask.to_bytes((mask.bit_length() + 7) // 8, "little")) for number, mask in masks]
    return [Deleted(topic.id, 0, blocks)] if blocks else []


def require(state: State, name: str) -> Topic:
    topic = state.topic(name)
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
    count = len(batch.sizes)
    entries: list[AnyEntry] = [created, Appended(created.topic, 1, now, batch, command.key)]
    evicted = _admit(command.topic, config, Topic(0, command.topic, 0, config), batch)
    if evicted:
        entries.append(Evicted(created.topic, evicted))
    if caps.max_total_bytes:
        _check_total(state, sum(batch.sizes), None, entries, caps)
    if count > RESERVE // 2 and config.durability in ("disk", "memory"):
        entries.append(Reserved(created.topic, count + RESERVE))
    return entries, Appending(1, count, count, True, False)


def _creation(state: State, name: str, config: TopicConfig, caps: Caps) -> TopicCreated:
    if caps.max_topics and len(state.topics) >= caps.max_topics:
        raise Throttled(
            f'topic "{name}" would be one more than the {caps.max_topics} topics allowed',
            limit="max_topics",
            max=caps.max_topics,
        )
    return TopicCreated(state.next_id, name, state.next_id, config)


def _expiry(topic: Topic, ttl_ms: int, now: int) -> Expired | None:
    log = topic.log
    if not ttl_ms or not log.count or now - log.earliest_ts <= ttl_ms:
        return None
    return Expired(topic.id, log.expired_through(now - ttl_ms))


def _reconfiguration(topic: Topic, config: TopicConfig, now: int) -> list[AnyEntry]:
    """The new config, and what follows from it at once (TP7, TP17, DU5)."""
    entries: list[AnyEntry] = [TopicConfigured(topic.id, config)]
    log = topic.log
    if not topic.is_logged and config.durability != "ephemeral":
        entries.append(HeadKept(topic.id, log.head, log.highest_live(log.head)))
    if config.durability in ("disk", "memory") and topic.reserved < log.head + RESERVE:
        entries.append(Reserved(topic.id, log.head + RESERVE))
    return entries + retention(topic, config, now)


def retention(topic: Topic, config: TopicConfig, now: int) -> list[AnyEntry]:
    """What `config` takes away of the records there are: age first, then caps."""
    entries: list[AnyEntry] = []
    log = topic.log
    expired = _expiry(topic, config.ttl_ms, now)
    if expired is not None:
        entries.append(expired)
    if config.discard == "old":
        evicted = log.overflow(config.cap_records, config.cap_bytes)
        if evicted > (0 if expired is None else expired.last):
            entries.append(Evicted(topic.id, evicted))
    return entries


def _admit(name: str, config: TopicConfig, topic: Topic, batch: Batch) -> int:
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


def _check_against_cap(cap_bytes: int, sizes: Sequence[int]) -> None:
    largest = max(sizes)
    if largest > cap_bytes:
        raise RecordTooLarge(
            f"records[{sizes.index(largest)}] is {largest} bytes, more than the topic's cap_bytes of {cap_bytes}"
        )


def _check_total(state: State, added: int, topic: Topic | None, entries: list[AnyEntry], caps: Caps) -> None:
    """Refuse a batch that brings the instance's live bytes above their bound, what it evicts counted off."""
    total = state.bytes + added
    if total <= caps.max_total_bytes:
        return
    evicted = next((entry.last for entry in entries if isinstance(entry, Evicted)), 0)
    if topic is not None and evicted:
        total -= topic.log.bytes_through(evicted)
    appended = next(entry for entry in entries if isinstance(entry, Appended))
    total -= sum(appended.batch.sizes[: max(0, evicted - appended.first + 1)])
    if total > caps.max_total_bytes:
        raise Throttled(
            f"live records would be {total} bytes, at most {caps.max_total_bytes}",
            limit="max_total_bytes",
            max=caps.max_total_bytes,
        )


def _check_name(name: str) -> None:
    if not is_topic_name(name):
        raise InvalidRequest(
            f'"{name}" is not a valid topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit'
        )
