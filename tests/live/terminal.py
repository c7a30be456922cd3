"""Commands as processes, with a server of their own."""

import os
import signal
import subprocess
from pathlib import Path

import topics
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import COMMAND, ServerProcess

SOURCES = str(Path(topics.__file__).parent.parent)


def url_of(server: ServerProcess) -> str:
    return "http://{}:{}".format(*server.address)


class Terminal:
    """A directory, a home, and a command `topics` on the path."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        tools = directory / "bin"
        tools.mkdir(parents=True)
        python, *arguments = COMMAND
        (tools / "topics").write_text(f"#!/bin/sh\nexec {python} {arguments[0]} '{arguments[1]}' \"$@\"\n")
        (tools / "topics").chmod(0o755)
        self.environ = {
            "PATH": f"{tools}:{os.defpath}:/usr/bin:/bin",
            "HOME": str(directory),
            "PYTHONPATH": SOURCES,
            "TOPICS_URL": url,
        }

    def shell(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of shell to its end."""
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.directory,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str) -> "Running":
        return Running([*COMMAND, *arguments], self.directory, self.environ)


class Running:
    """A command at work."""

    def __init__(self, command: list[str], directory: Path, environ: dict[str, str]) -> None:
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, what: str, text: str) -> None:
        """Wait until it has printed this."""
        wait_until(what, lambda: text in self.out + self.err or self.process.poll() is not None)
        assert text in self.out + self.err, (self.out, self.err)

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
