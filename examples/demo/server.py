"""A server of the demo: a process that can be killed and started again on the same port and data."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOPICS = [sys.executable, "-m", "topics"]
START_S = 120.0  # a busy machine may take its time


class Server:
    """`topics serve` in a process of its own, which can be killed and started again on the same port and data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        port_file = self._directory / "port"
        port_file.unlink(missing_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_DATA_DIR": str(self._directory / "data"),
            "TOPICS_PORT": str(self._port),
            "TOPICS_PORT_FILE": str(port_file),
        }
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*TOPICS, "serve"], env=environ, stdout=log, stderr=log)
        wait_until("the server to start", lambda: port_file.exists() or self._has_ended())
        if self._has_ended():
            raise RuntimeError(f"the server did not start:\n{(self._directory / 'server.log').read_text()}")
        self._port = int(port_file.read_text().rpartition(":")[2])

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {START_S:.0f} s for {what}")
        time.sleep(0.02)
