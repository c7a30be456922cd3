"""The end of a client, a stream or a worker, told to whatever is under way. Knows no socket, thread or event loop.

A Stop is set once. `with stop.ending(end):` calls `end` if the Stop, or one above it, is set meanwhile or was before.
Nothing here takes a lock, so any thread may set one, and so may a signal handler that interrupts a wait for it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from topics.errors import InvalidRequest

End = Callable[[], object]  # may be called twice, from any thread


class Stop:
    """A flag that ends waits. It counts as set if the one `above` it is."""

    def __init__(self, above: "Stop | None" = None) -> None:
        self._above = above
        self._is_set = False
        self._ends: dict[Ending, End] = {}

    def is_set(self) -> bool:
        return self._is_set or (self._above is not None and self._above.is_set())

    def set(self) -> None:
        self._is_set = True
        for end in list(self._ends.values()):
            end()

    def ending(self, end: End) -> "Ending":
        return Ending(self, end)

    def _hold(self, ending: "Ending", end: End) -> None:
        self._ends[ending] = end
        if self._above is not None:
            self._above._hold(ending, end)

    def _drop(self, ending: "Ending") -> None:
        self._ends.pop(ending, None)
        if self._above is not None:
            self._above._drop(ending)


class Ending:
    """A wait that a Stop can end."""

    __slots__ = ("_end", "_stop")

    def __init__(self, stop: Stop, end: End) -> None:
        self._stop = stop
        self._end = end

    def __enter__(self) -> Self:
        self._stop._hold(self, self._end)
        if self._stop.is_set():
            self._end()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop._drop(self)


@contextmanager
def on_signals(call: Callable[[], object]) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM call this instead of what they did before. For the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest("handle_signals works in the main thread only; call stop elsewhere")
    before = {number: signal.signal(number, lambda *_: call()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
