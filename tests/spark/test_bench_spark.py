"""The figures of Spark: the program that takes them runs, and takes each of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import kafka, spark
from bench.figures import SPARK

ROOT = Path(__file__).parent.parent.parent


def test_the_program_of_the_figures_can_be_loaded() -> None:
    """It borrows from the source, the jobs and the sink; nobody else would see that one of them has another name."""
    assert {figure.program for figure in SPARK} == {spark.__name__}


@pytest.mark.full
def test_each_figure_is_taken() -> None:
    command = [sys.executable, "-m", "bench", "spark", "--quick", "--runs", "1", "--no-write"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    missing = [line for line in done.stdout.splitlines() if "not available" in line]
    expected = [figure.name for figure in SPARK if "kafka" in figure.key and not kafka.is_installed()]
    assert len(missing) == len(expected), missing
    assert done.stdout.count("\n|") == len(SPARK) + 1
