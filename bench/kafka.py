"""Kafka, for the figures of Spark: one broker on loopback, and Spark's connector, which `make bench-spark` installs.

The broker is its own controller (KRaft), with two partitions to a topic, and otherwise as it is by default: it
acknowledges what the page cache has, as a topic of durability `disk` does.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench import peers
from tools.jars import jars
from topics.spark import java

PARTITIONS: Final = 2
CLUSTER: Final = "dG9waWNzLWJlbmNobWFyaw"  # any sixteen bytes in base64
MEMORY: Final = "-Xmx1g"  # as Kafka's own script sets it
PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{broker},CONTROLLER://{controller}
controller.quorum.voters=1@{controller}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def is_installed() -> bool:
    return bool(jars("kafka") and jars("kafka-connector"))


def settings() -> dict[str, str]:
    """What a session of Spark needs; nothing if it is not installed."""
    return {"spark.driver.extraClassPath": os.pathsep.join(map(str, jars("kafka-connector")))} if is_installed() else {}


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """A broker and its address."""
    directory.mkdir(parents=True)
    addresses = [peers.free_address() for _ in range(2)]
    at, controller = (f"{host}:{port}" for host, port in addresses)
    file = directory / "server.properties"
    file.write_text(PROPERTIES.format(broker=at, controller=controller, logs=directory / "logs", partitions=PARTITIONS))
    program = str(java.find(os.environ).home / "bin" / "java")
    run = [program, MEMORY, "-XX:+UseG1GC", "-cp", os.pathsep.join(map(str, jars("kafka")))]
    format = [*run, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config", str(file)]
    subprocess.run(format, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    with peers.running([*run, "kafka.Kafka", str(file)], addresses[0], directory):
        yield at


def read(spark: SparkSession, address: str, topic: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.option("subscribe", topic).load()


def follow(spark: SparkSession, address: str, topic: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def write(rows: DataFrame, address: str, topic: str) -> None:
    """Rows with data and tag: a message's value and key."""
    messages = rows.selectExpr("tag AS key", "data AS value")
    messages.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()


@contextmanager
def producer(spark: SparkSession, address: str, topic: str) -> Iterator[Callable[[str], Any]]:
    """What sends one message and returns once it is acknowledged: Kafka's own producer, in the JVM of Spark."""
    jvm: Any = spark._jvm
    given = jvm.java.util.Properties()
    given.put("bootstrap.servers", address)
    for name in ("key.serializer", "value.serializer"):
        given.put(name, "org.apache.kafka.common.serialization.StringSerializer")
    client = jvm.org.apache.kafka.clients.producer.KafkaProducer(given)
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    try:
        yield lambda text: client.send(record(topic, text)).get()
    finally:
        client.close()
