"""A soak: is the server the same after a while of everything?

    python -m tests.soak --minutes 15 [--chart docs/images/soak.svg]

It prints a line per sample and what it makes of them, and exits with 1 if memory, descriptors, disk or threads rise.
"""

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from tests.soak.chart import chart
from tests.soak.run import said, soaked
from tests.soak.verdict import MIB, Sample, verdicts

SAMPLES_MIN = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Is the server the same after a while?")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chart", type=Path, help="write the samples as an SVG to this file")
    wanted = parser.parse_args()
    every_s = min(5.0, wanted.minutes * 60 / SAMPLES_MIN)

    def is_over(samples: list[Sample], counts: dict[str, int]) -> bool:
        if samples:
            print(line(samples[-1]), flush=True)
        return bool(samples) and samples[-1].at_s >= wanted.minutes * 60

    with tempfile.TemporaryDirectory(prefix="topics-soak-") as directory:
        soak = soaked(Path(directory), wanted.seed, every_s, is_over)
    if wanted.chart is not None:
        wanted.chart.parent.mkdir(parents=True, exist_ok=True)
        title = f"{wanted.minutes:g} minutes, {soak.writes:,} writes, Python {platform.python_version()}"
        wanted.chart.write_text(chart(soak.samples, title))
    print(", ".join(f"{count:,} {name}" for name, count in sorted(soak.counts.items())))
    found = verdicts(soak.samples)
    for verdict in found:
        print(said(verdict))
    is_well = "Traceback" not in soak.output
    if not is_well:
        print(soak.output, file=sys.stderr)
    return 0 if is_well and all(verdict.is_flat for verdict in found) else 1


def line(sample: Sample) -> str:
    used = f"{sample.memory_bytes / MIB:6.1f} MiB, {sample.descriptors} descriptors, {sample.threads} threads"
    disk = f"{sample.disk_bytes / MIB:6.1f} MiB on disk"
    latency = f"median {sample.p50_ms:.1f}, 99 % {sample.p99_ms:.1f}, longest {sample.longest_ms:.1f} ms"
    return f"{sample.at_s:7.1f} s: {used}, {disk}; {sample.writes} writes, {latency}"


if __name__ == "__main__":
    sys.exit(main())
