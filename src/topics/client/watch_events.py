"""What a watch delivers: records, ranges that are lost, and that a topic is read to its end, or gone."""

import msgspec
from msgspec import Struct

from topics.client.record_types import Record
from topics.model import Tombstone


class Records(Struct, frozen=True):
    """A watch delivers the next records of a topic. They cover every seq above `from_seq` and up to `to_seq`."""

    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class Lost(Tombstone, frozen=True, kw_only=True):
    """A tombstone, and its topic: a reader missed seqs `gap_from` to `gap_to`. Consumers and watches hand it out."""

    topic: str
    missed_estimate: int = -1  # a watch does not say; then all of them

    def __post_init__(self) -> None:
        if self.missed_estimate < 0:
            msgspec.structs.force_setattr(self, "missed_estimate", self.gap_to - self.gap_from + 1)

    @classmethod
    def of(cls, topic: str, tombstone: Tombstone) -> "Lost":
        return cls(topic=topic, **msgspec.structs.asdict(tombstone))


class CaughtUp(Struct, frozen=True):
    """A watch has delivered everything that a topic has."""

    topic: str
    head_seq: int


class TopicGone(Struct, frozen=True):
    """A watched topic was deleted; the watch delivers nothing more of it."""

    topic: str
    head_seq: int
    reason: str = "deleted"


WatchEvent = Records | Lost | CaughtUp | TopicGone
