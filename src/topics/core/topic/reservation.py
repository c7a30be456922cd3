"""Seqs handed out ahead of a sync (DU10): how many, and what a record has to wait for. The rule lives here alone.

A topic of class disk or memory shows records that a power loss can still take. So that no seq is handed out twice, the
log says ahead of time up to which seq the topic may go (`Reserved`), and a record is shown only once a reservation that
covers its seq is synced. After a power loss, what was reserved and is not there is announced as lost.

Pure: log positions come from the caller.
"""

from topics.core.entries import AnyEntry, Reserved
from topics.model import TopicConfig

RESERVE = 65_536  # seqs that a topic may hand out ahead of a sync


def is_reserving(config: TopicConfig) -> bool:
    """Whether a topic of this class hands out seqs ahead of a sync."""
    return config.durability in ("disk", "memory")


class Reservation:
    """The seqs that one topic may hand out."""

    __slots__ = ("ample_through", "durable", "last", "position")

    def __init__(self) -> None:
        self.position = 0  # in the log, of the entry that set `last`
        self.last = self.durable = RESERVE  # the latter is known to be synced
        self.ample_through = RESERVE - RESERVE // 2  # a higher seq asks for a new reservation

    def set(self, last: int) -> None:
        """Seqs up to `last` may be handed out."""
        self.last = last
        self.ample_through = last - RESERVE // 2

    def restore(self, last: int) -> None:
        """Go on with a reservation that is on disk."""
        self.set(last)
        self.durable = last

    def renewal(self, topic: int, config: TopicConfig, last: int) -> list[AnyEntry]:
        """The entry that reserves further seqs, if handing out those up to `last` asks for it."""
        return [Reserved(topic, last + RESERVE)] if last > self.ample_through and is_reserving(config) else []

    def renewal_for_class(self, topic: int, config: TopicConfig, head: int) -> list[AnyEntry]:
        """The entry by which a topic that changes its class starts with all that may be reserved."""
        return [Reserved(topic, head + RESERVE)] if is_reserving(config) and self.last < head + RESERVE else []

    def sync_needed_for(self, head: int, synced: int, end: int, *, is_renewed: bool = False) -> int:
        """The position below which the log must be synced before records up to `head` may be shown; 0 = none.

        The log is synced below `synced` and ends at `end`. `is_renewed`: the frame that comes next has a new
        reservation.
        """
        if head <= self.durable:
            return 0
        if synced >= self.position:
            self.durable = self.last
            if head <= self.last:
                return 0
        return end + 1 if is_renewed or head > self.last else self.position
