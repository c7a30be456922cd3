"""The state machine: all state, and `apply`, the only function that changes it.

`decide` (see decide.py) reads this state and gives entries; `apply` carries
one entry out. Recovery is `apply` over the log, so there is no second way of
doing anything. Pure: no clock, no I/O.

The state is that of the end of the log. What of it may be shown to anyone is
the engine's business (its gate).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from topics.core.entries import (
    AnyEntry,
    Appended,
    Deleted,
    Evicted,
    Expired,
    GapOpened,
    HeadKept,
    Leased,
    Reincarnated,
    Released,
    Reserved,
    RouterRemoved,
    RouterSet,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.log import Log
from topics.model import TopicConfig

RESERVE = 65_536  # seqs that a disk or memory topic may hand out ahead of a sync
KEYS_MAX = 1_000_000  # idempotency keys remembered per topic


class Written(NamedTuple):
    """Where a keyed write went, and when."""

    first: int
    last: int
    ts: int


class Keys:
    """A topic's idempotency keys, oldest first."""

    __slots__ = ("_written", "fresh")

    def __init__(self) -> None:
        self._written: dict[str, Written] = {}
        self.fresh: list[str] = []  # keys that no snapshot has yet

    def __len__(self) -> int:
        return len(self._written)

    def find(self, key: str, window_ms: int, now: int) -> Written | None:
        """The first write under `key`, if it is still remembered."""
        written = self._written.get(key)
        return written if written is not None and window_ms and now - written.ts <= window_ms else None

    def add(self, key: str, written: Written, window_ms: int) -> None:
        if not window_ms:
            return
        self._written.pop(key, None)
        self._written[key] = written
        self.fresh.append(key)
        while len(self._written) > KEYS_MAX or written.ts - next(iter(self._written.values())).ts > window_ms:
            del self._written[next(iter(self._written))]

    def restore(self, key: str, written: Written) -> None:
        self._written[key] = written

    def redump(self) -> None:
        """Take all keys as not dumped yet."""
        self.fresh = list(self._written)

    def take_fresh(self) -> list[tuple[str, Written]]:
        """The keys that no snapshot has yet; they count as dumped from now on."""
        fresh, self.fresh = self.fresh, []
        return [(key, self._written[key]) for key in fresh if key in self._written]


class Queue:
    """The state of a queue's jobs beyond their records: leases, delays, delivery counts."""

    __slots__ = ("dead_lettered", "delayed", "deliveries", "leases")

    def __init__(self) -> None:
        self.leases: dict[int, tuple[int, str, int]] = {}  # seq → lease number, node, deadline
        self.delayed: dict[int, int] = {}  # seq → claimable from
        self.deliveries: dict[int, int] = {}  # seq → times handed out
        self.dead_lettered = 0


class Topic:
    """One topic instance."""

    __slots__ = (
        "config",
        "epoch",
        "id",
        "key_blocks",
        "keys",
        "last_read_ms",
        "log",
        "name",
        "position",
        "queue",
        "reserved",
        "reserved_at",
        "reserved_durable",
        "sealed_dirty",
        "synced_at",
        "written_at",
    )

    def __init__(self, id: int, name: str, epoch: int, config: TopicConfig) -> None:
        self.id = id
        self.name = name
        self.epoch = epoch
        self.config = config
        self.log = Log()
        self.keys = Keys()
        self.key_blocks: list[tuple[int, int]] = []  # snapshot items that hold keys: number, newest ts
        self.queue = Queue()
        self.reserved = RESERVE  # seqs up to here may be handed out before they are synced
        self.last_read_ms: int | None = None
        # Of the engine's gate: log positions that must be written, or synced, before this state may be seen.
        self.written_at = 0
        self.synced_at = 0
        self.reserved_at = 0  # position of the entry that set `reserved`
        self.reserved_durable = RESERVE  # the reservation known to be synced
        # Of recovery: entries below this position are in the snapshot already.
        self.position = 0
        self.sealed_dirty = False  # delete flags of sealed rows are behind the log's marks

    @property
    def is_logged(self) -> bool:
        return self.config.durability != "ephemeral"

    @property
    def reserves(self) -> bool:
        """Whether seqs are handed out ahead of a sync."""
        return self.config.durability in ("disk", "memory")

    @property
    def last_write_ts(self) -> int | None:
        return self.log.last_write_ts or None


