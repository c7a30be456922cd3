"""Ways for a disk to misbehave that `topics.testing.disk` does not know: each counts how often it struck."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import count

from topics.testing.disk import EVERYTHING, Choose, Crashed, Interruption, Kind, MemoryDisk, Operation


class Dies:
    """The process dies at operation `at` of this kind and name: before it, inside it, or after it."""

    def __init__(self, kind: Kind, name: str = "*", at: int = 0, *, part: int = 0) -> None:
        self.kind, self.name, self.at, self.part = kind, name, at, part
        self.failed = 0
        self._seen = count()

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        if operation.kind != self.kind or not fnmatchcase(operation.name, self.name) or next(self._seen) != self.at:
            return None
        self.failed += 1
        return Interruption(Crashed(f"in {operation}"), self.part)


AFTER = EVERYTHING


class Lies:
    """A disk whose syncs of files like `name` do nothing, and say that they have."""

    def __init__(self, disk: MemoryDisk, *names: str, directory: bool = False) -> None:
        self.failed = 0
        self.names, self.directory = names, directory
        self._perform = disk.perform
        disk.perform = self.perform  # type: ignore[method-assign]

    def perform(self, operation: Operation, act: Callable[[int], None]) -> None:
        is_file = operation.kind == "sync" and any(fnmatchcase(operation.name, name) for name in self.names)
        if is_file or (self.directory and operation.kind == "sync_directory"):
            self.failed += 1
            self._perform(operation, lambda _: None)
        else:
            self._perform(operation, act)


def only_later(keeps: int = 2) -> Choose:
    """A power loss that keeps every `keeps`-th of what was not synced, and none of the rest: writes out of order."""
    numbers = count(1)
    return lambda options: options - 1 if next(numbers) % keeps == 0 else 0


def changed(disk: MemoryDisk, name: str, offset: int, to: bytes) -> MemoryDisk:
    """The disk with other bytes in a file; from its end if `offset` is negative."""
    files = disk.files()
    image = bytearray(files[name])
    start = offset if offset >= 0 else len(image) + offset
    assert bytes(image[start : start + len(to)]) != to, "this changes nothing"
    image[start : start + len(to)] = to
    return same_boot({**files, name: bytes(image)})


def flipped(disk: MemoryDisk, name: str, offset: int, mask: int = 0x5A) -> MemoryDisk:
    """The disk with some bits of one byte the other way."""
    image = disk.files()[name]
    place = offset if offset >= 0 else len(image) + offset
    return changed(disk, name, place, bytes([image[place] ^ mask]))


def cut(disk: MemoryDisk, name: str, size: int) -> MemoryDisk:
    """The disk with a file cut to `size` bytes; by so many if it is negative."""
    files = disk.files()
    return same_boot({**files, name: files[name][:size]})


def without(disk: MemoryDisk, names: Iterable[str]) -> MemoryDisk:
    gone = set(names)
    assert gone, "this removes nothing"
    return same_boot({name: image for name, image in disk.files().items() if name not in gone})


def replaced(disk: MemoryDisk, **files: bytes) -> MemoryDisk:
    return same_boot({**disk.files(), **files})


def same_boot(files: dict[str, bytes]) -> MemoryDisk:
    return MemoryDisk(files, boot=1)


def like(disk: MemoryDisk, prefix: str) -> list[str]:
    return [name for name in disk.names() if name.startswith(prefix)]
