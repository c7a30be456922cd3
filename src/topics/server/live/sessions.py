"""Watch sessions: what a client subscribed to, and how far it has got (SS1-SS6, SS15, SS22).

Owns the sessions by their wid, their expiry after SESSION_TTL_MS without a stream, and the opening of their streams.
Must not know: requests, frames.

Invariants: a session has at most one stream; it is in `_idle` exactly while it has none, longest idle first, so that a
sweep looks only at what has expired; a session takes up a slot of `Slots.sessions`, and its stream a slot of
`Slots.streams` under the key that created the session.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from secrets import token_bytes
from typing import Final

from topics.errors import NotFound
from topics.server.auth import Key
from topics.server.live.delivery import Delivery
from topics.server.live.feeds import Feed, Template
from topics.server.live.sse import NOTHING, SseStream
from topics.server.slots import Slots
from topics.server.transport.exchange import Stream

SESSION_TTL_MS: Final = 300_000
WID_BYTES: Final = 16


class Session:
    """A subscription and its cursors. `feeds` are those of its stream, or of its last one."""

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

    def rewind(self, resumed: Mapping[str, int]) -> None:
        """Make the feeds of a new stream. `resumed`, what the client says it has, only ever moves a cursor back.

        A client that does not mention a topic may have missed what is in doubt.
        """
        back = {**self.doubtful, **resumed} if resumed else self.doubtful
        self.feeds = {
            name: Feed(name, self.template, feed.epoch, min(feed.cursor, back.get(name, feed.cursor)), feed.head)
            for name, feed in self.feeds.items()
        }
        self.doubtful = NOTHING


class Sessions:
    """All sessions of a server."""

    def __init__(self, delivery: Delivery, slots: Slots) -> None:
        self._delivery = delivery
        self._slots = slots
        self._sessions: dict[str, Session] = {}  # by wid
        self._idle: dict[str, Session] = {}  # without a stream, longest idle first

    def create(self, key: Key, template: Template, heartbeat_ms: int, feeds: dict[str, Feed]) -> Session:
        """Create a session. Throttled: there are as many as there may be."""
        self._sweep()
        self._slots.take_session(key)
        wid = "wid_" + urlsafe_b64encode(token_bytes(WID_BYTES)).rstrip(b"=").decode()
        session = self._sessions[wid] = Session(wid, key, template, heartbeat_ms, feeds)
        self._rest(session)
        return session

    def find(self, wid: str) -> Session:
        """The session of this wid, if it has not expired."""
        self._sweep()
        session = self._sessions.get(wid)
        if session is None:
            raise NotFound("there is no such watch session, or it has expired; create one with POST /v0/watch")
        return session

    def open(self, session: Session, start: Callable[[], Stream], resumed: Mapping[str, int]) -> None:
        """Open a stream in place of the session's present one. Throttled: there are as many as there may be."""
        if session.stream is not None:
            session.stream.replaced()
        self._slots.take_stream(session.key)
        self._idle.pop(session.wid, None)
        try:
            session.rewind(resumed)
            session.stream = SseStream(self._delivery, self, session, start())
        except BaseException:
            self.ended(session, NOTHING)
            raise
        session.stream.start()

    def ended(self, session: Session, doubtful: dict[str, int]) -> None:
        """For the stream: it is over."""
        session.stream = None
        session.doubtful = doubtful
        self._slots.give_stream(session.key)
        self._rest(session)

    def _rest(self, session: Session) -> None:
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
            self._slots.give_session(session.key)
