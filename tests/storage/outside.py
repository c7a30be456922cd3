"""Disks seen from outside: under either event loop, by a second process, by what a process holds open."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import uvloop

from topics.testing.patience import PATIENCE_S

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(work: Coroutine[Any, Any, Any], loop: str = "asyncio") -> Any:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(work)


def python(source: str, *arguments: object, launcher: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """A real second process that can import topics. It gets SIGKILL when its `with` ends too early."""
    return subprocess.Popen(
        [*launcher, sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_ended(pid: int) -> Callable[[], None]:
    """Take hold of a process now; the result waits until it has ended."""
    handle = os.pidfd_open(pid)

    def wait() -> None:
        try:
            assert select.select([handle], [], [], PATIENCE_S)[0], f"process {pid} is still there"
        finally:
            os.close(handle)

    return wait


def descriptors(pid: int | Literal["self"] = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
