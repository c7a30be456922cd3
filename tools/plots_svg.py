"""Bars and lines as SVG text: what a plot shows is given, how it looks is here. Knows nothing of benchmarks."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH, NAMES, FIGURES, BAR, STEP = 760, 150, 160, 14, 20
LEFT, RIGHT, TOP, HEIGHT = 64, 190, 36, 240  # of the field of a plot with lines
STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .ours { fill: #0d9488 } .theirs { fill: #9aa4b2 }
  .axis { stroke: #9aa4b2; stroke-width: 1 } .grid { stroke: #9aa4b2; stroke-width: 1; opacity: .3 }
  .bar { stroke: #dc2626; stroke-dasharray: 4 3 } .line { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .theirs { fill: #5b6675 } }
"""
COLOURS: Final = ("#0d9488", "#2563eb", "#9333ea", "#ea580c", "#9aa4b2", "#be185d")


class Bar(NamedTuple):
    name: str
    value: float
    unit: str
    is_ours: bool


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def _svg(label: str, height: int, parts: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _nothing(label: str) -> str:
    return _svg(label, 48, [f'<text x="8" y="28">{escape(label)}: not measured yet, make bench does</text>'])


def _shown(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip() if value >= 100 else f"{value:.3g} {unit}".strip()


def bars(label: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Groups of bars under their titles; within a group the longest fills the width. Empty groups are left out."""
    y, parts = 8, []
    for title, group in groups:
        if not group:
            continue
        y += STEP
        parts.append(f'<text class="title" x="8" y="{y}">{escape(title)}</text>')
        most = max(bar.value for bar in group) or 1.0
        for bar in group:
            y += STEP
            length = max(1, round((WIDTH - NAMES - FIGURES) * bar.value / most))
            parts.append(f'<text x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(bar.name)}</text>')
            kind = "ours" if bar.is_ours else "theirs"
            parts.append(f'<rect class="{kind}" x="{NAMES}" y="{y - 11}" width="{length}" height="{BAR}" rx="2"/>')
            parts.append(f'<text x="{NAMES + length + 6}" y="{y}">{escape(_shown(bar.value, bar.unit))}</text>')
        y += 8
    return _svg(label, y + 12, parts) if parts else _nothing(label)


class _Scale:
    """From values to pixels: even steps for even ratios if it is logarithmic."""

    def __init__(self, low: float, high: float, first: float, last: float, is_log: bool) -> None:
        self._turn = math.log10 if is_log else float
        self._low, high = self._turn(low), self._turn(high)
        self._first, self._step = first, (last - first) / ((high - self._low) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self._first + (self._turn(value) - self._low) * self._step, 1)


def lines(
    label: str, drawn: Sequence[Line], axes: tuple[str, str], bar: float | None = None, is_log_x: bool = False
) -> str:
    """Lines over logarithmic values; `axes` names x and y, `bar` is a value that should not be passed."""
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return _nothing(label)
    xs = sorted({x for line in drawn for x, _ in line.points})
    values = [max(y, 1e-3) for line in drawn for _, y in line.points] + ([bar] if bar else [])
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    bottom = TOP + HEIGHT
    at_x = _Scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT, is_log_x)
    at_y = _Scale(low, high if high > low else low * 10, bottom, TOP, True)
    parts = [f'<text class="title" x="8" y="20">{escape(label)}</text>']
    decade = low
    while decade <= high:
        y = at_y(decade)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{decade:g}</text>')
        decade *= 10
    parts += [f'<text x="{at_x(x)}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>' for x in xs]
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>')
    parts.append(f'<text x="{LEFT}" y="{bottom + 38}">{escape(axes[0])}; upwards: {escape(axes[1])}</text>')
    if bar:
        y = at_y(bar)
        parts.append(f'<line class="bar" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
    for number, line in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{at_x(x)},{at_y(max(y, 1e-3))}" for x, y in line.points)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{points}"/>')
        y = TOP + 14 + number * STEP
        parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y}">{escape(line.name)}</text>')
    return _svg(label, bottom + 50, parts)
