"""A run ends, whatever a test has left behind."""

import faulthandler
import sys

import pytest

PATIENCE_S = 60.0


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Python waits for all its threads at the end: if that takes too long, show them and leave with an error."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=sys.__stderr__)
