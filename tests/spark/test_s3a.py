"""Lake and checkpoint on an object store by Spark's own s3a: a real S3 server, killed with -9 in their midst."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.commands import Command
from tests.spark.s3 import S3, is_installed, s3
from topics.client import Client, NewRecord
from topics.spark.tables.lake import Lake
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess

pytestmark = [pytest.mark.full, pytest.mark.skipif(not is_installed(), reason="there is no S3 server: make jars")]

Row = tuple[Any, ...]
COUNT = 40_000
PER_BATCH = 5_000

# Sets up a session as any user of s3a does, and runs what follows.
SESSION = """
import json, sys
import topics.spark
from topics.spark import session

url, place, lake, conf = sys.argv[1:5]
conf = {"spark.local.dir": place, "spark.sql.shuffle.partitions": "2", **json.loads(conf)}
spark = session.build("s3a", master="local[2,4]", is_short_lived=True, log_file=f"{place}/spark.log", conf=conf)
"""
# The lake alone, and with the server.
TABLES = """
for source in (None, url):
    rows = topics.spark.table(spark, "t", lake=lake, url=source)
    execution = rows._jdf.queryExecution()
    plan = execution.toString() + execution.analyzed().prettyJson() + execution.stringWithStats()
    assert "FileScan parquet" in plan and "s3a://bucket/lake" in plan, plan
    assert "SECRET" not in plan, plan
    rows = rows.selectExpr("seq", "data", "meta", "tag", "node", "unix_millis(ts)")
    print(json.dumps([list(row) for row in rows.collect()]))
"""
JOBS = """
from topics.spark.jobs import exporting, importing, replaying
from topics.spark.servers.connection import Connection
from topics.spark.tables.formats import Mapped

