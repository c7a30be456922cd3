"""Where Spark looks for `format("topics")` by itself: it imports every `pyspark_*` and takes its `DefaultSource`."""

from topics.spark.source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
