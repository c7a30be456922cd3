"""Frames three ways (whole, cut at every length, with garbage behind them), and with every bit flipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import swept
from topics.storage import frames
from topics.storage.frames import BadHeader, End, FileHeader, Frame, NewerVersion

HEADER = FileHeader(7, "boot-1", 123)
PAYLOADS = [b"first", b"", b"third " * 20]
NUMBER = 7


def file_of(payloads: list[bytes], synced: int = 0) -> bytes:
    """A log file's header and frames."""
    data = frames.encode_header(HEADER)
    for payload in payloads:
        data += frames.encode_frame(payload, frames.position_of(NUMBER, len(data)), synced)
    return data


FILE = file_of(PAYLOADS)
START = len(frames.encode_header(HEADER))
STARTS = [START, START + 24 + 5, START + 24 + 5 + 24]  # of the frames
ENDS = [*STARTS[1:], len(FILE)]


def scanned(data: bytes) -> tuple[list[bytes], End]:
    *found, end = frames.scan(memoryview(data), NUMBER, START)
    assert isinstance(end, End)
    return [bytes(frame.payload) for frame in found if isinstance(frame, Frame)], end


def test_a_position_is_a_file_and_an_offset_and_later_frames_have_higher_ones() -> None:
    position = frames.position_of(3, 17)
    assert (frames.number_of(position), frames.offset_of(position)) == (3, 17)
    assert frames.position_of(3, 2**40 - 1) < frames.position_of(4, 0)


def test_a_header_comes_back_whole() -> None:
    assert frames.decode_header(FILE) == (HEADER, START)


@swept("size", range(START))
def test_a_header_cut_short_is_refused(size: int) -> None:
    with pytest.raises(BadHeader):
        frames.decode_header(FILE[:size])


@swept("bit", range(START * 8))
def test_a_header_with_a_flipped_bit_is_refused_or_says_the_same(bit: int) -> None:
    try:
        assert frames.decode_header(flipped(FILE, bit)) == (HEADER, START)
    except (BadHeader, NewerVersion):
        pass


def test_a_header_of_a_newer_version_is_told_from_a_bad_one() -> None:
    newer = FILE[:8] + (frames.VERSION + 1).to_bytes(4, "little") + FILE[12:]
    with pytest.raises(NewerVersion, match="version 2"):
        frames.decode_header(newer)


def test_frames_come_back_whole() -> None:
    """ST1"""
    assert scanned(FILE) == (PAYLOADS, End(len(FILE), is_clean=True))
    found = [frame for frame in frames.scan(memoryview(FILE), NUMBER, START) if isinstance(frame, Frame)]
    assert [frames.offset_of(frame.position) for frame in found] == STARTS


@swept("size", range(START, len(FILE)))
def test_frames_cut_at_any_length_give_those_before_the_cut(size: int) -> None:
    """ST1, G5"""
    complete = sum(end <= size for end in ENDS)
    end = ENDS[complete - 1] if complete else START
    assert scanned(FILE[:size]) == (PAYLOADS[:complete], End(end, is_clean=size == end))


@pytest.mark.parametrize("garbage", [b"\1", b"FRME", b"FRME" + bytes(20), b"\xff" * 100, b"VOID" * 9, FILE[START:]])
def test_garbage_behind_frames_is_no_frame(garbage: bytes) -> None:
    """ST1: not even a valid frame, in another place than its own."""
    assert scanned(FILE + garbage) == (PAYLOADS, End(len(FILE), is_clean=False))


@pytest.mark.parametrize("zeros", [1, 23, 24, 100_000])
def test_zeros_behind_frames_are_space_written_ahead(zeros: int) -> None:
    assert scanned(FILE + bytes(zeros)) == (PAYLOADS, End(len(FILE), is_clean=True))


@swept("bit", range(START * 8, len(FILE) * 8))
def test_a_flipped_bit_ends_the_frames_before_its_own(bit: int) -> None:
    """ST1, G5: a damaged frame is never misread, and those behind it are still found."""
    hurt = sum(end <= bit // 8 for end in ENDS)
    data = flipped(FILE, bit)
    assert scanned(data) == (PAYLOADS[:hurt], End(STARTS[hurt], is_clean=False))
    beyond = frames.frames_beyond(memoryview(data), NUMBER, STARTS[hurt])
    assert [bytes(frame.payload) for frame in beyond] == PAYLOADS[hurt + 1 :]


@pytest.mark.parametrize("synced", [1, 2**63, 2**64 - 1])
def test_the_checksum_covers_the_synced_position(synced: int) -> None:
    other = file_of(PAYLOADS, synced)
    found = [frame for frame in frames.scan(memoryview(other), NUMBER, START) if isinstance(frame, Frame)]
    assert [frame.synced for frame in found] == [synced] * 3
    mixed = other[:START] + FILE[START : START + 8] + other[START + 8 : START + 16] + FILE[START + 16 :]
    assert scanned(mixed)[0] == []


def test_a_frame_of_another_file_is_none() -> None:
    assert list(frames.scan(memoryview(FILE), NUMBER + 1, START)) == [End(START, is_clean=False)]


@pytest.mark.parametrize("mark", [b"VO", b"VOI", b"VOID"])
@pytest.mark.parametrize("index", range(3))
def test_a_frame_marked_void_is_skipped(index: int, mark: bytes) -> None:
    """ST4: a commit that failed is never replayed; nor one that an earlier version marked, in whole or in part."""
    data = FILE[: STARTS[index]] + mark + FILE[STARTS[index] + len(mark) :]
    assert scanned(data) == ([p for n, p in enumerate(PAYLOADS) if n != index], End(len(FILE), is_clean=True))


@pytest.mark.parametrize("lead", range(frames.SECTOR_BYTES))
def test_a_void_mark_lies_within_a_sector_wherever_its_frame_begins(lead: int) -> None:
    """ST4, G5: a crash cannot leave a part of it, which would be damage."""
    offset = START + frames.FRAME_OVERHEAD_BYTES + lead
    data = bytearray(file_of([bytes(lead), b"failed", b"after"]))
    first, mark = frames.void_mark(offset)
    assert first // frames.SECTOR_BYTES == (first + len(mark) - 1) // frames.SECTOR_BYTES
    data[first : first + len(mark)] = mark
    assert scanned(bytes(data)) == ([bytes(lead), b"after"], End(len(data), is_clean=True))


@given(st.lists(st.binary(max_size=300), max_size=20), st.binary(max_size=60))
def test_any_payloads_come_back(payloads: list[bytes], tail: bytes) -> None:
    found, end = scanned(file_of(payloads) + tail)
    assert found == payloads
    assert end.is_clean == (not tail.strip(b"\0"))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("index", range(4))
def test_one_wrong_byte_never_makes_a_frame_void(index: int) -> None:
    """G5, ST12: damage must not look like a commit that failed."""
    for value in range(256):
        data = bytearray(FILE)
        if data[START + index] != value:
            data[START + index] = value
            assert scanned(bytes(data)) == ([], End(START, is_clean=False))


@pytest.mark.parametrize("content", [b"\xc0", b"\x94\x01\xa2\xff\xfe\x00\xc2", b"\x91\xa1x", b""])
def test_a_header_with_a_right_checksum_and_a_wrong_content_is_bad(content: bytes) -> None:
    """ST12"""
    signed = frames._HEADER.pack(b"TOPICLOG", 1, len(content), frames.xxh3_64_intdigest(content)) + content
    with pytest.raises(BadHeader, match="makes no sense"):
        frames.decode_header(signed)
