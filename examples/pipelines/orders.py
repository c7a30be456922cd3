"""Orders to revenue per minute, back into a topic: runs revenue.toml on generated orders.

    topics serve &
    python -m examples.pipelines.orders

The directory `declarative` has the same pipeline as a Spark Declarative Pipeline.
"""

import argparse
from pathlib import Path

from examples.pipelines import generate
from topics.client import Client
from topics.spark import session
from topics.spark.jobs.transforming import transform

FILE = Path(__file__).parent / "revenue.toml"
COUNT = 2_000


def fill(client: Client, count: int = COUNT) -> None:
    """Append the generated orders to the topic orders."""
    orders = list(generate.orders(count))
    for start in range(0, count, 500):
        records = [{"data": order, "tag": order["sku"]} for order in orders[start : start + 500]]
        client.append("orders", records, idempotency_key=f"orders-{start}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:4000")
    run(parser.parse_args().url)


def run(url: str) -> None:
    """Fill the topic, run the pipeline, and print what it wrote."""
    spark = session.build("orders", is_short_lived=True, conf={"spark.sql.shuffle.partitions": "4"})
    try:
        with Client(url) as client:
            fill(client)
            done = transform(spark, str(FILE), once=True, url=url)
            print(f"{done.rows} orders read, {done.late} of them too late for their minute")
            for record in client.consume("revenue", follow=False):
                print(record.value if hasattr(record, "value") else record)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
