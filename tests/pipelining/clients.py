"""Clients that do not wait for an answer before they ask again: bytes out, answers in, no I/O.

    client = Http1(window=8)
    sent = client.open() + client.ask(request) + client.ask(other)
    for heard in client.receive(data): ...  # Answer or Pushed
    sent = client.owed()                    # what it has to send by itself, after `receive`

Each owns the framing of one protocol and what is in flight. An answer that nobody asked for, or one that cannot belong
to the request whose turn it is, is an AssertionError: on HTTP/1.1 and on a WebSocket answers come in order (WS9), on
HTTP/2 by stream. Must not know: what a request does, who sends the bytes.
"""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from tests.api.clients.transcript import request_bytes
from tests.api.clients.websocket import CLOSE, PING, PONG, TEXT, client_frame, handshake

MASK = b"mask"  # of all frames, so that a run is repeated byte by byte
STATUS = {
    "internal": 500,
    "topic_not_found": 404,
    "throttled": 429,
    "shutting_down": 503,
    "server_shutting_down": 503,
    "invalid_request": 400,
    "topic_full": 422,
}


@dataclass(eq=False)
class Request:
    """Something asked of a server. `kind` says what of: a write, a diff, an ack …; each object is asked once."""

    kind: str
    topic: str
    body: dict[str, Any] | None = None
    method: str = "POST"
    path: str = ""  # below /v0; empty: that of the topic's records

    @property
    def target(self) -> str:
        return f"/v0{self.path or f'/topics/{self.topic}'}"

    def __repr__(self) -> str:
        return f"{self.method} {self.target} {json.dumps(self.body)[:120]}"


class Answer(NamedTuple):
    request: Request
    status: int
    body: dict[str, Any]


class Pushed(NamedTuple):
    """Something that came by itself: an event of SSE, or a frame of a WebSocket that answers nothing."""

    event: str  # as SSE calls it
    body: dict[str, Any]


Heard = Answer | Pushed


class Client:
    """What all clients have. `window` is how many requests may be in flight."""

    takes: tuple[str, ...] = ()  # kinds of requests that it can send; none named: all
    topics: tuple[str, ...] = ()  # that it follows

    def __init__(self, window: int) -> None:
        self.window = window

    @property
    def unanswered(self) -> list[Request]:
        """What is in flight."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        return len(self.unanswered)

    @property
    def room(self) -> int:
        """How many requests it may send now."""
        return self.window - self.in_flight

    def open(self) -> bytes:
        return b""

    def owed(self) -> bytes:
        return b""

    def ask(self, request: Request) -> bytes:
        raise NotImplementedError

    def receive(self, data: bytes) -> list[Heard]:
        raise NotImplementedError


class Http1(Client):
    """HTTP/1.1, pipelined."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._asked: deque[Request] = deque()
        self._unread = b""

    @property
    def unanswered(self) -> list[Request]:
        return list(self._asked)

    def ask(self, request: Request) -> bytes:
        self._asked.append(request)
        return request_bytes(request.method, request.target, request.body)

    def receive(self, data: bytes) -> list[Heard]:
        self._unread += data
        heard: list[Heard] = []
        while (head_stop := self._unread.find(b"\r\n\r\n")) >= 0:
            status, headers = parsed_head(self._unread[:head_stop])
            stop = head_stop + 4 + int(headers["content-length"])
            if len(self._unread) < stop:
                break
            body, self._unread = json.loads(self._unread[head_stop + 4 : stop]), self._unread[stop:]
            heard.append(answer_to(self._asked, status, body))
        return heard


