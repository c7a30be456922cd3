"""The files of a data directory, opened for reading: the directory itself, and one segment by its own metadata.

Owned here: the message about a directory that cannot be read, and what a segment must say of itself to be read without
a snapshot. Nothing is written or locked.
"""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from topics.errors import Damaged, InvalidRequest, UnusableDirectory
from topics.storage import segments
from topics.storage.disk import Disk, RealDisk
from topics.storage.segments import Column, FileRef

if TYPE_CHECKING:
    import pyarrow as pa


def open_disk(path: str | os.PathLike[str]) -> Disk:
    try:
        return RealDisk(path, create=False)
    except UnusableDirectory as error:
        cause = error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else str(error)
        raise UnusableDirectory(f"cannot read data directory {os.fspath(path)}: {why}") from None


def forbidden(path: str, error: PermissionError) -> UnusableDirectory:
    return UnusableDirectory(
        f"cannot read {path}/{error.filename}: user {os.geteuid()} may not; files of a data directory are for "
        "their owner only, so read as that user"
    )


def ref_in(disk: Disk, name: str) -> FileRef:
    """What a snapshot would keep of a segment, taken from the file's own Arrow metadata."""
    import pyarrow as pa

    number = segments.number_in(name)
    if number is None:
        raise InvalidRequest(f"{name!r} is not the name of a segment")
    path = f"{disk.path}/{name}"
    try:
        with closing(disk.open(name, writable=False)) as file:
            image = pa.py_buffer(file.map())
    except PermissionError as error:
        raise forbidden(disk.path, error) from None
    try:
        with pa.ipc.open_file(image) as reader:
            if reader.num_record_batches != 1:
                raise Damaged(path, 0, f"it has {reader.num_record_batches} record batches, not one")
            found, batch = reader.schema, reader.get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(path, 0, f"it cannot be read as an Arrow file: {error}") from None
    checksums = _checksums(path, found)
    columns = {
        name: segments.column_of(batch.column(name), image.address, checksums.get(name, "")) for name in found.names
    }
    _check_sizes(path, columns, batch.num_rows)
    return FileRef(number, image.size, batch.num_rows, columns)


def _checksums(path: str, found: "pa.Schema") -> dict[str, str]:
    """The checksums by column, of a file whose schema is that of a segment."""
    pairs = (found.metadata or {}).items()
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}
    version = metadata.get("topics.format", "")
    if version.isdigit() and int(version) > int(segments.FORMAT_VERSION):
        raise UnusableDirectory(
            f"{path} is of version {version}; this program reads up to version {segments.FORMAT_VERSION}"
        )
    if version != segments.FORMAT_VERSION or not found.equals(segments.schema()):
        raise Damaged(path, 0, "its schema is not that of a segment")
    return {key.removeprefix("topics.xxh3."): value for key, value in metadata.items()}


def _check_sizes(path: str, columns: dict[str, Column], count: int) -> None:
    """Refuse columns that do not have `count` rows: their checksums would not cover every row."""
    import pyarrow as pa

    for field in segments.schema():
        column, is_text = columns[field.name], pa.types.is_string(field.type)
        offset, size = column.offsets if is_text else column.values
        wanted = 4 * (count + 1) if is_text else field.type.byte_width * count
        if size != wanted:
            raise Damaged(path, offset, f"column {field.name} has {size} bytes where {count} rows have {wanted}")
