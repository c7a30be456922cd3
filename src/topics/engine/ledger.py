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
from topics.core import decide, entries
from topics.core.apply import apply, apply_appended, revive
from topics.core.entries import (
    GROWING,
    UNLOGGED,
    AnyEntry,
    Appended,
    Forwarding,
    HeadInherited,
    QueuePaused,
    Reserved,
    TimePassed,
    TopicConfigured,
    TopicDeleted,
)
from topics.core.framing import Frame, concerned, frames_of, sync_needed
from topics.core.state import State, Topic
from topics.engine.durability.store import Store
from topics.errors import CommitFailed, StorageError, TopicNotFound, UnusableDirectory
from topics.storage.wal import READ_ONLY, DiskFull, Obstacle, Wal, resolve

logger = logging.getLogger("topics.engine.ledger")

Listener = Callable[[], None]
# What the log has of a change of an ephemeral topic.
LASTING = (TopicConfigured, TopicDeleted, QueuePaused, HeadInherited, Reserved)


class Listeners:
    """Who is told when something new can be read of a topic, and what is to be told once the log has it."""

    def __init__(self) -> None:
        self.by_topic: dict[int, dict[Listener, None]] = {}  # in the order in which they came
        self.unwritten: deque[tuple[int, int]] = deque()  # position, topic: to be told when it is written
        self.unsynced: deque[tuple[int, int]] = deque()  # the same for synced
        self._after_news: Listener = lambda: None

    def listen(self, topic_id: int, listener: Listener) -> None:
        """Call `listener` whenever something new can be read of a topic, or it is gone."""
        self.by_topic.setdefault(topic_id, {})[listener] = None

    def unlisten(self, topic_id: int, listener: Listener) -> None:
        listeners = self.by_topic.get(topic_id)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self.by_topic[topic_id]

    def when_told(self, callback: Listener) -> None:
        """Call back whenever the log has told listeners, as the last thing of its turn."""
        self._after_news = callback

    def tell(self, topic_id: int) -> None:
        for listener in list(self.by_topic.get(topic_id, ())):
            listener()

    def tell_reached(self, written: int, synced: int) -> None:
        """The log has been written or synced up to here: tell those who wait for that."""
        is_news = False
        for queue, reached in ((self.unwritten, written), (self.unsynced, synced)):
            while queue and queue[0][0] <= reached:
                self.tell(queue.popleft()[1])
                is_news = True
        if is_news:
            self._after_news()

    def tell_all(self) -> None:
        for topic_id in list(self.by_topic):
            self.tell(topic_id)


