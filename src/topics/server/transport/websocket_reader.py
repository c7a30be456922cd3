"""The client's frames of a WebSocket, read: bytes in, messages out (RFC 6455).

Owns: masks, fragments, sizes, and what of it cannot be followed. Must not know: the socket, whoever gets the messages.

Invariants: not more than `message_bytes_max` is held of a message. A large frame is unmasked, and its text checked, as
it comes: no step takes longer than a read of the socket is large (LM10).
"""

from codecs import getincrementaldecoder
from struct import unpack_from
from typing import Final

from websockets.frames import CloseCode

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled one for this machine
    from websockets.utils import apply_mask

from topics.model import check_utf8
from topics.server.transport.encoding import FILLED_BYTES_MIN, Filling

FRAMES_MAX: Final = 1000  # of one socket that are taken in one turn of the loop
FRAME_BYTES: Final = 64  # of a message are as much work as a frame, for those who get it
CONTROL_BYTES_MAX: Final = 125
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10  # opcodes; from CLOSE on those of control frames
OPCODES: Final = frozenset((CONT, TEXT, BINARY, CLOSE, PING, PONG))
UTF8: Final = getincrementaldecoder("utf-8")


class BrokenOff(Exception):
    """What the client sent cannot be followed; `code` and `reason` go into the Close frame."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Message:
    """A message that comes in several fragments, or in a large one: put together, and its text checked, as it comes."""

    __slots__ = ("_filling", "_text", "opcode")

    def __init__(self, opcode: int, length: int = -1) -> None:
        self.opcode = opcode
        self._filling = Filling(length)
        self._text = UTF8() if opcode == TEXT else None

    @property
    def size(self) -> int:
        return self._filling.size

    def add(self, payload: bytes, *, is_last: bool) -> None:
        if self._text is not None:
            try:
                self._text.decode(payload, is_last)
            except UnicodeDecodeError:
                reason = f"the text is not UTF-8 between bytes {self.size} and {self.size + len(payload)}"
                raise BrokenOff(CloseCode.INVALID_DATA, reason) from None
        self._filling.add(payload)

    def take(self) -> tuple[int, bytes]:
        return self.opcode, self._filling.take()


class FrameReader:
    """Bytes in, whole messages and control frames out. After BrokenOff it must not be used.

    A large frame is unmasked as it comes: `_rest_bytes` of it are still to come, and belong to `_message`.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_is_last",
        "_mask",
        "_message",
        "_need_bytes",
        "_rest_bytes",
        "message_bytes_max",
        "work",
    )

    def __init__(self, message_bytes_max: int) -> None:
        self.message_bytes_max = message_bytes_max
        self._buffer: bytes | bytearray = b""
        self._at = 0  # how far it is read
        self._need_bytes = 2  # no frame is complete before there are as many behind `_at`
        self._message: Message | None = None  # what has come of it
        self._rest_bytes = 0
        self._mask = b""  # of the large frame, as it applies to its next byte
        self._is_last = False  # the large frame is the last of its message
        self.work = 0  # frames seen, and what messages have; whoever feeds sets it back

    def feed(self, data: bytes) -> None:
        if self._at == len(self._buffer):
            self._buffer, self._at = data, 0
            return
        if self._at or not isinstance(self._buffer, bytearray):
            self._buffer, self._at = bytearray(memoryview(self._buffer)[self._at :]), 0
        self._buffer += data

    @property
    def held_bytes(self) -> int:
        return len(self._buffer) - self._at + (0 if self._message is None else self._message.size)

    @property
    def has_enough(self) -> bool:
        """Whether it is time to let others go on: the next frame may be complete, or much was taken."""
        return self.work >= FRAMES_MAX or len(self._buffer) - self._at >= self._need_bytes

    def next(self) -> tuple[int, bytes] | None:
        """The opcode and payload of the next message or control frame.

        None: it is not complete yet, or it has so many fragments that it is time to let others go on.
        """
        while self.work < FRAMES_MAX and (got_bytes := len(self._buffer) - self._at) >= self._need_bytes:
            self.work += 1
            found = self._go_on(got_bytes) if self._rest_bytes else self._next_frame(got_bytes)
            if found is not None:
                self.work += len(found[1]) // FRAME_BYTES
                return found
        return None

    def _next_frame(self, got_bytes: int) -> tuple[int, bytes] | None:
        held, at = self._buffer, self._at
        first, second = held[at], held[at + 1]
        head_bytes = _head_bytes(first, second)
        if got_bytes < head_bytes:
            self._need_bytes = head_bytes
            return None
        length = second & 0x7F
        if length == 126:
            (length,) = unpack_from(">H", held, at + 2)
        elif length == 127:
            (length,) = unpack_from(">Q", held, at + 2)
        opcode, is_last = first & 0x0F, first >= 0x80
        if opcode < CLOSE:
            self._check_size(opcode, length)
        start = at + head_bytes
        if got_bytes < head_bytes + length:
            if length > FILLED_BYTES_MIN:
                self._begin_large(opcode, length, bytes(held[start - 4 : start]), is_last)
                self._at, self._need_bytes = start, 1
            else:
                self._need_bytes = head_bytes + length
            return None
        payload = apply_mask(held[start : start + length], held[start - 4 : start]) if length else b""
        self._used_to(start + length)
        self._need_bytes = 2
        if opcode >= CLOSE:
            return opcode, payload
        return self._joined(opcode, payload, is_last)

    def _used_to(self, at: int) -> None:
        self._at = at
        if at == len(self._buffer):
            self._buffer, self._at = b"", 0

    def _begin_large(self, opcode: int, length: int, mask: bytes, is_last: bool) -> None:
        self._rest_bytes, self._mask, self._is_last = length, mask, is_last
        if self._message is None:
            self._message = Message(opcode, length if is_last else -1)

    def _go_on(self, got_bytes: int) -> tuple[int, bytes] | None:
        """Take what has come of a large frame."""
        size, mask, at, message = min(got_bytes, self._rest_bytes), self._mask, self._at, self._message
        assert message is not None
        payload = apply_mask(self._buffer[at : at + size], mask)
        turn = size % 4
        self._mask = mask[turn:] + mask[:turn]
        self._rest_bytes -= size
        self._used_to(at + size)
        is_last = self._is_last and not self._rest_bytes
        message.add(payload, is_last=is_last)
        self._need_bytes = 1 if self._rest_bytes else 2
        if not is_last:
            return None
        self._message = None
        return message.take()

    def _check_size(self, opcode: int, length: int) -> None:
        """A message is refused as soon as a frame's head says that it will be too large."""
        message = self._message
        if (opcode == CONT) != (message is not None):
            what = "a message begins within another" if message is not None else "nothing is there to be continued"
            raise BrokenOff(CloseCode.PROTOCOL_ERROR, what)
        if length + (0 if message is None else message.size) > self.message_bytes_max:
            raise BrokenOff(CloseCode.MESSAGE_TOO_BIG, f"a message may have {self.message_bytes_max} bytes")

    def _joined(self, opcode: int, payload: bytes, is_last: bool) -> tuple[int, bytes] | None:
        if self._message is None:
            if is_last:
                if opcode == TEXT and not payload.isascii():
                    _check_text(payload)
                return opcode, payload
            self._message = Message(opcode)
        message = self._message
        message.add(payload, is_last=is_last)
        if not is_last:
            return None
        self._message = None
        return message.take()


def _check_text(payload: bytes) -> None:
    try:
        check_utf8(payload)
    except UnicodeDecodeError as error:
        raise BrokenOff(CloseCode.INVALID_DATA, f"the text is not UTF-8 at byte {error.start}") from None


def _head_bytes(first: int, second: int) -> int:
    """The length of a frame's head, by its first two bytes."""
    opcode = first & 0x0F
    if first & 0x70:
        raise BrokenOff(CloseCode.PROTOCOL_ERROR, "a reserved bit is set")
    if opcode not in OPCODES:
        raise BrokenOff(CloseCode.PROTOCOL_ERROR, f"opcode {opcode} is not known")
    if second < 0x80:
        raise BrokenOff(CloseCode.PROTOCOL_ERROR, "a client's frame must be masked")
    if opcode >= CLOSE and (first < 0x80 or second & 0x7F > CONTROL_BYTES_MAX):
        raise BrokenOff(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented or too long")
    return 6 if second < 0xFE else 8 if second == 0xFE else 14
