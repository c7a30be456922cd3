"""What the client shows of the whole: topics with details and in an order, the server's history (OB1, OB2)."""

from typing import Any

import pytest

from topics.client import CursorCounts, JobCounts
from topics.errors import InvalidRequest


def test_topics_in_an_order_with_details(client: Any, topic: str) -> None:
    """OB1"""
    for number, kind in enumerate(("log", "queue", "log"), 1):
        client.put_topic(f"{topic}.{number}", {"type": kind, "durability": "memory"})
        client.append(f"{topic}.{number}", [{"data": n} for n in range(number)])
    client.put_cursor(f"{topic}.3", "c", 1)
    largest = list(client.topics(f"{topic}.", sort="-count", detail=True, page_size=1))
    assert [one.topic for one in largest] == [f"{topic}.3", f"{topic}.2", f"{topic}.1"]
    assert [(one.type, one.durability, one.lost_total) for one in largest[:2]] == [
        ("log", "memory", 0),
        ("queue", "memory", 0),
    ]
    assert largest[1].queue == JobCounts(ready=2, in_flight=0, delayed=0, dead=None, paused=False)
    assert (largest[0].queue, largest[0].cursors) == (None, CursorCounts(count=1, max_lag=2))
    assert largest[0].written_rate == 0.05 and largest[0].newest_ts is not None
    [queue] = client.topics(f"{topic}.", type="queue", durability="memory", contains=".2")
    assert (queue.topic, queue.type, queue.cursors) == (f"{topic}.2", None, None)
    with pytest.raises(InvalidRequest, match="sort is"):
        list(client.topics(sort="size"))


def test_the_servers_history(client: Any) -> None:
    """OB2"""
    answer = client.stats()
    assert answer.interval_ms == 1000
    assert all(sample.errors.server >= 0 and sample.memory_bytes > 0 for sample in answer.samples)
    assert client.stats(3_600_000).interval_ms == 10_000
