"""HTTP exchanges on connections that are kept open.

A connection carries one exchange at a time. It goes back to the pool only after its answer was read to the end; an
exchange that breaks off, or is given up, takes its connection with it.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Final
from weakref import ReferenceType, ref

from topics.client.aio.sockets import AsyncSocket, owner
from topics.client.client_config import Way
from topics.client.errors import CannotConnect, ClientClosed, ClientError, ConnectionFailed, DeadlineExceeded
from topics.client.protocol.http_parser import Endpoint, Request, Response, ResponseReader, encode_request
from topics.client.protocol.idle_connections import IdleConnections
from topics.client.protocol.stopping import Stop

CONNECT_S_MAX: Final = 5.0
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class AsyncConnection:
    """One connection. Its methods raise ConnectionFailed, DeadlineExceeded, or ClientClosed if `stop` was set."""

    def __init__(self, endpoint: Endpoint, socket: AsyncSocket, monotonic: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._socket = socket
        self._monotonic = monotonic
        self.idle_since = 0.0

    @classmethod
    async def open(
        cls, way: Way, request: Request, deadline: float, monotonic: Callable[[], float], stop: Stop
    ) -> "AsyncConnection":
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise late(request, was_sent=False)
        try:
            socket = await AsyncSocket.open(way, min(left_s, CONNECT_S_MAX), stop)
        except OSError as error:
            if stop.is_set():
                raise closed(request, was_sent=False) from None
            raise not_connected(way, request, error) from error
        return cls(way.endpoint, socket, monotonic)

    async def send(self, request: Request, parts: tuple[bytes, ...], deadline: float, stop: Stop) -> OSError | None:
        """Send a request. An error is returned, not raised: the server may have answered before it read everything."""
        left_s = deadline - self._monotonic()
        if left_s <= 0:
            raise late(request, was_sent=False)
        try:
            await self._socket.write(parts, left_s, stop)
        except OSError as error:
            if stop.is_set():
                raise closed(request, was_sent=not self._socket.knows_what_was_sent) from None
            if is_timeout(error):
                raise late(request, was_sent=False) from None
            return error
        return None

    async def receive(
        self, request: Request, reader: ResponseReader, deadline: float, stop: Stop, failed: OSError | None = None
    ) -> None:
        """Feed the reader with what comes next. `failed` is the error that ended the sending, if any."""
        left_s = deadline - self._monotonic()
        if left_s <= 0:
            raise late(request, was_sent=True)
        try:
            data = await self._socket.read(left_s, stop)
        except OSError as error:
            if stop.is_set():
                raise closed(request, was_sent=True) from None
            if is_timeout(error):
                raise late(request, was_sent=True) from None
            raise self._broken(request, failed or error, is_whole=failed is None) from error
        if data:
            reader.feed(data)
            return
        reader.feed_eof()
        if not reader.is_complete:
            if stop.is_set():
                raise closed(request, was_sent=True)
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


def closed(request: Request, was_sent: bool) -> ClientClosed:
    how = "the client was closed during the call" if was_sent else "the client is closed"
    return ClientClosed(how, method=request.method, path=request.path, was_sent=was_sent)


def not_connected(way: Way, request: Request, error: OSError) -> ClientError:
    """What a failure to connect means: only some of them pass."""
    where = f"cannot connect to {way.first}"
    kind: type[ConnectionFailed] = CannotConnect
    how = str(error) or "timed out"
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        how = f"the host {way.first.host!r} is unknown ({error.strerror})"
    elif isinstance(error, ssl.SSLCertVerificationError):
        how = f"certificate verify failed: {error.verify_message}; pass its authority as verify"
    elif isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
        how = "it does not speak TLS; use http://"
    elif isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        how = f"TLS failed: {error.reason or error}"
    else:
        kind = ConnectionFailed
    return kind(f"{where}: {how}", method=request.method, path=request.path)


class AsyncBody:
    """The body of an answer, read as it arrives. Closing it early closes its connection."""

    def __init__(
        self,
        pool: "AsyncPool",
        connection: AsyncConnection,
        request: Request,
        reader: ResponseReader,
        stop: Stop,
    ) -> None:
        self._stop = stop
        self._pool = pool
        self._connection: AsyncConnection | None = connection
        self._request = request
        self._reader = reader
        self._is_read = False  # somebody is at it, and will notice when it is stopped
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
            self._is_read = True
            try:
                await self._connection.receive(self._request, self._reader, deadline, self._stop)
            except BaseException:
                self.close()
                raise
            finally:
                self._is_read = False

    async def read_all(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while some := await self.read(deadline):
            parts += some
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close_if_idle(self) -> None:
        """Close it unless it is being read: a stream that nobody asks for its next part just now."""
        if not self._is_read:
            self.close()


class AsyncPool:
    """Connections to one server. `common` holds the header lines of every request.

    A stream that its user drops is gone with its connection, so the pool must not hold on to it.
    """

    def __init__(self, way: Way, common: str, *, gzip: bool, monotonic: Callable[[], float]) -> None:
        self._way = way
        self._common = common
        self._gzip = gzip
        self._monotonic = monotonic
        self._idle: IdleConnections[AsyncConnection] = IdleConnections(monotonic, owner)
        self._streams: dict[int, ReferenceType[AsyncBody]] = {}

    async def exchange(self, request: Request, deadline: float, stop: Stop) -> Response:
        """Send a request and read the whole answer."""
        body = await self.open(request, deadline, stop)
        return Response(body.status, body.headers, await body.read_all(deadline))

    async def open_stream(self, request: Request, deadline: float, stop: Stop) -> AsyncBody:
        """As `open`, for a body that is read bit by bit: it is closed with the pool."""
        body = await self.open(request, deadline, stop)
        key = id(body)
        self._streams[key] = ref(body, lambda _: self._streams.pop(key, None))
        return body

    async def open(self, request: Request, deadline: float, stop: Stop) -> AsyncBody:
        """Send a request and read the head of the answer."""
        if stop.is_set():
            raise closed(request, was_sent=False)
        way = self._way
        connection = self._idle.take()
        if connection is None:
            connection = await AsyncConnection.open(way, request, deadline, self._monotonic, stop)
        reader = ResponseReader(request)
        try:
            absolute = way.proxy is not None and way.context is None
            parts = encode_request(request, way.endpoint, self._common, gzip=self._gzip, absolute=absolute)
            failed = await connection.send(request, parts, deadline, stop)
            while not reader.has_head:
                await connection.receive(request, reader, deadline, stop, failed)
            if failed is not None:
                reader.keeps_alive = False
        except BaseException:
            connection.close()
            raise
        return AsyncBody(self, connection, request, reader, stop)

    def give_back(self, connection: AsyncConnection, reader: ResponseReader) -> None:
        """Take a connection whose answer was read to the end."""
        if reader.keeps_alive:
            self._idle.give_back(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._idle.close()
        for stream in list(self._streams.values()):
            if (body := stream()) is not None:
                body.close_if_idle()
