"""Sizes, times and positions as people write them."""

from contextlib import suppress

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from topics.cli.shell import quantities
from topics.cli.shell.display import check_format
from topics.cli.shell.quantities import Position

NOW = 1_794_900_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("250", 250),
        ("500ms", 500),
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1500),
        ("7d", 604_800_000),
    ],
)
def test_times_are_read(text: str, ms: int) -> None:
    assert quantities.duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65536), ("10kB", 10_000), ("1.5MiB", 1_572_864), ("1g", 10**9), ("2 GiB", 2 * 1024**3)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert quantities.size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("earliest", Position()),
        ("latest", Position(last=0)),
        ("7", Position(after=6)),
        ("0", Position()),
        ("-10", Position(last=10)),
        ("5m", Position(from_ts=NOW - 300_000)),
        ("2026-01-31T12:00:00Z", Position(from_ts=1_769_860_800_000)),
        ("2026-01-31", Position(from_ts=1_769_817_600_000)),
    ],
)
def test_positions_are_read(text: str, where: Position) -> None:
    assert quantities.position(text, NOW) == where


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (
        quantities.duration_ms,
        quantities.size_bytes,
        quantities.tag_match,
        lambda text: quantities.position(text, NOW),
        lambda text: quantities.moment_ms(text, NOW),
    ):
        try:
            read(text)
        except typer.BadParameter:
            pass


@pytest.mark.parametrize("text", ["", "x", "1y", "-5s", "9" * 400 + "w", "١s"])
def test_a_refusal_says_what_to_write(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"500ms|too long"):
        quantities.duration_ms(text)


@given(st.integers(0, 10**15), st.floats(0, 1e15))
def test_what_is_shown_is_short(count: int, ms: float) -> None:
    assert len(quantities.shown_bytes(count)) < 16 and len(quantities.shown_duration(ms)) < 24


@given(st.text(max_size=40))
def test_any_format_is_taken_or_refused(pattern: str) -> None:
    with suppress(ValueError):
        assert check_format(pattern) == pattern
