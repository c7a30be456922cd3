"""The ledger: the state joined with its log. Commits, and who is told of them.

A commit is decide → log → apply without an await, so the order of the log is the order of the state. Deciding is the
caller's; which frames the entries form is the core's (core/framing.py); the ledger logs the frames, applies them and
notes from which log position on each topic may be shown. When that is, is said by gate.py.

If the log fails, the state is rebuilt from the disk without what failed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from topics.clock import Clock
from topics.core import decide, dump, entries
from topics.core.apply import apply, apply_appended
from topics.core.entries import (
    AnyEntry,
    Appended,
    CursorSet,
    Forwarding,
    HeadInherited,
    QueuePaused,
    Reserved,
    RouterSet,
    TimePassed,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from topics.core.framing import UNLOGGED, Frame, concerned, frames_of, sync_needed
from topics.core.memory import weigh_all
from topics.core.state import State, Topic
from topics.engine.durability.store import Store
from topics.errors import CommitFailed, StorageError, TopicNotFound, UnusableDirectory
from topics.storage.wal import READ_ONLY, DiskFull, Obstacle, Wal, resolve

logger = logging.getLogger("topics.engine.ledger")

Listener = Callable[[], None]
# What takes space, as copies do; everything else frees some, or will.
GROWING = (Appended, CursorSet, TopicCreated, RouterSet)
# What the log has of a change of an ephemeral topic.
LASTING = (TopicConfigured, TopicDeleted, QueuePaused, HeadInherited, Reserved)


class Ledger:
    """The state of an instance, and the log that it is the end of."""

    def __init__(
        self, store: Store, clock: Clock, on_commit: Listener, on_change: Callable[[Topic], None], on_rebuilt: Listener
    ) -> None:
        self.state = State()
        self.store = store
        self.wal: Wal = store.wal
        self.broken: StorageError | None = None  # the log failed, and the state could not be read back
        self._unread: frozenset[int] | None = None  # the state is to be read back without these frames
        self._on_commit = on_commit  # something was logged
        self._on_change = on_change  # of a source of routers, or a topic in `watched`
        self._on_rebuilt = on_rebuilt  # the state is another one
        self.watched: set[int] = set()
        self.read_total = 0  # records handed out since the start, of all topics
        self._sources = self.state.routers.outgoing
        self._clock = clock
        self._passing: set[int] = set()  # queues in which so much ends at once that the next turn goes on
        self._listeners: dict[int, dict[Listener, None]] = {}  # in the order in which they came
        self._after_news: Listener = lambda: None
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
        weigh_all(self.state)
        self.wal.on_progress = self._publish
        self.wal.on_failure = self._rebuild

    def current(self, name: str) -> Topic | None:
        """A topic without what has expired by now, and a queue without the leases and delays that have ended."""
        topic = self.state.topics.get(name)
        if topic is not None and topic.config.type == "queue":
            self.pass_time(topic)
        if topic is not None and topic.config.ttl_ms:
            decided = decide.expiry(self.state, topic, self._clock.now_ms())
            if decided:
                with suppress(CommitFailed):  # a loss is shown only once it is logged; until then the records stay
                    self.commit(decided)
        return topic

    def existing(self, name: str) -> Topic:
        """As `current`, for whoever needs the topic to be there."""
        topic = self.current(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def pass_time(self, topic: Topic) -> None:
        """End the leases and delays of a queue that are over by now. If these are very many: one step in each turn."""
        now = self._clock.now_ms()
        if topic.queue.is_due(now) and topic.id not in self._passing:
            self.commit((TimePassed(topic.id, now),))
            if topic.queue.is_due(now):
                self._passing.add(topic.id)
                asyncio.get_running_loop().call_soon(self._pass_on, topic.id)

    def _pass_on(self, topic_id: int) -> None:
        self._passing.discard(topic_id)
        topic = self.state.by_id.get(topic_id)
        if topic is not None and topic.is_queue:
            self.pass_time(topic)

    # --- commits

    def commit(self, decided: Sequence[AnyEntry]) -> None:
        """Log and apply entries that were decided together. CommitFailed: the frame that failed, and those behind it,
        have changed nothing. What is known in memory only does not fail: it also puts right what failed.
        """
        if self.broken is not None and type(decided[0]) not in UNLOGGED:
            raise CommitFailed(self.broken.message)
        wal = self.wal
        if len(decided) == 1 and type(decided[0]) is Appended:
            topic = self.state.by_id[decided[0].topic]
            if topic.config.durability != "ephemeral":
                self._commit_write(topic, decided[0])
                return
        for frame in frames_of(self.state, decided, wal.synced):
            if frame.logged:
                depends_on = frame.depends_on(wal.synced, wal.end)
                is_timed = len(frame.logged) == 1 and type(frame.logged[0]) is Appended
                payload = entries.payload_of(frame.logged, 0 if is_timed else self._clock.now_ms())
                try:
                    end = wal.append(payload, frame.needs_sync, depends_on)
                except DiskFull:
                    if any(
                        isinstance(one, GROWING) or (isinstance(one, Forwarding) and one.entry.runs)
                        for one in frame.logged
                    ):
                        raise
                    end = wal.append(payload, frame.needs_sync, depends_on, frees=True)
                for entry in frame.entries:
                    apply(self.state, entry)
                if frame.is_control:
                    self._note_control(frame, end)
                else:
                    self._note_logged(frame, end, depends_on)
                self._on_commit()
            else:
                # a crash would not be known as one, nor what it takes
                if not wal.number and type(decided[0]) not in UNLOGGED:
                    raise CommitFailed(READ_ONLY)
                for entry in frame.entries:
                    apply(self.state, entry)
                for topic in frame.topics:
                    self._tell(topic.id)
                    self._changed(topic)

    def _commit_write(self, topic: Topic, entry: Appended) -> None:
        """The same for a write with which nothing else goes, as most do: its frame needs no look at anything else."""
        wal, notes, topic_id = self.wal, topic.notes, topic.id
        if topic.config.durability == "fsync":
            end = wal.append(entries.payload_of((entry,)), True)
            apply_appended(self.state, entry)
            notes.synced_at = end
            waiting = self._unsynced
        else:
            depends_on = sync_needed(topic, entry.last, wal.synced, wal.end)
            end = wal.append(entries.payload_of((entry,)), False, depends_on)
            apply_appended(self.state, entry)
            notes.written_at = end
            if depends_on > notes.synced_at:
                notes.synced_at = depends_on
            waiting = self._unwritten
        if topic_id in self._listeners:
            waiting.append((end, topic_id))
        if topic_id in self._sources or topic_id in self.watched:
            self._on_change(topic)
        self._on_commit()

    def _note_logged(self, frame: Frame, end: int, depends_on: int) -> None:
        """Note from where on the topics of a frame may be shown."""
        renewed = {entry.topic for entry in frame.logged if type(entry) is Reserved} if len(frame.logged) > 1 else ()
        for topic in frame.topics:
            if frame.needs_sync:
                topic.notes.synced_at = end
                waiting = self._unsynced
            elif topic.config.durability == "fsync":
                topic.notes.synced_at = end
                self.wal.want_synced(end)
                waiting = self._unsynced
            else:
                topic.notes.written_at = end
                if depends_on > topic.notes.synced_at:
                    topic.notes.synced_at = depends_on
                waiting = self._unwritten
            if topic.id in renewed:
                topic.reservation.position = end
                self.wal.want_synced(end)
            if topic.id in self._listeners:
                waiting.append((end, topic.id))
            self._changed(topic)

    def _note_control(self, frame: Frame, end: int) -> None:
        self.state.names_at = end
        for topic_id, topic in concerned(self.state, frame.entries).items():
            if topic is not None:
                topic.notes.synced_at = topic.reservation.position = end
                self._changed(topic)
            self._unsynced.append((end, topic_id))

    def _changed(self, topic: Topic) -> None:
        if topic.id in self._sources or topic.id in self.watched:
            self._on_change(topic)

    def durable_at(self, topic: Topic) -> int:
        """The position below which the log must be synced before all records of a topic are there for good; 0: none."""
        needed = sync_needed(topic, topic.log.head, self.wal.synced, self.wal.end)
        return needed if needed > self.wal.synced else 0

    # --- changes of topics in memory

    async def when_unchanging(self, name: str) -> Topic | None:
        """The topic, once no change of it is under way."""
        while name in self._changing:
            await asyncio.wait([self._changing[name]])
        return self.current(name)

    async def change(self, topic: Topic | None, decided: Sequence[AnyEntry]) -> None:
        """Commit entries by which a topic comes, changes or goes, or a router (no topic)."""
        if self.broken is not None:
            raise CommitFailed(self.broken.message)
        if topic is None or topic.is_logged:
            self.commit(decided)
            return
        change = self._changing[topic.name] = self._change_in_memory(topic, decided)
        change.add_done_callback(lambda _: self._changing.pop(topic.name))
        await asyncio.shield(change)

    def _change_in_memory(self, topic: Topic, decided: Sequence[AnyEntry]) -> "asyncio.Future[None]":
        """Change an ephemeral topic once the change is synced: if that fails, its records could not be restored.

        The change is logged in the turn in which it was decided, and applied in the one in which the log says that it
        is synced. In any later one the log may have failed, and the state been read back.
        """
        lasting = [entry for entry in decided if isinstance(entry, LASTING) and entry.topic == topic.id]
        payload = entries.encode(lasting, self._clock.now_ms())
        end = self.wal.append(payload, True, frees=any(type(entry) is TopicDeleted for entry in lasting))
        changing = self.state.changing
        changing.add(topic.id)
        done = asyncio.get_running_loop().create_future()

        def synced(failure: CommitFailed | None) -> None:
            changing.discard(topic.id)
            try:
                if failure is None:
                    self._apply_change(topic, lasting, end)
                resolve(done, failure)
            except Exception as error:
                done.set_exception(error)

        self.wal.when_synced(end, synced)
        return done

    def _apply_change(self, topic: Topic, lasting: Sequence[AnyEntry], end: int) -> None:
        """Apply the synced change of an ephemeral topic, and commit what follows from it for the records."""
        for entry in lasting:
            apply(self.state, entry)
        self.state.names_at = topic.notes.synced_at = topic.reservation.position = end
        self._tell(topic.id)
        if topic.id in self.state.by_id:
            lost = decide.retention(self.state, topic, topic.config, self._clock.now_ms())
            if topic.is_logged:
                holes = [entry for entry in lost if entry.topic != topic.id]  # type: ignore[union-attr]
                lost = [*holes, decide.head_inherited(topic), *lost[len(holes) :]]
            if lost:
                self.commit(lost)

    def _publish(self) -> None:
        """The log has been written or synced further: tell those who wait."""
        is_news = False
        for queue, reached in ((self._unwritten, self.wal.written), (self._unsynced, self.wal.synced)):
            while queue and queue[0][0] <= reached:
                self._tell(queue.popleft()[1])
                is_news = True
        if is_news:
            self._after_news()

    def _tell(self, topic_id: int) -> None:
        for listener in list(self._listeners.get(topic_id, ())):
            listener()

    def listen(self, topic_id: int, listener: Listener) -> None:
        """Call `listener` whenever something new can be read of a topic, or it is gone."""
        self._listeners.setdefault(topic_id, {})[listener] = None

    def unlisten(self, topic_id: int, listener: Listener) -> None:
        listeners = self._listeners.get(topic_id)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._listeners[topic_id]

    def when_told(self, callback: Listener) -> None:
        """Call back whenever the log has told listeners, as the last thing of its turn."""
        self._after_news = callback

    def attend(self) -> None:
        """Try to overcome what stands in the way of writes and reads. Called every now and then."""
        self.wal.attend()
        if self._unread is not None:
            self._rebuild(self._unread)

    def obstacle(self) -> Obstacle | None:
        """Why nobody can write now; None: writes are possible (HM7)."""
        if self.broken is not None:
            return Obstacle("state_unreadable", self.broken.message)
        return self.wal.obstacle()

    def _rebuild(self, void: frozenset[int]) -> None:
        """Start over from the disk after the log failed, without the frames in `void`."""
        old = self.state
        try:
            self.state = self.store.rebuild(void)
        except (StorageError, OSError) as error:
            logger.critical("the state cannot be read back: %s; nothing is served", error)
            self.broken = UnusableDirectory(f"the disk failed, and the state cannot be read back: {error}")
            self._unread = void if isinstance(error, OSError) else None
            return
        self.broken = self._unread = None
        for topic in self.state.topics.values():
            before = old.by_id.get(topic.id) or old.unsaved.get(topic.id)  # a deletion that failed is in the latter
            if before is not None:
                topic.notes.take_over(before.notes)
                if not topic.is_logged:
                    topic.epoch, topic.log, topic.keys = before.epoch, before.log, before.keys
                    topic.cursors, topic.queue = before.cursors, before.queue
                    topic.hops, topic.stamps = before.hops, before.stamps
                    self.state.unsaved[topic.id] = topic  # no snapshot has it as it is, and the log never will (DU9)
                    self.store.catalogue.adopt(topic.log.parts)
                elif topic.is_queue:
                    topic.queue.recovered(topic.log)
                    if not topic.keeps_leases:
                        topic.queue.drop_leases()
                        topic.queue.take_over(before.queue, topic.log)
        self._carry_cursors(old)
        self.state.records, self.state.bytes = dump.totals(self.state.topics.values())
        self.state.memory_beside = old.memory_beside
        weigh_all(self.state)
        self._sources = self.state.routers.outgoing
        self._unwritten.clear()
        self._unsynced.clear()
        self._on_rebuilt()
        for topic_id in list(self._listeners):
            self._tell(topic_id)

    def _carry_cursors(self, old: State) -> None:
        """Routers into topics that are in memory only have come as far as they had before the log failed."""
        for router in self.state.routers.by_id.values():
            before = old.routers.by_id.get(router.id)
            if before is not None and not self.state.by_id[router.dest].is_logged:
                router.cursor = min(before.cursor, self.state.by_id[router.source].log.head)
                router.total = before.total
                self.state.unsaved_routers[router.name] = None
