"""A streaming driver that somebody wrote by hand is killed with -9 in the middle of a batch, and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topics.client import Client, NewRecord
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess

ROWS = 60_000
PER_BATCH = 30_000  # six chunks of the sink, so that there is a middle
DRIVER = """
import sys
from topics.spark import session

url, place = sys.argv[1:]
spark = session.build("by hand", master="local[2,4]", is_short_lived=True, conf={"spark.local.dir": place})
rows = (
    spark.readStream.format("topics")
    .options(url=url, topic="in", startingSeq="earliest", maxRecordsPerTrigger=30_000, minPartitions=2)
    .load()
    .select("data", "tag", "node", "meta")
)
writer = rows.writeStream.format("topics").options(url=url, topic="out", checkpointLocation=f"{place}/checkpoint")
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
print("done", query.exception())
"""


def start(url: str, place: Path) -> "subprocess.Popen[str]":
    """The driver, its JVM and its workers: a process group."""
    command = [sys.executable, "-c", DRIVER, url, str(place)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.full
def test_a_driver_killed_in_mid_batch_leaves_every_row_once(tmp_path: Path) -> None:
    """ID1: data, tag, node and meta, row by row."""
    place = tmp_path / "driver"
    place.mkdir()
    with ServerProcess(tmp_path / "server") as server, Client(server.url, "") as client:
        for first in range(0, ROWS, 5000):
            numbers = range(first, first + 5000)
            records = [NewRecord({"n": n}, f"t.{n % 7}", f"n{n % 3}", {"m": n} if n % 2 else None) for n in numbers]
            client.append("in", records)
        client.put_topic("out", idempotency_window_ms=86_400_000)
        killed = start(server.url, place)
        wait_until("a batch is under way", lambda: client.state("out").head_seq > 0 or killed.poll() is not None)
        assert killed.poll() is None, "it ended before it could be killed"
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        before = client.state("out").head_seq
        assert 0 < before < ROWS
        again = start(server.url, place)
        said, _ = again.communicate(timeout=PATIENCE_S)
        assert said.strip() == "done None"
        copied, given = (
            sorted(
                (r.value["n"], r.tag, r.node, r.meta_value)
                for r in client.consume(topic, follow=False, include_tags=True)
            )
            for topic in ("out", "in")
        )
    assert len(given) == ROWS and copied == given
