"""Every command that a page shows is one that exists, with options that it takes: also where a block is not run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from topics.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?:bash|sh|shell|console)\b.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`topics ([a-z][^`\n]*)`")
LINE = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*topics (.+)$|\| topics (.+)$", re.MULTILINE)
OPTION = re.compile(r"--?[a-z][a-z-]*")
TOPICS: Any = typer.main.get_command(app)


def shown_commands(text: str) -> Iterator[str]:
    """What stands behind `topics`, in prose and in the blocks of a shell."""
    yield from INLINE.findall(text)
    for block in FENCE.findall(text):
        for match in LINE.finditer(block.replace("\\\n", " ")):
            yield match[1] or match[2]


def fault_of(shown: str) -> str | None:
    """What is wrong with a command line."""
    lexer = shlex.shlex(shown, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that is closed on a later line
        words = shown.split("'")[0].split()
    command = TOPICS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    taken = {"-h", "--help", *(form for one in command.params for form in (*one.opts, *one.secondary_opts))}
    for word in words:
        if set(word) <= set("|&;()<>") or word in ("--", "--exec"):
            break  # another program
        option = word.partition("=")[0]
        if option.startswith("--") and OPTION.fullmatch(option) and option not in taken:
            return f"{command.name} has no option {option}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_commands_that_exist(page: Path) -> None:
    faults = {shown: fault for shown in shown_commands(page.read_text()) if (fault := fault_of(shown))}
    assert not faults


def test_a_command_that_is_not_there_is_found() -> None:
    block = "```bash skip\nA=1 topics audit --lake x\ncat a | topics send a - | grep --no x\n```\n"
    text = f"See `topics queue ls jobs`.\n\n{block}"
    assert [fault_of(shown) for shown in shown_commands(text)] == [
        "there is no command ls",
        "audit has no option --lake",
        None,
    ]
