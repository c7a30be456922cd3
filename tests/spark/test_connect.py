"""A Spark Connect server, as a process of its own: the jobs run on it, but for what it cannot do."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.spark.commands import SPARK, environ_of_spark, free_port
from tests.spark.test_cluster import until
from topics.client import Client
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

# One session for all jobs, in a process whose only Spark is that server.
JOBS = """
import json, sys
from topics.errors import InvalidRequest
from topics.spark import session
from topics.spark.jobs import archiving, auditing, exporting, importing, replaying, reporting, transforming
from topics.spark.servers.connection import Connection

url, remote, place = sys.argv[1:]
spark = session.build("jobs", remote=remote)
server, lake = Connection(url=url), f"{place}/lake"
done = {"is_connected": session.is_connected(spark), "zone": spark.conf.get("spark.sql.session.timeZone")}
source = importing.Source(path=f"{place}/numbers.ndjson")
done["import"] = importing.import_(spark, source, "numbers", server=server, state=f"{place}/jobs").rows
plan = archiving.Plan(selection="numbers", server=server, is_once=True)
done["archive"] = archiving.archive(spark, plan, lake).rows
wanted = exporting.Wanted(selection="numbers", archive=lake)
done["export"] = exporting.export(spark, wanted, f"{place}/out", server=server, format="ndjson").rows
history = replaying.History(topic="numbers")
done["replay"] = replaying.replay(spark, lake, history, "again", server=server, state=f"{place}/jobs").rows
done["transform"] = transforming.transform(spark, f"{place}/doubled.toml", once=True, url=url).rows
done["audit"] = auditing.audit(lake, url=url, pattern="numbers", build=lambda: spark).is_sound
done["report"] = sum(reporting.report(spark, f"{place}/r.html", url=url, seconds=0).records["numbers"])
try:
    transforming.transform(spark, f"{place}/grouped.toml", once=True, url=url)
except InvalidRequest as error:
    done["grouped"] = str(error)
spark.stop()
print(json.dumps(done))
"""
PIPELINE = """
checkpoint = "state/{name}"
[sources.numbers]
topic = "numbers"
schema = "INT"
[[steps]]
name = "{name}"
sql = "{sql}"
[sinks.out]
from = "{name}"
topic = "{name}"
{mode}
"""


@contextmanager
def connect_server(directory: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A Connect server with two cores, a process group of its own: its address, and its process."""
    directory.mkdir(exist_ok=True)
    port, log = free_port(), directory / "connect.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(directory),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    given = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = [str(SPARK / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2,4]", *given]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            env=environ_of_spark(directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        until(lambda: "Spark Connect server started" in log.read_text(), "the Connect server starts", process)
        yield f"sc://127.0.0.1:{port}", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    with connect_server(tmp_path) as (address, _):
        yield address


def test_the_jobs_run_on_a_connect_server(remote: str, tmp_path: Path) -> None:
    """Of rows for topics, it takes those that keep their order; the rest is refused with the reason."""
    (tmp_path / "numbers.ndjson").write_text("1\n2\n3\n")
    grouped = PIPELINE.format(name="grouped", sql="SELECT count(*) AS n FROM numbers", mode='mode = "complete"')
    (tmp_path / "grouped.toml").write_text(grouped)
    doubled = PIPELINE.format(name="doubled", sql="SELECT data * 2 AS n FROM numbers", mode="")
    (tmp_path / "doubled.toml").write_text(doubled)
    with ServerProcess(tmp_path / "server") as server, Client("http://{}:{}".format(*server.address), "") as client:
        (tmp_path / "jobs.py").write_text(JOBS)
        answer = subprocess.run(
            [sys.executable, str(tmp_path / "jobs.py"), client.url, remote, str(tmp_path)],
            env=environ_of_spark(tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert answer.returncode == 0, answer.stderr
        done: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        assert (done.pop("is_connected"), done.pop("zone"), done.pop("audit")) == (True, "UTC", True)
        refusal = done.pop("grouped")
        assert re.search("sink out: rows that are grouped, .* cannot be written into a topic by Spark Connect", refusal)
        assert done == dict.fromkeys(("import", "archive", "export", "replay", "transform", "report"), 3)
        values = {topic: [r.value for r in client.diff(topic).records] for topic in ("numbers", "again", "doubled")}
    assert values == {"numbers": [1, 2, 3], "again": [1, 2, 3], "doubled": [{"n": n} for n in (2, 4, 6)]}
