"""Under spark-submit and on a Connect server, each killed with -9 in its midst: every part of every row, once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.commands import SPARK, environ_of_spark
from tests.spark.test_connect import connect_server
from tests.spark.test_submit import where
from topics.client import Client, NewRecord
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess

pytestmark = pytest.mark.full

COUNT = 60_000
PER_BATCH = 10_000
# A copy by a stream, as somebody may write it.
COPY = """
import sys
from topics.spark import session

url, remote, checkpoint = sys.argv[1:]
spark = session.build("copy", remote=remote)
options = {"startingSeq": "earliest", "maxRecordsPerTrigger": "10000", "minPartitions": "2"}
rows = spark.readStream.format("topics").options(url=url, topic="in", **options).load()
rows = rows.select("data", "tag", "node", "meta")
writer = rows.writeStream.format("topics").options(url=url, topic="out", checkpointLocation=checkpoint)
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
print("done")
"""


def fill(client: Client) -> None:
    for first in range(0, COUNT, 5000):
        numbers = range(first, first + 5000)
        records = [
            NewRecord({"n": n, "s": 'é"\n'}, f"t.{n % 7}", f"n{n % 3}", {"m": n} if n % 2 else None) for n in numbers
        ]
        client.append("in", records)
    client.put_topic("out", idempotency_window_ms=86_400_000)


def rows(client: Client, topic: str) -> list[tuple[Any, ...]]:
    with client.export(topic) as export:
        found = [row for batch in export for row in batch.to_pylist()]
    return [(row["data"], row["tag"], row["node"], row["meta"]) for row in found]


def test_jobs_under_spark_submit_lose_and_double_nothing_though_one_is_killed(tmp_path: Path) -> None:
    lake, given = tmp_path / "lake", ["--master", "local[2,4]", "--conf", f"spark.local.dir={tmp_path}"]

    def submit(*arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(SPARK / "bin" / "spark-submit"), *given, where(), *arguments],
            env=environ_of_spark(tmp_path, TOPICS_URL=client.url),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    with ServerProcess(tmp_path / "server") as server, Client(server.url, "") as client:
        fill(client)
        archive = ("archive", "in", str(lake), "--once", "--batch-records", str(PER_BATCH))
        killed = submit(*archive)
        wait_until("two commits", lambda: killed.poll() is not None or len(list(lake.glob("manifest/*.json"))) >= 2)
        assert killed.poll() is None, "it ended before it could be killed"
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert len(list(lake.glob("manifest/*.json"))) < COUNT // PER_BATCH, "it was killed in the middle"
        assert submit(*archive).wait(PATIENCE_S) == 0
        assert submit("replay", str(lake), "out", "--from", "in").wait(PATIENCE_S) == 0
        assert rows(client, "out") == rows(client, "in")


def test_a_stream_on_a_connect_server_loses_and_doubles_nothing_though_that_is_killed(tmp_path: Path) -> None:
    """ID1"""

    def start(remote: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", COPY, client.url, remote, str(tmp_path / "checkpoint")]
        return subprocess.Popen(command, env=environ_of_spark(tmp_path), stdout=subprocess.PIPE, text=True)

    with ServerProcess(tmp_path / "server") as server, Client(server.url, "") as client:
        fill(client)
        with connect_server(tmp_path / "one") as (remote, process):
            copying = start(remote)
            wait_until("a batch", lambda: copying.poll() is not None or client.state("out").head_seq > PER_BATCH)
            assert copying.poll() is None, "it ended before the server could be killed"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            copying.kill()
            copying.communicate()
        assert client.state("out").head_seq < COUNT, "it was killed in the middle"
        with connect_server(tmp_path / "other") as (remote, _):
            again = start(remote)
            said, _ = again.communicate(timeout=PATIENCE_S)
            assert (again.returncode, said.strip()) == (0, "done")
        assert sorted(rows(client, "out"), key=repr) == sorted(rows(client, "in"), key=repr)
