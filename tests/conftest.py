"""A run ends, whatever a test has left behind."""

import os
import sys
import threading
import traceback

import pytest

PATIENCE_S = 10.0
STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Python waits for every thread at its end: name those that do not end, and leave without them."""
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in others:
        thread.join(PATIENCE_S)
    stuck = [thread for thread in others if thread.is_alive()]
    if not stuck:
        return
    frames = sys._current_frames()
    for thread in stuck:
        print(f"the thread {thread.name!r} was left behind by a test, here:", file=sys.stderr)
        traceback.print_stack(frames.get(thread.ident or 0), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(STATUS, 1) or 1)
