"""`topics transform` as a service: killed in mid-batch and started again, asked to end, and its health file."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.commands import Command
from tests.spark.rig import Rig
from topics.client import NewRecord
from topics.errors import ConfigurationError, InvalidRequest
from topics.spark.jobs.transforming import transform

ROWS = 60_000
PER_BATCH = 30_000  # six chunks of the sink, so that there is a middle
COPY = """
checkpoint = "state"

[sources.given]
topic = "PREFIX.given"
maxRecordsPerTrigger = 30000
minPartitions = 2

[[steps]]
name = "copied"
sql = "SELECT data, tag, node, meta FROM given"

[sinks.copy]
from = "copied"
topic = "PREFIX.copy"
"""


def said(health: Path) -> dict[str, Any]:
    """What the file says; nothing if it is not there yet."""
    return json.loads(health.read_bytes()) if health.exists() else {}


def pipeline(rig: Rig, directory: Path) -> Path:
    file = directory / "copy.toml"
    file.write_text(COPY.replace("PREFIX", rig.prefix))
    return file


def parts(rig: Rig, topic: str) -> list[tuple[Any, ...]]:
    records = rig.client.consume(topic, follow=False, include_tags=True)
    return sorted((r.value["n"], r.tag, r.node, r.meta_value) for r in records)


def test_killed_in_mid_batch_and_started_again_it_leaves_every_row_once(rig: Rig, tmp_path: Path) -> None:
    """ID1: data, tag, node and meta, row by row; and SIGTERM ends the service with 0."""
    given, copy = rig.topic("given"), rig.topic("copy", idempotency_window_ms=86_400_000)
    for first in range(0, ROWS, 5000):
        numbers = range(first, first + 5000)
        records = [NewRecord({"n": n}, f"t.{n % 7}", f"n{n % 3}", {"m": n} if n % 2 else None) for n in numbers]
        rig.client.append(given, records)
    health = tmp_path / "health.json"
    arguments = ("transform", str(pipeline(rig, tmp_path)), "--health", str(health))
    service = Command(tmp_path / "process", *arguments, url=rig.url)

    def copied() -> int:
        return rig.client.state(copy, touch=False).head_seq

    service.kill_once(lambda: copied() > 0)
    assert 0 < copied() < ROWS, "it was killed in the middle"
    killed = said(health)
    assert killed["ok"] and "ended" not in killed, "a killed service leaves a file that grows old"

    assert service.end_once(lambda: (said(health).get("lag"), copied()) == (0, ROWS)) == 0, service.errors
    ended = said(health)
    assert ended["ok"] and ended["ended"] and ended["pid"] != killed["pid"] and ended["at"] > killed["at"]
    assert ended["progress_at"] <= ended["at"] and ended["rows"] == service.summary["rows"] <= ROWS
    assert parts(rig, copy) == parts(rig, given)


@pytest.mark.full
def test_asked_to_end_in_mid_batch_it_ends_in_order_and_goes_on_later(rig: Rig, tmp_path: Path) -> None:
    """ID1: with rows that were shuffled, which each batch writes under a name of its own."""
    given, copy = rig.topic("given"), rig.topic("copy", idempotency_window_ms=86_400_000)
    for first in range(0, ROWS, 5000):
        rig.client.append(given, [NewRecord({"n": n}, f"t.{n % 7}") for n in range(first, first + 5000)])
    file, health = pipeline(rig, tmp_path), tmp_path / "health.json"
    file.write_text(file.read_text().replace("SELECT data", "SELECT /*+ REPARTITION(2, data) */ data"))
    arguments = ("transform", str(file), "--health", str(health))
    service = Command(tmp_path / "process", *arguments, url=rig.url)
    assert service.end_once(lambda: rig.client.state(copy, touch=False).head_seq > 0) == 0, service.errors
    assert said(health)["ok"] and said(health)["ended"]
    assert Command(tmp_path / "process", *arguments, "--once", url=rig.url).run() == 0
    assert parts(rig, copy) == parts(rig, given)


def test_a_pipeline_that_fails_says_so_in_its_health_file(rig: Rig, tmp_path: Path) -> None:
    file, health = pipeline(rig, tmp_path), tmp_path / "health.json"
    with pytest.raises(Exception, match="there is no topic"):
        transform(rig.spark, str(file), once=True, url=rig.url, health=str(health))
    assert not said(health)["ok"] and f"there is no topic '{rig.prefix}.given'" in said(health)["error"]
    file.write_text(COPY.replace("SELECT data", "SELEKT data"))
    with pytest.raises(InvalidRequest):
        transform(rig.spark, str(file), once=True, url=rig.url, health=str(health))
    assert "steps[0].sql" in said(health)["error"]


def test_a_health_file_that_cannot_be_written_is_named(rig: Rig, tmp_path: Path) -> None:
    health = tmp_path / "none" / "health.json"
    with pytest.raises(ConfigurationError, match=r"--health is .*/none/health\.json: it cannot be written"):
        transform(rig.spark, str(pipeline(rig, tmp_path)), once=True, url=rig.url, health=str(health))
