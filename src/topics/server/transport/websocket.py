"""WebSocket on a connection that an HTTP/1.1 request handed over: handshake, frames, the end (RFC 6455).

Owns: the frames of both directions, the order of what is written, the close handshake. Must not know: commands,
JSON, topics, time. What a client says goes to a `Peer`, one whole message at a time.

    frame   FIN 1 │ RSV 3 │ opcode 4 │ masked 1 │ length 7 (126: 2 more bytes follow, 127: 8) │ mask 4 │ payload

The server's frames have no mask, so that the bytes of one frame may go to any number of sockets. There are no
extensions: nothing is compressed.

Invariants: `stage` only grows. A message is never larger than `message_bytes_max`, and not more than that is held.
`Peer.lost` is called exactly once, last of all. From the first Close frame in either direction on, input is
discarded; nothing is written behind the server's own.
"""

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from hashlib import sha1
from typing import Final, Protocol, cast

from websockets.exceptions import ProtocolError
from websockets.frames import Close, CloseCode

from topics.errors import InvalidRequest
from topics.server.transport.exchange import Request
from topics.server.transport.websocket_reader import (
    BINARY,
    CLOSE,
    CONTROL_BYTES_MAX,
    PING,
    PONG,
    TEXT,
    BrokenOff,
    FrameReader,
)
from topics.uring.lines import Line

GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
VERSION: Final = b"13"
OPEN, LEAVING, CLOSING, LOST = range(4)  # LEAVING: the client has sent Close


class UnknownVersion(InvalidRequest):
    """The handshake is for another version of the protocol; the answer names the one spoken here."""


# --- the handshake


