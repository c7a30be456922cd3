"""Streams of server-sent events, and those of records as readers of live delivery (SS7-SS26, SS28-SS30).

Owns the framing, the ids, heartbeats, and the end of a stream. Must not know: how a stream is opened, when a topic is
read.

A frame has one `data:` line. What streams share is rendered once per push: the whole frame if the session has one
topic, and all but the id otherwise. An id holds all cursors of the session, however many there are, and the epochs they
belong to if the stream was asked to say them. A stream without a session has one of its own, which ends with it.

What the transport still buffers when a stream ends may never have arrived. The session then keeps, beside its cursors,
the cursors from before what is in doubt (`Session.doubtful`).
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from topics.server.auth import READ
from topics.server.live.feeds import Feed, Push, Reader, topic_deleted_json
from topics.server.live.outlet import NEVER, Outlet
from topics.server.live.pressure import RETRY_AFTER_MS
from topics.server.transport.exchange import Stream
from topics.server.wire.streaming import ANOTHER_EPOCH, EPOCHS

if TYPE_CHECKING:
    from topics.server.live.delivery import Delivery
    from topics.server.live.sessions import Session, Sessions

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
STREAM_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
RETRY: Final = b"retry: 2000\n\n"
READS: Final = frozenset((READ,))
STYLES: Final = ("events", "events with epochs")  # of readers, by whether their ids have epochs
SHARED_BYTES_MAX: Final = 64 * 1024  # a larger frame is not copied once more to be sent to all at once
ERROR: Final = b"error"
STREAM_ERROR: Final = b"stream-error"  # EventSource has an event `error` of its own

Doubts = dict[str, tuple[int, int]]  # by topic: a cursor, and the epoch that it belongs to
NOTHING: Final[Doubts] = {}  # shared by all streams, never changed

_encode = msgspec.json.Encoder().encode


class Opening(NamedTuple):
    """How a client asked for a stream."""

    start: Callable[[], Stream]  # answers the request
    peer: tuple[str, int]
    error_name: bytes = ERROR  # of its frame `error` (SS29)
    has_epochs: bool = False  # its ids say which instances the cursors belong to (SS30)


def event_id(feeds: Iterable[Feed], *, has_epochs: bool) -> bytes:
    """The cursors of these feeds as an id (SS14)."""
    positions: dict[str, Any] = {feed.name: feed.cursor for feed in feeds}
    if has_epochs:
        positions[EPOCHS] = {feed.name: feed.epoch for feed in feeds}
    return urlsafe_b64encode(_encode(positions)).rstrip(b"=")


def event(kind: bytes, data: bytes) -> bytes:
    """A frame without an id."""
    return b"event: %b\ndata: %b\n\n" % (kind, data)


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


class Kind:
    """A kind of frame that streams share."""

    __slots__ = ("event", "json")

    def __init__(self, event: bytes, json: Callable[[Push], bytes]) -> None:
        self.event = event
        self.json = json


RECORD: Final = Kind(b"record", lambda push: push.record_json)
TOMBSTONE: Final = Kind(b"tombstone", lambda push: push.tombstone_json(is_first=False))
TOO_OLD: Final = Kind(b"tombstone", lambda push: push.tombstone_json(is_first=True))
CAUGHT_UP: Final = Kind(b"caught-up", lambda push: push.caught_up_json)


class EventStream(Outlet):
    """A stream of events: what the streams of records and of jobs have in common."""

    __slots__ = ()  # these are slots of the subclasses, which may have other bases

    _stream: Stream
    _entry_id: str
    _error_name: bytes

    @property
    def heartbeat_ms(self) -> int:
        """How long it may be silent."""
        raise NotImplementedError

    def stream_writable(self) -> None:
        """The transport takes more again."""
        raise NotImplementedError

    def stream_closed(self) -> None:
        """The stream is over, or is about to be."""
        raise NotImplementedError

    @property
    def is_blocked(self) -> bool:
        return self._stream.is_blocked

    def is_stuck(self) -> bool:
        return self._stream.is_blocked and super().is_stuck()

    @property
    def buffered(self) -> int:
        return self._stream.buffered

    def _open(self, first: bytes) -> None:
        """Send the first frame, and from now on a heartbeat whenever the stream is silent for too long."""
        self._stream.owner = self
        self._write(first)
        self.wheel.add(self, self.sent_at + self.heartbeat_ms)

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self.sent_at = self.wheel.now
        self.is_stuck()

    def beat(self, now: int) -> int:
        if now >= self.sent_at + self.heartbeat_ms:
            self._write(heartbeat(self.wheel.clock.now_ms()))
        return self.sent_at + self.heartbeat_ms

    def error(self, code: int, error: str, **more: Any) -> bytes:
        """A frame that says what is wrong."""
        return event(self._error_name, _encode({"code": code, "error": error, **more}))

    def too_slow(self) -> None:
        self.finish(self.error(408, "nothing was read for too long"), closes=True)

    def shut_down(self) -> None:
        """The server stops."""
        self.finish(self.error(503, "server_shutting_down", retry_after_ms=RETRY_AFTER_MS))

    def dismiss(self) -> None:
        """An operator closes the stream (OB3)."""
        self.finish(self.error(410, "an administrator has closed this stream"), closes=True)

    def unauthorized(self) -> None:
        """The key of this stream is gone, or allows less than the stream needs."""
        self.finish(self.error(401, "the key no longer allows this stream"))

    def finish(self, last: bytes = b"", *, closes: bool = False) -> None:
        """Send a last frame and end."""
        if not self.is_over:
            self.stream_closed()
            self._stream.finish(last, closes=closes)


class SseStream(EventStream, Reader):
    """One open stream of a session. `Sessions.open` makes it."""

    __slots__ = (
        "_delivery",
        "_doubtful",
        "_entry_id",
        "_error_name",
        "_has_epochs",
        "_sessions",
        "_stream",
        "session",
    )

    def __init__(self, delivery: "Delivery", sessions: "Sessions", session: "Session", opening: Opening) -> None:
        stream = opening.start()
        is_alone = len(session.feeds) == 1  # then all streams of its topic at its cursor have the same id
        super().__init__(delivery.wheel, stream, STYLES[opening.has_epochs] if is_alone else None)
        self.session = session
        self._delivery = delivery
        self._sessions = sessions
        self._error_name = opening.error_name
        self._has_epochs = opening.has_epochs
        self._stream = stream
        kind: Final = "watch" if session.is_kept else "events"
        self._entry_id = sessions.registry.enter(self, kind, session.key, opening.peer)
        self._doubtful = NOTHING  # cursors from before what the transport may still buffer

    def start(self) -> None:
        """Send what the session has not received yet, and then what comes."""
        self._open(RETRY)
        self._delivery.add(self, *self.session.feeds.values())
        if not self.session.feeds:
            self.finish()

    @property
    def heartbeat_ms(self) -> int:
        return self.session.heartbeat_ms

    def check_key(self) -> None:
        if not self.session.key.permits(READS, self.session.feeds):
            self.unauthorized()

    # --- what the transport says

    def stream_writable(self) -> None:
        self._delivery.writable(self)

    # --- frames

    def tombstone(self, feed: Feed, push: Push, is_first: bool) -> None:
        self._send(feed, push.after, TOO_OLD if is_first else TOMBSTONE, push)

    def records(self, feed: Feed, push: Push) -> None:
        self._send(feed, push.start, RECORD, push)

    def caught_up(self, feed: Feed, push: Push) -> None:
        self._send(feed, feed.cursor, CAUGHT_UP, push)

    def topic_deleted(self, feed: Feed) -> None:
        self._write(self._with_id(event(b"topic-deleted", topic_deleted_json(feed))))
        if not self.feeds:
            self.finish()

    def _send(self, feed: Feed, before: int, kind: Kind, push: Push) -> None:
        """Send a frame whose id has the feed's new cursor; until now it was `before`."""
        stream, frame = self._stream, None
        if self.style is not None:
            frame = push.rendered.get((kind, self._has_epochs))
        if frame is None:
            frame = self._frame(kind, push)
        stream.write(frame)
        self.sent_at = push.at
        if stream.buffered:
            self.is_stuck()
            self._doubt(feed, before, kind, push)
        else:
            self._doubtful = NOTHING
            if kind is RECORD and self.style and len(frame) <= SHARED_BYTES_MAX and (part := stream.part(frame)):
                push.rendered[self.style] = part

    def rest(self, feed: Feed, push: Push, rest: bytes) -> None:
        self._stream.write_rest(rest)
        self.is_stuck()
        self._doubt(feed, push.start, RECORD, push)

    def _doubt(self, feed: Feed, before: int, kind: Kind, push: Push) -> None:
        """The transport still has something of what was sent."""
        if feed.name not in self._doubtful:
            if self._doubtful is NOTHING:
                self._doubtful = {}
            lost = push.result.tombstone
            is_of_another = kind.event == TOMBSTONE.event and lost is not None and lost.reason == "recreated"
            self._doubtful[feed.name] = (before, ANOTHER_EPOCH if is_of_another else feed.epoch)

    def _frame(self, kind: Kind, push: Push) -> bytes:
        rendered = push.rendered
        frame = rendered.get(kind)
        if frame is None:
            frame = rendered[kind] = event(kind.event, kind.json(push))
        whole = self._with_id(frame)
        if self.style is not None:
            rendered[kind, self._has_epochs] = whole
        return whole

    def _with_id(self, frame: bytes) -> bytes:
        feeds = self.session.feeds.values()
        return b"id: %b\n%b" % (event_id(feeds, has_epochs=self._has_epochs), frame)

    def paced(self, topics: Sequence[str], retry_after_ms: int) -> None:
        self._write(self.error(429, "paced under pressure", retry_after_ms=retry_after_ms, topics=topics))

    # --- the end

    def failed(self, error: BaseException) -> None:
        self.finish(self.error(500, "the records cannot be read"))

    def replaced(self) -> None:
        """A newer stream takes the session over (SS22)."""
        self.finish(self.error(409, "replaced by a newer stream of this session"))

    def dismiss(self) -> None:
        self._sessions.remove(self.session)
        super().dismiss()

    def stream_closed(self) -> None:
        if not self.is_over:
            self._sessions.registry.leave(self._entry_id)
            is_in_doubt = self.blocked_at != NEVER or self._stream.buffered > 0
            self._delivery.close(self)
            self._sessions.ended(self.session, self._doubtful if is_in_doubt else NOTHING)
