"""GET /v0/ws, and the commands that are given over a WebSocket (WS1-WS5, WS7, AU7, AU8, PR7).

A publish climbs the ladder of appends (`ladder.Write`): unless something unusual happens, it is decided at once and
acked from the log's callback. A subscribe goes on in a task. A topic is followed from the moment at which `subscribed`
is sent, so that none of its frames comes before.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Raw

from topics.errors import CommitFailed, InvalidRequest, Refusal
from topics.server.access.visitors import check_origin
from topics.server.auth import READ, WRITE
from topics.server.call import Call
from topics.server.handlers.live.watch import states_of, template_of
from topics.server.handlers.writing.ladder import Write
from topics.server.live.conversation import Conversation, RunCommand, error_text
from topics.server.live.feeds import Feed
from topics.server.transport.websocket import VERSION, UnknownVersion, WebSocket, accept
from topics.server.wire import commands
from topics.server.wire.commands import LargeIn, SubscribeIn
from topics.server.wire.replies import WatchedTopic, refusal
from topics.server.wire.requests import WatchTopicIn

LIMIT_DEFAULT: Final = 1000  # records of a message
READS: Final = frozenset((READ,))
WRITES: Final = frozenset((WRITE,))


def open_socket(call: Call) -> None:
    app = call.app
    try:
        head = accept(call.request)
    except UnknownVersion as error:
        answer = refusal(error)
        call.respond(answer.status, answer.body, ((b"sec-websocket-version", VERSION),))
        return
    check_origin(call.request, app.cors)  # browsers let pages of any origin open a WebSocket
    app.slots.take_stream(call.key)
    meet = partial(Conversation, app, call.key, call.request.peer, COMMANDS)
    socket = WebSocket(head, app.settings.max_body_bytes, meet)
    try:
        call.exchange.upgrade(socket)
    finally:
        if not socket.is_connected:  # the client is gone already
            socket.connection_lost(None)
        call.finish(101)


def _ping(talk: Conversation, text: bytes, request_id: Raw, large: LargeIn | None) -> None:
    talk.answer(talk.place(), commands.pong(request_id))


# --- subscribe and unsubscribe


def _subscribe(talk: Conversation, text: bytes, request_id: Raw, large: LargeIn | None) -> None:
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
    """Fill `feeds` with what is to be followed; gives the answer that says so."""
    template = template_of(given, talk.app.settings, LIMIT_DEFAULT)
    followed = {}
    for name, state in (await states_of(talk.app, starts, lambda: talk.stop, is_lenient=given.lenient)).items():
        cursor = state.head_seq if starts[name].tail else starts[name].from_seq
        followed[name] = WatchedTopic(state.epoch, cursor, state.head_seq, state.earliest_seq)
    feeds += [Feed(name, template, at.epoch, at.from_seq, at.head_seq) for name, at in followed.items()]
    return commands.subscribed(request_id, followed)


def _follow(talk: Conversation, feeds: Sequence[Feed]) -> None:
    """`subscribed` is sent."""
    for feed in feeds:
        if feed.name in talk.feeds:
            talk.app.delivery.remove(talk.feeds[feed.name])
    talk.app.delivery.add(talk, *feeds)
    talk.check_key()  # it may have changed since the command came


def _unsubscribe(talk: Conversation, text: bytes, request_id: Raw, large: LargeIn | None) -> None:
    names = commands.unsubscribe_in(text, talk.app.settings)
    for name in names:
        if name in talk.feeds:
            talk.app.delivery.remove(talk.feeds[name])
    talk.answer(talk.place(), commands.unsubscribed(request_id, names))


# --- publish


class Publish(Write):
    """A publish over a WebSocket."""

    __slots__ = ("_place", "_request_id", "_talk", "_with_seqs")

    has_order = needs_admin_for_any_config = True

    def __init__(self, talk: Conversation, request_id: Raw, with_seqs: bool) -> None:
        self.app = talk.app
        self.key = talk.key
        self.started = talk.app.clock.monotonic()
        self.throttle_ms = 0.0
        self.warnings = ()
        self._talk = talk
        self._request_id = request_id
        self._with_seqs = with_seqs

    @property
    def stop(self) -> "asyncio.Future[None]":
        return self._talk.stop

    def expect(self) -> None:
        self._place = self._talk.place()

    def opened(self, failure: CommitFailed | None) -> None:
        talk, request_id = self._talk, self._request_id
        talk.answer_late(self._place, self._ack() if failure is None else error_text(failure, request_id))

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        self._talk.run_in_task(self._ack_after(work), self._request_id)

    async def _ack_after(self, work: Coroutine[Any, Any, None]) -> bytes:
        await work
        return self._ack()

    def _ack(self) -> bytes:
        return commands.ack(self._request_id, self.body(self._with_seqs))


def _publish(talk: Conversation, text: bytes, request_id: Raw, large: LargeIn | None) -> None:
    if large is None or large.publish is None:
        given, checked = commands.publish_in(text, talk.app.settings), None
    elif isinstance(large.publish, Refusal):
        raise large.publish
    else:
        given, checked = large.publish, large.batch
    write = Publish(talk, request_id, given.return_seqs)
    talk.key.check_scopes(WRITES)
    talk.key.check_names((given.topic,))
    write.submit(given.topic, given, text, checked=checked)


COMMANDS: Final[dict[str, RunCommand]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "publish": _publish,
    "ping": _ping,
}
