"""The oracle: a naive model of a whole instance of topics, to compare the real core with.

It owns nothing but Python lists and must know nothing of the core: it imports the
vocabulary and the errors. A topic is a list of slots, one per seq ever assigned. A slot
is live, or what became of it: deleted, evicted (cap), expired (ttl), or part of a gap. A
slot leaves `live` once and never comes back. `head`, `earliest`, `count`, `bytes` and the
gaps are counted from the slots at every look; `cap_hi` and `ttl_hi` are kept as the
contract words them: the highest seq that was live when it was taken.

How the oracle reads what the contract leaves open:

- **Order of openings.** recreated (TM11), else the floor (TM3), else a gap (TM16); at most one.
- **Floor and gaps.** A floor tombstone reaches to `earliest - 1` and so covers every gap
  below `earliest`, whatever its reason (TM5). A cursor at or above the floor walks: over a
  deleted stretch silently, up to the next gap, where it stops, even if `earliest` lies
  beyond that gap. So a gap behind a wholly deleted prefix is still announced.
- **Tombstone of a gap.** Its `earliest_seq` is `b + 1` (TM16), the answer's is the topic's
  (TM2); they differ if something below the gap is live. `b + 1` need not be live.
- **Neighbouring gaps** of two reasons stay two, and are announced by two reads. A deleted
  slot between two gaps keeps them apart.
- **A gap is never cut by the floor**: the floor stands behind a record that was live, or behind head.
- **recreated** leaves the cursor at `earliest - 1`: gaps below it count as told by [1, head].
- **Expiry happens when an operation looks** at the topic, also if that operation is then
  refused or deduped, and is final from then on (TM14). Time that passed unseen between two
  looks does not count, so a clock that goes forth and back unseen expires nothing. Call
  `expire` after a clock move to have it seen. A write under `max_total_bytes` looks at all topics.
- **A config change** looks first under the old TTL, then under the new one, then evicts.
- **max_total_bytes** bounds what is live after the write: what the write itself evicts is not counted.
- **Dedupe.** "First commit" is the `$ts` of the batch. The window in force at the repeat
  counts. With window 0 a key is neither looked up nor remembered; older keys are kept.
- **Epochs** count 1, 2, 3 … per name; a crash of an ephemeral topic takes one. Only that they
  rise is contract (TP16): map them to the core's, do not compare them.
- **scanned** = seqs walked over; those that a tombstone jumps are not examined.
- **Restart** goes by the durability class in force at the stop, also for records written under
  another one. An ephemeral topic loses its keys and `last_write_ts`; its `$ts` still never falls
  after a clean stop, and starts anew after a crash, with the epoch. Reasons may be guesses
  afterwards (TM15): compare ranges only.

- **Routers** forward when they are told. In which order, and how far at a time, is open (RT6, RT9), and
  decides what a full topic between two loses. A lost record becomes a hole at once; where the floor is
  found above a cursor all the same (a restart took an ephemeral source's records), every seq up to it
  counts as lost (RT12).

Not modelled: limits of the request itself (WR3), pressure, reads that stop after
max(100000, 10 * limit) seqs examined (DF5), the stamps of exactly_once, leases,
`last_read_ts`, priority, and the dropping of keys beyond a million (ID8).
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from topics.errors import (
    InvalidRequest,
    RecordTooLarge,
    Refusal,
    RouterCycle,
    Throttled,
    TopicFull,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model import Gap, Reason, RouterDefinition, TagMatch, Tombstone, TopicConfig, is_topic_name

Status = Literal["live", "deleted", "evicted", "expired", "gap"]
GapReason = Literal["cap", "source_trim"]
HOPS_MAX = 8


@dataclass(frozen=True)
class Write:
    """A record as written. `data` and `meta` are JSON texts; `node` overrides the batch's (WR2)."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None


