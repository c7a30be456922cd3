"""What a client was told: the only thing that a check may rely on.

Every value that is written is unique, so a value says where it came from. A call is `open` until it is answered; what
is open when the server dies may be there or not, as a whole.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Open:
    """A call without an answer."""

    values: tuple[bytes, ...] = ()  # it would add
    seqs: frozenset[int] = frozenset()  # it would take away


@dataclass
class TopicTold:
    """One topic, as its clients know it."""

    config: dict[str, Any]
    written: dict[int, bytes] = field(default_factory=dict)  # acked, by seq
    copied: set[bytes] = field(default_factory=set)  # by routers that are gone
    gone: set[int] = field(default_factory=set)  # by deletes and acks that were acked
    doubtful: set[int] = field(default_factory=set)  # by such that were never answered
    refused: set[bytes] = field(default_factory=set)
    open: list[Open] = field(default_factory=list)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)  # by readers
    leases: dict[int, str] = field(default_factory=dict)  # seq → node that holds it

    @property
    def durability(self) -> str:
        return str(self.config.get("durability", "disk"))

    @property
    def loses_by_itself(self) -> bool:
        """Whether records may go that nobody deleted; then it is told."""
        return bool(self.config.get("cap_records") or self.config.get("ttl_ms")) or self.durability == "ephemeral"

    def is_weak(self, is_power_loss: bool) -> bool:
        """Whether what was acked may be lost."""
        return self.durability == "ephemeral" or (is_power_loss and self.durability != "fsync")


@dataclass
class Told:
    topics: dict[str, TopicTold] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    uncertain: set[str] = field(default_factory=set)  # topics whose making, change or end was never answered
    routes: dict[str, tuple[str, str]] = field(default_factory=dict)
    redriven: set[str] = field(default_factory=set)  # topics whose dead letters were made jobs again
    refusals: int = 0
    acks: int = 0
