"""How long a test waits for what must come: one bound, which only tells a hang from a slow machine.

What a wait takes on a quiet machine says nothing about a busy one, so no wait has a bound of its own: twenty times the
usual load makes a second of Spark half a minute. A wait ends when its condition holds; a test whose condition never
does fails after `PATIENCE_S`, well before the runner gives up the whole test.
"""

import threading
from collections.abc import Callable
from typing import Final

from topics.clock import SystemClock

PATIENCE_S: Final = 1200.0
PATIENCE_MS: Final = int(PATIENCE_S * 1000)
POLL_S: Final = 0.005


def wait_until(what: str, condition: Callable[[], object]) -> None:
    """Poll until the condition holds; `what` says what is wrong if it never does."""
    clock, turn = SystemClock(), threading.Event()
    give_up_at = clock.monotonic() + PATIENCE_S
    while not condition():
        assert clock.monotonic() < give_up_at, f"{what}: not within {PATIENCE_S:.0f} s"
        turn.wait(POLL_S)
