"""Where a consumer stands in a topic. Knows no socket: it says which diff to make next and takes what comes back.

Invariant: `seq` and `epoch` lie behind the last item handed out. Reading on from them misses nothing and repeats
nothing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar

from topics.client.arguments import Match, refuse_unknown
from topics.client.protocol import operations
from topics.client.protocol.operations import Operation
from topics.client.results import Diff, Lost, Record, TypedRecord

R = TypeVar("R", bound=Record)  # what a consumer makes of records


class ReadOptions(TypedDict, total=False):
    """What `diff` and `consume` read, and how. An option left out has the server's default."""

    limit: int | None
    node: str | Sequence[str] | None
    include_tags: bool
    include_meta: bool
    max_batch_bytes: int | None
    epoch: int | None
    filter: Match | None
    from_ts: int | None


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of a read. Python checks no names of a TypedDict, and the server ignores those it does not know."""
    refuse_unknown(options, list(ReadOptions.__annotations__), "an option of a read")
    return options


class Cursor(Generic[R]):
    """A consumer's way through a topic: names the next diff, takes its result, hands out items.

    `kind`: the type of the records' values; None to leave them as they are.
    """

    def __init__(self, topic: str, seq: int, kind: Any, options: Mapping[str, Any]) -> None:
        self.topic = topic
        self.seq = seq
        self._options = dict(checked(options))
        self.epoch: int | None = self._options.pop("epoch", None)
        self.is_caught_up = False
        self._from_ts: int | None = self._options.pop("from_ts", None)
        self._kind = kind
        self._items: deque[tuple[R | Lost, int, int]] = deque()  # each with the seq and epoch behind it
        self._next = (seq, self.epoch)  # where the next diff starts

    def next_diff(self, wait_ms: int) -> Operation[Diff]:
        seq, epoch = self._next
        return operations.diff(self.topic, seq, epoch=epoch, from_ts=self._from_ts, wait_ms=wait_ms, **self._options)

    def take(self, diff: Diff) -> None:
        self._from_ts = None
        self.is_caught_up = diff.caught_up
        self._next = (diff.next_from_seq, diff.epoch)
        if diff.tombstone is not None:
            lost = Lost.of(self.topic, diff.tombstone)
            self._items.append((lost, lost.earliest_seq - 1, diff.epoch))
        self._items += [(self._made_of(record), record.seq, diff.epoch) for record in diff.records]
        if self._items:
            self._items[-1] = (self._items[-1][0], diff.next_from_seq, diff.epoch)
        else:
            self.seq, self.epoch = diff.next_from_seq, diff.epoch

    def _made_of(self, record: Record) -> R:
        made: Any = record if self._kind is None else TypedRecord.of(record, self._kind)
        return made  # type: ignore[no-any-return]

    def go_to(self, seq: int, epoch: int | None) -> None:
        """Go on behind another seq. Items that were read and not handed out are forgotten."""
        self.seq, self.epoch, self._from_ts = seq, epoch, None
        self._next = (seq, epoch)
        self._items.clear()

    @property
    def is_empty(self) -> bool:
        """Is a diff needed for the next item?"""
        return not self._items

    def pop(self) -> R | Lost | None:
        """The next item, or None if a diff is needed first."""
        if not self._items:
            return None
        item, self.seq, self.epoch = self._items.popleft()
        return item
