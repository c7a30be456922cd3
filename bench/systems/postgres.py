"""PostgreSQL on the wire: sessions and simple queries."""

import socket
import struct

from bench.peers import Address
from bench.wire import http


def session(address: Address) -> socket.socket:
    connection = http.connect(address)
    settings = struct.pack(">i", 196608) + b"user\0bench\0database\0postgres\0\0"
    http.until_whole(connection, struct.pack(">i", len(settings) + 4) + settings, is_ready)
    return connection


def ask(connection: socket.socket, text: str) -> bytes:
    answer = http.until_whole(connection, query(text), is_ready)
    if answer.startswith(b"E"):
        raise RuntimeError(f"PostgreSQL refuses {text[:80]!r}: {answer!r}")
    return answer


def query(text: str) -> bytes:
    return b"Q" + struct.pack(">i", len(text) + 5) + text.encode() + b"\0"


def is_ready(answer: bytes) -> bool:
    """ReadyForQuery is the last message of an answer."""
    return answer[-6:-1] == b"Z\0\0\0\5"
