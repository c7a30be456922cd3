"""A very short soak, and the rule that says what is flat."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.soak.chart import chart
from tests.soak.load import KINDS
from tests.soak.run import soaked
from tests.soak.verdict import MIB, Sample, slope, verdicts

FLAT = Sample(0.0, 100 * MIB, 50, 8, 10 * MIB, 100, 1.0, 5.0, 9.0)


def test_a_mixed_load_does_all_it_should_and_leaves_a_server_that_stops(tmp_path: Path) -> None:
    """SC3: until everything was done at least once, and sampled twice."""
    soak = soaked(tmp_path, 1, 0.2, lambda samples, counts: len(samples) > 1 and all(counts[kind] for kind in KINDS))
    assert '"trace"' not in soak.output
    assert all(sample.memory_bytes and sample.descriptors and sample.disk_bytes for sample in soak.samples)
    assert ElementTree.fromstring(chart(soak.samples, "a <soak>")).tag.endswith("svg")


def series(**rises: float) -> list[Sample]:
    """An hour of samples, of which some values rise by so much in all, with peaks and saw teeth."""
    made = []
    for n in range(120):
        teeth = MIB * (n % 10)
        values = {name: getattr(FLAT, name) + rise * n / 119 for name, rise in rises.items()}
        one = replace(FLAT, at_s=30.0 * n, disk_bytes=FLAT.disk_bytes + teeth, **values)
        made.append(replace(one, memory_bytes=one.memory_bytes + (300 * MIB if n % 17 == 0 else 0)))
    return made


@pytest.mark.parametrize(
    ("rises", "rising"),
    [
        ({}, set()),
        ({"memory_bytes": 6 * MIB}, set()),
        ({"memory_bytes": -50 * MIB}, set()),
        ({"memory_bytes": 20 * MIB}, {"memory_bytes"}),
        ({"descriptors": 20.0}, {"descriptors"}),
        ({"threads": 6.0}, {"threads"}),
        ({"memory_bytes": 90 * MIB, "descriptors": 200.0}, {"memory_bytes", "descriptors"}),
    ],
)
def test_what_rises_is_told_from_peaks_and_saw_teeth(rises: dict[str, float], rising: set[str]) -> None:
    assert {verdict.name for verdict in verdicts(series(**rises)) if not verdict.is_flat} == rising


def test_a_rise_of_the_disk_is_found_under_its_saw_teeth() -> None:
    grown = [replace(one, disk_bytes=one.disk_bytes + n * MIB) for n, one in enumerate(series())]
    assert [verdict.name for verdict in verdicts(grown) if not verdict.is_flat] == ["disk_bytes"]


def test_warm_up_does_not_count() -> None:
    warming = [replace(one, memory_bytes=min(n, 40) * 10 * MIB) for n, one in enumerate(series())]
    assert all(verdict.is_flat for verdict in verdicts(warming))


def test_the_slope_of_less_than_two_points_is_zero() -> None:
    assert slope([]) == slope([(1.0, 2.0)]) == slope([(1.0, 2.0), (1.0, 3.0)]) == 0.0
