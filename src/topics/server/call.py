"""One request being served: who is asking, for what, and how the answer is sent.

A Call exists from the request's headers on (`App.headers_received`), takes up a slot from `begin` to `finish`, and is
answered exactly once, through `answer`, `respond`, `refuse` or `fail`. Must not know: what a route does.
"""

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from topics.errors import StorageError, TopicsError
from topics.server.auth import ANYONE, Key
from topics.server.routes import Route, item_of
from topics.server.seeing.traffic import UNTIMED
from topics.server.transport.encoding import GZIP_BYTES_MIN, admits_gzip, compress
from topics.server.transport.exchange import JSON, Exchange, Headers, Request, Stream, logger
from topics.server.wire.queries import Parameters, parameters_of
from topics.server.wire.replies import Performance, encode, refusal

if TYPE_CHECKING:
    from topics.server.app import App

INLINE_BYTES_MAX = 64 * 1024  # a larger answer is compressed off the loop


class Call:
    __slots__ = (
        "_stop",
        "app",
        "exchange",
        "is_finished",
        "key",
        "media",
        "name",
        "request",
        "route",
        "started",
        "waits",
    )

    exchange: Exchange

    def __init__(self, app: "App", request: Request, route: Route, name: str, key: Key) -> None:
        self.app = app
        self.request = request
        self.route = route
        self.name = name  # of the topic or router in the path, decoded; empty if there is none
        self.key = key
        self.media = ""  # media type of the body; empty if there is none
        self.started = 0.0
        self.is_finished = True
        self.waits = False  # because the client asked for that
        self._stop: asyncio.Future[None] | None = None

    # --- life

    def begin(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.started = self.app.clock.monotonic()
        self.is_finished = False
        self.app.slots.running += 1
        self.key.inflight += 1

    def finish(self, status: int) -> None:
        """Give the slot back."""
        if not self.is_finished:
            self.is_finished = True
            self.key.inflight -= 1
            app = self.app
            app.slots.running -= 1
            app.traffic.count(self.route, status, UNTIMED if self.waits else app.clock.monotonic() - self.started)
            if app.watches_ends:
                app.ended(self, status)

    @property
    def stop(self) -> "asyncio.Future[None]":
        """Done when nobody waits for the answer any more, the key no longer allows it, or the server will stop."""
        if self._stop is None:
            self._stop = stop = asyncio.get_running_loop().create_future()

            def end() -> None:
                if not stop.done():
                    stop.set_result(None)

            self.app.waiting[end] = self
            stop.add_done_callback(lambda _: self.app.waiting.pop(end, None))
            self.exchange.when_disconnected(end)
            if self.app.is_draining:
                end()
        return self._stop

    # --- asking

    @property
    def is_still_allowed(self) -> bool:
        """Whether the key has what the call needed when it began; keys change (AU17)."""
        return self.key is ANYONE or self.key.permits(self.route.scopes, (self.name,) if self.name else ())

    def check_key(self) -> None:
        """Refuse what the key no longer allows."""
        if self.key is not ANYONE:
            self.key.check_still(self.route.scopes, (self.name,) if self.name else ())

    @property
    def parameters(self) -> Parameters:
        return parameters_of(self.request.query)

    @property
    def item(self) -> str:
        """What the path names within the topic: its last segment, decoded."""
        return item_of(self.request.path)

    @property
    def total_ms(self) -> float:
        return (self.app.clock.monotonic() - self.started) * 1000

    def performance(self) -> Performance:
        return Performance(round(self.total_ms, 3))

    # --- answering

    def answer(self, status: int, answer: Any) -> None:
        self.respond(status, encode(answer))

    def respond(self, status: int, body: bytes, headers: Headers = (), content_type: bytes = JSON) -> None:
        if len(body) >= GZIP_BYTES_MIN and content_type is JSON and wants_gzip(self.request):
            if len(body) > INLINE_BYTES_MAX:
                held = ExitStack()
                held.enter_context(self.exchange.packing(len(body)))
                self.app.spawn(self._respond_packed(status, body, headers, held), self)
                return
            body, headers = compress(body), (*headers, *PACKED)
        self._send(status, body, headers, content_type)

    async def _respond_packed(self, status: int, body: bytes, headers: Headers, held: ExitStack) -> None:
        with held:
            async with self.app.packing:  # threads are left to others
                packed = await asyncio.get_running_loop().run_in_executor(None, compress, body)
        self._send(status, packed, (*headers, *PACKED), JSON)

    def _send(self, status: int, body: bytes, headers: Headers, content_type: bytes) -> None:
        if self.app.cors is not None:
            headers = (*headers, *self.app.cors.headers(self.request))
        try:
            self.exchange.respond(status, body, headers, content_type)
        finally:
            if self._stop is not None and not self._stop.done():
                self._stop.set_result(None)
            self.finish(status)

    def start_stream(self, content_type: bytes, headers: Headers = (), *, survives_eof: bool = False) -> Stream:
        """Answer 200, piece by piece. A stream without end gives its slot back at once, with `stream_opened`."""
        if self.app.cors is not None:
            headers = (*headers, *self.app.cors.headers(self.request))
        return self.exchange.start_stream(200, headers, content_type, survives_eof=survives_eof)

    def stream_opened(self) -> None:
        """A stream without end is open: give the slot back, and drop what is not needed of the request.

        The request lives as long as the stream, and a resume id alone can be large.
        """
        self.finish(200)
        request = self.request
        request.headers, request.repeated = {}, ()
        request.target = request.query = b""

    def refuse(self, error: TopicsError) -> None:
        """Answer with an error of the contract."""
        if isinstance(error, StorageError):
            logger.error("%s %s: %s", self.request.method, self.request.path.decode("latin-1"), error)
        if not self.route.is_probe:
            self.app.traffic.count_refusal(error)
        answer = refusal(error)
        self.respond(answer.status, answer.body, answer.headers)

    def fail(self, error: BaseException) -> None:
        """Answer 500: the server itself failed."""
        try:
            self.exchange.fail(error)
        finally:
            self.finish(500)


PACKED: Headers = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


def wants_gzip(request: Request) -> bool:
    header = request.headers.get(b"accept-encoding")
    if header is None:
        return False
    if request.repeated:
        header = b",".join(request.header_values(b"accept-encoding"))
    return admits_gzip(header)
