"""HTTP/2 input before and after h2: frame headers before h2 sees them, header blocks after h2 has read them.

Owns: the set-up of h2, the guard against floods that h2 lets through, the meaning of a header block. Must not know:
sockets, answers, routes.
"""

import re
import struct
from collections.abc import Iterable
from typing import Final

import hpack.hpack
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from hpack import Decoder, HeaderTuple, HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

from topics.server.transport.exchange import HEAD_TOO_LARGE, KIB, SINGLE_HEADERS, Answer, Limits, Request, malformed

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW_BYTES: Final = 256 * KIB  # of one stream
FRAME_BYTES_MAX: Final = 16 * KIB  # the default, so not announced
GOAWAY: Final = 7
TARGET: Final = re.compile(rb'/[!"$-~]*')  # printable ASCII without `#`

# DATA and HEADERS weigh nothing, RST_STREAM and SETTINGS more than others, any other frame 1.
WEIGHTS: Final = {0: 0, 1: 0, 3: 10, 4: 5}
RESET_WEIGHT: Final = 10  # also of a stream that the peer made the server reset
HEADERS, SETTINGS, CONTINUATION = 1, 4, 9
SETTINGS_BYTES_MAX: Final = KIB  # of one frame; a setting has six …
ALL_SETTINGS_BYTES_MAX: Final = 64 * KIB  # … and of all: h2 keeps settings that it does not know, and looks at each
FRAMES_MAX: Final = 8  # that are taken at once, before a look at the time …
HEADS_BYTES_MAX: Final = KIB  # … or so much of header blocks, if that is less
REFERRED_BYTES_MAX: Final = 16 * KIB  # of headers that a block only refers to; the tables hold less than half of it
# The table of a block may be resized twice at its start (RFC 7541, 4.2). A resize is a byte, and is no header.
RESIZES: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")


class Flood(Exception):
    """More frames than work, or a frame larger than announced."""


class FrameWatch:
    """Walks over frame headers. h2 buffers frames of any size and answers any number of pings.

    +---------------------+----------+-----------+----------------+---------
    | payload length (24) | type (8) | flags (8) | stream id (32) | payload
    +---------------------+----------+-----------+----------------+---------
    """

    HEADER: Final = struct.Struct(">BHBBL")

    def __init__(self, head_bytes_max: int) -> None:
        self._head_bytes_max = head_bytes_max
        self._head_bytes = 0  # of the header block, which may have several frames
        self._settings_bytes = 0
        self._partial = b""  # of a frame header
        self._skip_bytes = len(PREFACE)  # still to come of a payload

    def weigh(self, data: bytes) -> tuple[int, int]:
        """The weight of the first frames whose headers lie in `data`, as many as are taken at once, and their bytes."""
        weight, at, frames, before = 0, self._skip_bytes, 0, len(self._partial)
        data, heads_bytes = self._partial + data, 0
        while at + self.HEADER.size <= len(data):
            if frames == FRAMES_MAX or heads_bytes > HEADS_BYTES_MAX:
                self._partial, self._skip_bytes = b"", 0
                return weight, at - before
            frames += 1
            high, low, kind, _, _ = self.HEADER.unpack_from(data, at)
            size = high << 16 | low
            if size > FRAME_BYTES_MAX:
                raise Flood("a frame is larger than announced")
            if kind in (HEADERS, CONTINUATION):
                heads_bytes += size
                self._measure_block(kind, size)
            elif kind == SETTINGS:
                self._measure_settings(size)
            weight += WEIGHTS.get(kind, 1) if size or kind else 1  # an empty DATA frame is noise, too
            at += self.HEADER.size + size
        self._partial = data[at:]
        self._skip_bytes = max(0, at - len(data))
        return weight, len(data) - before

    def _measure_block(self, kind: int, size: int) -> None:
        """A block is decoded in one piece, however many frames it has."""
        self._head_bytes = size if kind == HEADERS else self._head_bytes + size
        if self._head_bytes > self._head_bytes_max:
            raise Flood("a header block is larger than a head may be")

    def _measure_settings(self, size: int) -> None:
        self._settings_bytes += size
        if size > SETTINGS_BYTES_MAX or self._settings_bytes > ALL_SETTINGS_BYTES_MAX:
            raise Flood("there are more settings than anybody has a use for")


