"""One client on a WebSocket: its commands and its answers in order, what is delivered to it, its end.

Owns the commands that have not run yet and the answers that have not been sent yet. As a `Reader` it turns what
`delivery` reads into messages. Must not know: what commands do (handlers/ws.py), frames, HTTP. Rules: WS6-WS10, PR6,
SS26.

A command runs when all commands before it have run. It may answer later (`place`): then the next command runs
meanwhile, and its answer waits for the missing one; so many publishes of one socket share a commit. Or it goes on in a
task (`run_in_task`), and no other command runs meanwhile.

Invariants
- At most one command goes on in a task (`_is_busy`); no command starts then, or while the client does not read.
- The commands and answers that wait are bounded: above the bound nothing is read from the socket.
- A command is answered exactly once, unless the connection is gone.
- A command runs in a turn of the socket's own: the one before may be answered in the middle of a change (ST17).
- A socket is always in the wheel: for pings, which find dead peers, and at its end for its last seconds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw
from websockets.frames import CloseCode

from topics.errors import InvalidRequest, Refusal, StorageError, TopicsError
from topics.server.auth import READ, Key
from topics.server.live.feeds import Feed, Push, Reader, topic_deleted_json
from topics.server.live.outlet import NEVER, Wheel
from topics.server.paced import Paced
from topics.server.transport.exchange import logger
from topics.server.transport.websocket import CLOSING, WebSocket, text_frame
from topics.server.wire import commands
from topics.server.wire.commands import NO_ID, LargeIn, UnsupportedMessage
from topics.server.wire.large import LARGE_BYTES

if TYPE_CHECKING:
    from topics.server.app import App

BURST_MAX: Final = 64  # commands of one socket that run in one turn of the loop; one, if other sockets have to wait
ANSWERS_MAX: Final = 256  # answers that wait for the log
AHEAD_MAX: Final = 64  # commands that wait while another one runs …
AHEAD_BYTES_MAX: Final = 64 * 1024  # … and their size; the last one may be larger
PING_MS: Final = 25_000  # between pings …
PINGS_MAX: Final = 2  # … of which so many may go unanswered
LINGER_MS: Final = 5000  # for the client to close its side
READS: Final = frozenset((READ,))


RECORD: Final = b'{"op":"record",'
TOMBSTONE: Final = b'{"op":"tombstone",'
CAUGHT_UP: Final = b'{"op":"caught_up",'
TOPIC_DELETED: Final = b'{"op":"topic_deleted",'

# Runs a command: its text, its request_id, and what was decoded of it beside the loop, if it is large.
RunCommand = Callable[["Conversation", bytes, Raw, LargeIn | None], None]


class SocketReader(Reader):
    """A WebSocket as a reader of live delivery: messages, pings, a client that does not read."""

    __slots__ = ("socket",)

    def __init__(self, wheel: Wheel, socket: WebSocket) -> None:
        super().__init__(wheel, socket, RECORD)
        self.socket = socket

    @property
    def is_blocked(self) -> bool:
        return self.socket.is_blocked

    @property
    def buffered(self) -> int:
        return self.socket.buffered

    def check(self, now: int) -> int:
        if self.socket.stage >= CLOSING:
            self.socket.abort()
            return NEVER
        return super().check(now)

    def beat(self, now: int) -> int:
        socket = self.socket
        if not socket.is_paused:  # or its answer would not be heard
            if socket.pings >= PINGS_MAX:
                socket.abort()
                return NEVER
            socket.ping()
        return now + PING_MS

    def blocked(self) -> None:
        self.is_stuck()

    # --- what delivery reads

    def records(self, feed: Feed, push: Push) -> None:
        message = push.rendered.get(RECORD)
        if message is None:
            message = push.rendered[RECORD] = _message(RECORD, push.record_json)
        self.socket.write(message)
        self.socket.part(message)

    def rest(self, feed: Feed, push: Push, rest: bytes) -> None:
        self.socket.write_rest(rest)

    def tombstone(self, feed: Feed, push: Push, is_first: bool) -> None:
        self.socket.write(_message(TOMBSTONE, push.tombstone_json(is_first=False)))

    def caught_up(self, feed: Feed, push: Push) -> None:
        self.socket.write(_message(CAUGHT_UP, push.caught_up_json))

    def topic_deleted(self, feed: Feed) -> None:
        self.socket.write(_message(TOPIC_DELETED, topic_deleted_json(feed)))

    def paced(self, topics: Sequence[str], retry_after_ms: int) -> None:
        detail = {"retry_after_ms": retry_after_ms, "topics": list(topics)}
        self.socket.write(text_frame(commands.failed("throttled", "paced under pressure", detail)))


class Place:
    """An answer's place in the order of answers."""

    __slots__ = ("text", "then")

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.text: bytes | None = None  # None: not known yet
        self.then = then  # to be done when it is sent