server, inside = Connection(url=url), lambda name: lake.replace("/lake?", f"/{name}?")
wanted = exporting.Wanted(selection="t")
print(exporting.export(spark, wanted, inside("out"), server=server, format="parquet").rows)
mapped = Mapped(data="data", tag="tag", node="node", meta="meta")
source = importing.Source(path=inside("out").replace("s3a://", "s3://"), mapped=mapped, is_ordered=True)
print(importing.import_(spark, source, "imported", server=server, state=place).rows)
print(replaying.replay(spark, lake, replaying.History(topic="t"), "replayed", server=server, state=place).rows)
"""
QUERY = """
rows = spark.readStream.format("topics").options(
    url=url, topic="t", startingSeq="earliest", maxRecordsPerTrigger=2_000, minPartitions=2
).load().select("data", "tag", "node", "meta")
writer = rows.writeStream.format("topics").options(url=url, topic="out", checkpointLocation="s3a://bucket/checkpoint")
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
print("done")
"""


class Scene:
    """A server with a topic, an S3 server, and what is run against both."""

    def __init__(self, directory: Path, client: Client, store: S3) -> None:
        self.directory = directory
        self.client = client
        self.store = store
        self.lake = store.uri("lake")
        self._runs = 0

    def fill(self, count: int, start: int = 1) -> None:
        for first in range(start, start + count, 5000):
            numbers = range(first, min(first + 5000, start + count))
            self.client.append("t", [record(n) for n in numbers])

    def rows(self, topic: str = "t") -> list[Row]:
        """The truth: what the server has."""
        with self.client.export(topic) as export:
            found = [row for batch in export for row in batch.to_pylist()]
        names = ("seq", "data", "meta", "tag", "node")
        return [(*(row[name] for name in names), int(row["ts"].timestamp() * 1000)) for row in found]

    def archive(self, *arguments: str) -> Command:
        self._runs += 1
        settings = [text for item in self.store.settings().items() for text in ("--conf", "=".join(item))]
        given = ("archive", "t", self.lake, *arguments, "--batch-records", str(PER_BATCH), *settings)
        return Command(self.directory / f"run{self._runs}", *given, url=self.client.url)

    def start(self, code: str) -> "subprocess.Popen[str]":
        self._runs += 1
        place = self.directory / f"run{self._runs}"
        place.mkdir()
        conf = json.dumps(self.store.settings())
        command = [sys.executable, "-c", SESSION + code, self.client.url, str(place)]
        return subprocess.Popen([*command, self.lake, conf], stdout=subprocess.PIPE, text=True, start_new_session=True)

    def run(self, code: str) -> str:
        process = self.start(code)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        return said

    def tables(self) -> list[list[Row]]:
        """What the lake has, and what lake and server have together."""
        return [sorted(map(tuple, json.loads(line))) for line in self.run(TABLES).splitlines()]

    def commits(self) -> int:
        return len(list((self.store.bucket / "lake" / "manifest").glob("*.json")))

    def kill_s3_once(self, process: "subprocess.Popen[Any]", has_come: Callable[[], bool]) -> None:
        wait_until("it has come so far", lambda: has_come() or process.poll() is not None)
        assert process.poll() is None, "it ended before the S3 server could be killed"
        self.store.kill()


def record(n: int) -> NewRecord:
    """One of which each part matters."""
    return NewRecord({"n": n, "s": 'é"\n'}, tag=f"t.{n % 7}", node=f"n{n % 3}", meta={"m": n} if n % 2 else None)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ServerProcess(tmp_path / "server") as server, Client(server.url, "") as client, s3(tmp_path) as store:
        client.put_topic("t")
        yield Scene(tmp_path, client, store)


def test_a_lake_on_s3a_is_written_and_read_by_spark_and_follows_the_topic(scene: Scene) -> None:
    scene.fill(COUNT)
    archived = scene.rows()
    first = scene.archive("--once")
    assert first.run() == 0, first.errors
    assert first.summary["rows"] == COUNT
    scene.fill(100, COUNT + 1)
    assert scene.tables() == [archived, scene.rows()]
    health = scene.directory / "health.json"
    following = scene.archive("--follow", "--every-ms", "50", "--health", str(health))
    assert following.end_once(lambda: health.exists() and json.loads(health.read_text()).get("rows") == 100) == 0
    assert scene.tables() == [scene.rows(), scene.rows()]


def test_the_other_jobs_read_and_write_s3a(scene: Scene) -> None:
    scene.fill(1000)
    first = scene.archive("--once")
    assert first.run() == 0, first.errors
    for topic in ("imported", "replayed"):
        scene.client.put_topic(topic, idempotency_window_ms=86_400_000)
    assert scene.run(JOBS).split() == ["1000"] * 3
    assert [row[1:5] for row in scene.rows("imported")] == [row[1:5] for row in scene.rows()]
    assert [row[1:5] for row in scene.rows("replayed")] == [row[1:5] for row in scene.rows()]


@pytest.mark.parametrize("victim", ["store", "job"])
def test_killed_in_mid_archive_neither_the_s3_server_nor_the_job_costs_a_row_or_doubles_one(
    scene: Scene, victim: str
) -> None:
    scene.fill(COUNT)
    command = scene.archive("--once")
    if victim == "job":
        command.kill_once(lambda: scene.commits() >= 2)
    else:
        process = command._start()
        scene.kill_s3_once(process, lambda: scene.commits() >= 2)
        assert process.wait(PATIENCE_S) == 1
        scene.store.start()
    before = sum(entry.last - entry.first + 1 for entry in Lake.load(scene.lake).entries["t", 1])
    assert 0 < before < COUNT, "it was killed in the middle"
    again = scene.archive("--once")
    assert again.run() == 0, again.errors
    assert again.summary["rows"] == COUNT - before
    assert scene.tables() == [scene.rows(), scene.rows()]


def test_two_archives_at_once_leave_a_lake_that_is_whole(scene: Scene) -> None:
    """One of them, or each, finds that there is another, and ends; no lock keeps it away before."""
    scene.fill(COUNT)
    commands = [scene.archive("--once") for _ in range(2)]
    processes = [command._start() for command in commands]
    for process, command in zip(processes, commands, strict=True):
        assert process.wait(PATIENCE_S) == 0 or "another job writes to this lake" in command.errors, command.errors
    again = scene.archive("--once")
    assert again.run() == 0, again.errors
    assert scene.tables() == [scene.rows(), scene.rows()]
    records = scene.store.bucket / "lake" / "records"
    named = {file.path for entries in Lake.load(scene.lake).entries.values() for e in entries for file in e.files}
    assert named == {str(path.relative_to(records.parent)) for path in records.rglob("*.parquet")}


def test_killed_in_mid_query_the_s3_server_with_the_checkpoint_costs_no_row_and_doubles_none(scene: Scene) -> None:
    scene.fill(COUNT)
    scene.client.put_topic("out", idempotency_window_ms=86_400_000)
    query = scene.start(QUERY)
    scene.kill_s3_once(query, lambda: scene.client.state("out").head_seq >= 4_000)
    query.communicate(timeout=PATIENCE_S)
    assert 0 < scene.client.state("out").head_seq < COUNT, "it was killed in the middle"
    scene.store.start()
    assert scene.run(QUERY).strip() == "done"
    assert sorted(row[1:5] for row in scene.rows("out")) == sorted(row[1:5] for row in scene.rows())
