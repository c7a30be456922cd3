"""The load's side: many sockets on one epoll loop, in a process of its own, with as little Python per byte as can be.

Watchers only receive, and count records by a mark that each holds once.
Conversations ask and are answered. Neither knows a protocol: how a connection
is opened, what is sent and when an answer is whole comes from outside.
"""

import gc
import multiprocessing
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from bench.peers import end_with_parent
from bench.processes import cpu_seconds

MARK: Final = b"^|"
STAMP: Final = re.compile(rb"\^\|(\d{19})")
STAMP_BYTES: Final = 21
RECEIVE_BYTES: Final = 256 * 1024
PATIENCE_S: Final = 300.0

Opening = Callable[[], socket.socket]
IsWhole = Callable[[bytes], bool]
Log = list[tuple[int, int, bytes]]  # when, on which connection, what was received
Conversation = Generator[tuple[bytes, IsWhole], bytes, None]

FORK: Final = multiprocessing.get_context("fork")


def stamped(filler_bytes: int = 150, at_ns: int | None = None) -> bytes:
    """A record with the mark and a time, else that of the call; the clock is the same in every process."""
    return b'{"at":"^|%019d","note":"%s"}' % (at_ns or time.monotonic_ns(), b"x" * filler_bytes)


def ready_by(epoll: select.epoll, at_ns: int) -> list[tuple[int, int]]:
    """What is ready, waiting until then at most; epoll itself waits in whole milliseconds, which is too coarse."""
    wait_s = (at_ns - time.monotonic_ns()) / 1e9
    if wait_s > 0:
        select.select([epoll.fileno()], [], [], wait_s)
    return epoll.poll(0)


class Latency(NamedTuple):
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float

    def figures(self, key: str) -> dict[str, float]:
        """The percentiles, under names that begin with `key`."""
        return {f"{key}_{name}": value for name, value in self._asdict().items() if name != "longest_ms"}


def latency_of(times_ns: Iterable[int]) -> Latency:
    """Zeros if there are no times."""
    times = sorted(times_ns) or [0]
    at = (times[min(len(times) - 1, int(len(times) * share))] / 1e6 for share in (0.5, 0.9, 0.99, 0.999, 1.0))
    return Latency(*at)


class Watchers:
    """Connections that receive records, in a process of their own, until the `with` ends."""

    def __init__(self, opening: Opening, pause_s: float = 0.0) -> None:
        """`pause_s` is slept between two rounds: more bytes per call, for runs that count only."""
        self.count = 0
        self._received = FORK.RawValue("Q", 0)
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=_watch, args=(opening, theirs, self._received, pause_s), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def received(self) -> int:
        """Records, over all connections."""
        return int(self._received.value)

    @property
    def cpu_s(self) -> float:
        assert self._process.pid is not None
        return cpu_seconds(self._process.pid)

    def open(self, count: int) -> None:
        """Open connections until there are `count`."""
        self._ask(("open", count - self.count))
        self.count = count

    def start_timing(self) -> None:
        self._ask(("time", None))

    def latency(self) -> Latency:
        """Of all records received since `start_timing`: from their stamp to their receipt."""
        answer = self._ask(("report", None))
        assert isinstance(answer, Latency)
        return answer

    def wait_for(self, received: int) -> None:
        """Until so many records have arrived in all."""
        deadline = time.monotonic() + PATIENCE_S
        while self.received < received:
            if time.monotonic() > deadline or not self._process.is_alive():
                raise RuntimeError(f"{self.received} of {received} records arrived at {self.count} watchers")
            time.sleep(0.001)

    def _ask(self, command: tuple[str, object]) -> object:
        self._pipe.send(command)
        while not self._pipe.poll(1):
            if not self._process.is_alive():
                raise RuntimeError("the watchers' process has ended, see above")
        return self._pipe.recv()


