"""The plots of README and docs, drawn from bench/RESULTS.md: `python -m tools.plots`. `make bench` draws them anew.

Each bar or point is a median of RESULTS.md, found by its name; what was not measured is left out.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.figures import GROWN, GROWTH_SIZES, KINDS, NULL_SHOWN, PERCENTILES, ROOM_SIZES, ROOMS, STREAMS
from tools.plots_svg import Bar, Line, bars, lines

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "RESULTS.md"
IMAGES: Final = ROOT / "docs" / "images"
P99_MAX_MS: Final = 50.0
OURS: Final = "topics"

Known = dict[str, tuple[float, str]]  # median and unit of each figure, by name
Wanted = Sequence[tuple[str, str]]  # how RESULTS.md names a figure, and how the plot does
Groups = Sequence[tuple[str, Wanted]]

# Title of a group, and the figures of it. Ours comes first.
RATES: Final[Groups] = (
    (
        "one record per request, 64 connections, written to disk",
        (("one record per POST, 64 connections, disk", "topics"), ("Redis XADD, everysec", "Redis")),
    ),
    (
        "one record per request, 64 connections, synced",
        (("one record per POST, 64 connections, fsync", "topics"), ("Redis XADD, always", "Redis")),
    ),
    (
        "batches of 100 records",
        (("100 records per POST, 16 connections", "topics"), ("Redis XADD, 100 pipelined", "Redis")),
    ),
    ("reads of 1,000 records", (("diff of 1000, 16 connections", "topics"), ("Redis XRANGE COUNT 1000", "Redis"))),
    (
        "jobs claimed and acked, 50 workers, synced",
        (
            ("claim 8 and ack, 50 workers: our fsync queue", "topics"),
            ("claim 8 and ack, 50 workers: Redis stream, always", "Redis"),
            ("claim 8 and ack, 50 workers: beanstalkd -b -f0", "beanstalkd"),
            ("claim 8 and ack, 50 workers: PostgreSQL, leasing", "PostgreSQL"),
        ),
    ),
    (
        "live deliveries to 1,000 watchers",
        (
            ("saturated, 1,000 watchers: our SSE", "topics, SSE"),
            ("saturated, 1,000 watchers: our WebSocket", "topics, WebSocket"),
            ("saturated, 1,000 watchers: NATS", "NATS"),
            ("saturated, 1,000 watchers: nchan SSE", "nchan, SSE"),
        ),
    ),
)
SINGLES: Final[Groups] = tuple(
    (
        f"one record per request, {step}",
        (
            (f"one record per POST, {step}", "topics"),
            (f"Redis XADD, {step}".replace("topic", "stream"), "Redis"),
            (f"null server, {step}", "null server"),
        ),
    )
    for step in (
        "1 connection",
        "16 connections",
        "256 connections",
        "64 connections, 1 topic",
        "64 connections, 1,000 topics",
    )
)


def _stream(name: str) -> str:
    return name.replace("our ", "topics, ")


FANOUT: Final[Groups] = (
    (
        "deliveries to 1,000 watchers, writers as fast as these can take",
        tuple((f"saturated, 1,000 watchers: {name}", _stream(name)) for name in STREAMS.values()),
    ),
    *(
        (
            f"p99 from write to delivery, {title}, 50 writes/s",
            tuple((f"{title}, 50 writes/s: p99, {name}", _stream(name)) for name in STREAMS.values()),
        )
        for title in ("1 watcher", "100 watchers", "1,000 watchers")
    ),
)
MIXED: Final[Groups] = tuple(
    (
        title,
        (
            *((f"mixed load, {shown} of {title}", f"topics, {shown}") for shown in PERCENTILES.values()),
            *((f"same client, null server: {shown} of {title}", f"null server, {shown}") for shown in NULL_SHOWN[kind]),
        ),
    )
    for kind, title in KINDS.items()
)
ROOM_LINES: Final = {
    f"topics, {title}" if key in ("others", "all") else title: {
        size: f"room of {size}, {title}: p99" for size in ROOM_SIZES
    }
    for key, title in ROOMS.items()
}
GROWTH_LINES: Final = {
    title: {times: f"CPU of {title}, {size} {what}" for times, size in GROWTH_SIZES[what].items()}
    for title, _, what in GROWN.values()
}


def figures(text: str) -> Known:
    """What RESULTS.md says; of a name that begins with … nobody knows what it belongs to."""
    rows = re.findall(r"^\| ([^…|][^|]*) \| [^|]+ \| ([\d,.e+-]+)(?: (\S+))? \|", text, re.MULTILINE)
    return {name: (float(value.replace(",", "")), unit) for name, value, unit in rows}


def _groups(known: Known, wanted: Groups) -> list[tuple[str, list[Bar]]]:
    return [
        (title, [Bar(shown, *known[name], shown.startswith(OURS)) for name, shown in names if name in known])
        for title, names in wanted
    ]


def _lines(known: Known, wanted: dict[str, dict[int, str]], *, is_relative: bool = False) -> list[Line]:
    """With `is_relative`, each in times of its first point."""
    found = []
    for title, names in wanted.items():
        points = [(float(x), known[name][0]) for x, name in names.items() if name in known]
        first = points[0][1] if points and is_relative else 1.0
        found.append(Line(title, [(x, y / (first or 1.0)) for x, y in points]))
    return found


def named() -> Iterable[str]:
    """Every figure that a plot asks for."""
    for groups in (RATES, SINGLES, FANOUT, MIXED):
        yield from (name for _, wanted in groups for name, _ in wanted)
    for drawing in (ROOM_LINES, GROWTH_LINES):
        yield from (name for names in drawing.values() for name in names.values())


def drawn(text: str) -> dict[str, str]:
    """File → plot, of what RESULTS.md says."""
    known = figures(text)
    room = ("participants", "p99 from due to heard, ms; dashed: 50 ms")
    growth = ("times the size", "CPU in times of the smallest size")
    return {
        "bench.svg": bars("Rates of topics and of other systems", _groups(known, RATES)),
        "bench-connections.svg": bars("Single writes by connections and topics", _groups(known, SINGLES)),
        "bench-fanout.svg": bars("Live delivery", _groups(known, FANOUT)),
        "bench-mixed.svg": bars("Percentiles under a mixed load", _groups(known, MIXED)),
        "bench-room.svg": lines("Audio room", _lines(known, ROOM_LINES), room, P99_MAX_MS),
        "bench-growth.svg": lines(
            "Growth of cost with size", _lines(known, GROWTH_LINES, is_relative=True), growth, is_log_x=True
        ),
    }


def draw() -> None:
    for name, plot in drawn(RESULTS.read_text()).items():
        (IMAGES / name).write_text(plot)


if __name__ == "__main__":
    draw()
