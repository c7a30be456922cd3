"""An open-loop client: requests fall due at fixed times, however long the answers take, on one epoll loop.

The time of a request counts from when it was due, not from when it was sent: a server that stalls is charged for all
who had to wait meanwhile, and so is a client that cannot keep up. Beside a server that does nothing, the same client
shows how much of it is its own.
"""

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.wire import http
from bench.wire.epoll import RECEIVE_BYTES, ready_by

GRACE_S: Final = 300.0  # for the answers that are due at the end
TURN_NS: Final = 100_000_000  # at most that long nothing is looked at

Asking = Callable[[int], bytes]  # the request that was due at this time, in ns
Following = Callable[[bytes], tuple[str, bytes] | None]  # what to ask next, and what to call it


@dataclass(eq=False)
class Role:
    """Requests of one kind: so many per second, on connections of their own."""

    name: str
    per_s: float
    connections: Sequence[socket.socket]
    ask: Asking
    follow: Following = lambda _: None  # after an answer, on the same connection


@dataclass
class _Sent:
    """A request that is under way."""

    name: str
    due_ns: int
    role: Role
    answer: bytes = b""


@dataclass
class Paced:
    """What came of it: the times of each kind of request, in ns."""

    times: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, name: str, time_ns: int) -> None:
        self.times.setdefault(name, []).append(time_ns)


class _Pacer:
    def __init__(self, roles: Sequence[Role]) -> None:
        self._paced = Paced()
        self._epoll = select.epoll()
        self._by_descriptor = {one.fileno(): one for role in roles for one in role.connections}
        self._free = {role: deque(role.connections) for role in roles}
        self._waiting: dict[Role, deque[int]] = {role: deque() for role in roles}
        self._sent: dict[int, _Sent] = {}
        for descriptor in self._by_descriptor:
            self._epoll.register(descriptor, select.EPOLLIN)

    def run(self, roles: Sequence[Role], seconds: float) -> Paced:
        started = time.monotonic_ns()
        ending = started + int(seconds * 1e9)
        due = [(started + int(number * 1e6), number, role) for number, role in enumerate(roles)]
        heapq.heapify(due)
        while due or self._sent:
            now = time.monotonic_ns()
            while due and due[0][0] <= now:
                at, number, role = heapq.heappop(due)
                self._start(role, at)
                if (following := at + int(1e9 / role.per_s)) < ending:
                    heapq.heappush(due, (following, number, role))
            for descriptor, _ in ready_by(self._epoll, due[0][0] if due else now + TURN_NS):
                self._receive(descriptor)
            if now > ending + GRACE_S * 1e9:
                raise RuntimeError(f"{len(self._sent)} requests were not answered within {GRACE_S:.0f} s")
        self._paced.seconds = (time.monotonic_ns() - started) / 1e9
        self._epoll.close()
        return self._paced

    def _start(self, role: Role, due_ns: int) -> None:
        free = self._free[role]
        if free:
            self._send(free.popleft(), _Sent(role.name, due_ns, role), role.ask(due_ns))
        else:
            self._waiting[role].append(due_ns)

    def _send(self, connection: socket.socket, sent: _Sent, request: bytes) -> None:
        self._sent[connection.fileno()] = sent
        connection.sendall(request)

    def _receive(self, descriptor: int) -> None:
        connection, sent = self._by_descriptor[descriptor], self._sent.get(descriptor)
        received = connection.recv(RECEIVE_BYTES)
        if not received or sent is None:
            raise RuntimeError(f"the server has closed a connection or answered unasked: {received!r}")
        sent.answer += received
        if not http.is_whole(sent.answer):
            return
        if not http.is_good(sent.answer):
            raise RuntimeError(f"{sent.name} was refused: {sent.answer!r}")
        now = time.monotonic_ns()
        self._paced.note(sent.name, now - sent.due_ns)
        del self._sent[descriptor]
        following = sent.role.follow(sent.answer) if sent.name == sent.role.name else None
        if following is not None:
            self._send(connection, _Sent(following[0], now, sent.role), following[1])
        elif self._waiting[sent.role]:
            due_ns = self._waiting[sent.role].popleft()
            self._send(connection, _Sent(sent.role.name, due_ns, sent.role), sent.role.ask(due_ns))
        else:
            self._free[sent.role].append(connection)


def pace(roles: Sequence[Role], seconds: float) -> Paced:
    """Have each role ask for so long, wait for the last answers, and close its connections."""
    try:
        return _Pacer(roles).run(roles, seconds)
    finally:
        for role in roles:
            for connection in role.connections:
                connection.close()
