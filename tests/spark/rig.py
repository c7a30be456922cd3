"""A server and Spark side by side: what the tests say in one line each."""

import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topics.client import Client
from topics.spark.runs.progress import Progress
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess


class Rig:
    def __init__(self, spark: SparkSession, server: ServerProcess, name: str = "rig") -> None:
        self.spark = spark
        self.server = server
        self.prefix = re.sub(r"[^A-Za-z0-9._:-]+", "-", name)[:120]
        self.client = Client(self.url, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    @property
    def url(self) -> str:
        host, port = self.server.address
        return f"http://{host}:{port}"

    def topic(self, name: str = "t", count: int = 0, **config: Any) -> str:
        """A new topic of this test's own, with `count` records whose data is their seq."""
        full = f"{self.prefix}.{name}"
        self.client.put_topic(full, **config)
        self.append(full, range(1, count + 1))
        return full

    def append(self, topic: str, values: Iterable[Any]) -> None:
        values = list(values)
        for start in range(0, len(values), 5000):
            self.client.append(topic, [{"data": value} for value in values[start : start + 5000]])

    def load(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("topics").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("topics").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        options = {"url": self.url, **options}
        texts = {
            name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in options.items()
        }
        return {name: value for name, value in texts.items() if value is not None}

    def save(self, rows: DataFrame, topic: str | None, **options: Any) -> None:
        rows.write.format("topics").options(**self._options({"topic": topic, **options})).mode("append").save()

    def values(self, topic: str) -> list[Any]:
        """The data of all records of a topic, as the client reads them."""
        return [record.value for record in self.client.consume(topic, follow=False)]

    def run(self, rows: DataFrame, sink: "Collected | str", checkpoint: Path, **options: Any) -> StreamingQuery:
        """Run a stream over what there is now, into a list or a topic, to its end."""
        query = self.start(rows, sink, checkpoint, {"availableNow": True}, **options)
        assert query.awaitTermination(PATIENCE_S), "the query hangs"
        failure = query.exception()
        if failure is not None:
            raise failure
        return query

    def start(
        self, rows: DataFrame, sink: "Collected | str", checkpoint: Path, trigger: dict[str, Any], **options: Any
    ) -> StreamingQuery:
        writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).trigger(**trigger)
        if isinstance(sink, str):
            return writer.format("topics").options(**self._options({"topic": sink, **options})).start()
        return writer.foreachBatch(sink.take).start()


class Collected:
    """The batches of a stream. `wait` waits until there are enough rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self._has_more = threading.Condition()

    def take(self, rows: DataFrame, batch: int) -> None:
        found = rows.collect()
        with self._has_more:
            self.batches[batch] = found
            self._has_more.notify_all()

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def wait(self, count: int, query: StreamingQuery) -> list[Row]:
        with self._has_more:
            assert self._has_more.wait_for(lambda: len(self.rows) >= count or query.exception(), PATIENCE_S)
        assert query.exception() is None, query.exception()
        return self.rows


def seqs(rows: Sequence[Row]) -> list[int]:
    return sorted(row.seq for row in rows if row.seq is not None)


def gaps(rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    return sorted((row.gap_from, row.gap_to, row.reason) for row in rows if row.kind == "tombstone")


def said_by(failing: Any) -> str:
    """The message with which a Spark action fails."""
    with pytest.raises(Exception) as caught:
        failing()
    return str(caught.value)


class Watched(Progress):
    """A progress that is polled once, at the end of each write, and keeps what it was told."""

    def __init__(self, job: str) -> None:
        super().__init__(job, stream=io.StringIO(), is_terminal=False)
        self.seen: list[tuple[int, float | None]] = []

    @contextmanager
    def polling(self, poll: Callable[[], None]) -> Iterator[None]:
        yield
        poll()
        self.seen.append((self.rows, self.share))