class Noise:
    """How many control frames a peer sends, weighted. Flood: too many."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._watch = FrameWatch(limits.head_bytes_max)
        self._weight = 0  # of the frames since `_since`, less what was forgiven
        self._since = now

    def hear(self, data: bytes, now: float) -> int:
        """Weigh what came in. Returns how much of it is taken at once."""
        if now - self._since >= self._limits.noise_s:
            self._weight, self._since = 0, now
        weight, used_bytes = self._watch.weigh(data)
        self.add(weight)
        return used_bytes

    def add(self, weight: int) -> None:
        self._weight += weight
        if self._weight > self._limits.noise_max:
            raise Flood("too many control frames")

    def forgive(self, weight: int) -> None:
        """The peer has reason to send this many frames."""
        self._weight = max(0, self._weight - weight)


def goaway(last_stream_id: int) -> bytes:
    """The frame that ends a connection gracefully. h2 would take it for the end of all running streams."""
    return FrameWatch.HEADER.pack(0, 8, GOAWAY, 0, 0) + struct.pack(">LL", last_stream_id, 0)


class Steps(dict[int, tuple[int, int, bytes]]):
    """What a byte of a Huffman code does, by the state before it and the byte: the next state, its flags, its text.

    hpack takes half a byte at a time. Large heads take half as long by whole bytes, and each step is made once.
    """

    def __missing__(self, at: int) -> tuple[int, int, bytes]:
        state, flags, text = at >> 8, 0, b""
        for half in (at >> 4 & 0xF, at & 0xF):
            state, flags, symbol = HUFFMAN_TABLE[state << 4 | half]
            if flags & HUFFMAN_FAIL:
                raise HPACKDecodingError("a text is not in Huffman code")
            if flags & HUFFMAN_EMIT_SYMBOL:
                text += bytes((symbol,))
        step = self[at] = state << 8, flags, text
        return step


STEPS: Final = Steps()


def decode_huffman(code: bytes | bytearray | memoryview | None) -> bytes:
    """The text that is coded, as `hpack.huffman_table.decode_huffman` gives it."""
    state, flags, text, steps = 0, HUFFMAN_COMPLETE, bytearray(), STEPS
    for byte in bytes(code or b""):
        state, flags, more = steps[state | byte]
        text += more
    if not flags & HUFFMAN_COMPLETE:
        raise HPACKDecodingError("a text in Huffman code is incomplete")
    return bytes(text)


hpack.hpack.decode_huffman = decode_huffman  # type: ignore[assignment, attr-defined]


class HeadDecoder(Decoder):
    """Decodes header blocks, unless what they ask for is far more than they are: a byte may refer to a header."""

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__()
        self._head_bytes_max = head_bytes_max

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        if RESIZES.match(data):
            raise HPACKDecodingError("the table is resized again and again")
        self.max_header_list_size = min(self._head_bytes_max, 2 * len(data) + REFERRED_BYTES_MAX)
        return super().decode(data, raw)


def new_state_machine(limits: Limits) -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_max,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes_max,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
        },
    )
    connection.decoder = HeadDecoder(limits.head_bytes_max)
    return connection


def read_head(lines: Iterable[tuple[bytes, bytes]], is_end: bool, peer: tuple[str, int]) -> Request:
    headers: dict[bytes, bytes] = {}
    repeated: list[tuple[bytes, bytes]] = []
    for name, value in lines:
        if name in headers:
            repeated.append((name, value))
        else:
            headers[name] = value
    method = headers.pop(b":method").decode("latin-1")
    target = headers.pop(b":path", b"")
    headers.pop(b":scheme", None)
    authority = headers.pop(b":authority", None)
    if authority is not None:
        headers.setdefault(b"host", authority)
    path, _, query = target.partition(b"?")
    length = 0 if is_end else int(headers.get(b"content-length", -1))
    return Request(method, target, path, query, headers, repeated, length, True, peer)


def judge_head(request: Request, limits: Limits) -> Answer | None:
    """What is wrong with a head that h2 found well-formed."""
    headers, target = request.headers, request.target
    if len(target) > limits.target_bytes_max or len(headers) + len(request.repeated) > limits.headers_max:
        return HEAD_TOO_LARGE
    if not TARGET.fullmatch(target) and (target, request.method) != (b"*", "OPTIONS"):
        return malformed("the request target is not a path")
    if b"host" not in headers:
        return malformed("the authority is missing")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or (request.content_length == 0 and int(length) != 0):
        return malformed("the content-length is not that of the body")
    for name, _ in request.repeated:
        if name in SINGLE_HEADERS:
            return malformed(f"more than one {name.decode('latin-1')} header")
    if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
        return malformed("the only expectation is 100-continue")
    return None
