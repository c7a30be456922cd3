"""Servers for tests: a real process, or one in this process on a clock by hand and a disk in memory.

    with ServerProcess(directory) as server:
        ...                       # http://{server.address}
        server.kill()             # -9
        server.start()            # on the same data
        assert server.stop() == 0

Both bind a free loopback port and are ready when `start` returns. Neither sees the environment of the tests: a
variable counts only if it is given.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from topics.clock import SystemClock

T = TypeVar("T")

PATIENCE_S: Final = 30.0  # a server that takes longer to start or stop hangs
POLL_S: Final = 0.005
COMMAND: Final = (sys.executable, "-c", "from topics.cli import main; main()")


class ServerFailed(Exception):
    """The process ended instead of getting ready; `output` says why."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"the server exited with {code}:\n{output}")
        self.code = code
        self.output = output


class ServerProcess:
    """`topics serve` in a process of its own; data, log and port file lie in `directory`."""

    def __init__(self, directory: Path, environ: Mapping[str, str] | None = None, *arguments: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.environ = dict(environ or {})
        self.arguments = arguments or ("serve",)
        self.address = ("", 0)
        self.process: subprocess.Popen[bytes] | None = None
        self._port_file = directory / "port"
        self._log = directory / "server.log"
        self._clock = SystemClock()

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server does not run"
        return self.process.pid

    @property
    def output(self) -> str:
        """What all runs in this directory have printed, to either stream."""
        return self._log.read_text(errors="replace")

    def start(self, *, until_ready: bool = True) -> Self:
        """Start, and wait until it is bound, or bound and ready. Raises ServerFailed if it exits."""
        assert self.process is None, "the server runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port_file.unlink(missing_ok=True)
        environ = {
            "PYTHONUNBUFFERED": "1",
            "TOPICS_DATA_DIR": str(self.data),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
        } | self.environ
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *self.arguments],
                env=environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait_for(self._port_file.exists)
        host, _, port = self._port_file.read_text().strip().rpartition(":")
        self.address = (host.strip("[]"), int(port))
        if until_ready:
            self._wait_for(lambda: ask_status(self.address, "/readyz") in (200, 401))
        return self

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = self._clock.monotonic() + PATIENCE_S
        while not condition():
            try:
                code = self.process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                assert self._clock.monotonic() < deadline, f"the server hangs:\n{self.output}"
            else:
                self.process = None
                raise ServerFailed(code, self.output)

    def signal(self, number: int) -> None:
        assert self.process is not None, "the server does not run"
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; its exit code."""
        assert self.process is not None, "the server does not run"
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process = None
        return code

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        self.wait()

    def __enter__(self) -> Self:
        return self.start() if self.process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.kill()


def ask_status(address: tuple[str, int], path: str) -> int:
    """The status of a GET; 0 if nobody answers."""
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            head = connection.recv(64)
    except OSError:
        return 0
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
