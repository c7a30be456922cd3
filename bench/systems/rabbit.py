"""RabbitMQ streams on the wire: what it takes to publish one record and have it confirmed."""

import socket
import struct
from typing import Final

from bench.peers import Address
from bench.systems.logs import DATA, Log
from bench.wire import http
from bench.wire.epoll import IsWhole

STREAM: Final = b"log"
DECLARE_PUBLISHER, PUBLISH, CONFIRM, CREATE = 0x01, 0x02, 0x03, 0x0D
PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN = 0x11, 0x12, 0x13, 0x14, 0x15
ANSWER: Final = 0x8000
OK, STREAM_EXISTS = 1, 5
NO_LIMIT: Final = struct.pack(">II", 1 << 20, 0)  # size of a frame; no heartbeats
AMQP_DATA: Final = b"\x00\x53\x75\xb0" + struct.pack(">I", len(DATA)) + DATA  # a message with one section of data


class RabbitStream(Log):
    """One publisher per connection, one record per frame."""

    acked = struct.pack(">HH", CONFIRM, 1)

    def __init__(self, address: Address) -> None:
        self._address = address
        with self._open() as connection:
            _ask(connection, CREATE, _text(STREAM) + struct.pack(">I", 0), (OK, STREAM_EXISTS))

    def connect(self, number: int) -> socket.socket:
        connection = self._open()
        _ask(connection, DECLARE_PUBLISHER, b"\0" + _text(b"") + _text(STREAM))
        return connection

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        record = struct.pack(">BIQI", 0, 1, 1, len(AMQP_DATA)) + AMQP_DATA
        return _frame(PUBLISH, record), _is_frame

    def _open(self) -> socket.socket:
        connection = http.connect(self._address)
        _ask(connection, PROPERTIES, struct.pack(">I", 0))
        _ask(connection, HANDSHAKE, b"")
        login = b"\0guest\0guest"
        _ask(connection, AUTHENTICATE, _text(b"PLAIN") + struct.pack(">I", len(login)) + login)
        _receive(connection)  # how the server would have it tuned
        connection.sendall(_frame(ANSWER | TUNE, NO_LIMIT))
        _ask(connection, OPEN, _text(b"/"))
        return connection


def _text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def _frame(key: int, payload: bytes) -> bytes:
    return struct.pack(">IHH", len(payload) + 4, key, 1) + payload


def _is_frame(answer: bytes) -> bool:
    return len(answer) >= 4 and len(answer) >= 4 + int.from_bytes(answer[:4], "big")


def _receive(connection: socket.socket) -> bytes:
    """One frame and no more: the server may send the next one unasked."""
    size = int.from_bytes(_exactly(connection, 4), "big")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise RuntimeError(f"RabbitMQ has closed the connection, after {received!r}")
        received += more
    return received


def _ask(connection: socket.socket, key: int, payload: bytes, good: tuple[int, ...] = (OK,)) -> None:
    connection.sendall(_frame(key, struct.pack(">I", 1) + payload))
    answer = _receive(connection)
    answered, _, _, code = struct.unpack_from(">HHIH", answer)
    if answered != ANSWER | key or code not in good:
        raise RuntimeError(f"RabbitMQ refuses the command {key:#x}: {answer!r}")
