"""A real cluster: a standalone master and two workers of the PySpark package on loopback, one of which dies.

A worker dies within a task of which something is written already. That is certain, as it is stopped to be looked at,
and goes on if it is not so. So what it wrote is always there when the other worker does the task again.
"""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from tests.spark.commands import COMMAND, SPARK, environ_of_spark, java_options
from tests.spark.test_submit import where
from topics.client import Client
from topics.spark.tables.lake import Lake, checksum_of
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

PACKAGE = "org.apache.spark.deploy"
POLL_S = 0.02
MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
TASK = re.compile(r"^(.*?) task (\d+)\.\d+ in stage (\d+)\.\d+ \(TID (\d+)\)", re.MULTILINE)  # of an executor's log
WORKERS = ("one", "two")
# What an executor notes of its tasks, at once and into its own directory; the worker would hand it on some time later.
EXECUTOR_LOG = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = executor.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %m%n%ex
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = info
"""


def until(condition: Callable[[], bool], what: str, process: "subprocess.Popen[bytes]") -> None:
    waiting, waited = threading.Event(), 0.0
    while not condition():
        assert waited < PATIENCE_S, f"{what}: it takes too long"
        assert process.poll() is None, f"{what}: the process ended"
        waiting.wait(POLL_S)
        waited += POLL_S


class Task(NamedTuple):
    number: int
    stage: int
    partition: int


class Killed(NamedTuple):
    """What a worker left, and what the other one had begun before."""

    left: set[Task]
    survivor: str
    before: set[Task]


class Cluster:
    """A master and workers, each a process group of its own, so that a worker dies together with its executors."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._environ = environ_of_spark(
            directory,
            JAVA_TOOL_OPTIONS=f"{java_options()} -Djava.io.tmpdir={directory}",
            SPARK_DAEMON_MEMORY="256m",
            SPARK_LOCAL_DIRS=str(directory),
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir()
        (directory / "log4j2.properties").write_text(EXECUTOR_LOG)

    def start(self) -> None:
        """A master on a free port, and the workers one and two."""
        self._start_daemon("master", "master.Master", "--port", "0")
        until(lambda: MASTER.search(self.log("master")) is not None, "the master starts", self._processes["master"])
        self.url = MASTER.findall(self.log("master"))[0]
        for name in WORKERS:
            place = str(self.directory / name)
            self._start_daemon(name, "worker.Worker", self.url, "-c", "1", "-m", "1g", "-d", place)
        for name in WORKERS:
            until(partial(self._is_registered, name), f"worker {name} starts", self._processes[name])

    def _is_registered(self, name: str) -> bool:
        return "Successfully registered" in self.log(name)

    def _start_daemon(self, name: str, kind: str, *arguments: str) -> None:
        command = [str(SPARK / "bin" / "spark-class"), f"{PACKAGE}.{kind}", *arguments]
        self._start(name, [*command, "--host", "127.0.0.1", "--webui-port", "0"])

    def _start(self, name: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"{name}.log").open("wb") as log, (self.directory / f"{name}.out").open("wb") as out:
            self._processes[name] = process = subprocess.Popen(
                command,
                env=self._environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        return process

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    # --- jobs

    def run(self, *arguments: str) -> "Job":
        """`topics NAME …` with its tasks on the cluster; the driver runs here."""
        return Job(self, arguments[0], self._start(arguments[0], [*COMMAND, *arguments, *self._settings()]))

    def submit(self, *arguments: str) -> "Job":
        """The same under spark-submit."""
        submit = [str(SPARK / "bin" / "spark-submit"), *self._settings(), where(), *arguments]
        return Job(self, arguments[0], self._start(arguments[0], submit))

    def _settings(self) -> list[str]:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
        }
        return ["--master", self.url, *(text for item in settings.items() for text in ("--conf", "=".join(item)))]

    # --- the tasks of a worker

    def tasks(self, name: str, *, is_running: bool = False) -> set[Task]:
        """The tasks that the executor of a worker has begun, or has not ended."""
        found: dict[Task, bool] = {}
        for log in (self.directory / name).glob("app-*/*/executor.log"):
            for said, partition, stage, number in TASK.findall(log.read_text(errors="replace")):
                found[Task(int(number), int(stage), int(partition))] = said == "Running"
        return {task for task, runs in found.items() if runs or not is_running}

    def kill_at_work(self, job: "Job", has_written: Callable[[Task], bool]) -> Killed:
        """End a worker and its executor with -9, within a task that has written something."""
        victims: list[str] = []

        def is_at_work(name: str) -> bool:
            self._signal(name, signal.SIGSTOP)
            if any(map(has_written, self.tasks(name, is_running=True))):
                victims.append(name)
                return True
            self._signal(name, signal.SIGCONT)
            return False

        until(lambda: any(map(is_at_work, WORKERS)), "a worker is within a task", job.process)
        (victim,) = victims
        (survivor,) = {*WORKERS} - {victim}
        self._kill(victim)
        return Killed(self.tasks(victim, is_running=True), survivor, self.tasks(survivor))

    def check_done_again(self, killed: Killed) -> None:
        """Of each stage in which a worker left a task, the other one, which alone is there, has begun another."""
        stages = {task.stage for task in self.tasks(killed.survivor) - killed.before}
        assert killed.left and {task.stage for task in killed.left} <= stages

    # --- the end

    def _signal(self, name: str, number: int) -> None:
        os.killpg(self._processes[name].pid, number)

    def _kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)
        self._processes.pop(name).wait()

    def close(self) -> None:
        """End all that was started here; the last to go is the master."""
        for name, process in reversed(tuple(self._processes.items())):
            if process.poll() is None:
                self._kill(name)
        waiting, waited = threading.Event(), 0.0
        while left := self._left():
            assert waited < PATIENCE_S, f"processes that do not end: {left}"
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            waiting.wait(POLL_S)
            waited += POLL_S

    def _left(self) -> list[int]:
        """Processes with our HOME: PySpark puts the Python workers of an executor into a group of their own."""
        mark, found = f"HOME={self.directory}".encode(), []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        return found


