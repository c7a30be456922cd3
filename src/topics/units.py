"""Sizes and times as people write them: `64MiB`, `1h30m`. Pure; a refusal is a ValueError that says what to write.

A bare number is bytes or milliseconds. With an i, units of size are powers of 1024, else of 1000.
"""

import re
from decimal import Decimal
from typing import Final

DIGITS_MAX: Final = 18  # below 2^63
DURATION_MAX_MS: Final = 10**15
TEXT_MAX: Final = 64

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)", re.ASCII | re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def whole(text: str) -> int | None:
    """The number, if the text is one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def is_duration(text: str) -> bool:
    """Whether it is a time with units."""
    return len(text) <= TEXT_MAX and _DURATION.fullmatch(text) is not None


def duration_ms(text: str) -> int:
    """`500ms`, `30s`, `1h30m`; a bare number is milliseconds."""
    text = text.strip()
    if (number := whole(text)) is not None:
        return number
    if not is_duration(text):
        raise ValueError("write a time as 500ms, 30s, 5m, 1h30m or 7d")
    total = sum(Decimal(count) * _UNITS_MS[unit] for count, unit in _DURATION_PART.findall(text))
    if total > DURATION_MAX_MS:
        raise ValueError(f"a time is at most {DURATION_MAX_MS} ms")
    return round(total)


def size_bytes(text: str) -> int:
    """`64MiB`, `10kB`, `1.5g`; a bare number is bytes."""
    text = text.strip()
    if (number := whole(text)) is not None:
        return number
    match = _SIZE.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        raise ValueError("write a size as 4096, 64KiB, 10MB or 1GiB")
    factor: int = (1024 if match[3] else 1000) ** _POWERS[(match[2] or "").lower()]
    size = round(Decimal(match[1]) * factor)
    if len(str(size)) > DIGITS_MAX:
        raise ValueError(f"a size has at most {DIGITS_MAX} digits")
    return size


def plain_size(count: int) -> str:
    """The shortest way to write a size that is read as exactly that: `64MiB`, `1000`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def plain_duration(ms: int) -> str:
    """The shortest way to write a time that is read as exactly that: `1h`, `1500ms`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"
