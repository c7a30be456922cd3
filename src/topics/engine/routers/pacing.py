"""Pacing: how much of the loop's time forwarding takes. Knows nothing of routers.

While others work on the loop, passes of the forwarder take a small share of its time, so that the records of several
writes go together; an idle loop is theirs. The share grows with the age of what is to be forwarded.
"""

from typing import Final

from topics.clock import Clock

IDLE_S: Final = 0.000_05  # a turn of the loop that takes no longer has nothing else to do
SHARE: Final = 0.08  # forwarding takes this share of the loop's time while others work
BEHIND_MS: Final = 100  # a record that was written this long ago makes forwarding "behind"
SHARE_BEHIND: Final = 0.5  # forwarding takes this share when it is behind and others leave half of the time unused
LATE_MS: Final = 5_000  # a record that was written this long ago makes forwarding "late"
SHARE_LATE: Final = 0.25  # forwarding takes this share when it is late, however busy others are


class Pacing:
    """When the next pass may begin."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pass_ended_at = 0.0
        self._pass_took_s = 0.0
        self._cpu_s = 0.0  # processor time of this thread when the last pass ended
        self._written_at = 0.0  # when a source was last written to

    def source_written(self) -> None:
        self._written_at = self._clock.monotonic()

    def pass_ended(self, started_at: float) -> None:
        self._pass_ended_at = self._clock.monotonic()
        self._pass_took_s = self._pass_ended_at - started_at
        self._cpu_s = self._clock.cpu_seconds()

    def is_idle(self, now: float) -> bool:
        """Whether nobody but the forwarder has used the loop since the last pass."""
        return now - self._pass_ended_at < IDLE_S and self._written_at <= self._pass_ended_at

    def wait_s(self, now: float, age_ms: int) -> float:
        """How long to leave the loop to others, if what is forwarded next was written so long ago."""
        others_s = now - self._pass_ended_at
        share = SHARE_LATE if age_ms > LATE_MS else SHARE
        if age_ms > BEHIND_MS and self._clock.cpu_seconds() - self._cpu_s < others_s / 2:
            share = SHARE_BEHIND
        return self._pass_took_s / share - others_s