class Router:
    """A forwarding rule and how far it has come."""

    __slots__ = ("cursor", "definition", "dest", "name", "source", "total")

    def __init__(self, name: str, source: int, dest: int, definition: bytes, cursor: int, total: int) -> None:
        self.name = name
        self.source = source
        self.dest = dest
        self.definition = definition
        self.cursor = cursor
        self.total = total


class State:
    """Everything an instance of topics knows."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.routers: dict[str, Router] = {}
        self.next_id = 1  # of topic instances; epochs come from here, too
        self.records = 0  # live records of all topics
        self.bytes = 0  # and their sizes
        self.names_at = 0  # of the gate: the position at which a topic last came or went
        self.dirty: dict[int, Topic] = {}  # topics changed, or gone, since they were last dumped
        self.dirty_routers: dict[str, None] = {}
        self.expiring: dict[int, Topic] = {}  # topics whose records have a lifetime
        self.shrunk: dict[int, Topic] = {}  # topics that may have dropped parts whose memory can be given back

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def index_expiry(self, topic: Topic) -> None:
        """Note whether the records of a topic that came or changed have a lifetime."""
        if topic.config.ttl_ms:
            self.expiring[topic.id] = topic
        else:
            self.expiring.pop(topic.id, None)


def apply(state: State, entry: AnyEntry) -> None:
    """Carry out one entry."""
    _APPLY[type(entry)](state, entry)


def replay(state: State, entry: AnyEntry, position: int) -> None:
    """Carry out one entry of the log, unless the snapshot has it already or its topic is gone."""
    kind = type(entry)
    if kind is TopicCreated:
        if entry.topic not in state.by_id:  # type: ignore[union-attr]
            apply(state, entry)
    elif kind is RouterSet or kind is RouterRemoved:
        apply(state, entry)
    else:
        topic = state.by_id.get(entry.topic)  # type: ignore[union-attr]
        if topic is not None and position >= topic.position:
            apply(state, entry)
            if kind is TopicConfigured and not topic.is_logged:
                _reincarnated(state, Reincarnated(topic.id, topic.epoch))


def _appended(state: State, entry: Appended) -> None:
    topic = state.by_id[entry.topic]
    log = topic.log
    if entry.first > log.head + 1:  # what lay between is lost
        log.keep_head(entry.first - 1, entry.first - 1)
    before = log.bytes
    log.append(entry.batch, entry.ts)
    state.records += len(entry.batch.sizes)
    state.bytes += log.bytes - before
    state.dirty[entry.topic] = topic
    if entry.key is not None:
        written = Written(entry.first, entry.last, entry.ts)
        topic.keys.add(entry.key, written, topic.config.idempotency_window_ms)


def _topic_created(state: State, entry: TopicCreated) -> None:
    topic = Topic(entry.topic, entry.name, entry.epoch, entry.config)
    state.topics[entry.name] = state.by_id[entry.topic] = topic
    state.index_expiry(topic)
    state.next_id = max(state.next_id, entry.topic + 1, entry.epoch + 1)
    state.dirty[entry.topic] = topic


def _topic_configured(state: State, entry: TopicConfigured) -> None:
    topic = state.by_id[entry.topic]
    if not topic.is_logged and entry.config.durability != "ephemeral":
        topic.keys.redump()
    topic.config = entry.config
    state.index_expiry(topic)
    state.dirty[entry.topic] = topic


def _topic_deleted(state: State, entry: TopicDeleted) -> None:
    topic = state.by_id.pop(entry.topic)
    del state.topics[topic.name]
    state.expiring.pop(topic.id, None)
    state.records -= topic.log.count
    state.bytes -= topic.log.bytes
    topic.log.drop_all()
    state.shrunk[topic.id] = topic
    state.dirty[entry.topic] = topic
    for name, router in list(state.routers.items()):
        if entry.topic in (router.source, router.dest):
            del state.routers[name]
            state.dirty_routers[name] = None


def _shrinking(change: Callable[[Log, Any], None]) -> Callable[[State, Any], None]:
    """An entry that only removes records: keeps the totals right around `change`."""

    def carry_out(state: State, entry: Any) -> None:
        topic = state.by_id[entry.topic]
        log = topic.log
        count, size = log.count, log.bytes
        change(log, entry)
        state.records += log.count - count
        state.bytes += log.bytes - size
        state.dirty[entry.topic] = topic
        topic.sealed_dirty = True
        if log.dropped:
            state.shrunk[entry.topic] = topic

    return carry_out


def _evict(log: Log, entry: Evicted) -> None:
    log.evict(entry.last)


def _expire(log: Log, entry: Expired) -> None:
    log.expire(entry.last)


def _delete(log: Log, entry: Deleted) -> None:
    if entry.before:
        log.delete_before(entry.before)
    if entry.blocks:
        log.delete_blocks((number, int.from_bytes(mask, "little")) for number, mask in entry.blocks)


def _open_gap(log: Log, entry: GapOpened) -> None:
    log.open_gap(entry.last, entry.reason)


def _keep_head(log: Log, entry: HeadKept) -> None:
    log.keep_head(entry.head, entry.lost)


def _reserved(state: State, entry: Reserved) -> None:
    topic = state.by_id[entry.topic]
    topic.reserved = entry.last
    state.dirty[entry.topic] = topic


def _reincarnated(state: State, entry: Reincarnated) -> None:
    topic = state.by_id[entry.topic]
    state.records -= topic.log.count
    state.bytes -= topic.log.bytes
    topic.log.evict(topic.log.head)
    topic.log.last_write_ts = 0
    topic.epoch = entry.epoch
    topic.keys = Keys()
    state.next_id = max(state.next_id, entry.epoch + 1)
    state.dirty[entry.topic] = topic


def _router_set(state: State, entry: RouterSet) -> None:
    state.routers[entry.name] = Router(
        entry.name, entry.source, entry.dest, entry.definition, entry.cursor, entry.total
    )
    state.dirty_routers[entry.name] = None


def _router_removed(state: State, entry: RouterRemoved) -> None:
    state.routers.pop(entry.name, None)
    state.dirty_routers[entry.name] = None


def _leased(state: State, entry: Leased) -> None:
    topic = state.by_id[entry.topic]
    queue = topic.queue
    for seq, number, deadline, deliveries in entry.leases:
        queue.leases[seq] = (number, entry.node, deadline)
        queue.deliveries[seq] = deliveries
        queue.delayed.pop(seq, None)
    state.dirty[entry.topic] = topic


def _released(state: State, entry: Released) -> None:
    topic = state.by_id[entry.topic]
    queue = topic.queue
    for seq, number, claimable_from in entry.leases:
        lease = queue.leases.get(seq)
        if lease is not None and lease[0] == number:
            del queue.leases[seq]
            queue.delayed[seq] = claimable_from
    state.dirty[entry.topic] = topic


_APPLY: dict[type, Callable[[State, Any], None]] = {
    Appended: _appended,
    TopicCreated: _topic_created,
    TopicConfigured: _topic_configured,
    TopicDeleted: _topic_deleted,
    Evicted: _shrinking(_evict),
    Expired: _shrinking(_expire),
    Deleted: _shrinking(_delete),
    GapOpened: _shrinking(_open_gap),
    HeadKept: _shrinking(_keep_head),
    Reserved: _reserved,
    Reincarnated: _reincarnated,
    RouterSet: _router_set,
    RouterRemoved: _router_removed,
    Leased: _leased,
    Released: _released,
}
