"""Watching streaming queries: how far they are behind, and a listener that tells a topic and Prometheus of it.

Knows the offsets of `format("topics")` and the progress that Spark reports; a query of other sources has rates and no
lag. Nothing here can fail a query: what cannot be told is a warning, once.
"""

import json
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from topics.client import Client, NewRecord
from topics.spark.runs.progress import lags_of
from topics.spark.servers.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_MS: Final = 5_000  # of a call: the next progress is not held up for long
RETRIES: Final = 1
METRICS: Final = {  # name → type and help
    "topics_spark_lag": ("gauge", "Seqs of a topic that a query has not read yet."),
    "topics_spark_rows_total": ("counter", "Rows that a query has read in this run."),
    "topics_spark_input_rows_per_second": ("gauge", "Rows that arrived per second, in the last batch."),
    "topics_spark_processed_rows_per_second": ("gauge", "Rows that were processed per second, in the last batch."),
    "topics_spark_batch": ("gauge", "Number of the last batch."),
    "topics_spark_batch_seconds": ("gauge", "Time that the last batch took."),
}


def lag(query: "StreamingQuery") -> dict[str, int]:
    """How many seqs of each topic lie above what a query has read, as of its last progress; {} before the first."""
    progress = query.lastProgress
    return {} if progress is None else lags_of(progress)


class QueryListener(StreamingQueryListener):
    """Tells of the progress of every query of a session: to a topic, a record per batch; to a file, as Prometheus text.

    A query that reads the topic itself is left out there: it would go on for ever with its own progress.
    """

    def __init__(
        self, server: Connection | None = None, topic: str | None = None, metrics_file: str | None = None
    ) -> None:
        self._topic = topic
        self._metrics_file = metrics_file
        self._client: Client | None = None
        if topic is not None:
            assert server is not None, "a topic is on a server"
            self._client = Client(server.url, server.token, retries=RETRIES, timeout_ms=TIMEOUT_MS)
        self._lock = threading.Lock()
        self._queries: dict[str, dict[str, Any]] = {}  # by run: the last progress, as it is told
        self._rows: dict[str, int] = {}  # by run
        self._warned: set[str] = set()

    # --- what Spark calls

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        told = told_of(progress)
        with self._lock:
            self._rows[told["run"]] = self._rows.get(told["run"], 0) + told["rows"]
            self._queries[told["run"]] = told
        if told["rows"]:
            self._tell(told)
        self._write_metrics()

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802
        run = str(event.runId)
        with self._lock:
            last = self._queries.pop(run, None)
            rows = self._rows.pop(run, 0)
        if last is not None:
            names = {name: last[name] for name in ("query", "id", "run", "batch", "lag")}
            self._tell({"event": "terminated", **names, "rows": rows, "error": event.exception})
        self._write_metrics()

    # --- what is told

    def _tell(self, told: Mapping[str, Any]) -> None:
        if self._client is None or self._topic is None:
            return
        if self._topic in told["lag"]:
            self._warn("loop", f"query {told['query']} reads {self._topic}, so its progress is not written there")
            return
        try:
            self._client.append(self._topic, [NewRecord(told, tag=told["query"])])
        except Exception as error:
            self._warn("topic", f"the progress of queries cannot be written to topic {self._topic}: {error}")

    def _write_metrics(self) -> None:
        if self._metrics_file is None:
            return
        with self._lock:
            text = metrics_of(list(self._queries.values()), self._rows)
            try:
                _replace(self._metrics_file, text)
            except OSError as error:
                self._warn("file", f"metrics of queries cannot be written to {self._metrics_file}: {error}")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, stacklevel=2)


def told_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """A progress of Spark in few words."""
    return {
        "event": "progress",
        "query": progress.get("name") or progress["id"],
        "id": progress["id"],
        "run": progress["runId"],
        "batch": progress["batchId"],
        "at": progress["timestamp"],
        "rows": progress.get("numInputRows") or 0,
        "input_rows_per_s": _rate(progress.get("inputRowsPerSecond")),
        "processed_rows_per_s": _rate(progress.get("processedRowsPerSecond")),
        "batch_ms": (progress.get("durationMs") or {}).get("triggerExecution", 0),
        "lag": lags_of(progress),
    }


def _rate(value: Any) -> float:
    """Spark says NaN, or nothing, if there was no time or no row."""
    return round(value, 1) if isinstance(value, int | float) and 0 <= value < float("inf") else 0.0


def metrics_of(queries: "list[dict[str, Any]]", rows: Mapping[str, int]) -> str:
    """The queries as Prometheus text, ordered by name."""
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for told in sorted(queries, key=lambda told: (told["query"], told["run"])):
        query = f'query="{_escaped(told["query"])}",run="{told["run"]}"'
        for topic, behind in sorted(told["lag"].items()):
            samples["topics_spark_lag"].append(f'{{{query},topic="{_escaped(topic)}"}} {behind}')
        for name, value in (
            ("topics_spark_rows_total", rows.get(told["run"], 0)),
            ("topics_spark_input_rows_per_second", told["input_rows_per_s"]),
            ("topics_spark_processed_rows_per_second", told["processed_rows_per_s"]),
            ("topics_spark_batch", told["batch"]),
            ("topics_spark_batch_seconds", told["batch_ms"] / 1000),
        ):
            samples[name].append(f"{{{query}}} {value}")
    lines: list[str] = []
    for name, (kind, meaning) in METRICS.items():
        if samples[name]:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{sample}" for sample in samples[name]]
    return "".join(f"{line}\n" for line in lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _replace(path: str, text: str) -> None:
    """Write a file at one stroke: whoever scrapes it sees the old text or the new one."""
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".topics-")
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
