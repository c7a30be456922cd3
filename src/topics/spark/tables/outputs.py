"""Files of jobs beside those that Spark writes: put whole or not at all, and made durable. Local, or URIs.

On a local disk a file is durable once it and the directories that name it are synced; object stores keep what they
have acknowledged.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from topics.errors import ConfigurationError, InvalidRequest
from topics.spark.tables.lake import make_folder, open_root

if TYPE_CHECKING:
    import pyarrow.fs as fs
    from pyspark.sql import SparkSession


class Place:
    """A directory that a job writes to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.system, self.path = open_root(root)
        # The end of the names of what a job writes here: where no lock keeps another job away, it is like no other.
        self.own = "" if self.is_local else f".{secrets.token_hex(4)}"

    @property
    def is_local(self) -> bool:
        import pyarrow.fs as fs

        return isinstance(self.system, fs.LocalFileSystem)

    def uri(self, name: str) -> str:
        """As Spark and Iceberg are told of it; a scheme keeps Hadoop from taking its default file system.

        Keys and endpoint of an object store are in the root for pyarrow, and in the settings fs.s3a.* for Spark.
        """
        if self.is_local:
            return f"file://{self.path}/{name}"
        if self.root.startswith(("s3://", "s3a://")):
            return f"s3a://{self.path}/{name}"
        return f"{self.root.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """What lies directly in it."""
        return [info.base_name for info in self.listing()]

    def listing(self, below: str = "") -> "list[fs.FileInfo]":
        import pyarrow.fs as fs

        place = f"{self.path}/{below}" if below else self.path
        found = self.system.get_file_info(fs.FileSelector(place, allow_not_found=True))
        return sorted(found, key=lambda info: str(info.path))

    def read(self, name: str) -> bytes | None:
        try:
            with self.system.open_input_stream(f"{self.path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def put(self, name: str, content: bytes) -> None:
        """Write or replace a file."""
        path = f"{self.path}/{name}"
        make_folder(self.system, os.path.dirname(path))
        if not self.is_local:
            with self.system.open_output_stream(path) as stream:
                stream.write(content)
            return
        temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(os.path.dirname(path))

    def remove(self, name: str) -> None:
        """A file or a directory with all in it."""
        import pyarrow.fs as fs

        info = self.system.get_file_info(f"{self.path}/{name}")
        if info.type == fs.FileType.Directory:
            self.system.delete_dir(info.path)
        elif info.type == fs.FileType.File:
            self.system.delete_file(info.path)

    def make_durable(self, names: list[str]) -> None:
        """Files that others have written, and every directory from them up to this one."""
        if not self.is_local:
            return
        directories = {self.path}
        for name in names:
            sync(f"{self.path}/{name}")
            while name := os.path.dirname(name):
                directories.add(f"{self.path}/{name}")
        for directory in directories:
            sync(directory)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer, on a local disk; elsewhere nobody watches over it."""
        if not self.is_local:
            yield
            return
        os.makedirs(self.path, exist_ok=True)
        with open(f"{self.path}/_writer.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidRequest(f"another job writes to {self.root}") from None
            yield


def check_connector(spark: "SparkSession", place: Place) -> None:
    """Refuse a place on S3 if Spark has nothing to open it with. A Connect server is not asked: its JVM is far away."""
    if not place.uri("").startswith("s3a://") or type(spark).__module__.startswith("pyspark.sql.connect."):
        return
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration()
    if settings.getClassByNameOrNull(settings.get("fs.s3a.impl", "")) is None:
        version = context._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        raise ConfigurationError(
            f"Spark has no connector for {place.uri('').rstrip('/')}: start it with "
            f"--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}"
        )


def sync(path: str) -> None:
    """Bring a file or directory to the disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
