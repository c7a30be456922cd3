"""The same bytes to many sockets: one system call for all of them where the kernel has a queue, else one for each.

In one call the sends follow each other without a return to this process. Whoever is woken by the first does not take
its processor before the last, and then finds everything there.

Nothing waits: a socket takes what it has room for. Must not know: whose sockets these are.
"""

import ctypes
import os
from array import array
from typing import Final

from topics.uring.rings import REQUEST_BYTES, Rings

AT_ONCE: Final = 128  # sends in one call, which takes a millisecond
_SEND: Final = 26  # the operation
_WITHOUT_WAITING: Final = 0x40 | 0x4000  # MSG_DONTWAIT, MSG_NOSIGNAL
_WORDS: Final = REQUEST_BYTES // 4  # of a request: operation · descriptor · · · address · · size · flags · number ·
_LONGS: Final = REQUEST_BYTES // 8
_NUMBERS: Final = array("I", range(AT_ONCE))
_WRAP: Final = 0xFFFFFFFF

# Sockets that have not taken all, by their place among those of a call, and how many bytes they took.
Short = list[tuple[int, int]]


class Sends:
    """Sends to many sockets. The queue is opened with the first of them."""

    def __init__(self) -> None:
        self._queue: _Queue | None = None
        self._may_queue = True

    def send(self, descriptors: list[int], data: bytes) -> Short:
        """Send `data` to at most AT_ONCE sockets."""
        if len(descriptors) > 1 and self._may_queue and self._queue is None:
            self._open()
        if len(descriptors) == 1 or self._queue is None:
            return _send_each(descriptors, data, 0)
        return self._queue.send(descriptors, data)

    def _open(self) -> None:
        try:
            self._queue = _Queue()
        except OSError:
            self._may_queue = False

    def close(self) -> None:
        self._may_queue = False
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.rings.close()


class _Queue:
    """The kernel's queue, filled and emptied within each call."""

    def __init__(self) -> None:
        self.rings = Rings(AT_ONCE)
        self._words = memoryview(self.rings.requests).cast("B").cast("I")
        self._longs = memoryview(self.rings.requests).cast("B").cast("Q")
        for number in range(AT_ONCE):
            self._words[_WORDS * number] = _SEND
            self._words[_WORDS * number + 7] = _WITHOUT_WAITING
            self._longs[_LONGS * number + 4] = number

    def send(self, descriptors: list[int], data: bytes) -> Short:
        count = len(descriptors)
        words, longs = self._words, self._longs
        words[1 : _WORDS * count : _WORDS] = array("I", descriptors)
        address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        longs[2 : _LONGS * count : _LONGS] = array("Q", (address,)) * count
        words[6 : _WORDS * count : _WORDS] = array("I", (len(data),)) * count
        taken = self._hand_over(count)
        short = self._short(taken, len(data))
        return short + _send_each(descriptors, data, taken) if taken < count else short

    def _hand_over(self, count: int) -> int:
        """Hand the first requests to the kernel; how many it has carried out."""
        rings = self.rings
        words, places = rings.words, rings.places
        tail = words[rings.tail]
        start = tail & (AT_ONCE - 1)
        first = min(count, AT_ONCE - start)
        words[places + start : places + start + first] = _NUMBERS[:first]
        words[places : places + count - first] = _NUMBERS[first:count]
        words[rings.tail] = (tail + count) & _WRAP
        taken = max(0, rings.enter(count, awaited=count))
        if taken < count:
            words[rings.tail] = (tail + taken) & _WRAP
        return taken

    def _short(self, count: int, size: int) -> Short:
        """Take the results of so many sends."""
        rings = self.rings
        words, head = rings.words, rings.words[rings.result_head]
        assert (words[rings.result_tail] - head) & _WRAP == count, "a send that does not wait has no result"
        start = head & rings.mask
        first = min(count, rings.mask + 1 - start)
        spans = (rings.results + 4 * start, first), (rings.results, count - first)
        results = [one for at, length in spans for one in words[at + 2 : at + 4 * length : 4].tolist()]
        short: Short = []
        if results != [size] * count:
            numbers = [one for at, length in spans for one in words[at : at + 4 * length : 4].tolist()]
            short = [(number, _signed(one)) for number, one in zip(numbers, results, strict=True) if one != size]
        words[rings.result_head] = (head + count) & _WRAP
        return [(number, max(0, taken)) for number, taken in short]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _send_each(descriptors: list[int], data: bytes, start: int) -> Short:
    """One call for each socket from `start` on."""
    short: Short = []
    for number in range(start, len(descriptors)):
        try:
            taken = os.write(descriptors[number], data)
        except OSError:  # it is full, or gone, which its owner will hear
            taken = 0
        if taken < len(data):
            short.append((number, taken))
    return short
