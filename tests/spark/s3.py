"""S3Proxy, a real S3 server whose objects are files, and what Spark needs to reach it: `make jars` installs both.

The server that tests of backups use (rclone) does not do here: Hadoop marks a directory by an empty object with a slash
at the end of its name, and rclone keeps that as a file, which is then in the way of the directory.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.spark.commands import free_port
from tools.jars import jars
from topics.spark import java
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ask_status

BUCKET = "bucket"
KEY, SECRET = "KEY", "SECRET"
PROPERTIES = """
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.identity=none
jclouds.credential=none
jclouds.filesystem.basedir={objects}
"""


def is_installed() -> bool:
    return bool(jars("s3") and jars("s3a"))


class S3:
    """The server; its objects are files below `objects`. Started again, it has the port that it had."""

    def __init__(self, directory: Path) -> None:
        self.objects = directory / "s3"
        self.bucket = self.objects / BUCKET
        self.bucket.mkdir(parents=True)
        self.port = free_port()
        self._log = directory / "s3.log"
        self._properties = directory / "s3.properties"
        self._properties.write_text(PROPERTIES.format(port=self.port, key=KEY, secret=SECRET, objects=self.objects))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = java.find(os.environ).home / "bin" / "java"
        path = os.pathsep.join(map(str, jars("s3")))
        options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", path)
        main = ("org.gaul.s3proxy.Main", "--properties", str(self._properties))
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [str(program), *options, *main], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(
            "the S3 server answers", lambda: process.poll() is not None or ask_status(("127.0.0.1", self.port), "/")
        )
        assert process.poll() is None, self._log.read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def uri(self, path: str) -> str:
        """As pyarrow, and so Lake, is told of it; Spark takes bucket and path from it."""
        return f"s3a://{KEY}:{SECRET}@{BUCKET}/{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http"

    def settings(self) -> dict[str, str]:
        """For Spark. A server that is away for some seconds is waited for, as it is by default, but not for minutes."""
        return {
            "spark.jars": ",".join(map(str, jars("s3a"))),
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{self.port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.attempts.maximum": "2",
            "spark.hadoop.fs.s3a.retry.limit": "3",
            "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
        }


@contextmanager
def s3(directory: Path) -> Iterator[S3]:
    server = S3(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()
