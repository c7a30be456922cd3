"""Lake and checkpoint on an object store by Spark's own s3a: a real S3 server, killed with -9 in their midst."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
TABLE = """
rows = topics.spark.table(spark, "t", lake=lake, url=url or None)
plan = rows._jdf.queryExecution().executedPlan().toString()
assert "parquet" in plan.lower() and "s3a://bucket/lake" in plan, plan
rows = rows.selectExpr("seq", "data", "meta", "tag", "node", "unix_millis(ts)")
print(json.dumps([list(row) for row in rows.collect()]))
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

    def start(self, code: str, url: str | None = None) -> "subprocess.Popen[str]":
        self._runs += 1
        place = self.directory / f"run{self._runs}"
        place.mkdir()
        conf = json.dumps(self.store.settings())
        command = [sys.executable, "-c", SESSION + code, self.client.url if url is None else url, str(place)]
        return subprocess.Popen([*command, self.lake, conf], stdout=subprocess.PIPE, text=True, start_new_session=True)

    def run(self, code: str, url: str | None = None) -> str:
        process = self.start(code, url)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        return said

    def table(self, url: str | None = None) -> list[Row]:
        return sorted(map(tuple, json.loads(self.run(TABLE, url).splitlines()[-1])))

    def names(self, below: str) -> Sequence[Path]:
        return sorted((self.store.bucket / below).glob("*"))

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
    first = scene.archive("--once")
    assert first.run() == 0, first.errors
    assert first.summary["rows"] == COUNT
    assert scene.table(url="") == scene.rows(), "the lake alone"
    scene.fill(100, COUNT + 1)
    assert scene.table() == scene.rows(), "the lake, and what it does not have yet"
    health = scene.directory / "health.json"
    following = scene.archive("--follow", "--every-ms", "50", "--health", str(health))
    assert following.end_once(lambda: health.exists() and json.loads(health.read_text()).get("rows") == 100) == 0
    assert scene.table(url="") == scene.rows(), "the lake alone, which has followed"


def test_killed_in_mid_archive_the_s3_server_costs_no_row_and_doubles_none(scene: Scene) -> None:
    scene.fill(COUNT)
    command = scene.archive("--once")
    process = command._start()
    scene.kill_s3_once(process, lambda: len(scene.names("lake/manifest")) >= 2)
    process.wait(PATIENCE_S)
    scene.store.start()
    before = sum(entry.last - entry.first + 1 for entry in Lake.load(scene.lake).entries["t", 1])
    assert 0 < before < COUNT, "it was killed in the middle"
    again = scene.archive("--once")
    assert again.run() == 0, again.errors
    assert again.summary["rows"] == COUNT - before
    assert scene.table(url="") == scene.rows()


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
