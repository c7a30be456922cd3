"""Clients of every protocol on real sockets, all at once on one selector, against a server in a process of its own.

    crowd = Crowd(server.address, told, workload, rng)
    with crowd.connected():
        crowd.run_until(crowd.answers + 500)
        server.kill()
        crowd.hear_the_rest()

Owns the connections: who asks when, what has been sent and heard, who has come and gone. Must not know: what is right,
what is done to the server.
"""

import random
import selectors
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.pipelining.clients import Answer, Client, Events, Http1, Http2, Request, WebSocket
from tests.pipelining.look import Look
from tests.pipelining.told import Told
from tests.pipelining.workload import Workload
from topics.clock import SystemClock
from topics.testing.patience import PATIENCE_S, POLL_S

T = TypeVar("T")
Address = tuple[str, int]

FOLLOWED = ("log.disk", "log.fsync", "source", "copy")
READ_BYTES = 1 << 18
RST = struct.pack("ii", 1, 0)  # SO_LINGER: close at once


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
            self.unsent.clear()  # what had come before the end is still to be heard

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
    """All clients of one life of the server. `may_end`: the server may end connections."""

    def __init__(self, address: Address, told: Told, workload: Workload, rng: random.Random) -> None:
        self.answers = 0
        self.may_end = False
        self._address = address
        self._told = told
        self._workload = workload
        self._rng = rng
        self._selector = selectors.DefaultSelector()
        self._callers: list[Caller] = []
        self._come = 0  # that came in place of others
        self._clock = SystemClock()
        self._heard_at = self._clock.monotonic()

    # --- coming and going

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
        yield "one", Http1(1)
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

    def drop_one(self) -> None:
        """A connection breaks, whatever is under way on it, and somebody else comes."""
        caller = self._rng.choice([caller for caller in self._callers if not caller.is_gone])
        self._hear(caller)
        if self._rng.random() < 0.5:
            caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        self._leave(caller)
        if caller.name == "work":  # whoever opens its stream again does so while the server ends its leases
            self.hang_up()
            return
        self._come += 1
        name = f"{caller.name.partition('.')[0]}.{self._come}"
        if isinstance(caller.client, Events | WebSocket):
            following = WebSocket(16, FOLLOWED) if isinstance(caller.client, WebSocket) else Events(FOLLOWED)
            self._connect(name, following)
        else:
            self._connect(name, type(caller.client)(caller.client.window))

    def hang_up(self) -> None:
        """The stream of jobs ends: so do its leases."""
        self._told.hung_up("jobs.stream")
        self._workload.held = [job for job in self._workload.held if job.node != "jobs.stream"]

    def _leave(self, caller: Caller) -> None:
        self._selector.unregister(caller.socket)
        caller.socket.close()
        self._callers.remove(caller)

    # --- asking and hearing

    def run_until(self, answers: int) -> None:
        """Ask and hear, until so many answers have come."""
        while self.answers < answers and self._callers:
            self._turn(asks=True)

    def run_for(self, seconds: float) -> None:
        """Ask and hear for a while."""
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until and self._callers:
            self._turn(asks=True, wait_s=POLL_S)

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Ask and hear as long as the condition holds and anybody is there."""
        while condition() and self._callers:
            self._turn(asks=True, wait_s=POLL_S)

    def settle(self) -> None:
        """Hear all that is due, and ask no more."""
        while any(caller.client.in_flight for caller in self._callers):
            self._turn(asks=False)

    def follow(self, seqs: Mapping[str, Set[int]]) -> None:
        """Hear, and ask nothing, until everyone who follows these topics was sent these records (SS9, WS6)."""
        for caller in [caller for caller in self._callers if caller.client.topics]:
            for topic, wanted in seqs.items():
                while wanted - self._told.streamed[caller.name, topic]:
                    self._turn(asks=False)

    def hear_the_rest(self) -> None:
        """The server is dead: what it had sent is still with the kernel."""
        for caller in self._callers:
            while not caller.is_gone:
                self._hear(caller)

    def _turn(self, *, asks: bool, wait_s: float = PATIENCE_S) -> None:
        for caller in self._callers:
            if asks and not caller.unsent and caller.client.room > 0:
                count = self._rng.randint(1, caller.client.room)
                self._ask(caller, [self._workload.next(caller.name, caller.client.takes) for _ in range(count)])
            caller.send()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
            self._selector.modify(caller.socket, wanted, caller)
        ready = self._selector.select(wait_s)
        now = self._clock.monotonic()
        self._heard_at = now if ready else self._heard_at
        is_silent = now - self._heard_at > PATIENCE_S or not (ready or wait_s < PATIENCE_S)
        assert not is_silent, f"the server is silent; not answered: {self._told.open_calls}"
        for key, _ in ready:
            self._hear(key.data)
            if key.data.is_gone:
                assert self.may_end, f"the server has ended {key.data.name}"
                self._leave(key.data)

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


def looked_at(address: Address, looking: Look[T]) -> T:
    """Carry out a look over a connection of its own."""
    client = Http1(1 << 30)
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
