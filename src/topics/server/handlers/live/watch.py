"""Watch: create a session (SS1-SS3, Appendix A.10), and what everything that follows topics begins with."""

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from topics.engine.answers import TopicState
from topics.engine.instance import Projection
from topics.errors import TopicNotFound
from topics.model import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX, LIMIT_DEFAULT, TagMatch
from topics.server.call import Call
from topics.server.live.feeds import Feed, Template
from topics.server.live.sessions import SESSION_TTL_MS
from topics.server.wire.commands import SubscribeIn
from topics.server.wire.replies import WatchedTopic, Watching
from topics.server.wire.requests import HEARTBEAT_MS_MAX, WatchIn, nodes_of, watch_in
from topics.server.wire.streaming import NO_POSITIONS, Positions, decode_positions
from topics.settings import Settings

if TYPE_CHECKING:
    from topics.server.app import App

STATES_PER_STEP: Final = 64  # topics that are looked at in one step: a look takes 20 µs (LM10)


async def create_session(call: Call) -> None:
    app, settings = call.app, call.app.settings
    asked = watch_in(call.request.body, settings)
    template = template_of(asked, settings, is_strong=asked.consistency == "strong")
    positions = NO_POSITIONS if asked.cursor is None else decode_positions(asked.cursor)
    call.key.check_names(asked.topics)
    is_lenient = call.parameters.flag("lenient", False)
    states = await states_of(app, asked.topics, lambda: call.stop, is_lenient=is_lenient)
    feeds = {name: feed_of(state, asked, template, positions) for name, state in states.items()}
    topics = {
        name: WatchedTopic(state.epoch, feeds[name].cursor, state.head_seq, state.earliest_seq)
        for name, state in states.items()
    }
    session = app.watch.create(call.key, template, heartbeat_of(asked, settings), feeds)
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
    app.watch.check_room(len(states))
    return states


async def _states_now(app: "App", names: Collection[str], is_lenient: bool) -> dict[str, TopicState]:
    states = {}
    for count, name in enumerate(names, 1):
        if not count % STATES_PER_STEP:
            await asyncio.sleep(0)
        try:
            states[name] = await app.engine.topic_state(name, touch=False)
        except TopicNotFound:
            if not is_lenient:
                raise
    return states


def feed_of(state: TopicState, asked: WatchIn, template: Template, positions: Positions) -> Feed:
    """A feed of a new session. The cursor of the request has precedence over `tail`, and `tail` over `from_seq`."""
    name, topic = state.topic, asked.topics[state.topic]
    if name in positions.cursors:
        epoch = positions.epochs.get(name, state.epoch)
        return Feed(name, template, epoch, positions.cursors[name], state.head_seq)
    return Feed(name, template, state.epoch, state.head_seq if topic.tail else topic.from_seq, state.head_seq)


def heartbeat_of(asked: WatchIn, settings: Settings) -> int:
    """The silence after which a heartbeat is sent; the range is clamped (SS1)."""
    floor_ms = min(settings.test_min_heartbeat_ms, HEARTBEAT_MS_MAX)
    return max(floor_ms, min(HEARTBEAT_MS_MAX, asked.heartbeat_ms))
