"""Figures of Spark. `python -m bench.spark [--quick] [--only sinks,jobs]` prints one JSON object.

One topic of records of about 180 bytes, once as segments, once behind a server and once as Parquet (zstd) of the
same rows. Scans take all columns into Spark's null sink; `ready` is a source that does no work, the most that one
written in Python can reach. `table` is `topics.spark.table` over a lake of these records and a twentieth of all that
only the server has, just written or sealed, beside Parquet of the same rows. What is compared runs in turn, warm, and a
figure is the median of its rounds. The same figures are then taken by a Spark with one core, beside a server that may
use all; and the sink once more with Spark and the server, all processes of both, on the same core.

Kafka, where it is installed, reads and writes the same rows in turn with ours (data as the value, tag as the key). Its
latency and ours are those of a stream: from just before a write until the function of foreachBatch has the row, for
LATENCIES writes at a steady pace.

`--only` names the groups of figures that are wanted, see GROUPS.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import topics.spark
from bench import kafka, peers
from bench.processes import tree_cpu_seconds
from topics.client import Client
from topics.spark import session
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.jobs.importing import Source, import_
from topics.spark.jobs.replaying import History, replay
from topics.spark.plan import PART_RECORDS
from topics.spark.reader import freeze_modules
from topics.spark.runs.progress import Progress
from topics.spark.schema import declared
from topics.spark.servers.connection import Connection
from topics.spark.writer import WINDOW_MS
from topics.testing.server import ServerProcess

RECORDS: Final = 5_000_000
QUICK_RECORDS: Final = 50_000
ROUNDS: Final = 3
APPENDED: Final = 10_000  # records of a request
TOPIC: Final = "bench"
MEMORY: Final = "4g"
READY_ROWS: Final = 10_000  # of the batch that the source `ready` has
SINK_PARTS: Final = 8  # of the rows that are written: while some tasks read theirs, others send
NINETEEN: Final = 19  # of twenty rows are in the lake that `table` reads
SIDES: Final = ("server", "spark")  # whose processor time a sink takes
COMPARED: Final = 1_000_000  # rows that Kafka and we read and write
LATENCIES: Final = 600
WARMING: Final = 50  # writes before, which do not count
PACE_S: Final = 0.02  # between writes
GROUPS: Final = ("scans", "sinks", "jobs", "table", "kafka", "one", "pinned")  # of figures
RATIOS: Final = {
    "segments_to_parquet": ("segments_per_s", "parquet_per_s"),
    "ready_to_parquet": ("ready_per_s", "parquet_per_s"),
    "table_to_parquet": ("table_per_s", "beside_per_s"),
    "fresh_table_to_parquet": ("fresh_table_per_s", "fresh_beside_per_s"),
    "sink_to_null": ("sink_per_s", "null_per_s"),
    "scan_to_kafka": ("topics_scan_per_s", "kafka_scan_per_s"),
    "sink_to_kafka": ("topics_sink_per_s", "kafka_sink_per_s"),
    "segments_cores_ratio": ("segments_per_s", "one_segments_per_s"),
    "http_cores_ratio": ("http_per_s", "one_http_per_s"),
    "sink_cores_ratio": ("sink_per_s", "one_sink_per_s"),
    "sink_pinned_ratio": ("sink_per_s", "pinned_sink_per_s"),
}


def line(n: int) -> str:
    """A record's data, about 180 bytes with the rest of it."""
    return json.dumps(
        {"order": n, "sku": f"sku-{n % 9973:05}", "price": n % 1000 / 4, "at": 1_760_000_000_000 + n, "note": "x" * 70}
    )


def fill(url: str, start: int, stop: int) -> None:
    """Append the records of these numbers, whose seqs are one more."""
    with Client(url, "") as client:
        client.put_topic(TOPIC)
        for first in range(start, stop, APPENDED):
            numbers = range(first, min(first + APPENDED, stop))
            columns = {
                "data": [line(n) for n in numbers],
                "tag": [f"eu.{n % 7}" for n in numbers],
                "node": [f"till-{n % 50}" for n in numbers],
            }
            client.append_arrow(TOPIC, pa.table(columns))


