"""Bytes to and from a server, by blocking sockets. Written by hand, as is its twin in `aio`.

A socket knows no HTTP and no deadlines. Its methods raise OSError; a TimeoutError without errno means that
`seconds` are over.
"""

import os
import select
import socket
import ssl
from collections.abc import Iterable
from typing import Final

from topics.client.protocol.http_parser import Endpoint

READ_BYTES: Final = 256 * 1024


def owner() -> int:
    """Whose sockets these are: this process's. A forked child has none of its parent's."""
    return os.getpid()


class Socket:
    """One connection. After a failed write, the server cannot have received everything; under TLS nobody knows."""

    def __init__(self, connected: socket.socket, *, is_tls: bool) -> None:
        self._socket = connected
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self.knows_what_was_sent = not is_tls

    @classmethod
    def open(cls, endpoint: Endpoint, seconds: float) -> "Socket":
        connected = socket.create_connection((endpoint.host, endpoint.port), seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.is_tls:
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=endpoint.host)
        return cls(connected, is_tls=endpoint.is_tls)

    def write(self, parts: Iterable[bytes], seconds: float) -> None:
        self._socket.settimeout(seconds)
        for part in parts:
            self._socket.sendall(part)

    def read(self, seconds: float) -> memoryview:
        """What comes next, valid until the next read; empty at the end."""
        self._socket.settimeout(seconds)
        return self._view[: self._socket.recv_into(self._buffer)]

    def is_quiet(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()
