"""The pytest plugin that the package brings, in a run of pytest of its own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from topics.testing.patience import PATIENCE_S

TESTS = """
def test_writing(topics_client):
    topics_client.send("orders", {"sku": "A"})
    assert topics_client.state("orders").count == 1

def test_a_crash(topics_server, topics_client):
    topics_server.kill()
    topics_server.start()
    assert topics_client.state("orders").count == 1
"""


def test_a_program_tests_against_a_real_server(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(TESTS)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    plugin = project["entry-points"]["pytest11"]["topics"]
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin, "--rootdir", tmp_path)
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it may be installed, too
    run = subprocess.run(
        [*command, tmp_path], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert run.returncode == 0 and "2 passed" in run.stdout, run.stdout + run.stderr


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    code = "import sys, topics.testing.pytest_plugin; print(sys.modules.keys() & {'uvloop', 'topics.engine'})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()"
