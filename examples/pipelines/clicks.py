"""Clicks to sessions: state per user, kept by Spark between batches.

    topics serve &
    python -m examples.pipelines.clicks

A session ends when its user does not click for half an hour. SQL windows (`session_window`) can do that much. Here we
keep the state ourselves, so a session also knows where it began, where it ended and whether the user paid. As a job:

    topics transform examples.pipelines.clicks:sessions --once --checkpoint /tmp/topics-examples/clicks
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from examples.pipelines import generate
from topics.client import Client
from topics.spark import session
from topics.spark.jobs.transforming import Flow, transform

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

PAUSE_MS = 30 * 60_000
USERS = 100
STATE = "first BIGINT, last BIGINT, clicks INT, entry STRING, exit STRING, is_paid BOOLEAN"
SESSION = "user STRING, start TIMESTAMP, seconds DOUBLE, clicks INT, entry STRING, exit STRING, is_paid BOOLEAN"


def sessions(flow: Flow) -> None:
    """The pipeline: topic clicks → topic sessions."""
    clicks = flow.read(
        "clicks",
        topic="clicks",
        schema="user STRING, page STRING, at TIMESTAMP",
        watermark=("data.at", "1 minute"),
    )
    by_user = clicks.selectExpr("data.user AS user", "data.page AS page", "at").groupBy("user")
    found = by_user.applyInPandasWithState(followed, SESSION, STATE, "append", "EventTimeTimeout")
    flow.write("sessions", found.selectExpr("*", "user AS tag"), topic="sessions")


def followed(key: tuple[str], batches: "Iterator[pd.DataFrame]", state: "GroupState") -> "Iterator[pd.DataFrame]":
    """The sessions of one user that ended before one of these clicks, or by timeout."""
    import pandas as pd

    (user,) = key
    ended: list[dict[str, Any]] = []
    current = state.get if state.exists else None
    if state.hasTimedOut:
        ended.append(_session(user, current))
        state.remove()
    else:
        clicks = pd.concat(list(batches)).sort_values(["at", "page"])
        for at, page in zip(clicks["at"], clicks["page"], strict=True):
            ms = int(at.timestamp() * 1000)
            if current is not None and ms - current[1] > PAUSE_MS:
                ended.append(_session(user, current))
                current = None
            if current is None:
                current = (ms, ms, 1, page, page, page == "paid")
            else:
                first, last, count, entry, _, is_paid = current
                current = (first, max(ms, last), count + 1, entry, page, is_paid or page == "paid")
        state.update(current)
        state.setTimeoutTimestamp(max(current[1] + PAUSE_MS, state.getCurrentWatermarkMs() + 1))
    if ended:
        yield pd.DataFrame(ended)


def _session(user: str, state: Any) -> dict[str, Any]:
    import pandas as pd

    first, last, count, entry, exit, is_paid = state
    return {
        "user": user,
        "start": pd.Timestamp(first, unit="ms"),
        "seconds": (last - first) / 1000,
        "clicks": count,
        "entry": entry,
        "exit": exit,
        "is_paid": is_paid,
    }


def fill(client: Client, users: int = USERS) -> None:
    clicks = generate.clicks(users)
    for start in range(0, len(clicks), 500):
        records = [{"data": click, "tag": click["user"]} for click in clicks[start : start + 500]]
        client.append("clicks", records, idempotency_key=f"clicks-{start}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:4000")
    parser.add_argument("--checkpoint", default="/tmp/topics-examples/clicks")
    arguments = parser.parse_args()
    spark = session.build("clicks", is_short_lived=True, conf={"spark.sql.shuffle.partitions": "4"})
    try:
        with Client(arguments.url) as client:
            fill(client)
            name = "examples.pipelines.clicks:sessions"
            transform(spark, name, once=True, url=arguments.url, checkpoint=arguments.checkpoint)
            print(f"{client.state('sessions').head_seq} sessions have ended; open sessions are in the checkpoint")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
