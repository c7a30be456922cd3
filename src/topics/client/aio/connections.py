"""HTTP exchanges on connections that are kept open.

A connection carries one exchange at a time. It goes back to the pool only after its answer was read to the end; an
exchange that breaks off, or is given up, takes its connection with it.
"""

from collections.abc import Callable
from typing import Final

from topics.client.aio.sockets import AsyncSocket, owner
from topics.client.errors import ConnectionFailed, DeadlineExceeded
from topics.client.protocol.http_parser import Endpoint, Request, Response, ResponseReader, encode_request
from topics.client.protocol.idle_connections import IdleConnections

CONNECT_S_MAX: Final = 5.0


class AsyncConnection:
    """One connection. Its methods raise ConnectionFailed or DeadlineExceeded."""

    def __init__(self, endpoint: Endpoint, socket: AsyncSocket, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._socket = socket
        self._monotonic = monotonic
        self.idle_since = 0.0

    @classmethod
    async def open(
        cls, endpoint: Endpoint, request: Request, deadline: float, monotonic: Callable[[], float]
    ) -> "AsyncConnection":
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise late(request, was_sent=False)
        try:
            socket = await AsyncSocket.open(endpoint, min(left_s, CONNECT_S_MAX))
        except OSError as error:
            how = str(error) or "timed out"
            raise ConnectionFailed(
                f"cannot connect to {endpoint}: {how}", method=request.method, path=request.path
            ) from error
        return cls(endpoint, socket, monotonic)

    async def send(self, request: Request, parts: tuple[bytes, ...], deadline: float) -> OSError | None:
        """Send a request. An error is returned, not raised: the server may have answered before it read everything."""
        left_s = deadline - self._monotonic()
        if left_s <= 0:
            raise late(request, was_sent=False)
        try:
            await self._socket.write(parts, left_s)
        except OSError as error:
            if is_timeout(error):
                raise late(request, was_sent=False) from None
            return error
        return None

    async def receive(
        self, request: Request, reader: ResponseReader, deadline: float, failed: OSError | None = None
    ) -> None:
        """Feed the reader with what comes next. `failed` is the error that ended the sending, if any."""
        left_s = deadline - self._monotonic()
        if left_s <= 0:
            raise late(request, was_sent=True)
        try:
            data = await self._socket.read(left_s)
        except OSError as error:
            if is_timeout(error):
                raise late(request, was_sent=True) from None
            raise self._broken(request, failed or error, is_whole=failed is None) from error
        if data:
            reader.feed(data)
            return
        reader.feed_eof()
        if not reader.is_complete:
            how = failed or OSError("it was closed within the answer" if reader.has_begun else "it was closed")
            raise self._broken(request, how, is_whole=failed is None)

    def _broken(self, request: Request, error: OSError, *, is_whole: bool) -> ConnectionFailed:
        """`is_whole`: all of the request was sent. A request that was not sent whole cannot have been carried out."""
        return ConnectionFailed(
            f"the connection to {self._endpoint} broke: {error}",
            method=request.method,
            path=request.path,
            was_sent=is_whole or not self._socket.knows_what_was_sent,
        )

    def is_quiet(self) -> bool:
        return self._socket.is_quiet()

    def close(self) -> None:
        self._socket.close()


def is_timeout(error: OSError) -> bool:
    """Is our own time over? A TimeoutError of the network has an errno."""
    return isinstance(error, TimeoutError) and error.errno is None


def late(request: Request, was_sent: bool) -> DeadlineExceeded:
    return DeadlineExceeded(
        "no answer in time; the server may have carried it out" if was_sent else "no connection in time",
        method=request.method,
        path=request.path,
        was_sent=was_sent,
    )


class AsyncBody:
    """The body of an answer, read as it arrives. Closing it early closes its connection."""

    def __init__(
        self, pool: "AsyncPool", connection: AsyncConnection, request: Request, reader: ResponseReader
    ) -> None:
        self._pool = pool
        self._connection: AsyncConnection | None = connection
        self._request = request
        self._reader = reader
        self.status = reader.status
        self.headers = reader.headers

    async def read(self, deadline: float) -> list[bytes]:
        """What has arrived, at least one part; nothing at the end."""
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


class AsyncPool:
    """Connections to one endpoint. `common` holds the header lines of every request."""

    def __init__(self, endpoint: Endpoint, common: str, *, gzip: bool, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._common = common
        self._gzip = gzip
        self._monotonic = monotonic
        self._idle: IdleConnections[AsyncConnection] = IdleConnections(monotonic, owner)

    async def exchange(self, request: Request, deadline: float) -> Response:
        """Send a request and read the whole answer."""
        body = await self.open(request, deadline)
        return Response(body.status, body.headers, await body.read_all(deadline))

    async def open(self, request: Request, deadline: float) -> AsyncBody:
        """Send a request and read the head of the answer."""
        connection = self._idle.take()
        if connection is None:
            connection = await AsyncConnection.open(self._endpoint, request, deadline, self._monotonic)
        reader = ResponseReader(request)
        try:
            parts = encode_request(request, self._endpoint, self._common, gzip=self._gzip)
            failed = await connection.send(request, parts, deadline)
            while not reader.has_head:
                await connection.receive(request, reader, deadline, failed)
            if failed is not None:
                reader.keeps_alive = False
        except BaseException:
            connection.close()
            raise
        return AsyncBody(self, connection, request, reader)

    def give_back(self, connection: AsyncConnection, reader: ResponseReader) -> None:
        """Take a connection whose answer was read to the end."""
        if reader.keeps_alive:
            self._idle.give_back(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._idle.close()