@dataclass(frozen=True)
class SlotRecord:
    """A record as kept and read: data and meta byte for byte (CV6)."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: bytes
    meta: bytes | None


@dataclass(frozen=True)
class Written:
    """The answer to a write (WR8). A deduped one repeats `head` and `count` of the first (ID7)."""

    first: int
    last: int
    head: int
    count: int
    created: bool
    deduped: bool
    mismatch: bool = False  # deduped, and the records of the first write were others (ID9)
    records: Sequence["Write"] = field(default=(), compare=False)  # as stored, of a write with a key

    @property
    def seqs(self) -> list[int]:
        return list(range(self.first, self.last + 1))


@dataclass(frozen=True)
class Deleted:
    """The answer to a delete: what it took, and the state after it (DL6)."""

    deleted: int
    earliest: int
    head: int
    count: int
    bytes: int


@dataclass(frozen=True)
class Read:
    """The answer to a read (DF2)."""

    epoch: int
    records: list[SlotRecord]
    next: int
    head: int
    earliest: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    scanned: int

    @property
    def seqs(self) -> list[int]:
        return [record.seq for record in self.records]


@dataclass(frozen=True)
class TopicView:
    """A topic's state (TP8), with the floor and the gaps that the wire does not show."""

    epoch: int
    head: int
    earliest: int
    floor: int
    count: int
    bytes: int
    last_write_ts: int | None  # None = never written
    config: TopicConfig
    gaps: list[Gap]


@dataclass
class Slot:
    """One assigned seq: its record (None in a gap) and what became of it."""

    seq: int
    status: Status
    record: SlotRecord | None = None
    reason: GapReason | None = None  # set for a gap only
    hops: int = 0  # routers passed


@dataclass
class Topic:
    """One instance of a topic."""

    config: TopicConfig
    epoch: int
    slots: list[Slot] = field(default_factory=list)
    cap_hi: int = 0  # highest seq live when cap eviction took it; 0 = none
    ttl_hi: int = 0  # highest seq live when it expired; 0 = none
    last_ts: int = 0
    last_write_ts: int | None = None
    keys: dict[str, tuple[int, Written]] = field(default_factory=dict)  # key → $ts and answer of its first write
    cursors: dict[str, int] = field(default_factory=dict)  # named ones (NC)

    @property
    def head(self) -> int:
        return len(self.slots)

    @property
    def floor(self) -> int:
        """TM1"""
        return max(self.cap_hi, self.ttl_hi) + 1

    @property
    def earliest(self) -> int:
        """TM2"""
        return next((record.seq for record in self.live()), self.head + 1)

    @property
    def gaps(self) -> list[Gap]:
        """Runs of gap slots of one reason; those wholly below the floor are dropped (TM17)."""
        runs: list[Gap] = []
        for slot in self.slots:
            if slot.reason is None:
                continue
            if runs and runs[-1].last == slot.seq - 1 and runs[-1].reason == slot.reason:
                runs[-1] = Gap(runs[-1].first, slot.seq, slot.reason)
            else:
                runs.append(Gap(slot.seq, slot.seq, slot.reason))
        return [gap for gap in runs if gap.last >= self.floor]

    def live(self) -> list[SlotRecord]:
        return [slot.record for slot in self.slots if slot.status == "live" and slot.record]

    def sizes(self) -> list[int]:
        return [_size(record) for record in self.live()]

    def take(self, record: SlotRecord, status: Status) -> None:
        """A live record goes. Only loss that nobody asked for moves a watermark (TM8, DL5)."""
        self.slots[record.seq - 1].status = status
        if status == "evicted":
            self.cap_hi = max(self.cap_hi, record.seq)
        if status == "expired":
            self.ttl_hi = max(self.ttl_hi, record.seq)

    def expire(self, now: int) -> None:
        """TM7"""
        for record in self.live():
            if 0 < self.config.ttl_ms < now - record.ts:
                self.take(record, "expired")

    def shrink(self, now: int) -> None:
        self.expire(now)
        self.evict()

    def evict(self) -> None:
        """TM10; under reject a cap never evicts (TP17)."""
        while self.config.discard == "old" and _is_over(self.config, self.sizes()):
            self.take(self.live()[0], "evicted")

    def add(self, write: Write, node: str | None, ts: int, hops: int = 0) -> None:
        seq = self.head + 1
        node = node if write.node is None else write.node
        self.slots.append(Slot(seq, "live", SlotRecord(seq, ts, node, write.tag, write.data, write.meta), None, hops))

    def open_gap(self, size: int, reason: GapReason, hops: int = 0) -> None:
        for _ in range(size):
            self.slots.append(Slot(self.head + 1, "gap", None, reason, hops))

    def forget(self) -> None:
        """What an ephemeral topic has only in memory is gone (DU1, ID8, NC3)."""
        self.last_write_ts = None
        self.keys = {}
        self.cursors = {}


