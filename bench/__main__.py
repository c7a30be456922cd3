"""`python -m bench [section …]`: run the benchmarks, write their results to bench/RESULTS.md and draw the plots.

Every figure is the median of several runs, each in a process of its own, the
runs of different figures interleaved, with the lowest and highest beside it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import SECTIONS, Figure
from bench.peers import end_on_signals, end_with_parent
from tools import plots

RESULTS = Path(__file__).with_name("RESULTS.md")
RUNS = 5
SPARK_RUNS = 3  # a run of them takes minutes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"which ones: {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--runs", type=int, help=f"runs of every figure (default {RUNS}, of Spark's {SPARK_RUNS})")
    parser.add_argument("--quick", action="store_true", help="small sizes, where a program has any; not written")
    parser.add_argument("--long", action="store_true", help="also what takes minutes: a recovery of 10 M records")
    parser.add_argument("--no-write", action="store_true", help="print only, leave RESULTS.md alone")
    options = parser.parse_args(arguments)
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"there is no section {section!r}; use {', '.join(SECTIONS)}")
    if options.runs is not None and options.runs < 1:
        parser.error(f"--runs is {options.runs}; a figure takes at least one run")
    end_on_signals()
    for section in options.sections or SECTIONS:
        runs = options.runs or (SPARK_RUNS if section == "spark" else RUNS)
        figures = chosen(section, options.long)
        table = _table(figures, _measure(figures, runs, options.quick))
        print(table)
        if not (options.no_write or options.quick):
            _write(section, table, f"{runs}" + " --long" * options.long)
            plots.draw()
    return 0


def chosen(section: str, is_long: bool) -> list[Figure]:
    """The figures of a section, without those that take minutes unless they are wanted."""
    return [figure for figure in SECTIONS[section] if is_long or not figure.is_long]


def _measure(figures: Sequence[Figure], runs: int, is_quick: bool) -> dict[str, list[dict[str, float]]]:
    """Run every figure `runs` times, round after round."""
    samples: dict[str, list[dict[str, float]]] = {}
    programs = list(dict.fromkeys(figure.program for figure in figures))
    for number in range(runs):
        for program in programs:
            print(f"run {number + 1} of {runs}: {program}", file=sys.stderr, flush=True)
            samples.setdefault(program, []).append(_run([*program.split(), *["--quick"] * is_quick]))
    return samples


def _run(program: list[str]) -> dict[str, float]:
    """What the program printed last. If we are told to end, it is, and has time to end what it started."""
    command = [sys.executable, "-m", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        sys.exit(f"{' '.join(program)} failed, see above")
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def _table(figures: Sequence[Figure], samples: dict[str, list[dict[str, float]]]) -> str:
    lines = ["| figure | target | median | lowest … highest | met |", "|---|---|---|---|---|"]
    for figure in figures:
        values = [sample[figure.key] for sample in samples[figure.program] if figure.key in sample]
        if not values:
            lines.append(f"| {figure.name} | {figure.shown_target()} | not available | – | – |")
            continue
        median = statistics.median(values)
        spread = f"{figure.shown(min(values))} … {figure.shown(max(values))}"
        met = "–" if figure.target is None else "yes" if figure.is_met(median) else "**no**"
        lines.append(f"| {figure.name} | {figure.shown_target()} | {figure.shown(median)} | {spread} | {met} |")
    return "\n".join(lines)


def _write(section: str, table: str, runs: str) -> None:
    """Replace the section in RESULTS.md, keep the others."""
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n\nMade by `make bench`; see CONTRIBUTING.md.\n"
    marker = f"\n## {section}\n"
    before, _, rest = text.partition(marker)
    following = rest[rest.index("\n## ") :] if "\n## " in rest else ""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    python = f"Python {platform.python_version()}" + (" of the system" if sys.base_prefix == "/usr" else "")
    machine = f"{os.cpu_count()} cores, {python}, {platform.system()} {platform.machine()}"
    command = f'make bench FIGURES="{section} --runs {runs}"'
    RESULTS.write_text(f"{before}{marker}\n{now}, {machine}, `{command}`\n\n{table}\n{following}")


if __name__ == "__main__":
    sys.exit(main())
