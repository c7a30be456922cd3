"""The TypeScript client: its types are those of the API, its dist is that of its sources, and it works, in node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.typescript_client import COMPILE, HOME, TYPES, document, types_of
from topics.testing.patience import PATIENCE_MS, PATIENCE_S
from topics.testing.server import ServerProcess

NODE = shutil.which("node")
NODE_MIN = (20, 18)  # the first with an EventSource, behind a flag


def node_version() -> tuple[int, ...]:
    if NODE is None:
        return (0,)
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.strip().removeprefix("v").split(".")[:2])


needs_node = pytest.mark.skipif(node_version() < NODE_MIN, reason=f"needs node {NODE_MIN[0]}.{NODE_MIN[1]} or newer")


def test_the_types_are_those_of_the_api() -> None:
    """Write them with: python -m tools.typescript_client"""
    assert TYPES.read_text() == types_of(document())


@needs_node
@pytest.mark.slow
def test_what_is_loaded_is_what_tsc_makes_of_the_sources(tmp_path: Path) -> None:
    """Build it with: python -m tools.typescript_client"""
    shutil.copytree(HOME, tmp_path / "typescript", ignore=shutil.ignore_patterns("dist", "node_modules"))
    place = tmp_path / "typescript"
    try:
        made = subprocess.run(COMPILE, cwd=place, capture_output=True, text=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        pytest.skip("there is no npx")
    if not (place / "dist").exists() and "error TS" not in made.stdout:
        pytest.skip(f"npm cannot get TypeScript: {made.stderr[-200:]}")
    assert made.returncode == 0, made.stdout
    built = {path.name: path.read_text() for path in (place / "dist").iterdir()}
    assert built == {path.name: path.read_text() for path in (HOME / "dist").iterdir()}


@needs_node
@pytest.mark.process
def test_it_works_in_node(tmp_path: Path) -> None:
    """AU18: a ticket opens a stream in place of the key. SS28: a stream without a session goes on where it was."""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "browser"}) as server:
        told = {"PATH": os.environ["PATH"], "TOPICS_URL": server.url, "TOPICS_TOKEN": "browser"}
        command = [str(NODE), "--experimental-eventsource", "--test", f"--test-timeout={PATIENCE_MS}", "test/"]
        run = subprocess.run(command, cwd=HOME, env=told, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# fail 0" in run.stdout and "# skipped 0" in run.stdout, run.stdout
