"""Client processes of the load runs: how the tests start them, and wait."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

PATIENCE_S = 120.0


@contextmanager
def process(module: str, **wanted: Any) -> Iterator["subprocess.Popen[str]"]:
    """A client process; its input ends, or it is killed, with the block."""
    command = [sys.executable, "-m", f"tests.live.{module}", json.dumps(wanted)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def last_words(started: "subprocess.Popen[str]", command: str = "") -> str:
    """Give it its last command and wait for its end; what it said last."""
    said = started.communicate(command, PATIENCE_S)[0]
    assert started.returncode == 0, said
    return said.splitlines()[-1]


def wait_until(what: str, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = monotonic() + patience_s
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.05)