class Conversation(SocketReader):
    __slots__ = (
        "_ahead",
        "_ahead_bytes",
        "_answers",
        "_burst",
        "_entry_id",
        "_farewell",
        "_is_awaited",
        "_is_busy",
        "_is_due",
        "_is_leaving",
        "_is_running",
        "_known",
        "_stop",
        "app",
        "key",
    )

    def __init__(
        self, app: "App", key: Key, peer: tuple[str, int], known: Mapping[str, RunCommand], socket: WebSocket
    ) -> None:
        super().__init__(app.delivery.wheel, socket)
        self.app = app
        self.key = key
        self._known = known  # commands by their op
        self._ahead: list[bytes | None] = []  # commands that wait, None a binary one; an empty deque is 600 bytes
        self._ahead_bytes = 0
        self._answers: list[Place] = []  # those that are not sent, in order; the first one is not known yet
        self._burst = 0  # commands that ran in this turn of the loop
        self._is_busy = False
        self._is_due = False  # a turn in which it goes on is scheduled
        self._is_awaited = False  # the drain of the server waits for it
        self._is_leaving = False  # the client has said goodbye
        self._is_running = False  # a command is running, further up the stack
        self._farewell: tuple[bytes, CloseCode] | None = (
            None  # the last message and the code to close with, once all is answered
        )
        self._stop: asyncio.Future[None] | None = None  # done when nobody waits for an answer any more
        self._entry_id = app.registry.enter(self, "ws", key, peer)
        self.wheel.add(self, self.wheel.now + PING_MS)

    # --- what the socket calls

    def received(self, text: bytes | None) -> None:
        if self._farewell is not None:
            return
        if not self._ahead and self._may_run():
            self._run(text)
            return
        self._ahead.append(text)
        self._ahead_bytes += len(text or b"")
        if len(self._ahead) >= AHEAD_MAX or self._ahead_bytes >= AHEAD_BYTES_MAX:
            self.socket.pause()

    def left(self) -> None:
        self._is_leaving = True
        _end_waits(self._stop)
        self._go_on()

    def writable(self) -> None:
        self.app.delivery.writable(self)
        self._go_on()

    def closing(self) -> None:
        self._ahead.clear()
        self._answers.clear()
        _end_waits(self._stop)
        self._let_go()
        for feed in list(self.feeds.values()):
            self.app.delivery.remove(feed)
        self.wheel.discard(self)
        self.wheel.add(self, self.wheel.now + LINGER_MS)

    def lost(self) -> None:
        self._ahead.clear()
        self._answers.clear()
        _end_waits(self._stop)
        self._let_go()
        self.app.registry.leave(self._entry_id)
        self.app.delivery.close(self)
        self.app.slots.give_stream(self.key)

    # --- what the wheel and the application call

    def too_slow(self) -> None:
        self._end("too_slow", "the client has read nothing for 30 s", CloseCode.POLICY_VIOLATION, now=True)

    def failed(self, error: BaseException) -> None:
        message = error.message if isinstance(error, TopicsError) else "the server failed to read a topic"
        self._end("internal", message, CloseCode.INTERNAL_ERROR, now=True)

    def shut_down(self) -> None:
        """The server stops (SC3): answer what runs, and end. The server waits for that."""
        if (self._is_busy or self._answers) and not self._is_awaited:
            self._is_awaited = True
            self.app.slots.running += 1
        self._end("server_shutting_down", "the server is shutting down", CloseCode.GOING_AWAY)

    def dismiss(self) -> None:
        """An operator closes the socket (OB3)."""
        self._end("closed", "an administrator has closed this socket", CloseCode.GOING_AWAY)

    def check_key(self) -> None:
        """Keys have changed (AU17). What a command needs is checked when it comes; what is followed is checked here."""
        if self.key.is_gone or (self.feeds and not self.key.permits(READS, self.feeds)):
            for feed in list(self.feeds.values()):
                self.app.delivery.remove(feed)
            self._end("unauthorized", "the key no longer allows this socket", CloseCode.POLICY_VIOLATION)

    def _let_go(self) -> None:
        """The server need no longer wait for this socket."""
        if self._is_awaited:
            self._is_awaited = False
            self.app.slots.running -= 1
            self.app.check_idle()

    def _end(self, code: str, message: str, close_code: CloseCode, *, now: bool = False) -> None:
        """Say goodbye once all is answered, or `now`."""
        if now:
            self._is_busy = False
            self._answers.clear()
        if self._farewell is None:
            self._farewell = (text_frame(commands.failed(code, message)), close_code)
            self._ahead.clear()
            _end_waits(self._stop)
            self._go_on()

    # --- the order of commands

    def _may_run(self) -> bool:
        return not (
            self._is_busy
            or self._farewell is not None
            or self.socket.is_blocked
            or self._burst >= (1 if self.app.turns.waiting else BURST_MAX)
            or len(self._answers) >= ANSWERS_MAX
        )

    def _go_on(self) -> None:
        """Run the commands that wait, as far as they may run; if there are none, read on, or end."""
        self._is_due = False
        if self._is_running:  # the caller that runs it goes on afterwards
            return
        while self._ahead and self._may_run():
            text = self._ahead.pop(0)
            self._ahead_bytes -= len(text or b"")
            self._run(text)
        if not self._ahead and not self._is_busy:
            self.socket.resume()
        if self._ahead or self._is_busy or self._answers:
            return
        if self._farewell is not None:
            last, code = self._farewell
            self.socket.write(last)
            self.socket.close(code)
        elif self._is_leaving:
            self.socket.close()

    def _turn_ended(self) -> None:
        self._burst = 0
        if self._ahead:
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.app.turns.add(self._go_on)

    def _run(self, text: bytes | None, large: LargeIn | None = None, failure: Exception | None = None) -> None:
        """Run a command; `large` is what was decoded of it beside the loop, or `failure` what came of that."""
        self._burst += 1
        if self._burst == 1:
            asyncio.get_running_loop().call_soon(self._turn_ended)
        if text is not None and len(text) > LARGE_BYTES and large is None and failure is None:
            self._is_busy = True
            self.app.start(_run_large(self, text))
            return
        request_id = NO_ID
        self._is_running = True
        try:
            if text is None:
                raise UnsupportedMessage("the message is binary; commands are JSON text")
            if failure is not None:
                raise failure
            command = commands.command_in(text) if large is None else large.command
            request_id = command.request_id
            op = command.op if isinstance(command.op, str) else "no text"
            run = self._known.get(op)
            if run is None:
                raise InvalidRequest(f"op is {op[:40]}; use one of {', '.join(self._known)}")
            run(self, text, request_id, large)
        except Exception as error:
            self.app.traffic.count_refusal(error)
            self.answer(self.place(), error_text(error, request_id))
        finally:
            self._is_running = False

    def run_in_task(
        self, work: Coroutine[Any, Any, bytes], request_id: Raw, then: Callable[[], None] | None = None
    ) -> None:
        """Go on with a command in a task; `work` gives its answer.

        `then` is called when that is sent, unless it is an error; no other command runs before.
        """
        self._is_busy = True
        self.app.start(self._finish(work, self.place(then), request_id))

    async def _finish(self, work: Coroutine[Any, Any, bytes], place: Place, request_id: Raw) -> None:
        try:
            text = await Paced(work, self.app.pace)
        except Exception as error:
            self.app.traffic.count_refusal(error)
            text, place.then = error_text(error, request_id), None
        self._is_busy = place.then is not None
        self.answer(place, text)
        self._go_on()

    # --- the order of answers

    def place(self, then: Callable[[], None] | None = None) -> Place:
        """Reserve the place of the answer to the command that runs: behind all others."""
        place = Place(then)
        self._answers.append(place)
        return place

    def answer(self, place: Place, text: bytes) -> None:
        """An answer is known: send it once those before it are sent, and then those that waited for it."""
        place.text = text
        answers = self._answers
        while answers and (ready := answers[0].text) is not None:
            self.socket.write(text_frame(ready))
            then = answers.pop(0).then
            if then is not None:
                self._is_busy = False
                then()

    def answer_late(self, place: Place, text: bytes) -> None:
        """An answer is known long after its command ran: commands that wait for it go on in a turn of their own."""
        self.answer(place, text)
        is_awaited = self._ahead or self._is_leaving or self._farewell is not None or self.socket.is_paused
        if is_awaited:
            self._go_on_soon()

    # --- waits

    @property
    def stop(self) -> "asyncio.Future[None]":
        """Done when nobody waits for an answer any more, or the server is about to stop."""
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_future()
            if self._is_leaving or self._farewell is not None or self.is_over:
                _end_waits(self._stop)
        return self._stop


