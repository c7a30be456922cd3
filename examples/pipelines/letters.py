"""Dead-letter triage: find out what failed and why, and redrive the jobs that may succeed now.

    topics serve &
    python -m examples.pipelines.letters

A queue gives up on a job after three deliveries and moves it to its dead-letter topic. Spark reads the letters, groups
them by cause and writes a summary into the topic jobs.triage. Letters whose cause has passed (a service that was down)
are redriven, by tag; broken jobs stay for somebody to look at.
"""

import argparse
from typing import TYPE_CHECKING

from examples.pipelines import generate
from topics.client import Client, Job
from topics.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 200
DELIVERIES = 3

TRIAGE = """
SELECT tag, cause, count(*) AS letters, min(seq) AS first, max(seq) AS last
FROM (
  SELECT seq, tag, CASE
    WHEN get_json_object(data, '$.kind') = 'invoice' AND get_json_object(data, '$.amount') IS NULL THEN 'no amount'
    ELSE 'service down'
  END AS cause
  FROM letters
)
GROUP BY tag, cause
ORDER BY tag, cause
"""


def fill(client: Client, count: int = COUNT) -> None:
    client.put_topic("jobs", type="queue", max_deliveries=DELIVERIES, dead_letter="jobs.dead", lease_ms=60_000)
    records = [{"data": data, "tag": tag} for tag, data in generate.jobs(count)]
    client.append("jobs", records, idempotency_key="jobs")


def work(client: Client, *, is_smtp_up: bool) -> int:
    """Do all jobs that can be done and return their number; jobs that fail too often become letters."""
    done = 0
    while claimed := client.claim("jobs", "worker", max_jobs=50).claimed:
        good = [job for job in claimed if _succeeds(job, is_smtp_up)]
        bad = [job for job in claimed if not _succeeds(job, is_smtp_up)]
        if good:
            done += client.ack("jobs", "worker", good).acked
        if bad:
            client.nack("jobs", "worker", bad)
    return done


def _succeeds(job: Job, is_smtp_up: bool) -> bool:
    value = job.value
    return is_smtp_up if value["kind"] == "mail" else value["amount"] is not None


def triage(spark: "SparkSession", client: Client, url: str) -> dict[str, int]:
    """Group the letters by cause, write the summary, redrive what may succeed now; return the jobs redriven, by tag."""
    reader = (
        spark.read.format("topics").option("url", url).option("topic", "jobs.dead").option("startingSeq", "earliest")
    )
    reader.load().createOrReplaceTempView("letters")
    summary = spark.sql(TRIAGE)
    found = summary.collect()
    (
        summary.selectExpr("struct(*) AS data", "tag")
        .coalesce(1)
        .write.format("topics")
        .option("url", url)
        .option("topic", "jobs.triage")
        .mode("append")
        .save()
    )
    broken = {row.tag for row in found if row.cause != "service down"}
    over = {row.tag for row in found} - broken
    return {tag: client.redrive("jobs", match=tag).redriven for tag in sorted(over)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:4000")
    arguments = parser.parse_args()
    spark = session.build("letters", is_short_lived=True, conf={"spark.sql.shuffle.partitions": "4"})
    try:
        with Client(arguments.url) as client:
            fill(client)
            print(f"{work(client, is_smtp_up=False)} jobs done while smtp is down")
            redriven = triage(spark, client, arguments.url)
            print(f"{client.state('jobs.dead').count} letters stay, redriven: {redriven}")
            print(f"{work(client, is_smtp_up=True)} jobs done now that smtp is up")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
