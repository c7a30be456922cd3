"""The application behind the transports: routing, the checks that all routes share, errors turned into answers.

Owns the order of checks (AU13): 401, or without keys 403 for where a request comes from (AU19) → 404 or 405 → 503 →
429 in-flight → 403 scope → 403 name in the path → 415, and then the handler. Everything up to 415 is decided from the
headers, before the body is read. Must not know: what a route does beyond its row, HTTP framing.

Invariants: a call that has begun is answered exactly once; a task is kept until it is done; an error of the contract
becomes its answer, and any other error becomes a 500 and a log line.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from topics.engine.engine import Engine
from topics.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Refusal,
    ShuttingDown,
    TopicsError,
    UnsupportedMedia,
)
from topics.server.access.entrance import Entrance
from topics.server.access.tickets import Tickets
from topics.server.auth import ANYONE, Key, Keyring
from topics.server.call import PACKED, Call, wants_gzip
from topics.server.console.static import is_for_browser
from topics.server.cors import Cors
from topics.server.handlers.writing.turn import WriteTurn
from topics.server.live.delivery import Delivery
from topics.server.live.pressure import Pressure
from topics.server.live.registry import Registry
from topics.server.live.sessions import Sessions
from topics.server.live.work import WorkStreams
from topics.server.paced import Pace, Paced, Turns
from topics.server.routes import Route, Routes
from topics.server.seeing.history import History
from topics.server.seeing.samples import SampleStreams
from topics.server.seeing.traffic import Traffic
from topics.server.slots import Slots
from topics.server.transport.encoding import (
    GZIP_BYTES_MIN,
    JSON_TYPE,
    Inflation,
    compress,
    inflate,
    is_gzip,
    media_type,
)
from topics.server.transport.exchange import JSON, Answer, Connections, Exchange, Request
from topics.server.wire.queries import check_query
from topics.server.wire.replies import refusal
from topics.server.wire.requests import small_body_bytes_max

access_log = logging.getLogger("topics.access")

REPLAYING, SERVING, DRAINING = "replaying", "serving", "draining"
INFLATED_INLINE_BYTES_MAX: Final = 4096  # gzip packs a thousandfold at most; larger bodies are inflated off the loop
INFLATIONS_MAX: Final = 2  # at the same moment, of the threads that files need as well
PACKINGS_MAX: Final = 2  # answers being compressed likewise


class Admission(NamedTuple):
    """What was decided from the head of a request that passed; it holds for all requests with that head."""

    route: Route
    name: str
    key: Key
    media: str
    keys_version: int  # keys that change change this


class App:
    """One server's application. Until `ready` is called only probes and metrics answer: `engine` may still recover."""

    def __init__(self, engine: Engine, routes: Iterable[Route], keyring: Keyring, pressure: Pressure) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.clock = engine.clock
        self.keyring = keyring
        self._has_keys = bool(keyring)
        self._keys_version = 0
        self.pressure = pressure
        self.routes = Routes(row for row in routes if engine.settings.console or not row.is_page)
        self.slots = Slots(engine.settings)
        self.traffic = Traffic(self.routes.rows)
        pressure.listen(engine.defer)
        self.delivery = Delivery(engine, pressure)
        self.registry = Registry(engine.clock)
        self.history = History(
            engine, self.traffic, pressure, lambda: self.delivery.records_total + self.work.jobs_total
        )
        self.writes = WriteTurn(self)
        self.watch = Sessions(self.delivery, self.slots, self.registry)
        self.work = WorkStreams(engine, self.slots, self.delivery.wheel, self.registry)
        self.samples = SampleStreams(self.history, self.slots, self.delivery.wheel, self.registry)
        self._small_body_bytes_max = small_body_bytes_max(engine.settings)
        self.cors = Cors.parse(engine.settings.cors_origins)
        self.tickets = Tickets(engine.clock)
        self._entrance = Entrance(engine.settings, self.routes, keyring, self.tickets, self.cors)
        self.state = REPLAYING
        self._started_at = engine.clock.monotonic()
        self.waiting: dict[Callable[[], None], Call] = {}  # functions that end the waits of calls
        self._tasks: set[asyncio.Task[None]] = set()
        self.pace = Pace(engine.clock.monotonic)
        self.turns = Turns(engine.clock.monotonic)  # of sockets
        self._inflating = asyncio.Semaphore(INFLATIONS_MAX)
        self.packing = asyncio.Semaphore(PACKINGS_MAX)
        self.decoding = asyncio.Semaphore(1)  # large bodies, which take many times their size while they are decoded
        self.scraping = asyncio.Semaphore(1)  # metrics, which take about 2 MiB while they are put together
        self.connections: Connections | None = None  # those of the listener, for the metrics
        self.origins: Mapping[str, str] = {}  # where each setting comes from; what is missing has its default
        self._logs_access = self.watches_ends = engine.settings.access_log
        self._idle: asyncio.Future[None] | None = None

    # --- life

    @property
    def is_serving(self) -> bool:
        return self.state is SERVING

    @property
    def is_draining(self) -> bool:
        return self.state == DRAINING

    @property
    def uptime_ms(self) -> int:
        return int((self.clock.monotonic() - self._started_at) * 1000)

    def ready(self) -> None:
        """The engine has recovered."""
        if self.state == REPLAYING:
            self.state = SERVING
            self.history.start()

    def drain(self) -> None:
        """Accept no new requests, end all streams, and have the calls that wait answer now."""
        self.state = DRAINING
        self.history.stop()
        for end in list(self.waiting):
            end()
        self.registry.drain()

    def keys_changed(self) -> None:
        """Keys went, or allow less: end the streams, sockets and waits that need what is gone (AU17)."""
        self._keys_version += 1
        for end, call in list(self.waiting.items()):
            if not call.is_still_allowed:
                end()
        self.registry.check_keys()

    async def wait_until_idle(self) -> None:
        """Wait until no request is running."""
        self.watches_ends = True
        while self.slots.running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def ended(self, call: Call, status: int) -> None:
        """For Call, if `watches_ends` is set: a request has ended."""
        self.check_idle()
        if self._logs_access:
            _log_access(call.request, status, call.total_ms, call.key)

    def check_idle(self) -> None:
        """Let the drain go on if no request is running."""
        if self._idle is not None and not self.slots.running and not self._idle.done():
            self._idle.set_result(None)

    # --- what the transports call

    def headers_received(self, request: Request) -> Answer | None:
        try:
            if not self._has_keys:
                self._entrance.check_visitor(request)
            if request.method == "OPTIONS" and self.cors is not None and self.cors.is_preflight(request):
                return self.cors.preflight(request, self.routes)
            call = self._admitted(request)
        except Refusal as error:
            if request.path == b"/" and self.settings.console and is_for_browser(request):
                request.path = b"/console"
                return self.headers_received(request)
            return self._refusal(request, error)
        request.context = call
        if self._is_kept(call, request):
            request.admission = Admission(call.route, call.name, call.key, call.media, self._keys_version)
        return None

    def _is_kept(self, call: Call, request: Request) -> bool:
        """Whether what was decided holds for later requests with this head. Tickets are good for one; keys that stand
        in a URL are not kept, and heads that are each another are not worth it."""
        headers = request.headers
        if call.route.checks_itself or b"idempotency-key" in headers or b"token=" in request.query:
            return False
        return b"authorization" in headers if self._has_keys else True

    def still_holds(self, admission: Admission) -> bool:
        return self.state is SERVING and admission.keys_version == self._keys_version

    def readmitted(self, request: Request) -> Answer | None:
        admission: Admission = request.admission
        key = admission.key
        if key is not ANYONE:
            try:
                self.slots.check_request(key)
            except Refusal as error:
                return self._refusal(request, error)
        request.context = call = Call(self, request, admission.route, admission.name, key)
        call.media = admission.media
        return None

    def handle(self, request: Request, exchange: Exchange) -> None:
        call: Call = request.context
        request.context = None  # a cycle of references would wait for the garbage collector
        call.begin(exchange)
        try:
            if self._has_keys and not call.route.checks_itself:
                self.check_slot(call)
            if (
                b"content-encoding" in request.headers
                and request.body
                and is_gzip(request.headers[b"content-encoding"])
            ):
                if len(request.body) > INFLATED_INLINE_BYTES_MAX:
                    self.spawn(self._handle_inflated(call), call)
                    return
                request.body = inflate(request.body, request.body_bytes_max)
            self._dispatch(call)
        except TopicsError as error:
            call.refuse(error)
        except Exception as error:
            call.fail(error)

    def _dispatch(self, call: Call) -> None:
        route = call.route
        if route.may_be_empty and call.request.body and not call.media:
            _check_media(route, call.request)  # whether there is a body was not known from the headers
        if route.handle is None:
            raise NotFound("this endpoint is not built yet")
        work = route.handle(call)
        if work is not None:
            self.spawn(work, call)

    async def _handle_inflated(self, call: Call) -> None:
        """Inflate off the loop. Nothing has been done yet, so it ends when the client goes or the server drains."""
        loop, request = asyncio.get_running_loop(), call.request
        inflation, is_unfinished = Inflation(request.body, request.body_bytes_max), True
        request.body = b""
        while is_unfinished:
            async with self._inflating:  # a step at a time: they take turns, and leave threads to others
                if call.exchange.is_lost:
                    raise InvalidRequest("the client was gone before its body was inflated")
                if self.state is DRAINING:
                    raise self.unavailable()
                is_unfinished = await loop.run_in_executor(None, inflation.step)
        request.body = inflation.result()
        self._dispatch(call)

    def spawn(self, work: Coroutine[Any, Any, None], call: Call) -> None:
        """Continue a call in a task; what the task raises is answered."""
        self.start(self._run(work, call))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task. It handles its own errors."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], call: Call) -> None:
        try:
            await Paced(work, self.pace)
        except TopicsError as error:
            if call.exchange.is_answered:
                call.fail(error)
            else:
                call.refuse(error)
        except Exception as error:
            call.fail(error)
        except asyncio.CancelledError:
            call.fail(ShuttingDown("the server stopped"))
            raise

    async def cancel_tasks(self) -> None:
        """Cancel what still runs."""
        await self.delivery.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the checks, in order

    def _admitted(self, request: Request) -> Call:
        key = self._entrance.key_of(request) if self._has_keys else ANYONE
        route, name = self.routes.find(request.method, request.path)
        call = Call(self, request, route, name, key)
        request.body_bytes_max = self.settings.max_body_bytes if route.takes_bulk else self._small_body_bytes_max
        if route.checks_itself:
            return call
        if self.state is not SERVING and not route.is_always_on:
            raise self.unavailable()
        if key is not ANYONE and not route.is_page:
            self.slots.check_request(key)
            key.check_scopes(route.scopes)
            if name and not key.may_name(name):
                key.check_names((name,))
        if route.media:
            call.media = _media(route, request)
        if request.query:
            check_query(request.query)
        return call

    def unavailable(self) -> Refusal:
        """The refusal of a server that is not serving: it recovers, or it drains."""
        if self.state is DRAINING:
            return ShuttingDown("the server is shutting down")
        progress = round(min(1.0, self.engine.replay_progress), 4)
        return NotReady(f"the log is being replayed, {progress:.0%} done", replay_progress=progress)

    def check_slot(self, call: Call) -> None:
        """Check the slots again: between headers and body other requests may have taken the last one."""
        call.key.inflight -= 1  # this call itself
        try:
            self.slots.check_request(call.key)
        finally:
            call.key.inflight += 1

    # --- refusals before a call began

    def _refusal(self, request: Request, error: Refusal) -> Answer:
        answer = refusal(error)
        headers = list(answer.headers)
        body = answer.body
        if isinstance(error, MethodNotAllowed):
            headers.append((b"allow", self.routes.methods(request.path).encode()))
        if len(body) >= GZIP_BYTES_MIN and wants_gzip(request):
            body = compress(body)
            headers += PACKED
        if self.cors is not None:
            headers += self.cors.headers(request)
        if self._logs_access:
            _log_access(request, error.status, 0.0, self._entrance.named_by(request))
        route = None
        with suppress(Refusal):
            route, _ = self.routes.find(request.method, request.path)
        self.traffic.count_early(route, error.status)
        self.traffic.count_refusal(error)
        return Answer(error.status, body, headers)


def _media(route: Route, request: Request) -> str:
    """Check the headers of a body, and give its media type; empty if no body is announced."""
    headers = request.headers
    if b"content-encoding" in headers:
        is_gzip(headers[b"content-encoding"])
    if route.may_be_empty and request.content_length <= 0:
        return ""
    if headers.get(b"content-type") == JSON and JSON_TYPE in route.media:
        return JSON_TYPE
    return _check_media(route, request)


def _check_media(route: Route, request: Request) -> str:
    header = request.headers.get(b"content-type")
    if header is None:
        raise UnsupportedMedia(f"the body has no content type; use {route.media[0]}")
    kind = media_type(header)
    if kind not in route.media:
        raise UnsupportedMedia(f"the content type is {kind or 'empty'}; use {' or '.join(route.media)}")
    return kind


def _log_access(request: Request, status: int, total_ms: float, key: Key | None) -> None:
    """The query is left out: it may hold a token. A key goes by its name."""
    path = request.path.decode("latin-1")
    who = "" if key is None or key.name is None else f", key {key.name}"
    access_log.info("%s %s %d %.3f ms%s", request.method, path, status, total_ms, who)
