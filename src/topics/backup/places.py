"""Where a backup lies: objects by path, each put as a whole, none ever changed; a prune may remove them.

    directory        files, synced before they get their names
    archive          .tar, .tar.gz, .tar.zst: one backup, written once; it has its name when it is complete
    file system      whatever `pyarrow.fs` opens by a URI: s3://, gs://, …

An object is there as a whole or not at all, also if its writer is killed. This module knows no layout. Everything
blocks. A URI may hold a secret: messages show it without.
"""

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Protocol, cast

from topics.errors import Damaged, TopicsError, UnusableDirectory
from topics.storage.disk import sync_directory

ARCHIVES = {".tar": "", ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd"}
TEMPORARY = ".part-"


class Unwritable(TopicsError):
    """A backup cannot be written there."""


class Place(Protocol):
    """Objects by path."""

    name: str  # for messages

    def sizes(self) -> dict[str, int]:
        """All objects, with their sizes."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Put an object; it is durable when this returns, but for an archive."""
        ...

    def get(self, path: str) -> bytes:
        """FileNotFoundError if there is none."""
        ...

    def written(self) -> dict[str, float]:
        """All objects, with the time at which each was put, in seconds by the place's own clock."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object; it may be gone already."""
        ...

    def finish(self) -> None:
        """All is put."""
        ...

    def close(self) -> None: ...


def open_place(where: str, *, writes: bool = False) -> Place:
    """The place that a path or URI names."""
    if where.startswith("file://"):
        where = where.removeprefix("file://")
    kind = next((kind for suffix, kind in ARCHIVES.items() if where.endswith(suffix)), None)
    if "://" in where:
        if kind is not None:
            raise Unwritable(f"{hidden(where)} is an archive in a file system; give a directory there, or a local file")
        return ArrowPlace(where)
    if kind is not None:
        return ArchiveWriter(where, kind) if writes else open_archive(where, kind)
    return DirectoryPlace(where, creates=writes)


def hidden(where: str) -> str:
    """A URI without key, secret and query."""
    return re.sub(r"://[^/@]*@", "://", where).partition("?")[0]


class DirectoryPlace:
    """A directory of this machine."""

    def __init__(self, path: str, *, creates: bool, removes: bool = False) -> None:
        self.name = path
        self.is_temporary = removes
        if creates:
            os.makedirs(path, mode=0o700, exist_ok=True)
        elif not os.path.isdir(path):
            raise UnusableDirectory(f"there is no backup at {path}: it is not a directory, nor an archive")
        self._folders: set[str] = set()

    def sizes(self) -> dict[str, int]:
        return {path: found.st_size for path, found in self._stats()}

    def written(self) -> dict[str, float]:
        return {path: found.st_mtime for path, found in self._stats()}

    def _stats(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder, _, names in os.walk(self.name):
            for name in names:
                if not name.startswith("."):
                    path = os.path.join(folder, name)
                    with suppress(FileNotFoundError):  # a prune has removed it meanwhile
                        yield os.path.relpath(path, self.name).replace(os.sep, "/"), os.stat(path)

    def put(self, path: str, data: bytes) -> None:
        target = os.path.join(self.name, path)
        folder, name = os.path.split(target)
        if folder not in self._folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            for above in (os.path.dirname(folder), self.name):
                sync_directory(above)
            self._folders.add(folder)
        temporary = os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{name}")
        try:
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            except FileNotFoundError:  # a prune has removed the directory, which was empty
                os.makedirs(folder, mode=0o700, exist_ok=True)
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_directory(folder)

    def get(self, path: str) -> bytes:
        with open(os.path.join(self.name, path), "rb") as file:
            return file.read()

    def remove(self, path: str) -> None:
        target = os.path.join(self.name, path)
        with suppress(FileNotFoundError):
            os.unlink(target)
        folder = os.path.dirname(target)
        self._folders.discard(folder)
        with suppress(OSError):  # there is more in it, or somebody was quicker
            os.rmdir(folder)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        if self.is_temporary:
            shutil.rmtree(self.name, ignore_errors=True)


class ArchiveWriter:
    """An archive that is being written; it gets its name when it is finished."""

    def __init__(self, path: str, kind: str) -> None:
        self.name = path
        self._temporary = f"{path}{TEMPORARY}"
        self._kind = kind
        if os.path.lexists(path):
            raise Unwritable(f"{path} is there already; an archive holds one backup: give another name, or a directory")
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._raw: IO[bytes] = os.fdopen(descriptor, "wb")
        self._packed: Any = self._raw
        if kind:
            import pyarrow as pa

            self._packed = pa.CompressedOutputStream(pa.PythonFile(self._raw, "w"), kind)
        self._tar = tarfile.TarFile.open(fileobj=self._packed, mode="w|", format=tarfile.PAX_FORMAT)
        self._is_finished = False

    def sizes(self) -> dict[str, int]:
        return {}

    def put(self, path: str, data: bytes) -> None:
        import io

        member = tarfile.TarInfo(path)
        member.size, member.mode = len(data), 0o600
        self._tar.addfile(member, io.BytesIO(data))

    def get(self, path: str) -> bytes:
        raise NotImplementedError("an archive is read when it is finished")

    def written(self) -> dict[str, float]:
        return {}

    def remove(self, path: str) -> None:
        raise NotImplementedError("an archive is written once")

    def finish(self) -> None:
        if self._is_finished:
            return
        self._tar.close()
        self._packed.close()  # the end of what is compressed, too
        with open(self._temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._temporary, self.name)
        sync_directory(os.path.dirname(os.path.abspath(self.name)))
        self._is_finished = True

    def close(self) -> None:
        if not self._is_finished:
            with suppress(OSError, ValueError):
                self._tar.close()
                self._packed.close()
            self._raw.close()
            with suppress(OSError):
                os.unlink(self._temporary)


def open_archive(path: str, kind: str) -> "ArchivePlace | DirectoryPlace":
    """An archive, for reading. A compressed one is unpacked into a temporary directory first."""
    if not os.path.isfile(path):
        raise UnusableDirectory(f"there is no backup at {path}: there is no such file")
    if not kind:
        return ArchivePlace(path)
    import pyarrow as pa

    place = DirectoryPlace(tempfile.mkdtemp(prefix="topics-backup-"), creates=False, removes=True)
    try:
        with (
            open(path, "rb") as raw,
            pa.CompressedInputStream(raw, kind) as unpacked,
            tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|") as tar,
        ):
            _unpack(tar, place.name)
    except (tarfile.TarError, OSError, EOFError, pa.ArrowException) as error:
        place.close()
        raise Damaged(path, 0, f"the archive cannot be unpacked: {error}") from None
    return place


def _unpack(tar: tarfile.TarFile, directory: str) -> None:
    """Unpack plain files and nothing else, all of them below the directory."""
    root = os.path.realpath(directory)
    for member in tar:
        target = os.path.realpath(os.path.join(root, member.name))
        if not target.startswith(root + os.sep) or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file of a backup")
        tar.extract(member, root, set_attrs=False)


class ArchivePlace:
    """A plain archive, for reading."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._members: dict[str, tuple[int, int]] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    self._members[member.name] = (member.offset_data, member.size)
        except (tarfile.TarError, EOFError) as error:
            raise Damaged(path, 0, f"the archive cannot be read: {error}") from None

    def sizes(self) -> dict[str, int]:
        return {path: size for path, (_, size) in self._members.items()}

    def put(self, path: str, data: bytes) -> None:
        raise NotImplementedError("an archive is written once")

    def written(self) -> dict[str, float]:
        return {}

    def remove(self, path: str) -> None:
        raise NotImplementedError("an archive is written once")

    def get(self, path: str) -> bytes:
        if path not in self._members:
            raise FileNotFoundError(path)
        offset, size = self._members[path]
        with open(self.name, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class ArrowPlace:
    """A file system that pyarrow opens. Object stores put an object as a whole; elsewhere it is renamed."""

    def __init__(self, uri: str) -> None:
        import pyarrow as pa
        import pyarrow.fs as pafs

        self.name = hidden(uri)
        try:
            self._fs, base = pafs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            raise UnusableDirectory(f"{self.name} cannot be opened: {str(error).replace(uri, self.name)}") from None
        self._base = base.rstrip("/")
        self._renames = self._fs.type_name not in ("s3", "gcs", "abfs")

    def sizes(self) -> dict[str, int]:
        return {path: info.size for path, info in self._infos()}

    def written(self) -> dict[str, float]:
        return {path: info.mtime.timestamp() for path, info in self._infos()}

    def _infos(self) -> Iterator[tuple[str, Any]]:
        import pyarrow.fs as pafs

        for info in self._fs.get_file_info(pafs.FileSelector(self._base, allow_not_found=True, recursive=True)):
            path = info.path[len(self._base) :].lstrip("/")
            if info.type == pafs.FileType.File and TEMPORARY not in path:
                yield path, info

    def remove(self, path: str) -> None:
        import pyarrow.fs as pafs

        target = f"{self._base}/{path}"
        try:
            self._fs.delete_file(target)
        except OSError:  # it was gone, or the server refuses the directory that pyarrow puts in its place
            if self._fs.get_file_info(target).type != pafs.FileType.NotFound:
                raise

    def put(self, path: str, data: bytes) -> None:
        target = f"{self._base}/{path}"
        written = target
        if self._renames:
            folder, _, name = target.rpartition("/")
            self._fs.create_dir(folder, recursive=True)
            written = f"{folder}/{TEMPORARY}{os.getpid()}-{name}"
        with self._fs.open_output_stream(written) as stream:
            stream.write(data)
        if self._renames:
            self._fs.move(written, target)

    def get(self, path: str) -> bytes:
        with self._fs.open_input_stream(f"{self._base}/{path}") as stream:
            return cast(bytes, stream.read())

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass
