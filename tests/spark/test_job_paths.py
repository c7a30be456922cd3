"""The option --path of jobs: sealed records come from the files of a data directory."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.commands import Command
from tests.spark.rig import Rig, said_by
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.jobs.exporting import Wanted, export
from topics.spark.jobs.transforming import transform
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake
from topics.testing.server import ServerProcess

SEALED, HEAD = list(range(1, 11)), 14


@pytest.fixture
def own(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    """A server with ten sealed records of the topic orders, and four that are in its log only."""
    with ServerProcess(tmp_path / "server") as server:
        with Rig(spark, server) as rig:
            rig.append("orders", SEALED)
        server.stop()
        server.start()
        with Rig(spark, server) as rig:
            rig.append("orders", range(11, HEAD + 1))
            yield rig


@pytest.fixture
def copy(own: Rig, tmp_path: Path) -> str:
    """A copy of the directory, with records that the server no longer has."""
    place = tmp_path / "copy"
    shutil.copytree(own.server.data, place)
    own.client.delete_records("orders", before_seq=4)
    return str(place)


def exported(place: Path) -> list[int]:
    files = sorted(place.glob("part-*.ndjson"))
    return sorted(json.loads(line)["data"] for file in files for line in file.read_text().splitlines())


def test_an_export_takes_sealed_records_from_the_files_and_the_rest_from_the_server(
    own: Rig, copy: str, tmp_path: Path
) -> None:
    wanted = Wanted(selection="orders", first=1, path=copy)
    done = export(own.spark, wanted, str(tmp_path / "out"), server=Connection(url=own.url), format="ndjson")
    assert (done.rows, done.lost) == (HEAD - 3, 0), "what the server has deleted stays away"
    assert exported(tmp_path / "out") == list(range(4, HEAD + 1))


def test_an_export_needs_no_server_if_it_was_stopped(own: Rig, tmp_path: Path) -> None:
    """Also as a command, which then has no url."""
    path, out = str(own.server.data), tmp_path / "out"

    def run() -> None:
        export(own.spark, Wanted(selection="orders", path=path), str(out), server=None, format="ndjson")

    assert "seqs above 10, if there are any, of topic orders are not sealed" in said_by(run)
    assert own.server.stop() == 0
    run()
    assert exported(out) == list(range(1, HEAD + 1))
    arguments = ("export", "orders", str(tmp_path / "again"), "--format", "ndjson", "--path", path)
    command = Command(tmp_path / "process", *arguments, url=None, TOPICS_URL="")
    assert command.run() == 0, command.errors
    assert command.summary["rows"] == HEAD and exported(tmp_path / "again") == exported(out)


def test_an_archive_takes_sealed_records_from_the_files(own: Rig, copy: str, tmp_path: Path) -> None:
    plan = Plan(selection="orders", server=Connection(url=own.url), path=copy, is_once=True)
    done = archive(own.spark, plan, str(tmp_path / "lake"))
    assert (done.rows, done.lost, done.deleted) == (HEAD - 3, 0, 3)
    lake = Lake.load(str(tmp_path / "lake"))
    files = [file for entries in lake.entries.values() for entry in entries for file in entry.files]
    assert (min(file.first for file in files), max(file.last for file in files)) == (4, HEAD)


PIPELINE = """
checkpoint = "state"
url = "{url}"
[sources.orders]
topic = "orders"
path = "{path}"
startingSeq = 0
schema = "INT"
[[steps]]
name = "doubled"
sql = "SELECT data * 2 AS n FROM orders"
[sinks.out]
from = "doubled"
topic = "doubled"
"""


def test_a_pipeline_takes_what_is_sealed_from_the_files(own: Rig, copy: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(url=own.url, path=copy))
    done = transform(own.spark, str(tmp_path / "pipeline.toml"), once=True)
    assert done.rows == len(SEALED)
    assert [value["n"] for value in own.values("doubled")] == [n * 2 for n in SEALED]
