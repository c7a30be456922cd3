"""Orders in, revenue per minute out: a view, a flow and a sink of a Spark Declarative Pipeline."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()
server = {"url": os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")}

dp.create_sink("revenue", "topics", {**server, "topic": "revenue"})


@dp.temporary_view
def orders() -> DataFrame:
    reader = spark.readStream.format("topics").options(**server, topic="orders", startingSeq="earliest")
    fields = F.from_json("data", "sku STRING, price DECIMAL(12,2), at TIMESTAMP", {"mode": "FAILFAST"})
    return reader.load().select(fields.alias("order")).select("order.*").withWatermark("at", "1 minute")


@dp.append_flow(target="revenue")
def revenue_per_minute() -> DataFrame:
    minutes = spark.readStream.table("orders").groupBy(F.window("at", "1 minute"))
    totals = minutes.agg(F.sum("price").alias("revenue"), F.count("*").alias("orders"))
    minute = F.col("window.start").alias("minute")
    return totals.select(F.struct(minute, "revenue", "orders").alias("data"), F.lit("minute").alias("tag"))
