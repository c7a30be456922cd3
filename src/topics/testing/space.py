"""The space of a disk in memory: how much there is, and what is set aside of it.

A disk has room for 1 TiB unless one of its hooks is a `Limit`. What is set aside counts as used.
"""

import errno
import os
from collections.abc import Sequence
from typing import Final

from topics.storage.reserve import RESERVE_BYTES, reserve_sizes

FREE_BYTES: Final = 1 << 40


class Limit:
    """A hook of a disk that has no more than `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def room(self, disk: "Space") -> int:
        """So many bytes still fit."""
        return max(0, self.size - disk.used_bytes)

    def check(self, disk: "Space", more: int) -> None:
        """Refuse `more` bytes if they do not fit."""
        if more > self.room(disk):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Space:
    """The part of a disk that knows its space."""

    hooks: Sequence[object]

    def __init__(self) -> None:
        self.reserved_bytes = 0  # set aside
        self.total_bytes = 2 * FREE_BYTES
        self._free_bytes = FREE_BYTES

    def sizes(self) -> dict[str, int]:
        """Those of all files, by their names."""
        raise NotImplementedError

    @property
    def used_bytes(self) -> int:
        return sum(self.sizes().values()) + self.reserved_bytes

    @property
    def free_bytes(self) -> int:
        return min([self._free_bytes, *(limit.room(self) for limit in self.hooks if isinstance(limit, Limit))])

    @free_bytes.setter
    def free_bytes(self, size: int) -> None:
        self._free_bytes = size

    def set_space_aside(self) -> None:
        self.reserved_bytes, held = 0, self.reserved_bytes
        room = self.free_bytes
        self.reserved_bytes = max([held, *(size for size in reserve_sizes() if size <= room)])
        if self.reserved_bytes < RESERVE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "reserve")

    def use_reserved_space(self, kept_bytes: int = 0) -> bool:
        had, self.reserved_bytes = self.reserved_bytes, min(kept_bytes, self.reserved_bytes)
        return had > kept_bytes
