"""The pages on Spark are run, in the session of the tests and against a server."""

import re
from pathlib import Path

from tests.spark.rig import Rig
from topics.spark.options import READING, WRITING, read_options

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
KAFKA = PAGE.with_name("kafka-connector.md")
# What Spark's guide to its Kafka connector has: options of reads and writes, and settings of the session.
KAFKA_OPTIONS = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "topic",
    "key",
    "value",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "spark.kafka.consumer.cache.",
    "spark.kafka.consumer.fetchedData.cache.",
    "spark.kafka.producer.cache.",
]
BLOCKS = re.compile(r"^```python skip\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_run(rig: Rig, tmp_path: Path) -> None:
    rig.append("orders", [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.0}])
    rig.client.put_topic("capped", cap_records=2)
    rig.append("capped", range(5))
    names = {"spark": rig.spark, "url": rig.url, "checkpoint": str(tmp_path)}
    for code in BLOCKS.findall(PAGE.read_text() + KAFKA.read_text()):
        if "session.build" not in code:  # there is one session in this process
            exec(code, names)
    assert rig.spark.table("seen").count() == 2
    (record,) = rig.client.diff("revenue", include_tags=True).records
    assert record.value["orders"] == 2 and record.tag == "minute"
    assert rig.values("totals") == [{"sku": "a", "total": 1.5}, {"sku": "b", "total": 2.0}]


def test_the_page_for_kafka_users_names_only_options_that_there_are() -> None:
    cells = [line.split("|")[2] for line in KAFKA.read_text().splitlines() if line.count("|") == 3]
    named = {name for cell in cells for name in re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)\b", cell)}
    assert named - {*READING, *WRITING} == {"foreachBatch"}


def test_the_page_for_kafka_users_has_every_option_of_its_connector() -> None:
    cells = [line.split("|")[1] for line in KAFKA.read_text().splitlines() if line.count("|") == 3]
    said = " ".join(cells)
    assert [option for option in KAFKA_OPTIONS if not re.search(rf"`{re.escape(option)}", said)] == []


def test_the_table_of_options_is_complete() -> None:
    rows = [
        line.split("|")[1]
        for line in PAGE.read_text().split("## Options")[1].split("##")[0].splitlines()
        if "|" in line
    ]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {*READING, *WRITING}


def test_the_defaults_of_calls_are_those_of_the_guide() -> None:
    server = read_options({"url": "http://x", "topic": "t"}, environ={}).server
    assert server is not None
    assert f"| `retries`, `timeoutMs` | {server.retries}, {server.timeout_ms} |" in PAGE.read_text()
