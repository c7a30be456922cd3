"""Bodies on the wire: media types, and gzip both ways.

Owns what Content-Type, Content-Encoding and Accept-Encoding mean, and the guard against gzip bombs. Must not know:
JSON, routes. Rules: CV2, CV7, CV17.
"""

import zlib
from io import BytesIO
from typing import Final

from topics.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia

GZIP_BYTES_MIN: Final = 512  # a smaller answer is never compressed
GZIP_LEVEL: Final = 1
GZIP_WINDOW: Final = 31  # zlib's 15 bits of window, in gzip's format
INFLATE_STEP_BYTES: Final = 1024 * 1024
MEMBERS_PER_STEP: Final = 256
MEMBERS_MAX: Final = 100_000  # of one body; each costs some microseconds, however empty it is
SHOWN_FIRST_BYTES: Final = 256  # of the input, to a new member …
SHOWN_MAX_BYTES: Final = 64 * 1024  # … and at most

JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"


def media_type(header: bytes) -> str:
    """The media type of a Content-Type header, in lower case. Refused: a charset other than UTF-8."""
    kind, *parameters = header.decode("latin-1").split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise UnsupportedMedia(f"the charset is {value.strip()}; only utf-8 is taken")
    return kind.strip().lower()


def is_gzip(header: bytes) -> bool:
    """Whether a Content-Encoding header names gzip. Refused: anything but gzip or identity."""
    coding = header.strip().lower()
    if coding in (b"gzip", b"x-gzip"):
        return True
    if coding in (b"", b"identity"):
        return False
    raise UnsupportedMedia(f"the content encoding is {coding.decode('latin-1')}; only gzip and identity are taken")


def admits_gzip(header: bytes) -> bool:
    """Whether an Accept-Encoding header asks for gzip."""
    wildcard = False
    for choice in header.lower().split(b","):
        coding, _, parameters = choice.partition(b";")
        coding = coding.strip()
        if coding in (b"gzip", b"x-gzip"):
            return _weight(parameters) > 0
        if coding == b"*":
            wildcard = _weight(parameters) > 0
    return wildcard


def _weight(parameters: bytes) -> float:
    name, _, value = parameters.partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


class Inflation:
    """Gzip being unpacked, all members of it, a bounded piece of work at a time.

    Time is linear in what comes in and what goes out: a member is first shown a few bytes of input, then more and more,
    because whatever it leaves over is copied. Never holds more output than `bytes_max` and one step.
    """

    __slots__ = ("_at", "_body", "_bytes_max", "_members", "_out", "_shown_bytes", "_unpacker")

    def __init__(self, body: bytes, bytes_max: int) -> None:
        self._body = body
        self._bytes_max = bytes_max
        self._at = 0  # how far the input is used up
        self._members = 0
        self._shown_bytes = 0  # of the input, to the member under way
        self._out = BytesIO()  # gives its bytes away without a copy
        self._unpacker: zlib._Decompress | None = None  # of the member under way

    def step(self) -> bool:
        """Go on by about INFLATE_STEP_BYTES of input or output, or MEMBERS_PER_STEP members. True: there is more."""
        at_max, out_max = self._at + INFLATE_STEP_BYTES, self._out.tell() + INFLATE_STEP_BYTES
        members_max = self._members + MEMBERS_PER_STEP
        try:
            while self._at < at_max and self._out.tell() < out_max and self._members < members_max:
                if self._unpacker is not None:
                    self._unpack()
                elif self._at == len(self._body):
                    return False
                elif self._members and self._body[self._at] == 0:
                    self._skip_padding()
                else:
                    self._begin_member()
        except zlib.error as error:
            raise InvalidRequest(f"the gzip body is corrupt: {error}") from None
        return True

    def result(self) -> bytes:
        return self._out.getvalue()

    def _skip_padding(self) -> None:
        """Zeros behind a member; the pieces grow as long as there is nothing else."""
        shown, stripped = SHOWN_FIRST_BYTES, b""
        while not stripped and shown <= INFLATE_STEP_BYTES:
            piece = self._body[self._at : self._at + shown]
            stripped = piece.lstrip(b"\0")
            self._at += len(piece) - len(stripped)
            shown = 2 * shown if piece else 2 * INFLATE_STEP_BYTES

    def _begin_member(self) -> None:
        if self._members == MEMBERS_MAX:
            raise InvalidRequest(f"the gzip body has more than {MEMBERS_MAX} members; pack it as fewer")
        self._members += 1
        self._shown_bytes = SHOWN_FIRST_BYTES
        self._unpacker = zlib.decompressobj(GZIP_WINDOW)

    def _unpack(self) -> None:
        unpacker = self._unpacker
        assert unpacker is not None
        piece = self._body[self._at : self._at + self._shown_bytes]
        self._shown_bytes = min(2 * self._shown_bytes, SHOWN_MAX_BYTES)
        part = unpacker.decompress(piece, INFLATE_STEP_BYTES)
        self._at += len(piece) - len(unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail)
        self._out.write(part)
        if self._out.tell() > self._bytes_max:
            raise PayloadTooLarge(f"the body inflates to more than {self._bytes_max} bytes")
        if unpacker.eof:
            self._unpacker = None
        elif not part and self._at == len(self._body):
            raise InvalidRequest("the gzip body is cut short")


def inflate(body: bytes, bytes_max: int) -> bytes:
    """Unpack gzip at once."""
    inflation = Inflation(body, bytes_max)
    while inflation.step():
        pass
    return inflation.result()
