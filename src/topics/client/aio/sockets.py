"""Bytes to and from a server, by asyncio streams. Written by hand, as is its twin in `blocking`.

A socket knows no HTTP but the CONNECT to a proxy, and no deadlines. Its methods raise OSError; a TimeoutError without
errno means that `seconds` are over, or that `stop` was set.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from topics.client.aio.concurrency import tell
from topics.client.client_config import Way
from topics.client.protocol.http_parser import connect_request, refuse_tunnel
from topics.client.protocol.stopping import Stop

READ_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = 1024 * 1024  # read ahead of the caller


def owner() -> asyncio.AbstractEventLoop | None:
    """Whose sockets these are: the running event loop's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@asynccontextmanager
async def bounded(seconds: float, stop: Stop) -> AsyncIterator[None]:
    """Raise TimeoutError within the block when the time is over or `stop` is set."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds) as timeout:

        def end() -> None:
            if not timeout.expired() and is_within:
                timeout.reschedule(0)

        is_within = True
        try:
            with stop.ending(lambda: tell(loop, end)):
                yield
        finally:
            is_within = False


class AsyncSocket:
    """One connection. After a failed write, the loop may still have sent everything."""

    knows_what_was_sent = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, way: Way, seconds: float, stop: Stop) -> "AsyncSocket":
        first, endpoint = way.first, way.endpoint
        async with bounded(seconds, stop):
            if first.socket_path:
                return cls(*await asyncio.open_unix_connection(first.socket_path, limit=BUFFER_BYTES))
            if way.proxy is None:
                return cls(*await asyncio.open_connection(*first.address, ssl=way.context, limit=BUFFER_BYTES))
            reader, writer = await asyncio.open_connection(*first.address, limit=BUFFER_BYTES)
            try:
                if way.context is not None:
                    writer.write(connect_request(endpoint))
                    refuse_tunnel(endpoint, await reader.readuntil(b"\r\n\r\n"))
                    await writer.start_tls(way.context, server_hostname=endpoint.host)
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                writer.transport.abort()
                raise OSError(f"the proxy does not answer a CONNECT as proxies do: {error}") from None
            except BaseException:
                writer.transport.abort()
                raise
            return cls(reader, writer)

    async def write(self, parts: Iterable[bytes], seconds: float, stop: Stop) -> None:
        async with bounded(seconds, stop):
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()

    async def read(self, seconds: float, stop: Stop) -> bytes:
        """What comes next; empty at the end."""
        async with bounded(seconds, stop):
            return await self._reader.read(READ_BYTES)

    def is_quiet(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        """Any thread may call it."""
        if owner() is self._loop:
            self._abort()
        else:
            tell(self._loop, self._abort)  # which keeps the writer: it complains if it goes before it is closed

    def _abort(self) -> None:
        self._writer.transport.abort()
