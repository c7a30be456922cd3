"""HTTP/1.1 for the load: requests as bytes, and whether an answer is whole."""

import json
import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from bench.peers import Address

LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")


def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    kind = "Content-Type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def is_whole(answer: bytes) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = LENGTH.search(answer, 0, end + 2)
    if length is None and answer.startswith(b"HTTP/1.1 204"):
        return True
    if length is None:
        raise RuntimeError(f"an answer without a length: {answer!r}")
    return len(answer) >= end + 4 + int(length[1])


def is_good(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 2")


def connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def until_whole(connection: socket.socket, asked: bytes, is_whole: Callable[[bytes], bool]) -> bytes:
    """Ask and wait for the answer, in whatever protocol."""
    connection.sendall(asked)
    answer = b""
    while not is_whole(answer):
        received = connection.recv(65536)
        if not received:
            raise RuntimeError(f"the server has closed the connection, after {answer!r}")
        answer += received
    return answer


def exchange(connection: socket.socket, asked: bytes) -> bytes:
    """Ask and wait for the answer, which must be a good one."""
    answer = until_whole(connection, asked, is_whole)
    if not is_good(answer):
        raise RuntimeError(f"{asked[:200]!r} was refused: {answer!r}")
    return answer


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def ask(address: Address, method: str, path: str, body: Any = None) -> Any:
    """One JSON request on a connection of its own; what is answered."""
    with connect(address) as connection:
        return body_of(exchange(connection, request(method, path, json.dumps(body).encode() if body else b"")))


class Writers:
    """POSTs on several kept connections, never waiting for an answer while another connection is free."""

    def __init__(self, address: Address, count: int) -> None:
        self._free = deque(connect(address) for _ in range(count))
        self._busy: dict[int, tuple[socket.socket, bytes]] = {}
        self._epoll = select.epoll()
        for connection in self._free:
            self._epoll.register(connection.fileno(), select.EPOLLIN)

    def send(self, asked: bytes) -> bool:
        """False if every connection still waits for its answer."""
        if not self._free:
            return False
        connection = self._free.popleft()
        self._busy[connection.fileno()] = connection, b""
        connection.sendall(asked)
        return True

    def take_answers(self, wait_s: float) -> None:
        """Those that have come, or the first to come within `wait_s`."""
        for descriptor, _ in self._epoll.poll(wait_s):
            if descriptor not in self._busy:
                raise RuntimeError("the server has closed a connection or answered unasked")
            connection, before = self._busy[descriptor]
            received = connection.recv(65536)
            answer = before + received
            if not received or (is_whole(answer) and not is_good(answer)):
                raise RuntimeError(f"a write was refused: {answer!r}")
            if is_whole(answer):
                del self._busy[descriptor]
                self._free.append(connection)
            else:
                self._busy[descriptor] = connection, answer

    def finish(self) -> None:
        """Wait for the answers that are still due, and close."""
        deadline = time.monotonic() + 60
        while self._busy and time.monotonic() < deadline:
            self.take_answers(0.1)
        for connection in self._free:
            connection.close()
