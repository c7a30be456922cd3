"""What the kernel tells of a process: CPU time, memory."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Of this process alone, user and system."""
    return sum(_stat(pid)[11:13]) / TICKS_PER_S


def tree_cpu_seconds(pid: int) -> float:
    """Of the process, of all below it, and of those below it that have ended and were waited for."""
    seconds = sum(_stat(pid)[11:15]) / TICKS_PER_S
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended, and counts for its parent
                    seconds += tree_cpu_seconds(int(child))
    return seconds


def _stat(pid: int) -> list[int]:
    """The fields behind the name of the program; the first is its state, here as 0."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, fields[1:])]


def own_cpu_seconds() -> float:
    """Of this process and of all it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True)
class Load:
    """What a load did to a server, and what it cost on both sides."""

    count: int  # requests, or whatever is counted
    seconds: float
    server_s: float  # CPU
    client_s: float

    @property
    def per_s(self) -> float:
        return self.count / self.seconds

    def figures(self, key: str, scale: int = 1) -> dict[str, float]:
        """Rate, and the CPU of either side per record, under names that begin with `key`.

        `scale` is the number of records in each request.
        """
        return {
            f"{key}_per_s": self.per_s * scale,
            f"{key}_server_us": self.server_s / (self.count * scale) * 1e6,
            f"{key}_client_us": self.client_s / (self.count * scale) * 1e6,
            f"{key}_client_cpu": self.client_s / self.seconds,
        }


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not tell VmRSS of process {pid}")


def open_many_files() -> None:
    """As many files as the hard limit admits, here and in processes started from here."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
