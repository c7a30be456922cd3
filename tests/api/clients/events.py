"""A client of event streams that reads bytes: what the tests of watch and work share. It blocks.

Over HTTP/1.1 a chunk must hold whole frames, for a frame is flushed at once; over HTTP/2 httpx reads.
"""

import json
import socket
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.api.clients.transcript import Client, Connection, Reply, ok
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

EVENTS = "Accept: text/event-stream"
RETRY = b"retry: 2000"


class Event(NamedTuple):
    """A frame: `kind` is its event, or `comment`."""

    kind: str
    data: Any
    id: str | None
    raw: bytes

    @property
    def at(self) -> dict[str, Any]:
        """The cursors in its id, and `$epochs` if it has them."""
        assert self.id is not None, self
        return decoded(self.id)

    @property
    def payloads(self) -> list[Any]:
        """The data of its records."""
        assert self.kind == "record", self
        return [record["data"] for record in self.data["records"]]


def decoded(event_id: str) -> dict[str, Any]:
    assert "=" not in event_id
    positions: dict[str, Any] = json.loads(urlsafe_b64decode(event_id + "=" * (-len(event_id) % 4)))
    return positions


def encoded(**positions: int) -> str:
    return encoded_map(positions)


def encoded_map(positions: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(positions, separators=(",", ":")).encode()).rstrip(b"=").decode()


def parsed(block: bytes) -> Event:
    """A block without the blank line that ends it."""
    if block.startswith(b":"):
        return Event("comment", block.decode(), None, block)
    lines = block.split(b"\n")
    fields = [line.partition(b": ") for line in lines]
    assert all(name in (b"id", b"event", b"data") and separator for name, separator, _ in fields), block
    values = {name.decode(): value.decode() for name, _, value in fields}
    assert len(values) == len(lines), f"a field came twice: {block!r}"
    assert values["event"] in ("error", "stream-error") or "id" in values, block
    return Event(values["event"], json.loads(values["data"]), values.get("id"), block)


def watch(api: Client, *topics: str, **fields: Any) -> dict[str, Any]:
    """Create a session on topics from their beginning, or on `topics=` as it is."""
    body = {"topics": {name: {} for name in topics}} | fields
    return ok(api.post("/v0/watch", body))


class Stream(Connection):
    """An open event stream over HTTP/1.1."""

    def __init__(self, address: tuple[str, int], request: bytes, receive_buffer_bytes: int = 0) -> None:
        if receive_buffer_bytes:
            self.socket = socket.socket()
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.settimeout(PATIENCE_S)
            self.socket.connect(address)
            self.unread = b""
        else:
            super().__init__(address)
        self.send(request)
        self.is_ended = False
        self._blocks: list[bytes] = []

    def __enter__(self) -> "Stream":
        return self

    def head(self) -> Reply:
        """The head of the answer, which must be a stream; with what comes first in it."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines[1:]]
        headers = {name.lower(): value for name, value in pairs}
        status = int(lines[0].split(" ")[1])
        if status != 200:
            return Reply(status, headers, self.read_exactly(int(headers["content-length"])))
        assert len(headers) == len(pairs) and headers["transfer-encoding"] == "chunked", lines
        assert self._block() == RETRY
        return Reply(status, headers, b"")

    def _block(self) -> bytes:
        while not self._blocks:
            size = int(self.read_until(b"\r\n"), 16)
            chunk = self.read_exactly(size)
            assert self.read_exactly(2) == b"\r\n"
            if not size:
                self.is_ended = True
                raise EOFError("the stream has ended")
            assert chunk.endswith(b"\n\n") and b"\r" not in chunk, chunk
            self._blocks = chunk[:-2].split(b"\n\n")
        return self._blocks.pop(0)

    def next(self) -> Event:
        return parsed(self._block())

    def expect(self, kind: str) -> Event:
        event = self.next()
        assert event.kind == kind, event
        return event

    def records(self, count: int) -> list[Any]:
        """The data of the next records, over as many frames as it takes."""
        found: list[Any] = []
        while len(found) < count:
            found += self.expect("record").payloads
        assert len(found) == count, found
        return found

    def expect_end(self) -> None:
        """The stream ends here, in good order."""
        try:
            event = self.next()
        except EOFError:
            return
        raise AssertionError(f"the stream goes on with {event}")

    def expect_silence(self, server: ServerThread, heartbeat_ms: int = 15_000) -> None:
        """Nothing is under way: the next thing to come is the next heartbeat."""
        server.advance(heartbeat_ms)
        self.expect("comment")


def connect(
    api: Client, session: dict[str, Any] | str, *headers: str, query: str = "", receive_buffer_bytes: int = 0
) -> Stream:
    """Ask for a stream, and leave its answer to the caller."""
    url = session if isinstance(session, str) else session["stream_url"]
    return Stream(api.address, api.request("GET", url + query, None, *(headers or [EVENTS])), receive_buffer_bytes)


def open_stream(api: Client, session: dict[str, Any] | str, *headers: str, query: str = "") -> Stream:
    stream = connect(api, session, *headers, query=query)
    reply = stream.head()
    assert reply.status == 200, reply
    return stream


def follow(api: Client, *topics: str, **fields: Any) -> Stream:
    """A session, and its stream."""
    return open_stream(api, watch(api, *topics, **fields))


class Http2Stream:
    """An open event stream over HTTP/2."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._chunks = response.iter_raw()
        self._unread = b""
        assert self._block() == RETRY

    def _block(self) -> bytes:
        while b"\n\n" not in self._unread:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise EOFError("the stream has ended")
            self._unread += chunk
        block, _, self._unread = self._unread.partition(b"\n\n")
        return block

    def next(self) -> Event:
        return parsed(self._block())

    def expect(self, kind: str) -> Event:
        event = self.next()
        assert event.kind == kind, event
        return event


@contextmanager
def http2_stream(api: Client, session: dict[str, Any] | str, **headers: str) -> Iterator[Http2Stream]:
    url = "http://{}:{}{}".format(*api.address, session if isinstance(session, str) else session["stream_url"])
    with (
        httpx.Client(http1=False, http2=True, trust_env=False, timeout=PATIENCE_S) as client,
        client.stream("GET", url, headers={"accept": "text/event-stream"} | headers) as response,
    ):
        assert response.http_version == "HTTP/2" and response.status_code == 200, response
        yield Http2Stream(response)
