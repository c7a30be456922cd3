# Generated from src/topics/client/aio/caller.py by `python -m tools.blocking_client`. Do not edit.
"""Carries operations out: sends what `retries` asks for, and pauses when it says so."""

import random
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from topics.client import tracing
from topics.client.blocking.concurrency import INTERRUPTIONS, BlockingClock, Event, pause
from topics.client.blocking.connections import Body, Pool
from topics.client.client_config import ClientConfig
from topics.client.errors import ClientClosed, ClientError
from topics.client.hooks import Hooks, Retrying
from topics.client.protocol.http_parser import Request, Response
from topics.client.protocol.operations import Operation
from topics.client.protocol.retries import Flow, Pause, Retries

T = TypeVar("T")


class Caller:
    """What a client, its streams and its workers talk to the server through."""

    def __init__(self, config: ClientConfig, clock: BlockingClock, pool: Pool, hooks: Hooks, stop: Event) -> None:
        self._config = config
        self._clock = clock
        self._pool = pool
        self._stop = stop
        self.hooks = hooks
        self.monotonic = clock.monotonic
        self.retries = config.policy(clock.monotonic, random.SystemRandom().random)

    @classmethod
    def of(cls, config: ClientConfig, clock: BlockingClock, hooks: Hooks, context: ssl.SSLContext | None) -> "Caller":
        pool = Pool(config.way(context), config.headers(), gzip=config.gzip, monotonic=clock.monotonic)
        return cls(config, clock, pool, hooks, Event())

    def apart(self) -> "Caller":
        """A caller on the same connections that can be closed by itself, and is closed with this one."""
        return Caller(self._config, self._clock, self._pool, self.hooks, Event(self._stop))

    @property
    def is_closed(self) -> bool:
        return self._stop.is_set()

    def run(self, operation: Operation[T], policy: Retries | None = None) -> T:
        """The result of an operation, after as many tries as it takes and may take."""
        try:
            with tracing.calling(operation, self._config.endpoint) as traced:
                result: T = self._carry_out((policy or self.retries).run(traced), self._exchange)
        except INTERRUPTIONS as error:
            raise error.with_traceback(None)  # noqa: B904 - the frames below say nothing to its reader
        return result

    def run_once(self, operation: Operation[T]) -> T:
        """The result of an operation that is tried once."""
        result: T = self._carry_out(self.retries.once(operation), self._exchange)
        return result

    def open(self, request: Request) -> Body:
        """An answer whose body is still to come. An error answer is raised, or tried again, as in `run`."""
        body: Body = self._carry_out(self.retries.answered(Operation(request, bytes)), self._open_body)
        return body

    def _exchange(self, request: Request, deadline: float) -> Response:
        return self._pool.exchange(request, deadline, self._stop)

    def _open_body(self, request: Request, deadline: float) -> Response | Body:
        body = self._pool.open_stream(request, deadline, self._stop)
        return body if body.status < 400 else Response(body.status, body.headers, body.read_all(deadline))

    def _carry_out(self, flow: Flow[Any], attempt: Callable[[Request, float], Response | Body]) -> Any:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    self._tell(step)
                    self.pause(step.seconds)
                    step = next(flow)
                    continue
                try:
                    outcome = attempt(step.request, step.deadline)
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

    def pause(self, seconds: float, over: Event | None = None) -> None:
        """Wait so long, or until `over` is set. Closing the client meanwhile is an error."""
        pause(self._clock, seconds, over or self._stop)
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
