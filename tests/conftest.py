"""What holds for every test: its markers, how hard a run tries, and that a run ends, whatever a test has left behind.

Markers follow from the place of a test, see `MARKERS`; a test elsewhere that needs one has it written above it.
"""

import atexit
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests import effort, stillness
from topics.testing.patience import PATIENCE_S

TESTS = Path(__file__).parent
# Place → the marker of all tests below it; the longest one that fits counts.
MARKERS = {
    "spark": "spark",
    "live": "process",
    "live/test_browser.py": "browser",
    "soak": "process",
    "torture": "process",
    "live/test_console.py": "browser",
    "test_docs.py": "process",
    "test_guides.py": "process",
    "test_site.py": "process",
    "test_deploy.py": "process",
    "backup": "around",
    "cli": "around",
    "fuzz": "around",
    "test_bench.py": "around",
    "test_make.py": "around",
    "test_packaging.py": "around",
    "test_plots.py": "around",
    "test_security_page.py": "around",
    "test_unit.py": "around",
}
LOGGERS = ["topics", "topics.client", "topics.server"]
# At the end one worker would be busy with a long file and the others idle: long files come first, the many short ones
# last.
LONG = {"process", "browser"}
SHORT = [TESTS / place for place in ("api", "cli", "client", "engine", "storage")]
LEFT_OUT_OF_QUICK = {"spark", "browser", "process", "around", "slow", "full"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"no tests marked {', '.join(sorted(LEFT_OUT_OF_QUICK))}; the others that sample try a tenth",
    )


def pytest_configure(config: pytest.Config) -> None:
    assert [place for place in MARKERS if not (TESTS / place).exists()] == [], "these places are gone"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background; programs under test must hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile(effort.QUICK if config.getoption("--quick") else effort.USUAL)
    if stillness.is_supported():
        config.pluginmanager.register(stillness.Plugin())
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # of a process of xdist: to free a million objects takes longer than many tests


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick run does not even import what it leaves out: Spark need not be installed."""
    return True if config.getoption("--quick") and marker_of(collection_path) in LEFT_OUT_OF_QUICK else None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Workers must agree on every id, and bytes may have the time of day in them (gzip) or chance (a mask)."""
    return argname if isinstance(val, bytes) and not val.decode("latin-1").isprintable() else None


@pytest.hookimpl(tryfirst=True)  # before -m selects by them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (marker := marker_of(item.path)) is not None:
            item.add_marker(marker)
    if config.getoption("--quick"):
        left_out = {item for item in items if any(mark.name in LEFT_OUT_OF_QUICK for mark in item.iter_markers())}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: turn_of(item.path, item.path in with_spark))


def pytest_collection() -> None:
    """What is imported and collected stays to the end, and is a million objects: the collector need not look at it."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries count what is left at the end; pytest's last ten collections come before


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that a test runs in its own process sets up logging; the next test finds it as it was."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.level, one.propagate, one.disabled, one.handlers[:]) for one in loggers]
    yield
    for one, (level, propagate, disabled, handlers) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.propagate, one.disabled, one.handlers[:] = propagate, disabled, handlers


@cache
def marker_of(path: Path) -> str | None:
    """The marker of all tests in this file or directory."""
    places = [place for place in MARKERS if path.is_relative_to(TESTS / place)]
    return MARKERS[max(places, key=len)] if places else None


def turn_of(path: Path, has_session: bool) -> int:
    """When the tests of a file come: 0 is first. Of Spark, those that need no session are short."""
    marker = marker_of(path)
    if marker in LONG:
        return 0
    is_short = not has_session if marker == "spark" else any(path.is_relative_to(place) for place in SHORT)
    return 2 if is_short else 1


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Python waits for all its threads at the end: if that takes too long, show them and leave with an error."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=sys.__stderr__)
