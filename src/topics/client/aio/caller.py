"""Carries operations out: sends what `retries` asks for, and pauses when it says so."""

import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from topics.client import tracing
from topics.client.aio.concurrency import INTERRUPTIONS, AsyncClock, AsyncEvent, pause
from topics.client.aio.connections import AsyncBody, AsyncPool
from topics.client.client_config import ClientConfig
from topics.client.errors import ClientClosed, ClientError
from topics.client.hooks import Hooks, Retrying
from topics.client.protocol.http_parser import Request, Response
from topics.client.protocol.operations import Operation
from topics.client.protocol.retries import Flow, Pause, Retries

T = TypeVar("T")


class AsyncCaller:
    """What a client, its streams and its workers talk to the server through."""

    def __init__(
        self, config: ClientConfig, clock: AsyncClock, pool: AsyncPool, hooks: Hooks, stop: AsyncEvent
    ) -> None:
        self._config = config
        self._clock = clock
        self._pool = pool
        self._stop = stop
        self.hooks = hooks
        self.monotonic = clock.monotonic
        self.retries = config.policy(clock.monotonic, random.SystemRandom().random)

    @classmethod
    def of(cls, config: ClientConfig, clock: AsyncClock, hooks: Hooks, context: ssl.SSLContext | None) -> "AsyncCaller":
        pool = AsyncPool(config.way(context), config.headers(), gzip=config.gzip, monotonic=clock.monotonic)
        return cls(config, clock, pool, hooks, AsyncEvent())

    def apart(self) -> "AsyncCaller":
        """A caller on the same connections that can be closed by itself, and is closed with this one."""
        return AsyncCaller(self._config, self._clock, self._pool, self.hooks, AsyncEvent(self._stop))

    @property
    def is_closed(self) -> bool:
        return self._stop.is_set()

    async def run(self, operation: Operation[T], policy: Retries | None = None) -> T:
        """The result of an operation, after as many tries as it takes and may take."""
        try:
            with tracing.calling(operation, self._config.endpoint) as traced:
                result: T = await self._carry_out((policy or self.retries).run(traced), self._exchange)
        except INTERRUPTIONS as error:
            raise error.with_traceback(None)  # noqa: B904 - the frames below say nothing to its reader
        return result

    async def run_once(self, operation: Operation[T]) -> T:
        """The result of an operation that is tried once."""
        result: T = await self._carry_out(self.retries.once(operation), self._exchange)
        return result

    async def open(self, request: Request) -> AsyncBody:
        """An answer whose body is still to come. An error answer is raised, or tried again, as in `run`."""
        body: AsyncBody = await self._carry_out(self.retries.answered(Operation(request, bytes)), self._open_body)
        return body

    async def _exchange(self, request: Request, deadline: float) -> Response:
        return await self._pool.exchange(request, deadline, self._stop)

    async def _open_body(self, request: Request, deadline: float) -> Response | AsyncBody:
        body = await self._pool.open_stream(request, deadline, self._stop)
        return body if body.status < 400 else Response(body.status, body.headers, await body.read_all(deadline))

    async def _carry_out(
        self, flow: Flow[Any], attempt: Callable[[Request, float], Awaitable[Response | AsyncBody]]
    ) -> Any:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    self._tell(step)
                    await self.pause(step.seconds)
                    step = next(flow)
                    continue
                try:
                    outcome = await attempt(step.request, step.deadline)
                except ClientError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            return end.value

    def _tell(self, pause: Pause) -> None:
        request = pause.request
        event = Retrying(request.method, request.path, pause.tries, pause.seconds, pause.elapsed_s, pause.failure)
        tracing.retried(event)
        self.hooks.retrying(event)

    async def pause(self, seconds: float, over: AsyncEvent | None = None) -> None:
        """Wait so long, or until `over` is set. Closing the client meanwhile is an error."""
        await pause(self._clock, seconds, over or self._stop)
        if self._stop.is_set():
            raise ClientClosed("the client was closed while it waited to try again")

    def read_deadline(self) -> float:
        """When the next part of a stream must have arrived."""
        return self.monotonic() + self._config.timeout_ms / 1000

    def stop(self) -> None:
        """End what is under way, and refuse what comes. Any thread and any signal handler may call it."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and close the idle connections."""
        self._stop.set()
        self._pool.close()
