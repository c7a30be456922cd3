"""Every program of the benchmarks runs, with small sizes, and prints the figures that its tables show.

What a machine cannot run for want of a peer is skipped; figures of peers that are optional may be missing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.figures import SECTIONS
from topics.testing.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
POSTGRES = any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
# Program → what it needs, and the figures that only full sizes or optional peers give.
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bench.server": ("wrk redis-server", ()),
    "bench.connections": ("wrk redis-server", ()),
    "bench.appends": ("", ("redis_", "jetstream_", "postgres_", "rabbitmq_", "durable_")),
    "bench.mixed": ("", ()),
    "bench.room": ("", ("nchan_", *(f"{way}_{n}" for way in ("others", "all", "null") for n in range(1, 10)))),
    "bench.churn": ("wrk", ()),
    "bench.growth records": ("", ()),
    "bench.growth topics": ("", ()),
    "bench.growth tags": ("", ()),
    "bench.recovery 1m": ("", ()),
    "bench.recovery posted": ("wrk", ()),
    "bench.recovery topics": ("", ()),
    "bench.recovery memory": ("", ()),
    "bench.queues": ("redis-server beanstalkd nats-server postgres", ()),
    "bench.routers": ("wrk", ()),
    "bench.routers growth": ("wrk", ("copies_per_s_1000", "copy_us_1000", "ack_p50_ms_1000")),
    "bench.live latency": (
        "nginx nats-server",
        tuple(f"{way}_" for way in ("sse", "ws", "nchan", "nats", "durable", "null")),
    ),
    "bench.live idle": ("nginx nats-server", ()),
    "bench.live saturation": ("nginx nats-server", ("durable_",)),
}
# What takes seconds; of the programs of one kind `make test` runs the quickest.
LONG = {
    *("bench.server", "bench.connections", "bench.appends", "bench.churn", "bench.queues", "bench.routers"),
    *("bench.growth topics", "bench.growth tags", "bench.recovery topics", "bench.recovery memory"),
    *("bench.live latency", "bench.live saturation"),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """PostgreSQL runs as another user, to whom the directories of pytest are closed."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def missing(needed: str) -> list[str]:
    found = [name for name in needed.split() if shutil.which(name) is None]
    if POSTGRES and "postgres" in found:
        found.remove("postgres")
    return found


def run(*arguments: str, cwd: Path) -> str:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.full) if name in LONG else name for name in PROGRAMS]
)
def test_a_program_prints_its_figures(program: str, place: Path) -> None:
    needed, optional = PROGRAMS[program]
    if missing(needed):
        pytest.skip(f"not installed: {', '.join(missing(needed))}; make bench-peers installs them")
    found = json.loads(run(*program.split(), "--quick", cwd=place).splitlines()[-1])
    wanted = [figure.key for figures in SECTIONS.values() for figure in figures if figure.program == program]
    assert wanted and found
    assert [key for key in wanted if key not in found and not key.startswith(optional)] == []
    assert [key for key, value in found.items() if not isinstance(value, float)] == []
    assert list(place.iterdir()) == [], "what it has written is gone"


def test_programs_of_tables_are_tested() -> None:
    """All but the embedded engine, which has no small sizes, and Spark, which has tests of its own."""
    programs = {figure.program for figures in SECTIONS.values() for figure in figures if not figure.is_long}
    assert {name for name in programs if not name.startswith(("bench.engine", "bench.spark"))} == PROGRAMS.keys()


def test_a_table_is_printed_and_a_quick_run_writes_nothing(tmp_path: Path) -> None:
    results = ROOT / "bench" / "RESULTS.md"
    before = results.read_bytes()
    table = run("bench", "tags", "--quick", "--runs", "1", cwd=tmp_path)
    assert table.startswith("| figure | target | median |") and "| delete by one tag at 1 M tags: p50 |" in table
    assert results.read_bytes() == before
