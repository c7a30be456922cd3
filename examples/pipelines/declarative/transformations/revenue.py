"""Orders in, revenue per minute out: a view, a flow and a sink of a Spark Declarative Pipeline."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()

dp.create_sink("revenue", "topics", {"topic": "revenue"})


@dp.temporary_view
def orders() -> DataFrame:
    rows = spark.readStream.format("topics").option("topic", "orders").option("startingSeq", "earliest").load()
    fields = F.from_json("data", "sku STRING, price DECIMAL(12,2), at TIMESTAMP", {"mode": "FAILFAST"})
    return rows.select(fields.alias("order")).select("order.*").withWatermark("at", "1 minute")


@dp.append_flow(target="revenue")
def revenue_per_minute() -> DataFrame:
    minutes = spark.readStream.table("orders").groupBy(F.window("at", "1 minute"))
    totals = minutes.agg(F.sum("price").alias("revenue"), F.count("*").alias("orders"))
    minute = F.col("window.start").alias("minute")
    return totals.select(F.struct(minute, "revenue", "orders").alias("data"), F.lit("minute").alias("tag"))
