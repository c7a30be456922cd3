"""A snapshot as its readers see it: topics, pieces and files, and what became of the seqs of a topic.

Owned here: which pieces of a topic count, how far it is sealed, and which of its seqs are lost, all as of one
snapshot. It knows items, no files: neither the segments that a snapshot names, nor the directory that they are in.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from topics.core.dump import TopicItem
from topics.engine.durability.recovery import Contents
from topics.errors import InvalidRequest
from topics.model import Reason
from topics.storage.segments import PieceRef


class Lost(NamedTuple):
    """Seqs `first`..`last`, lost to a cap, to age or with a router's source; not deleted on purpose."""

    first: int
    last: int
    reason: Reason  # cap, ttl, mixed or source_trim


_decode_topic = msgspec.msgpack.Decoder(TopicItem).decode


class Snapshot(Contents):
    """What a snapshot says of topics, pieces and files. `names` are the snapshot files that were there."""

    def __init__(self, names: list[str], items: Mapping[bytes, bytes]) -> None:
        super().__init__(items)
        self.names = names
        self.topics = {item.name: item for item in (_decode_topic(items[key]) for key in items if key[:1] == b"t")}
        self._pieces: dict[int, list[PieceRef]] = {}  # by topic, ascending
        for ref in self.pieces:
            self._pieces.setdefault(ref.topic, []).append(ref)

    def pieces_of(self, item: TopicItem) -> list[PieceRef]:
        """The pieces of a topic that lie above its floor. What an ephemeral topic once sealed does not count."""
        if not sealed_through_of(item):
            return []
        refs = self._pieces.get(item.id, [])
        return refs[bisect_left(refs, floor_of(item), key=lambda ref: ref.last) :]


def floor_of(item: TopicItem) -> int:
    return max(item.evicted_last, item.expired_last) + 1


def sealed_through_of(item: TopicItem) -> int:
    """A checkpoint seals all records of a topic, so segments reach as far as its item."""
    return 0 if item.config.durability == "ephemeral" else item.head


def lost_in(item: TopicItem, after: int, last: int) -> Iterator[Lost]:
    """The stretches of after + 1 .. last that were lost, ascending. Below the floor, all of it counts (TM4)."""
    first, floor = after + 1, floor_of(item)
    if first < floor and first <= last:
        reason: Reason = "mixed"
        if item.expired_last < first:
            reason = "cap"
        elif item.evicted_last < first:
            reason = "ttl"
        yield Lost(first, min(last, floor - 1), reason)
    for gap in item.gaps:
        start, end = max(gap.first, first, floor), min(gap.last, last)
        if start <= end:
            yield Lost(start, end, gap.reason)


def bounded(item: TopicItem, after: int, last: int | None) -> int:
    """The last seq of a range, within what is sealed."""
    if after < 0:
        raise InvalidRequest(f"after is {after}; a cursor is not negative")
    sealed_through = sealed_through_of(item)
    return sealed_through if last is None else min(last, sealed_through)
