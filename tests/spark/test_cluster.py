"""A real cluster: a standalone master and two workers of the PySpark package on loopback, one of which dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.spark.commands import COMMAND
from tests.spark.rig import PATIENCE_S
from topics.client import Client
from topics.spark import java
from topics.spark.lake import Lake
from topics.spark.session import SHORT_LIVED
from topics.testing.server import ServerProcess

SPARK = Path(pyspark.__file__).parent
PACKAGE = "org.apache.spark.deploy"


def until(condition: Callable[[], bool], what: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
    waiting, waited = threading.Event(), 0.0
    while not condition():
        assert waited < PATIENCE_S, f"{what}: it takes too long"
        assert process is None or process.poll() is None, f"{what}: the process ended"
        waiting.wait(0.05)
        waited += 0.05


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Cluster:
    """A master and workers, each a process group of its own, so that a worker dies together with its executors."""

    def __init__(self, directory: Path) -> None:
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.directory = directory
        java.use()
        options = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.environ = {**os.environ, "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, **options}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("master", "master.Master", "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2])

    def start(self, name: str, kind: str, *arguments: str) -> None:
        command = [str(SPARK / "bin" / "spark-class"), f"{PACKAGE}.{kind}", *arguments, "--webui-port", "0"]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def add_worker(self, name: str) -> None:
        until(lambda: "elected leader" in self.log("master"), "the master starts")
        place = str(self.directory / name)
        self.start(name, "worker.Worker", self.url, "--host", "127.0.0.1", "-c", "1", "-m", "1g", "-d", place)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def wait_for_worker(self, name: str) -> None:
        until(lambda: "Successfully registered" in self.log(name), f"worker {name} starts")

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in tuple(self._processes):
            self.kill(name)


@contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    directory.mkdir()
    cluster = Cluster(directory)
    try:
        cluster.add_worker("one")
        cluster.add_worker("two")
        cluster.wait_for_worker("one")
        cluster.wait_for_worker("two")
        yield cluster
    finally:
        cluster.close()


@contextmanager
def submitted(cluster: Cluster, *arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A job whose driver runs here and whose tasks run on the cluster."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.task.maxFailures": "8",
        "spark.local.dir": str(cluster.directory),
        "spark.executor.extraJavaOptions": SHORT_LIVED,
    }
    given = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = [*COMMAND, *arguments, "--master", cluster.url, *given]
    environ = {**cluster.environ, "HOME": str(cluster.directory), "JAVA_TOOL_OPTIONS": SHORT_LIVED}
    with (cluster.directory / "job.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.full
def test_an_archive_on_a_cluster_is_exact_though_a_worker_dies(tmp_path: Path) -> None:
    count, lake, topic = 240_000, tmp_path / "lake", "orders"
    with ServerProcess(tmp_path / "server") as server, running(tmp_path / "cluster") as cluster:
        url = "http://{}:{}".format(*server.address)
        with Client(url, "") as client:
            client.put_topic(topic)
            for start in range(0, count, 5000):
                client.append(topic, [{"data": n} for n in range(start + 1, start + 5001)])
            epoch = client.state(topic).epoch
        arguments = ("archive", topic, str(lake), "--once", "--batch-records", "20000", "--url", url)
        with submitted(cluster, *arguments) as job:
            until(lambda: len(list((lake / "manifest").glob("*.json"))) >= 2, "the first batches", job)
            cluster.kill("one")
            covered = Lake.load(str(lake)).covered(topic, epoch)
            assert covered[0][1] < count, "the worker was killed in the middle"
            assert job.wait(PATIENCE_S) == 0, cluster.log("job")
        assert f'"rows": {count}, "lost": 0' in cluster.log("job")
    found = Lake.load(str(lake))
    assert found.covered(topic, epoch) == [(1, count)]
    files = [file for entry in found.entries[(topic, epoch)] for file in entry.files]
    data = [row for file in files for row in pq.read_table(lake / file.path)["data"].to_pylist()]
    assert data == [str(n) for n in range(1, count + 1)]
