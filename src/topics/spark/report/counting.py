"""What a report counts of the records themselves: throughput over time, ages of jobs, dead letters by reason.

`Alone` reads exports in this process, one topic after the other, batch by batch; `OnSpark` lets Spark do it. Both give
the same numbers. Must not know: where the numbers go.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from topics.client import Client
from topics.errors import TopicNotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from topics.spark.servers.connection import Connection

AGES_MS: Final = {
    "< 1 s": 1000,
    "< 10 s": 10_000,
    "< 1 min": 60_000,
    "< 10 min": 600_000,
    "< 1 h": 3_600_000,
    "< 1 d": 86_400_000,
}
OLDER: Final = "older"
NO_TAG: Final = "(no tag)"
REASONS: Final = ("reason", "error", "cause")  # fields of a letter's meta that say why, in this order

Letter = tuple[str, str, str]  # queue, reason, deliveries


class Step(NamedTuple):
    """What was written to a topic in one step of time, and is live."""

    topic: str
    number: int
    records: int
    bytes: int


class Counting(Protocol):
    def steps(self, topics: Sequence[str], start_ms: int, step_ms: int, count: int) -> Iterator[Step]:
        """Live records by their times; what lies outside counts for the first or the last step."""

    def ages(self, topic: str, now_ms: int, without: Collection[int]) -> dict[str, int]:
        """How many records of a topic are of which age, without these seqs."""

    def letters(self, topics: Sequence[str]) -> dict[Letter, int]:
        """Letters by queue and reason: what their meta says in one of REASONS, else their tag."""


class Alone:
    """Counts in this process. `client_of` gives a client of the server that has a topic."""

    def __init__(self, client_of: Callable[[str], Client]) -> None:
        self._client_of = client_of

    def _batches(self, topic: str) -> "Iterator[pa.RecordBatch]":
        try:
            with closing(self._client_of(topic).export(topic)) as export, export:
                yield from export
        except TopicNotFound:  # deleted meanwhile
            return

    def steps(self, topics: Sequence[str], start_ms: int, step_ms: int, count: int) -> Iterator[Step]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for topic in topics:
            records: Counter[int] = Counter()
            sizes: Counter[int] = Counter()
            for batch in self._batches(topic):
                step = pc.divide(pc.subtract(batch["ts"].cast(pa.int64()), start_ms), step_ms)
                step = pc.min_element_wise(pc.max_element_wise(step, 0), count - 1)
                table = pa.table({"step": step, "size": pc.fill_null(pc.binary_length(batch["data"]), 0)})
                for row in table.group_by("step").aggregate([("size", "count"), ("size", "sum")]).to_pylist():
                    records[row["step"]] += row["size_count"]
                    sizes[row["step"]] += row["size_sum"]
            yield from (Step(topic, number, records[number], sizes[number]) for number in sorted(records))

    def ages(self, topic: str, now_ms: int, without: Collection[int]) -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        limits, found = [0, *AGES_MS.values()], Counter[str]()
        left_out = pa.array(sorted(without), pa.int64())
        for batch in self._batches(topic):
            kept = batch.filter(pc.invert(pc.is_in(batch["seq"].cast(pa.int64()), left_out)))
            age = pc.max_element_wise(pc.subtract(now_ms, kept["ts"].cast(pa.int64())), 0)
            for name, least, most in zip((*AGES_MS, OLDER), limits, (*limits[1:], None), strict=True):
                is_in = pc.greater_equal(age, least)
                found[name] += pc.sum(is_in if most is None else pc.and_(is_in, pc.less(age, most))).as_py() or 0
        return {name: found[name] for name in (*AGES_MS, OLDER)}

    def letters(self, topics: Sequence[str]) -> dict[Letter, int]:
        found: Counter[Letter] = Counter()
        for topic in topics:
            for batch in self._batches(topic):
                for tag, meta in zip(batch["tag"].to_pylist(), batch["meta"].to_pylist(), strict=True):
                    found[_letter(topic, tag, meta)] += 1
        return dict(found)


def _letter(topic: str, tag: str | None, meta: str | None) -> Letter:
    fields: Any = msgspec.json.decode(meta) if meta else {}
    fields = fields if isinstance(fields, dict) else {}
    reason = next((_text(fields[name]) for name in REASONS if fields.get(name) is not None), tag or NO_TAG)
    queue, deliveries = fields.get("$dead_letter_from", topic), fields.get("$dead_letter_deliveries", "?")
    return _text(queue), reason, _text(deliveries)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class OnSpark:
    """Lets Spark count."""

    def __init__(self, spark: "SparkSession", server: "Connection") -> None:
        self._spark = spark
        self._server = server

    def _rows(self, topics: Sequence[str], columns: str) -> "DataFrame":
        reader = self._spark.read.format("topics").schema(columns).options(**self._server.options())
        return reader.option("topics", ",".join(topics)).option("onGap", "ignore").load()

    def steps(self, topics: Sequence[str], start_ms: int, step_ms: int, count: int) -> Iterator[Step]:
        buckets = self._rows(topics, "topic STRING, ts TIMESTAMP, data STRING").selectExpr(
            "topic",
            f"least({count - 1}, greatest(0, (unix_millis(ts) - {start_ms}) div {step_ms})) AS step",
            "octet_length(data) AS size",
        )
        for row in buckets.groupBy("topic", "step").agg({"*": "count", "size": "sum"}).collect():
            yield Step(row["topic"], row["step"], row["count(1)"], row["sum(size)"])

    def ages(self, topic: str, now_ms: int, without: Collection[int]) -> dict[str, int]:
        by_age = self._rows([topic], "seq BIGINT, ts TIMESTAMP").selectExpr("seq", f"{now_ms} - unix_millis(ts) AS age")
        if without:
            by_age = by_age.where(~by_age["seq"].isin(sorted(without)))
        cases = " ".join(f"WHEN age < {limit} THEN '{name}'" for name, limit in AGES_MS.items())
        counted = by_age.selectExpr(f"CASE {cases} ELSE '{OLDER}' END AS name").groupBy("name").count().collect()
        return dict.fromkeys((*AGES_MS, OLDER), 0) | {row["name"]: row["count"] for row in counted}

    def letters(self, topics: Sequence[str]) -> dict[Letter, int]:
        reasons = ", ".join(f"get_json_object(meta, '$.{name}')" for name in REASONS)
        rows = self._rows(topics, "topic STRING, tag STRING, meta STRING").selectExpr(
            "coalesce(get_json_object(meta, \"$['$dead_letter_from']\"), topic) AS queue",
            f"coalesce({reasons}, tag, '{NO_TAG}') AS reason",
            "coalesce(get_json_object(meta, \"$['$dead_letter_deliveries']\"), '?') AS deliveries",
        )
        counted = rows.groupBy("queue", "reason", "deliveries").count().collect()
        return {(row["queue"], row["reason"], row["deliveries"]): row["count"] for row in counted}
