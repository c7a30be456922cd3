"""What has arrived in a topic while a job writes into it: the server's own count, chunk by chunk.

Tasks of Spark tell what they wrote only when they end. What others write at the same time counts, too: this is for
showing progress, not for results.
"""

from typing import Final, Self

from topics.client import Client
from topics.errors import TopicNotFound
from topics.spark.servers.connection import Connection

TIMEOUT_MS: Final = 5_000


class Arrivals:
    """Records that came to a topic since `mark`. Use as a context manager."""

    def __init__(self, server: Connection, topic: str) -> None:
        self._client = Client(server.url, server.token, retries=0, timeout_ms=TIMEOUT_MS)
        self._topic = topic
        self._base: int | None = None  # None: not known, so nothing can be said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def mark(self) -> None:
        """Count from here on."""
        try:
            self._base = self._written()
        except Exception:  # a server that does not answer now may do so when the rows are written
            self._base = None

    def count(self) -> int:
        """How many came since then; 0 if that is not known."""
        return 0 if self._base is None else max(0, self._written() - self._base)

    def _written(self) -> int:
        try:
            return self._client.state(self._topic, touch=False).written_total
        except TopicNotFound:
            return 0
