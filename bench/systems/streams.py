"""How records are written to, and watched at, each system of the live benchmark. One class per way of watching."""

import json
import socket
import time
from typing import Final, Protocol

from bench.peers import Address
from bench.systems.logs import create
from bench.wire import http, null

WRITERS: Final = 16  # connections of those that answer each write
WEBSOCKET: Final = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Writer(Protocol):
    def send(self, record: bytes) -> bool:
        """False if no connection is free; then take answers."""

    def take_answers(self, wait_s: float) -> None:
        """Those that have come, or the first to come within `wait_s`."""

    def finish(self) -> None:
        """Take the last answers, and close."""


class System(Protocol):
    def watch(self, topic: str) -> socket.socket:
        """A connection that receives every record written to the topic from now on."""

    def writer(self, topic: str) -> Writer:
        """Writes records to the topic, one by one."""


def until(connection: socket.socket, text: bytes) -> socket.socket:
    """The connection, once it has sent this."""
    received = b""
    while text not in received:
        more = connection.recv(65536)
        if not more:
            raise RuntimeError(f"{text!r} was expected, the connection ended after {received!r}")
        received += more
    return connection


def masked(text: bytes) -> bytes:
    """A text frame from a client; a mask of zeros leaves the text as it is."""
    if len(text) < 126:
        return bytes((0x81, 0x80 | len(text))) + bytes(4) + text
    return bytes((0x81, 0x80 | 126)) + len(text).to_bytes(2, "big") + bytes(4) + text


class _PostWriter:
    def __init__(self, address: Address, path: str, before: bytes, after: bytes) -> None:
        self._writers = http.Writers(address, WRITERS)
        self._path, self._before, self._after = path, before, after
        self.take_answers = self._writers.take_answers
        self.finish = self._writers.finish

    def send(self, record: bytes) -> bool:
        return self._writers.send(http.request("POST", self._path, self._before + record + self._after))


class TopicsSse:
    """Our SSE: a session per watcher, its stream on the same connection."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        wanted = json.dumps({"topics": {topic: {"tail": True}}, "heartbeat_ms": 60_000}).encode()
        session = http.body_of(http.exchange(connection, http.request("POST", "/v0/watch", wanted)))
        connection.sendall(http.request("GET", session["stream_url"], headers="Accept: text/event-stream\r\n"))
        return until(connection, b"event: caught-up")

    def writer(self, topic: str) -> Writer:
        http.ask(self._address, "PUT", f"/v0/topics/{topic}")
        return _PostWriter(self._address, f"/v0/topics/{topic}?return_seqs=false", b'{"records":[{"data":', b"}]}")


class TopicsWebSocket(TopicsSse):
    """Our WebSocket."""

    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(http.request("GET", "/v0/ws", headers=WEBSOCKET))
        until(connection, b"\r\n\r\n")
        connection.sendall(masked(json.dumps({"op": "subscribe", "topic": topic, "tail": True}).encode()))
        return until(connection, b'"caught_up"')


class NchanSse:
    def __init__(self, address: Address) -> None:
        self._address = address

    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(http.request("GET", f"/sse/{topic}", headers="Accept: text/event-stream\r\n"))
        return until(connection, b": hi")

    def writer(self, topic: str) -> Writer:
        return _PostWriter(self._address, f"/pub/{topic}", b"", b"")


class NchanWebSocket(NchanSse):
    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(http.request("GET", f"/ws/{topic}", headers=WEBSOCKET))
        return until(connection, b"\r\n\r\n")


class Nats:
    """Core subscriptions, without JetStream."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def watch(self, topic: str) -> socket.socket:
        connection = self._connect()
        connection.sendall(f"SUB {topic} 1\r\nPING\r\n".encode())
        return until(connection, b"PONG\r\n")

    def writer(self, topic: str) -> Writer:
        return _NatsWriter(self._connect(), topic)

    def _connect(self) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        return until(connection, b"PONG\r\n")


class _NatsWriter:
    def __init__(self, connection: socket.socket, topic: str) -> None:
        self._connection, self._topic = connection, topic.encode()

    def send(self, record: bytes) -> bool:
        self._connection.sendall(b"PUB %s %d\r\n%s\r\n" % (self._topic, len(record), record))
        return True

    def take_answers(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def finish(self) -> None:
        self._connection.close()


class DurableSse:
    """The reference server of Durable Streams: a live read over SSE."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        path = f"/{topic}?offset=now&live=sse"
        connection.sendall(http.request("GET", path, headers="Accept: text/event-stream\r\n"))
        return until(connection, b'"upToDate":true')

    def writer(self, topic: str) -> Writer:
        create(self._address, topic)
        return _PostWriter(self._address, f"/{topic}", b"", b"")


class NullHub:
    """A server that does nothing but hand on what is written: the least that a fan-out can be."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def watch(self, topic: str) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(null.LISTEN)
        return until(connection, null.LISTENING)

    def writer(self, topic: str) -> Writer:
        return _PostWriter(self._address, "/", b"", b"")
