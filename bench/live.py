"""Figures of live delivery beside nchan, NATS and others. `python -m bench.live NAME [--quick]` prints one JSON object.

All servers are up at once, on loopback; one after the other is written to
while its watchers, on one epoll loop in a process of its own, receive. The
topics are of the default class, disk; the peers keep messages in memory. A
delivery is one record at one watcher, however many share a frame; writers that
saturate stay a fixed number of records ahead of the average watcher. The last is
a hub that does nothing but hand on: more than there the watchers cannot take.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import peers
from bench.peers import Peer
from bench.processes import Load, open_many_files, resident_bytes, tree_cpu_seconds
from bench.systems.streams import (
    DurableSse,
    Nats,
    NchanSse,
    NchanWebSocket,
    NullHub,
    System,
    TopicsSse,
    TopicsWebSocket,
    Writer,
)
from bench.wire import null
from bench.wire.epoll import Latency, Watchers, stamped
from topics.testing.server import ServerProcess

RATE: Final = 50  # writes per second of the latency runs
AHEAD: Final = 64  # records by which writers may be ahead of the watchers when they saturate them
DURABLE_MAX: Final = 100  # watchers of Durable Streams: more were not tried
PAUSE_S: Final = 0.002  # of watchers that only count
UNLIMITED: Final = {"TOPICS_MAX_SSE_CONNECTIONS": "0", "TOPICS_MAX_WATCH_SESSIONS": "0"}


class Sizes(NamedTuple):
    paced_s: float
    watchers: tuple[int, ...]
    saturated_s: float
    saturated: int
    idle: tuple[int, int]


FULL: Final = Sizes(paced_s=6, watchers=(1, 100, 1000), saturated_s=4, saturated=1000, idle=(1000, 10_000))
QUICK: Final = Sizes(paced_s=0.5, watchers=(1, 10), saturated_s=0.5, saturated=20, idle=(50, 200))


class Under(NamedTuple):
    """A system under test, and the process that serves it."""

    system: System
    pid: int


@contextmanager
def systems(directory: Path) -> Iterator[dict[str, Under]]:
    """Durable Streams only where it is installed."""
    with (
        ServerProcess(directory / "topics", UNLIMITED) as ours,
        peers.nchan(directory / "nchan") as nchan,
        peers.nats(directory / "nats") as nats,
        _durable(directory / "durable") as durable,
        null.hub() as hub,
    ):
        yield {
            "sse": Under(TopicsSse(ours.address), ours.pid),
            "nchan_sse": Under(NchanSse(nchan.address), nchan.pid),
            "ws": Under(TopicsWebSocket(ours.address), ours.pid),
            "nchan_ws": Under(NchanWebSocket(nchan.address), nchan.pid),
            "nats": Under(Nats(nats.address), nats.pid),
            **({"durable": Under(DurableSse(durable.address), durable.pid)} if durable else {}),
            "null": Under(NullHub(hub.address), hub.pid),
        }


@contextmanager
def _durable(directory: Path) -> Iterator[Peer | None]:
    """Durable Streams in memory; None if it is not installed."""
    if peers.has_durable_streams():
        with peers.durable_streams(directory, has_files=False) as peer:
            yield peer
    else:
        yield None


def write_at(rate: float, seconds: float, writer: Writer) -> int:
    """Write at this rate, however long the answers take; how many records."""
    count = max(1, int(rate * seconds))
    started = time.monotonic()
    for number in range(count):
        while (wait_s := started + number / rate - time.monotonic()) > 0:
            writer.take_answers(wait_s)
        while not writer.send(stamped()):
            writer.take_answers(0.1)
    return count


def write_ahead(seconds: float, writer: Writer, watchers: Watchers, sent: int) -> int:
    """Write as fast as the watchers receive; how many records in all. `sent` were received before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if sent - watchers.received / watchers.count >= AHEAD or not writer.send(stamped()):
            writer.take_answers(0.001)
        else:
            sent += 1
    return sent


def greet(writer: Writer, watchers: Watchers) -> None:
    """Write one record and see it arrive everywhere: all watch."""
    before = watchers.received
    writer.send(stamped())
    watchers.wait_for(before + watchers.count)


