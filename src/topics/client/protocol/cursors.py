"""Where a consumer stands in a topic. Knows no socket: it says which diff to make next and takes what comes back.

Invariant: `seq` and `epoch` lie behind the last item handed out. Reading on from them misses nothing and repeats
nothing.
"""

from collections import deque
from typing import Any

from topics.client.protocol import operations
from topics.client.protocol.operations import Operation
from topics.client.results import Diff, Record
from topics.model import Tombstone

Item = Record | Tombstone


class Cursor:
    """A consumer's way through a topic: names the next diff, takes its result, hands out items."""

    def __init__(self, topic: str, seq: int, epoch: int | None, from_ts: int | None, **options: Any) -> None:
        self.topic = topic
        self.seq = seq
        self.epoch = epoch
        self.is_caught_up = False
        self._options = options
        self._from_ts = from_ts
        self._items: deque[tuple[Item, int, int]] = deque()  # each with the seq and epoch behind it
        self._next = (seq, epoch)  # where the next diff starts

    def next_diff(self, wait_ms: int) -> Operation[Diff]:
        seq, epoch = self._next
        return operations.diff(self.topic, seq, epoch=epoch, from_ts=self._from_ts, wait_ms=wait_ms, **self._options)

    def take(self, diff: Diff) -> None:
        self._from_ts = None
        self.is_caught_up = diff.caught_up
        self._next = (diff.next_from_seq, diff.epoch)
        if diff.tombstone is not None:
            self._items.append((diff.tombstone, diff.tombstone.earliest_seq - 1, diff.epoch))
        self._items += [(record, record.seq, diff.epoch) for record in diff.records]
        if self._items:
            self._items[-1] = (self._items[-1][0], diff.next_from_seq, diff.epoch)
        else:
            self.seq, self.epoch = diff.next_from_seq, diff.epoch

    def pop(self) -> Item | None:
        """The next item, or None if a diff is needed first."""
        if not self._items:
            return None
        item, self.seq, self.epoch = self._items.popleft()
        return item
