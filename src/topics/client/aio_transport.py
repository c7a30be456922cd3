"""Connections of asyncio, for one event loop: the same as `transport`, awaited.

A connection is used by one call at a time and goes back to the pool only if its answer was read to the end; a call
that is cancelled takes its connection with it.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from topics.client.calls import Call
from topics.client.config import ClientConfig
from topics.client.errors import ClientError, ConnectionFailed
from topics.client.http1 import Answer, AnswerReader, Endpoint, Request, encode_request
from topics.client.retries import Flow, Pause, deadline_error
from topics.client.transport import CONNECT_S_MAX, IDLE_MAX, IDLE_S_MAX, READ_BYTES, is_deadline
from topics.clock import Clock

T = TypeVar("T")

BUFFER_BYTES: Final = 1024 * 1024  # read ahead of the caller


class AioConnection:
    """One connection. Every method fails with ConnectionFailed or DeadlineExceeded."""

    def __init__(
        self,
        endpoint: Endpoint,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        monotonic: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._monotonic = monotonic
        self.idle_since = 0.0

    @classmethod
    async def open(
        cls, endpoint: Endpoint, request: Request, deadline: float, monotonic: Callable[[], float]
    ) -> "AioConnection":
        left = deadline - monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=False)
        context = ssl.create_default_context() if endpoint.is_tls else None
        try:
            async with asyncio.timeout(min(left, CONNECT_S_MAX)):
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=context, limit=BUFFER_BYTES
                )
        except OSError as error:
            how = str(error) or "timed out"
            raise ConnectionFailed(
                f"cannot connect to {endpoint}: {how}", method=request.method, path=request.path
            ) from error
        return cls(endpoint, reader, writer, monotonic)

    async def send(self, request: Request, data: tuple[bytes, ...], deadline: float) -> OSError | None:
        """Send a request. An error is returned: the server may have answered before it had read all."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=False)
        try:
            async with asyncio.timeout(left):
                for part in data:
                    self._writer.write(part)
                    await self._writer.drain()
        except OSError as error:
            if is_deadline(error):
                raise deadline_error(request, was_sent=False) from None
            return error
        return None

    async def receive(
        self, request: Request, reader: AnswerReader, deadline: float, failed: OSError | None = None
    ) -> None:
        """Feed the reader with what comes next."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=True)
        try:
            async with asyncio.timeout(left):
                data = await self._reader.read(READ_BYTES)
        except OSError as error:
            if is_deadline(error):
                raise deadline_error(request, was_sent=True) from None
            raise self._broken(request, failed or error) from error
        if data:
            reader.feed(data)
            return
        reader.feed_eof()
        if not reader.is_complete:
            how = failed or OSError("it was closed within the answer" if reader.has_begun else "it was closed")
            raise self._broken(request, how)

    def _broken(self, request: Request, error: OSError) -> ConnectionFailed:
        """Some of what was written may have been sent after an error, so it counts as sent."""
        return ConnectionFailed(
            f"the connection to {self._endpoint} broke: {error}",
            method=request.method,
            path=request.path,
            was_sent=True,
        )

    def is_quiet(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        self._writer.transport.abort()


class AioBody:
    """The body of an answer, read as it comes. Closed early, it takes its connection with it."""

    def __init__(self, pool: "AioPool", connection: AioConnection, request: Request, reader: AnswerReader) -> None:
        self._pool = pool
        self._connection: AioConnection | None = connection
        self._request = request
        self._reader = reader
        self.status = reader.status
        self.headers = reader.headers

    async def read(self, deadline: float) -> list[bytes]:
        """What has come, at least one part; nothing at the end."""
        while True:
            parts = self._reader.take_parts()
            if self._connection is None or parts:
                return parts
            if self._reader.is_complete:
                self._pool.give_back(self._connection, self._reader)
                self._connection = None
                return []
            try:
                await self._connection.receive(self._request, self._reader, deadline)
            except BaseException:
                self.close()
                raise

    async def read_all(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while some := await self.read(deadline):
            parts += some
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class AioPool:
    """Connections to one endpoint, on the loop that uses it first; another loop starts anew."""

    def __init__(self, endpoint: Endpoint, common: str, *, gzip: bool, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._common = common
        self._gzip = gzip
        self._monotonic = monotonic
        self._idle: list[AioConnection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def exchange(self, request: Request, deadline: float) -> Answer:
        """Send a request and read the whole answer."""
        body = await self.open(request, deadline)
        return Answer(body.status, body.headers, await body.read_all(deadline))

    async def open(self, request: Request, deadline: float) -> AioBody:
        """Send a request and read the head of the answer."""
        connection = self._take()
        if connection is None:
            connection = await AioConnection.open(self._endpoint, request, deadline, self._monotonic)
        reader = AnswerReader(request)
        try:
            data = encode_request(request, self._endpoint, self._common, gzip=self._gzip)
            failed = await connection.send(request, data, deadline)
            while not reader.has_head:
                await connection.receive(request, reader, deadline, failed)
            if failed is not None:
                reader.keeps_alive = False
        except BaseException:
            connection.close()
            raise
        return AioBody(self, connection, request, reader)

    def _take(self) -> AioConnection | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._idle, self._loop = [], loop
        while self._idle:
            connection = self._idle.pop()
            if self._monotonic() - connection.idle_since < IDLE_S_MAX and connection.is_quiet():
                return connection
            connection.close()
        return None

    def give_back(self, connection: AioConnection, reader: AnswerReader) -> None:
        connection.idle_since = self._monotonic()
        if reader.keeps_alive and not self._is_closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()


class AioCaller:
    """Carries calls out: the transport's side of `retries`."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._pool = AioPool(config.endpoint, config.headers(), gzip=config.gzip, monotonic=clock.monotonic)
        self.monotonic = clock.monotonic
        self.retries = config.policy(clock.monotonic, random.SystemRandom().random)

    async def run(self, call: Call[T]) -> T:
        """The answer to a call."""
        result: T = await self._carry_out(self.retries.run(call), self._pool.exchange)
        return result

    async def run_once(self, call: Call[T]) -> T:
        result: T = await self._carry_out(self.retries.once(call), self._pool.exchange)
        return result

    async def open(self, request: Request) -> AioBody:
        """An answer whose body is still to come. An error is raised, or tried again, as of any call."""
        body: AioBody = await self._carry_out(self.retries.answered(Call(request, bytes)), self._open_body)
        return body

    async def _open_body(self, request: Request, deadline: float) -> Answer | AioBody:
        body = await self._pool.open(request, deadline)
        return body if body.status < 400 else Answer(body.status, body.headers, await body.read_all(deadline))

    async def _carry_out(
        self, flow: Flow[Any], attempt: Callable[[Request, float], Awaitable[Answer | AioBody]]
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

    async def pause(self, seconds: float) -> None:
        await self._clock.wait(asyncio.get_running_loop().create_future(), seconds * 1000)

    def read_deadline(self) -> float:
        """Until when the next part of a stream has to come."""
        return self.monotonic() + self._config.timeout_ms / 1000

    def close(self) -> None:
        self._pool.close()
