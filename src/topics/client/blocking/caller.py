# Generated from src/topics/client/aio/caller.py by `python -m tools.blocking_client`. Do not edit.
"""Carries operations out: sends what `retries` asks for, and pauses when it says so."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

from topics.client.blocking.concurrency import BlockingClock, Event, pause
from topics.client.blocking.connections import Body, Pool
from topics.client.client_config import ClientConfig
from topics.client.errors import ClientError
from topics.client.protocol.http_parser import Request, Response
from topics.client.protocol.operations import Operation
from topics.client.protocol.retries import Flow, Pause

T = TypeVar("T")


class Caller:
    """What a client, its streams and its workers talk to the server through."""

    def __init__(self, config: ClientConfig, clock: BlockingClock) -> None:
        self._config = config
        self._clock = clock
        self._pool = Pool(config.endpoint, config.headers(), gzip=config.gzip, monotonic=clock.monotonic)
        self._closing = Event()
        self.monotonic = clock.monotonic
        self.retries = config.policy(clock.monotonic, random.SystemRandom().random)

    def run(self, operation: Operation[T]) -> T:
        """The result of an operation, after as many tries as it takes and may take."""
        result: T = self._carry_out(self.retries.run(operation), self._pool.exchange)
        return result

    def run_once(self, operation: Operation[T]) -> T:
        """The result of an operation that is tried once."""
        result: T = self._carry_out(self.retries.once(operation), self._pool.exchange)
        return result

    def open(self, request: Request) -> Body:
        """An answer whose body is still to come. An error answer is raised, or tried again, as in `run`."""
        body: Body = self._carry_out(self.retries.answered(Operation(request, bytes)), self._open_body)
        return body

    def _open_body(self, request: Request, deadline: float) -> Response | Body:
        body = self._pool.open(request, deadline)
        return body if body.status < 400 else Response(body.status, body.headers, body.read_all(deadline))

    def _carry_out(self, flow: Flow[Any], attempt: Callable[[Request, float], Response | Body]) -> Any:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
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

    def pause(self, seconds: float, over: Event | None = None) -> None:
        """Wait so long, or until `over` is set. Closing the client meanwhile is an error."""
        pause(self._clock, seconds, over or self._closing)
        if self._closing.is_set():
            raise ClientError("the client was closed while it waited to try again")

    def read_deadline(self) -> float:
        """When the next part of a stream must have arrived."""
        return self.monotonic() + self._config.timeout_ms / 1000

    def close(self) -> None:
        self._closing.set()
        self._pool.close()