def _end_waits(stop: "asyncio.Future[None] | None") -> None:
    if stop is not None and not stop.done():
        stop.set_result(None)


async def _run_large(talk: Conversation, text: bytes) -> None:
    """Decode a large command beside the loop, one at a time of all sockets; then run it. No other runs meanwhile."""
    app, large, failure = talk.app, None, None
    try:
        async with app.decoding:
            if talk._farewell is None and not talk.is_over:
                work = partial(commands.large_in, text, app.settings)
                large = await asyncio.get_running_loop().run_in_executor(None, work)
        if large is not None and large.publish is not None:
            await app.engine.make_room(len(text))
    except Exception as error:
        failure = error
    talk._is_busy = False
    if talk._farewell is None and not talk.is_over:
        talk._run(text, large, failure)
    talk._go_on()


def error_text(error: Exception, request_id: Raw) -> bytes:
    """An error as a message for the client; a fault of the server is logged as well."""
    if isinstance(error, StorageError):
        logger.error("a command of a WebSocket: %s", error)
    elif not isinstance(error, Refusal):
        logger.error("a command of a WebSocket failed", exc_info=error)
    if not isinstance(error, TopicsError):
        error = StorageError("the server failed to run this command")
    return commands.error(error, request_id)


def _message(op: bytes, body: bytes) -> bytes:
    """A message: a body that SSE uses as well, with the op in front."""
    return text_frame(op, memoryview(body)[1:])
