"""GET /v0/ws, and the commands that are given over a WebSocket (WS1-WS5, WS7, AU7, AU8, PR7).

A publish that meets nothing unusual is decided at once and acked from the log's callback, as a write over HTTP is.
Whatever is unusual, and every subscribe, goes on in a task. A topic is followed from the moment at which its
`subscribed` is sent, so that no frame of it comes before.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Raw

from topics.core.decide import Append
from topics.core.topic.records import check_batch
from topics.engine.answers import WriteResult
from topics.errors import CommitFailed, Forbidden, InvalidRequest, Refusal, TopicNotFound
from topics.server.auth import READ, WRITE
from topics.server.call import Call
from topics.server.handlers.records import check_config, check_target, timed_answer
from topics.server.live import commands
from topics.server.live.commands import PublishIn, SubscribeIn
from topics.server.live.conversation import Answer, Conversation, Run, error_text
from topics.server.live.feeds import Feed
from topics.server.transport.websocket import VERSION, UnknownVersion, WebSocket, accept
from topics.server.wire.replies import WatchedTopic, refusal
from topics.server.wire.requests import WatchTopicIn

READS: Final = frozenset((READ,))
WRITES: Final = frozenset((WRITE,))

Acked = Callable[[WriteResult, float, float], bytes]  # the ack of a result; when submitted, how long parked


def open_socket(call: Call) -> None:
    app = call.app
    try:
        head = accept(call.request)
    except UnknownVersion as error:
        answer = refusal(error)
        call.respond(answer.status, answer.body, ((b"sec-websocket-version", VERSION),))
        return
    _check_origin(call)
    app.slots.take_stream(call.key)
    socket = WebSocket(head, app.settings.max_body_bytes)
    conversation = Conversation(app, call.key, socket, COMMANDS)
    try:
        call.exchange.upgrade(socket)
    finally:
        if not socket.is_connected:  # the client is gone already
            conversation.lost()
        call.finish(101)


def _check_origin(call: Call) -> None:
    """A browser lets pages of any origin open a WebSocket, so the server asks where they come from.

    Without keys, any page that somebody on this machine looks at could otherwise read and write everything.
    """
    headers, cors = call.request.headers, call.app.cors
    origin = headers.get(b"origin")
    if origin is None:
        return
    _, is_url, host = origin.lower().partition(b"://")
    if is_url and host == headers.get(b"host", b"").lower():
        return
    if cors is None or b"access-control-allow-origin" not in dict(cors.headers(call.request)):
        shown = origin.decode("latin-1")
        raise Forbidden(f"pages of {shown[:200]} may not open a WebSocket; TOPICS_CORS_ORIGINS names those that may")


def _ping(talk: Conversation, text: bytes, request_id: Raw) -> None:
    talk.answer(talk.place(), commands.pong(request_id))


# --- subscribe and unsubscribe


def _subscribe(talk: Conversation, text: bytes, request_id: Raw) -> None:
    given, starts = commands.subscribe_in(text, talk.app.settings)
    topics_max = talk.app.settings.max_watch_topics
    talk.key.check_scopes(READS)
    talk.key.check_names(starts)
    if len(talk.feeds.keys() | starts.keys()) > topics_max:
        raise InvalidRequest(f"a socket may follow {topics_max} topics; this one follows {len(talk.feeds)}")
    feeds: list[Feed] = []
    talk.run_in_task(_find(talk, given, starts, feeds, request_id), request_id, partial(_follow, talk, feeds))


async def _find(
    talk: Conversation, given: SubscribeIn, starts: dict[str, WatchTopicIn], feeds: list[Feed], request_id: Raw
) -> bytes:
    """Fill `feeds` with what is to be followed; the answer that says so."""
    template = commands.template_of(given, talk.app.settings)
    followed = await _followed(talk, given, starts)
    if talk.app.pressure.is_refusing:
        await talk.app.pressure.park(talk.stop)
        followed = await _followed(talk, given, starts)
    feeds += [Feed(name, template, at.epoch, at.from_seq, at.head_seq) for name, at in followed.items()]
    return commands.subscribed(request_id, followed)


async def _followed(talk: Conversation, given: SubscribeIn, starts: dict[str, WatchTopicIn]) -> dict[str, WatchedTopic]:
    """Where each topic stands now, and where it is followed from; lenient: those that exist."""
    followed = {}
    for name, start in starts.items():
        try:
            state = await talk.app.engine.topic_state(name, touch=False)
        except TopicNotFound:
            if given.lenient:
                continue
            raise
        cursor = state.head_seq if start.tail else start.from_seq
        followed[name] = WatchedTopic(state.epoch, cursor, state.head_seq, state.earliest_seq)
    return followed


def _follow(talk: Conversation, feeds: Sequence[Feed]) -> None:
    """`subscribed` is sent."""
    for feed in feeds:
        if feed.name in talk.feeds:
            talk.app.delivery.remove(talk.feeds[feed.name])
    talk.app.delivery.add(talk, *feeds)


def _unsubscribe(talk: Conversation, text: bytes, request_id: Raw) -> None:
    names = commands.unsubscribe_in(text)
    for name in names:
        if name in talk.feeds:
            talk.app.delivery.remove(talk.feeds[name])
    talk.answer(talk.place(), commands.unsubscribed(request_id, names))


# --- publish


def _publish(talk: Conversation, text: bytes, request_id: Raw) -> None:
    app, write = talk.app, commands.publish_in(text)
    started = app.clock.monotonic()
    talk.key.check_scopes(WRITES)
    talk.key.check_names((write.topic,))
    if write.config is not None:
        check_config(talk.key, write.topic, write.config, is_used=True)
    key = write.idempotency_key
    batch = check_batch(write.records, write.node, key, app.settings, text)
    append = Append(write.topic, batch, key, write.create, write.config)
    acked = partial(_acked, talk, request_id, started, write.return_seqs)
    if app.pressure.is_refusing:
        talk.run_in_task(_publish_parked(talk, append, write, acked), request_id)
        return
    try:
        result, gate = app.engine.submit(append)
    except Refusal:
        talk.run_in_task(_publish_again(talk, append, acked, 0.0), request_id)
        return
    published = partial(_published, talk, talk.place(), request_id, acked, result, app.clock.monotonic())
    app.engine.when_open(gate, published)


def _published(
    talk: Conversation,
    place: Answer,
    request_id: Raw,
    acked: Acked,
    result: WriteResult,
    submitted_at: float,
    failure: CommitFailed | None,
) -> None:
    """The log has the write, as durable as its class asks."""
    talk.answer_late(place, acked(result, submitted_at, 0.0) if failure is None else error_text(failure, request_id))


async def _publish_again(talk: Conversation, append: Append, acked: Acked, throttle_ms: float) -> bytes:
    """What was refused is decided once more, and told when what it depends on may be shown."""
    submitted_at = talk.app.clock.monotonic()
    return acked(await talk.app.engine.append_batch(append), submitted_at, throttle_ms)


async def _publish_parked(talk: Conversation, append: Append, write: PublishIn, acked: Acked) -> bytes:
    check_target(talk.app, write.topic, write)
    talk.app.engine.wal.counters.submit_full += 1
    throttle_ms = await talk.app.pressure.park(talk.stop, for_ever=write.disable_backpressure)
    return await _publish_again(talk, append, acked, throttle_ms)


def _acked(
    talk: Conversation,
    request_id: Raw,
    started: float,
    with_seqs: bool,
    result: WriteResult,
    submitted_at: float,
    throttle_ms: float,
) -> bytes:
    answer = timed_answer(talk.app, result, started, submitted_at, throttle_ms, with_seqs)
    return commands.ack(request_id, answer)


COMMANDS: Final[dict[str, Run]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "publish": _publish,
    "ping": _ping,
}
