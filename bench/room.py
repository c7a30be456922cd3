"""An audio room over WebSocket. `python -m bench.room [--quick]` prints one JSON object.

Each participant writes 50 records a second, of the size of 20 ms of speech, to one ephemeral topic, and hears all
others: a subscription that leaves out the records of its own node, as an application would. The room grows until
records are lost or the 99th percentile of a delivery is above 50 ms. Times count from when a record was due. All
participants are in one process; a hub that does nothing but hand on shows what that process can take.
"""

import json
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench import peers
from bench.peers import Address, Peer
from bench.processes import tree_cpu_seconds
from bench.systems.streams import WEBSOCKET, masked, until
from bench.wire import http, null
from bench.wire.epoll import (
    MARK,
    RECEIVE_BYTES,
    STAMP_BYTES,
    Latency,
    Log,
    in_processes,
    latency_of,
    ready_by,
    times_of,
)
from topics.testing.server import ServerProcess

RATE: Final = 50  # records per second of each participant
AUDIO_BYTES: Final = 107  # 20 ms of Opus at 32 kbit/s, as base64
BAR: Final = 40
P99_MAX_MS: Final = 50.0
GRACE_S: Final = 1.0  # for what is under way at the end; what comes later is lost
SLACK_NS: Final = 50_000_000


class Sizes(NamedTuple):
    seconds: float
    steps: tuple[int, ...]  # participants


FULL: Final = Sizes(2, (10, 20, 40, 60, 100, 150))
QUICK: Final = Sizes(0.4, (2, 4))


class Room(Protocol):
    deaf: int  # how many do not hear a record: none, or who has said it

    def join(self, number: int) -> socket.socket: ...

    def said(self, number: int, audio: bytes) -> bytes: ...


class OwnRoom:
    """Ours. With `is_others` nobody hears himself; else all hear all, and leave out their own records themselves."""

    def __init__(self, address: Address, name: str, is_others: bool) -> None:
        self._address, self._name, self._is_others = address, name, is_others
        self.deaf = 1 if is_others else 0
        http.ask(address, "PUT", f"/v0/topics/{name}", {"durability": "ephemeral", "cap_records": 10_000})

    def join(self, number: int) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(http.request("GET", "/v0/ws", headers=WEBSOCKET))
        until(connection, b"\r\n\r\n")
        wanted: dict[str, object] = {"op": "subscribe", "topic": self._name, "tail": True, "include_meta": False}
        if self._is_others:
            wanted["node"] = f"p{number}"
        connection.sendall(masked(json.dumps(wanted).encode()))
        return until(connection, b'"caught_up"')

    def said(self, number: int, audio: bytes) -> bytes:
        record = b'{"op":"publish","topic":"%s","return_seqs":false,"node":"p%d","records":[{"data":"%s"}]}'
        return masked(record % (self._name.encode(), number, audio))


class NullRoom:
    """The hub that hands on whatever it is sent, also to who sent it."""

    deaf = 0

    def __init__(self, address: Address) -> None:
        self._address = address

    def join(self, number: int) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(null.LISTEN)
        return until(connection, null.LISTENING)

    def said(self, number: int, audio: bytes) -> bytes:
        return masked(b'{"data":"%s"}' % audio)


class NchanRoom(NullRoom):
    """nchan, which also hands on to who sent it."""

    def join(self, number: int) -> socket.socket:
        connection = http.connect(self._address)
        connection.sendall(http.request("GET", "/room/r", headers=WEBSOCKET))
        return until(connection, b"\r\n\r\n")


class Heard(NamedTuple):
    """One room of one size."""

    sent: int
    received: int
    latency: Latency
    client_cpu: float
    seconds: float


def audio(due_ns: int) -> bytes:
    return b"%s%019d%s" % (MARK, due_ns, b"x" * (AUDIO_BYTES - STAMP_BYTES))


