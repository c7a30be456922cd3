"""Sockets: keep-alive connections to one server, shared by the threads of a process.

A connection is used by one call at a time and goes back to the pool only if its answer was read to the end. An idle
one that the server has closed, or is about to, is not used again. After a fork the child starts with no connections.
"""

import os
import random
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from topics.client.calls import Call
from topics.client.config import ClientConfig, Pace
from topics.client.errors import ClientError, ConnectionFailed
from topics.client.http1 import Answer, AnswerReader, Endpoint, Request, encode_request
from topics.client.retries import Flow, Pause, deadline_error

T = TypeVar("T")

READ_BYTES: Final = 256 * 1024
CONNECT_S_MAX: Final = 5.0
IDLE_S_MAX: Final = 60.0  # the server closes after 75
IDLE_MAX: Final = 32  # connections kept


class Connection:
    """One socket. Every method fails with ConnectionFailed or DeadlineExceeded."""

    def __init__(self, endpoint: Endpoint, request: Request, deadline: float, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._monotonic = monotonic
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self.idle_since = 0.0
        left = deadline - monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=False)
        try:
            self._socket = socket.create_connection((endpoint.host, endpoint.port), min(left, CONNECT_S_MAX))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.is_tls:
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=endpoint.host)
        except OSError as error:
            raise ConnectionFailed(
                f"cannot connect to {endpoint}: {error}", method=request.method, path=request.path
            ) from error

    def send(self, request: Request, data: tuple[bytes, ...], deadline: float) -> OSError | None:
        """Send a request. An error is returned: the server may have answered before it had read all."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=False)
        self._socket.settimeout(left)
        try:
            for part in data:
                self._socket.sendall(part)
        except OSError as error:
            if is_deadline(error):
                raise deadline_error(request, was_sent=False) from None
            return error
        return None

    def receive(self, request: Request, reader: AnswerReader, deadline: float, failed: OSError | None = None) -> None:
        """Feed the reader with what comes next."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise deadline_error(request, was_sent=True)
        self._socket.settimeout(left)
        try:
            count = self._socket.recv_into(self._buffer)
        except OSError as error:
            if is_deadline(error):
                raise deadline_error(request, was_sent=True) from None
            raise self._broken(request, failed or error, is_whole=failed is None) from error
        if count:
            reader.feed(self._view[:count])
            return
        reader.feed_eof()
        if not reader.is_complete:
            how = failed or OSError("it was closed" if not reader.has_begun else "it was closed within the answer")
            raise self._broken(request, how, is_whole=failed is None)

    def _broken(self, request: Request, error: OSError, *, is_whole: bool) -> ConnectionFailed:
        """A request that could not be sent as a whole cannot have been carried out; of TLS nobody knows."""
        return ConnectionFailed(
            f"the connection to {self._endpoint} broke: {error}",
            method=request.method,
            path=request.path,
            was_sent=is_whole or self._endpoint.is_tls,
        )

    def is_quiet(self) -> bool:
        """Is there nothing to read? An idle connection with something to read was closed by the server."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()


def is_deadline(error: OSError) -> bool:
    """Is it the time given that is over? A TimeoutError of the network has an errno."""
    return isinstance(error, TimeoutError) and error.errno is None


class Body:
    """The body of an answer, read as it comes. Closed early, it takes its connection with it."""

    def __init__(self, pool: "Pool", connection: Connection, request: Request, reader: AnswerReader) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self._request = request
        self._reader = reader
        self.status = reader.status
        self.headers = reader.headers

    def read(self, deadline: float) -> list[bytes]:
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
                self._connection.receive(self._request, self._reader, deadline)
            except BaseException:
                self.close()
                raise

    def read_all(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while some := self.read(deadline):
            parts += some
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Pool:
    """Connections to one endpoint. `common` are the header lines that every request has."""

    def __init__(self, endpoint: Endpoint, common: str, *, gzip: bool, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._common = common
        self._gzip = gzip
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._is_closed = False

    def exchange(self, request: Request, deadline: float) -> Answer:
        """Send a request and read the whole answer."""
        body = self.open(request, deadline)
        return Answer(body.status, body.headers, body.read_all(deadline))

    def open(self, request: Request, deadline: float) -> Body:
        """Send a request and read the head of the answer."""
        connection = self._take() or Connection(self._endpoint, request, deadline, self._monotonic)
        reader = AnswerReader(request)
        try:
            data = encode_request(request, self._endpoint, self._common, gzip=self._gzip)
            failed = connection.send(request, data, deadline)
            while not reader.has_head:
                connection.receive(request, reader, deadline, failed)
            if failed is not None:
                reader.keeps_alive = False
        except BaseException:
            connection.close()
            raise
        return Body(self, connection, request, reader)

    def _take(self) -> Connection | None:
        if self._owner != os.getpid():  # a fork may have copied the lock while it was held
            self._lock, self._idle, self._owner = threading.Lock(), [], os.getpid()
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if self._monotonic() - connection.idle_since < IDLE_S_MAX and connection.is_quiet():
                    return connection
                connection.close()
        return None

    def give_back(self, connection: Connection, reader: AnswerReader) -> None:
        connection.idle_since = self._monotonic()
        with self._lock:
            if reader.keeps_alive and not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()


class Caller:
    """Carries calls out: the transport's side of `retries`."""

    def __init__(self, config: ClientConfig, pace: Pace) -> None:
        self._config = config
        self._pace = pace
        self._pool = Pool(config.endpoint, config.headers(), gzip=config.gzip, monotonic=pace.monotonic)
        self._closing = threading.Event()
        self.monotonic = pace.monotonic
        self.retries = config.policy(pace.monotonic, random.SystemRandom().random)

    def run(self, call: Call[T]) -> T:
        """The answer to a call."""
        result: T = self._carry_out(self.retries.run(call), self._pool.exchange)
        return result

    def run_once(self, call: Call[T]) -> T:
        result: T = self._carry_out(self.retries.once(call), self._pool.exchange)
        return result

    def open(self, request: Request) -> Body:
        """An answer whose body is still to come. An error is raised, or tried again, as of any call."""
        body: Body = self._carry_out(self.retries.answered(Call(request, bytes)), self._open_body)
        return body

    def _open_body(self, request: Request, deadline: float) -> Answer | Body:
        body = self._pool.open(request, deadline)
        return body if body.status < 400 else Answer(body.status, body.headers, body.read_all(deadline))

    def _carry_out(self, flow: Flow[Any], attempt: Callable[[Request, float], Answer | Body]) -> Any:
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

    def pause(self, seconds: float, over: threading.Event | None = None) -> None:
        """Wait so long, or until `over`; if the client is closed meanwhile, that is an error."""
        self._pace.pause(seconds, over or self._closing)
        if self._closing.is_set():
            raise ClientError("the client was closed while it waited to try again")

    def read_deadline(self) -> float:
        """Until when the next part of a stream has to come."""
        return self.monotonic() + self._config.timeout_ms / 1000

    def close(self) -> None:
        self._closing.set()
        self._pool.close()