class Job:
    """A job that runs; Spark's own log of it is in the HOME of the cluster."""

    def __init__(self, cluster: Cluster, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._name = name
        self._directory = cluster.directory

    def wait(self) -> dict[str, Any]:
        """To its end; the last line of its output."""
        code = self.process.wait(PATIENCE_S)
        output = (self._directory / f"{self._name}.out").read_text()
        assert code == 0, output + (self._directory / f"{self._name}.log").read_text() + self.spark_log
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        assert found["event"] == "done"
        return found

    @property
    def spark_log(self) -> str:
        return (self._directory / ".topics" / f"{self._name}.log").read_text(errors="replace")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@contextmanager
def serving(directory: Path) -> "Iterator[tuple[str, Client]]":
    with ServerProcess(directory) as server:
        url = "http://{}:{}".format(*server.address)
        with Client(url, "") as client:
            yield url, client


def commits(directory: Path) -> int:
    """How many files of a manifest or of a checkpoint have a number as their name."""
    return sum(path.stem.isdigit() for path in directory.glob("*"))


# --- archive

ARCHIVED, PER_COMMIT = 240_000, 40_000


class Texts(NamedTuple):
    """A record, in texts that are kept only if nobody decodes them and encodes them again."""

    data: str
    tag: str
    node: str
    meta: str | None

    @classmethod
    def of(cls, n: int) -> "Texts":
        data = f'{{ "n" :{n}, "e":1.{n % 10}0e+1 ,"t":"\\u00e9é\\/"}}'
        return cls(data, f"t{n % 3}", f"n{n % 2}", f'{{ "m":  {n} }}' if n % 4 else None)

    def line(self) -> bytes:
        meta = "" if self.meta is None else f',"meta":{self.meta}'
        return f'{{"data":{self.data},"tag":"{self.tag}","node":"{self.node}"{meta}}}'.encode()


def rows_of_lake(lake: Path, topic: str, epoch: int) -> pa.Table:
    """All rows, file by file; each file is as the manifest says, and there are no others."""
    files = Lake.load(str(lake)).files(topic, epoch, 1, ARCHIVED)
    assert {lake / file.path for file in files} == set(lake.rglob("*.parquet"))
    tables = []
    for file in files:
        assert checksum_of(fs.LocalFileSystem(), str(lake / file.path)) == file.xxh3
        table = pq.ParquetFile(lake / file.path).read()
        assert (table.num_rows, table["seq"][0].as_py(), table["seq"][-1].as_py()) == (file.rows, file.first, file.last)
        tables.append(table)
    return pa.concat_tables(tables)


@pytest.mark.full
def test_an_archive_on_a_cluster_is_exact_though_a_worker_dies(tmp_path: Path, cluster: Cluster) -> None:
    lake, topic = tmp_path / "lake", "orders"
    texts = [Texts.of(n) for n in range(1, ARCHIVED + 1)]

    def has_written(task: Task) -> bool:
        """Whether its part of a file is there."""
        return any(lake.glob(f"records/*/*/_temporary/*/_temporary/attempt_*_m_*_{task.number}/*.parquet"))

    with serving(tmp_path / "server") as (url, client):
        client.put_topic(topic)
        for start in range(0, ARCHIVED, 5000):
            client.append_ndjson(topic, b"\n".join(text.line() for text in texts[start : start + 5000]))
        epoch = client.state(topic).epoch
        arguments = ("archive", topic, str(lake), "--once", "--batch-records", str(PER_COMMIT), "--url", url)
        job = cluster.run(*arguments)
        until(lambda: commits(lake / "manifest") >= 2, "the first batches", job.process)
        killed = cluster.kill_at_work(job, has_written)
        assert commits(lake / "manifest") < ARCHIVED // PER_COMMIT, "the worker was killed in the middle"
        done = job.wait()
        cluster.check_done_again(killed)
        assert (done["rows"], done["lost"], done["deleted"]) == (ARCHIVED, 0, 0)
        times = [(record.seq, record.ts) for record in client.consume(topic, follow=False)]
    assert Lake.load(str(lake)).covered(topic, epoch) == [(1, ARCHIVED)]
    assert commits(lake / "manifest") == ARCHIVED // PER_COMMIT
    rows = rows_of_lake(lake, topic, epoch)
    found = zip(*(rows[name].to_pylist() for name in Texts._fields), strict=True)
    assert [Texts(*row) for row in found] == texts
    in_ms = rows["ts"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    assert list(zip(rows["seq"].to_pylist(), in_ms.to_pylist(), strict=True)) == times
    assert (set(rows["topic"].to_pylist()), set(rows["epoch"].to_pylist())) == ({topic}, {epoch})


# --- transform

COUNT, PER_BATCH, GROUPS = 360_000, 60_000, 20_000  # each group has rows in each batch
MODES = {"rows": "append", "sums": "update"}
PIPELINE = """
checkpoint = "state"
[spark]
"spark.sql.shuffle.partitions" = 1
[sources.numbers]
topic = "numbers"
schema = "n BIGINT"
minPartitions = 2
maxRecordsPerTrigger = {per_batch}
[[steps]]
name = "rows"
sql = "SELECT data.n AS n, data.n * 2 AS m, concat('g', data.n % {groups}) AS tag FROM numbers WHERE data.n % 3 != 0"
[[steps]]
name = "sums"
sql = "SELECT tag, count(*) AS n, sum(n) AS m FROM rows GROUP BY tag"
[sinks.out]
from = "{view}"
topic = "out"
mode = "{mode}"
"""

Rows = list[tuple[str, int, int]]


def transformed(view: str) -> Iterator[Rows]:
    """What comes out of each batch: its numbers, or all groups as they are then."""
    groups = {f"g{number}": (0, 0) for number in range(GROUPS)}
    for start in range(0, COUNT, PER_BATCH):
        chosen = [(f"g{n % GROUPS}", n) for n in range(start + 1, start + PER_BATCH + 1) if n % 3]
        for tag, n in chosen:
            groups[tag] = (groups[tag][0] + 1, groups[tag][1] + n)
        if view == "rows":
            yield [(tag, n, 2 * n) for tag, n in chosen]
        else:
            yield [(tag, *values) for tag, values in groups.items()]


@pytest.mark.full
@pytest.mark.parametrize("view", MODES)
def test_a_transform_submitted_to_a_cluster_writes_every_row_once_though_a_worker_dies(
    tmp_path: Path, cluster: Cluster, view: str
) -> None:
    """ID1; the rows keep the order of their source, the sums are shuffled and have a state that a worker holds."""
    file, checkpoint = tmp_path / "pipeline.toml", tmp_path / "state" / "out" / "commits"
    file.write_text(PIPELINE.format(per_batch=PER_BATCH, groups=GROUPS, view=view, mode=MODES[view]))
    batches = list(transformed(view))

    def has_written(task: Task) -> bool:
        """Whether the last record is of a batch that is not done, and of this task: one of two, or the only one."""
        head = client.state("out").head_seq
        if head <= commits(checkpoint) * len(batches[0]):
            return False
        (last,) = client.diff("out", head - 1, limit=1).records
        return view == "sums" or task.partition == (last.value["n"] - 1) % PER_BATCH // (PER_BATCH // 2)

    with serving(tmp_path / "server") as (url, client):
        client.put_topic("numbers")
        for start in range(1, COUNT + 1, 5000):
            client.append("numbers", [{"data": {"n": n}} for n in range(start, start + 5000)])
        job = cluster.submit("transform", str(file), "--once", "--url", url)
        until(lambda: commits(checkpoint) >= 2, "the first batches", job.process)
        killed = cluster.kill_at_work(job, has_written)
        assert commits(checkpoint) < len(batches), "the worker was killed in the middle"
        done = job.wait()
        cluster.check_done_again(killed)
        assert done["batches"] == len(batches)
        assert done["rows"] == COUNT or (view == "sums" and done["rows"] > COUNT), "what a shuffle reads again counts"
        records = client.consume("out", follow=False, include_tags=True)
        found = [(record.tag, record.value["n"], record.value["m"]) for record in records]
    assert len(found) == sum(map(len, batches))
    size = len(batches[0])
    for number, batch in enumerate(batches):
        assert sorted(found[number * size : (number + 1) * size]) == sorted(batch), f"batch {number}"
