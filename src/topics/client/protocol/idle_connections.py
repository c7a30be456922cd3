"""Connections that wait for their next call. One pool for both clients: it neither opens, reads nor writes.

Every connection belongs to the owner who opened it, which is a process or an event loop. A new owner starts with no
connections: a forked child must not write to its parent's sockets, nor one event loop to those of another.
"""

import threading
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

IDLE_S_MAX: Final = 60.0  # the server closes after 75
IDLE_MAX: Final = 32  # connections kept


class Reusable(Protocol):
    idle_since: float

    def is_quiet(self) -> bool:
        """Is it open, with nothing to read? The server has nothing to say on an idle connection but its end."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Reusable)


class IdleConnections(Generic[C]):
    """Threads may share it. `owner` names the current owner."""

    def __init__(self, monotonic: Callable[[], float], owner: Callable[[], object]) -> None:
        self._monotonic = monotonic
        self._current_owner = owner
        self._owner = owner()
        self._lock = threading.RLock()  # a signal handler may close the client within a call
        self._connections: list[C] = []
        self._is_closed = False

    def take(self) -> C | None:
        """A connection that can be used, if there is one."""
        owner = self._current_owner()
        if self._owner != owner:  # a fork may have copied the lock while it was held
            self._lock, self._connections, self._owner = threading.RLock(), [], owner
        with self._lock:
            while self._connections:
                connection = self._connections.pop()
                if self._monotonic() - connection.idle_since < IDLE_S_MAX and connection.is_quiet():
                    return connection
                connection.close()
        return None

    def give_back(self, connection: C) -> None:
        """Keep a connection for a later call, or close it if there are enough."""
        connection.idle_since = self._monotonic()
        with self._lock:
            if not self._is_closed and len(self._connections) < IDLE_MAX:
                self._connections.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all; those given back later are closed at once."""
        with self._lock:
            connections, self._connections, self._is_closed = self._connections, [], True
        for connection in connections:
            connection.close()

    def __len__(self) -> int:
        return len(self._connections)
