"""`topics transform`: declared pipelines, from topics through SQL into topics and files, each row once."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.rig import Rig
from topics.errors import InvalidRequest
from topics.spark.jobs import declaring
from topics.spark.jobs.transforming import Flow, Transformed, transform
from topics.testing.patience import PATIENCE_S


class Pipeline:
    """A pipeline file of a test, whose topics have names of the test's own."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig = rig
        self.file = directory / "pipeline.toml"

    def says(self, text: str) -> "Pipeline":
        head = f'checkpoint = "state"\nurl = "{self.rig.url}"\n'
        self.file.write_text(head + text.replace("PREFIX", self.rig.prefix))
        return self

    def run(self) -> Transformed:
        return transform(self.rig.spark, str(self.file), once=True)

    def refusal(self) -> str:
        with pytest.raises(InvalidRequest) as caught:
            self.run()
        return str(caught.value)


@pytest.fixture
def pipeline(rig: Rig, tmp_path: Path) -> Pipeline:
    return Pipeline(rig, tmp_path)


DEAR = """
[sources.orders]
topic = "PREFIX.orders"
schema = "sku STRING, price INT"

[[steps]]
name = "dear"
sql = "SELECT data.sku AS sku, data.price * 2 AS double, data.sku AS tag FROM orders WHERE data.price > 10"

[sinks.out]
from = "dear"
topic = "PREFIX.dear"
"""


def test_rows_go_through_sql_into_a_topic_in_order_and_once(rig: Rig, pipeline: Pipeline) -> None:
    orders = rig.topic("orders")
    rig.append(orders, [{"sku": f"s{n}", "price": n} for n in range(1, 21)])
    pipeline.says(DEAR)
    assert pipeline.run().rows == 20
    expected = [{"sku": f"s{n}", "double": 2 * n} for n in range(11, 21)]
    assert rig.values(f"{rig.prefix}.dear") == expected
    assert pipeline.run().rows == 0, "it goes on from its checkpoint"
    rig.append(orders, [{"sku": "new", "price": 50}])
    assert pipeline.run().rows == 1
    (*_, last) = rig.client.diff(f"{rig.prefix}.dear", include_tags=True).records
    assert (last.value, last.tag, last.seq) == ({"sku": "new", "double": 100}, "new", 11)


WINDOWS = """
[sources.orders]
topic = "PREFIX.orders"
schema = "price DECIMAL(12,2), at TIMESTAMP"
watermark = { column = "data.at", delay = "1 minute" }

[[steps]]
name = "revenue"
sql = '''
SELECT window.start AS minute, sum(data.price) AS revenue, count(*) AS orders
FROM orders GROUP BY window(at, '1 minute')
'''

[sinks.out]
from = "revenue"
topic = "PREFIX.revenue"
"""


def order(price: float, minute: int, second: int = 0) -> dict[str, Any]:
    return {"price": price, "at": f"2026-01-01T12:{minute:02}:{second:02}Z"}


