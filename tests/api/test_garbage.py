"""What a request, a stream or a socket leaves is free at once (LM10, LM11).

Objects that refer to each other wait for the garbage collector. It comes when there are 50,000 of them, and then takes
tens of milliseconds, in which nobody is served.
"""

import gc
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.api.clients.transcript import Client, ok, request_bytes
from tests.api.clients.websocket import handshake, text
from tests.api.conftest import Start
from topics.testing.patience import PATIENCE_S

TIMES = 8
SUBSCRIBE = text({"op": "subscribe", "topic": "t", "from_seq": 0})
UNSUBSCRIBE = text({"op": "unsubscribe", "topic": "t"})


def post(path: str, body: object) -> bytes:
    return request_bytes("POST", path, body)  # type: ignore[arg-type]


ASKED = {
    "a write": post("/v0/topics/t", {"records": [{"data": 1}]}),
    "a refused write": post("/v0/topics/t", {"records": []}),
    "a diff": post("/v0/topics/t/diff", {}),
    "a diff of no topic": post("/v0/topics/none/diff", {}),
    "a filtered diff": post("/v0/topics/t/diff", {"filter": ["tag", "Glob", "a*b"]}),
    "a wait": post("/v0/topics/t/diff", {"from_seq": 3, "wait_ms": 60_000}),
    "a claim": post("/v0/topics/q/claim", {"node": "n"}),
    "a claim of no queue": post("/v0/topics/t/claim", {"node": "n"}),
    "an ack of nothing": post("/v0/topics/q/ack", {"node": "n", "seqs": [99]}),
    "an export": request_bytes("GET", "/v0/topics/t/export"),
    "a backup": post("/v0/backup", {}),
    "a backup that follows": post("/v0/backup", {"follow": True}),
    "a list": request_bytes("GET", "/v0/topics"),
    "a topic": request_bytes("GET", "/v0/topics/t"),
    "a record": request_bytes("GET", "/v0/topics/t/records/1"),
    "no record": request_bytes("GET", "/v0/topics/t/records/99"),
    "losses": request_bytes("GET", "/v0/topics/t/losses"),
    "metrics": request_bytes("GET", "/v0/metrics"),
    "the doctor": request_bytes("GET", "/v0/doctor"),
    "no route": request_bytes("GET", "/v0/nothing"),
    "no HTTP": b"\0\r\n\r\n",
    "gzip": request_bytes("POST", "/v0/topics/t", b"\x1f\x8bno", "Content-Encoding: gzip"),
    "a stream": request_bytes("GET", "/v0/events?topics=t&from_seq=0"),
    "a stream of many": request_bytes("GET", "/v0/events?topics=t,q,empty&from_seq=0"),
    "a stream of work": request_bytes("GET", "/v0/topics/q/work?node=n"),
    "a stream of samples": request_bytes("GET", "/v0/stats/stream"),
    "a session": post("/v0/watch", {"topics": {"t": {}}}),
    "a socket": handshake() + SUBSCRIBE,
    "subscriptions": handshake() + (SUBSCRIBE + UNSUBSCRIBE) * 5,
    "publishes": handshake() + text({"op": "publish", "topic": "t", "records": [{"data": 1}]}) * 5,
    "bad commands": handshake() + (text({"op": "no"}) + text({"op": "subscribe", "topic": "none"})) * 5,
}


@contextmanager
def nothing_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("asked", ASKED)
def test_nothing_of_what_was_asked_waits_for_the_garbage_collector(start: Start, asked: str) -> None:
    """LM10, LM11"""
    server = start()
    api, app = Client(server.address), server.server.app
    api.create("t")
    api.create("q", type="queue")
    api.create("empty", type="queue")
    for name in ("t", "q"):
        ok(api.post(f"/v0/topics/{name}", {"records": [{"data": 1, "tag": "ab"}] * 3}))

    def ask() -> None:
        with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
            connection.sendall(ASKED[asked])
            if "wait" in asked:
                server.until(lambda: app.slots.running)
            else:
                assert connection.recv(1 << 16)
        server.until(lambda: not server.server.listener.connections.open and not app.slots.running)

    ask()  # what is imported or kept at the first use is no garbage
    with nothing_collected():
        for _ in range(TIMES):
            ask()

        def left() -> Counter[str]:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = Counter(type(one).__module__ + "." + type(one).__qualname__ for one in gc.garbage)
            return Counter({kind: count for kind, count in kinds.items() if kind.startswith("topics.")})

        assert not server.run(left)