@dataclass
class Route:
    """A router: how far it has come, and how many seqs it has given to its dest."""

    source: str
    dest: str
    definition: RouterDefinition
    cursor: int
    total: int = 0


class Oracle:
    """What an instance of topics must answer. 0 = no limit."""

    def __init__(self, *, max_topics: int = 0, max_total_bytes: int = 0) -> None:
        self._max_topics = max_topics
        self._max_total_bytes = max_total_bytes
        self._topics: dict[str, Topic] = {}
        self._epochs: dict[str, int] = {}  # the last one used, by name; outlives the topic
        self._routes: dict[str, Route] = {}

    # Topics

    def put_topic(self, name: str, config: TopicConfig, now: int) -> bool:
        """Create, or replace the config, which acts at once (TP5, TP7, TP17). True = created."""
        if name not in self._topics:
            self._install(name, self._new_topic(name, config))
            return True
        topic = self._look(name, now)
        if config.type != topic.config.type:
            raise TopicIncompatible(
                "the type of a topic cannot change",
                topic=name,
                existing_type=topic.config.type,
                requested_type=config.type,
            )
        topic.config = config
        self._losing(name, lambda: topic.shrink(now))
        return False

    def delete_topic(self, name: str, now: int, if_empty: bool = False) -> bool:
        """TP11. False = there was none."""
        if name not in self._topics:
            return False
        count = len(self._look(name, now).live())
        if if_empty and count:
            raise TopicNotEmpty("the topic has live records", topic=name, count=count)
        del self._topics[name]
        self._routes = {key: one for key, one in self._routes.items() if name not in (one.source, one.dest)}
        return True

    def names(self) -> list[str]:
        return sorted(self._topics)

    def state(self, name: str, now: int) -> TopicView:
        topic = self._look(name, now)
        return TopicView(
            epoch=topic.epoch,
            head=topic.head,
            earliest=topic.earliest,
            floor=topic.floor,
            count=len(topic.live()),
            bytes=sum(topic.sizes()),
            last_write_ts=topic.last_write_ts,
            config=topic.config,
            gaps=topic.gaps,
        )

    def expire(self, name: str, now: int) -> None:
        """Let the topic see the clock (TM7). Every operation on a topic does this first."""
        self._look(name, now)

    # Writes

    def append(
        self,
        name: str,
        records: Sequence[Write],
        now: int,
        *,
        key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        node: str | None = None,
    ) -> Written:
        """Append a batch as a whole, refusing in the order of WR14: 404 or 400 name, 429 max_topics,
        dedupe answer, 400 larger than the cap, 422, 429 max_total_bytes. A refusal creates nothing."""
        created = name not in self._topics
        topic = self._topic_to_create(name, create, config) if created else self._look(name, now)
        first_answer = self._remembered(topic, key, now)
        if first_answer:
            mismatch = _stored(records, node) != first_answer.records
            return replace(first_answer, created=False, deduped=True, mismatch=mismatch)
        self._admit(name, topic, [_size(write) for write in records], now)
        if created:
            self._install(name, topic)
        return self._commit(name, topic, records, now, key, created, node)

    def delete(self, name: str, now: int, *, before_seq: int | None = None, match: TagMatch | None = None) -> Deleted:
        """Take the live records that fit both selectors (DL1, DL2, DL3)."""
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq or match")
        topic = self._look(name, now)
        taken = [
            record
            for record in topic.live()
            if (before_seq is None or record.seq < before_seq) and (match is None or match.matches(record.tag))
        ]
        for record in taken:
            topic.take(record, "deleted")
        return Deleted(len(taken), topic.earliest, topic.head, len(topic.live()), sum(topic.sizes()))

    def open_gap(self, name: str, size: int, reason: GapReason) -> None:
        """The next `size` seqs are lost before they hold anything (TM12, RT12, DU10)."""
        self._find(name).open_gap(size, reason)

    def put_cursor(self, name: str, cursor: str, seq: int, now: int) -> bool:
        """NC1. True = created."""
        topic = self._look(name, now)
        if seq > topic.head:
            raise InvalidRequest("seq is above the head")
        is_new = cursor not in topic.cursors
        topic.cursors[cursor] = seq
        return is_new

    # Routers

    def put_router(
        self, name: str, source: str, dest: str, definition: RouterDefinition | None = None, create_dest: bool = True
    ) -> bool:
        """RT1-RT8, RT23. True = created."""
        definition = definition or RouterDefinition()
        old = self._routes.get(name)
        others = [route for key, route in self._routes.items() if key != name]
        if source == dest:
            raise InvalidRequest("source and dest are one topic")
        if dest not in self._topics and not create_dest:
            raise TopicNotFound(dest)
        if any(route.dest == dest and route.source != source for route in others):
            raise TopicIncompatible("another source feeds it", topic=dest, reason="router_dest_fan_in")
        path = _path(others, dest, source)
        if path and not definition.allow_cycle:
            raise RouterCycle("a cycle", cycle=[source, *path])
        for topic in (source, dest):
            if topic not in self._topics:
                self._install(topic, self._new_topic(topic, TopicConfig()))
        if old is not None and (old.source, old.dest) == (source, dest):
            self._routes[name] = replace(old, definition=definition)
        else:
            self._routes.pop(name, None)  # it is another one, and comes after the others
            self._routes[name] = Route(source, dest, definition, self._topics[source].head)
        return old is None

    def delete_router(self, name: str) -> bool:
        return self._routes.pop(name, None) is not None

    def routers(self) -> dict[str, Route]:
        return dict(self._routes)

    def forward_all(self, now: int) -> None:
        """All routers, until none can go on."""
        before: list[Route] | None = None
        while before != list(self._routes.values()):
            before = [replace(route) for route in self._routes.values()]
            for name in list(self._routes):
                self.forward(name, now)

    def forward(self, name: str, now: int, last: int | None = None) -> None:
        """All that one router can forward (RT10-RT17, RT19), or only what its source has up to `last`."""
        route = self._routes[name]
        source, dest = self._look(route.source, now), self._look(route.dest, now)
        while route.cursor < (source.head if last is None else last):
            slot = source.slots[route.cursor]
            if route.cursor + 1 < source.floor:
                lost = source.floor - 1 - route.cursor
                dest.open_gap(lost, "source_trim", 1)
                route.cursor, route.total = source.floor - 1, route.total + lost
                continue
            if slot.hops < HOPS_MAX and slot.status == "gap":
                dest.open_gap(1, "source_trim", slot.hops + 1)
                route.total += 1
            elif slot.hops < HOPS_MAX and slot.status == "live" and not self._copy(route, slot, now):
                return
            route.cursor += 1

    def _copy(self, route: Route, slot: Slot, now: int) -> bool:
        """Copy a record, if it matches. False: the dest does not take it now (RT15)."""
        record, definition, dest = slot.record, route.definition, self._topics[route.dest]
        assert record is not None
        if definition.match is not None and not definition.match.matches(record.tag):
            return True
        try:
            self._admit(route.dest, dest, [_size(record)], now)
        except Refusal:
            return False
        tag = record.tag if definition.preserve_tag else None
        node = record.node if definition.preserve_node else None
        dest.last_ts = dest.last_write_ts = max(now, dest.last_ts)

        def add() -> None:
            dest.add(Write(record.data, tag, node, record.meta), None, dest.last_ts, slot.hops + 1)
            dest.evict()

        self._losing(route.dest, add)
        route.total += 1
        return True

    def _losing(self, name: str, change: Callable[[], object]) -> None:
        """Make a change that may lose records; those that a router has not forwarded leave holes (RT12)."""
        topic = self._topics[name]
        live, head = {record.seq for record in topic.live()}, topic.head
        change()
        lost = [s.seq for s in topic.slots if s.status in ("evicted", "expired") and (s.seq in live or s.seq > head)]
        for route in self._routes.values():
            unforwarded = [seq for seq in lost if seq > route.cursor]
            if route.source == name and unforwarded:
                self._topics[route.dest].open_gap(len(unforwarded), "source_trim", 1)
                route.cursor, route.total = unforwarded[-1], route.total + len(unforwarded)

    # Reads

    def read(
        self,
        name: str,
        after: int,
        now: int,
        *,
        limit: int,
        bytes_max: int,
        nodes: Collection[str] = (),
        epoch: int | None = None,
        filter: TagMatch | None = None,
    ) -> Read:
        """DF2-DF6. A `filter` leaves out records whose tag does not match, as silently as own-node ones."""
        topic = self._look(name, now)
        tombstone, cursor = _open(topic, after, epoch)
        wanted = [
            record.seq
            for record in topic.live()
            if not (topic.config.dedupe_node and record.node is not None and record.node in nodes)
            and (filter is None or filter.matches(record.tag))
        ]
        records, last = _walk(topic, cursor, set(wanted), limit, bytes_max)
        return Read(
            epoch=topic.epoch,
            records=records,
            next=last,
            head=topic.head,
            earliest=topic.earliest,
            caught_up=last == topic.head,
            tombstone=tombstone,
            lag=topic.head - last,
            scanned=last - cursor,
        )

    # Crashes

    def clone(self) -> "Oracle":
        clone = copy.copy(self)
        clone._epochs = dict(self._epochs)
        clone._topics = {
            name: replace(
                topic, slots=[copy.copy(s) for s in topic.slots], keys=dict(topic.keys), cursors=dict(topic.cursors)
            )
            for name, topic in self._topics.items()
        }
        clone._routes = {name: replace(route) for name, route in self._routes.items()}
        return clone

    def restart(self, *, clean: bool, power_loss: bool, heads: Mapping[str, int] | None = None) -> None:
        """What a restart does to ephemeral topics (DU1, DU9); after a crash `heads` has their checkpointed heads.

        All other topics stay as they are. Where a power loss took the unsynced tail of a disk or memory
        topic, take the `clone` of the last commit that survived and `open_gap` up to the recovered head,
        reason cap (DU10): its slots, watermarks and keys are those of that moment (G2, G9, G12).
        """
        if clean and power_loss:
            raise ValueError("a clean stop loses no power")
        for name, topic in self._topics.items():
            if topic.config.durability == "ephemeral" and clean:
                _stop(topic)
            elif topic.config.durability == "ephemeral":
                _crash(topic, head=(heads or {}).get(name, 0), epoch=self._next_epoch(name))
        for route in self._routes.values():
            route.cursor = min(route.cursor, self._topics[route.source].head)  # RT22

    # Parts

    def _find(self, name: str) -> Topic:
        if name not in self._topics:
            raise TopicNotFound(name)
        return self._topics[name]

    def _look(self, name: str, now: int) -> Topic:
        topic = self._find(name)
        self._losing(name, lambda: topic.expire(now))
        return topic

    def _topic_to_create(self, name: str, create: bool | None, config: TopicConfig | None) -> Topic:
        """WR7: `create` decides, else the inline config."""
        config = config or TopicConfig()
        if not (config.auto_create if create is None else create):
            raise TopicNotFound(name)
        return self._new_topic(name, config)

    def _new_topic(self, name: str, config: TopicConfig) -> Topic:
        if not is_topic_name(name):
            raise InvalidRequest(f'"{name}" is not a topic name')
        if 0 < self._max_topics <= len(self._topics):
            raise Throttled("too many topics", limit="max_topics", max=self._max_topics)
        return Topic(config, epoch=self._epochs.get(name, 0) + 1)

    def _install(self, name: str, topic: Topic) -> None:
        self._topics[name] = topic
        self._epochs[name] = topic.epoch

    def _next_epoch(self, name: str) -> int:
        self._epochs[name] += 1
        return self._epochs[name]

    def _remembered(self, topic: Topic, key: str | None, now: int) -> Written | None:
        """ID1: remembered while `now - first <= window`; window 0 = off."""
        window_ms = topic.config.idempotency_window_ms
        if key is None or window_ms == 0 or key not in topic.keys:
            return None
        first_ts, answer = topic.keys[key]
        return answer if now - first_ts <= window_ms else None

    def _admit(self, name: str, topic: Topic, incoming: list[int], now: int) -> None:
        """WR11, WR12, WR13, LM4. `incoming` are the sizes of the batch."""
        config, sizes = topic.config, topic.sizes() + incoming
        if any(0 < config.cap_bytes < size for size in incoming):
            raise RecordTooLarge("a record is larger than the topic's cap_bytes")
        if config.discard == "reject" and _is_over(config, incoming):
            raise RecordTooLarge("the batch could not fit even an empty topic")
        if config.discard == "reject" and _is_over(config, sizes):
            raise TopicFull(
                "the topic is full",
                topic=name,
                cap_records=config.cap_records,
                cap_bytes=config.cap_bytes,
                head_seq=topic.head,
                earliest_seq=topic.earliest,
            )
        while _is_over(config, sizes):
            sizes.pop(0)
        if 0 < self._max_total_bytes < sum(sizes) + self._bytes_of_others(name, now):
            raise Throttled("too many bytes", limit="max_total_bytes", max=self._max_total_bytes)

    def _bytes_of_others(self, name: str, now: int) -> int:
        return sum(sum(self._look(other, now).sizes()) for other in self._topics if other != name)

    def _commit(
        self,
        name: str,
        topic: Topic,
        records: Sequence[Write],
        now: int,
        key: str | None,
        created: bool,
        node: str | None,
    ) -> Written:
        first = topic.head + 1
        topic.last_ts = topic.last_write_ts = max(now, topic.last_ts)  # never falls (WR6)

        def add() -> None:
            for write in records:
                topic.add(write, node, topic.last_ts)
            topic.evict()

        self._losing(name, add)
        written = Written(first, topic.head, topic.head, len(records), created, deduped=False)
        if key is not None and topic.config.idempotency_window_ms:
            topic.keys[key] = (topic.last_ts, replace(written, records=_stored(records, node)))
        return written


