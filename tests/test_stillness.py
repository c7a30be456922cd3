"""A test that hangs is ended soon; one that is only slow is not."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stillness import Tree, is_supported
from topics.testing.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="the system does not tell what its threads do")
ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.stillness import Plugin

def pytest_configure(config):
    config.pluginmanager.register(Plugin(tick_s=0.02, looks=20))
"""
TESTS = """
import asyncio, os, subprocess, sys, threading

def test_of_a_lock():
    threading.Event().wait()

def test_of_a_loop():
    async def hang():
        await asyncio.Event().wait()
    asyncio.run(hang())

def test_of_a_process():
    subprocess.run([sys.executable, "-c", "input()"], stdin=os.pipe()[0])

def test_that_is_right():
    pass
"""


@contextmanager
def child(code: str) -> Iterator[None]:
    """A process that has come so far as to print something."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.read(1)
        yield
    finally:
        process.kill()
        process.communicate()


def test_processes_that_wait_are_still() -> None:
    tree = Tree()
    with child("import threading; print(1, flush=True); threading.Event().wait()"):
        wait_until("all stand still", tree.is_still)


def test_a_process_that_runs_or_wants_to_is_not_still() -> None:
    tree = Tree()
    with child("print(1, flush=True)\nwhile True: pass"):
        assert not any(tree.is_still() for _ in range(20))


def test_what_was_done_between_two_looks_counts() -> None:
    tree = Tree()
    wait_until("all stand still", tree.is_still)
    with child("print(sum(range(3_000_000)), flush=True); import threading; threading.Event().wait()"):
        assert not tree.is_still()


@pytest.mark.slow
def test_tests_that_hang_fail_and_the_next_one_is_run(tmp_path: Path) -> None:
    """Each in its own way: for a lock, in an event loop, for a process."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:topics", "-c", "/dev/null"]
    told = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout
    assert "3 failed, 1 passed" in told, told
    assert told.count("it hangs: for long nothing of it ran or wanted to") >= 3
    assert "most recent call first" in told, "it says what each thread waits for"
