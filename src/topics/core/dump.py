"""Snapshots of the state: what changed, as items; and the way back.

An item is a key and a value, both bytes; a snapshot is the latest value of every key. A topic's item says at which log
position it was taken: it includes all entries below that position, so topics may be dumped one after the other while
the state moves on. Records are not dumped: they lie in segments, and recovery adds them to a loaded log with `attach`.

    m                     the instance
    t + id                a topic
    k + id + number       idempotency keys of a topic, a block for each time it was dumped
    r + name              a router

The values of `m`, and the keys `f` and `s`, belong to the owner of the segments.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from topics.core.queue.jobs import Lease, Numbered, Queue, scheduled
from topics.core.routing.copies import HopRun, StampRun
from topics.core.routing.table import Router
from topics.core.state import KeyedWrite, NamedCursor, State, Topic
from topics.core.topic.losses import Loss
from topics.model import Gap, RouterDefinition, TopicConfig

Items = dict[bytes, bytes | None]  # None = the key is gone

META = b"m"
_TOPIC, _KEYS, _ROUTER = b"tkr"  # the first byte of a key says what its item is of
NO_JOBS = Queue()


class TopicItem(Struct, array_like=True):
    id: int
    name: str
    epoch: int
    config: TopicConfig
    position: int
    head: int
    evicted_last: int
    expired_last: int
    gaps: list[Gap]
    last_ts: int
    last_write_ts: int
    reserved: int
    live_last: int  # highest live seq; what an ephemeral topic loses by a restart
    dead_lettered: int
    deliveries: dict[int, int]
    leases: Numbered  # none before `with_leases`
    delayed: dict[int, int]  # seq → claimable from; all of them, if leases are kept
    scheduled: dict[int, int] = {}  # else those that were never handed out
    hops: list[HopRun] = []
    stamps: list[tuple[str, int, int, list[StampRun]]] = []
    deleted: int = -1  # records deleted on purpose, ever; -1 = not counted, by a program before version 2
    lost: int = 0  # seqs lost, ever; of an ephemeral topic also those that are live
    expired: int = -1  # of these by age; -1 = a program that listed no losses wrote this
    trimmed: int = 0  # of these because a source had lost them
    losses: list[Loss] = []
    cursors: dict[str, NamedCursor] = {}
    paused: bool = False  # a queue that hands out no jobs


class RouterItem(Struct, array_like=True):
    id: int
    source: int
    dest: int
    definition: RouterDefinition
    cursor: int
    total: int
    position: int


class KeysItem(Struct, array_like=True):
    newest_ts: int
    keys: list[tuple[str, int, int, int]]
    digests: list[int] = []  # one for each key, 0 = not known; none in items of older versions


_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(TopicItem).decode
_decode_config = msgspec.msgpack.Decoder(TopicConfig).decode
_decode_router = msgspec.msgpack.Decoder(RouterItem).decode
_decode_keys = msgspec.msgpack.Decoder(KeysItem).decode


def topic_key(id: int) -> bytes:
    return b"t" + id.to_bytes(8, "big")


def _keys_key(id: int, number: int) -> bytes:
    return b"k" + id.to_bytes(8, "big") + number.to_bytes(8, "big")


def dump_topic(topic: Topic, position: int, now: int) -> Items:
    """The items of a topic as it is at `position`, the end of the log. Leases, which may be many, are added later."""
    log, queue = topic.log, topic.queue if topic.has_queue else NO_JOBS
    items: Items = {}
    keeps_leases = topic.keeps_leases
    item = TopicItem(
        topic.id,
        topic.name,
        topic.epoch,
        topic.config,
        position,
        log.head,
        log.evicted_last,
        log.expired_last,
        log.gaps,
        log.last_ts,
        log.last_write_ts if topic.is_logged else 0,
        topic.reservation.last,
        0 if topic.is_logged else log.highest_live(log.head),
        queue.dead_lettered,
        queue.deliveries if topic.is_logged else {},
        {},
        queue.delayed if keeps_leases else {},
        scheduled(queue) if topic.is_logged and not keeps_leases else {},
        topic.hops if topic.is_logged else [],
        topic.stamps.dump(log.earliest) if topic.is_logged else [],
        log.deleted,
        log.lost if topic.is_logged else log.head - log.deleted,
        log.expired,
        log.trimmed,
        log.losses if topic.is_logged else log.losses_of_all(now),
        topic.cursors if topic.is_logged else {},
        topic.paused,
    )
    items[topic_key(topic.id)] = _encode(item)
    items.update(_dump_keys(topic, position, now))
    return items


def with_leases(value: bytes | None, leases: Mapping[int, Lease]) -> bytes:
    """A topic's item with its leases. Takes a while for very many: for a thread."""
    assert value is not None, "a topic that is gone has no leases"
    item = _decode_topic(value)
    if item.config.leases_durable:
        item.leases = {seq: (offset + seq, node, deadline) for seq, (offset, node, deadline, _) in leases.items()}
    item.deliveries |= {seq: lease[3] for seq, lease in leases.items()}
    return _encode(item)


def gone_topic(topic: Topic) -> Items:
    """The items that end a deleted topic."""
    items: Items = {topic_key(topic.id): None}
    items.update({_keys_key(topic.id, number): None for number, _ in topic.notes.key_blocks})
    return items


