"""The Makefile: each target installs what it needs and no more; the environment follows the Python.

Nothing is installed here: make is asked what it would do, and environments are made without packages.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topics.testing.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
RUNTIME, DEV, SPARK = "requirements.lock", "requirements-dev.lock", "requirements-spark.lock"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def locks(target: str, venv: Path) -> set[str]:
    """The lock files that a target would install on a machine with nothing."""
    answer = make("--dry-run", target, f"VENV={venv}", f"PYTHON={sys.executable}")
    assert answer.returncode == 0, answer.stderr
    return {
        name
        for name in (RUNTIME, DEV, SPARK)
        if f"install --quiet --disable-pip-version-check --requirement {name}" in answer.stdout
    }


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("run", {RUNTIME}),
        ("demo", {RUNTIME}),
        ("setup", {RUNTIME, DEV}),
        ("quick", {RUNTIME, DEV}),
        ("format", {RUNTIME, DEV}),
        ("check", {RUNTIME, DEV, SPARK}),
        ("test", {RUNTIME, DEV, SPARK}),
        ("test-full", {RUNTIME, DEV, SPARK}),
    ],
)
def test_a_target_installs_what_it_needs_and_no_more(tmp_path: Path, target: str, wanted: set[str]) -> None:
    assert locks(target, tmp_path / "venv") == wanted


REST = f"{os.sysconf('SC_NPROCESSORS_ONLN') + 1} --ignore tests/spark"


@pytest.mark.parametrize("failing", ["none of them", REST, "2 tests/spark"])
def test_both_parts_of_the_tests_are_run_whatever_becomes_of_the_other(tmp_path: Path, failing: str) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "ran $*"\ncase "$*" in *"{failing}"*) exit 1;; esac\n')
    python.chmod(0o755)
    parts = make("--dry-run", "test", f"VENV={tmp_path}", f"PYTHON={sys.executable}").stdout
    assert "--jobs 2 --keep-going test-rest test-spark ONLY='-m \"not full\"'" in parts
    answer = make("--jobs", "2", "--keep-going", "test-rest", "test-spark", "ONLY=-x", f"VENV={tmp_path}")
    ran = [line for line in answer.stdout.splitlines() if line.startswith("ran ")]
    assert len(ran) == 2
    assert {line.partition("numprocesses ")[2] for line in ran} == {"2 tests/spark -x", f"{REST} -x"}
    assert (answer.returncode == 0) == (failing == "none of them")


def test_the_environment_is_made_once_and_anew_for_another_python(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    made = venv / ".python"

    def run() -> str:
        answer = make(str(made), f"VENV={venv}", f"PYTHON={sys.executable}")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    assert f"making {venv} with " in run()
    before, text = made.stat(), made.read_text()
    assert sys.version.split()[0] in text and "venv" not in text.split()[0], "the interpreter behind this environment"
    assert run() == "" and made.stat().st_mtime_ns == before.st_mtime_ns
    made.write_text("/opt/other/python 3.11.0\n")
    (venv / "of-the-other").touch()
    assert f"{venv} was made with another Python" in run()
    assert made.read_text() == text and not (venv / "of-the-other").exists() and (venv / "bin" / "python").exists()


def test_a_python_that_is_absent_or_too_old_is_refused_with_what_to_do(tmp_path: Path) -> None:
    answer = make("run", f"VENV={tmp_path / 'venv'}", "PYTHON=no-such-python")
    assert answer.returncode != 0 and "there is no no-such-python; name a Python by: make PYTHON=..." in answer.stderr
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    answer = make("run", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}")
    assert answer.returncode != 0 and "topics needs Python 3.11 or newer" in answer.stderr


def test_a_checkout_is_linked_into_an_environment(tmp_path: Path) -> None:
    """`make run` has the command and the sources, also where a path has blanks and quotes."""
    venv = tmp_path / "it's here"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    for _ in range(2):
        subprocess.run([venv / "bin" / "python", "-m", "tools.linked"], cwd=ROOT, check=True)
    code = "import topics; print(topics.__file__)"
    answer = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert Path(answer.stdout.strip()) == ROOT / "src" / "topics" / "__init__.py"
    assert os.access(venv / "bin" / "topics", os.X_OK)
    answer = subprocess.run([venv / "bin" / "topics"], capture_output=True, text=True)
    assert "No module named" in answer.stderr, "it runs that interpreter, which has no packages"
