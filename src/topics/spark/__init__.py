"""Spark: the source and sink `format("topics")`, and the jobs that are made of it.

    topics.spark.register(spark)                    # once per session, if Spark does not find pyspark_topics by itself
    spark.read.format("topics").option("url", url).option("topic", "orders").load()

Talks to a server through `topics.client` and reads data directories through `topics.reader`. Importing this
package does not import pyspark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("topics")` known to a session."""
    from topics.spark.source import TopicsSource

    spark.dataSource.register(TopicsSource)
