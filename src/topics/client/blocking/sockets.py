"""Bytes to and from a server, by blocking sockets. Written by hand, as is its twin in `aio`.

A socket knows no HTTP but the CONNECT to a proxy, and no deadlines. Its methods raise OSError; a TimeoutError without
errno means that `seconds` are over. When `stop` is set, a wait ends because the connection is shut down; the thread
that waits then closes it, so that no other one ever reads from a descriptor that has become somebody else's.
"""

import os
import select
import socket
from collections.abc import Iterable
from typing import Final

from topics.client.client_config import Way
from topics.client.protocol.http_parser import Endpoint, connect_request, refuse_tunnel
from topics.client.protocol.stopping import Stop

READ_BYTES: Final = 256 * 1024
PROXY_HEAD_BYTES_MAX: Final = 64 * 1024


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
    def open(cls, way: Way, seconds: float, stop: Stop) -> "Socket":
        connected = _connected(way.first, seconds, stop)
        try:
            if way.context is not None:
                with stop.ending(lambda: _shut(connected)):
                    if way.proxy is not None:
                        _tunnel(connected, way.endpoint)
                    connected = way.context.wrap_socket(connected, server_hostname=way.endpoint.host)
        except BaseException:
            connected.close()
            raise
        return cls(connected, is_tls=way.context is not None)

    def write(self, parts: Iterable[bytes], seconds: float, stop: Stop) -> None:
        self._socket.settimeout(seconds)
        with stop.ending(self._shut):
            for part in parts:
                self._socket.sendall(part)

    def read(self, seconds: float, stop: Stop) -> memoryview:
        """What comes next, valid until the next read; empty at the end."""
        self._socket.settimeout(seconds)
        with stop.ending(self._shut):
            return self._view[: self._socket.recv_into(self._buffer)]

    def is_quiet(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _shut(self) -> None:
        _shut(self._socket)

    def close(self) -> None:
        self._socket.close()


def _connected(endpoint: Endpoint, seconds: float, stop: Stop) -> socket.socket:
    """The first of the endpoint's addresses that accepts."""
    if endpoint.socket_path:
        return _connect(socket.AF_UNIX, socket.SOCK_STREAM, 0, endpoint.socket_path, seconds, stop)
    failure: OSError | None = None
    for family, kind, number, _, address in socket.getaddrinfo(*endpoint.address, 0, socket.SOCK_STREAM):
        try:
            connected = _connect(family, kind, number, address, seconds, stop)
        except OSError as error:
            failure = failure or error
            if stop.is_set():
                break
        else:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
    raise failure or OSError(f"{endpoint.host} has no address")


def _connect(family: int, kind: int, number: int, address: object, seconds: float, stop: Stop) -> socket.socket:
    opening = socket.socket(family, kind, number)
    try:
        opening.settimeout(seconds)
        with stop.ending(lambda: _shut(opening)):
            opening.connect(address)  # type: ignore[arg-type]
    except BaseException:
        opening.close()
        raise
    return opening


def _tunnel(connected: socket.socket, endpoint: Endpoint) -> None:
    """Have a proxy connect us to the server."""
    connected.sendall(connect_request(endpoint))
    head = b""
    while b"\r\n\r\n" not in head:
        byte = connected.recv(1)  # not a byte of what comes behind
        if not byte or len(head) > PROXY_HEAD_BYTES_MAX:
            raise OSError("the proxy does not answer a CONNECT as proxies do")
        head += byte
    refuse_tunnel(endpoint, head)


def _shut(connected: socket.socket) -> None:
    """Let everybody who waits for this connection know that it has ended. The descriptor stays."""
    try:
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:  # it is not connected, or closed
        pass
