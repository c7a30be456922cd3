"""What every way to sync has in common: the file that it is given, whom it tells, and what can be asked of it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

Done = Callable[[OSError | None], None]  # told once that a sync has ended, or why it counts as failed


class OpenFile(Protocol):
    """What a sync needs of a file. `number` names it to a helper and is never used twice."""

    name: str
    number: int

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        ...

    def duplicate(self) -> int:
        """A second descriptor of the open file, which its receiver closes."""
        ...


class Way(Protocol):
    """One way to sync, for one event loop."""

    loop: asyncio.AbstractEventLoop
    has_ended: bool

    @property
    def pid(self) -> int | None:
        """The process that syncs, if it is one of its own."""
        ...

    def start(self, file: OpenFile, done: Done) -> None:
        """Sync what was written by now, and call back in a later turn of the loop. OSError: it cannot be asked for."""
        ...

    def forget(self, file: OpenFile) -> None:
        """The file is closed. Called on any thread."""
        ...

    def kill_if_silent(self) -> None:
        """End if the sync that was due at the last call is still due: it hangs."""
        ...

    def end(self) -> None:
        """Syncs that still wait fail."""
        ...