def _stored(records: Sequence[Write], node: str | None) -> list[Write]:
    return [replace(write, node=node if write.node is None else write.node) for write in records]


def _path(routes: Sequence[Route], start: str, goal: str) -> list[str]:
    """Topics from `start` to `goal` along routers; empty if there is no way."""
    paths = [[start]]
    for path in paths:
        if path[-1] == goal:
            return path
        seen = {name for one in paths for name in one}
        paths += [[*path, dest] for dest in {one.dest for one in routes if one.source == path[-1]} - seen]
    return []


def _size(record: Write | SlotRecord) -> int:
    """TP15"""
    return len(record.data) + len(record.meta or b"")


def _is_over(config: TopicConfig, sizes: Sequence[int]) -> bool:
    """Do live records of these sizes pass a cap? 0 = no cap."""
    return 0 < config.cap_records < len(sizes) or 0 < config.cap_bytes < sum(sizes)


def _open(topic: Topic, after: int, epoch: int | None) -> tuple[Tombstone | None, int]:
    """The tombstone a read opens with, if any, and where its cursor stands then (TM11, TM3, TM16)."""
    head, earliest = topic.head, topic.earliest
    if epoch not in (None, topic.epoch) or after > head:
        return Tombstone(1, head, "recreated", head, earliest, head), earliest - 1
    if after + 1 < topic.floor:
        reason = _floor_reason(topic, after + 1)
        return Tombstone(after + 1, earliest - 1, reason, earliest - 1 - after, earliest, head), earliest - 1
    for gap in topic.gaps:
        if gap.first - 1 <= after <= gap.last - 1:
            return Tombstone(after + 1, gap.last, gap.reason, gap.last - after, gap.last + 1, head), gap.last
    return None, after


