"""Bounds made small, so that short scripts reach what takes a busy server hours."""

from collections.abc import Iterator
from contextlib import contextmanager

from topics.core.topic import reservation
from topics.engine.durability import checkpoint
from topics.storage import snapshots, wal

SMALL = [
    (wal, "AHEAD_BYTES", 1500),  # the log asks for space every few writes
    (snapshots, "DELTAS_MAX", 2),  # every third checkpoint folds the deltas into a new base
    (snapshots, "DELTA_BYTES_MIN", 100_000),
    (checkpoint, "SMALL_PIECES_MAX", 2),  # small pieces are merged early
    (reservation, "RESERVE", 8),  # reservations run out every few records
]


@contextmanager
def small_bounds() -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in SMALL]
    for module, name, value in SMALL:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
