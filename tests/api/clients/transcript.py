"""What the tests of the API share: a client that sends bytes and shows the answer, and what every answer must be.

The client opens a connection per request and blocks; the server runs in another thread or process.
"""

import json
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.testing.patience import PATIENCE_S

JSON_TYPE = "Content-Type: application/json"
PERFORMANCE = ["server_total_ms"]
WRITE_PERFORMANCE = ["server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms"]
DIFF_PERFORMANCE = ["server_total_ms", "records_scanned", "throttle_wait_ms"]
DELETE_PERFORMANCE = ["server_total_ms", "fsync_ms"]

Body = bytes | str | Mapping[str, Any] | list[Any]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def body_bytes(body: Body | None) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body, separators=(",", ":")).encode()


def request_bytes(method: str, target: str, body: Body | None = None, *headers: str) -> bytes:
    """A request; a body is JSON unless a header says otherwise (`Content-Type:` alone: no type)."""
    payload = body_bytes(body)
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    names = {header.partition(":")[0].lower() for header in headers}
    if body is not None and "content-type" not in names:
        lines.append(JSON_TYPE)
    if (body is not None or method in ("POST", "PUT")) and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(payload)}")
    lines += [header for header in headers if header != "Content-Type:"]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + payload


class Connection:
    """A blocking socket to the server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.unread = b""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bool:
        """Read on; False at EOF."""
        data = self.socket.recv(1 << 20)
        self.unread += data
        return bool(data)

    def read_until(self, end: bytes) -> bytes:
        while end not in self.unread:
            assert self.receive(), f"EOF before {end!r}, after {self.unread!r}"
        found, _, self.unread = self.unread.partition(end)
        return found

    def read_exactly(self, count: int) -> bytes:
        while len(self.unread) < count:
            assert self.receive(), f"EOF after {len(self.unread)} of {count} bytes"
        found, self.unread = self.unread[:count], self.unread[count:]
        return found

    def reply(self, *, to_head: bool = False) -> Reply:
        head = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, _ = head[0].split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in head[1:]]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), f"a header came twice: {head}"
        if status == "100":
            return self.reply(to_head=to_head)
        body = b""
        if to_head:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(self.read_until(b"\r\n"), 16):
                body += self.read_exactly(size)
                assert self.read_exactly(2) == b"\r\n"
            assert self.read_until(b"\r\n") == b""
        else:
            body = self.read_exactly(int(headers["content-length"]))
        return Reply(int(status), headers, body)


class Client:
    """Asks one server, with one key or none."""

    def __init__(self, address: tuple[str, int], key: str | None = None) -> None:
        self.address = address
        self.key = key

    def with_key(self, key: str | None) -> "Client":
        return Client(self.address, key)

    def connect(self) -> Connection:
        return Connection(self.address)

    def request(self, method: str, target: str, body: Body | None = None, *headers: str) -> bytes:
        authorization = [] if self.key is None else [f"Authorization: Bearer {self.key}"]
        return request_bytes(method, target, body, *authorization, *headers)

    def send(self, data: bytes, *, to_head: bool = False) -> Reply:
        """These bytes on a connection of their own, and the answer."""
        with self.connect() as connection:
            connection.send(data)
            return connection.reply(to_head=to_head)

    def ask(self, method: str, target: str, body: Body | None = None, *headers: str) -> Reply:
        return self.send(self.request(method, target, body, *headers), to_head=method == "HEAD")

    def get(self, target: str, *headers: str) -> Reply:
        return self.ask("GET", target, None, *headers)

    def put(self, target: str, body: Body | None = None, *headers: str) -> Reply:
        return self.ask("PUT", target, body, *headers)

    def post(self, target: str, body: Body | None = None, *headers: str) -> Reply:
        return self.ask("POST", target, body, *headers)

    def delete(self, target: str, *headers: str) -> Reply:
        return self.ask("DELETE", target, None, *headers)

    # What most tests do with a topic.

    def create(self, topic: str, **config: Any) -> dict[str, Any]:
        return ok(self.put(f"/v0/topics/{topic}", config), 201)

    def write(self, topic: str, *data: Any, **fields: Any) -> dict[str, Any]:
        """Write one record per value; the answer without its performance."""
        reply = self.post(f"/v0/topics/{topic}", {"records": [{"data": value} for value in data]} | fields)
        assert reply.status in (200, 201), reply
        return ok(reply, reply.status)

    def write_records(self, topic: str, *records: Mapping[str, Any]) -> dict[str, Any]:
        reply = self.post(f"/v0/topics/{topic}", {"records": list(records)})
        assert reply.status in (200, 201), reply
        return ok(reply, reply.status)

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> dict[str, Any]:
        return ok(self.post(f"/v0/topics/{topic}/diff", {"from_seq": from_seq} | fields))

    def data(self, topic: str, from_seq: int = 0, **fields: Any) -> list[Any]:
        return [record["data"] for record in self.diff(topic, from_seq, **fields)["records"]]

    def state(self, topic: str) -> dict[str, Any]:
        return ok(self.get(f"/v0/topics/{topic}?touch=false"))

    def metrics(self) -> dict[str, Any]:
        reply = self.get("/v0/metrics", "Accept: application/json")
        assert reply.status == 200, reply
        metrics: dict[str, Any] = reply.json
        return metrics

    def everything(self) -> tuple[Any, ...]:
        """What must be the same after a refused request: every topic, and the frames in the log."""
        listed = ok(self.get("/v0/topics?page_size=1000"))["topics"]
        return listed, self.metrics()["wal"]["frames"]


def ok(reply: Reply, status: int = 200, performance: list[str] | None = None) -> dict[str, Any]:
    """The members of a success but `performance`, which must be there (CV5, CV10, CV11)."""
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/json", reply
    answer = reply.json
    assert isinstance(answer, dict) and "error" not in answer, reply
    measured = answer.pop("performance")
    assert all(type(value) in (int, float) and value >= 0 for value in measured.values()), measured
    assert "server_total_ms" in measured, measured
    if performance is not None:
        assert sorted(measured) == sorted(performance)
    return answer


def refused(reply: Reply, status: int, code: str, detail: Any = ...) -> str:
    """Check an error answer (ER1, ER5) and give its message. `detail` None: it must be absent."""
    assert reply.status == status, reply
    if not reply.body:  # the answer to a HEAD
        return ""
    assert reply.headers["content-type"] == "application/json", reply
    answer = reply.json
    assert list(answer) == ["error"], answer
    error = answer["error"]
    assert set(error) <= {"code", "message", "detail"}, error
    assert error["code"] == code, error
    assert isinstance(error["message"], str) and error["message"], error
    if detail is None:
        assert "detail" not in error, error
    elif detail is not ...:
        assert error.get("detail") == detail, error
    if status in (429, 503):
        assert re.fullmatch(r"[1-9]\d*", reply.headers["retry-after"]), reply.headers
    return str(error["message"])


def tight(text: bytes) -> bool:
    """No blanks between the tokens of a JSON text."""
    return re.search(rb"\s", re.sub(rb'"(\\.|[^"\\])*"', b'""', text)) is None
