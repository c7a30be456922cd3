"""Writes the blocking client, `topics.client.blocking`, from the asyncio one, `topics.client.aio`.

    python -m tools.blocking_client            write the generated modules
    python -m tools.blocking_client --check    write nothing; fail if a module would change

The rewrite goes token by token: `async` and `await` are dropped, `Awaitable[X]` becomes `X`, a name that begins with
Async loses the prefix, and a few names have a twin of their own. Words in docstrings and comments change in the same
way. Ruff then lays out the lines and removes the imports that nothing uses any more. The modules in BY_HAND differ in
more than that; both packages have their own. A package with both kinds has them as `aio.py` and `blocking.py` (PAIRS).
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = Path("src/topics/client/aio")
TARGET: Final = Path("src/topics/client/blocking")
BY_HAND: Final = ("__init__", "concurrency", "sockets")
PAIRS: Final = (Path("src/topics/client/fleets"),)

NAMES: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "anext": "next",
    "aio": "blocking",
    "AsyncClock": "BlockingClock",
    "StopAsyncIteration": "StopIteration",
}
PHRASES: Final = {  # in docstrings and comments, before their names
    "an AsyncClient": "a Client",
    "an `async with`": "a `with`",
    "async with": "with",
    "async for": "for",
    "for asyncio": "for blocking code",
    "tasks": "threads",
}
TEXT: Final = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
RUFF_FIXES: Final = "C416,F401,I,UP028"  # list(x), unused imports, their order, yield from


class Edit(NamedTuple):
    """Replace what lies between two places, (line, column) each."""

    start: tuple[int, int]
    stop: tuple[int, int]
    text: str


def renamed(name: str) -> str:
    return NAMES.get(name) or re.sub(r"^Async(?=[A-Z])", "", name)


def reworded(text: str) -> str:
    for phrase, blocking in PHRASES.items():
        text = text.replace(phrase, blocking)
    return re.sub(r"\w+", lambda word: renamed(word[0]), text)


def rewritten(source: str) -> str:
    """The blocking form of a module, before it is formatted."""
    lines = io.StringIO(source).readlines()
    for edit in sorted(edits(source), reverse=True):
        (row, start), (last, stop) = edit.start, edit.stop
        lines[row - 1 : last] = [lines[row - 1][:start] + edit.text + lines[last - 1][stop:]]
    return "".join(lines)


def edits(source: str) -> Iterator[Edit]:
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    lines = io.StringIO(source).readlines()
    brackets: list[bool] = []  # those open here, and whether each is that of an Awaitable
    for before, token, after in zip([tokens[-1], *tokens], tokens, tokens[1:], strict=False):
        if token.string in ("async", "await"):
            yield Edit(token.start, after.start, "")
        elif token.string == "Awaitable" and after.string == "[":
            yield Edit(token.start, after.end, "")
        elif token.string == "[":
            brackets.append(before.string == "Awaitable")
        elif token.string == "]" and brackets.pop():
            yield Edit(token.start, token.end, "")
        elif token.type == tokenize.NAME:
            yield Edit(token.start, token.end, renamed(token.string))
        elif token.type in TEXT:
            yield Edit(token.start, token.end, reworded(between(lines, token.start, token.end)))


def between(lines: list[str], start: tuple[int, int], stop: tuple[int, int]) -> str:
    (row, column), (last, end) = start, stop
    if row == last:
        return lines[row - 1][column:end]
    return lines[row - 1][column:] + "".join(lines[row : last - 1]) + lines[last - 1][:end]


def formatted(source: str, target: Path) -> str:
    """The text as Ruff lays it out; imports sort as those of a file at that place do."""
    place = ("--quiet", "--no-cache", "--stdin-filename", str(ROOT / target), "-")
    fixed = ruff("check", "--fix", "--unsafe-fixes", "--select", RUFF_FIXES, *place, text=source)
    return ruff("format", *place, text=fixed)


def ruff(*arguments: str, text: str) -> str:
    command = (sys.executable, "-m", "ruff", *arguments)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Path and text of every generated module."""
    names = [path.name for path in sorted((root / SOURCE).glob("*.py")) if path.stem not in BY_HAND]
    pairs = [(SOURCE / name, TARGET / name) for name in names]
    pairs += [(package / "aio.py", package / "blocking.py") for package in PAIRS]
    texts = {}
    for source, target in pairs:
        head = f"# Generated from {source} by `python -m tools.blocking_client`. Do not edit.\n"
        texts[root / target] = formatted(head + rewritten((root / source).read_text()), target)
    return texts


def differing(texts: dict[Path, str], root: Path) -> list[Path]:
    """The modules that are not what they should be: changed, absent, or without a source."""
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    extra = [path for path in (root / TARGET).glob("*.py") if path not in texts and path.stem not in BY_HAND]
    return sorted(changed + extra)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.blocking_client", description="Write the blocking client.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a module would change")
    texts = generated(root)
    if not parser.parse_args(arguments).check:
        for path, text in texts.items():
            path.write_text(text)
    found = differing(texts, root)
    for path in found:
        print(f"{path.relative_to(root)} is not what `python -m tools.blocking_client` writes", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
