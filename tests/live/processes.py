"""Client processes of the load runs: how the tests start and end them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from topics.testing.patience import PATIENCE_S


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