def dump_routers(state: State, names: Iterable[str], position: int) -> Items:
    """The items of routers, some of them gone, as they are at `position`, the end of the log."""
    items: Items = {}
    for name in names:
        router = state.routers.by_name.get(name)
        items[b"r" + name.encode()] = None if router is None else _router_value(router, position)
    return items


def _router_value(router: Router, position: int) -> bytes:
    item = RouterItem(router.id, router.source, router.dest, router.definition, router.cursor, router.total, position)
    return _encode(item)


def _dump_keys(topic: Topic, position: int, now: int) -> Items:
    """Dump new keys as a new block; end blocks whose keys are all forgotten, and all blocks of an ephemeral topic."""
    items: Items = {}
    fresh = topic.keys.take_fresh()
    if fresh and topic.is_logged:
        newest_ts = fresh[-1][1].ts
        keys = [(key, written.first, written.last, written.ts) for key, written in fresh]
        item = KeysItem(newest_ts, keys, [written.digest for _, written in fresh])
        items[_keys_key(topic.id, position)] = _encode(item)
        topic.notes.key_blocks.append((position, newest_ts))
    window_ms = topic.config.idempotency_window_ms
    for number, newest_ts in list(topic.notes.key_blocks):
        if now - newest_ts > window_ms or not topic.is_logged:
            items[_keys_key(topic.id, number)] = None
            topic.notes.key_blocks.remove((number, newest_ts))
    return items


def _topic_decoder() -> Callable[[bytes], TopicItem]:
    """Decodes topics of which many have the same config: that is decoded once, and theirs is one object."""
    make_field: Any = msgspec.field
    fields = [
        (
            field.name,
            msgspec.Raw if field.name == "config" else field.type,
            make_field(default=field.default, default_factory=field.default_factory),
        )
        for field in msgspec.structs.fields(TopicItem)
    ]
    decode: Any = msgspec.msgpack.Decoder(msgspec.defstruct("TopicItem", fields, array_like=True)).decode
    known: dict[bytes, TopicConfig] = {}

    def decoded(value: bytes) -> TopicItem:
        item: TopicItem = decode(value)
        text = bytes(item.config)  # type: ignore[call-overload]
        config = known.get(text)
        if config is None:
            config = known[text] = _decode_config(text)
        item.config = config
        return item

    return decoded


def load(items: Mapping[bytes, bytes]) -> State:
    """The state that `items` describe, its logs without records."""
    state = State()
    keys, routers, decode_topic = [], [], _topic_decoder()
    for key, value in items.items():
        kind = key[0]
        if kind == _TOPIC:
            _load_topic(state, decode_topic(value))
        elif kind == _KEYS:
            keys.append(key)
        elif kind == _ROUTER:
            routers.append((key[1:].decode(), _decode_router(value)))
    for key in sorted(keys):
        _load_keys(state, key, _decode_keys(items[key]))
    for name, item in sorted(routers, key=lambda named: named[1].id):
        _load_router(state, name, item)
    return state


def _load_topic(state: State, item: TopicItem) -> None:
    topic = Topic(item.id, item.name, item.epoch, item.config)
    state.topics[item.name] = state.by_id[item.id] = topic
    state.index_expiry(topic)
    topic.notes.snapshot_position = item.position
    topic.reservation.restore(item.reserved)
    log = topic.log
    log.head, log.evicted_last, log.expired_last, log.last_ts = (
        item.head,
        item.evicted_last,
        item.expired_last,
        item.last_ts,
    )
    log.last_write_ts = item.last_write_ts
    log.gaps = item.gaps
    log.earliest = item.head + 1
    log.deleted, log.lost, log.expired, log.trimmed = item.deleted, item.lost, item.expired, item.trimmed
    log.losses = item.losses
    if not topic.is_logged:
        log.deleted = max(0, item.deleted)
        log.lose_all(item.live_last)
    topic.cursors = item.cursors
    topic.hops = item.hops
    if item.stamps:
        topic.stamps.load(item.stamps)
    topic.paused = item.paused
    if topic.is_queue or item.dead_lettered or item.deliveries or item.scheduled:
        topic.queue.dead_lettered = item.dead_lettered
        topic.queue.restore(item.deliveries, item.leases, item.delayed, item.scheduled)
    state.next_id = max(state.next_id, item.id + 1, item.epoch + 1)


def _load_router(state: State, name: str, item: RouterItem) -> None:
    router = Router(item.id, name, item.source, item.dest, item.definition, item.cursor, item.total)
    router.position = item.position
    state.routers.add(router)
    state.next_id = max(state.next_id, item.id + 1)


def _load_keys(state: State, key: bytes, item: KeysItem) -> None:
    topic = state.by_id.get(int.from_bytes(key[1:9], "big"))
    if topic is None:
        return
    topic.notes.key_blocks.append((int.from_bytes(key[9:17], "big"), item.newest_ts))
    digests = item.digests or [0] * len(item.keys)
    for (name, first, last, ts), digest in zip(item.keys, digests, strict=True):
        topic.keys.restore(name, KeyedWrite(first, last, ts, digest))


def router_position(key: bytes, value: bytes) -> int:
    """The log position at which a router's item was taken; 0: it is another item."""
    return _decode_router(value).position if key.startswith(b"r") else 0
