"""Watch: create a session, open its stream (SS, Appendix A.10).

The route of the stream has its own order of checks (SS6): 406 → 404 → 401 → 429; a key that has lost what its session
needs gets 403 (AU17).
"""

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from topics.engine.answers import TopicState
from topics.engine.instance import Projection
from topics.errors import InvalidRequest, NotAcceptable, TopicNotFound, Unauthorized
from topics.model import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX, LIMIT_DEFAULT, TagMatch
from topics.server.auth import READ
from topics.server.call import Call
from topics.server.live.feeds import Feed, Template
from topics.server.live.sessions import SESSION_TTL_MS, Session
from topics.server.live.sse import EVENT_STREAM, STREAM_HEADERS
from topics.server.transport.exchange import Request
from topics.server.wire.commands import SubscribeIn
from topics.server.wire.replies import WatchedTopic, Watching
from topics.server.wire.requests import HEARTBEAT_MS_MAX, WatchIn, decode_positions, nodes_of, watch_in
from topics.settings import Settings

if TYPE_CHECKING:
    from topics.server.app import App

READS = frozenset((READ,))
EVENTS_ACCEPTED = frozenset((b"text/event-stream", b"*/*"))


async def create_session(call: Call) -> None:
    app, settings = call.app, call.app.settings
    asked = watch_in(call.request.body, settings)
    template = template_of(asked, settings, is_strong=asked.consistency == "strong")
    positions = {} if asked.cursor is None else decode_positions(asked.cursor)
    call.key.check_names(asked.topics)
    is_lenient = call.parameters.flag("lenient", False)
    states = await states_of(app, asked.topics, lambda: call.stop, is_lenient=is_lenient)
    feeds = {name: _feed(state, asked, template, positions) for name, state in states.items()}
    floor_ms = min(settings.test_min_heartbeat_ms, HEARTBEAT_MS_MAX)
    heartbeat_ms = max(floor_ms, min(HEARTBEAT_MS_MAX, asked.heartbeat_ms))
    topics = {
        name: WatchedTopic(state.epoch, feeds[name].cursor, state.head_seq, state.earliest_seq)
        for name, state in states.items()
    }
    session = app.watch.create(call.key, template, heartbeat_ms, feeds)
    call.answer(200, Watching(session.wid, f"/v0/watch/{session.wid}", SESSION_TTL_MS, topics, call.performance()))


def template_of(
    asked: WatchIn | SubscribeIn, settings: Settings, limit_default: int = LIMIT_DEFAULT, *, is_strong: bool = False
) -> Template:
    """How the feeds of a session or of a subscription read; ranges are clamped (SS1)."""
    return Template.of(
        min(asked.limit or limit_default, settings.max_limit),
        min(asked.max_batch_bytes or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX),
        nodes_of(asked.node, settings),
        None if asked.filter is None else TagMatch.parse(asked.filter, "filter"),
        Projection(asked.include_tags, asked.include_meta, asked.include_data),
        is_strong,
    )


async def states_of(
    app: "App", names: Collection[str], stop: Callable[[], "asyncio.Future[None]"], *, is_lenient: bool
) -> dict[str, TopicState]:
    """The topics to follow as they are now, after a wait if there is pressure; lenient: those that exist."""
    states = await _states_now(app, names, is_lenient)
    if app.pressure.is_refusing:
        await app.pressure.park(stop())
        states = await _states_now(app, names, is_lenient)
    return states


async def _states_now(app: "App", names: Collection[str], is_lenient: bool) -> dict[str, TopicState]:
    states = {}
    for name in names:
        try:
            states[name] = await app.engine.topic_state(name, touch=False)
        except TopicNotFound:
            if not is_lenient:
                raise
    return states


def _feed(state: TopicState, asked: WatchIn, template: Template, positions: dict[str, int]) -> Feed:
    """A feed of a new session. The cursor of the request has precedence over `tail`, and `tail` over `from_seq`."""
    topic = asked.topics[state.topic]
    cursor = positions.get(state.topic, state.head_seq if topic.tail else topic.from_seq)
    return Feed(state.topic, template, state.epoch, cursor, state.head_seq)


def open_stream(call: Call) -> None:
    app = call.app
    if not app.is_serving:
        raise app.unavailable()
    check_accept(call.request)
    session = app.watch.find(call.name)
    if call.key is not session.key:
        raise Unauthorized("the key that created this session is needed")
    app.check_slot(call)
    if app.pressure.is_refusing:
        app.spawn(_open_parked(call), call)
    else:
        _open(call, session)


async def _open_parked(call: Call) -> None:
    await call.app.pressure.park(call.stop)
    _open(call, call.app.watch.find(call.name))


def _open(call: Call, session: Session) -> None:
    session.key.check_still(READS, session.feeds)  # keys may change between POST and GET
    call.app.watch.open(session, lambda: call.start_stream(EVENT_STREAM, STREAM_HEADERS), _resumed(call))
    call.stream_opened()


def check_accept(request: Request) -> None:
    accepted = request.header_values(b"accept")
    choices = {choice.partition(b";")[0].strip().lower() for choice in b",".join(accepted).split(b",")}
    if accepted and not choices & EVENTS_ACCEPTED:
        raise NotAcceptable("this is a stream of text/event-stream, which Accept leaves out")


def _resumed(call: Call) -> dict[str, int]:
    """What the client says it has received: the lowest of its ids. An id that cannot be read is ignored (SS15)."""
    header = call.request.headers.get(b"last-event-id")
    given = [call.parameters.text("cursor"), None if header is None else header.decode("latin-1")]
    resumed: dict[str, int] = {}
    for text in given:
        try:
            positions = decode_positions(text or "")
        except InvalidRequest:
            continue
        for name, position in positions.items():
            resumed[name] = min(position, resumed.get(name, position))
    return resumed
