"""Snapshots: the latest value of every key, kept as one base file and the deltas since.

    8s "TOPICSNP" | u32 version | u64 length | u64 xxh3 of the content | content

The content is MessagePack, a list of (key, value); a nil value means that the key is gone. The first key is the file's
own number. A base has every key, a
delta those that changed; files are numbered in the order in which they were installed. The newest base and all deltas
after it are in force. A file is written under a temporary name, synced and renamed, and the directory is synced; only
then is anything older removed. So either the old or the new snapshot is in force, and installing one costs what
changed: a new base is written when the deltas have outgrown the old one.

This module does not know what keys and values mean. All of it blocks; the caller runs it off the event loop.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from struct import Struct as Layout

import msgspec
from xxhash import xxh3_64_intdigest

from topics.errors import Damaged, UnusableDirectory
from topics.storage.disk import Disk
from topics.storage.reserve import NO_SPACE

VERSION = 2
PREFIX, BASE, DELTA, TEMPORARY = "snapshot-", ".base", ".delta", ".tmp"
DELTA_BYTES_MIN = 256 * 1024  # deltas below this in sum are not worth a new base
DELTAS_MAX = 64
NUMBER = b"#"  # the key of a file's own number, its first item

_HEADER = Layout("<8sIQQ")
_MAGIC = b"TOPICSNP"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode


class Snapshots:
    """The snapshot files of a data directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.number = 0  # of the newest file in force; it rises when a snapshot is installed
        self._chain: list[tuple[str, int]] = []  # name and size of the files in force: the base, then its deltas

    def load(self) -> dict[bytes, bytes] | None:
        """The snapshot in force; None if there never was one."""
        newest = None
        for _, items in self.history():
            newest = items
        return newest

    def history(self) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        """The snapshot as of each file in force, with the file's name: that of the base, then with one delta more."""
        names = names_in(self._disk)
        bases = [name for name in names if name.endswith(BASE)]
        if not names:
            return
        if not bases:
            raise Damaged(f"{self._disk.path}/{names[0]}", 0, "its base file is missing")
        chain = [bases[-1], *(name for name in names if name.endswith(DELTA) and name > bases[-1])]
        items: dict[bytes, bytes] = {}
        self.number = _number_in(chain[0]) - 1
        self._chain = []
        for name in chain:
            self.number += 1
            if _number_in(name) != self.number:
                raise Damaged(f"{self._disk.path}/{PREFIX}{self.number:010d}{DELTA}", 0, "this file is missing")
            content = self._read(name)
            self._chain.append((name, len(content)))
            _merge(items, self._checked(name, content))
            yield name, items

    @property
    def names(self) -> list[str]:
        """The files in force: the base, then its deltas."""
        return [name for name, _ in self._chain]

    def install(self, changed: Mapping[bytes, bytes | None]) -> None:
        """Put a snapshot in force that differs from the last one by `changed`.

        If it fails and `number` has risen all the same, the snapshot is in force, but a power loss may undo that.
        """
        content, number = self._encoded(changed), self.number + 1
        deltas_bytes = len(content) + sum(size for _, size in self._chain[1:])
        if not self._chain or len(self._chain) > DELTAS_MAX or deltas_bytes > max(DELTA_BYTES_MIN, self._chain[0][1]):
            try:
                self._install_base(changed)
                return
            except OSError as error:  # a delta is smaller
                if error.errno not in NO_SPACE or not self._chain or self.number >= number:
                    raise
        self._write(DELTA, content)

    def obsolete(self) -> list[str]:
        """Snapshot files that are not in force."""
        in_force = set(self.names)
        ours = (name for name in self._disk.names() if name.startswith(PREFIX))
        return [name for name in ours if name.endswith((BASE, DELTA, TEMPORARY)) and name not in in_force]

    def _install_base(self, changed: Mapping[bytes, bytes | None]) -> None:
        items: dict[bytes, bytes] = {}
        for name, _ in self._chain:
            _merge(items, self._checked(name, self._read(name)))
        _merge(items, changed.items())
        old, self._chain = self._chain, []
        try:
            self._write(BASE, self._encoded(items))
        except OSError:
            self._chain = self._chain or old
            raise
        for name, _ in old:
            with suppress(OSError):  # it is not in force any more, and the next start tries again
                self._disk.remove(name)

    def _write(self, suffix: str, content: bytes) -> None:
        name = f"{PREFIX}{self.number + 1:010d}{suffix}"
        temporary = name + TEMPORARY
        if temporary in self._disk.names():
            self._disk.remove(temporary)
        try:
            with closing(self._disk.create(temporary)) as file:
                file.write(0, _HEADER.pack(_MAGIC, VERSION, len(content), xxh3_64_intdigest(content)) + content)
                file.sync()
            self._disk.rename(temporary, name)
        except OSError:
            with suppress(OSError):  # on a full disk it may be all the space that was left
                self._disk.remove(temporary)
            raise
        self.number += 1
        self._chain.append((name, len(content)))
        self._disk.sync_directory()

    def _encoded(self, items: Mapping[bytes, bytes | None]) -> bytes:
        """The content of the next file, with its number in it."""
        return _encode([(NUMBER, _encode(self.number + 1)), *items.items()])

    def _checked(self, name: str, content: bytes) -> list[tuple[bytes, bytes | None]]:
        """The items of a file, less its number, which must be that of its name."""
        try:
            items = _decode(content)
            if not items or items[0][0] != NUMBER or items[0][1] is None:
                return items  # an older version wrote it
            number = msgspec.msgpack.decode(items[0][1], type=int)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"{self._disk.path}/{name}", _HEADER.size, f"its items make no sense: {error}") from None
        if number != _number_in(name):
            raise Damaged(f"{self._disk.path}/{name}", 0, f"snapshot {number} is in its place")
        return items[1:]

    def _read(self, name: str) -> bytes:
        path = f"{self._disk.path}/{name}"
        with closing(self._disk.open(name, writable=False)) as file:
            data = file.read(0, file.size())
        if len(data) < _HEADER.size:
            raise Damaged(path, len(data), "the snapshot is cut short")
        magic, version, size, checksum = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise Damaged(path, 0, "it does not start like a snapshot")
        if version > VERSION:
            raise UnusableDirectory(f"{path} is of version {version}; this program reads up to version {VERSION}")
        content = data[_HEADER.size :]
        if len(content) != size or xxh3_64_intdigest(content) != checksum:
            raise Damaged(path, _HEADER.size, "the snapshot does not match its checksum")
        return content


def names_in(disk: Disk) -> list[str]:
    """The snapshot files of a directory. They change whenever a snapshot is installed."""
    return [name for name in disk.names() if name.startswith(PREFIX) and not name.endswith(TEMPORARY)]


def _merge(items: dict[bytes, bytes], changed: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in changed:
        if value is None:
            items.pop(key, None)
        else:
            items[key] = value


def _number_in(name: str) -> int:
    text = name.removeprefix(PREFIX).removesuffix(BASE).removesuffix(DELTA)
    if not text.isdigit():
        raise UnusableDirectory(f"{name} is not a snapshot of topics; move it out of the data directory")
    return int(text)
