"""Stillness: a test that hangs, told from one that is slow by what its processes do, not by a clock.

A test that is slow runs, or stands in line for a processor or a disk, however busy the machine is. A test that waits
for what never comes does neither, nor does any process that it has started. One that stands still for `STILL_S` is
ended, and says where it waits. One that hangs and is busy about it is ended by its patience, five times as late.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

PROC = Path("/proc")
STILL_S = 240  # more than any timeout of Spark, which waits for two minutes for a machine that is gone
TICK_S = 5.0
LOOKS = int(STILL_S / TICK_S)
ACTIVE_LOOKS_MAX = 4  # of LOOKS: a thread that polls may be caught at it
BUSY_PART = 0.05  # of one processor: less than this is polling, or a timer
AT_WORK = frozenset("RD")  # runs or stands in line for a processor; waits for a disk


def is_supported() -> bool:
    return (PROC / "self" / "schedstat").exists() and (PROC / "self" / "task").is_dir()


class Tree:
    """This process and all that it has started, without the thread that looks."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}
        self._seen_at = time.monotonic()

    def is_still(self) -> bool:
        """Whether nothing runs, and hardly anything did or wanted to since the last look."""
        before, before_at = self._seen, self._seen_at
        self._seen, self._seen_at = {}, time.monotonic()
        is_at_work = False
        for pid, thread in self._threads(os.getpid()):
            try:
                ran_ns, waited_ns, _ = map(int, (PROC / f"{pid}/task/{thread}/schedstat").read_text().split())
                state = (PROC / f"{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # it has ended meanwhile
            self._seen[pid, thread] = ran_ns + waited_ns
            is_at_work = is_at_work or state in AT_WORK
        spent_ns = sum(ns - before.get(thread, 0) for thread, ns in self._seen.items())
        is_ended = not before.keys() <= self._seen.keys()
        return not (is_at_work or is_ended or spent_ns > BUSY_PART * 1e9 * (self._seen_at - before_at))

    def _threads(self, pid: int) -> Iterator[tuple[int, int]]:
        own = threading.get_native_id()
        try:
            threads = [int(name) for name in os.listdir(PROC / f"{pid}/task")]
            children = [(PROC / f"{pid}/task/{thread}/children").read_text().split() for thread in threads]
        except OSError:
            return  # it has ended meanwhile
        yield from ((pid, thread) for thread in threads if thread != own)
        for child in chain.from_iterable(children):
            yield from self._threads(int(child))


class Watch:
    """Looks at the tree while a test runs; calls `on_hang` once it has stood still for long enough."""

    def __init__(self, on_hang: Callable[[], None], *, tick_s: float = TICK_S, looks: int = LOOKS) -> None:
        self._on_hang = on_hang
        self._tick_s = tick_s
        self._looks: deque[bool] = deque(maxlen=looks)
        self._turn = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stillness", daemon=True)
        self._is_watching = False

    def begin(self) -> None:
        """A test begins."""
        self._looks.clear()
        self._is_watching = True
        if not self._thread.is_alive():
            self._thread.start()

    def pause(self) -> None:
        """It has ended, or somebody debugs it."""
        self._is_watching = False

    def _watch(self) -> None:
        tree = Tree()
        while not self._turn.wait(self._tick_s):
            self._looks.append(tree.is_still())
            is_full = len(self._looks) == self._looks.maxlen
            if is_full and self._looks.count(False) <= ACTIVE_LOOKS_MAX and self._is_watching:
                self._looks.clear()
                self._on_hang()


def fail_in_main_thread() -> None:
    """End what the main thread waits for."""
    faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def _fail(_signal: int, _frame: FrameType | None) -> NoReturn:
    pytest.fail("it hangs: for long nothing of it ran or wanted to; stderr has what each thread waits for")


class Plugin:
    """Ends tests that hang. Each waits in the main thread of its process."""

    def __init__(self, *, tick_s: float = TICK_S, looks: int = LOOKS) -> None:
        self._watch = Watch(fail_in_main_thread, tick_s=tick_s, looks=looks)
        signal.signal(signal.SIGALRM, _fail)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._watch.begin()
        try:
            return (yield)
        finally:
            self._watch.pause()

    def pytest_enter_pdb(self) -> None:
        self._watch.pause()
