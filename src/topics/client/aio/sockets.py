"""Bytes to and from a server, by asyncio streams. Written by hand, as is its twin in `blocking`.

A socket knows no HTTP and no deadlines. Its methods raise OSError; a TimeoutError without errno means that
`seconds` are over.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

from topics.client.protocol.http_parser import Endpoint

READ_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = 1024 * 1024  # read ahead of the caller


def owner() -> asyncio.AbstractEventLoop | None:
    """Whose sockets these are: the running event loop's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncSocket:
    """One connection. After a failed write, the loop may still have sent everything."""

    knows_what_was_sent = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, endpoint: Endpoint, seconds: float) -> "AsyncSocket":
        context = ssl.create_default_context() if endpoint.is_tls else None
        async with asyncio.timeout(seconds):
            return cls(*await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=BUFFER_BYTES))

    async def write(self, parts: Iterable[bytes], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()

    async def read(self, seconds: float) -> bytes:
        """What comes next; empty at the end."""
        async with asyncio.timeout(seconds):
            return await self._reader.read(READ_BYTES)

    def is_quiet(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        self._writer.transport.abort()
