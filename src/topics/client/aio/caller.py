"""Carries operations out: sends what `retries` asks for, and pauses when it says so."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from topics.client.aio.concurrency import AsyncClock, AsyncEvent, pause
from topics.client.aio.connections import AsyncBody, AsyncPool
from topics.client.client_config import ClientConfig
from topics.client.errors import ClientError
from topics.client.protocol.http_parser import Request, Response
from topics.client.protocol.operations import Operation
from topics.client.protocol.retries import Flow, Pause

T = TypeVar("T")


class AsyncCaller:
    """What a client, its streams and its workers talk to the server through."""

    def __init__(self, config: ClientConfig, clock: AsyncClock) -> None:
        self._config = config
        self._clock = clock
        self._pool = AsyncPool(config.endpoint, config.headers(), gzip=config.gzip, monotonic=clock.monotonic)
        self._closing = AsyncEvent()
        self.monotonic = clock.monotonic
        self.retries = config.policy(clock.monotonic, random.SystemRandom().random)

    async def run(self, operation: Operation[T]) -> T:
        """The result of an operation, after as many tries as it takes and may take."""
        result: T = await self._carry_out(self.retries.run(operation), self._pool.exchange)
        return result

    async def run_once(self, operation: Operation[T]) -> T:
        """The result of an operation that is tried once."""
        result: T = await self._carry_out(self.retries.once(operation), self._pool.exchange)
        return result

    async def open(self, request: Request) -> AsyncBody:
        """An answer whose body is still to come. An error answer is raised, or tried again, as in `run`."""
        body: AsyncBody = await self._carry_out(self.retries.answered(Operation(request, bytes)), self._open_body)
        return body

    async def _open_body(self, request: Request, deadline: float) -> Response | AsyncBody:
        body = await self._pool.open(request, deadline)
        return body if body.status < 400 else Response(body.status, body.headers, await body.read_all(deadline))

    async def _carry_out(
        self, flow: Flow[Any], attempt: Callable[[Request, float], Awaitable[Response | AsyncBody]]
    ) -> Any:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
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

    async def pause(self, seconds: float, over: AsyncEvent | None = None) -> None:
        """Wait so long, or until `over` is set. Closing the client meanwhile is an error."""
        await pause(self._clock, seconds, over or self._closing)
        if self._closing.is_set():
            raise ClientError("the client was closed while it waited to try again")

    def read_deadline(self) -> float:
        """When the next part of a stream must have arrived."""
        return self.monotonic() + self._config.timeout_ms / 1000

    def close(self) -> None:
        self._closing.set()
        self._pool.close()