def _watch(opening: Opening, pipe: Connection, received: Any, pause_s: float) -> None:
    settle()
    epoll = select.epoll()
    commands = pipe.fileno()
    epoll.register(commands, select.EPOLLIN)
    receive: dict[int, Callable[[bytearray], int]] = {}  # of each connection, by descriptor
    split: set[int] = set()  # connections whose last byte was the first of a mark
    log: Log = []  # of a run that is timed
    is_timed = False
    buffer = bytearray(RECEIVE_BYTES)
    view = memoryview(buffer)
    first, second = MARK
    now_ns, count_in = time.monotonic_ns, buffer.count
    while True:
        if pause_s:
            time.sleep(pause_s)
        found = 0
        for descriptor, _ in epoll.poll():
            if descriptor == commands:
                command, value = pipe.recv()
                if command == "open":
                    for _ in range(value):
                        connection = opening()
                        receive[connection.fileno()] = connection.recv_into
                        epoll.register(connection.fileno(), select.EPOLLIN)
                is_timed |= command == "time"
                pipe.send(latency_of(times_of(log)) if command == "report" else None)
                continue
            size = receive[descriptor](buffer)
            if is_timed:
                log.append((now_ns(), descriptor, bytes(view[:size])))
            if size == 0:
                raise RuntimeError("the server has closed the connection of a watcher")
            found += count_in(MARK, 0, size)
            if split and descriptor in split:
                split.discard(descriptor)
                found += buffer[0] == second
            if buffer[size - 1] == first:
                split.add(descriptor)
        received.value += found


def times_of(log: Log) -> list[int]:
    """From the stamp of each record to its receipt."""
    times: list[int] = []
    rests: dict[int, bytes] = {}  # ends of what was received, which may hold the beginning of a stamp
    for at, descriptor, received in log:
        text = rests.pop(descriptor, b"") + received
        end = 0
        for match in STAMP.finditer(text):
            times.append(at - int(match[1]))
            end = match.end()
        rests[descriptor] = text[max(end, len(text) - STAMP_BYTES + 1) :]
    return times


def converse(conversations: Iterable[tuple[socket.socket, Conversation]]) -> None:
    """Carry on all of them until each has ended."""
    epoll = select.epoll()
    going: dict[int, tuple[socket.socket, Conversation, IsWhole]] = {}
    rests: dict[int, bytes] = {}
    for connection, conversation in conversations:
        request, is_whole = next(conversation)
        going[connection.fileno()] = connection, conversation, is_whole
        epoll.register(connection.fileno(), select.EPOLLIN)
        connection.sendall(request)
    while going:
        for descriptor, _ in epoll.poll():
            connection, conversation, is_whole = going[descriptor]
            received = connection.recv(RECEIVE_BYTES)
            if not received:
                raise RuntimeError(f"the server has closed a connection, after {rests.get(descriptor, b'')!r}")
            answer = rests.pop(descriptor, b"") + received
            if not is_whole(answer):
                rests[descriptor] = answer
                continue
            try:
                request, is_whole = conversation.send(answer)
            except StopIteration:
                epoll.unregister(descriptor)
                del going[descriptor]
                continue
            going[descriptor] = connection, conversation, is_whole
            connection.sendall(request)


def in_processes(count: int, work: Callable[[int, Callable[[], object]], Any]) -> list[Any]:
    """`work(number, ready)` in `count` processes at once; what each returns. `ready()` waits for the others."""
    barrier = FORK.Barrier(count)
    pipes = [FORK.Pipe(duplex=False) for _ in range(count)]

    def run(number: int) -> None:
        settle()
        pipes[number][1].send(work(number, barrier.wait))

    processes = [FORK.Process(target=run, args=(number,), daemon=True) for number in range(count)]
    try:
        for process in processes:
            process.start()
        for ours, _ in pipes:
            while not ours.poll(0.5):
                if not all(other.is_alive() or other.exitcode == 0 for other in processes):
                    raise RuntimeError("a client process has failed, see above")
        return [ours.recv() for ours, _ in pipes]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def settle() -> None:
    """At the start of a process of ours: it ends with its parent, however that ends, and no collection pauses it."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()
