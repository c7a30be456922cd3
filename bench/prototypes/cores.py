"""More than one core: fronts that accept, parse and check, and one engine, over rings in shared memory.

    python -m bench.prototypes.cores [--seconds 3] [--rounds 3]

The prototype of decision 37: single appends only, without keys, slots, metrics and anything else that a server needs.
It prints, beside the server as it is, requests per second and the processor time that each process takes for one.
wrk drives all of them in turn, with 64 connections, on the same machine.

A ring has one writer and one reader. A message is a length and so many bytes, never across the end. The reader says
that it sleeps before it looks for the last time; a writer that sees that wakes it by an eventfd, once per turn.
"""

import argparse
import asyncio
import mmap
import os
import select
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvloop

from bench.processes import cpu_seconds
from bench.server import DATA, Bench
from topics.core.decide import Append
from topics.core.topic.records import Batch, parse_write
from topics.engine import Engine
from topics.errors import TopicsError
from topics.settings import Settings
from topics.testing.server import ServerProcess
from topics.tuning import tune_process

RING_BYTES: Final = 1 << 22
WORDS: Final = 4  # tail, head, the reader sleeps; in cache lines of their own
START: Final = 64 * WORDS
LENGTH: Final = struct.Struct("=I")
COMMAND: Final = struct.Struct("=IHHI?")  # connection, bytes of the name, records, bytes of the body, has tags
ANSWER: Final = struct.Struct("=IHQQQ")  # connection, status, first, last, head
CONNECTIONS: Final = 64
PATH: Final = "/v0/topics/t?return_seqs=false"
BODY: Final = '{"records":[{"data":' + DATA + "}]}"


class Ring:
    """Bytes from one process to another. `put` is for the writer, `take` for the reader."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, START + RING_BYTES)
        self._words = memoryview(self._map)[:START].cast("Q")
        self._bytes = memoryview(self._map)[START:]
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_due = False  # the reader may have to be woken

    def put(self, message: bytes) -> bool:
        """False: it is full. The writer then reads no more from its clients until there is room: back-pressure."""
        words, size = self._words, len(message) + LENGTH.size
        tail, head = words[0], words[8]
        at = tail % RING_BYTES
        left = RING_BYTES - at
        if left < size + LENGTH.size:  # go on at the beginning
            if tail + left + size - head > RING_BYTES:
                return False
            LENGTH.pack_into(self._bytes, at, 0)
            tail, at = tail + left, 0
        elif tail + size - head > RING_BYTES:
            return False
        LENGTH.pack_into(self._bytes, at, len(message))
        self._bytes[at + LENGTH.size : at + size] = message
        words[0] = tail + size
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._wake)
        return True

    def _wake(self) -> None:
        self._is_due = False
        if self._words[16]:
            self._words[16] = 0
            os.eventfd_write(self._eventfd, 1)

    def listen(self, handle: Callable[[bytes], None]) -> None:
        asyncio.get_running_loop().add_reader(self._eventfd, self._drain, handle)
        self._drain(handle)

    def _drain(self, handle: Callable[[bytes], None]) -> None:
        words, shared = self._words, self._bytes
        if select.select([self._eventfd], [], [], 0)[0]:
            os.eventfd_read(self._eventfd)
        while True:
            head = words[8]
            if head == words[0]:
                words[16] = 1
                if head == words[0]:
                    return
                words[16] = 0
            at = head % RING_BYTES
            (size,) = LENGTH.unpack_from(shared, at)
            if not size:
                words[8] = head + RING_BYTES - at
                continue
            message = bytes(shared[at + LENGTH.size : at + LENGTH.size + size])
            words[8] = head + LENGTH.size + size
            handle(message)


class FrontConnection(asyncio.Protocol):
    """A connection of a front: one request at a time."""

    def __init__(self, front: "Front") -> None:
        self._front = front
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = self._front.enter(self)

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        end = data.find(b"\r\n\r\n") + 4
        known = self._front.heads.get(data[:end]) if end >= 4 else None
        if known is None and end >= 4:
            known = self._front.parse_head(data[:end])
        if known is None or len(data) < end + known[1]:
            self._unread = data
            return
        self._unread = b""
        self._front.append(self.number, known[0], data[end : end + known[1]])

    def connection_lost(self, error: Exception | None) -> None:
        self._front.connections.pop(self.number, None)


class Front:
    """One process that accepts, parses, checks, and hands over."""

    def __init__(self, commands: Ring, answers: Ring) -> None:
        self._commands, self._answers = commands, answers
        self.connections: dict[int, FrontConnection] = {}
        self.heads: dict[bytes, tuple[bytes, int]] = {}  # → topic, bytes of the body
        self._count = 0
        self._limits = Settings()

    async def serve(self, listening: socket.socket) -> None:
        self._answers.listen(self._answered)
        await asyncio.get_running_loop().create_server(lambda: FrontConnection(self), sock=listening)
        await asyncio.get_running_loop().create_future()

    def enter(self, connection: FrontConnection) -> int:
        self._count += 1
        self.connections[self._count] = connection
        return self._count

    def parse_head(self, head: bytes) -> tuple[bytes, int]:
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        path = first.split(" ")[1].partition("?")[0]
        self.heads[head] = known = (path.rpartition("/")[2].encode(), int(headers["content-length"]))
        return known

    def append(self, number: int, name: bytes, body: bytes) -> None:
        try:
            _, batch = parse_write(body, self._limits)
        except TopicsError as error:
            self.connections[number].transport.write(answer(error.status, b"{}"))
            return
        head = COMMAND.pack(number, len(name), len(batch.sizes), len(batch.body), batch.has_tags)
        assert self._commands.put(b"".join((head, name, batch.sizes.tobytes(), batch.body))), "a real front would wait"

    def _answered(self, message: bytes) -> None:
        number, status, first, last, head = ANSWER.unpack(message)
        connection = self.connections.get(number)
        if connection is not None:
            body = b'{"topic":"t","first_seq":%d,"last_seq":%d,"head_seq":%d}' % (first, last, head)
            connection.transport.write(answer(status, body))


def answer(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


async def run_engine(path: str, rings: list[tuple[Ring, Ring]], ready: int) -> None:
    """The one process with the state: commands in the order of each ring, answers when the gate is open."""
    engine = Engine.open(path)
    await engine.start()

    def opened(answers: Ring, number: int, result: object, failure: object) -> None:
        first, last, head = result.first_seq, result.last_seq, result.head_seq  # type: ignore[attr-defined]
        assert answers.put(ANSWER.pack(number, 500 if failure else 200, first, last, head))

    def handle(answers: Ring, message: bytes) -> None:
        number, name_bytes, records, body_bytes, has_tags = COMMAND.unpack_from(message)
        at = COMMAND.size + name_bytes
        sizes = array("I")
        sizes.frombytes(message[at : at + 4 * records])
        batch = Batch(message[len(message) - body_bytes :], sizes, has_tags)
        result, gate = engine.append_now(Append(message[COMMAND.size : at].decode(), batch))
        engine.when_open(gate, partial(opened, answers, number, result))

    for commands, answers in rings:
        commands.listen(partial(handle, answers))
    os.write(ready, b"x")
    await asyncio.get_running_loop().create_future()


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        tune_process()
        work()
    finally:
        os._exit(1)


@contextmanager
def prototype(directory: Path, fronts: int) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Address, and the processes: the engine's first."""
    rings = [(Ring(), Ring()) for _ in range(fronts)]
    listening = []
    for _ in rings:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(listening[0].getsockname() if listening else ("127.0.0.1", 0))
        listening.append(one)
    address = listening[0].getsockname()
    ours, theirs = os.pipe()
    pids = [forked(lambda: uvloop.run(run_engine(str(directory), rings, theirs)))]
    for one, pair in zip(listening, rings, strict=True):
        pids.append(forked(partial(lambda one, pair: uvloop.run(Front(*pair).serve(one)), one, pair)))
        one.close()
    try:
        os.read(ours, 1)
        time.sleep(0.3)  # the fronts listen by then
        yield address, pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


