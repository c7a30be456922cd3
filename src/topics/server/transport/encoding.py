"""Bodies on the wire: media types, and gzip both ways.

Owns what Content-Type, Content-Encoding and Accept-Encoding mean, and the guard against gzip bombs. Must not know:
JSON, routes. Rules: CV2, CV7, CV17.
"""

import zlib
from typing import Final

from topics.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia

GZIP_BYTES_MIN: Final = 512  # a smaller answer is never compressed
GZIP_LEVEL: Final = 1
GZIP_WINDOW: Final = 31  # zlib's 15 bits of window, in gzip's format
INFLATE_STEP_BYTES: Final = 1024 * 1024

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


def inflate(body: bytes, bytes_max: int) -> bytes:
    """Unpack gzip, all members of it. Never holds more than `bytes_max` and one step."""
    parts: list[bytes] = []
    size, rest = 0, body
    while rest:
        unpacker = zlib.decompressobj(GZIP_WINDOW)
        try:
            while not unpacker.eof:
                part = unpacker.decompress(rest, INFLATE_STEP_BYTES)
                rest = unpacker.unconsumed_tail
                size += len(part)
                if size > bytes_max:
                    raise PayloadTooLarge(f"the body inflates to more than {bytes_max} bytes")
                parts.append(part)
                if not part and not rest and not unpacker.eof:
                    raise InvalidRequest("the gzip body is cut short")
        except zlib.error as error:
            raise InvalidRequest(f"the gzip body is corrupt: {error}") from None
        rest = unpacker.unused_data.lstrip(b"\0")
    return b"".join(parts)
