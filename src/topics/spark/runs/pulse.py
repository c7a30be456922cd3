"""A file that says how a job is that runs for ever, for whoever watches over it: one JSON object, replaced as a whole.

    {"ok": true, "at": 1794900000000, "pid": 4711, "rows": 120000, "lag": 12, "error": null}

`at` is when the job last came round (epoch-ms): a job that hangs or has ended is one whose file grows old. The file is
not synced and not removed at the end; what it says then is `"ok": false`, or `"ended": true`.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from topics.clock import Clock
from topics.errors import ConfigurationError


class Pulse:
    """Writes the file. Without a path it does nothing."""

    def __init__(self, path: str | None, clock: Clock) -> None:
        self._path = None if path is None else Path(path)
        self._clock = clock

    def beat(self, *, error: str | None = None, **said: Any) -> None:
        """The job is alive; `error` is what keeps it from its work just now."""
        if self._path is None:
            return
        content = {"ok": error is None, "at": self._clock.now_ms(), "pid": os.getpid(), **said, "error": error}
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            aside.write_bytes(msgspec.json.encode(content) + b"\n")
            aside.replace(self._path)
        except OSError as failure:
            raise ConfigurationError(f"--health is {self._path}: it cannot be written: {failure}") from None
