"""Lasting heads: how far a source is there for good, for dests in memory, which cannot give a copy back.

Owns the heads of such sources that wait for their gate.
"""

from collections import deque
from collections.abc import Callable

from topics.core.routing.table import Router
from topics.core.state import Topic
from topics.engine.gate import Gate, Gates

Ends = tuple[int, int]  # source, dest in memory


class LastingHeads:
    """How far the sources of dests in memory may be copied."""

    def __init__(self, gates: Gates, on_open: Callable[[Topic], None]) -> None:
        self._gates = gates
        self._on_open = on_open  # more of a source may be copied
        self._waiting: dict[Ends, deque[tuple[int, Gate]]] = {}  # heads and their gates, ascending; some may be open
        self._reached: dict[Ends, int] = {}  # the highest head whose gate was open

    def __bool__(self) -> bool:
        return any(not self._gates.is_open(waiting[-1][1]) for waiting in self._waiting.values())

    def clear(self) -> None:
        self._waiting.clear()
        self._reached.clear()

    def of(self, source: Topic, dest: Topic) -> int:
        """The highest seq of the source that may be copied."""
        gates, ends, head = self._gates, (source.id, dest.id), source.log.head
        one, other = gates.of(source), gates.of(dest)
        gate = Gate(max(one.synced_at, other.synced_at), one.written_at, one.generation)
        waiting = self._waiting.setdefault(ends, deque())
        if not waiting or waiting[-1][0] < head:
            waiting.append((head, gate))
            if not gates.is_open(gate):
                gates.when_open(gate, lambda _: self._on_open(source))
        while waiting and gates.is_open(waiting[0][1]):
            self._reached[ends] = waiting.popleft()[0]
        if not waiting:
            del self._waiting[ends]
        return self._reached.get(ends, 0)

    def gate_of(self, router: Router) -> Gate | None:
        """What a router waits for before it may copy all of its source; None: nothing."""
        waiting = self._waiting.get((router.source, router.dest))
        return waiting[-1][1] if waiting and not self._gates.is_open(waiting[-1][1]) else None
