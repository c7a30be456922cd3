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


def locked_in(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9_.-]+)==[A-Za-z0-9_.+!-]+", line) for line in lines]
    assert all(pins), "each line is name==version, without addresses or paths"
    return {re.sub(r"[-_.]+", "-", pin[1].lower()) for pin in pins if pin}


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=]", requirement)[0] for requirement in requirements}


def test_the_lock_holds_a_plain_pin_for_everything_that_development_needs() -> None:
    declared = names_of(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
    assert declared <= locked_in("requirements.lock")


def test_spark_has_a_lock_of_its_own() -> None:
    locked = locked_in("requirements-spark.lock")
    assert names_of(PROJECT["optional-dependencies"]["spark"]) <= locked
    assert not locked & locked_in("requirements.lock")
    assert {"grpcio", "grpcio-status", "googleapis-common-protos", "protobuf"} <= locked, "Connect and pipelines"


def test_the_installed_package_has_the_version_that_it_says() -> None:
    assert metadata.version("topics-engine") == topics.__version__


def test_the_package_ships_its_types() -> None:
    assert (Path(topics.__file__).parent / "py.typed").is_file()


def test_the_command_tells_its_version() -> None:
    command = Path(sys.executable).parent / "topics"
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"topics {topics.__version__}\n"
