"""The command line in this process, against a server in this process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from topics.cli import app
from topics.client import Client
from topics.testing.server import ServerThread


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands, as in a directory and a home of their own."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        self.environ = {
            "TOPICS_URL": url,
            "TOPICS_TOKEN": "",
            "HOME": str(home),
            "XDG_CONFIG_HOME": "",
            "COLUMNS": "200",
        }

    def run(self, *arguments: str, stdin: str | bytes | None = None, **environ: str | None) -> Answer:
        result = CliRunner().invoke(app, arguments, input=stdin, env={**self.environ, **environ})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return Answer(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str, stdin: str | bytes | None = None) -> Answer:
        answer = self.run(*arguments, stdin=stdin)
        assert answer.code == 0, answer
        return answer


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as thread:
        yield thread


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[Client]:
    with Client("http://{}:{}".format(*server.address)) as one:
        yield one


@pytest.fixture
def shell(server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell("http://{}:{}".format(*server.address), tmp_path)
