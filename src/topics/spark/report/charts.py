"""Charts as inline SVG, drawn with the colours of the page around them. Pure: numbers in, text out.

Every mark carries a <title>, which browsers show when it is pointed at. Names are escaped here.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 860
COLOURS: Final = 6  # as many as the page defines, --c0 to --c5; the rest is "others"
UNITS: Final = ("", "k", "M", "G", "T")


def short(number: float) -> str:
    """1234567 as 1.2M."""
    index = 0
    while abs(number) >= 999.5 and index < len(UNITS) - 1:
        number /= 1000
        index += 1
    text = f"{number:.0f}" if abs(number) >= 99.5 or number == int(number) else f"{number:.1f}"
    return text + UNITS[index]


def size(number: float) -> str:
    return f"{short(number)}B"


def span(ms: float) -> str:
    """A time that passed, in the unit that suits it."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= length:
            return f"{ms / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{ms:.0f} ms"


def moment(ms: int, with_date: bool = True) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M")


def stacked(series: Mapping[str, Sequence[float]], start_ms: int, step_ms: int, unit: str) -> str:
    """Stacked bars over time, a colour for each name."""
    count = max((len(values) for values in series.values()), default=0)
    if not count:
        return '<p class="none">Nothing to draw.</p>'
    height, left, bottom = 220, 48, 24
    totals = [sum(values[n] for values in series.values()) for n in range(count)]
    top = max(totals) or 1
    width = (WIDTH - left) / count
    parts = [_grid(top, height, left, bottom)]
    heights = [0.0] * count
    for index, (name, values) in enumerate(series.items()):
        for n, value in enumerate(values):
            if not value:
                continue
            tall = value / top * (height - bottom - 10)
            y = height - bottom - heights[n] - tall
            heights[n] += tall
            said = f"{name}: {short(value)} {unit}, {moment(start_ms + n * step_ms)}"
            parts.append(_rect(left + n * width, y, max(0.5, width - 0.6), tall, index, said))
    for n in sorted({0, count // 2, count - 1}):
        anchor = "start" if n == 0 else "end" if n == count - 1 else "middle"
        text = moment(start_ms + n * step_ms, with_date=step_ms * count > 86_400_000)
        parts.append(_text(left + n * width, height - 6, text, anchor))
    return _svg(height, parts) + legend(list(series))


def bars(values: Mapping[str, float], shown: Mapping[str, str] | None = None, colour: int = 0) -> str:
    """Horizontal bars with their names."""
    if not values:
        return '<p class="none">None.</p>'
    row, left, top = 24, 230, max(values.values()) or 1
    parts = []
    for n, (name, value) in enumerate(values.items()):
        text = (shown or {}).get(name, short(value))
        wide = max(1.0, value / top * (WIDTH - left - 160)) if value else 0
        parts.append(_text(left - 8, n * row + 16, name if len(name) <= 32 else name[:31] + "…", "end", name))
        parts.append(_rect(left, n * row + 4, wide, row - 8, colour, f"{name}: {text}"))
        parts.append(_text(left + wide + 6, n * row + 16, text))
    return _svg(row * len(values), parts)


def columns(values: Mapping[str, int], colour: int = 0) -> str:
    """Upright bars: a histogram."""
    if not any(values.values()):
        return '<p class="none">None.</p>'
    height, bottom, top = 150, 24, max(values.values())
    width = WIDTH / len(values)
    parts = []
    for n, (name, value) in enumerate(values.items()):
        tall = value / top * (height - bottom - 22)
        middle = n * width + width / 2
        parts.append(_rect(n * width + 6, height - bottom - tall, width - 12, tall, colour, f"{name}: {value}"))
        parts.append(_text(middle, height - 8, name, "middle"))
        if value:
            parts.append(_text(middle, height - bottom - tall - 5, short(value), "middle"))
    return _svg(height, parts)


def legend(names: Sequence[str]) -> str:
    items = (
        f'<span><i style="background:var(--c{n % COLOURS})"></i>{escape(name)}</span>' for n, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _grid(top: float, height: int, left: int, bottom: int) -> str:
    parts = []
    for share in (0, 0.5, 1):
        y = height - bottom - share * (height - bottom - 10)
        parts.append(f'<line x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, short(top * share), "end"))
    return "".join(parts)


def _rect(x: float, y: float, width: float, height: float, colour: int, said: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="var(--c{colour % COLOURS})"><title>{escape(said)}</title></rect>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", said: str = "") -> str:
    title = f"<title>{escape(said)}</title>" if said else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{title}</text>'


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
