"""Jobs as commands in processes of their own, to be killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.rig import PATIENCE_S
from topics.spark.session import SHORT_LIVED

COMMAND = (sys.executable, "-c", "from topics.cli import main; main()")


class Command:
    """`topics NAME …` on two cores, in a process group of its own."""

    def __init__(self, directory: Path, *arguments: str, url: str, **environ: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "output"
        self._errors = directory / "errors"
        self._arguments = [*arguments, "--url", url, "--master", "local[2,4]", "--conf", f"spark.local.dir={directory}"]
        self._environ = {**os.environ, "JAVA_TOOL_OPTIONS": SHORT_LIVED, "HOME": str(directory), **environ}

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
        waiting, waited = threading.Event(), 0.0
        try:
            while not has_come():
                assert process.poll() is None, f"it ended by itself:\n{self.errors}"
                assert waited < PATIENCE_S, f"it hangs:\n{self.errors}"
                waiting.wait(0.005)
                waited += 0.005
            assert process.poll() is None, "it ended before it could be killed"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

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
