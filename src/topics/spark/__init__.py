"""Spark: the source and sink `format("topics")`, and the jobs that are made of it.

    topics.spark.register(spark)                    # once per session, if Spark does not find pyspark_topics by itself
    spark.read.format("topics").option("url", url).option("topic", "orders").load()
    topics.spark.table(spark, "orders", lake="/data/lake", url=url)      # history at the speed of Parquet

Talks to a server through `topics.client` and reads data directories through `topics.reader`. Importing this
package does not import pyspark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("topics")` known to a session."""
    from topics.spark.source import TopicsSource

    spark.dataSource.register(TopicsSource)


def table(spark: "SparkSession", topic: str, *, lake: str, **given: Any) -> "DataFrame":
    """A topic as one DataFrame: history from the files of a lake, the rest from the server; see `tables.history`."""
    from topics.spark.tables.history import table

    return table(spark, topic, lake=lake, **given)


def register_table(spark: "SparkSession", name: str, topic: str, *, lake: str, **given: Any) -> "DataFrame":
    """The same as a temporary view `name`, for SQL."""
    from topics.spark.tables.history import register_table

    return register_table(spark, name, topic, lake=lake, **given)
