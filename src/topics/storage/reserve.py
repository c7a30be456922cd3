"""Space of the disk that is kept back, so that what frees space can be done on a full disk (ST16).

It is a file, allocated and not used. It shrinks in steps, so that no use of it leaves nothing for the next one:
frames of the log that free space leave KEPT_FOR_FILES, a checkpoint leaves KEPT_FOR_RELEASE, and what only removes
files, which needs a few KiB for the snapshot that says so, may have all of it. Where there is no room for all of it,
there is a half, or a quarter, and so on: whatever is left of the disk.
"""

import errno
import os
import sys
from collections.abc import Iterator
from typing import Final

from topics.storage.processes import SpareDescriptors

RESERVE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 4 * 1024 * 1024
RESERVE_BYTES_MIN: Final = 16 * 1024
KEPT_FOR_FILES: Final = RESERVE_BYTES // 2
KEPT_FOR_RELEASE: Final = 256 * 1024
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def reserve_sizes() -> Iterator[int]:
    """How much may be kept back, the most first."""
    size = RESERVE_BYTES
    while size >= RESERVE_BYTES_MIN:
        yield size
        size //= 2


class Reserve:
    """The reserve of a directory that is open."""

    def __init__(self, directory: int, spare: SpareDescriptors) -> None:
        self._directory = directory
        self._spare = spare

    def fill(self) -> None:
        """Keep all of it back; OSError if that does not fit, and then as much as does. Blocking."""
        descriptor = self._open(os.O_CREAT)
        failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), RESERVE_NAME)  # if it is used meanwhile
        try:
            held = os.fstat(descriptor).st_size
            for size in (size for size in reserve_sizes() if size > held):
                try:
                    _allocate(descriptor, size)
                    break
                except OSError as error:
                    os.ftruncate(descriptor, held)
                    failure = error
            if os.fstat(descriptor).st_size < RESERVE_BYTES and failure.errno in NO_SPACE:
                raise failure
        finally:
            os.close(descriptor)

    def use(self, kept_bytes: int = 0) -> bool:
        """Release all but so much. False: there was no more."""
        try:
            if not kept_bytes:
                os.unlink(RESERVE_NAME, dir_fd=self._directory)
                return True
            descriptor = self._open()
            try:
                held = os.fstat(descriptor).st_size
                if held > kept_bytes:
                    os.ftruncate(descriptor, kept_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return held > kept_bytes

    def _open(self, flags: int = 0) -> int:
        return self._spare.get(lambda: os.open(RESERVE_NAME, os.O_RDWR | flags, 0o600, dir_fd=self._directory))


def _allocate(descriptor: int, size: int) -> None:
    """Make a file so large; the space for that is taken."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)
