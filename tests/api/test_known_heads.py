"""Known heads: a request whose head was seen before passes without the parser, and to the same effect.

The parser is the law: whatever bytes come, in whatever slices, a reader that remembers heads and one that does not
give the same requests, the same refusals and the same end.
"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.api.clients.transcript import Client, ok
from tests.api.conftest import Start
from topics.server.transport import exchange
from topics.server.transport.exchange import Answer, Connections, Limits, Request, error_answer
from topics.server.transport.http1_reader import HEAD_KEPT_BYTES_MAX, Http1Reader
from topics.testing.clock import ManualClock

REFUSED = error_answer(401, "unauthorized", "no")


class Gatekeeper:
    """An application that refuses some heads, and remembers the others if it is told to."""

    def __init__(self, remembers: bool) -> None:
        self.remembers = remembers
        self.readmitted_total = 0

    def headers_received(self, request: Request) -> Answer | None:
        if request.path == b"/refused":
            return REFUSED
        request.body_bytes_max = 100
        request.admission = self if self.remembers else None
        return None

    def still_holds(self, admission: object) -> bool:
        return True

    def readmitted(self, request: Request) -> Answer | None:
        self.readmitted_total += 1
        return None

    def handle(self, request: Request, exchange: Any) -> None:
        raise AssertionError("the reader does not handle requests")


class Notebook:
    """What a reader says."""

    def __init__(self, shared: Connections) -> None:
        self.said: list[Any] = []
        self.is_over = False
        self.left = b""
        self.reader = Http1Reader(self, shared, ("127.0.0.1", 1))

    def received(self, request: Request, keeps_alive: bool, is_http10: bool, answer: Answer | None) -> None:
        headers = {name: value for name, value in request.headers.items() if name != b"authorization"}
        what = (request.method, request.target, request.path, request.query, headers, list(request.repeated))
        limits = (request.content_length, request.body_bytes_max, request.peer, request.http2, request.wants_upgrade)
        self.said.append((what, limits, bytes(request.body), keeps_alive, is_http10, answer))

    def broken(self, answer: Answer | None) -> None:
        self.said.append(("broken", answer))
        self.is_over = True

    def push_back(self, data: bytes) -> None:
        self.left = data

    def feed(self, slices: list[bytes]) -> list[Any]:
        for data in slices:
            waiting = data
            while not self.is_over and (waiting or self.reader.has_stopped):
                if self.reader.has_stopped:
                    waiting, self.left = self.left + waiting, b""
                    self.reader.go_on()
                else:
                    self.reader.feed(waiting)
                    waiting = b""
        return [*self.said, self.reader.is_midway, self.reader.is_continue_due]


def both(slices: list[bytes], warm: list[bytes]) -> tuple[list[Any], list[Any], int]:
    told = []
    app = Gatekeeper(remembers=True)
    for judge in (app, Gatekeeper(remembers=False)):
        shared = Connections(judge, Limits(), ManualClock())
        for message in warm:
            Notebook(shared).feed([message])
        judge.readmitted_total = 0
        told.append(Notebook(shared).feed(slices))
    return told[0], told[1], app.readmitted_total


HEADS = [
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nAuthorization: Bearer k\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nhost:x\r\ncontent-length:100\r\n\r\n" + b"y" * 100,
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n" + b"y" * 101,
    b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX: 1\r\nX: 2\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.1\r\n\r\n",
    b"\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.1\nHost: x\n\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\n y\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\rY: 1\r\n\r\n",
    b"GET /" + b"a" * HEAD_KEPT_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]
messages = st.sampled_from(HEADS)
edits = st.tuples(
    st.integers(0, 300), st.integers(0, 3), st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"0", b":", b"\0"])
)


@st.composite
def inputs(draw: st.DrawFn) -> list[bytes]:
    """Messages in a row, some of them spoiled, in slices."""
    data = b""
    for message in draw(st.lists(messages, min_size=1, max_size=6)):
        if draw(st.integers(0, 4)) == 0:
            start, size, text = draw(edits)
            message = message[:start] + text + message[start + size :]
        data += message
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    bounds = [0, *cuts, len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds) if stop > start]


@given(inputs(), st.lists(messages, max_size=8))
@example([HEADS[0] + HEADS[2], HEADS[2][:-1], b"c" + HEADS[0]], HEADS)
@example([b"GE", b"T /a HTTP/1.1\r\nHost: x\r\n\r\n" + HEADS[0]], HEADS)
@example([HEADS[6] + HEADS[0] + HEADS[0]], HEADS)
def test_known_and_unknown_heads_are_read_alike(slices: list[bytes], warm: list[bytes]) -> None:
    """LM10, CV: the parser decides, also for heads that it is not asked about."""
    known, parsed, _ = both(slices, warm)
    assert known == parsed


@pytest.mark.parametrize("message", HEADS[:4])
def test_plain_heads_pass_without_the_parser(message: bytes) -> None:
    known, parsed, readmitted = both([message * 3], [message])
    assert known == parsed and readmitted == 3


@pytest.mark.parametrize("message", HEADS[4:])
def test_whatever_is_unusual_is_parsed_each_time(message: bytes) -> None:
    known, parsed, readmitted = both([message, message], [message, message])
    if not message.startswith((b"OPTIONS", b"GET http://", b"\r\n")):
        assert readmitted == 0
    assert known == parsed


def test_heads_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HEADS_KEPT_MAX", 3)
    shared = Connections(Gatekeeper(remembers=True), Limits(), ManualClock())
    for number in range(10):
        Notebook(shared).feed([b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number])
        Notebook(shared).feed([b"GET /%d HTTP/1.1\r\nHost: x\r\nAuthorization: %d\r\n\r\n" % (number, number)])
        assert 0 < len(shared.known_heads) <= 3
        assert 0 < len(shared.secret_heads) <= 3


def test_a_head_that_passed_is_judged_by_what_holds_now(start: Start) -> None:
    """LM2, SC3, AU17: slots, the drain and a change of keys are looked at each time."""
    server = start(api_keys="k", max_inflight_per_key=1)
    client = Client(server.address, "k")
    for _ in range(3):
        ok(client.get("/v0/topics"))
    (key,) = server.server.app.keyring._keys
    key.inflight += 1
    assert client.get("/v0/topics").status == 429
    key.inflight -= 1
    ok(client.get("/v0/topics"))
    server.server.app.state = "draining"
    assert client.get("/v0/topics").status == 503
    server.server.app.state = "serving"
    ok(client.get("/v0/topics"))
    server.server.app.keys_changed()
    for _ in range(2):
        ok(client.get("/v0/topics"))
