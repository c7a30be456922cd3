"""A real S3 server for the tests of backups: rclone, which `make s3` installs into an environment of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topics.testing.patience import PATIENCE_S
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