class Http2(Client):
    """HTTP/2 by prior knowledge, a stream for each request."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        machine = self._h2.state_machine  # which would hear nothing after a GOAWAY, not even answers that are due
        farewell = {(ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.CLIENT_OPEN)}
        machine._transitions = {**machine._transitions, **farewell}
        self._asked: dict[int, Request] = {}
        self._status: dict[int, int] = {}
        self._bodies: dict[int, bytearray] = {}
        self._unsent: deque[tuple[int, bytes]] = deque()  # bodies that wait for the server's windows
        self._is_ending = False  # the server takes no more requests

    @property
    def unanswered(self) -> list[Request]:
        return list(self._asked.values())

    @property
    def room(self) -> int:
        return 0 if self._unsent or self._is_ending else super().room

    def open(self) -> bytes:
        self._h2.initiate_connection()
        return self._h2.data_to_send()

    def owed(self) -> bytes:
        self._send_bodies()
        return self._h2.data_to_send()

    def ask(self, request: Request) -> bytes:
        number = self._h2.get_next_available_stream_id()
        self._asked[number] = request
        self._bodies[number] = bytearray()
        body = b"" if request.body is None else json.dumps(request.body).encode()
        head = [
            (":method", request.method),
            (":path", request.target),
            (":scheme", "http"),
            (":authority", "localhost"),
        ]
        if body:
            head += [("content-type", "application/json"), ("content-length", str(len(body)))]
        self._h2.send_headers(number, head, end_stream=not body)
        if body:
            self._unsent.append((number, body))
        return self.owed()

    def _send_bodies(self) -> None:
        """Send what the windows admit, in the order in which it was asked."""
        while self._unsent:
            number, body = self._unsent[0]
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if size <= 0:
                return
            self._h2.send_data(number, body[:size], end_stream=size >= len(body))
            self._unsent.popleft()
            if size < len(body):
                self._unsent.appendleft((number, body[size:]))

    def receive(self, data: bytes) -> list[Heard]:
        heard: list[Heard] = []
        for event in self._events(data):
            if isinstance(event, StreamEnded | StreamReset):  # it may come before the whole body is sent
                self._unsent = deque((number, body) for number, body in self._unsent if number != event.stream_id)
            if isinstance(event, ResponseReceived):
                assert event.stream_id not in self._status, "a request was answered twice"
                self._status[event.stream_id] = int(dict(event.headers)[":status"])
            elif isinstance(event, DataReceived):
                self._bodies[event.stream_id] += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, ConnectionTerminated):
                self.window = 0
            elif isinstance(event, StreamEnded):
                body = json.loads(self._bodies.pop(event.stream_id))
                heard.append(Answer(self._asked.pop(event.stream_id), self._status[event.stream_id], body))
            elif isinstance(event, ConnectionTerminated):
                self._is_ending = True
        return heard

    def _events(self, data: bytes) -> list[Event]:
        """What has happened; behind a GOAWAY h2 takes nothing any more."""
        try:
            return self._h2.receive_data(data) if data and not self._is_ending else []
        except ProtocolError:
            self._is_ending = self._h2.state_machine.state is ConnectionState.CLOSED
            if not self._is_ending:
                raise
            return []


class WebSocket(Client):
    """Publishes over a WebSocket, which also follows `topics`, each from its beginning or behind a seq in `starts`."""

    takes = ("write",)

    def __init__(self, window: int, topics: tuple[str, ...] = (), starts: dict[str, int] | None = None) -> None:
        super().__init__(window)
        self.topics = topics
        self._starts = starts or {}
        self._is_ending = False
        self._asked: deque[Request] = deque()
        self._numbers: deque[int] = deque()
        self._count = 0
        self._owed = b""
        self._unread = b""
        self._is_open = False

    @property
    def unanswered(self) -> list[Request]:
        return list(self._asked)

    @property
    def room(self) -> int:
        return super().room if self._is_open and not self._is_ending else 0

    def open(self) -> bytes:
        return handshake()

    def owed(self) -> bytes:
        owed, self._owed = self._owed, b""
        return owed

    def ask(self, request: Request) -> bytes:
        self._count += 1
        self._asked.append(request)
        self._numbers.append(self._count)
        return command("publish", request_id=self._count, topic=request.topic, **(request.body or {}))

    def receive(self, data: bytes) -> list[Heard]:
        self._unread += data
        if not self._is_open:
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if not end:
                return []
            if parsed_head(head)[0] == 503:
                return []
            assert parsed_head(head)[0] == 101, head
            self._is_open, self._unread = True, rest
            if self.topics:
                starts = {topic: {"from_seq": self._starts.get(topic, 0)} for topic in self.topics}
                self._owed += command("subscribe", topics=starts, include_tags=True, lenient=True)
        heard: list[Heard] = []
        while (found := server_frame(self._unread)) is not None:
            opcode, payload, size = found
            self._unread = self._unread[size:]
            if opcode == PING:
                self._owed += client_frame(PONG, payload, mask=MASK)
            elif opcode == TEXT:
                heard += self._message(json.loads(payload))
            else:
                assert opcode == CLOSE, opcode
                self._is_ending = True
        return heard

    def _message(self, message: dict[str, Any]) -> list[Heard]:
        op = message.pop("op")
        if op == "subscribed":
            return []
        if "request_id" not in message:
            return [Pushed(op.replace("_", "-"), message)]
        number = self._numbers.popleft()
        assert message.pop("request_id") == number, f"an answer out of its turn: {message}, not to {number}"
        if op == "error":
            return [answer_to(self._asked, STATUS[message["code"]], {"error": message})]
        assert op == "ack", op
        return [answer_to(self._asked, 201 if message["created"] else 200, message)]


class Events(Client):
    """Server-sent events of a watch on `topics`, each from its beginning or behind a seq in `starts`, or of jobs."""

    def __init__(
        self,
        topics: tuple[str, ...] = (),
        *,
        starts: dict[str, int] | None = None,
        queue: str = "",
        node: str = "",
        jobs_max: int = 2,
    ) -> None:
        super().__init__(0)
        self.topics = topics
        self._starts = starts or {}
        self._queue, self._node, self._jobs_max = queue, node, jobs_max
        self._unread = b""
        self._text = b""  # of the stream, not parsed yet
        self._owed = b""
        self._is_streaming = False

    @property
    def unanswered(self) -> list[Request]:
        return []

    def open(self) -> bytes:
        if self._queue:
            target = f"/v0/topics/{self._queue}/work?node={self._node}&max={self._jobs_max}"
            return request_bytes("GET", target)
        starts = {topic: {"from_seq": self._starts.get(topic, 0)} for topic in self.topics}
        body = {"topics": starts, "include_tags": True, "heartbeat_ms": 60_000}
        return request_bytes("POST", "/v0/watch?lenient=true", body)

    def owed(self) -> bytes:
        owed, self._owed = self._owed, b""
        return owed

    def receive(self, data: bytes) -> list[Heard]:
        self._unread += data
        if not self._is_streaming and not self._has_begun():
            return []
        while (line_stop := self._unread.find(b"\r\n")) >= 0:
            size = int(self._unread[:line_stop], 16)
            stop = line_stop + 2 + size + 2
            if len(self._unread) < stop:
                break
            self._text += self._unread[line_stop + 2 : stop - 2]
            self._unread = self._unread[stop:]
        *blocks, self._text = self._text.split(b"\n\n")
        return [pushed for block in blocks if (pushed := parsed_event(block)) is not None]

    def _has_begun(self) -> bool:
        """Read heads up to that of the stream; the answer that names a session is followed by the GET of it."""
        while b"\r\n\r\n" in self._unread:
            head, _, rest = self._unread.partition(b"\r\n\r\n")
            status, headers = parsed_head(head)
            assert status in (200, 404, 429, 503), head
            if headers.get("transfer-encoding") == "chunked":
                self._is_streaming, self._unread = True, rest
                return True
            size = int(headers["content-length"])
            if len(rest) < size:
                break
            if status == 200:
                self._owed += request_bytes("GET", json.loads(rest[:size])["stream_url"])
            elif status == 404:  # nobody came for the session in time
                self._owed += self.open()
            self._unread = rest[size:]
        return False


def answer_to(asked: deque[Request], status: int, body: dict[str, Any]) -> Answer:
    """The answer to the request whose turn it is."""
    assert asked, f"an answer to nothing: {status} {body}"
    request = asked.popleft()
    topic = body.get("topic", request.topic)
    assert topic == request.topic, f"{request} was answered with {status} {body}"
    return Answer(request, status, body)


def parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), first
    pairs = [line.split(": ", 1) for line in lines]
    return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}


def parsed_event(block: bytes) -> Pushed | None:
    """An event, or None for a comment and for what is no event."""
    lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":") and b": " in line)
    if b"event" not in lines:
        return None
    return Pushed(lines[b"event"].decode(), json.loads(lines[b"data"]))


def command(op: str, **fields: Any) -> bytes:
    return client_frame(TEXT, json.dumps({"op": op} | fields).encode(), mask=MASK)


def server_frame(data: bytes) -> tuple[int, bytes, int] | None:
    """The first frame: opcode, payload, its length with the head; None: it is not complete."""
    if len(data) < 2:
        return None
    start, size = 2, data[1]
    if size >= 126:
        start = 4 if size == 126 else 10
        size = int.from_bytes(data[2:start], "big")
    if len(data) < start + size:
        return None
    return data[0] & 0x0F, data[start : start + size], start + size