def latency_at(under: Under, topic: str, count: int, seconds: float) -> tuple[Latency, Load]:
    """From write to delivery, and what the deliveries cost."""
    writer = under.system.writer(topic)
    with Watchers(partial(under.system.watch, topic)) as watchers:
        watchers.open(count)
        greet(writer, watchers)
        sent = 1 + write_at(RATE, seconds / 4, writer)
        watchers.wait_for(sent * count)
        watchers.start_timing()
        started, before = time.monotonic(), sent
        server_s, client_s = tree_cpu_seconds(under.pid), watchers.cpu_s
        sent += write_at(RATE, seconds, writer)
        writer.finish()
        watchers.wait_for(sent * count)
        server_s, client_s = tree_cpu_seconds(under.pid) - server_s, watchers.cpu_s - client_s
        return watchers.latency(), Load((sent - before) * count, time.monotonic() - started, server_s, client_s)


def latency(all_systems: dict[str, Under], sizes: Sizes) -> dict[str, float]:
    figures: dict[str, float] = {}
    for count in sizes.watchers:
        for name, under in all_systems.items():
            if name == "durable" and count > DURABLE_MAX:
                continue
            measured, load = latency_at(under, f"{name}{count}", count, sizes.paced_s)
            figures |= load.figures(f"{name}_{count}")
            figures[f"{name}_{count}_p50_ms"] = measured.p50_ms
            figures[f"{name}_{count}_p99_ms"] = measured.p99_ms
        for way in ("sse", "ws"):
            for share in ("p50", "p99"):
                ours, theirs = figures[f"{way}_{count}_{share}_ms"], figures[f"nchan_{way}_{count}_{share}_ms"]
                figures[f"{way}_{count}_{share}_ratio"] = ours / theirs
    return figures


def saturation(all_systems: dict[str, Under], sizes: Sizes) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, under in all_systems.items():
        if name == "durable":
            continue  # with files, it closed connections of the writers in such a run
        topic = f"{name}_saturated"
        writer = under.system.writer(topic)
        with Watchers(partial(under.system.watch, topic), PAUSE_S) as watchers:
            watchers.open(sizes.saturated)
            greet(writer, watchers)
            sent = write_ahead(sizes.saturated_s / 4, writer, watchers, 1)
            before, server_s, client_s = watchers.received, tree_cpu_seconds(under.pid), watchers.cpu_s
            started = time.monotonic()
            sent = write_ahead(sizes.saturated_s, writer, watchers, sent)
            seconds = time.monotonic() - started
            server_s, client_s = tree_cpu_seconds(under.pid) - server_s, watchers.cpu_s - client_s
            figures |= Load(watchers.received - before, seconds, server_s, client_s).figures(name)
            figures[f"{name}_server_cpu"] = server_s / seconds
            writer.finish()
            watchers.wait_for(sent * watchers.count)
    figures["sse_ratio"] = figures["sse_per_s"] / figures["nchan_sse_per_s"]
    figures["ws_ratio"] = figures["ws_per_s"] / figures["nchan_ws_per_s"]
    return figures


def idle(all_systems: dict[str, Under], sizes: Sizes) -> dict[str, float]:
    """Memory that connections cost on which nothing happens, and how long a write takes to reach them all."""
    figures: dict[str, float] = {}
    for name in ("sse", "nchan_sse"):
        under, topic = all_systems[name], f"{name}_idle"
        writer = under.system.writer(topic)
        with Watchers(partial(under.system.watch, topic)) as watchers:
            watchers.open(20)  # what the first connections bring about is not theirs
            greet(writer, watchers)
            before = resident_bytes(under.pid)
            for step, count in zip(("few", "many"), sizes.idle, strict=True):
                watchers.open(20 + count)
                figures[f"{name}_{step}_bytes"] = (resident_bytes(under.pid) - before) / count
            watchers.start_timing()
            greet(writer, watchers)
            figures[f"{name}_reach_ms"] = watchers.latency().longest_ms
            writer.finish()
    return figures


def main() -> None:
    peers.require("nginx", "nats-server")
    peers.end_on_signals()
    open_many_files()
    measure = {"latency": latency, "saturation": saturation, "idle": idle}[sys.argv[1]]
    sizes = QUICK if "--quick" in sys.argv else FULL
    with (
        tempfile.TemporaryDirectory(prefix="topics-bench-", dir=".") as path,
        systems(Path(path).absolute()) as all_systems,
    ):
        print(json.dumps(measure(all_systems, sizes)))


if __name__ == "__main__":
    main()