class Ledger:
    """The state of an instance, and the log that it is the end of."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.state = State()
        self.store = store
        self.wal: Wal = store.wal
        self.broken: StorageError | None = None  # the log failed, and the state could not be read back
        self._unread: frozenset[int] | None = None  # the state is to be read back without these frames
        self.on_commit: Listener = lambda: None  # something was logged
        self.on_source_change: Callable[[Topic], None] = lambda topic: None  # or a topic in `awaited` changed
        self.on_rebuilt: Listener = lambda: None  # the state is another one
        self.awaited: set[int] = set()  # dests whose change lets a blocked router go on
        self.read_total = 0  # records handed out since the start, of all topics
        self._sources = self.state.routers.outgoing
        self._clock = clock
        self._passing: set[int] = set()  # queues in which so much ends at once that the next turn goes on
        self.listeners = listeners = Listeners()
        self._listened, self._unwritten, self._unsynced = listeners.by_topic, listeners.unwritten, listeners.unsynced
        self.changes = TopicChanges(self, clock)

    async def start(self) -> None:
        """Recover the state."""
        self.state = await self.store.recover()
        self._sources = self.state.routers.outgoing
        revive(self.state)
        self.wal.on_progress = lambda: self.listeners.tell_reached(self.wal.written, self.wal.synced)
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
        have changed nothing. What is known in memory only does not fail: it also corrects what failed.
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
                    if any(map(_is_growing, frame.logged)):
                        raise
                    end = wal.append(payload, frame.needs_sync, depends_on, frees=True)
                for entry in frame.entries:
                    apply(self.state, entry)
                if frame.is_control:
                    self._note_control(frame, end)
                else:
                    self._note_logged(frame, end, depends_on)
                self.on_commit()
            else:
                # a crash would not be known as one, nor what it takes
                if not wal.number and type(decided[0]) not in UNLOGGED:
                    raise CommitFailed(READ_ONLY)
                for entry in frame.entries:
                    apply(self.state, entry)
                for topic in frame.topics:
                    self.listeners.tell(topic.id)
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
        if topic_id in self._listened:
            waiting.append((end, topic_id))
        if topic_id in self._sources or topic_id in self.awaited:
            self.on_source_change(topic)
        self.on_commit()

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
            if topic.id in self._listened:
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
        if topic.id in self._sources or topic.id in self.awaited:
            self.on_source_change(topic)

    def durable_at(self, topic: Topic) -> int:
        """The position below which the log must be synced before all records of a topic are there for good; 0: none."""
        needed = sync_needed(topic, topic.log.head, self.wal.synced, self.wal.end)
        return needed if needed > self.wal.synced else 0

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
        revive(self.state, old)
        for topic in self.state.topics.values():
            if not topic.is_logged:
                self.store.catalogue.adopt(topic.log.parts)
        self._sources = self.state.routers.outgoing
        self._unwritten.clear()
        self._unsynced.clear()
        self.on_rebuilt()
        self.listeners.tell_all()


class TopicChanges:
    """Commits of what makes a topic come, change or go.

    An ephemeral topic changes only once the change is synced: if that failed, its records could not be restored.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._under_way: dict[str, asyncio.Future[None]] = {}  # of ephemeral topics, which wait for their sync

    async def when_unchanging(self, name: str) -> Topic | None:
        """The topic, once no change of it is under way."""
        while name in self._under_way:
            await asyncio.wait([self._under_way[name]])
        return self._ledger.current(name)

    async def commit(self, topic: Topic | None, decided: Sequence[AnyEntry]) -> None:
        """Commit entries by which a topic comes (None), changes or goes."""
        if topic is None or topic.is_logged or self._ledger.broken is not None:
            self._ledger.commit(decided)  # and is refused, if the state is broken
            return
        change = self._under_way[topic.name] = self._when_synced(topic, decided)
        change.add_done_callback(lambda _: self._under_way.pop(topic.name))
        await asyncio.shield(change)

    def _when_synced(self, topic: Topic, decided: Sequence[AnyEntry]) -> "asyncio.Future[None]":
        """Log the change in the turn in which it was decided, and apply it in the one in which the log says that it is
        synced. In any later one the log may have failed, and the state been read back.
        """
        ledger, wal = self._ledger, self._ledger.wal
        lasting = [entry for entry in decided if isinstance(entry, LASTING) and entry.topic == topic.id]
        payload = entries.encode(lasting, self._clock.now_ms())
        end = wal.append(payload, True, frees=any(type(entry) is TopicDeleted for entry in lasting))
        changing = ledger.state.changing
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

        wal.when_synced(end, synced)
        return done

    def _apply_change(self, topic: Topic, lasting: Sequence[AnyEntry], end: int) -> None:
        """Apply the synced change of an ephemeral topic, and commit what follows from it for the records."""
        ledger = self._ledger
        for entry in lasting:
            apply(ledger.state, entry)
        ledger.state.names_at = topic.notes.synced_at = topic.reservation.position = end
        ledger.listeners.tell(topic.id)
        if topic.id in ledger.state.by_id:
            lost = decide.retention(ledger.state, topic, topic.config, self._clock.now_ms())
            if topic.is_logged:
                holes = [entry for entry in lost if entry.topic != topic.id]  # type: ignore[union-attr]
                lost = [*holes, decide.head_inherited(topic), *lost[len(holes) :]]
            if lost:
                ledger.commit(lost)


def _is_growing(entry: AnyEntry) -> bool:
    return type(entry) in GROWING or (isinstance(entry, Forwarding) and bool(entry.entry.runs))
