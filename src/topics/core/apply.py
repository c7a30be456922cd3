"""`apply`, the only function that changes the state.

`decide` (see decide.py) reads the state and gives entries; `apply` carries one entry out. Recovery is `apply` over the
log, so there is no second way of doing anything; `revive` then lets the queues of the state go on. Pure: no clock, no
I/O.
"""

from collections.abc import Callable
from typing import Any

from topics.core.entries import (
    AnyEntry,
    Appended,
    CursorRemoved,
    CursorSet,
    DeadLettered,
    Deleted,
    EpochRaised,
    Evicted,
    Expired,
    Forwarded,
    Forwarding,
    Freed,
    GapOpened,
    HeadInherited,
    KeysForgotten,
    Leased,
    QueuePaused,
    Reincarnated,
    Released,
    Reserved,
    RouterRemoved,
    RouterSet,
    TimePassed,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.memory import weigh, weigh_all
from topics.core.queue.jobs import MANY_MIN, forget_all
from topics.core.routing import table
from topics.core.state import KeyedWrite, Keys, NamedCursor, State, Topic
from topics.core.topic.blocks import seqs_in
from topics.core.topic.log import Log
from topics.core.topic.records import claimable_from, decode_body


def apply(state: State, entry: AnyEntry) -> None:
    """Carry out one entry."""
    _APPLY[type(entry)](state, entry)


def replay(state: State, entry: AnyEntry, position: int) -> None:
    """Carry out one entry of the log, unless the snapshot has it already or its topic is gone."""
    kind = type(entry)
    if kind is Appended:
        _replay_appended(state, entry, position)  # type: ignore[arg-type]
    elif isinstance(entry, TopicCreated):
        present = state.topics.get(entry.name)  # one of a higher number: the snapshot has it, and this one is gone
        if present is None or present.id < entry.topic:
            apply(state, entry)
    elif kind is RouterSet or kind is RouterRemoved:
        if table.is_to_be_replayed(state, entry, position):  # type: ignore[arg-type]
            apply(state, entry)
    elif kind is Forwarded:
        table.replay_forwarded(state, entry, position)  # type: ignore[arg-type]
    else:
        topic = state.by_id.get(entry.topic)  # type: ignore[union-attr]
        if topic is not None and position >= topic.notes.snapshot_position:
            if kind is TopicConfigured and not topic.is_logged:
                state.headless.add(topic.id)
            apply(state, entry)
            if kind is TopicConfigured and not topic.is_logged:
                _reincarnated(state, Reincarnated(topic.id, topic.epoch))
            if kind is TopicConfigured and topic.has_queue and not topic.keeps_leases:
                topic.queue.drop_leases()  # what became of them was not logged any more


def _replay_appended(state: State, entry: Appended, position: int) -> None:
    """The same for records, of which a log has the most."""
    topic = state.by_id.get(entry.topic)
    if topic is None or position < topic.notes.snapshot_position:
        state.skipped_appends.setdefault(entry.topic, []).append((entry.first, entry.batch))
        return
    if state.headless or entry.first != topic.log.head + 1:
        table.check_contiguous(state, topic, entry.first)
    apply_appended(state, entry)


def replay_singles(
    state: State, topic: Topic, bodies: list[bytes], sizes: list[int], timestamps: list[int], has_tags: bool
) -> None:
    """Carry out appends of one record each, without key or delay, that follow the topic's head."""
    log = topic.log
    before, weight = log.bytes, log.weight
    log.append_singles(bodies, sizes, timestamps, has_tags)
    state.records += len(bodies)
    state.written += len(bodies)
    state.bytes += log.bytes - before
    topic.weight += log.weight - weight
    state.memory += log.weight - weight
    state.unsaved[topic.id] = topic


def end_replay(state: State) -> None:
    """All of the log has been replayed."""
    state.skipped_appends = {}
    state.headless = set()
    keep_references_short(state)


def keep_references_short(state: State) -> None:
    """From here on routers refer to records only that are yet to come: the log may not keep those that are there."""
    for topic_id in state.routers.outgoing:
        topic = state.by_id.get(topic_id)
        if topic is not None:
            topic.referable_after = topic.log.head


def revive(state: State, old: State | None = None) -> None:
    """A state was read from the disk: its queues go on. `old` is the one before the log failed, if that is why."""
    for topic in state.topics.values():
        if topic.is_queue:
            topic.queue.recovered(topic.log)
            if not topic.keeps_leases:
                topic.queue.drop_leases()
    if old is not None:
        _take_over(state, old)
    weigh_all(state)


def _take_over(state: State, old: State) -> None:
    """Go on with what is in memory only, and with what is known beside the log."""
    for topic in state.topics.values():
        before = old.by_id.get(topic.id) or old.unsaved.get(topic.id)  # a deletion that failed is in the latter
        if before is not None:
            topic.notes.take_over(before.notes)
            if not topic.is_logged:
                topic.epoch, topic.log, topic.keys = before.epoch, before.log, before.keys
                topic.cursors, topic.queue = before.cursors, before.queue
                topic.hops, topic.stamps = before.hops, before.stamps
                state.unsaved[topic.id] = topic  # no snapshot has it as it is, and the log never will (DU9)
            elif topic.is_queue and not topic.keeps_leases:
                topic.queue.take_over(before.queue, topic.log)
    for router in state.routers.by_id.values():
        known = old.routers.by_id.get(router.id)
        if known is not None and not state.by_id[router.dest].is_logged:
            router.cursor, router.total = min(known.cursor, state.by_id[router.source].log.head), known.total
            state.unsaved_routers[router.name] = None
    state.count_records()
    state.memory_beside = old.memory_beside


def apply_appended(state: State, entry: Appended) -> None:
    """Carry out an append."""
    topic = state.by_id[entry.topic]
    log = topic.log
    if entry.first > log.head + 1:  # what lay between is lost
        state.lost -= log.lost
        log.inherit_head(entry.first - 1, entry.first - 1, ts=entry.ts)
        state.lost += log.lost
    before, weight = log.bytes, log.weight
    log.append(entry.batch, entry.ts)
    count, grown = len(entry.batch.sizes), log.weight - weight
    state.records += count
    state.written += count
    state.bytes += log.bytes - before
    topic.weight += grown
    state.memory += grown
    state.unsaved[entry.topic] = topic
    if entry.key is not None:
        written = KeyedWrite(entry.first, entry.last, entry.ts, entry.batch.digest)
        topic.keys.add(entry.key, written, topic.config.idempotency_window_ms)
        if topic.keys.weight:
            state.keyed[entry.topic] = topic
        weigh(state, topic)
    if entry.batch.has_delays and topic.is_queue:
        for seq, record in enumerate(decode_body(entry.batch.body).records, entry.first):
            start = claimable_from(record, entry.ts)
            if start > entry.ts:
                topic.queue.delay(seq, start)
        weigh(state, topic)


def _topic_created(state: State, entry: TopicCreated) -> None:
    topic = Topic(entry.topic, entry.name, entry.epoch, entry.config)
    state.topics[entry.name] = state.by_id[entry.topic] = topic
    state.index_expiry(topic)
    state.next_id = max(state.next_id, entry.topic + 1, entry.epoch + 1)
    state.unsaved[entry.topic] = topic
    weigh(state, topic)


def _topic_configured(state: State, entry: TopicConfigured) -> None:
    topic = state.by_id[entry.topic]
    if not topic.is_logged and entry.config.durability != "ephemeral":
        topic.keys.redump()
        topic.referable_after = topic.log.head
    topic.config = entry.config
    if topic.has_queue:
        topic.queue.configure(entry.config)
    state.index_expiry(topic)
    state.unsaved[entry.topic] = topic


def _topic_deleted(state: State, entry: TopicDeleted) -> None:
    topic = state.by_id.pop(entry.topic)
    del state.topics[topic.name]
    state.gone += 1
    state.expiring.pop(topic.id, None)
    state.keyed.pop(topic.id, None)
    state.memory -= topic.weight
    topic.weight = 0
    state.records -= topic.log.count
    state.bytes -= topic.log.bytes
    topic.log.drop_all()
    state.shrunk[topic.id] = topic
    state.unsaved[entry.topic] = topic
    for router in state.routers.of(entry.topic):
        state.routers.remove(router)
        state.unsaved_routers[router.name] = None


def _shrinking(change: Callable[[Log, Any], None]) -> Callable[[State, Any], None]:
    """An entry that only removes records: keeps the totals right around `change`."""

    def carry_out(state: State, entry: Any) -> None:
        topic = state.by_id[entry.topic]
        log = topic.log
        count, size, earliest, lost = log.count, log.bytes, log.earliest, log.lost
        change(log, entry)
        if log.count < count and topic.config.type == "queue":
            _forget_jobs(topic, entry, earliest)
        state.records += log.count - count
        state.bytes += log.bytes - size
        state.lost += log.lost - lost
        weigh(state, topic)
        state.unsaved[entry.topic] = topic
        topic.notes.has_unflagged = True
        if log.dropped or (topic.has_queue and topic.queue.dropped):
            state.shrunk[entry.topic] = topic

    return carry_out


def _forget_jobs(topic: Topic, entry: Any, earliest: int) -> None:
    """Jobs that are gone are nobody's any more (QU17). `earliest` is the earliest live seq before."""
    queue = topic.queue
    if not topic.log.count and queue.known >= MANY_MIN:
        forget_all(queue)
    elif type(entry) is Deleted:
        if entry.before:
            queue.forget_many([range(earliest, entry.before)])
        queue.forget_many(seqs_in(entry.blocks))
    else:
        last = entry.lost if type(entry) is HeadInherited else entry.last
        queue.forget_many([range(earliest, last + 1)])


def _delete(log: Log, entry: Deleted) -> None:
    before = log.count
    if entry.before:
        log.delete_before(entry.before)
    if entry.blocks:
        log.delete_blocks((number, int.from_bytes(mask, "little")) for number, mask in entry.blocks)
    if entry.count != before - log.count:
        log.were_deleted(entry.count - (before - log.count))


def _inherit_head(log: Log, entry: HeadInherited) -> None:
    is_new = entry.head > log.head
    log.inherit_head(entry.head, entry.lost, entry.deleted)
    if is_new and entry.losses is not None:
        log.inherit_losses(entry.losses, entry.expired, entry.trimmed)


def _reincarnated(state: State, entry: Reincarnated) -> None:
    topic = state.by_id[entry.topic]
    state.records -= topic.log.count
    state.bytes -= topic.log.bytes
    state.lost -= topic.log.lost
    topic.log.lose_all(topic.log.head, entry.ts)
    state.lost += topic.log.lost
    topic.log.last_write_ts = 0
    topic.epoch = entry.epoch
    topic.keys = Keys()
    state.keyed.pop(topic.id, None)
    topic.cursors = {}
    topic.queue = None
    weigh(state, topic)
    state.next_id = max(state.next_id, entry.epoch + 1)
    state.unsaved[entry.topic] = topic


def _epoch_raised(state: State, entry: EpochRaised) -> None:
    topic = state.by_id[entry.topic]
    topic.epoch = entry.epoch
    state.next_id = max(state.next_id, entry.epoch + 1)
    state.unsaved[entry.topic] = topic


def _time_passed(state: State, entry: TimePassed) -> None:
    topic = state.by_id[entry.topic]
    topic.queue.advance(entry.now)
    weigh(state, topic)


def _keys_forgotten(state: State, entry: KeysForgotten) -> None:
    topic = state.by_id[entry.topic]
    topic.keys.drop_oldest(entry.count)
    if not topic.keys.weight:
        state.keyed.pop(topic.id, None)
    weigh(state, topic)


def _changing(change: Callable[[Topic, Any], object]) -> Callable[[State, Any], None]:
    """An entry that changes what a topic holds beside its log: weighs it behind `change`."""

    def carry_out(state: State, entry: Any) -> None:
        topic = state.by_id[entry.topic]
        change(topic, entry)
        weigh(state, topic)
        state.unsaved[entry.topic] = topic

    return carry_out


@_changing
def _dead_lettered(topic: Topic, entry: DeadLettered) -> None:
    topic.queue.dead_lettered += entry.count


@_changing
def _cursor_set(topic: Topic, entry: CursorSet) -> None:
    topic.cursors[entry.name] = NamedCursor(entry.seq, entry.ts)


@_changing
def _queue_paused(topic: Topic, entry: QueuePaused) -> None:
    topic.paused = entry.paused


_APPLY: dict[type, Callable[[State, Any], None]] = {
    Appended: apply_appended,
    TopicCreated: _topic_created,
    TopicConfigured: _topic_configured,
    TopicDeleted: _topic_deleted,
    Evicted: _shrinking(lambda log, entry: log.evict(entry.last, entry.ts)),
    Expired: _shrinking(lambda log, entry: log.expire(entry.last, entry.ts)),
    Deleted: _shrinking(_delete),
    GapOpened: _shrinking(lambda log, entry: log.open_gap(entry.last, entry.reason, entry.ts)),
    HeadInherited: _shrinking(_inherit_head),
    Reserved: _changing(lambda topic, entry: topic.reservation.set(entry.last)),
    Reincarnated: _reincarnated,
    RouterSet: table.apply_set,
    RouterRemoved: table.apply_removed,
    Forwarding: table.apply_forwarding,
    Leased: _changing(lambda topic, entry: topic.queue.lease(entry.node, entry.leases)),
    Released: _changing(lambda topic, entry: topic.queue.release(entry.leases)),
    TimePassed: _time_passed,
    KeysForgotten: _keys_forgotten,
    Freed: _changing(lambda topic, entry: topic.queue.free(entry.jobs)),
    DeadLettered: _dead_lettered,
    CursorSet: _cursor_set,
    CursorRemoved: _changing(lambda topic, entry: topic.cursors.pop(entry.name, None)),
    QueuePaused: _queue_paused,
    EpochRaised: _epoch_raised,
}
