"""The plots are those that bench/RESULTS.md gives; each asks for figures that the benchmarks have."""

import re

from bench.figures import SECTIONS
from tools import plots
from tools.plots_svg import Bar, Line, bars, lines


def test_the_plots_are_drawn_from_the_results() -> None:
    drawn = plots.drawn(plots.RESULTS.read_text())
    on_disk = {name: (plots.IMAGES / name).read_text() for name in drawn}
    assert on_disk == drawn, "python -m tools.plots draws them anew"


def test_every_figure_of_a_plot_is_measured() -> None:
    measured = {figure.name for figures in SECTIONS.values() for figure in figures}
    assert [name for name in plots.named() if name not in measured] == []


def test_names_that_a_plot_asks_for_are_unique() -> None:
    """Else a plot would show the one that comes last."""
    names = [figure.name for figures in SECTIONS.values() for figure in figures]
    assert [name for name in plots.named() if names.count(name) > 1] == []


def test_figures_are_read_with_their_units() -> None:
    row = "| {} | – | {} | 1 … 2 | – |\n"
    text = row.format("a rate", "1,234 /s") + row.format("a time", "0.5 ms") + row.format("a ratio", "7")
    text += row.format("… of what", "3 ms") + row.format("tiny", "1e-05 ms")
    assert plots.figures(text) == {
        "a rate": (1234.0, "/s"),
        "a time": (0.5, "ms"),
        "a ratio": (7.0, ""),
        "tiny": (1e-05, "ms"),
    }


def test_bars_are_as_long_as_values() -> None:
    plot = bars("plot", [("group", [Bar("ours", 50, "/s", True), Bar("theirs", 100, "/s", False)])])
    widths = re.findall(r'width="(\d+)" height="14"', plot)
    assert len(widths) == 2 and int(widths[1]) == 2 * int(widths[0])


def test_lines_rise_by_the_ratio_of_values() -> None:
    plot = lines("plot", [Line("a", [(1, 1), (2, 10), (3, 100)])], ("x", "y"))
    (points,) = re.findall(r'points="([^"]+)"', plot)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights[0] - heights[1] == heights[1] - heights[2] > 0


def test_what_was_not_measured_is_said() -> None:
    assert "not measured yet" in bars("plot", [("group", [])])
    assert "not measured yet" in lines("plot", [Line("a", [])], ("x", "y"))
    flat = lines("plot", [Line("a", [(1, 0.0)])], ("x", "y"))
    assert "polyline" in flat, "a single value, and none above zero"
