"""Sets of seqs that know their smallest ones, for the jobs of a queue. Pure."""

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

STALE_MAX = 64  # stale items that a heap may hold beside as many as it needs

T = TypeVar("T", bound=Any)


def heap_of(items: Iterable[T]) -> list[T]:
    """The items as a heap."""
    heap = list(items)
    heapify(heap)
    return heap


class Seqs(set[int]):
    """A set of seqs that knows its smallest ones. Only methods that are defined here may change it."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []  # all members, and some that have left

    def add(self, seq: int, /) -> None:
        if seq not in self:
            super().add(seq)
            heappush(self._heap, seq)

    def discard(self, seq: object, /) -> None:
        if seq in self:
            super().discard(seq)
            if len(self._heap) > STALE_MAX + 2 * len(self):
                self._heap = heap_of(self)

    def add_many(self, seqs: list[int]) -> None:
        """Add seqs, none of which is here; a fraction of the work of adding each."""
        super().update(seqs)
        self._heap += seqs
        self._heap.sort()  # a sorted list is a heap, and these are sorted for the most part

    def discard_many(self, seqs: Iterable[int]) -> None:
        """Take out those of these seqs that are here."""
        super().difference_update(seqs)
        if len(self._heap) > STALE_MAX + 2 * len(self):
            self._heap = heap_of(self)

    def keep(self, left: Callable[[Collection[int]], list[int]]) -> None:
        """Drop all but those that are left."""
        self._heap = sorted(left(self))
        super().clear()
        super().update(self._heap)

    def first(self, count: int) -> list[int]:
        """The smallest ones, ascending, at most `count`."""
        heap, found = self._heap, list[int]()
        while heap and len(found) < count:
            seq = heappop(heap)
            if seq in self and (not found or seq != found[-1]):
                found.append(seq)
        for seq in found:
            heappush(heap, seq)
        return found
