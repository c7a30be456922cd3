"""What is kept in memory, and what may be (LM14): for those who show it, and for the server, which keeps things, too.

What the state weighs is counted by the core (core/memory.py), which also refuses what would make it weigh too much. The
server's own tables, of those who follow topics, are counted here. Must not know: what is in them.
"""

import sys
from typing import Final

from topics.core.decide import Caps
from topics.core.memory import used
from topics.engine.ledger import Ledger
from topics.errors import Throttled

WRITE_TIMES: Final = 2  # what a body weighs until its write is decided
HELD_SHARE: Final = 4  # of the memory there may be, one part is for those who follow topics


class Footprint:
    """What an instance weighs in memory, by estimate."""

    def __init__(self, ledger: Ledger, caps: Caps) -> None:
        self._ledger = ledger
        self.limit = caps.max_memory_bytes

    @property
    def used(self) -> int:
        return used(self._ledger.state)

    @property
    def largest_write(self) -> int:
        """How large the body of a write may be for which there is room: it weighs twice as much until it is decided."""
        return max(0, (self.limit or sys.maxsize) - self.used) // WRITE_TIMES

    def hold(self, size: int) -> None:
        """The server holds so much for those who follow topics; below 0: it holds so much no longer."""
        self._ledger.state.memory_beside += size

    def check_held(self, size: int) -> None:
        """Refuse what makes the server hold more than its share, which writers cannot use up."""
        held, most = self._ledger.state.memory_beside + size, self.limit // HELD_SHARE
        if most and held > most:
            raise Throttled(
                f"what is followed would be about {held} bytes in memory, at most {most}; follow fewer topics, or "
                "with fewer nodes",
                limit="max_memory_bytes",
                max=self.limit,
            )