def test_windows_are_written_once_their_watermark_has_passed_and_late_rows_are_told(
    rig: Rig, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = rig.topic("orders")
    rig.append(orders, [order(1.5, 0), order(2.0, 0, 59), order(4.0, 1), order(8.0, 5)])
    pipeline.says(WINDOWS)
    assert pipeline.run().late == 0
    closed = rig.values(f"{rig.prefix}.revenue")
    assert sorted(closed, key=lambda row: str(row["minute"])) == [
        {"minute": "2026-01-01T12:00:00Z", "revenue": 3.5, "orders": 2},
        {"minute": "2026-01-01T12:01:00Z", "revenue": 4.0, "orders": 1},
    ]
    rig.append(orders, [order(100.0, 0, 30), order(1.0, 9)])
    assert pipeline.run().late == 1
    assert "1 rows came later than the watermark allows" in capsys.readouterr().err
    assert [row["revenue"] for row in rig.values(f"{rig.prefix}.revenue")[2:]] == [8.0]


def test_changing_aggregates_are_written_with_each_batch(rig: Rig, pipeline: Pipeline) -> None:
    """Spark's Python sinks know no update mode."""
    orders = rig.topic("orders")
    pipeline.says(
        """
[sources.orders]
topic = "PREFIX.orders"
schema = "sku STRING"
[[steps]]
name = "counts"
sql = "SELECT data.sku AS sku, count(*) AS n FROM orders GROUP BY data.sku"
[sinks.out]
from = "counts"
topic = "PREFIX.counts"
mode = "update"
"""
    )
    for skus in (["a", "b", "a"], ["b"]):
        rig.append(orders, [{"sku": sku} for sku in skus])
        pipeline.run()
    counts = [(row["sku"], row["n"]) for row in rig.values(f"{rig.prefix}.counts")]
    assert sorted(counts[:2]) == [("a", 2), ("b", 1)] and counts[2:] == [("b", 2)]


def test_two_streams_are_joined_within_a_time(rig: Rig, pipeline: Pipeline) -> None:
    orders, payments = rig.topic("orders"), rig.topic("payments")
    pipeline.says(
        """
[sources.orders]
topic = "PREFIX.orders"
schema = "id INT, at TIMESTAMP"
watermark = { column = "data.at", delay = "1 minute" }
[sources.payments]
topic = "PREFIX.payments"
schema = "id INT, paid TIMESTAMP"
watermark = { column = "data.paid", delay = "1 minute" }
[[steps]]
name = "matched"
sql = '''
SELECT o.data.id AS id, o.seq AS order_seq, p.seq AS payment_seq FROM orders o JOIN payments p
ON o.data.id = p.data.id AND p.paid BETWEEN o.at AND o.at + INTERVAL 10 MINUTES
'''
[sinks.out]
from = "matched"
topic = "PREFIX.matched"
"""
    )
    rig.append(orders, [{"id": n, "at": f"2026-01-01T12:{n:02}:00Z"} for n in range(1, 6)])
    rig.append(payments, [{"id": 3, "paid": "2026-01-01T12:04:00Z"}, {"id": 1, "paid": "2026-01-01T13:00:00Z"}])
    pipeline.run()
    rig.append(payments, [{"id": 5, "paid": "2026-01-01T12:59:30Z"}])
    rig.append(orders, [{"id": 6, "at": "2026-01-01T13:05:00Z"}])
    rig.append(payments, [{"id": 6, "paid": "2026-01-01T13:05:01Z"}])
    pipeline.run()
    assert rig.values(f"{rig.prefix}.matched") == [
        {"id": 3, "order_seq": 3, "payment_seq": 1},
        {"id": 6, "order_seq": 6, "payment_seq": 4},
    ]


def test_a_topic_goes_into_files_and_is_joined_with_a_table(rig: Rig, pipeline: Pipeline, tmp_path: Path) -> None:
    rig.append(rig.topic("orders"), [{"sku": sku} for sku in ("a", "b", "a")])
    rig.append(rig.topic("names"), [{"sku": "a", "name": "Apple"}, {"sku": "b", "name": "Bread"}])
    (tmp_path / "prices.csv").write_text("sku,price\na,1.5\nb,2.5\n")
    pipeline.says(
        """
[sources.orders]
topic = "PREFIX.orders"
schema = "sku STRING"
[tables.names]
topic = "PREFIX.names"
schema = "sku STRING, name STRING"
[tables.prices]
format = "csv"
path = "prices.csv"
schema = "sku STRING, price DOUBLE"
options = { header = true }
[[steps]]
name = "priced"
sql = '''
SELECT o.seq, n.data.name AS name, p.price FROM orders o
JOIN names n ON o.data.sku = n.data.sku JOIN prices p ON o.data.sku = p.sku
'''
[sinks.files]
from = "priced"
path = "out"
partition_by = ["name"]
"""
    )
    pipeline.run()
    pipeline.run()
    rows = rig.spark.read.parquet(str(tmp_path / "out")).orderBy("seq").collect()
    assert [(row.seq, row.name, row.price) for row in rows] == [(1, "Apple", 1.5), (2, "Bread", 2.5), (3, "Apple", 1.5)]


def doubled(flow: Flow) -> None:
    numbers = flow.read("numbers", topic=os.environ["TEST_PREFIX"] + ".in", schema="INT")
    flow.write("out", numbers.select((F.col("data") * 2).alias("n")), topic=os.environ["TEST_PREFIX"] + ".out")


def test_a_pipeline_is_a_function_as_well(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PREFIX", rig.prefix)
    rig.topic("in", 5)
    name = f"{__name__}:doubled"
    transform(rig.spark, name, once=True, url=rig.url, checkpoint=str(tmp_path))
    assert rig.values(f"{rig.prefix}.out") == [{"n": 2 * n} for n in range(1, 6)]
    with pytest.raises(InvalidRequest, match="a checkpoint is missing"):
        transform(rig.spark, name, once=True, url=rig.url)
    with pytest.raises(InvalidRequest, match=r"has no function nothing"):
        transform(rig.spark, f"{__name__}:nothing", once=True, url=rig.url)


def test_a_pipeline_without_once_goes_on_until_it_is_ended(rig: Rig, pipeline: Pipeline) -> None:
    orders, is_over = rig.topic("orders"), threading.Event()
    dear = rig.topic("dear", idempotency_window_ms=3_600_000)
    pipeline.says('trigger = "100 milliseconds"\n' + DEAR)
    seen: list[int] = []

    def feed() -> None:
        try:
            for n in (11, 12):
                rig.append(orders, [{"sku": "x", "price": n}])
                answer = rig.client.diff(dear, n - 11, wait_ms=30_000)
                seen.extend(record.value["double"] for record in answer.records)
            (query,) = rig.spark.streams.active
            query.processAllAvailable()  # the end comes when the batch is over, and so is counted
        finally:
            is_over.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    done = transform(rig.spark, str(pipeline.file), is_over=is_over)
    feeder.join(PATIENCE_S)
    assert seen == [22, 24] and done.rows == 2


# --- killed in the middle


ROWS, PER_BATCH = 28_000, 7_000


@pytest.mark.full
@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT data AS n FROM numbers", id="in order"),
        pytest.param("SELECT /*+ REPARTITION(2, data) */ data AS n FROM numbers", id="shuffled"),
    ],
)
def test_killed_and_run_again_it_leaves_every_row_once(rig: Rig, pipeline: Pipeline, sql: str) -> None:
    """ID1"""
    rig.topic("numbers", ROWS)
    out = rig.topic("out", idempotency_window_ms=3_600_000)
    pipeline.says(
        f"""
[spark]
"spark.sql.shuffle.partitions" = 2
[sources.numbers]
topic = "PREFIX.numbers"
schema = "INT"
maxRecordsPerTrigger = {PER_BATCH}
[[steps]]
name = "passed"
sql = "{sql}"
[sinks.out]
from = "passed"
topic = "PREFIX.out"
"""
    )
    command = [sys.executable, "-m", "topics.spark.jobs", "transform", str(pipeline.file), "--once"]
    environ = {**os.environ, "TOPICS_URL": rig.url}
    first = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not (found := rig.client.diff(out, PER_BATCH, limit=1, wait_ms=5_000)).records:
        assert first.poll() is None, "it ended before it was killed"
    os.killpg(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert found.head_seq < ROWS
    again = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert json.loads(again.stdout)["event"] == "done"
    assert sorted(row["n"] for row in rig.values(out)) == list(range(1, ROWS + 1))


# --- what is wrong with a pipeline


def test_a_step_that_is_no_sql_is_named_with_what_is_wrong(pipeline: Pipeline, rig: Rig) -> None:
    rig.topic("orders")
    said = pipeline.says(DEAR.replace("data.price * 2", "data.cost * 2")).refusal()
    assert said.startswith("key steps[0].sql (dear): ") and "`cost`" in said and "\n" not in said


def test_data_that_does_not_fit_its_schema_fails_the_pipeline_unless_told_otherwise(
    pipeline: Pipeline, rig: Rig
) -> None:
    rig.append(rig.topic("orders"), [{"sku": "a", "price": 11}, "no object"])
    pipeline.says(DEAR)
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        pipeline.run()
    pipeline.says(DEAR.replace('schema = "', 'malformed = "null"\nschema = "'))
    pipeline.run()
    assert rig.values(f"{rig.prefix}.dear") == [{"sku": "a", "double": 22}]


GOOD = {
    "checkpoint": "state",
    "url": "http://x",
    "sources": {"orders": {"topic": "orders"}},
    "sinks": {"out": {"from": "orders", "topic": "copy"}},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"checkpoint": None}, "key checkpoint is missing: it names the directory that remembers how far"),
        ({"sorces": {}}, "key sorces is not known; did you mean sources?"),
        ({"sources": {}}, "key sources is missing: a pipeline has at least one"),
        ({"sources": {"orders": {"topic": "a", "tpoic": "b"}}}, "key sources.orders.tpoic is not known; did you mean"),
        ({"sources": {"orders": {}}}, "sources.orders: exactly one of the options topic, topics and topicPattern"),
        (
            {"sources": {"orders": {"topic": "a", "onGap": "cry"}}},
            "sources.orders: option onGap is 'cry': it must be one of fail, record, ignore",
        ),
        (
            {"sources": {"orders": {"topic": "a", "token": "s3cr3t"}}},
            "a token has no place in a file; set TOPICS_TOK",
        ),
        ({"sources": {"orders": {"topic": ["a"]}}}, "key sources.orders.topic is ['a']: it must be a text"),
        ({"sources": {"my-orders": {"topic": "a"}}}, "key sources.my-orders: 'my-orders' names a view"),
        (
            {"sources": {"orders": {"topic": "a", "watermark": {"column": "ts"}}}},
            "orders.watermark.delay is miss",
        ),
        ({"steps": [{"name": "s"}]}, "key steps[0].sql is missing"),
        ({"steps": [{"name": "orders", "sql": "SELECT 1"}]}, "the view orders is there already, from sources.orders"),
        ({"sinks": {"out": {"from": "ordres", "topic": "c"}}}, "'ordres': there is no such view; did you mean orders?"),
        ({"sinks": {"out": {"from": "orders", "topic": "orders"}}}, "the pipeline would process its own output"),
        ({"sinks": {"out": {"from": "orders", "path": "x", "mode": "update"}}}, "only append can be written to them"),
        ({"sinks": {"out": {"from": "orders", "path": "x", "table": "t"}}}, "a sink writes to one place"),
        ({"sinks": {"out": {"from": "orders", "topic": "c", "mode": "upsert"}}}, "one of append, update, complete"),
    ],
)
def test_a_mistake_is_named_by_its_key(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    document = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(InvalidRequest) as caught:
        declaring.declared(document, tmp_path / "p.toml", None, None)
    assert said in str(caught.value) and "s3cr3t" not in str(caught.value)


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('checkpoint = "x"\n[sources.orders\n')
    with pytest.raises(InvalidRequest, match=r"p.toml is not TOML: .* line 2"):
        declaring.load(str(tmp_path / "p.toml"))
    with pytest.raises(InvalidRequest, match=r"not-there.toml cannot be read: No such file"):
        declaring.load(str(tmp_path / "not-there.toml"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = declaring.declared(GOOD, tmp_path / "p.toml", None, None)
    assert found.checkpoint == str(tmp_path / "state") and found.name == "p"
    assert found.sources[0].options == {"topic": "orders", "url": "http://x", "startingSeq": "earliest"}