def _floor_reason(topic: Topic, gap_from: int) -> Reason:
    """TM5"""
    if topic.cap_hi >= gap_from and topic.ttl_hi >= gap_from:
        return "mixed"
    return "cap" if topic.cap_hi >= gap_from else "ttl"


def _walk(
    topic: Topic, cursor: int, wanted: Collection[int], limit: int, bytes_max: int
) -> tuple[list[SlotRecord], int]:
    """Collect wanted records above the cursor, and the last seq examined (DF3, DF5). Stops before a gap (TM16)."""
    records: list[SlotRecord] = []
    used_bytes, last = 0, cursor
    for slot in topic.slots[cursor:]:
        if slot.status == "gap" or len(records) == limit:
            break
        if slot.record and slot.seq in wanted:
            used_bytes += _size(slot.record)
            if records and used_bytes > bytes_max:
                break
            records.append(slot.record)
        last = slot.seq
    return records, last


def _stop(topic: Topic) -> None:
    """A graceful stop of an ephemeral topic keeps its head; its live records are lost as if evicted (DU1, DU9)."""
    for record in topic.live():
        topic.take(record, "evicted")
    topic.forget()


def _crash(topic: Topic, head: int, epoch: int) -> None:
    """A crash brings an ephemeral topic back to its checkpointed head, all of it lost, as a new epoch (DU9)."""
    _stop(topic)
    del topic.slots[head:]
    topic.cap_hi = head
    topic.ttl_hi = min(topic.ttl_hi, head)
    topic.last_ts = 0
    topic.epoch = epoch
