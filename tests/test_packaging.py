"""What is installed is what the project declares."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import topics

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_holds_a_plain_pin_for_everything_that_development_needs() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9_.-]+)==[A-Za-z0-9_.+!-]+", line) for line in lines]
    assert all(pins), "each line is name==version, without addresses or paths"
    locked = {re.sub(r"[-_.]+", "-", pin[1].lower()) for pin in pins if pin}
    declared = {re.split(r"[<>=]", r)[0] for r in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]}
    assert declared <= locked


def test_the_installed_package_has_the_version_that_it_says() -> None:
    assert metadata.version("topics-engine") == topics.__version__


def test_the_package_ships_its_types() -> None:
    assert (Path(topics.__file__).parent / "py.typed").is_file()


def test_the_command_tells_its_version() -> None:
    command = Path(sys.executable).parent / "topics"
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"topics {topics.__version__}\n"
