"""Writers, readers, watchers and workers at once. `python -m bench.mixed [--quick]` prints one JSON object.

Everything is paced, and each time counts from when a request was due: from that moment to the answer, for a delivery to
the watcher's receipt. All requests come from one process, all watchers are in another. The same client against a server
that does nothing shows how much of each time is the client's own.
"""

import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import peers
from bench.peers import Address, Peer
from bench.processes import own_cpu_seconds, tree_cpu_seconds
from bench.systems.jobs import CLAIM, JOB, TopicsQueue
from bench.systems.streams import TopicsSse
from bench.wire import http, null
from bench.wire.epoll import Watchers, latency_of, stamped
from bench.wire.pacing import Paced, Role, pace
from topics.testing.server import ServerProcess

KINDS: Final = ("write", "read", "put", "claim", "ack", "delivery")
TOPIC: Final = "/v0/topics/orders"
QUEUE: Final = "/v0/topics/jobs"
WRITE: Final = f"{TOPIC}?return_seqs=false"
PUT: Final = f"{QUEUE}?return_seqs=false"
READ_RECORDS: Final = 100
DIFF: Final = b'{"from_seq":0,"limit":%d}' % READ_RECORDS
JOBS: Final = b'{"records":[' + b",".join([b'{"data":' + JOB + b"}"] * CLAIM) + b"]}"
SEQS: Final = re.compile(rb'"\$seq":(\d+)')


class Sizes(NamedTuple):
    seconds: float
    writes_per_s: float
    reads_per_s: float
    claims_per_s: float  # each of CLAIM jobs, which are put as often
    watchers: int


FULL: Final = Sizes(seconds=6, writes_per_s=2000, reads_per_s=500, claims_per_s=200, watchers=20)
QUICK: Final = Sizes(seconds=0.5, writes_per_s=100, reads_per_s=50, claims_per_s=20, watchers=2)


def write(due_ns: int) -> bytes:
    return http.request("POST", WRITE, b'{"records":[{"data":' + stamped(150, due_ns) + b"}]}")


def ack(answer: bytes) -> tuple[str, bytes] | None:
    """The jobs of a claim, if there were any."""
    seqs = SEQS.findall(answer)
    body = b'{"node":"w","seqs":[%s]}' % b",".join(seqs)
    return ("ack", http.request("POST", f"{QUEUE}/ack", body)) if seqs else None


def roles(address: Address, sizes: Sizes) -> list[Role]:
    asked = {
        "read": http.request("POST", f"{TOPIC}/diff", DIFF),
        "put": http.request("POST", PUT, JOBS),
        "claim": http.request("POST", f"{QUEUE}/claim", b'{"node":"w","max":%d}' % CLAIM),
    }

    def constant(kind: str) -> Callable[[int], bytes]:
        return lambda _: asked[kind]

    def opened(count: int) -> list[socket.socket]:
        return [http.connect(address) for _ in range(count)]

    return [
        Role("write", sizes.writes_per_s, opened(32), write),
        Role("read", sizes.reads_per_s, opened(16), constant("read")),
        Role("put", sizes.claims_per_s, opened(8), constant("put")),
        Role("claim", sizes.claims_per_s, opened(16), constant("claim"), ack),
    ]


def measured(key: str, peer: Peer, watchers: Watchers, sizes: Sizes) -> dict[str, float]:
    """The percentiles of every kind, and what both sides took of the machine."""
    watchers.open(sizes.watchers)
    pace(roles(peer.address, sizes), sizes.seconds / 4)
    before = watchers.received
    watchers.start_timing()
    server_s, client_s, watchers_s = tree_cpu_seconds(peer.pid), own_cpu_seconds(), watchers.cpu_s
    paced = pace(roles(peer.address, sizes), sizes.seconds)
    writes = len(paced.times["write"])
    watchers.wait_for(before + writes * sizes.watchers)
    client_s = own_cpu_seconds() - client_s + watchers.cpu_s - watchers_s
    return {
        **percentiles(key, paced),
        **watchers.latency().figures(f"{key}_delivery"),
        f"{key}_server_cpu": (tree_cpu_seconds(peer.pid) - server_s) / paced.seconds,
        f"{key}_client_cpu": client_s / paced.seconds,
    }


def percentiles(key: str, paced: Paced) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, times in paced.times.items():
        found |= latency_of(times).figures(f"{key}_{kind}")
    return found


def ours(server: ServerProcess, sizes: Sizes) -> dict[str, float]:
    http.ask(server.address, "PUT", TOPIC)
    TopicsQueue(server.address, "jobs")
    with http.connect(server.address) as connection:
        for _ in range(READ_RECORDS):
            http.exchange(connection, write(time.monotonic_ns()))
    with Watchers(partial(TopicsSse(server.address).watch, "orders")) as watchers:
        return measured("ours", Peer(server.address, server.pid), watchers, sizes)


@contextmanager
def nothing(server: ServerProcess) -> Iterator[Peer]:
    """A server that gives the answers of ours, each time the same."""
    address = server.address
    with http.connect(address) as connection:

        def answer(path: str, body: bytes) -> bytes:
            return http.exchange(connection, http.request("POST", path, body))

        requests = {WRITE: write(0).partition(b"\r\n\r\n")[2], f"{TOPIC}/diff": DIFF, PUT: JOBS}
        answers = {path: answer(path, body) for path, body in requests.items()}
        answers[f"{QUEUE}/claim"] = claimed = answer(f"{QUEUE}/claim", b'{"node":"w","max":%d}' % CLAIM)
        done = ack(claimed)
        assert done is not None, "a job was put"
        answers[f"{QUEUE}/ack"] = http.exchange(connection, done[1])
    with null.constant({f"POST {path} HTTP/1.1".encode(): text for path, text in answers.items()}) as peer:
        yield peer


def ceiling(server: ServerProcess, sizes: Sizes) -> dict[str, float]:
    """Of requests only: nobody watches a server that does nothing."""
    with nothing(server) as peer:
        client_s = own_cpu_seconds()
        paced = pace(roles(peer.address, sizes), sizes.seconds / 2)
        found = percentiles("null", paced)
        return found | {"null_client_cpu": (own_cpu_seconds() - client_s) / paced.seconds}


def measure(directory: Path, sizes: Sizes) -> dict[str, float]:
    with ServerProcess(directory / "topics") as server:
        return ours(server, sizes) | ceiling(server, sizes)


def main() -> None:
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        print(json.dumps(measure(Path(path).absolute(), QUICK if "--quick" in sys.argv else FULL)))


if __name__ == "__main__":
    main()
