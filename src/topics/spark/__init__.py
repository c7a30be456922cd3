"""Spark: the source and sink `format("topics")`, and the jobs that are made of it.

    topics.spark.register(spark)                    # once per session, if Spark does not find pyspark_topics by itself
    spark.read.format("topics").option("url", url).option("topic", "orders").load()
    topics.spark.lag(query)                         # how far a streaming query is behind
    topics.spark.listen(spark, topic="queries")     # and all of them, as records and metrics
    topics.spark.table(spark, "orders", lake="/data/lake", url=url)      # history at the speed of Parquet

Talks to a server through `topics.client` and reads data directories through `topics.reader`. Importing this
package does not import pyspark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery


def register(spark: "SparkSession") -> None:
    """Make `format("topics")` known to a session. ConfigurationError: its workers run a Python that cannot serve it."""
    from topics.spark.session import check_python
    from topics.spark.source import TopicsSource

    check_python(spark)
    spark.dataSource.register(TopicsSource)


def lag(query: "StreamingQuery") -> dict[str, int]:
    """How many seqs of each topic a streaming query has not read yet, as of its last progress."""
    from topics.spark.runs import listening

    return listening.lag(query)


def listen(
    spark: "SparkSession", *, url: str | None = None, topic: str | None = None, metrics_file: str | None = None
) -> "StreamingQueryListener":
    """Tell of the progress of all streaming queries of a session: to a topic, to a file of Prometheus text, or both.

    The server is `url` or TOPICS_URL, the token TOPICS_TOKEN. `spark.streams.removeListener` ends it.
    """
    from topics.errors import InvalidRequest
    from topics.spark.runs.listening import QueryListener
    from topics.spark.servers.connection import Connection

    if topic is None and metrics_file is None:
        raise InvalidRequest("nothing says where to tell of queries: give topic, metrics_file, or both")
    listener = QueryListener(None if topic is None else Connection.load(url).holding(topic), topic, metrics_file)
    spark.streams.addListener(listener)
    return listener


def table(spark: "SparkSession", topic: str, *, lake: str, **given: Any) -> "DataFrame":
    """A topic as one DataFrame: history from the files of a lake, the rest from the server; see `tables.history`."""
    from topics.spark.tables.history import table

    return table(spark, topic, lake=lake, **given)


def register_table(spark: "SparkSession", name: str, topic: str, *, lake: str, **given: Any) -> "DataFrame":
    """The same as a temporary view `name`, for SQL."""
    from topics.spark.tables.history import register_table

    return register_table(spark, name, topic, lake=lake, **given)
