"""Live delivery: what is new in a topic goes to every connection that follows it, over SSE or WebSocket.

    feed = Feed("orders", Template.of(...), epoch, cursor)
    delivery.add(reader, feed)       # the backlog, then what comes; takes several feeds, too
    delivery.writable(reader)        # it takes frames again, after `is_stuck`
    delivery.remove(feed)            # one topic less
    delivery.close(reader)           # the connection is gone

Owns which feeds follow which topic, and what each is given when its topic is served; `rounds` says when that is. A
`Reader` (feeds.py) turns what was read into frames of its protocol. Must not know: HTTP, SSE, WebSocket, sessions.

How it works. The engine tells one listener per topic that there may be something new, and the topic is served in the
next pass. In a pass, feeds of a topic that stand at the same cursor and ask for the same share one read (`Push`), and
whatever readers render of it (SS21). A read is shown when its gate is open; until then its feeds wait. A feed with a
long backlog gets one read per pass.

Pages of segments are loaded one at a time per topic, once all that is in memory was read: in the order of their seqs,
and then from the beginning again. A feed that has read a page needs the next one, which is loaded next; so feeds that
are far behind meet and go on together, however small the cache.

Invariants
- A feed is registered with its topic before it is first read, so no news is missed; nothing polls.
- A feed is read only if its reader can take a frame, it waits for no read, and its topic is not deferred. Else it is
  marked, and what ends that state has it served again.
- `cursor` moves only when what lies behind it was given to the reader: nothing is lost, and nothing comes twice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from topics.engine.instance import Cold, Instance, PageAddress, Query
from topics.errors import TopicsError
from topics.server.live.feeds import FEED_BYTES, Feed, Hub, Push, Reader, Template
from topics.server.live.outlet import TICK_MS, Wheel
from topics.server.live.pressure import Pressure
from topics.server.live.rounds import Rounds, real_clock
from topics.uring.sends import AT_ONCE, Sends

logger = logging.getLogger("topics.server")

Pushes = dict[tuple[int, int, Template], Push | list[Feed]]  # by cursor, instance and template; see `Delivery._read`


class Read(NamedTuple):
    """What a feed was given, and where it stood."""

    after: int
    epoch: int
    template: Template | None
    push: Push | list[Feed]
    frames: Mapping[object, bytes]  # of the push, by style, if it is a plain one


NO_FRAMES: Final[Mapping[object, bytes]] = {}
NO_READ: Final = Read(-1, -1, None, [], NO_FRAMES)


class Wave:
    """Feeds of one read that are sent the same bytes at once. Until then they are marked as waiting."""

    __slots__ = ("descriptors", "feeds", "frame", "push")

    def __init__(self) -> None:
        self.feeds: list[Feed] = []
        self.descriptors: list[int] = []
        self.frame = b""
        self.push: Push | list[Feed] = []


class Delivery:
    """All live connections of a server."""

    def __init__(self, engine: Instance, pressure: Pressure) -> None:
        self.wheel = Wheel(engine.clock, min(TICK_MS, max(1, engine.settings.test_min_heartbeat_ms // 4)))
        self._engine = engine
        self._hubs: dict[int, Hub] = {}  # by topic id
        self.records_total = 0  # given to readers so far, each time counted
        self.rounds = Rounds(engine.clock, pressure, self._serve_safely)
        engine.when_told(self.rounds.serve_at_once)

        self._sends = Sends()
        self.hold = engine.footprint.hold
        self.check_held = engine.footprint.check_held

    # --- connections and their feeds

    def close(self, reader: Reader) -> None:
        """The connection is gone, or about to be."""
        reader.is_over = True
        self.wheel.discard(reader)
        for feed in list(reader.feeds.values()):
            self.remove(feed)

    def add(self, reader: Reader, *feeds: Feed) -> None:
        """Follow topics from the feeds' cursors on. A topic that does not exist is reported as deleted."""
        for feed in feeds:
            feed.reader = reader
            reader.feeds[feed.name] = feed
            shared = feed.template.weight // len(feeds)
            feed.weight = FEED_BYTES + shared if shared else FEED_BYTES  # not a number of its own for each
            self.hold(feed.weight)
        for feed in feeds:
            self._join(feed)

    def _join(self, feed: Feed) -> None:
        if feed.reader is None:
            return
        topic = self._engine.follow(feed.name)
        if topic is None:
            self._miss(feed)
            return
        hub = self._hubs.get(topic.id)
        if hub is None:
            hub = self._hubs[topic.id] = Hub(topic, self.rounds.wake)
            self._engine.listen(topic.id, hub.wake)
        hub.feeds[feed] = None
        feed.hub = hub
        self.rounds.push_soon(feed)

    def remove(self, feed: Feed) -> None:
        """Stop following a topic."""
        hub, reader = feed.hub, feed.reader
        feed.hub = feed.reader = None
        self.hold(-feed.weight)
        feed.weight = 0
        if reader is not None and reader.feeds.get(feed.name) is feed:
            del reader.feeds[feed.name]
        if hub is not None:
            hub.feeds.pop(feed, None)
            if not hub.feeds:
                self._hubs.pop(hub.id, None)
                self.rounds.deferred.discard(hub)
                self._let_page_go(hub)
                self._engine.unlisten(hub.id, hub.wake)

    def writable(self, reader: Reader) -> None:
        """For the reader's transport: it takes frames again."""
        was_stalled = reader.unblocked()
        for feed in reader.feeds.values():
            feed.is_first = feed.is_first or was_stalled
            if feed.is_behind:
                self.rounds.push_soon(feed)

    async def stop(self) -> None:
        """Nothing is delivered any more."""
        self.wheel.stop()
        await self.rounds.stop()
        self._sends.close()

    # --- serving a topic

    def _serve_safely(self, hub: Hub, slice_end: float) -> bool:
        try:
            return self._serve(hub, slice_end)
        except Exception as error:
            logger.exception('topic "%s" could not be delivered', hub.name)
            for reader in [feed.reader for feed in hub.feeds]:
                if reader is not None:
                    reader.failed(error)
            return True

    def _serve(self, hub: Hub, slice_end: float) -> bool:
        """Give each pending feed what one read yields. False: time ran out before all were served."""
        topic = hub.topic
        if not topic.refresh():
            self._lose(hub)
            return True
        if hub.is_dirty and not hub.is_midway:  # else the last feeds of a long pass would never be served
            hub.is_dirty = False
            hub.pending = deque(hub.feeds)
        hub.is_midway = False
        wave = Wave()
        try:
            is_done = self._serve_pending(hub, slice_end, wave)
        finally:
            self._send(wave)
        if not is_done:
            return False
        if not hub.is_loading:
            self._let_page_go(hub)
        if hub.cold and not hub.is_loading and not hub.pending:
            hub.is_loading = True
            self.rounds.spawn(self._load_next(hub))
        return True

    def _serve_pending(self, hub: Hub, slice_end: float, wave: Wave) -> bool:
        pending, hub.pending = hub.pending, deque()
        head, epoch = hub.topic.head, hub.topic.epoch
        pushes: Pushes = {}
        count, last = 0, NO_READ  # most feeds share the read of the one before
        while pending:
            feed = pending.popleft()
            reader = feed.reader
            if reader is None or feed.is_waiting or feed.hub is not hub:
                continue
            cursor, template = feed.cursor, feed.template
            if cursor == head and feed.epoch == epoch and not feed.is_due:
                continue
            is_shared = (
                cursor == last.after and feed.epoch == last.epoch and template is last.template and not feed.is_apart
            )
            frame = last.frames.get(reader.style) if is_shared and not feed.is_due else None
            if frame is not None and reader.line.is_clear:
                if not self._join_wave(wave, feed, reader, last.push, frame):
                    continue
            elif reader.is_stuck():
                feed.is_behind = True
                continue
            else:
                last = self._serve_alone(feed, pushes, last, is_shared)
                count += 1
                is_long = template.match is not None or bool(template.nodes)  # it may have had its share (LM13)
                if not is_long and count & 15:
                    continue
            if pending and real_clock.monotonic() >= slice_end:
                pending.extend(hub.pending)
                hub.pending, hub.is_midway = pending, True
                return False
        return True

    def _serve_alone(self, feed: Feed, pushes: Pushes, last: Read, is_shared: bool) -> Read:
        """Give one feed what a read yields, the last one or its own. Returns the one that the next feed may share."""
        template = feed.template
        if is_shared:
            push = last.push
        else:
            push = self._push(feed, template if feed.is_apart else template.base, pushes)
            if template.nodes and isinstance(push, Push) and not template.nodes.isdisjoint(push.result.nodes):
                push = self._push(feed, template, pushes)
            elif not feed.is_apart and not template.nodes:
                frames = push.rendered if isinstance(push, Push) and push.is_plain else NO_FRAMES
                last = Read(feed.cursor, feed.epoch, template, push, frames)
        if isinstance(push, Push):
            self._deliver(feed, push)
        else:
            feed.is_waiting = True
            push.append(feed)
        return last

    def _join_wave(self, wave: Wave, feed: Feed, reader: Reader, push: Push | list[Feed], frame: bytes) -> bool:
        """Give a feed whose line is clear what others get with it. True: the wave was full, and is sent."""
        if frame is not wave.frame:
            self._send(wave)
            wave.frame, wave.push = frame, push
        feed.is_waiting = True
        wave.feeds.append(feed)
        wave.descriptors.append(reader.line.descriptor)
        if len(wave.feeds) < AT_ONCE:
            return False
        self._send(wave)
        return True

    def _send(self, wave: Wave) -> None:
        """Send what a wave has gathered, as `_deliver` would to each; it is empty then."""
        feeds, push, frame = wave.feeds, wave.push, wave.frame
        if not feeds:
            return
        assert isinstance(push, Push)
        short = self._sends.send(wave.descriptors, frame)
        result, at = push.result, push.at
        cursor, head = result.next_from_seq, result.head_seq
        for feed in feeds:
            feed.cursor, feed.head = cursor, head
            feed.is_first = feed.is_waiting = False
            if feed.reader is not None:
                feed.reader.sent_at = at
        self.records_total += result.count * len(feeds)
        wave.feeds, wave.descriptors = [], []
        for number, taken in short:
            feed = feeds[number]
            if feed.reader is not None:
                feed.reader.rest(feed, push, frame[taken:])

    def _deliver(self, feed: Feed, push: Push) -> None:
        reader, result = feed.reader, push.result
        assert reader is not None
        feed.epoch, feed.head = result.epoch, result.head_seq
        if result.tombstone is not None:
            feed.cursor = push.start
            reader.tombstone(feed, push, feed.is_first)
        feed.is_first = feed.is_apart = False
        feed.cursor = result.next_from_seq
        if result.count:
            self.records_total += result.count
            reader.records(feed, push)
        if not result.caught_up:
            feed.is_due = True
            self.rounds.push_soon(feed)
        elif feed.is_due:
            feed.is_due = False
            reader.caught_up(feed, push)

    def _push(self, feed: Feed, template: Template, pushes: Pushes) -> "Push | list[Feed]":
        """The read for a feed, shared with the feeds at the same cursor."""
        key = (feed.cursor, feed.epoch, template)
        push = pushes.get(key)
        if push is None:
            push = pushes[key] = self._read(feed, template)
        return push

    def _read(self, feed: Feed, template: Template) -> "Push | list[Feed]":
        """What lies behind a feed's cursor; or, while that may not be shown, the list of feeds that wait for it."""
        engine = self._engine
        waiting: list[Feed] = []
        query = Query(
            feed.cursor,
            template.limit,
            template.bytes_max,
            template.nodes,
            template.match,
            feed.epoch,
            template.projection,
            stops_at_cold=True,
        )
        try:
            result, gate = engine.read_now(feed.name, query)
        except Cold as cold:
            assert feed.hub is not None
            feed.hub.cold.setdefault(cold.missing, []).append(waiting)
            return waiting
        if template.is_strong:
            gate = gate.wholly_synced()
        push = Push(feed.cursor, result, self.wheel.now)
        if engine.is_open(gate):
            return push
        engine.when_open(gate, lambda failure: self._opened(waiting, push, failure, template.is_strong))
        return waiting

    def _opened(self, waiting: list[Feed], push: Push, failure: TopicsError | None, is_strong: bool) -> None:
        """The gate of a read is open, or has failed; then the read is made again."""
        if failure is not None and is_strong and self._engine.wal.is_read_only:
            return  # nothing will be synced any more
        wave = Wave()
        try:
            for feed in waiting:
                feed.is_waiting = False
                if feed.reader is None:
                    continue
                if failure is None and not feed.reader.is_stuck():
                    self._show(feed, feed.reader, push, wave)
                self.rounds.push_soon(feed)
        finally:
            self._send(wave)

    def _show(self, feed: Feed, reader: Reader, push: Push, wave: Wave) -> None:
        """Give a feed a read that it has waited for, unless there are records of its own nodes in it."""
        feed.is_apart = not feed.template.nodes.isdisjoint(push.result.nodes)
        if feed.is_apart:
            return
        frame = push.rendered.get(reader.style) if push.is_plain and not feed.is_due else None
        if frame is not None and reader.line.is_clear:
            self._join_wave(wave, feed, reader, push, frame)
        else:
            self._deliver(feed, push)

    async def _load_next(self, hub: Hub) -> None:
        """Load the next page that feeds wait for; they are served first in the next pass, which finds it there."""
        missing, readings = hub.next_cold()
        self._engine.keep_page(missing)
        self._let_page_go(hub)
        hub.kept = missing
        try:
            await self._load(missing, readings)
        finally:
            hub.is_loading = False
        self.rounds.serve_soon(hub)

    def _let_page_go(self, hub: Hub) -> None:
        self._engine.let_page_go(hub.kept)
        hub.kept = 0

    async def _load(self, missing: PageAddress | int, readings: list[list[Feed]]) -> None:
        """Load what a read lacks, and read again."""
        feeds = [feed for waiting in readings for feed in waiting]
        try:
            await self._engine.load(missing)
        except Exception as error:
            logger.error("a stream's records cannot be read: %s", error)
            for feed in feeds:
                if feed.reader is not None:
                    feed.reader.failed(error)
        for feed in feeds:
            feed.is_waiting = False
            self.rounds.push_soon(feed)

    # --- topics that are gone

    def _lose(self, hub: Hub) -> None:
        """The topic is gone. Its feeds are told once that is synced."""
        gate = self._engine.gate(None)
        hub.is_dirty = False
        hub.pending.clear()
        if not self._engine.is_open(gate):
            self._engine.when_open(gate, lambda _: hub.wake())
            return
        for feed in list(hub.feeds):
            feed.head = hub.topic.head
            self._tell_deleted(feed)

    def _miss(self, feed: Feed) -> None:
        """There was no topic of this name when a feed tried to join it."""
        gate = self._engine.gate(None)
        if self._engine.is_open(gate):
            self._tell_deleted(feed)
        else:
            self._engine.when_open(gate, lambda _: self._join_later(feed))

    def _join_later(self, feed: Feed) -> None:
        """Join in a later turn: a gate that cannot open calls back at once, again and again."""
        asyncio.get_running_loop().call_soon(self._join, feed)

    def _tell_deleted(self, feed: Feed) -> None:
        reader = feed.reader
        self.remove(feed)
        if reader is not None:
            reader.topic_deleted(feed)
