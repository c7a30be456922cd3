"""What a client tells about itself: log lines on `topics.client`, and the functions that its user gave it.

A hook is called on the thread, or the event loop, of the call that it is about. One that raises is logged, and changes
nothing else.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from topics.client.errors import ApiError, ClientError
from topics.client.results import Lost

logger = logging.getLogger("topics.client")

QUIET_S: Final = 1.0  # a call that is tried again for longer is worth a warning


class Retrying(Struct, frozen=True):
    """A call failed and will be tried again. `tries` counts those made, `elapsed_s` is the time since the first."""

    method: str
    path: str
    tries: int
    wait_s: float
    elapsed_s: float
    failure: ApiError | ClientError


class Reconnecting(Struct, frozen=True):
    """A watch lost its stream and opens it again. `failure` is None if the server ended it in good order."""

    topics: tuple[str, ...]
    failure: ApiError | ClientError | None


class Hooks(Struct, frozen=True):
    """The functions to call. None is pickled with a client."""

    on_retry: Callable[[Retrying], object] | None = None
    on_reconnect: Callable[[Reconnecting], object] | None = None
    on_gap: Callable[[Lost], object] | None = None

    def retrying(self, event: Retrying) -> None:
        level = logging.WARNING if event.elapsed_s + event.wait_s > QUIET_S else logging.INFO
        logger.log(level, "%s; try %d follows in %.2f s", event.failure, event.tries + 1, event.wait_s)
        call(self.on_retry, event)

    def reconnecting(self, event: Reconnecting) -> None:
        how = event.failure or "the server ended it"
        logger.info("the watch of %s opens its stream again: %s", ", ".join(event.topics), how)
        call(self.on_reconnect, event)

    def gap(self, lost: Lost) -> None:
        call(self.on_gap, lost)


def call(hook: Callable[[Any], object] | None, event: Any) -> None:
    """Call a hook, if there is one."""
    if hook is None:
        return
    try:
        hook(event)
    except Exception:
        logger.exception("the hook %r failed", hook)
