"""The README and the guides are carried out: every command and program of a page, in order, against a real server.

A page is one script of bash. What a block of text behind a block of commands says is what they print, where `…` stands
for anything. A block opened as

- ```bash, or ```bash continued, is run;
- ```bash kill shows how to kill the server: it is killed with -9 and started again, the commands are not run;
- ```bash skip needs more than a server, and is only parsed;
- ```python is run as a program of its own; `# → text` says what it prints, line by line;
- ```python skip is only compiled.

Commands reach the server as the page says: http://127.0.0.1:4000 becomes its address.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_docs import FENCE, ROOT
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
ADDRESS = "http://127.0.0.1:4000"


class Step(NamedTuple):
    """A block of a page, and the text behind it, if there is one."""

    language: str
    how: str
    code: str
    line: int
    expected: str | None


def steps(text: str) -> Iterator[Step]:
    found = list(FENCE.finditer(text))
    for place, match in enumerate(found):
        language, _, how = match[1].strip().partition(" ")
        behind = found[place + 1] if place + 1 < len(found) else None
        is_followed = behind is not None and behind[1] == "text" and not text[match.end() : behind.start()].strip()
        expected = behind[2] if behind is not None and is_followed else None
        yield Step(language, how, match[2], text.count("\n", 0, match.start()) + 2, expected)


def pattern_of(expected: str) -> re.Pattern[str]:
    """What a text block says as a pattern: `…` is anything, the ends of lines do not count."""
    return re.compile(re.escape(expected.strip()).replace("…", ".*?") + r"\s*", re.DOTALL)


class Reader:
    """Somebody who works through a page at a terminal."""

    def __init__(self, directory: Path, server: ServerProcess) -> None:
        self.directory = directory
        self.server = server
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._environ = {**kept, "PATH": path, "HOME": str(directory), "TOPICS_URL": server.url, "NO_COLOR": "1"}
        self._before = ""  # what the shell was told to remember

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )

    def bash(self, step: Step) -> str:
        """Run a block in a shell that knows the variables and functions of the blocks before."""
        memory = self.directory / ".memory"
        memory.touch()
        code = step.code.replace(ADDRESS, self.server.url)
        script = (
            f". {memory}\nset -eu -o pipefail\n{code}\nset +eu\n{{ declare -f; declare -p; }} 2>/dev/null > {memory}"
        )
        run = self._run("bash", "-c", script.replace("declare -p;", "declare -p | grep -v 'declare -[a-z]*r';"))
        assert run.returncode == 0, f"line {step.line}: {run.stdout}{run.stderr}"
        return run.stdout

    def python(self, step: Step) -> str:
        program = self.directory / f"line_{step.line}.py"
        program.write_text("\n" * (step.line - 1) + step.code.replace(ADDRESS, self.server.url))
        run = self._run(sys.executable, str(program))
        assert run.returncode == 0, f"line {step.line}: {run.stdout}{run.stderr}"
        return run.stdout

    def work_through(self, step: Step) -> None:
        if step.language == "bash" and step.how == "kill":
            self.server.kill()
            self.server.environ["TOPICS_PORT"] = str(self.server.address[1])
            self.server.start()
        elif step.language == "bash" and step.how == "skip":
            assert self._run("bash", "-n", "-c", step.code).returncode == 0, f"line {step.line}"
        elif step.language == "bash":
            printed = self.bash(step)
            if step.expected is not None:
                assert pattern_of(step.expected).fullmatch(printed), f"line {step.line} printed:\n{printed}"
        elif step.language == "python":
            compile(step.code, f"line {step.line}", "exec")
            if step.how != "skip":
                printed = self.python(step)
                assert printed.splitlines() == re.findall(r"# → (.*)$", step.code, re.MULTILINE), f"line {step.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_does_what_it_says(page: Path, tmp_path: Path) -> None:
    todo = list(steps(page.read_text()))
    if not any(step.language in ("bash", "python") for step in todo):
        pytest.skip("a page without commands")
    work = tmp_path / "work"
    work.mkdir()
    with ServerProcess(tmp_path) as server:
        reader = Reader(work, server)
        for step in todo:
            reader.work_through(step)


def test_a_wrong_guide_is_noticed(tmp_path: Path) -> None:
    """The reader is no rubber stamp: a wrong output, a failed command and a wrong program are all errors."""
    wrong = {
        "output": "```bash\necho one\n```\n```text\ntwo\n```\n",
        "command": "```bash\nfalse | cat\n```\n",
        "program": "```python\nprint(1)  # → 2\n```\n",
        "syntax": "```bash skip\nif\n```\n",
    }
    with ServerProcess(tmp_path) as server:
        reader = Reader(tmp_path, server)
        for text in wrong.values():
            (step, *_) = steps(text)
            with pytest.raises(AssertionError):
                reader.work_through(step)
        for step in steps('```bash\nx=1; f() { echo "$x"; }\n```\n\n```bash\nf\n```\n\n```text\n…\n```\n'):
            reader.work_through(step)
