"""Object stores for the tests of backups, which `make s3` installs into an environment of their own.

S3 is rclone, a real server; Google Cloud Storage is an emulator, with the objects in memory.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ask_status

ROOT = Path(__file__).parent.parent.parent
BUCKET = "bucket"
# The server does not know the trailing checksums that pyarrow's S3 client sends by default.
ENVIRON = {
    "AWS_REQUEST_CHECKSUM_CALCULATION": "WHEN_REQUIRED",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "WHEN_REQUIRED",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def command() -> str | None:
    """The server's program; None: it is not installed."""
    own = ROOT / ".venv-s3" / "bin" / "rclone"
    return str(own) if os.access(own, os.X_OK) else shutil.which("rclone")


class ObjectStore:
    """The server; its objects are files below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.objects = directory / "s3"
        (self.objects / BUCKET).mkdir(parents=True)
        self._log = directory / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def start(self) -> None:
        program = command()
        assert program is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(program, "serve", "s3", str(self.objects), "-v", "--config", os.devnull),
                    *("--auth-key", "KEY,SECRET", "--addr", f"127.0.0.1:{self._port}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not self._port:
            assert self._process.poll() is None, self._log.read_text()
            said = self._log.read_text()
            if "http://127.0.0.1:" in said:
                self._port = int(said.split("http://127.0.0.1:")[1].split("/")[0])
        while not ask_status(("127.0.0.1", self._port), "/"):
            assert self._process.poll() is None, self._log.read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def uri(self, path: str) -> str:
        return f"s3://KEY:SECRET@{BUCKET}/{path}?endpoint_override=127.0.0.1:{self._port}&scheme=http"


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    store = ObjectStore(directory)
    store.start()
    try:
        yield store
    finally:
        store.kill()


def emulator() -> str | None:
    """The program that plays Google Cloud Storage; None: it is not installed."""
    own = ROOT / ".venv-s3" / "bin" / "gcp-storage-emulator"
    return str(own) if os.access(own, os.X_OK) else shutil.which("gcp-storage-emulator")


@contextmanager
def google_store(directory: Path) -> Iterator[str]:
    """The URI of a directory in an emulated Google Cloud Storage."""
    program, port = emulator(), free_port()
    assert program is not None
    options = ("start", "--host", "127.0.0.1", "--port", str(port), "--in-memory", "--default-bucket", BUCKET)
    with (directory / "gcs.log").open("ab") as log:
        process = subprocess.Popen([program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until("the emulator listens", lambda: process.poll() is not None or is_open(port))
        assert process.poll() is None, (directory / "gcs.log").read_text()
        yield f"gs://anonymous@{BUCKET}/topics?scheme=http&endpoint_override=127.0.0.1:{port}&retry_limit_seconds=10"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