def accept(request: Request) -> bytes:
    """The answer to a valid handshake, whole."""
    upgrades = b",".join(request.header_values(b"upgrade")).lower().split(b",")
    if not request.wants_upgrade or b"websocket" not in [one.strip() for one in upgrades]:
        raise InvalidRequest("this path is a WebSocket: Connection: Upgrade and Upgrade: websocket are needed")
    versions = request.header_values(b"sec-websocket-version")
    if versions != [VERSION]:
        given = b", ".join(versions).decode("latin-1") or "missing"
        raise UnknownVersion(f"Sec-WebSocket-Version is {given}; version 13 is spoken here")
    keys = request.header_values(b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        raise InvalidRequest("Sec-WebSocket-Key must be given once, 16 bytes in base64")
    token = b64encode(sha1(keys[0] + GUID).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n\r\n" % token
    )


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16
    except NotBase64:
        return False


# --- frames


def text_frame(*parts: bytes | memoryview) -> bytes:
    """A whole message, put together; the same bytes serve every socket."""
    return b"".join((_head(TEXT, sum(map(len, parts))), *parts))


def control_frame(opcode: int, payload: bytes) -> bytes:
    return _head(opcode, len(payload)) + payload


def _head(opcode: int, size: int) -> bytes:
    if size < 126:
        return bytes((0x80 | opcode, size))
    if size < 0x10000:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big")


# --- the connection


class Peer(Protocol):
    """Who talks over a socket."""

    def received(self, text: bytes | None) -> None:
        """A whole message; None: a binary one, whatever it says."""
        ...

    def left(self) -> None:
        """The client has sent Close, and nothing more will come: finish, and `close` the socket."""
        ...

    def blocked(self) -> None:
        """The client does not take what is written: stop writing until `writable`."""
        ...

    def writable(self) -> None: ...

    def closing(self) -> None:
        """The server's side has ended; `abort` the socket if the client's does not."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


class WebSocket(Line, asyncio.Protocol):
    __slots__ = (
        "_close_code",
        "_has_eof",
        "_head",
        "_is_due",
        "_is_parsing",
        "_peer",
        "_pong",
        "_reader",
        "is_blocked",
        "is_paused",
        "pings",
        "stage",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, head: bytes, message_bytes_max: int, meet: Callable[["WebSocket"], Peer]) -> None:
        super().__init__()
        self.stage = OPEN
        self.is_blocked = False  # the client does not take what is written
        self.is_paused = False  # nothing is read
        self.pings = 0  # sent since something was last heard of the client
        self._head = head  # the answer to the handshake, until it is sent
        self._reader = FrameReader(message_bytes_max)
        self._pong: bytes | None = None  # owed to the client
        self._close_code: int = CloseCode.NORMAL_CLOSURE  # of the client's Close
        self._has_eof = False
        self._is_due = False  # a turn in which it parses on is scheduled; nothing is read before
        self._is_parsing = False
        self._peer: Peer | None = meet(self)  # None once the connection is gone

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._head)
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if self.stage == OPEN:
            self.pings = 0
            self._reader.feed(data)
            if not self._is_due:
                self._reader.work = 0
                self._parse()

    def eof_received(self) -> bool:
        """A client that ends without Close gets nothing more. True keeps the sending side open."""
        self._has_eof = True
        if self.stage == LEAVING:
            return True
        if self.buffered:
            self.transport.abort()
        return False

    def pause_writing(self) -> None:
        self.is_blocked = True
        if self._peer is not None and self.stage < CLOSING:
            self._peer.blocked()

    def resume_writing(self) -> None:
        self.is_blocked = False
        self.pings = 0
        self._answer_ping()
        if self._peer is not None and self.stage < CLOSING:
            self._peer.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self.stage, self.is_clear = LOST, False
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.lost()

    # --- what the peer calls

    @property
    def is_connected(self) -> bool:
        """Whether the connection was handed over."""
        return not self._head

    @property
    def unread_bytes(self) -> int:
        """What came in and is not a whole message yet."""
        return self._reader.held_bytes

    @property
    def buffered(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self.stage == LOST else self.transport.get_write_buffer_size()

    def write(self, frames: bytes) -> None:
        """Send whole frames. Ignored when the socket is closing."""
        self.is_clear = False
        if self.stage < CLOSING:
            self.transport.write(frames)

    def part(self, data: bytes) -> bytes:
        return data if self.stage < CLOSING and self.clear(self.transport) else b""

    def write_rest(self, rest: bytes) -> None:
        self.write(rest)

    def ping(self) -> None:
        self.pings += 1
        self.write(control_frame(PING, b""))

    def pause(self) -> None:
        """Read no more; what was read and not yet parsed is kept."""
        if not self.is_paused and self.stage == OPEN:
            self.is_paused = True
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def resume(self) -> None:
        if not self.is_paused or self.stage == LOST:
            return
        self.is_paused = False
        if self.stage == OPEN:
            self._parse()
        if not self.is_paused:
            self._read_on()

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Say goodbye and end the server's side; None: with the code of the client's Close.

        The connection is gone when the client ends its side, too, or at `abort`.
        """
        if self.stage < CLOSING:
            payload = (code or self._close_code).to_bytes(2, "big") + reason.encode()[: CONTROL_BYTES_MAX - 2]
            self.write(control_frame(CLOSE, payload))
            self.stage = CLOSING
            if self.is_paused:
                self.is_paused = False
                self._read_on()
            if self._has_eof:
                self.transport.close()
            elif not self.transport.is_closing():
                self.transport.write_eof()
            if self._peer is not None:
                self._peer.closing()

    def abort(self) -> None:
        if self.stage < LOST:
            self.stage = CLOSING
            self.transport.abort()

    def _read_on(self) -> None:
        if not self._has_eof and not self._is_due and not self.transport.is_closing():
            self.transport.resume_reading()

    # --- input

    def _parse(self) -> None:
        """Take what is complete. Not reentrant: a peer may pause and resume while it is given something."""
        if self._is_parsing:
            return
        self._is_parsing = True
        try:
            while self.stage == OPEN and not self.is_paused and (found := self._reader.next()) is not None:
                self._received(*found)
        except BrokenOff as error:
            self.close(error.code, error.reason)
        finally:
            self._is_parsing = False
        self._answer_ping()
        if self.stage == OPEN and not self.is_paused and not self._is_due and self._reader.has_enough:
            self._is_due = True
            if not self.transport.is_closing() and self.transport.is_reading():
                self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._parse_on)

    def _parse_on(self) -> None:
        """A turn of its own: take more of what has come, and read on when that is used up."""
        self._is_due = False
        self._reader.work = 0
        if self.stage == OPEN and not self.is_paused:
            self._parse()
        if not self._is_due and not self.is_paused and self.stage < LOST:
            self._read_on()

    def _answer_ping(self) -> None:
        """Of several pings the last one is answered, when the client takes it."""
        if self._pong is not None and not self.is_blocked:
            pong, self._pong = self._pong, None
            self.write(control_frame(PONG, pong))

    def _received(self, opcode: int, payload: bytes) -> None:
        assert self._peer is not None
        if opcode == TEXT:
            self._peer.received(payload)
        elif opcode == BINARY:
            self._peer.received(None)
        elif opcode == PING:
            self._pong = payload
        elif opcode == CLOSE:
            self._closed_by_client(payload)

    def _closed_by_client(self, payload: bytes) -> None:
        try:
            code = Close.parse(payload).code
        except ProtocolError as error:
            raise BrokenOff(CloseCode.PROTOCOL_ERROR, str(error)) from None
        except UnicodeDecodeError:
            raise BrokenOff(CloseCode.INVALID_DATA, "the reason of the Close frame is not UTF-8") from None
        if code != CloseCode.NO_STATUS_RCVD:
            self._close_code = code
        self.stage = LEAVING
        assert self._peer is not None
        self._peer.left()
