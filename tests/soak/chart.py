"""A soak as an SVG: panels one below the other, over the time of the run. Pure: samples in, text out.

Colours are readable on a light and on a dark page; every line has its name at its right end.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, log10
from typing import NamedTuple

from tests.soak.verdict import MIB, WARM_UP, Sample

WIDTH, PANEL, GAP = 860, 130, 34
LEFT, RIGHT = 62, 78
STEPS = (1, 2, 5)
GREY, COLOURS = "#8a8a8a", ("#2f81f7", "#d29922", "#bf5af2")


class Line(NamedTuple):
    name: str
    value: Callable[[Sample], float]


class Panel(NamedTuple):
    title: str
    lines: tuple[Line, ...]
    is_logarithmic: bool = False


PANELS = (
    Panel("latency of a write, ms", (Line("median", lambda s: s.p50_ms), Line("99 %", lambda s: s.p99_ms)), True),
    Panel("memory of the server, MiB", (Line("", lambda s: s.memory_bytes / MIB),)),
    Panel("data directory, MiB", (Line("", lambda s: s.disk_bytes / MIB),)),
    Panel("open descriptors", (Line("", lambda s: s.descriptors),)),
)


def chart(samples: Sequence[Sample], title: str) -> str:
    height = GAP + len(PANELS) * (PANEL + GAP)
    parts = [_text(LEFT, 20, title, size=13)]
    parts += [_panel(panel, samples, GAP + number * (PANEL + GAP) + 8) for number, panel in enumerate(PANELS)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(panel: Panel, samples: Sequence[Sample], top: float) -> str:
    end_s = samples[-1].at_s or 1.0
    most = max(line.value(sample) for line in panel.lines for sample in samples)
    marks = _powers(most) if panel.is_logarithmic else [number * _step(most) for number in range(5)]
    bottom = top + PANEL

    def x(at_s: float) -> float:
        return LEFT + at_s / end_s * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        if panel.is_logarithmic:
            part = log10(max(value, marks[0]) / marks[0]) / log10(marks[-1] / marks[0])
        else:
            part = value / marks[-1]
        return bottom - part * (PANEL - 18)

    parts = [_text(LEFT, top + 10, panel.title)]
    for mark in marks:
        parts.append(f'<path d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".3"/>')
        parts.append(_text(LEFT - 6, y(mark) + 4, f"{mark:g}", anchor="end"))
    warm = x(end_s * WARM_UP)
    parts.append(f'<path d="M{warm:.1f} {top + 18:.1f}V{bottom:.1f}" stroke="{GREY}" stroke-dasharray="3 4"/>')
    for number, line in enumerate(panel.lines):
        points = " ".join(f"{x(sample.at_s):.1f},{y(line.value(sample)):.1f}" for sample in samples)
        colour = COLOURS[number]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(_text(WIDTH - RIGHT + 6, y(line.value(samples[-1])) + 4, line.name, colour=colour))
    for quarter in range(5):
        at_s = end_s * quarter / 4
        parts.append(_text(x(at_s), bottom + 14, f"{at_s / 60:.3g} min", anchor="middle"))
    return "\n".join(parts)


def _powers(most: float) -> list[float]:
    """Powers of ten from 1 to one that is not below the most."""
    return [10.0**power for power in range(max(1, ceil(log10(max(most, 1.0)))) + 1)]


def _step(most: float) -> float:
    """A round number of which four reach the most."""
    step = 10.0**-3
    while True:
        for factor in STEPS:
            if step * factor * 4 >= most:
                return step * factor
        step *= 10


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, colour: str = GREY) -> str:
    fill = f'fill="{colour}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {fill}>{escape(text)}</text>'
