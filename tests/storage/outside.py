"""Disks seen from outside: under either event loop, by a second process, by what a process holds open or may call."""

import asyncio
import ctypes
import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeVar

import uvloop

from topics.testing.patience import PATIENCE_S

T = TypeVar("T")

NO_NEW_PRIVILEGES, SECCOMP, SECCOMP_FILTER = 38, 22, 2  # of prctl
IO_URING_SETUP: Final = 425

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


class _Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def without_kernel_queue(work: Callable[[], T]) -> T:
    """Do `work` where io_uring is forbidden, as in a container: on a thread whose system calls are filtered."""

    def confined() -> T:
        program = (_Instruction * 4)(
            _Instruction(0x20, 0, 0, 0),  # load the number of the call
            _Instruction(0x15, 0, 1, IO_URING_SETUP),
            _Instruction(0x06, 0, 0, 0x00050000 | errno.EPERM),
            _Instruction(0x06, 0, 0, 0x7FFF0000),  # allowed
        )
        libc = ctypes.CDLL(None, use_errno=True)
        confining = ctypes.byref(_Filter(len(program), program))
        assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        assert libc.prctl(SECCOMP, SECCOMP_FILTER, confining, 0, 0) == 0, os.strerror(ctypes.get_errno())
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(confined).result()
