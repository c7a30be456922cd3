"""What commands print: tables and records for people, JSON lines for programs.

Colours are used on a terminal only, and not if it is a dumb one or NO_COLOR is set. A line of a program is never
coloured, and `data` and `meta` are always the bytes that were written.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TextIO

from topics.cli.shell.quantities import shown_moment

if TYPE_CHECKING:
    from topics.client import Job, Record

BOLD, DIM, RED, YELLOW, CYAN, GREEN = "1", "2", "1;31", "33", "36", "32"
_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", "0": "\0"}
_PIECES: Final = re.compile("(\x1b\\[[0-9;]*m)|(.)", re.DOTALL)


@cache
def has_colours(stream: TextIO) -> bool:
    if not is_screen(stream):
        return False
    from rich.console import Console

    return not Console(file=stream).no_color


@cache
def is_screen(stream: TextIO) -> bool:
    """Whether it is a terminal that can be steered."""
    if not stream.isatty():
        return False
    from rich.console import Console

    return not Console(file=stream).is_dumb_terminal


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if has_colours(stream or sys.stdout) else text


def say(text: str) -> None:
    """To people, beside the output."""
    print(text, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> list[str]:
    """Lines of aligned columns; those named in `right` are numbers."""
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in [list(header), *texts]) for n in range(len(header))]
    to_right = {n for n, name in enumerate(header) if name in set(right)}
    lines = []
    for row in [list(header), *texts]:
        cells = [cell.rjust(widths[n]) if n in to_right else cell.ljust(widths[n]) for n, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return [coloured(lines[0], BOLD), *lines[1:]]


def clipped(line: str, columns: int) -> str:
    """So much of a line as fits; colours take no room, and end with it."""
    out, room = [], columns
    for colour, char in _PIECES.findall(line):
        if colour:
            out.append(colour)
        elif room > 0:
            out.append(char)
            room -= 1
    return "".join(out)


def printable(text: str) -> str:
    """Without what could steer a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def fields_of(record: "Record | Job", topic: str) -> dict[str, Any]:
    """A record as a JSON object, with the names of the API; absent fields are left out."""
    found: dict[str, Any] = {"topic": topic, "$seq": record.seq, "$ts": record.ts}
    if (node := getattr(record, "node", None)) is not None:
        found["$node"] = node
    if record.tag is not None:
        found["$tag"] = record.tag
    for name in ("lease_id", "deadline", "deliveries"):
        if hasattr(record, name):
            found[name] = getattr(record, name)
    if len(memoryview(record.meta)):
        found["meta"] = record.meta
    if len(memoryview(record.data)):
        found["data"] = record.data
    return found


def text_of(raw: Any) -> str:
    return bytes(raw).decode("utf-8", "replace")


def record_line(record: "Record | Job", topic: str | None) -> str:
    """A record for people."""
    parts = [coloured(str(record.seq).rjust(6), CYAN), coloured(shown_moment(record.ts), DIM)]
    if topic is not None:
        parts.insert(0, coloured(topic, GREEN))
    if record.tag is not None:
        parts.append(coloured(printable(record.tag), YELLOW))
    meta = printable(text_of(record.meta))
    return "  ".join((*parts, printable(text_of(record.data)), *((coloured(meta, DIM),) if meta else ())))


def formatted(record: "Record | Job", topic: str, pattern: str) -> str:
    """A record by a format: %s seq, %t time, %T epoch-ms, %k topic, %g tag, %n node, %m meta, %d data; \\n and \\t."""
    out, chars = [], iter(pattern)
    for char in chars:
        follower = next(chars, "") if char in "%\\" else ""
        if char == "%" and follower:
            out.append(_field(record, topic, follower))
        elif char == "\\" and follower:
            out.append(_ESCAPES.get(follower, char + follower))
        else:
            out.append(char)
    return "".join(out)


def _field(record: "Record | Job", topic: str, letter: str) -> str:
    match letter:
        case "s":
            return str(record.seq)
        case "t":
            return shown_moment(record.ts)
        case "T":
            return str(record.ts)
        case "k":
            return topic
        case "g":
            return record.tag or ""
        case "n":
            return getattr(record, "node", None) or ""
        case "m":
            return text_of(record.meta)
        case "d":
            return text_of(record.data)
        case "%":
            return "%"
    return "%" + letter


def check_format(pattern: str) -> str:
    """Raise ValueError at a letter that means nothing."""
    chars = iter(pattern)
    for char in chars:
        if char == "\\":
            next(chars, "")
        elif char == "%" and (letter := next(chars, "")) not in tuple("stTkgnmd%"):
            raise ValueError(f"%{letter} means nothing; use %s %t %T %k %g %n %m %d or %%")
    return pattern


def gap_line(topic: str, first: int, last: int, reason: str) -> str:
    """What was lost, loudly."""
    count = last - first + 1
    seqs = f"seq {first}" if count == 1 else f"seqs {first:,} to {last:,}"
    return coloured(f"!!! {topic}: {count:,} lost, {seqs}: {reason}", RED, sys.stderr)


def quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
