"""Sizes, times, tags and positions as people write them. Each function says what is wrong with a text it refuses."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer

from topics import units
from topics.units import whole


class Position(NamedTuple):
    """Where to start: behind a seq, at a time, or so many records before the end."""

    after: int = 0
    from_ts: int | None = None
    last: int | None = None


def duration_ms(text: Any) -> int:
    """`500ms`, `30s`, `1h30m`; a bare number is milliseconds."""
    return _read(units.duration_ms, text, "time")


def size_bytes(text: Any) -> int:
    """`64MiB`, `10kB`, `1.5g`; a bare number is bytes. With an i, units are powers of 1024, else of 1000."""
    return _read(units.size_bytes, text, "size")


def _read(read: Callable[[str], int], text: Any, kind: str) -> int:
    if isinstance(text, int):
        return text
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a {kind}; {error}") from None


def moment_ms(text: str, now_ms: int) -> int:
    """A point in time: epoch milliseconds, `2026-01-31T12:00:00Z`, or `5m`, which is five minutes ago."""
    if (number := whole(text)) is not None:
        return number
    if units.is_duration(text):
        return max(0, now_ms - duration_ms(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 5m (ago), 2026-01-31T12:00:00Z or milliseconds since 1970"
        ) from None
    at = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return max(0, round(at.timestamp() * 1000))


def position(text: str, now_ms: int) -> Position:
    """`earliest`, `latest`, a seq, `-10` for the last ten, or a time."""
    if text == "earliest":
        return Position()
    if text == "latest":
        return Position(last=0)
    if (seq := whole(text)) is not None:
        return Position(after=max(0, seq - 1))
    if text.startswith("-") and (count := whole(text[1:])) is not None:
        return Position(last=count)
    try:
        return Position(from_ts=moment_ms(text, now_ms))
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is no position; use a seq, -10 for the last ten, earliest, latest, 5m (ago) or 2026-01-31T12:00Z"
        ) from None


def tag_match(text: str | None) -> Any:
    """`eu` is one tag, `eu*` every tag that begins so."""
    if text is None:
        return None
    if "*" in text[:-1]:
        raise typer.BadParameter(f"{text!r} has a * before its end; a tag matches as a whole, or by its beginning: eu*")
    return ["tag", "Glob", text] if text.endswith("*") else ["tag", "Eq", text]


def shown_bytes(count: int) -> str:
    """`1.4 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def shown_cell(name: str, value: Any) -> str:
    """A value in a table, by the name of its column."""
    if value is None:
        return "-"
    if name == "bytes":
        return shown_bytes(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def shown_duration(ms: float) -> str:
    """`2m 5s`, to two units."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    left, parts = int(ms // 1000), []
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def shown_moment(ms: int | None) -> str:
    """UTC, to the millisecond."""
    if ms is None:
        return "never"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(ms)
