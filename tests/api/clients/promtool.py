"""Where promtool is: Prometheus's own judge of metrics and rules."""

import os
import shutil

import pytest


def promtool() -> str:
    """The command, from PROMTOOL or the PATH; without one the test is skipped, and says what to install."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool: install Debian's package prometheus with `make promtool`, or set PROMTOOL")
    return found