def sit(room: Room, participants: int, seconds: float, ready: Callable[[], object]) -> Heard:
    """Speak and listen for so long."""
    epoll = select.epoll()
    connections = [room.join(number) for number in range(participants)]
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        epoll.register(descriptor, select.EPOLLIN)
    ready()
    log: Log = []
    buffer = bytearray(RECEIVE_BYTES)
    view = memoryview(buffer)
    cpu_s, started = time.process_time(), time.monotonic_ns()
    gap_ns = int(1e9 / RATE / participants)
    count = int(seconds * RATE) * participants
    expected = count * (participants - room.deaf)
    sent = received = 0
    ending = started + int((seconds + GRACE_S) * 1e9)
    while received < expected and (now := time.monotonic_ns()) < ending:
        while sent < count and (due := started + sent * gap_ns) <= now:
            connections[sent % participants].sendall(room.said(sent % participants, audio(due)))
            sent += 1
        for descriptor, _ in ready_by(epoll, started + sent * gap_ns if sent < count else ending):
            size = by_descriptor[descriptor].recv_into(buffer)
            if size == 0:
                raise RuntimeError("the server has closed the connection of a participant")
            log.append((time.monotonic_ns(), descriptor, bytes(view[:size])))
            received += buffer.count(MARK, 0, size)
    cpu_s = time.process_time() - cpu_s
    times = times_of(log)
    for connection in connections:
        connection.close()
    elapsed = (time.monotonic_ns() - started) / 1e9
    return Heard(sent, len(times), latency_of(times), cpu_s, elapsed)


def hold(room: Room, peer: Peer, participants: int, seconds: float) -> dict[str, float]:
    """One room of that size, in a process of its own: loss, percentiles and what both sides took."""
    server_s = tree_cpu_seconds(peer.pid)
    (heard,) = in_processes(1, lambda _, ready: sit(room, participants, seconds, ready))
    expected = int(seconds * RATE) * participants * (participants - room.deaf)
    return {
        "lost": float(expected - heard.received),
        "p50_ms": heard.latency.p50_ms,
        "p99_ms": heard.latency.p99_ms,
        "client_cpu": heard.client_cpu / seconds,
        "server_cpu": (tree_cpu_seconds(peer.pid) - server_s) / seconds,
    }


def is_held(found: dict[str, float]) -> bool:
    return found["lost"] == 0 and found["p99_ms"] <= P99_MAX_MS


def grown(key: str, made: Callable[[int], Room], peer: Peer, sizes: Sizes) -> dict[str, float]:
    """The largest room that is held, and the figures of each size up to the first that is not."""
    figures: dict[str, float] = {f"{key}_held": 0.0}
    for participants in sizes.steps:
        found = hold(made(participants), peer, participants, sizes.seconds)
        figures |= {f"{key}_{participants}_{name}": value for name, value in found.items()}
        if not is_held(found):
            break
        figures[f"{key}_held"] = float(participants)
    return figures


def measure(directory: Path, sizes: Sizes, has_nchan: bool) -> dict[str, float]:
    figures: dict[str, float] = {}
    with ServerProcess(directory / "topics") as server:
        ours = Peer(server.address, server.pid)
        figures |= grown("others", lambda size: OwnRoom(ours.address, f"others-{size}", True), ours, sizes)
        figures |= grown("all", lambda size: OwnRoom(ours.address, f"all-{size}", False), ours, sizes)
    if has_nchan:
        with peers.nchan(directory / "nchan") as nchan:
            figures |= grown("nchan", lambda _: NchanRoom(nchan.address), nchan, sizes)
    with null.hub() as hub:
        figures |= grown("null", lambda _: NullRoom(hub.address), hub, sizes)
    return figures


def main(arguments: Sequence[str] = sys.argv) -> None:
    peers.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path:
        sizes = QUICK if "--quick" in arguments else FULL
        print(json.dumps(measure(Path(path).absolute(), sizes, peers.has("nginx"))))


if __name__ == "__main__":
    main()
