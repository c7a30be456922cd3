"""Jobs as commands in processes of their own, to be killed; and what the commands of Spark itself need."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.rig import Rig
from topics.spark import java
from topics.spark.session import CLASSES, SHORT_LIVED
from topics.testing.patience import PATIENCE_S

SPARK = Path(pyspark.__file__).parent
COMMAND = (sys.executable, "-c", "from topics.cli import main; main()")


def java_options() -> str:
    """For a JVM that lives for seconds: with the archive of classes that a session of this user took last, if any."""
    archives = sorted((Path.home() / CLASSES).glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    return " ".join([SHORT_LIVED, *(f"{java.MUTE} -XX:SharedArchiveFile={archive}" for archive in archives[-1:])])


def files_in(directory: Path) -> str:
    """An option: a JVM that is killed leaves its temporary files there."""
    return f"-Djava.io.tmpdir={directory}"


def home(directory: Path) -> str:
    """A home of its own, but for the archives of classes: a session starts in two thirds of the time with them."""
    classes = directory / CLASSES
    if not classes.is_symlink():
        classes.parent.mkdir(parents=True, exist_ok=True)
        classes.symlink_to(Path.home() / CLASSES)
    return str(directory)


def environ_of_spark(directory: Path, **more: str) -> dict[str, str]:
    """For the commands in bin of the PySpark package: they find Java and Python by variables alone."""
    return {
        **os.environ,
        **java.find(os.environ).environment(),
        "HOME": str(directory),
        "JAVA_TOOL_OPTIONS": f"{java_options()} {files_in(directory)}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def is_read_by_spark(rig: Rig, topic: str) -> Callable[[], bool]:
    """For kill_once: whether the topic was read again, well after the first look of the driver at it."""
    reads: list[int] = []
    before = rig.client.state(topic, touch=False).last_read_ts

    def is_read() -> bool:
        at = rig.client.state(topic, touch=False).last_read_ts
        if at is not None and at != before:
            reads.append(at)
        return bool(reads) and reads[-1] - reads[0] > 300

    return is_read


class Command:
    """`topics NAME …` on two cores, in a process group of its own."""

    def __init__(self, directory: Path, *arguments: str, url: str | None, **environ: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "output"
        self._errors = directory / "errors"
        server = [] if url is None else ["--url", url]
        self._arguments = [*arguments, *server, "--master", "local[2,4]", "--conf", f"spark.local.dir={directory}"]
        options = f"{SHORT_LIVED} {files_in(directory)}"
        self._environ = {**os.environ, "JAVA_TOOL_OPTIONS": options, "HOME": home(directory), **environ}

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            return subprocess.Popen(
                [*COMMAND, *self._arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def run(self) -> int:
        """Run it to its end; its exit code."""
        return self._start().wait(PATIENCE_S)

    def kill_once(self, has_come: Callable[[], bool]) -> None:
        """Run it until it has come so far, and end it with -9. Fails if it ends by itself before."""
        process = self._start()
        try:
            self._await(process, has_come)
            assert process.poll() is None, "it ended before it could be killed"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end_once(self, has_come: Callable[[], bool]) -> int:
        """Run it until it has come so far, and ask it alone to end, as a service is; its exit code."""
        process = self._start()
        try:
            self._await(process, has_come)
            process.terminate()
            return process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _await(self, process: "subprocess.Popen[bytes]", has_come: Callable[[], bool]) -> None:
        waiting, waited = threading.Event(), 0.0
        while not has_come():
            assert process.poll() is None, f"it ended by itself:\n{self.errors}"
            assert waited < PATIENCE_S, f"it hangs:\n{self.errors}"
            waiting.wait(0.005)
            waited += 0.005

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def summary(self) -> dict[str, Any]:
        """The last line of the output."""
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return found


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
