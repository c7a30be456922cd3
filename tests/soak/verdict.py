"""Samples of a server over time, and whether what it uses stays the same. Pure: numbers in, words out.

The rule. The first third of a run is warm-up and does not count. Of the rest, the slope of each series is the median of
the slopes between any two of its samples (Theil-Sen), so that neither peaks nor the saw teeth of checkpoints decide.
Carried over the rest of the run, the slope may come to what `ALLOWED` gives: a part of the median, or a floor for what
is small. What falls is flat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MIB = 1 << 20
WARM_UP = 1 / 3


class Allowance(NamedTuple):
    """What a series may rise by: this part of its median, and at least this much."""

    part: float
    floor: float


ALLOWED = {
    "memory_bytes": Allowance(0.10, 8 * MIB),
    "descriptors": Allowance(0.10, 8),
    "disk_bytes": Allowance(0.15, 16 * MIB),
    "threads": Allowance(0.0, 2),
}


@dataclass(frozen=True)
class Sample:
    at_s: float  # since the start
    memory_bytes: int  # of the server, without pages of files
    descriptors: int
    threads: int
    disk_bytes: int  # of the data directory
    writes: int  # acked since the sample before
    p50_ms: float  # of these writes
    p99_ms: float
    longest_ms: float


class Verdict(NamedTuple):
    name: str
    median: float
    rise: float  # over the part of the run that counts, by its slope
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.rise <= self.allowed


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """What the samples say of each series."""
    counted = samples[int(len(samples) * WARM_UP) :]
    return [_verdict(name, counted, allowance) for name, allowance in ALLOWED.items()]


def _verdict(name: str, samples: Sequence[Sample], allowance: Allowance) -> Verdict:
    points = [(sample.at_s, float(getattr(sample, name))) for sample in samples]
    middle = median(value for _, value in points)
    rise = slope(points) * (points[-1][0] - points[0][0])
    return Verdict(name, middle, rise, max(allowance.part * middle, allowance.floor))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two points; 0 if there are fewer than two."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0
