"""The plot of the README, drawn from bench/RESULTS.md: `python -m tools.plots`. `make bench` draws it anew.

Each group is one workload, ours and the others' of the same run. Bars are rates; longer is better.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "RESULTS.md"
PLOT: Final = ROOT / "docs" / "images" / "bench.svg"
# Title of a group, and the figures of it: how RESULTS.md names one, and how the plot does. Ours comes first.
GROUPS: Final = (
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
WIDTH, NAMES, FIGURES, BAR, STEP = 760, 150, 160, 14, 20
STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .ours { fill: #0d9488 } .theirs { fill: #9aa4b2 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .theirs { fill: #5b6675 } }
"""


class Bar(NamedTuple):
    name: str
    rate: float
    unit: str
    is_ours: bool


def figures(text: str) -> dict[str, tuple[float, str]]:
    """Median and unit of each figure, by name."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d,.]+) (\S*/s) \|", text, re.MULTILINE)
    return {name: (float(rate.replace(",", "")), unit) for name, rate, unit in rows}


def bars(known: dict[str, tuple[float, str]], wanted: tuple[tuple[str, str], ...]) -> list[Bar]:
    return [Bar(shown, *known[name], shown.startswith("topics")) for name, shown in wanted if name in known]


def drawn(text: str) -> str:
    """The plot of what RESULTS.md says."""
    known, y, parts = figures(text), 8, []
    for title, wanted in GROUPS:
        group = bars(known, wanted)
        if not group:
            continue
        y += STEP
        parts.append(f'<text class="title" x="8" y="{y}">{escape(title)}</text>')
        most = max(bar.rate for bar in group)
        for bar in group:
            y += STEP
            length = max(1, round((WIDTH - NAMES - FIGURES) * bar.rate / most))
            parts.append(f'<text x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(bar.name)}</text>')
            kind = "ours" if bar.is_ours else "theirs"
            parts.append(f'<rect class="{kind}" x="{NAMES}" y="{y - 11}" width="{length}" height="{BAR}" rx="2"/>')
            parts.append(f'<text x="{NAMES + length + 6}" y="{y}">{bar.rate:,.0f} {escape(bar.unit)}</text>')
        y += 8
    size = f'width="{WIDTH}" height="{y + 12}" viewBox="0 0 {WIDTH} {y + 12}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Rates of topics and of other systems">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def main() -> None:
    PLOT.write_text(drawn(RESULTS.read_text()))


if __name__ == "__main__":
    main()
