"""The server that is tortured: its process, its helpers, its file system and its limits.

Owns what can be done to a process from outside. Must not know: the clients, what is right.
"""

import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.storage.outside import without_kernel_queue
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ask_status

HELPERS = {"sync helper": "syncer.py", "sealing helper": "sealing.py"}
IDLE_CONNECTIONS = 60
SPARE_DESCRIPTORS = 20  # that the server may open beyond those it has, when they are made few
CHUNK = bytes(1 << 16)


def may_mount(directory: Path) -> bool:
    """Whether a file system of its own can be made for the data."""
    place = directory / "mount"
    place.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True).returncode == 0:
            return subprocess.run(["umount", place], capture_output=True).returncode == 0
    return False


class Confined(ServerProcess):
    """A server that may not use the kernel's queue: a helper syncs."""

    def start(self, *, until_ready: bool = True) -> Self:
        return without_kernel_queue(lambda: super(Confined, self).start(until_ready=until_ready))


class Victim:
    """One server on one directory. `mounted_mib`: its data are on a file system of their own, which can be filled."""

    def __init__(
        self, directory: Path, settings: dict[str, str], mounted_mib: int = 0, *, is_confined: bool = False
    ) -> None:
        self.directory = directory
        self.server = (Confined if is_confined else ServerProcess)(directory, settings)
        self.is_mounted = bool(mounted_mib)
        self._orphans: list[int] = []  # helpers that were stopped when their server was killed
        self._stack = ExitStack()
        self._disk = directory / "disk"
        self._disk.mkdir(parents=True)
        self.server.data = self._disk / "data"
        if mounted_mib:
            options = f"size={mounted_mib}m,mode=700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", self._disk], check=True)
            self._stack.callback(subprocess.run, ["umount", "-l", self._disk], check=True)

    def close(self) -> None:
        if self.server.process is not None:
            self.server.kill()
        self.release_orphans()
        self._stack.close()

    # --- the process

    def start(self) -> None:
        """Start, and be ready."""
        self.server.start()

    def start_somehow(self) -> None:
        """Start, and serve, whether or not writes are possible."""
        self.server.start(until_ready=False)
        wait_until("it serves", lambda: self._get("/v0/topics").startswith("HTTP/1.1 200 "))

    @property
    def is_ready(self) -> bool:
        return ask_status(self.server.address, "/readyz") == 200

    @property
    def has_exited(self) -> bool:
        assert self.server.process is not None
        return self.server.process.poll() is not None

    @property
    def router_lag(self) -> int:
        """Records that routers have not looked at."""
        lags = re.findall(r"^topics_router_lag\{.*\} (\d+)\r?$", self._get("/v0/metrics"), re.MULTILINE)
        return sum(int(lag) for lag in lags)

    def _get(self, target: str) -> str:
        """The answer to a GET, its head included."""
        with socket.create_connection(self.server.address, PATIENCE_S) as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

    def helpers(self, kind: str) -> list[int]:
        """Its helpers of this kind."""
        found = []
        for task in Path(f"/proc/{self.server.pid}/task").iterdir():
            with suppress(OSError):
                found += (task / "children").read_text().split()
        return [int(pid) for pid in found if HELPERS[kind] in _command(int(pid))]

    def kill_helpers(self, kind: str) -> int:
        """How many there were."""
        return sum(_signalled(pid, signal.SIGKILL) for pid in self.helpers(kind))

    @contextmanager
    def stopped(self, kind: str) -> Iterator[int]:
        """SIGSTOP and, at the end, SIGCONT of the server or its helpers; how many there are."""
        pids = [self.server.pid] if kind == "server" else self.helpers(kind)
        try:
            yield sum(_signalled(pid, signal.SIGSTOP) for pid in pids)
        finally:
            for pid in pids:
                _signalled(pid, signal.SIGCONT)

    def orphan_helpers(self) -> None:
        """Stop the helpers for as long as their server lives, and into the next life."""
        for kind in HELPERS:
            for pid in self.helpers(kind):
                if _signalled(pid, signal.SIGSTOP):
                    self._orphans.append(pid)

    def release_orphans(self) -> None:
        for pid in self._orphans:
            if any(script in _command(pid) for script in HELPERS.values()):  # else it is another process by now
                _signalled(pid, signal.SIGCONT)
        self._orphans.clear()

    # --- its file system and its limits

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Not a byte is left on its file system."""
        ballast = self._disk / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(CHUNK):
                    pass
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def small_files(self, size: int) -> Iterator[None]:
        """No file may grow beyond `size`."""
        with self._limited(resource.RLIMIT_FSIZE, size):
            yield

    @contextmanager
    def few_descriptors(self) -> Iterator[None]:
        """Idle connections take almost all the descriptors that it may have."""
        used = max(map(int, os.listdir(f"/proc/{self.server.pid}/fd")))
        with self._limited(resource.RLIMIT_NOFILE, used + SPARE_DESCRIPTORS), ExitStack() as idle:
            for _ in range(IDLE_CONNECTIONS):
                idle.enter_context(socket.create_connection(self.server.address, PATIENCE_S))
            yield

    @contextmanager
    def _limited(self, what: int, soft: int) -> Iterator[None]:
        pid = self.server.pid
        before = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (soft, before[1]))
        try:
            yield
        finally:
            if self.server.process is not None and self.server.pid == pid:
                resource.prlimit(pid, what, before)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _signalled(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
