"""Watch sessions: what a client subscribed to, and how far it has got (SS1-SS6, SS15, SS22, SS27, SS28).

Owns the sessions by their wid, their expiry after SESSION_TTL_MS without a stream, and the opening of their streams. A
stream without a session has one that nobody can find, for as long as it lasts. Must not know: requests, frames.

Invariants: a session has at most one stream; it is in `_idle` exactly while it has none, longest idle first, so that a
sweep looks only at what has expired; a session that can be found takes up a slot of `Slots.sessions`, and every stream
a slot of `Slots.streams` under the key that created its session.
"""

import re
from base64 import urlsafe_b64encode
from secrets import token_bytes
from typing import Final

from topics.server.auth import Key
from topics.server.live.delivery import Delivery
from topics.server.live.feeds import FEED_BYTES, Feed, Template
from topics.server.live.registry import Registry
from topics.server.live.sse import NOTHING, Doubts, Opening, SseStream
from topics.server.slots import Slots
from topics.server.wire.streaming import ANOTHER_EPOCH, NO_POSITIONS, Positions

SESSION_TTL_MS: Final = 300_000
SESSION_BYTES: Final = 1000  # what one weighs in memory, beside its feeds
WID_BYTES: Final = 16
WID: Final = re.compile(r"wid_[A-Za-z0-9_-]{22}", re.ASCII)


class Session:
    """A subscription and its cursors. `feeds` are those of its stream, or of its last one. No wid: for one stream."""

    __slots__ = ("doubtful", "feeds", "heartbeat_ms", "idle_since", "key", "stream", "template", "wid")

    def __init__(self, wid: str, key: Key, template: Template, heartbeat_ms: int, feeds: dict[str, Feed]) -> None:
        self.wid = wid
        self.key = key
        self.template = template
        self.heartbeat_ms = heartbeat_ms
        self.feeds = feeds
        self.stream: SseStream | None = None
        self.idle_since = 0  # milliseconds of the monotonic clock
        self.doubtful = NOTHING  # cursors from before what the last stream may not have delivered

    @property
    def is_kept(self) -> bool:
        """Whether the session outlives its stream."""
        return bool(self.wid)

    def rewind(self, told: Positions) -> None:
        """Make the feeds of a new stream. `told`, what the client says it has, only ever moves a cursor back."""
        self.feeds = {name: self._rewound(feed, told) for name, feed in self.feeds.items()}
        self.doubtful = NOTHING

    def _rewound(self, feed: Feed, told: Positions) -> Feed:
        """A client that does not mention a topic, or not its epoch, may have missed what is in doubt.

        Where client and session speak of two instances of a topic, one of them is not the present one.
        """
        name = feed.name
        cursor, epoch = told.cursors.get(name), told.epochs.get(name)
        doubt = self.doubtful.get(name)
        if doubt is not None and (cursor is None or (epoch is None and doubt[1] != feed.epoch)):
            cursor, epoch = doubt
        if cursor is None:
            cursor, epoch = feed.cursor, feed.epoch
        if epoch is None or epoch == feed.epoch:
            return Feed(name, self.template, feed.epoch, min(cursor, feed.cursor), feed.head)
        return Feed(name, self.template, ANOTHER_EPOCH, cursor, feed.head)


class Sessions:
    """All sessions of a server."""

    def __init__(self, delivery: Delivery, slots: Slots, registry: Registry) -> None:
        self.registry = registry
        self._delivery = delivery
        self._slots = slots
        self._sessions: dict[str, Session] = {}  # by wid
        self._idle: dict[str, Session] = {}  # without a stream, longest idle first

    def create(self, key: Key, template: Template, heartbeat_ms: int, feeds: dict[str, Feed], wid: str = "") -> Session:
        """Create a session, under a `wid` that is not in use if one is given. Throttled: as many as may be exist."""
        self._sweep()
        self._slots.take_session(key)
        self._delivery.hold(_weight(template, feeds))
        wid = wid or "wid_" + urlsafe_b64encode(token_bytes(WID_BYTES)).rstrip(b"=").decode()
        session = self._sessions[wid] = Session(wid, key, template, heartbeat_ms, feeds)
        self._rest(session)
        return session

    def check_room(self, topics: int) -> None:
        """Throttled: so many topics more cannot be followed, sessions that have expired aside."""
        self._sweep()
        self._delivery.check_held(FEED_BYTES * topics)

    def find(self, wid: str) -> Session | None:
        """The session of this wid; None if there is none, or it has expired."""
        self._sweep()
        return self._sessions.get(wid)

    def remove(self, session: Session) -> None:
        """Forget a session; its wid is unknown from now on."""
        if self._sessions.pop(session.wid, None) is not None:
            self._idle.pop(session.wid, None)
            self._let_go(session)
            session.wid = ""

    def open(self, session: Session, opening: Opening, told: Positions = NO_POSITIONS) -> None:
        """Open a stream in place of the session's present one. Throttled: no slot is free."""
        if session.stream is not None:
            session.stream.replaced()
        self._slots.take_stream(session.key)
        self._idle.pop(session.wid, None)
        session.idle_since = 0
        try:
            session.rewind(told)
            session.stream = SseStream(self._delivery, self, session, opening)
        except BaseException:
            self.ended(session, NOTHING)
            raise
        session.stream.start()

    def ended(self, session: Session, doubtful: Doubts) -> None:
        """For the stream: it is over."""
        session.stream = None
        session.doubtful = doubtful
        self._slots.give_stream(session.key)
        self._rest(session)

    def _rest(self, session: Session) -> None:
        if session.is_kept:
            session.idle_since = self._delivery.wheel.now
            self._idle[session.wid] = session

    def _sweep(self) -> None:
        """Drop the sessions that have been without a stream for too long."""
        until = self._delivery.wheel.now - SESSION_TTL_MS
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since > until:
                return
            del self._idle[session.wid], self._sessions[session.wid]
            self._let_go(session)

    def _let_go(self, session: Session) -> None:
        self._slots.give_session(session.key)
        self._delivery.hold(-_weight(session.template, session.feeds))


def _weight(template: Template, feeds: dict[str, Feed]) -> int:
    """What a session holds in memory."""
    return SESSION_BYTES + template.weight + FEED_BYTES * len(feeds)
