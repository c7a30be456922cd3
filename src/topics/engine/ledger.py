"""The ledger: the state joined with its log. Commits, the gate, and who is told.

A commit is decide → log → apply without an await, so the order of the log is
the order of the state. Deciding is the caller's; this is the rest.

The gate. The state is that of the end of the log, which may be ahead of what
is as durable as its class asks. So an answer is made from the state at once
and held until the log positions it depends on are written (disk, memory) or
synced (fsync, and topics that come, change or go). If the log fails meanwhile,
the state is rebuilt from the disk without what failed; held writes fail, held
reads are made anew.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from topics.clock import Clock
from topics.core import decide, dump, entries
from topics.core.apply import apply
from topics.core.entries import AnyEntry, Appended, Forwarding
from topics.core.state import State, Topic
from topics.engine.durability.store import Store
from topics.errors import CommitFailed, StorageError, UnusableDirectory
from topics.storage.wal import Callback, Wal, settle

logger = logging.getLogger("topics.engine.ledger")

Listener = Callable[[], None]
CONTROL = (entries.TopicConfigured, entries.TopicDeleted, entries.HeadKept, entries.Reserved)


class Gate(Struct, frozen=True, gc=False):
    """What must be true of the log before an answer made of its state may leave."""

    synced_at: int  # everything below this position is synced
    written_at: int  # everything below this one is written
    generation: int  # the log has not failed since


class Ledger:
    """The state of an instance, and the log that it is the end of."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.state = State()
        self.store = store
        self.wal: Wal = store.wal
        self.broken: StorageError | None = None  # the log failed, and the state could not be read back
        self.on_commit: Listener = lambda: None  # something was logged
        self.on_change: Callable[[Topic], None] = lambda topic: None  # a source of routers, or a topic in `watched`
        self.watched: set[int] = set()
        self._sources = self.state.routers.outgoing
        self.on_rebuilt: Listener = lambda: None  # the state is another one
        self._clock = clock
        self._listeners: dict[int, set[Listener]] = {}
        self._unwritten: deque[tuple[int, int]] = deque()  # position, topic: to be told when it is written
        self._unsynced: deque[tuple[int, int]] = deque()  # the same for synced
        self._changing: dict[str, asyncio.Future[None]] = {}  # changes of ephemeral topics that wait for their sync

    async def start(self) -> None:
        """Recover the state."""
        self.state = await self.store.recover()
        self._sources = self.state.routers.outgoing
        for topic in self.state.topics.values():
            if topic.is_queue:
                topic.queue.recovered(topic.log)
                if not topic.keeps_leases:
                    topic.queue.drop_leases()
        self.wal.on_progress = self._publish
        self.wal.on_failure = self._rebuild

    def expire(self, name: str) -> Topic | None:
        """Take away what has expired, before anyone looks at the topic."""
        topic = self.state.topics.get(name)
        if topic is not None and topic.config.ttl_ms:
            decided = decide.expiry(self.state, topic, self._clock.now_ms())
            if decided:
                with suppress(CommitFailed):  # a loss is shown only once it is logged; until then the records stay
                    self.commit(topic, decided)
        return topic

    def commit(self, topic: Topic, decided: Sequence[AnyEntry]) -> None:
        """Log and apply entries of one topic. CommitFailed: nothing has changed."""
        if type(decided[0]) is Forwarding:
            self._commit_losing(topic, decided)
            return
        if topic.is_logged:
            is_synced = topic.config.durability == "fsync"
            end = self.wal.append(entries.encode(decided), is_synced, self.depends_on(topic, decided))
            for entry in decided:
                apply(self.state, entry)
            if is_synced:
                topic.synced_at = end
                queue = self._unsynced
            else:
                topic.written_at = end
                queue = self._unwritten
                if type(decided[-1]) is entries.Reserved:
                    topic.reserved_at = end
                    self.wal.start_sync_soon()
            if topic.id in self._listeners:
                queue.append((end, topic.id))
            self.on_commit()
        else:
            for entry in decided:
                apply(self.state, entry)
            self._tell(topic.id)
        if topic.id in self._sources or topic.id in self.watched:
            self.on_change(topic)

    def _commit_losing(self, topic: Topic, decided: Sequence[AnyEntry]) -> None:
        """Commit what takes records from routers that have not forwarded them, with the holes in their dests (RT12).

        Both are one frame, of the topic's class, unless it would have to wait for a dest that waits for a sync; then
        the holes come first. What is only in memory changes last: it cannot be undone.
        """
        holes: dict[int, list[AnyEntry]] = {}
        for entry in decided:
            holes.setdefault(entry.topic, []).append(entry)  # type: ignore[union-attr]
        own = holes.pop(topic.id)
        dests = [self.state.by_id[topic_id] for topic_id in holes]
        waits = topic.config.durability == "fsync"
        settled = [d for d in dests if d.is_logged and (waits or d.reserves or d.synced_at <= self.wal.synced)]
        together = settled if topic.is_logged else []
        apart = [d for d in dests if d.is_logged and d not in together]
        for group in ([d for d in apart if not d.reserves], [d for d in apart if d.reserves]):
            if group:
                self.commit_across(group, [entry for dest in group for entry in holes[dest.id]])
        if topic.is_logged:
            frame = [*(entry for dest in together for entry in holes[dest.id]), *own]
            self.commit_across([topic, *together], frame, is_synced=waits)
        else:
            self.commit_unlogged(topic, own)
        for dest in dests:
            if not dest.is_logged:
                self.commit_unlogged(dest, holes[dest.id])

    def commit_unlogged(self, topic: Topic, decided: Sequence[AnyEntry]) -> None:
        """Apply entries of a topic that is in memory only."""
        self.apply_unlogged(decided)
        self._tell(topic.id)
        self._changed(topic)

    def _changed(self, topic: Topic) -> None:
        if topic.id in self._sources or topic.id in self.watched:
            self.on_change(topic)

    def commit_across(
        self,
        topics: Sequence[Topic],
        decided: Sequence[AnyEntry],
        depends_on: int = 0,
        *,
        is_synced: bool | None = None,
    ) -> None:
        """Log and apply entries of several logged topics as one frame. CommitFailed: nothing has changed.

        The frame is synced if one of the topics asks for that, or `is_synced`, and then all of them are shown only
        when it is; so they are if it must not be shown before all below `depends_on` is synced.
        """
        heads = {entry.topic: entry.last for entry in decided if isinstance(entry, Appended | Forwarding)}
        reserving = {entry.topic for entry in decided if type(entry) is entries.Reserved}
        dests = [self.state.by_id[topic_id] for topic_id in heads]  # also of holes that the entries leave
        topics = list(dict.fromkeys([*topics, *(topic for topic in dests if topic.is_logged)]))
        waiting = [topic for topic in topics if topic.config.durability == "fsync"]
        is_synced = bool(waiting) if is_synced is None else is_synced
        needed = [self._needed(one, heads.get(one.id, one.log.head), one.id in reserving) for one in topics]
        depends_on = max(depends_on, *needed)
        logged = [entry for entry in decided if not self._is_unlogged_hole(entry)]
        end = self.wal.append(entries.encode(logged), is_synced, depends_on)
        for entry in decided:
            apply(self.state, entry)
        if is_synced or waiting:
            self.wal.start_sync_soon()
        for topic in topics:
            waits = is_synced or topic in waiting
            if waits:
                topic.synced_at = end
            else:
                topic.synced_at, topic.written_at = max(topic.synced_at, depends_on), end
            if topic.id in reserving:
                topic.reserved_at = end
                self.wal.start_sync_soon()
            if topic.id in self._listeners:
                (self._unsynced if waits else self._unwritten).append((end, topic.id))
            self._changed(topic)
        self.on_commit()

    def apply_unlogged(self, decided: Sequence[AnyEntry]) -> None:
        """Apply entries that are not kept across a restart: leases of a queue that does not keep them."""
        for entry in decided:
            apply(self.state, entry)

    def depends_on(self, topic: Topic, decided: Sequence[AnyEntry]) -> int:
        """What must be synced before a commit that need not be synced itself may be acked: as its gate says then.

        If the log fails before, the frame is void. The two must agree, or what was refused would be there.
        """
        first = decided[0]
        head = first.last if type(first) is entries.Appended else topic.log.head
        if head <= topic.reserved_durable or not topic.reserves:
            return topic.synced_at
        return self._needed(topic, head, type(decided[-1]) is entries.Reserved)

    def _needed(self, topic: Topic, head: int, is_reserving: bool = False) -> int:
        """What must be synced before a topic may be shown with this head (DU10).

        A head beyond the reservation that is known to be synced waits for the newest one, which, with `is_reserving`,
        is in the frame that is about to be appended.
        """
        if head <= topic.reserved_durable or not topic.reserves:
            return topic.synced_at
        if self.wal.synced >= topic.reserved_at:
            topic.reserved_durable = topic.reserved
            if head <= topic.reserved:
                return topic.synced_at
        is_reserving = is_reserving or head > topic.reserved
        return max(topic.synced_at, self.wal.end + 1 if is_reserving else topic.reserved_at)

    def sure_at(self, topic: Topic) -> int:
        """The position that must be synced before all records of a topic are there for good; 0 if they are."""
        needed = self._needed(topic, topic.log.head)
        return needed if needed > self.wal.synced else 0

    def commit_created(self, decided: Sequence[AnyEntry]) -> None:
        """Commit a write that creates its topic; the log has no records of an ephemeral one."""
        created = decided[0]
        assert isinstance(created, entries.TopicCreated)
        self._commit_config(decided, decided[:1] if created.config.durability == "ephemeral" else decided)

    def _commit_config(self, decided: Sequence[AnyEntry], logged: Sequence[AnyEntry]) -> None:
        """Log and apply entries by which a topic comes, changes or goes: synced, whatever its class."""
        end = self.wal.append(entries.encode(logged), True)
        for entry in decided:
            apply(self.state, entry)
        self.state.names_at = end
        for topic_id in {topic_id for entry in decided for topic_id in _concerned(entry)}:
            topic = self.state.by_id.get(topic_id)
            if topic is not None:
                topic.synced_at = topic.reserved_at = end
                self._changed(topic)
            self._unsynced.append((end, topic_id))

    async def settled(self, name: str) -> Topic | None:
        """The topic, when no change of it is under way that is not carried out yet."""
        while name in self._changing:
            await asyncio.wait([self._changing[name]])
        return self.expire(name)

    async def commit_change(self, topic: Topic | None, decided: Sequence[AnyEntry]) -> None:
        """Commit entries by which a topic comes, changes or goes."""
        if topic is None or topic.is_logged:
            self._commit_config(decided, [entry for entry in decided if not self._is_unlogged_hole(entry)])
            return
        change = self._changing[topic.name] = self._change_ephemeral(topic, decided)
        change.add_done_callback(lambda _: self._changing.pop(topic.name))
        await asyncio.shield(change)

    def _change_ephemeral(self, topic: Topic, decided: Sequence[AnyEntry]) -> "asyncio.Future[None]":
        """Change an ephemeral topic once the change is synced: if that fails, its records could not be restored.

        It is logged in the turn in which it was decided, and carried out in the one in which the log says that it is
        synced. In any later one the log may have failed, and the state been read back.
        """
        control = [entry for entry in decided if isinstance(entry, CONTROL) and entry.topic == topic.id]
        end = self.wal.append(entries.encode(control), True)
        changing = self.state.changing
        changing.add(topic.id)
        done = asyncio.get_running_loop().create_future()

        def synced(failure: CommitFailed | None) -> None:
            changing.discard(topic.id)
            try:
                if failure is None:
                    self._carry_out(topic, control, end)
                settle(done, failure)
            except Exception as error:
                done.set_exception(error)

        self.wal.when_synced(end, synced)
        return done

    def _carry_out(self, topic: Topic, control: Sequence[AnyEntry], end: int) -> None:
        """Apply the logged change of an ephemeral topic, and what follows from it for its records."""
        for entry in control:
            apply(self.state, entry)
        self.state.names_at = topic.synced_at = topic.reserved_at = end
        self._tell(topic.id)
        if topic.id in self.state.by_id:
            lost = decide.retention(self.state, topic, topic.config, self._clock.now_ms())
            if topic.is_logged:
                kept = decide.head_kept(topic)
                holes = [entry for entry in lost if entry.topic != topic.id]  # type: ignore[union-attr]
                self.commit(topic, [*holes, kept, *lost[len(holes) :]])
            elif lost:
                self.commit(topic, lost)

    def gate(self, topic: Topic | None) -> Gate:
        """The gate for what was just read of a topic, or of there being none."""
        if topic is None:
            return Gate(self.state.names_at, 0, self.wal.generation)
        synced_at = topic.synced_at if topic.log.head <= topic.reserved_durable else self._needed(topic, topic.log.head)
        return Gate(synced_at, topic.written_at, self.wal.generation)

    def is_open(self, gate: Gate) -> bool:
        """Whether what depends on the gate may be shown; writes what is buffered if only that is missing."""
        wal = self.wal
        if gate.synced_at > wal.synced:
            return False
        if gate.written_at > wal.written:
            wal.flush()
        return gate.written_at <= wal.written and gate.generation == wal.generation

    def when_open(self, gate: Gate, callback: Callback) -> None:
        """Call back when the gate is open, or with what keeps it from opening."""
        wal = self.wal
        if gate.synced_at <= wal.synced and gate.written_at > wal.written and gate.generation == wal.generation:
            wal.when_written(callback)
            return

        def synced(failure: CommitFailed | None) -> None:
            if failure is None and gate.written_at > wal.written:
                wal.when_written(written)
            else:
                written(failure)

        def written(failure: CommitFailed | None) -> None:
            if failure is None and gate.generation != wal.generation:
                failure = CommitFailed("the disk failed meanwhile")
            callback(failure)

        if gate.synced_at > wal.synced:
            wal.when_synced(gate.synced_at, synced)
        else:
            synced(None)

    async def wait_open(self, gate: Gate, *, at_once: bool = False) -> None:
        """Wait for a gate. `at_once`: write what is buffered rather than wait for the end of the turn."""
        if self.broken is not None:
            raise self.broken
        wal = self.wal
        if at_once and gate.written_at > wal.written and gate.synced_at <= wal.synced:
            wal.flush()
        if gate.synced_at > wal.synced or gate.written_at > wal.written or gate.generation != wal.generation:
            opened = asyncio.get_running_loop().create_future()
            self.when_open(gate, partial(settle, opened))
            await opened

    async def wait_to_refuse(self, name: str) -> None:
        """Wait until the state for which something was refused may be shown."""
        await self.wait_open(self.gate(self.state.topics.get(name)))

    def _publish(self) -> None:
        """The log has been written or synced further: tell those who wait."""
        for queue, reached in ((self._unwritten, self.wal.written), (self._unsynced, self.wal.synced)):
            while queue and queue[0][0] <= reached:
                self._tell(queue.popleft()[1])

    def _tell(self, topic_id: int) -> None:
        for listener in list(self._listeners.get(topic_id, ())):
            listener()

    def listen(self, topic_id: int, listener: Listener) -> None:
        """Call `listener` whenever something new can be read of a topic, or it is gone."""
        self._listeners.setdefault(topic_id, set()).add(listener)

    def unlisten(self, topic_id: int, listener: Listener) -> None:
        listeners = self._listeners.get(topic_id)
        if listeners is not None:
            listeners.discard(listener)
            if not listeners:
                del self._listeners[topic_id]

    def _rebuild(self, void: frozenset[int]) -> None:
        """Start over from the disk after the log failed, without the frames in `void`."""
        old = self.state
        try:
            self.state = self.store.rebuild(void)
        except (StorageError, OSError) as error:
            logger.critical("the state cannot be read back: %s; nothing is served any more", error)
            self.broken = UnusableDirectory(f"the disk failed, and the state cannot be read back: {error}")
            self.wal.refuse(self.broken.message)
            return
        for topic in self.state.topics.values():
            before = old.by_id.get(topic.id) or old.dirty.get(topic.id)  # a deletion that failed is in the latter
            if before is not None:
                topic.last_read_ms = before.last_read_ms
                if not topic.is_logged:
                    topic.epoch, topic.log, topic.keys = before.epoch, before.log, before.keys
                    topic.queue, topic.hops, topic.stamps = before.queue, before.hops, before.stamps
                    self.store.catalogue.adopt(topic.log.parts)
                elif topic.is_queue:
                    topic.queue.recovered(topic.log)
                    if not topic.keeps_leases:
                        topic.queue.drop_leases()
                        topic.queue.take_over(before.queue, topic.log)
        self._carry_cursors(old)
        self.state.records, self.state.bytes = dump.totals(self.state.topics.values())
        self._sources = self.state.routers.outgoing
        self._unwritten.clear()
        self._unsynced.clear()
        self.on_rebuilt()
        for topic_id in list(self._listeners):
            self._tell(topic_id)

    def _carry_cursors(self, old: State) -> None:
        """Routers into topics that are in memory only have come as far as they had before the log failed."""
        for router in self.state.routers.by_id.values():
            before = old.routers.by_id.get(router.id)
            if before is not None and not self.state.by_id[router.dest].is_logged:
                router.cursor = min(before.cursor, self.state.by_id[router.source].log.head)
                router.total = before.total

    def _is_unlogged_hole(self, entry: AnyEntry) -> bool:
        """Whether an entry is a hole in a topic that is in memory only."""
        return isinstance(entry, Forwarding) and not self.state.by_id[entry.topic].is_logged


def _concerned(entry: AnyEntry) -> tuple[int, ...]:
    """The topics whose readers an entry concerns."""
    if isinstance(entry, entries.RouterRemoved):
        return ()
    return (entry.dest,) if isinstance(entry, entries.RouterSet) else (entry.topic,)  # type: ignore[union-attr]