def timed(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turn(rounds: int, **actions: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, one after the other in every round; the first time of each is not counted."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            seconds = timed(action)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def drained(rows: DataFrame) -> None:
    """Take all rows with all columns, to nowhere."""
    rows.write.format("noop").mode("overwrite").save()


class Ready(DataSource):
    """A source that yields one batch again and again, in as many tasks as a scan of as many records has."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return declared(includes_meta=True, has_gaps=False)

    def reader(self, schema: StructType) -> "ReadyReader":
        return ReadyReader(self.options["file"], int(self.options["records"]))


class ReadyReader(DataSourceReader):
    def __init__(self, file: str, records: int) -> None:
        self._file = file
        self._records = records

    def partitions(self) -> Sequence[InputPartition]:
        starts = range(0, self._records, PART_RECORDS)
        return [InputPartition(min(PART_RECORDS, self._records - start)) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self._file) as file, pa.ipc.open_stream(file) as reader:
            batch = reader.read_next_batch()
        for start in range(0, partition.value, READY_ROWS):
            yield batch.slice(0, min(READY_ROWS, partition.value - start))
        freeze_modules()


class Bench:
    """A session on so many cores, the data, and a server."""

    def __init__(self, cores: int, url: str, pid: int, place: Path, records: int) -> None:
        self._url = url
        self._pid = pid  # of the server
        self._place = place
        self._records = records
        self._cores = cores
        self._topics = 0
        self._batch = place / "ready.arrow"
        self._lake = str(place / "lake")
        self.startup_s = timed(lambda: self._start(cores))

    def _start(self, cores: int) -> None:
        conf = {"spark.driver.memory": MEMORY, "spark.local.dir": str(self._place), **kafka.settings()}
        self.spark: SparkSession = session.build("bench", master=f"local[{cores},4]", conf=conf)
        self.spark.range(1).collect()
        self.spark.dataSource.register(Ready)

    def segments(self, ending: int | None = None) -> DataFrame:
        reader = self.spark.read.format("topics").option("path", str(self._place / "server" / "data"))
        reader = reader.option("topic", TOPIC).option("endingSeq", ending or self._records)
        return reader.option("minPartitions", self._cores).load()

    def parquet(self, *others: str) -> DataFrame:
        return self.spark.read.parquet(*(f"file://{self._place}/{name}" for name in ("parquet", *others)))

    def ready(self) -> DataFrame:
        return self.spark.read.format("ready").option("file", str(self._batch)).option("records", self._records).load()

    def _write_batch(self) -> None:
        """Rows of the topic, for the source `ready`."""
        batch = self.segments(min(READY_ROWS, self._records)).toArrow().combine_chunks().to_batches()[0]
        with pa.OSFile(str(self._batch), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)

    def served(self, ending: int | None = None) -> DataFrame:
        reader = self.spark.read.format("topics").option("url", self._url).option("topic", TOPIC)
        return reader.option("minPartitions", 2).option("endingSeq", ending or self._records).load()

    def sink(self, format: str) -> None:
        """Rows that are there already, so that the sink is what is measured."""
        rows = self._cached
        writer = rows.write.format(format)
        if format == "topics":
            writer = writer.option("url", self._url).option("topic", self.fresh("sink")).mode("append")
        else:
            writer = writer.mode("overwrite")
        writer.save()

    def fresh(self, name: str) -> str:
        """A new topic that remembers keys."""
        topic = self._named(name)
        with Client(self._url, "") as client:
            client.put_topic(topic, idempotency_window_ms=WINDOW_MS)
        return topic

    def write_parquet(self) -> None:
        """The rows of the topic as Parquet, which other figures read."""
        self.segments().write.option("compression", "zstd").parquet(f"file://{self._place}/parquet")

    def scans(self, rounds: int) -> dict[str, float]:
        """All rows, to nowhere."""
        self._write_batch()
        scans = in_turn(
            rounds,
            segments=lambda: drained(self.segments()),
            ready=lambda: drained(self.ready()),
            parquet=lambda: drained(self.parquet()),
            http=lambda: drained(self.served()),
        )
        return {f"{name}_per_s": self._records / seconds for name, seconds in scans.items()}

    def sinks(self, rounds: int) -> dict[str, float]:
        """Rows of the Parquet files, written to topics and to nowhere."""
        taken = min(self._records, 1_000_000)
        rows = self.parquet().limit(taken).select("data", "tag", "node").repartition(SINK_PARTS)
        self._cached = rows.cache()
        self._cached.count()
        sinks = in_turn(rounds, sink=lambda: self.sink("topics"), null=lambda: self.sink("noop"))
        before = self._cpu_seconds()
        self.sink("topics")
        costs = [after - begun for after, begun in zip(self._cpu_seconds(), before, strict=True)]
        self._cached.unpersist()
        figures = {f"{name}_per_s": taken / seconds for name, seconds in sinks.items()}
        return figures | {f"sink_{side}_us": s / taken * 1e6 for side, s in zip(SIDES, costs, strict=True)}

    def _cpu_seconds(self) -> tuple[float, float]:
        """Of the server, and of Spark with its workers."""
        return tree_cpu_seconds(self._pid), tree_cpu_seconds(self._java())

    def _java(self) -> int:
        return int(self.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def archive(self, progress: Progress) -> float:
        """The seconds that it takes to archive the topic."""
        plan = Plan(selection=TOPIC, server=Connection(url=self._url), is_once=True)
        return timed(lambda: archive(self.spark, plan, self._lake, progress=progress))

    def jobs(self) -> dict[str, float]:
        server = Connection(url=self._url)
        source = self._place / "import"
        source.mkdir()
        for part in range(4):
            numbers = range(part * self._records // 4, (part + 1) * self._records // 4)
            with (source / f"{part}.ndjson").open("w") as file:
                file.writelines(line(n) + "\n" for n in numbers)
        topic, state = self.fresh("import"), str(self._place / "state")
        with Progress("bench", stream=sys.stderr, is_terminal=False) as progress:
            archived = self.archive(progress)
            imported = timed(
                lambda: import_(
                    self.spark, Source(path=str(source)), topic, server=server, state=state, progress=progress
                )
            )
            again, history = self.fresh("replay"), History(topic=TOPIC)
            replayed = timed(
                lambda: replay(self.spark, self._lake, history, again, server=server, state=state, progress=progress)
            )
        seconds = {"archive": archived, "import": imported, "replay": replayed}
        return {f"{name}_per_s": self._records / taken for name, taken in seconds.items()}

    def history(self, rounds: int, server: ServerProcess) -> dict[str, float]:
        """The table, when the lake of `jobs` has NINETEEN of twenty rows, beside Parquet of all of them: with the rest
        just written, so that the server has it in memory, and with the rest sealed, as it is after a minute."""
        if not Path(self._lake).exists():
            with Progress("bench", stream=sys.stderr, is_terminal=False) as progress:
                self.archive(progress)
        whole = self._records + self._records // NINETEEN
        fill(self._url, self._records, whole)
        newer = self.served(whole).where(f"seq > {self._records}")
        newer.write.option("compression", "zstd").parquet(f"file://{self._place}/newer")
        fresh = {f"fresh_{name}": figure for name, figure in self._tables(rounds, whole).items()}
        server.stop()
        server.start()
        self._url, self._pid = server.url, server.pid
        return fresh | self._tables(rounds, whole)

    def _tables(self, rounds: int, whole: int) -> dict[str, float]:
        scans = in_turn(
            rounds,
            table=lambda: drained(topics.spark.table(self.spark, TOPIC, lake=self._lake, url=self._url)),
            beside=lambda: drained(self.parquet("newer")),
        )
        return {f"{name}_per_s": whole / seconds for name, seconds in scans.items()}

    # --- beside Kafka

    def compared(self, rounds: int, address: str | None) -> dict[str, float]:
        """Scan, sink and latency, ours and Kafka's in turn; ours alone without a broker."""
        taken = min(self._records, COMPARED)
        self._cached = self.parquet().limit(taken).select("data", "tag", "node").repartition(2).cache()
        self._cached.count()
        sinks: dict[str, Callable[[], Any]] = {"topics_sink": lambda: self.sink("topics")}
        scans: dict[str, Callable[[], Any]] = {"topics_scan": lambda: drained(self.served(taken))}
        if address is not None:
            sinks["kafka_sink"] = lambda: kafka.write(self._cached, address, self._named("sink"))
            kafka.write(self._cached, address, "scan")
            scans["kafka_scan"] = lambda: drained(kafka.read(self.spark, address, "scan"))
        seconds = in_turn(rounds, **scans) | in_turn(rounds, **sinks)
        self._cached.unpersist()
        return {f"{name}_per_s": taken / found for name, found in seconds.items()} | self._latencies(rounds, address)

    def _latencies(self, rounds: int, address: str | None) -> dict[str, float]:
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            times.setdefault("topics", []).extend(self._our_latencies())
            if address is not None:
                times.setdefault("kafka", []).extend(self._latencies_of_kafka(address))
        return {
            f"{name}_p{percent}_ms": statistics.quantiles(found, n=100, method="inclusive")[percent - 1] * 1000
            for name, found in times.items()
            for percent in (50, 90, 99)
        }

    def _our_latencies(self) -> list[float]:
        topic = self.fresh("latency")
        reader = self.spark.readStream.format("topics").option("url", self._url).option("topic", topic)
        rows = reader.option("startingSeq", "earliest").load().selectExpr("data AS text")
        with Client(self._url, "") as client:
            return latencies(rows, lambda text: client.append(topic, [{"data": int(text)}]), self._place / topic)

    def _latencies_of_kafka(self, address: str) -> list[float]:
        topic = self._named("latency")
        with kafka.producer(self.spark, address, topic) as send:
            send("-1")  # creates the topic
            rows = kafka.follow(self.spark, address, topic).selectExpr("CAST(value AS STRING) AS text")
            return latencies(rows, send, self._place / f"kafka-{topic}")

    def _named(self, name: str) -> str:
        self._topics += 1
        return f"{name}-{os.getpid()}-{self._topics}"

    def memory(self) -> dict[str, float]:
        """The most that the JVM and the largest of its Python workers have had."""
        pid = self._java()
        workers = [peak_bytes(child) for child in below(pid)]
        return {"jvm_mib": peak_bytes(pid) / 2**20, "worker_mib": max(workers, default=0) / 2**20}


def latencies(rows: DataFrame, send: Callable[[str], Any], checkpoint: Path) -> list[float]:
    """Seconds from each write to the batch with its row; `rows` has the text of each write."""
    sent: dict[int, float] = {}
    arrived: dict[int, float] = {}
    has_more = threading.Condition()

    def take(batch: DataFrame, _: int) -> None:
        found = [int(row.text) for row in batch.collect()]
        now = time.perf_counter()
        with has_more:
            arrived.update((n, now) for n in found if n not in arrived)
            has_more.notify_all()

    def wait_for(n: int) -> None:
        with has_more:
            assert has_more.wait_for(lambda: n in arrived or query.exception(), peers.PATIENCE_S * 10), "it hangs"
        if failure := query.exception():
            raise failure

    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", f"file://{checkpoint}").start()
    try:
        send("0")
        wait_for(0)  # what comes before the first batch is the start of the query
        begun = time.perf_counter()
        for n in range(1, WARMING + LATENCIES + 1):
            time.sleep(max(0.0, begun + n * PACE_S - time.perf_counter()))
            sent[n] = time.perf_counter()
            send(str(n))
        wait_for(WARMING + LATENCIES)
    finally:
        query.stop()
    return [arrived[n] - at for n, at in sent.items() if n > WARMING]


def peak_bytes(pid: int) -> int:
    try:
        for text in Path(f"/proc/{pid}/status").read_text().splitlines():
            if text.startswith("VmHWM:"):
                return int(text.split()[1]) * 1024
    except FileNotFoundError:  # it has ended
        pass
    return 0


def below(pid: int) -> list[int]:
    """The processes that descend from one."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [deeper for child in found for deeper in below(child)]


def on_one_core(kind: str, url: str, pid: int, place: Path, records: int, rounds: int) -> dict[str, float]:
    """The same in a process of its own: a JVM has its number of cores for life. `kind` is "one" or "pinned"."""
    command = [sys.executable, "-m", "bench.spark", f"--{kind}", url, str(pid), str(place), str(records), str(rounds)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return {f"{kind}_{name}": value for name, value in figures.items()}


def pin(pid: int, cores: set[int]) -> None:
    """Let a process and all below it run on these cores only, and what they start, too."""
    for process in (pid, *below(pid)):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for task in Path(f"/proc/{process}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), cores)


def measure(records: int, rounds: int, groups: Sequence[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        place = Path(path).absolute()
        with ServerProcess(place / "server") as server, ExitStack() as stack:
            fill(server.url, 0, records)
            server.stop()  # everything is sealed
            server.start()
            bench = Bench(2, server.url, server.pid, place, records)
            figures["startup_s"] = bench.startup_s
            bench.write_parquet()
            if "scans" in groups:
                figures |= bench.scans(rounds)
            if "sinks" in groups:
                figures |= bench.sinks(rounds)
            if "jobs" in groups:
                figures |= bench.jobs()
            if "table" in groups:
                figures |= bench.history(rounds, server)
            figures |= bench.memory()
            if "kafka" in groups:
                address = stack.enter_context(kafka.broker(place / "kafka")) if kafka.is_installed() else None
                figures |= bench.compared(rounds, address)
            bench.spark.stop()
            stack.close()
            for kind in ("one", "pinned"):
                if kind in groups:
                    figures |= on_one_core(kind, server.url, server.pid, place, records, rounds)
    ratios = {
        name: figures[over] / figures[under]
        for name, (over, under) in RATIOS.items()
        if over in figures and under in figures
    }
    return figures | ratios


def measure_on_one_core(kind: str, url: str, pid: int, place: Path, records: int, rounds: int) -> dict[str, float]:
    if kind == "one":
        bench = Bench(1, url, pid, place, records)
        figures = bench.scans(rounds) | bench.sinks(rounds)
        bench.spark.stop()
        return figures
    cores = os.sched_getaffinity(0)
    for process in (os.getpid(), pid):
        pin(process, {min(cores)})
    try:
        bench = Bench(2, url, pid, place, records)
        figures = bench.sinks(rounds)
        bench.spark.stop()
    finally:
        pin(pid, cores)
    return figures


def main() -> None:
    peers.end_on_signals()
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few records, one round")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"which figures, of {', '.join(GROUPS)}")
    parser.add_argument("--records", type=int, help=f"of the topic (default {RECORDS:,})")
    parser.add_argument("--rounds", type=int, help=f"of what is compared (default {ROUNDS})")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)  # the same program, in a process of its own
    parser.add_argument("--pinned", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    groups = options.only.split(",")
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"there are no figures {', '.join(sorted(unknown))}; use {', '.join(GROUPS)}")
    for kind in ("one", "pinned"):
        if given := getattr(options, kind):
            url, pid, place, records, rounds = given
            figures = measure_on_one_core(kind, url, int(pid), Path(place), int(records), int(rounds))
            break
    else:
        records = options.records or (QUICK_RECORDS if options.quick else RECORDS)
        figures = measure(records, options.rounds or (1 if options.quick else ROUNDS), groups)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
