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
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvloop

import topics
from topics.clock import SystemClock
from topics.engine import Engine
from topics.server.main import Server
from topics.settings import Settings
from topics.storage.disk import Disk
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S, POLL_S

T = TypeVar("T")

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
    def url(self) -> str:
        """Where it is, for a client."""
        return "http://{}:{}".format(*self.address)

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
            "PYTHONPATH": str(Path(topics.__file__).parent.parent),  # the sources that the tests import
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

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()


class ServerThread:
    """A server on an event loop in a thread of this process. Time stands still until `advance`.

    With `starts=False` the port is bound and the engine not yet started, until `recover`. `pressure` stands in for
    the measured one.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        disk: Disk | None = None,
        clock: ManualClock | None = None,
        starts: bool = True,
    ) -> None:
        self._settings = replace(settings or Settings(), host="127.0.0.1", port=0)
        self.disk = disk or MemoryDisk()
        self.clock = clock or ManualClock()
        self.pressure = 0.0
        self.address = ("", 0)
        self._starts = starts
        self._closing: Future[None] | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="topics-server", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        try:
            self.server = self.do(self._start())
        except BaseException:
            self._end_loop()
            raise
        self.address = self.server.listener.address
        return self

    async def _start(self) -> Server:
        settings, self._settings = self._settings, self._settings.without_secrets()
        engine = Engine.open("memory", self._settings, disk=self.disk, clock=self.clock, background=False)
        server = Server.open(settings, engine=engine, source=lambda: self.pressure)
        await server.bind()
        if self._starts:
            await server.recover()
        return server

    def recover(self) -> None:
        self.do(self.server.recover())

    def close(self) -> None:
        """Drain and stop, as at a SIGTERM; nothing if that was done."""
        if not self._loop.is_closed():
            self.start_closing().result(PATIENCE_S)
            self._end_loop()

    def start_closing(self) -> Future[None]:
        """Begin to drain; `close` then does nothing but wait for the end."""
        self._closing = self._closing or asyncio.run_coroutine_threadsafe(self.server.close(), self._loop)
        return self._closing

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def run(self, call: Callable[[], T]) -> T:
        """Call something on the server's loop, between two of its steps."""

        async def calling() -> T:
            return call()

        return self.do(calling())

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true there."""

        async def waiting() -> None:
            while not condition():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.001)

        self.do(waiting())

    def advance(self, ms: int) -> None:
        self.run(lambda: self.clock.advance(ms))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_status(address: tuple[str, int], path: str) -> int:
    """The status of a GET; 0 if nobody answers."""
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            head = connection.recv(64)
    except OSError:
        return 0
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
