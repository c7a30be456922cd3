"""The plot of the README is the one that bench/RESULTS.md gives, with every workload it names."""

import re

from tools import plots


def test_the_plot_is_drawn_from_the_results() -> None:
    text = plots.RESULTS.read_text()
    assert plots.PLOT.read_text() == plots.drawn(text), "python -m tools.plots draws it anew"
    known = plots.figures(text)
    assert [name for _, wanted in plots.GROUPS for name, _ in wanted if name not in known] == []


def test_bars_are_as_long_as_rates() -> None:
    row = "| {} | – | {} /s | 1 /s … 2 /s | – |\n"
    (ours, theirs) = plots.GROUPS[0][1]
    widths = re.findall(
        r'width="(\d+)" height="14"', plots.drawn(row.format(ours[0], "50") + row.format(theirs[0], "100"))
    )
    assert len(widths) == 2 and int(widths[1]) == 2 * int(widths[0])
