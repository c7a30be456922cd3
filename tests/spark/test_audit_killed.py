"""`topics audit`, killed in the middle: it writes nothing, so there is nothing to be left."""

from pathlib import Path

import pytest

from tests.spark.commands import Command, is_read_by_spark
from tests.spark.rig import Rig
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.jobs.auditing import audit
from topics.spark.servers.connection import Connection


def content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.full  # test_job_report.py kills another job that only reads
def test_killed_it_leaves_the_lake_as_it_was_and_run_again_it_finds_the_same(rig: Rig, tmp_path: Path) -> None:
    topic, lake = rig.topic(count=1000), tmp_path / "lake"
    archive(rig.spark, Plan(selection=topic, server=Connection(url=rig.url), is_once=True), str(lake))
    before, found = content(lake), audit(str(lake), url=rig.url, pattern=topic, spark=rig.spark)
    assert found.is_sound and found.compared[0].equal == 1000
    command = Command(tmp_path / "process", "audit", str(lake), "--topics", topic, "--json", url=rig.url)
    command.kill_once(is_read_by_spark(rig, topic))
    assert command.output == "" and content(lake) == before
    assert audit(str(lake), url=rig.url, pattern=topic, spark=rig.spark) == found
