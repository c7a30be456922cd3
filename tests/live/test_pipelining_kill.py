"""A real server under clients that pipeline, killed with SIGKILL at random moments, over and over on one directory."""

import random
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.pipelining.check import check
from tests.pipelining.clients import Answer, Client, Events, Http1, Http2, Request, WebSocket
from tests.pipelining.look import Found, look
from tests.pipelining.told import Told
from tests.pipelining.workload import Job, Workload
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

ROUNDS = 12
ANSWERS = (300, 1500)  # heard before a kill
PAD_MAX = 3000  # bytes of a record, so that a checkpoint comes every few hundred requests
SETTINGS = {"TOPICS_CACHE_BYTES": str(1 << 20), "TOPICS_LOG_LEVEL": "warning"}
FOLLOWED = ("log.disk", "log.fsync", "source", "copy")
READ_BYTES = 1 << 18


@dataclass(eq=False)
class Caller:
    """A client on a real socket."""

    name: str
    client: Client
    socket: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    is_gone: bool = False

    def send(self) -> None:
        """As much as the kernel takes."""
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True

    def receive(self) -> bytes:
        """What has come; the end of the connection is noted."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.is_gone = not data
        return data


class Crowd:
    """All clients of one life of the server, on one selector."""

    def __init__(self, address: tuple[str, int], told: Told, workload: Workload, rng: random.Random) -> None:
        self.answers = 0
        self._address = address
        self._told = told
        self._workload = workload
        self._rng = rng
        self._selector = selectors.DefaultSelector()
        self._callers: list[Caller] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        try:
            first = self._connect("h0", Http1(64))
            while setup := self._told.undone(self._workload.setup()):
                self._ask(first, setup)
                while first.client.in_flight:
                    self._turn(asks=False)
            for name, client in self._others():
                self._connect(name, client)
            yield
        finally:
            for caller in self._callers:
                caller.socket.close()
            self._selector.close()

    def _others(self) -> Iterator[tuple[str, Client]]:
        yield from ((f"h{n}", Http1(self._rng.randint(4, 32))) for n in range(1, 5))
        yield "ws", WebSocket(self._rng.choice((16, 100)), FOLLOWED)
        yield "v2", Http2(self._rng.randint(4, 32))
        yield "sse", Events(FOLLOWED)
        yield "work", Events(queue="jobs", node="jobs.stream", jobs_max=4)

    def _connect(self, name: str, client: Client) -> Caller:
        caller = Caller(name, client, socket.create_connection(self._address, PATIENCE_S))
        caller.socket.setblocking(False)
        caller.unsent += client.open()
        self._callers.append(caller)
        self._selector.register(caller.socket, selectors.EVENT_READ, caller)
        caller.send()
        return caller

    def run_until(self, answers: int) -> None:
        """Ask and hear, until so many answers have come."""
        while self.answers < answers:
            self._turn(asks=True)

    def hear_the_rest(self) -> None:
        """The server is dead: what it had sent is still with the kernel."""
        for caller in self._callers:
            while not caller.is_gone:
                self._hear(caller)

    def _turn(self, *, asks: bool) -> None:
        for caller in self._callers:
            if asks and not caller.unsent and caller.client.room > 0:
                count = self._rng.randint(1, caller.client.room)
                self._ask(caller, [self._workload.next(caller.name, caller.client.takes) for _ in range(count)])
            caller.send()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
            self._selector.modify(caller.socket, wanted, caller)
        ready = self._selector.select(PATIENCE_S)
        assert ready, f"the server is silent; not answered: {self._told.open_calls}"
        for key, _ in ready:
            self._hear(key.data)
            assert not key.data.is_gone, f"the server has ended {key.data.name}"

    def _ask(self, caller: Caller, requests: list[Request]) -> None:
        for request in requests:
            self._told.asked(request)
            caller.unsent += caller.client.ask(request)
        caller.send()

    def _hear(self, caller: Caller) -> None:
        for heard in caller.client.receive(caller.receive()):
            self._told.heard(heard, caller.name)
            self._workload.heard(heard)
            self.answers += isinstance(heard, Answer)
        caller.unsent += caller.client.owed()


def found_at(address: tuple[str, int]) -> Found:
    """What the server has."""
    client, looking = Http1(1 << 30), look()
    with socket.create_connection(address, PATIENCE_S) as connection:
        answers: list[Answer] | None = None
        while True:
            try:
                asked = looking.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            connection.sendall(b"".join([client.ask(request) for request in asked]))
            answers = []
            while len(answers) < len(asked):
                data = connection.recv(READ_BYTES)
                assert data, "the server has ended the connection"
                answers += client.receive(data)  # type: ignore[arg-type]


def test_what_pipelining_clients_were_told_survives_kill_after_kill(tmp_path: Path) -> None:
    """ST17, S5, G1, G2, G3, G8, G9, G11, G12, G13, G15, WR10, DU3: whatever the moments and the checkpoints."""
    rng = random.Random(11)
    told = Told(may_throttle=True)
    held: list[Job] = []
    with ServerProcess(tmp_path, SETTINGS) as server:
        for round_ in range(ROUNDS):
            workload = Workload(rng, f"r{round_}", pad_max=PAD_MAX)
            workload.held = [job for job in held if job.seq in told.held[job.topic]]
            crowd = Crowd(server.address, told, workload, rng)
            with crowd.connected():
                crowd.run_until(crowd.answers + rng.randint(*ANSWERS))
                server.kill()
                crowd.hear_the_rest()
            held = workload.held
            server.start()
            found = found_at(server.address)
            try:
                check(told, found, "kill")
            except AssertionError as error:
                error.add_note(f"round {round_}, {crowd.answers} answers")
                raise
            told.adopt(found)
        assert server.stop() == 0
    assert sum(len(topic.records) for topic in found.values()) > ROUNDS
