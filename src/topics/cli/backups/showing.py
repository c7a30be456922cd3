"""What a backup or a restore says while it runs, and how it ends: a line on a terminal, and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from topics.clock import SystemClock
from topics.errors import Damaged, TopicsError

UNSOUND: Final = 1
IMPOSSIBLE: Final = 2
REDRAW_S: Final = 0.1


@contextmanager
def ending(command: str) -> Iterator[None]:
    """End the program, with a line that says why, if what this holds fails."""
    try:
        yield
    except (TopicsError, OSError) as error:
        print(f"topics {command}: {error}", file=sys.stderr)
        raise SystemExit(UNSOUND if isinstance(error, Damaged) else IMPOSSIBLE) from None


class Line:
    """One line of progress on stderr, drawn over and over; nothing if that is not a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._clock = SystemClock()
        self._drawn_at = 0.0
        self._is_dirty = False

    def show(self, text: str) -> None:
        now = self._clock.monotonic()
        if self._is_shown and now - self._drawn_at >= REDRAW_S:
            self._drawn_at, self._is_dirty = now, True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_dirty:
            self._is_dirty = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line that stays, on a terminal or not."""
        self.clear()
        print(text, file=sys.stderr, flush=True)


def size_text(size: int) -> str:
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
