"""Texts are checked to be UTF-8 in steps."""

import tracemalloc

import pytest

from topics.model import UTF8_STEP_BYTES, check_utf8

CHARACTERS = ["a", "é", "€", "😀"]


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("character", CHARACTERS)
def test_characters_may_lie_across_steps(character: str, shift: int) -> None:
    """CV21"""
    check_utf8(("x" * shift + character * UTF8_STEP_BYTES).encode())


@pytest.mark.parametrize("wrong", [b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\x80" * UTF8_STEP_BYTES], ids=len)
@pytest.mark.parametrize("at", [0, UTF8_STEP_BYTES - 1, UTF8_STEP_BYTES, 3 * UTF8_STEP_BYTES])
def test_what_is_wrong_is_found_wherever_it_is(wrong: bytes, at: int) -> None:
    """CV21"""
    with pytest.raises(UnicodeDecodeError):
        check_utf8(b"x" * at + wrong + b"x" * UTF8_STEP_BYTES)
    with pytest.raises(UnicodeDecodeError):
        check_utf8(b"x" * at + wrong)


def test_a_large_text_is_not_held_a_second_time() -> None:
    """LM9: one character beyond the others made it four times as large."""
    body = ("x" * (16 * UTF8_STEP_BYTES) + "😀").encode()
    tracemalloc.start()
    try:
        check_utf8(body)
        assert tracemalloc.get_traced_memory()[1] < 8 * UTF8_STEP_BYTES
    finally:
        tracemalloc.stop()
