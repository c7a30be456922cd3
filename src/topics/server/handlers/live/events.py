"""Streams of events: that of a session, also of one that is gone (SS6, SS27), and those without a session (SS28).

The route of a session's stream has its own order of checks: 406 → 404 → 401 → 429; a key that has lost what its
session needs gets 403 (AU17). If the session is gone and the client says what it has received, the session is made
anew: 406 → 404 if it says nothing → 401 → 403 scope → 403 names → 400 → 404 if no topic is left → 429.

A stream without a session: 400 → 403 names → 406 → 404 → 429.
"""

from collections.abc import Collection
from functools import reduce
from typing import Final

from topics.errors import NotAcceptable, NotFound, TopicNotFound, Unauthorized
from topics.model import is_topic_name
from topics.server.auth import ANYONE, READ
from topics.server.call import Call
from topics.server.handlers.live.watch import feed_of, heartbeat_of, states_of, template_of
from topics.server.live.feeds import Feed, Template
from topics.server.live.sessions import WID, Session
from topics.server.live.sse import EVENT_STREAM, STREAM_ERROR, STREAM_HEADERS, Opening
from topics.server.transport.exchange import Request
from topics.server.wire.requests import WatchIn
from topics.server.wire.streaming import (
    ANOTHER_EPOCH,
    NO_POSITIONS,
    Positions,
    decode_positions,
    error_event_in,
    positions_in,
    stream_in,
    topics_in,
)

READS: Final = frozenset((READ,))
EVENTS_ACCEPTED: Final = frozenset((b"text/event-stream", b"*/*"))
NO_SESSION: Final = "there is no such watch session, or it has expired; create one with POST /v0/watch"


def check_accept(request: Request) -> None:
    accepted = request.header_values(b"accept")
    choices = {choice.partition(b";")[0].strip().lower() for choice in b",".join(accepted).split(b",")}
    if accepted and not choices & EVENTS_ACCEPTED:
        raise NotAcceptable("this is a stream of text/event-stream, which Accept leaves out")


def opening_of(call: Call, error_name: bytes, *, has_epochs: bool = False) -> Opening:
    """How a call opens a stream."""
    return Opening(lambda: call.start_stream(EVENT_STREAM, STREAM_HEADERS), call.request.peer, error_name, has_epochs)


# --- the stream of a session


def open_stream(call: Call) -> None:
    app = call.app
    if not app.is_serving:
        raise app.unavailable()
    check_accept(call.request)
    session = app.watch.find(call.name)
    if session is None:
        told = _told(call)
        if not told or not WID.fullmatch(call.name):
            raise NotFound(NO_SESSION)
        app.spawn(_revive(call, told[0]), call)
        return
    _check_owner(call, session)
    error_event_in(call.parameters)
    app.check_slot(call)
    if app.pressure.is_refusing:
        app.spawn(_open_parked(call), call)
    else:
        _open(call, session, _lowest(call))


def _check_owner(call: Call, session: Session) -> None:
    if call.key is not session.key:
        raise Unauthorized("the key that created this session is needed")


async def _open_parked(call: Call) -> None:
    await call.app.pressure.park(call.stop)
    session = call.app.watch.find(call.name)
    if session is None:
        raise NotFound(NO_SESSION)
    _open(call, session, _lowest(call))


def _open(call: Call, session: Session, told: Positions) -> None:
    session.key.check_still(READS, session.feeds)  # keys may change between POST and GET
    has_epochs = call.parameters.flag("epochs", False)
    call.app.watch.open(session, opening_of(call, error_event_in(call.parameters), has_epochs=has_epochs), told)
    call.stream_opened()


def _lowest(call: Call) -> Positions:
    """What the client certainly has, whichever of its ids is right (SS15)."""
    return reduce(Positions.lowest, _told(call), NO_POSITIONS)


def _told(call: Call) -> list[Positions]:
    """What the client says it has received: by Last-Event-ID, then by `cursor`; what cannot be read is ignored."""
    header = call.request.headers.get(b"last-event-id")
    return positions_in((None if header is None else header.decode("latin-1"), call.parameters.text("cursor")))


# --- a session that is gone


async def _revive(call: Call, told: Positions) -> None:
    """Recreate a session under its wid from what the client says it has received."""
    app, key = call.app, call.key
    if app.keyring and key is ANYONE:
        raise Unauthorized("the key that created this session is needed")
    key.check_still(READS, told.cursors)
    names = [name for name in told.cursors if is_topic_name(name)]
    if not names:
        raise NotFound(NO_SESSION)
    asked = stream_in(call.request.query, call.parameters, names, app.settings)
    error_event_in(call.parameters)
    template = template_of(asked, app.settings, is_strong=asked.consistency == "strong")
    feeds = await _feeds(call, asked, template, told)
    app.check_slot(call)
    session = app.watch.find(call.name)
    if session is not None:  # it was made anew meanwhile
        _check_owner(call, session)
        _open(call, session, _lowest(call))
        return
    session = app.watch.create(key, template, heartbeat_of(asked, app.settings), feeds, call.name)
    try:
        _open(call, session, NO_POSITIONS)
    except BaseException:
        app.watch.remove(session)
        raise


# --- streams without a session


async def open_topic_events(call: Call) -> None:
    await _open_alone(call, (call.name,))


async def open_events(call: Call) -> None:
    names = topics_in(call.request.query, call.app.settings)
    await _open_alone(call, names)


async def _open_alone(call: Call, names: Collection[str]) -> None:
    """Last-Event-ID alone says where to go on, and else `cursor`, for those topics that it names."""
    app, settings = call.app, call.app.settings
    asked = stream_in(call.request.query, call.parameters, names, settings)
    template = template_of(asked, settings, is_strong=asked.consistency == "strong")
    cursor = call.parameters.text("cursor")
    if cursor is not None:
        decode_positions(cursor)
    call.key.check_names(names)
    check_accept(call.request)
    told = next(iter(_told(call)), NO_POSITIONS)
    feeds = await _feeds(call, asked, template, told)
    call.key.check_still(READS, names)
    session = Session("", call.key, template, heartbeat_of(asked, settings), feeds)
    app.watch.open(session, opening_of(call, STREAM_ERROR, has_epochs=True))
    call.stream_opened()


async def _feeds(call: Call, asked: WatchIn, template: Template, told: Positions) -> dict[str, Feed]:
    """What to follow. A topic that is gone is announced as deleted, unless none is left or the client never saw it."""
    app = call.app
    states = await states_of(app, asked.topics, lambda: call.stop, is_lenient=True)
    missing = [name for name in asked.topics if name not in states]
    unseen = [name for name in missing if name not in told.cursors]
    if unseen or not states:
        raise TopicNotFound((unseen or missing)[0])
    if not app.is_serving:
        raise app.unavailable()
    feeds = {}
    for name in asked.topics:
        if name in states:
            feeds[name] = feed_of(states[name], asked, template, told)
        else:
            cursor = told.cursors[name]
            feeds[name] = Feed(name, template, told.epochs.get(name, ANOTHER_EPOCH), cursor, cursor)
    return feeds