class Under:
    """A system under test."""

    def __init__(self, name: str, address: tuple[str, int], pids: list[int], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.address = address  # what `Bench` asks of a server
        self.pids = pids
        self.bench = Bench(self, directory)  # type: ignore[arg-type]
        self.per_s: list[float] = []
        self.cpu_us: list[list[float]] = []  # by round: of each process, and of wrk

    def run(self, seconds: int) -> None:
        before, client = [cpu_seconds(pid) for pid in self.pids], os.times().children_user + os.times().children_system
        per_s = self.bench.wrk(PATH, BODY, CONNECTIONS, seconds)
        spent = [cpu_seconds(pid) - was for pid, was in zip(self.pids, before, strict=True)]
        spent.append(os.times().children_user + os.times().children_system - client)
        self.per_s.append(per_s)
        self.cpu_us.append([one / (per_s * seconds) * 1e6 for one in spent])

    def __str__(self) -> str:
        cpu = [min(column) for column in zip(*self.cpu_us, strict=True)]
        server, client = cpu[:-1], cpu[-1]
        whole = ", ".join(f"{one:.1f}" for one in server)
        bound = 1e6 / max(max(server), sum(cpu) / 2)
        return (
            f"{self.name:24} {statistics.median(self.per_s):8,.0f} /s (most {max(self.per_s):,.0f}); "
            f"CPU per request: {whole} us, wrk {client:.1f} us; two cores allow {bound:,.0f} /s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=".")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=asked.directory) as path:
        root = Path(path).absolute()
        with (
            prototype(root / "one", 1) as one,
            prototype(root / "two", 2) as two,
            ServerProcess(root / "server") as server,
        ):
            systems = [
                Under("the server", server.address, [server.pid], root / "a"),
                Under("engine and 1 front", *one, root / "b"),
                Under("engine and 2 fronts", *two, root / "c"),
            ]
            for _ in range(asked.rounds):
                for system in systems:
                    system.run(asked.seconds)
            print(*systems, sep="\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
