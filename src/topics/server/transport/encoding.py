"""Bodies on the wire: media types, gzip both ways, and large ones as they come in.

Owns what Content-Type, Content-Encoding and Accept-Encoding mean, the guard against gzip bombs, and the memory of a
large body under way (`Filling`). Must not know: JSON, routes, framing. Rules: CV2, CV7, CV17, LM10, LM11.
"""

import ctypes
import zlib
from collections.abc import Iterable
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
PART_BYTES_MIN: Final = 4 * 1024  # of a body: smaller parts are put together …
PART_BYTES_MAX: Final = 64 * 1024  # … up to this size
FILLED_BYTES_MIN: Final = 1024 * 1024  # a smaller body is joined of its parts

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


def add_part(parts: list[bytes | bytearray], data: bytes) -> None:
    """Keep a part of a body. Small ones are put together: an object of its own is many times their size."""
    if parts and len(data) < PART_BYTES_MIN:
        last = parts[-1]
        if type(last) is bytearray and len(last) < PART_BYTES_MAX:
            last += data
            return
        data = bytearray(data)  # type: ignore[assignment]
    parts.append(data)


def joined(parts: list[bytes | bytearray]) -> bytes:
    """The body that consists of these parts."""
    return parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)


# --- large bodies, as they come in

# The C API allows to fill a `bytes` object that was made without content and that nobody else has.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


class Filling:
    """A body of `length` bytes, or of an unknown length (negative), that begins with `parts`.

    It is put together as it comes: there is no second copy of it, and no long turn at its end. Where the length is
    known, it is a `bytes` object whose content is still to come: the system gives it memory as it is filled.

    Invariant: nobody else has the object before `take` gives it away, and nothing is written to it afterwards.
    """

    __slots__ = ("_address", "_grown", "_length", "_whole", "size")

    def __init__(self, length: int, parts: Iterable[bytes | bytearray] = ()) -> None:
        self._length = length
        self._grown = BytesIO()  # gives its bytes away without a copy
        self._whole: bytes = _new_bytes(None, length) if length > 1 else b""  # shorter ones are shared by all
        self._address: int = _address_of(self._whole)
        self.size = 0  # so many bytes have come
        for part in parts:
            self.add(bytes(part))

    def add(self, data: bytes) -> None:
        size = self.size + len(data)
        if not self._whole:
            self._grown.write(data)
        elif size > self._length:
            raise ValueError(f"{size} bytes of a body of {self._length}")
        else:
            ctypes.memmove(self._address + self.size, data, len(data))
        self.size = size

    def take(self) -> bytes:
        """The body as far as it has come. Nothing can be added to it any more."""
        whole, self._whole = self._whole, b""
        if not whole:
            return self._grown.getvalue()
        return whole if self.size == self._length else whole[: self.size]
