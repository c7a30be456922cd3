"""Frames: the log's unit, length-prefixed and checksummed. Bytes in, bytes out; no I/O.

A log file is a header, then frames, then zeros that were written ahead.

    header   8s "TOPICLOG" | u32 version | u32 length | u64 checksum | content
    frame    4s "FRME" | u32 length | u64 synced | u64 checksum | payload

All little endian. The checksum is xxh3 of the content, or of the payload seeded with the frame's position and `synced`,
so a frame is valid only in its own place. `synced` is the position up to which the log was known to be synced when the
frame was made: it tells a torn tail from damage.

A position is `file number << 40 | offset in the file`: later frames have higher positions, across files.
"""

from collections.abc import Iterator, Sequence
from struct import Struct as Layout
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

VERSION = 1
OFFSET_BITS = 40

_HEADER = Layout("<8sIIQ")
_HEADER_MAGIC = b"TOPICLOG"
FRAME_FORMAT = "<4sIQQ"
_FRAME = Layout(FRAME_FORMAT)
FRAME_MAGIC = b"FRME"
_VOID_MAGICS = (b"VOME", b"FOIE", b"VOID", b"VOIE")  # the last two: of earlier versions. One wrong byte makes none
SECTOR_BYTES = 512  # no disk and no kernel tears a write of a few bytes within one
FRAME_OVERHEAD_BYTES = _FRAME.size


class FileHeader(msgspec.Struct, array_like=True):
    """What a log file says about itself."""

    number: int
    boot_id: str  # of the machine's boot under which it was written
    cut: int  # frames of earlier files from this position on do not count; 0 = all count
    is_padded: bool = False  # zeros follow the last frame, at least as many as a frame has overhead


class BadHeader(Exception):
    """The bytes are not a log file's header."""


class NewerVersion(Exception):
    """A newer version wrote this log file."""


class Frame(NamedTuple):
    position: int
    payload: memoryview
    synced: int
    is_void: bool  # its commit failed; it does not count


class End(NamedTuple):
    """Where the valid frames of a file end."""

    offset: int
    is_clean: bool  # nothing but zeros follows


def position_of(number: int, offset: int) -> int:
    return number << OFFSET_BITS | offset


def number_of(position: int) -> int:
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    return position & ((1 << OFFSET_BITS) - 1)


def encode_header(header: FileHeader) -> bytes:
    content = msgspec.msgpack.encode(header)
    return _HEADER.pack(_HEADER_MAGIC, VERSION, len(content), xxh3_64_intdigest(content)) + content


def decode_header(data: bytes) -> tuple[FileHeader, int]:
    """The header, and the offset of the first frame."""
    if len(data) < _HEADER.size:
        raise BadHeader("the file is shorter than a header")
    magic, version, size, checksum = _HEADER.unpack_from(data)
    content = data[_HEADER.size : _HEADER.size + size]
    if magic != _HEADER_MAGIC:
        raise BadHeader("the file does not start like a log file")
    if version > VERSION:
        raise NewerVersion(f"it is of version {version}; this program reads up to version {VERSION}")
    if len(content) != size or xxh3_64_intdigest(content) != checksum:
        raise BadHeader("the header's checksum does not match")
    try:
        return msgspec.msgpack.decode(content, type=FileHeader), _HEADER.size + size
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadHeader(f"the header makes no sense: {error}") from None


def encode_frame(payload: bytes, position: int, synced: int) -> bytes:
    checksum = xxh3_64_intdigest(payload, position ^ (synced << 1 & 0xFFFF_FFFF_FFFF_FFFF | synced >> 63))
    return _FRAME.pack(FRAME_MAGIC, len(payload), synced, checksum) + payload


def encode_parts(payload: Sequence[bytes], position: int, synced: int) -> list[bytes]:
    """The same for a payload in parts, which are not copied; the head comes before them."""
    digest = xxh3_64(seed=seed_of(position, synced))
    for part in payload:
        digest.update(part)
    return [_FRAME.pack(FRAME_MAGIC, sum(map(len, payload)), synced, digest.intdigest()), *payload]


def void_mark(offset: int) -> tuple[int, bytes]:
    """What makes the frame at `offset` void, and where: its commit failed, and it is skipped.

    Two bytes in one sector, so a crash leaves both or none: one alone would be taken for damage.
    """
    return (offset + 1, b"OI") if offset % SECTOR_BYTES == SECTOR_BYTES - 1 else (offset, b"VO")


def scan(data: memoryview, number: int, offset: int) -> Iterator[Frame | End]:
    """The valid frames of a file from `offset` on, then the End of them."""
    while (frame := frame_at(data, number, offset)) is not None:
        if not frame.is_void:
            yield frame
        offset += FRAME_OVERHEAD_BYTES + len(frame.payload)
    yield end_at(data, offset)


def end_at(data: memoryview, offset: int) -> End:
    """The End of the frames of a file, which have no other behind `offset`."""
    return End(offset, is_clean=not bytes(data[offset:]).strip(b"\0"))


def frames_beyond(data: memoryview, number: int, offset: int) -> Iterator[Frame]:
    """Valid frames that lie behind a bad one at `offset`, found by their magic."""
    haystack = bytes(data)
    found = haystack.find(FRAME_MAGIC, offset + 1)
    while found >= 0:
        frame = frame_at(data, number, found)
        if frame is not None:
            yield frame
        found = haystack.find(FRAME_MAGIC, found + 1)


def has_frame(data: memoryview) -> bool:
    """Whether anything in `data` starts like a frame."""
    return FRAME_MAGIC in bytes(data)


def may_be_cut_off(data: memoryview, offset: int, is_padded: bool) -> bool:
    """Whether the bad frame at `offset` may be the first part of a write, with zeros written ahead behind it.

    It is not if the frame is there to its last byte, or if anything behind it starts like a frame, valid or not; nor,
    in a file that is padded, if the file ends before the frame does.
    """
    end = offset + 1
    if is_padded and offset + FRAME_OVERHEAD_BYTES > len(data):
        return False
    if offset + FRAME_OVERHEAD_BYTES <= len(data):
        magic, size, _, _ = _FRAME.unpack_from(data, offset)
        if magic == FRAME_MAGIC or magic in _VOID_MAGICS:
            end = offset + FRAME_OVERHEAD_BYTES + size
            if (end <= len(data) and data[end - 1]) or (is_padded and end > len(data)):
                return False
    return not has_frame(data[end:])


def frame_at(data: memoryview, number: int, offset: int) -> Frame | None:
    """The frame at `offset`, valid or void; None: there is none."""
    if offset + FRAME_OVERHEAD_BYTES > len(data):
        return None
    magic, size, synced, checksum = _FRAME.unpack_from(data, offset)
    start = offset + FRAME_OVERHEAD_BYTES
    if (magic != FRAME_MAGIC and magic not in _VOID_MAGICS) or start + size > len(data):
        return None
    payload = data[start : start + size]
    position = number << OFFSET_BITS | offset
    if _checksum(payload, position, synced) != checksum:
        return None
    return Frame(position, payload, synced, magic != FRAME_MAGIC)


def _checksum(payload: bytes | memoryview, position: int, synced: int) -> int:
    return xxh3_64_intdigest(payload, seed_of(position, synced))


def seed_of(position: int, synced: int) -> int:
    """What the checksum of a frame's payload starts from."""
    return position ^ (synced << 1 & 0xFFFF_FFFF_FFFF_FFFF | synced >> 63)
