"""A WebSocket client of bytes: what the tests of the WebSocket share. It blocks; nothing is answered by itself."""

import json
import os
import socket
import struct
from typing import Any, NamedTuple

from tests.api.clients.transcript import Client, Connection, Reply, request_bytes

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # of RFC 6455, with its answer
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {KEY}",
)
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def close_code(self) -> int:
        assert self.opcode == CLOSE, self
        return int.from_bytes(self.payload[:2], "big")


def handshake(*headers: str, key: str | None = None) -> bytes:
    authorization = [] if key is None else [f"Authorization: Bearer {key}"]
    return request_bytes("GET", "/v0/ws", None, *HANDSHAKE, *authorization, *headers)


def client_frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes | None = None) -> bytes:
    """A frame as a client sends it. An empty `mask`: it is not masked."""
    mask = os.urandom(4) if mask is None else mask
    size = len(payload)
    bit = 0x80 if mask else 0
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([bit | size])
    elif size < 0x10000:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    if not mask:
        return head + payload
    stream = mask * (size // 4 + 1)
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(stream[:size], "big")
    return head + mask + masked.to_bytes(size, "big")


def text(message: Any) -> bytes:
    """A message as one frame: a text as it is, anything else as JSON."""
    payload = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":")).encode()
    return client_frame(TEXT, payload)


class Socket(Connection):
    """An open WebSocket. Frames are taken one by one; pings are left to the caller."""

    def __init__(self, address: tuple[str, int], key: str | None = None, *headers: str) -> None:
        super().__init__(address)
        self.send(handshake(*headers, key=key))
        self.answer = self.handshake_reply()
        assert self.answer.status == 101, self.answer

    def handshake_reply(self) -> Reply:
        head = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:])}
        status = int(head[0].split(" ")[1])
        body = self.read_exactly(int(headers["content-length"])) if status != 101 else b""
        return Reply(status, headers, body)

    def frame(self) -> Frame:
        first, second = self.read_exactly(2)
        assert first & 0x80 and not first & 0x70, "the server sends whole messages without extensions"
        assert second < 0x80, "the server masks nothing"
        size = second
        if second == 126:
            size = int.from_bytes(self.read_exactly(2), "big")
            assert size >= 126
        elif second == 127:
            size = int.from_bytes(self.read_exactly(8), "big")
            assert size >= 0x10000
        return Frame(first & 0x0F, self.read_exactly(size))

    def message(self) -> dict[str, Any]:
        """The next frame, which must be a JSON text."""
        frame = self.frame()
        assert frame.opcode == TEXT, frame
        message = json.loads(frame.payload)
        assert isinstance(message, dict) and isinstance(message["op"], str), message
        return message

    def expect(self, op: str) -> dict[str, Any]:
        """The next message without its op, which must be this one."""
        message = self.message()
        assert message.pop("op") == op, message
        return message

    def expect_close(self, code: int) -> None:
        """A Close frame is next, and then the end of the server's side."""
        assert self.frame().close_code == code
        assert self.at_end()

    def at_end(self) -> bool:
        assert self.unread == b"", self.unread
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def say(self, op: str, **fields: Any) -> None:
        self.send(text({"op": op} | fields))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """A command and the next message, whatever it is."""
        self.say(op, **fields)
        return self.message()

    def follow(self, topic: str, from_seq: int = 0, **fields: Any) -> dict[str, Any]:
        """Subscribe to one topic; its part of the answer."""
        self.say("subscribe", topic=topic, from_seq=from_seq, **fields)
        return dict(self.expect("subscribed")["topics"][topic])

    def synced(self) -> None:
        """Nothing is under way to the client: what comes next is the answer to a ping."""
        assert self.ask("ping", request_id="sync") == {"op": "pong", "request_id": "sync"}

    def data(self, count: int) -> list[Any]:
        """The data of as many records, over as many frames as it takes."""
        found: list[Any] = []
        while len(found) < count:
            message = self.message()
            if message["op"] == "record":
                found += [record["data"] for record in message["records"]]
        return found

    def stop_reading(self) -> None:
        """Let the server's bytes pile up soon: a small receive buffer."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def open_socket(client: Client, *headers: str) -> Socket:
    return Socket(client.address, client.key, *headers)
