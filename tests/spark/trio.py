"""Three servers as one set of topics, to be killed and started again."""

import signal
from pathlib import Path
from typing import Any

import pyarrow as pa

from topics.client import Client
from topics.spark.options import read_options
from topics.spark.schema import Projection
from topics.spark.source import TopicsStreamReader
from topics.testing.patience import PATIENCE_MS
from topics.testing.server import ServerProcess

COLUMNS = [("topic", pa.string()), ("seq", pa.int64()), ("data", pa.string())]
GAPS = [("kind", pa.string()), ("gap_from", pa.int64()), ("gap_to", pa.int64()), ("reason", pa.string())]
QUICK = {"retries": "0", "timeoutMs": str(PATIENCE_MS)}


class Trio:
    """Three servers, which keep their ports over a restart."""

    def __init__(self, directory: Path) -> None:
        self.servers = [ServerProcess(directory / name).start() for name in "abc"]
        self._readers: list[TopicsStreamReader] = []
        for server in self.servers:
            server.environ["TOPICS_PORT"] = str(server.address[1])

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def put(self, n: int, topic: str, count: int) -> None:
        """More records of a topic on one server; data goes on from its head."""
        with Client(self.urls[n], "") as client:
            client.put_topic(topic)
            head = client.state(topic).head_seq
            client.append(topic, [{"data": f"{topic}-{seq}"} for seq in range(head + 1, head + count + 1)])

    def kill(self, n: int) -> None:
        self.servers[n].signal(signal.SIGKILL)
        self.servers[n].wait()

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()
        for server in self.servers:
            if server.process is not None:
                server.stop()

    def options(self, urls: list[str] | None = None, **options: Any) -> dict[str, str]:
        return {"url": ",".join(urls or self.urls), **QUICK, **options}

    def stream(self, urls: list[str] | None = None, **options: Any) -> TopicsStreamReader:
        read = read_options(self.options(urls, **{"startingSeq": "earliest", **options}), is_stream=True, environ={})
        columns = pa.schema(COLUMNS + (GAPS if read.on_gap == "record" else []))
        self._readers.append(TopicsStreamReader(read, Projection(columns)))
        return self._readers[-1]
