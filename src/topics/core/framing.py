"""Framing: which entries share a frame of the log, in which order frames come, and what each has to wait for.

A command is decided as entries (decide.py); how these are committed follows from them alone. Pure: log positions come
from the caller.

1. Records of an ephemeral topic are not logged, nor are leases that a queue does not keep. What is only known in memory
   (`Unlogged`) is never logged, whatever the class.
2. A frame by which a topic or a router comes, changes or goes is synced, whatever the classes of its topics.
3. Any other frame is synced if a topic that it writes to is of class fsync. A hole that a loss leaves in a dest (RT12)
   does not count: nobody waits for it.
4. A hole in a dest that waits for a sync does not keep others waiting: it is logged before them, in a frame of its own.
5. Copies wait for the records that they are made of.
6. What is in memory only changes last: it cannot be undone.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from topics.core.entries import (
    CONTROL,
    JOBS,
    LEASES,
    UNLOGGED,
    AnyEntry,
    Appended,
    Deleted,
    Forwarding,
    Reserved,
    RouterRemoved,
    RouterSet,
    TopicCreated,
)
from topics.core.state import State, Topic


class Frame(Struct, gc=False):
    """Entries that are logged together and applied together."""

    entries: Sequence[AnyEntry]  # in the order in which they are applied
    logged: Sequence[AnyEntry]  # those that the log gets; none: the frame changes what is in memory only
    topics: Sequence[Topic]  # whose readers it concerns; of a control frame they are known once it is applied
    needs_sync: bool = False  # it may be shown only when it is synced itself
    is_control: bool = False  # a topic or a router comes, changes or goes
    sources: Sequence[Topic] = ()  # of the copies in it

    def depends_on(self, synced: int, end: int) -> int:
        """The position below which the log, which ends at `end`, must be synced before this frame may be shown.

        If the log fails before that, the frame is void; so what is asked here, and what a gate asks, must agree.
        """
        if self.needs_sync:
            return 0
        first = self.logged[0]
        if len(self.logged) == 1 and type(first) is Appended:
            return sync_needed(self.topics[0], first.last, synced, end)
        if len(self.logged) == 1 and type(first) in JOBS:
            return sync_needed(self.topics[0], self.topics[0].log.head, synced, end)
        heads: dict[int, int] = {}
        renewed: set[int] = set()
        for entry in self.logged:
            if type(entry) is Appended or type(entry) is Forwarding:
                heads[entry.topic] = entry.last
            elif type(entry) is Reserved:
                renewed.add(entry.topic)
        position = 0
        for topic in self.topics:
            needed = sync_needed(topic, heads.get(topic.id, topic.log.head), synced, end, topic.id in renewed)
            position = max(position, needed)
        for source in self.sources:
            position = max(position, sync_needed(source, source.log.head, synced, end))
        return position


def sync_needed(topic: Topic, head: int, synced: int, end: int, is_renewed: bool = False) -> int:
    """The position below which the log must be synced before a topic may be shown with this head."""
    if head <= topic.reservation.durable or not topic.reserves:
        return topic.notes.synced_at
    return max(topic.notes.synced_at, topic.reservation.sync_needed_for(head, synced, end, is_renewed=is_renewed))


def frames_of(state: State, entries: Sequence[AnyEntry], synced: int) -> Sequence[Frame]:
    """The frames by which entries that were decided together are committed, in this order."""
    first = entries[0]
    if len(entries) == 1 and type(first) is Appended:
        return (_frame_of_one(state.by_id[first.topic], entries),)
    if len(entries) == 1 and type(first) in JOBS:
        topic = state.by_id[first.topic]  # type: ignore[union-attr]
        if type(first) is not Deleted and (not topic.keeps_leases or type(first) in UNLOGGED):
            return (Frame(entries, (), ()),)
        return (_frame_of_one(topic, entries),)
    if any(type(entry) in CONTROL for entry in entries):
        return (_control_frame(state, entries),)
    changed: dict[int, list[AnyEntry]] = {}
    for entry in entries:
        changed.setdefault(entry.topic, []).append(entry)  # type: ignore[union-attr]
    if len(changed) > 1:
        return _frames_of_several(state, entries, changed, synced)
    topic = state.by_id[first.topic]  # type: ignore[union-attr]
    if type(first) in LEASES and not topic.keeps_leases:
        return (Frame(entries, (), ()),)
    return (_frame_of_one(topic, entries, _sources(state, entries, changed)),)


def concerned(state: State, entries: Iterable[AnyEntry]) -> dict[int, Topic | None]:
    """The topics, by id, whose readers the entries of a control frame concern; None: the topic is gone."""
    ids: dict[int, None] = {}
    for entry in entries:
        if not isinstance(entry, RouterRemoved):
            ids[entry.dest if isinstance(entry, RouterSet) else entry.topic] = None  # type: ignore[union-attr]
    return {topic_id: state.by_id.get(topic_id) for topic_id in ids}


def _frame_of_one(topic: Topic, entries: Sequence[AnyEntry], sources: Sequence[Topic] = ()) -> Frame:
    durability = topic.config.durability
    logged = () if durability == "ephemeral" else entries
    return Frame(entries, logged, (topic,), durability == "fsync", sources=sources)


def _control_frame(state: State, entries: Sequence[AnyEntry]) -> Frame:
    created = {entry.topic: entry.config for entry in entries if type(entry) is TopicCreated}

    def is_logged(entry: AnyEntry) -> bool:
        if type(entry) in CONTROL:
            return True
        topic_id: int = entry.topic  # type: ignore[union-attr]
        config = created[topic_id] if topic_id in created else state.by_id[topic_id].config
        return config.durability != "ephemeral"

    return Frame(entries, [entry for entry in entries if is_logged(entry)], (), True, is_control=True)


def _frames_of_several(
    state: State, entries: Sequence[AnyEntry], changed: dict[int, list[AnyEntry]], synced: int
) -> list[Frame]:
    topics = {topic_id: state.by_id[topic_id] for topic_id in changed}
    logged = {topic_id: topic for topic_id, topic in topics.items() if topic.is_logged}
    holed = {topic_id for topic_id in logged if _are_holes(changed[topic_id], changed)}
    needs_sync = any(topic.config.durability == "fsync" for topic_id, topic in logged.items() if topic_id not in holed)
    apart = holed
    if len(holed) < len(logged):
        apart = {
            one for one in holed if not (needs_sync or topics[one].reserves or topics[one].notes.synced_at <= synced)
        }
    groups = [
        ([topics[one] for one in apart if not topics[one].reserves], True),
        ([topics[one] for one in apart if topics[one].reserves], False),
        ([topic for topic_id, topic in logged.items() if topic_id not in apart], needs_sync),
    ]
    frames = []
    for group, is_synced in groups:
        if group:
            chosen = {topic.id for topic in group}
            own = [entry for entry in entries if entry.topic in chosen]  # type: ignore[union-attr]
            frames.append(Frame(own, own, group, is_synced, sources=_sources(state, own, changed)))
    in_memory = [topic for topic in topics.values() if not topic.is_logged]
    if in_memory:
        own = [entry for topic in in_memory for entry in changed[topic.id]]
        frames.append(Frame(own, (), in_memory))
    return frames


def _are_holes(entries: Sequence[AnyEntry], changed: dict[int, list[AnyEntry]]) -> bool:
    """Whether the entries of a dest only say what its source loses by the same decision."""
    return all(
        type(entry) is Reserved or (type(entry) is Forwarding and entry.entry.source in changed) for entry in entries
    )


def _sources(state: State, entries: Sequence[AnyEntry], changed: dict[int, list[AnyEntry]]) -> list[Topic]:
    """The topics that entries copy from, but for those that the same decision changes."""
    ids = {entry.entry.source for entry in entries if type(entry) is Forwarding} - changed.keys()
    return [state.by_id[topic_id] for topic_id in ids]
