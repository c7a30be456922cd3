"""The records that a producer has taken and not sent yet, in order, and when the next batch is due. Pure.

Invariants: batches are taken in the order in which records came. What waits, and what is on its way, is at most
`pending_bytes_max`, unless a single record is larger.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct

F = TypeVar("F")  # a receipt

RECORD_BYTES: Final = 1_000  # what a record that waits takes beside its text, about
BATCH_RECORDS_MAX: Final = 10_000  # the server's own limit, unless it was set
LINGER_MS: Final = 5.0
BATCH_BYTES: Final = 1024 * 1024
SPLIT_BYTES: Final = 16 * 1024 * 1024  # of one part of an append that is split
PENDING_BYTES: Final = 64 * 1024 * 1024
GIVE_UP_MS: Final = 120_000


class OutboxPlan(Struct, frozen=True):
    """How a producer batches: a batch goes when it is full, or when its first record has waited for `linger_ms`."""

    topic: str
    node: str | None
    linger_ms: float
    max_records: int
    max_bytes: int
    pending_bytes_max: int


class Batch(Struct, Generic[F], frozen=True):
    """Records that go in one write, under one key."""

    texts: list[bytes]
    receipts: list[F]
    key: str

    def halves(self) -> "tuple[Batch[F], Batch[F]]":
        """The same records, in two batches with keys of their own."""
        half = len(self.texts) // 2
        first = Batch(self.texts[:half], self.receipts[:half], f"{self.key}a")
        return first, Batch(self.texts[half:], self.receipts[half:], f"{self.key}b")

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self.texts)) + RECORD_BYTES * len(self.texts)


class Outbox(Generic[F]):
    """`key` makes a new key for each batch."""

    def __init__(self, plan: OutboxPlan, monotonic: Callable[[], float], key: Callable[[], str]) -> None:
        self._plan = plan
        self._monotonic = monotonic
        self._key = key
        self._records: deque[tuple[bytes, F, float]] = deque()  # text, receipt, when it came
        self._bytes = 0  # of the texts that wait
        self._pending_bytes = 0
        self._flush_up_to = 0
        self.taken_total = 0  # records taken from the user
        self.answered_total = 0
        self._sent_total = 0

    def has_room(self, size: int) -> bool:
        return not self._pending_bytes or self._pending_bytes + size + RECORD_BYTES <= self._plan.pending_bytes_max

    def add(self, text: bytes, receipt: F) -> bool:
        """Take a record. Whether the sender must be told: it sleeps for ever, or until a batch is full."""
        was_empty, was_full = not self._records, self._is_full
        self._records.append((text, receipt, self._monotonic()))
        self._bytes += len(text)
        self._pending_bytes += len(text) + RECORD_BYTES
        self.taken_total += 1
        return was_empty or (self._is_full and not was_full)

    @property
    def _is_full(self) -> bool:
        return len(self._records) >= self._plan.max_records or self._bytes >= self._plan.max_bytes

    @property
    def is_empty(self) -> bool:
        return not self._records

    def flush(self) -> int:
        """Let all that waits be due. How many records there are up to here."""
        self._flush_up_to = self.taken_total
        return self.taken_total

    def due_in_s(self) -> float | None:
        """When to take the next batch: in how many seconds, 0 for now, None if there is nothing."""
        if not self._records:
            return None
        if self._is_full or self._sent_total < self._flush_up_to:
            return 0.0
        return max(0.0, self._records[0][2] + self._plan.linger_ms / 1000 - self._monotonic())

    def take(self) -> Batch[F]:
        """The next batch."""
        texts: list[bytes] = []
        receipts: list[F] = []
        size = 0
        while self._records and len(texts) < self._plan.max_records:
            text, receipt, _ = self._records[0]
            if texts and size + len(text) > self._plan.max_bytes:
                break
            self._records.popleft()
            texts.append(text)
            receipts.append(receipt)
            size += len(text) + 1
        self._bytes -= sum(map(len, texts))
        self._sent_total += len(texts)
        return Batch(texts, receipts, self._key())

    def answered(self, batch: Batch[F]) -> None:
        """A batch was written, or it failed: there is room again."""
        self._pending_bytes -= batch.pending_bytes
        self.answered_total += len(batch.texts)


def parts_of(texts: list[bytes], max_records: int, max_bytes: int) -> list[range]:
    """Where to cut a list of texts so that no part is above a limit, unless it is a single text."""
    parts, start, size = [], 0, 0
    for n, text in enumerate(texts):
        if n > start and (n - start >= max_records or size + len(text) > max_bytes):
            parts.append(range(start, n))
            start, size = n, 0
        size += len(text) + 1
    return [*parts, range(start, len(texts))]
