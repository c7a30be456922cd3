"""Commands on a real terminal: colours, progress, questions, Ctrl-C; and completion in real shells."""

import errno
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.terminal import Terminal, url_of
from topics.client import Client
from topics.clock import SystemClock
from topics.testing.patience import PATIENCE_S
from topics.testing.server import COMMAND, ServerProcess

CTRL_C = b"\x03"
BOLD = "\x1b[1m"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def terminal(server: ServerProcess, tmp_path: Path) -> Terminal:
    one = Terminal(tmp_path / "terminal", url_of(server))
    one.environ["TERM"] = "xterm-256color"
    return one


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(url_of(server)) as one:
        yield one


class Screen:
    """A process whose terminal we hold."""

    def __init__(self, terminal: Terminal, *command: str, columns: int = 120, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=terminal.directory,
            env=terminal.environ | environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, text: str, after: int = 0) -> int:
        """Read until this is on the screen, behind a place; the place behind it."""
        clock = SystemClock()
        deadline = clock.monotonic() + PATIENCE_S
        while (at := self.text.find(text, after)) < 0:
            assert self._read(deadline - clock.monotonic()), f"{text!r} did not come: {self.text!r}"
        return at + len(text)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read(PATIENCE_S):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, seconds))[0]:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # nobody has the terminal any more
                return False
            raise
        self.text += found.decode(errors="replace")
        return bool(found)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def screens(terminal: Terminal) -> Iterator["Screens"]:
    found = Screens(terminal)
    yield found
    for one in found.open:
        one.close()


class Screens:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.open: list[Screen] = []

    def topics(self, *arguments: str, **environ: str) -> Screen:
        return self.start(*COMMAND, *arguments, **environ)

    def start(self, *command: str, **environ: str) -> Screen:
        self.open.append(Screen(self._terminal, *command, **environ))
        return self.open[-1]


# --- colours, progress, questions


def test_colours_are_for_terminals_that_want_them(screens: Screens, terminal: Terminal, client: Client) -> None:
    client.append("coloured", [{"data": 1, "tag": "t"}])
    plain = terminal.shell("topics read coloured; topics ls; topics doctor")
    assert "\x1b" not in plain.stdout + plain.stderr
    for arguments in (("ls",), ("read", "coloured")):
        screen = screens.topics(*arguments)
        assert screen.end() == 0 and "\x1b[" in screen.text, screen.text
        for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            screen = screens.topics(*arguments, **environ)
            assert screen.end() == 0 and "\x1b[" not in screen.text, (environ, screen.text)
    screen = screens.topics("ls", "--json")
    assert screen.end() == 0 and "\x1b" not in screen.text


def test_progress_is_for_terminals(screens: Screens, terminal: Terminal) -> None:
    (terminal.directory / "lines").write_text("1\n" * 25_000)
    answer = terminal.shell("topics send counted --file lines")
    assert answer.returncode == 0 and "\r" not in answer.stdout + answer.stderr
    screen = screens.topics("send", "counted", "--file", "lines")
    assert screen.end() == 0
    assert "records sent" in screen.text and "\r" in screen.text.replace("\r\n", "\n")


def test_a_question_is_asked_on_a_terminal_and_only_yes_is_yes(screens: Screens, client: Client) -> None:
    for keys, code, is_left in ((b"n\n", 1, True), (b"\n", 1, True), (b"\x04", 1, True), (b"y\n", 0, False)):
        client.append("doomed", [{"data": 1}])
        screen = screens.topics("rm", "doomed")
        screen.until("[y/N]")
        screen.type(keys)
        assert screen.end() == code, screen.text
        assert any(one.topic == "doomed" for one in client.topics("doomed")) is is_left


# --- Ctrl-C


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("tail", "-f", "endless"), "the first"),
        (("watch", "endless", "--from", "earliest"), "the first"),
        (("ls", "--watch"), "endless"),
        (("top",), "endless"),
        (("rm", "endless"), "[y/N]"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_ctrl_c_ends_a_command_quietly(screens: Screens, client: Client, arguments: tuple[str, ...], seen: str) -> None:
    client.append("endless", [{"data": "the first"}])
    screen = screens.topics(*arguments)
    at = screen.until(seen)
    screen.type(CTRL_C)
    assert screen.end() == 130, screen.text
    rest = screen.text[at:]
    assert "Traceback" not in rest and "Aborted" not in rest and "Error" not in rest, rest


def test_top_gives_the_screen_back(screens: Screens, client: Client) -> None:
    client.append("on-top", [{"data": 1}])
    screen = screens.topics("top", "--every", "50ms", columns=60)
    at = screen.until("on-top", screen.until("pressure") if "pressure" in screen.text else 0)
    screen.until("on-top", at)
    screen.type(CTRL_C)
    assert screen.end() == 130
    assert screen.text.startswith("\x1b[?1049h") and screen.text.rstrip().endswith("\x1b[?1049l")


def test_the_server_talks_to_people_on_a_terminal_and_stops_on_ctrl_c(screens: Screens) -> None:
    screen = screens.topics("serve", "--port", "0", "--data-dir", "data")
    screen.until("metrics  http://")
    screen.type(CTRL_C)
    assert screen.end() == 0
    assert '"level"' not in screen.text and "stopped" in screen.text and "Traceback" not in screen.text


# --- completion


def shell_of(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


PROMPT = "topics-here> "
STARTS = {
    "bash": (("--norc", "--noprofile", "-i"), f"PS1='{PROMPT}'", 'eval "$(topics completion bash)"'),
    "zsh": (
        ("-f", "-i"),
        f"zle_highlight=(none); PS1='{PROMPT}'",
        'autoload -U compinit; compinit -u; eval "$(topics completion zsh)"',
    ),
    "fish": (
        ("--no-config", "-i"),
        f"function fish_prompt; echo -n '{PROMPT}'; end",
        "topics completion fish | source",
    ),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("topics inf", "topics info "),
        ("topics queue red", "topics queue redrive "),
        ("topics context ad", "topics context add "),
        ("topics serve --data-d", "topics serve --data-dir "),
        ("topics read whole.", "topics read whole.name "),
        ("topics tail -f whole.name with:", "topics tail -f whole.name with:colon "),
        ("topics read with:co", "topics read with:colon "),
    ],
)
def test_a_shell_completes_commands_options_and_topics(
    screens: Screens, client: Client, name: str, typed: str, completed: str
) -> None:
    client.append("whole.name", [{"data": 1}])
    client.append("with:colon", [{"data": 1}])
    arguments, prompt, script = STARTS[name]
    screen = screens.start(shell_of(name), *arguments)
    screen.type(f"{prompt}; echo is-rea''dy\n".encode())
    at = screen.until("is-ready")
    screen.type(f"{script}; echo is-do''ne\n".encode())
    at = screen.until(PROMPT, screen.until("is-done", at))
    screen.type(typed.encode() + b"\t")
    screen.until(completed, at)
