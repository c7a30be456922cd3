"""The documentation is executed: its Python runs, its links lead somewhere.

A block opened as ```python is run as a script in an empty directory; one opened
as ```python continued is run behind the blocks before it. What `# → text` says is
the output, line by line. A block opened as ```python server finds a server at
TOPICS_URL, one opened as ```python servers finds three. A block opened as
```python skip needs more than that (Spark) and is only compiled.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from topics import model
from topics.core import state as core_state
from topics.core.topic import parts, reservation
from topics.core.topic.blocks import BLOCK
from topics.engine import upkeep
from topics.engine.durability import catalogue, checkpoint
from topics.settings import PUBLIC
from topics.storage import snapshots, wal
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    info: str  # what follows the opening fence
    code: str
    line: int  # of the first line of code

    @property
    def is_python(self) -> bool:
        return self.info.split()[:1] == ["python"]

    @property
    def is_run(self) -> bool:
        return "skip" not in self.info.split()

    @property
    def servers(self) -> int:
        """How many it needs."""
        words = self.info.split()
        return 3 if "servers" in words else int("server" in words)

    @property
    def is_continued(self) -> bool:
        return "continued" in self.info.split()


def blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        yield Block(match[1].strip(), match[2], text.count("\n", 0, match.start()) + 2)


def prose(text: str) -> str:
    """The page without code, in which brackets are not links."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The fragments of a page's headings, as Git hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(prose(page.read_text())):
        path, _, fragment = unquote(link).partition("#")
        target = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (fragment and fragment not in anchors(target.read_text())):
            found.append(link)
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def scripts(text: str) -> Iterator[list[Block]]:
    """The Python of a page: blocks that are run together, a block and those that continue it."""
    script: list[Block] = []
    for block in blocks(text):
        if block.is_python and not block.is_continued and script:
            yield script
            script = []
        if block.is_python:
            script.append(block)
    if script:
        yield script


SCRIPTS = [
    pytest.param(page, script, id=f"{name_of(page)}:{script[0].line}")
    for page in PAGES
    if page.parent.name != "guides" and page.name != "README.md"  # they are carried out, see test_guides
    for script in scripts(page.read_text())
]


@pytest.mark.parametrize(("page", "blocks"), SCRIPTS)
def test_the_python_of_a_page_does_what_the_page_says(page: Path, blocks: list[Block], tmp_path: Path) -> None:
    code = ""
    for block in blocks:
        code += "\n" * (block.line - 1 - code.count("\n")) + block.code
    compile(code, name_of(page), "exec")
    if blocks[0].is_run:
        script = tmp_path / "block.py"
        script.write_text(code)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        with ExitStack() as stack:
            servers = [stack.enter_context(ServerProcess(tmp_path / f"server-{n}")) for n in range(blocks[0].servers)]
            environ["TOPICS_URL"] = ",".join(server.url for server in servers)
            run = subprocess.run(
                [sys.executable, str(script)],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            stopped = [server.stop() for server in servers]
        assert not any(stopped)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == re.findall(r"# → (.*)$", code, re.MULTILINE)


def test_the_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+(?:\.py|/))`", text))
    absent = [name for name in named if not ((ROOT / "src/topics" / name).exists() or (ROOT / name).exists())]
    assert len(named) > 50 and absent == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return str(default) or "unset"


def test_operations_lists_every_setting_with_its_default_and_meaning() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `TOPICS_")]
    assert table == [
        f"| `{field.metadata['variable']}` | {shown(field.default)} | {field.metadata['meaning']} |" for field in PUBLIC
    ]


def test_every_message_that_operations_explains_is_one_that_is_given() -> None:
    """Each part of a message between dots and commas, slashes and semicolons stands in the source."""
    page = (ROOT / "docs" / "operations.md").read_text().partition("## Messages")[2]
    source = "".join(path.read_text() for path in (ROOT / "src" / "topics").rglob("*.py"))
    messages = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and "| message" not in line]
    parts = [part.strip() for message in messages for part in re.split(r"[…,/;:()]|Too many open files", message)]
    assert len(messages) > 15
    assert [part for part in parts if part and part not in source] == []


# What the pages say in numbers, and where the numbers come from.
QUOTED = [
    ("guarantees operations decisions/004-reservations", "65,536", reservation.RESERVE),
    ("guarantees", "1,000,000", core_state.KEYS_MAX),
    ("architecture operations decisions/005-dead-marks-and-tags", "1,024", BLOCK),
    ("architecture", "1,024 records", parts.PAGE_ROWS),
    ("formats", "number × 1024 + i", BLOCK),
    ("formats operations decisions/003-log-failure", "1 MiB", wal.AHEAD_BYTES),
    ("architecture embedded operations", "64 MiB", upkeep.CHECKPOINT_BYTES),
    ("architecture embedded formats operations", "60 s", upkeep.CHECKPOINT_MS),
    ("operations", "five times a second", 1000 / upkeep.BACKGROUND_MS),
    ("operations", "three checkpoints' worth", upkeep.UNSEALED_FACTOR),
    ("embedded", "256 by default", model.LIMIT_DEFAULT),
    ("embedded", "1 MiB by default", model.BATCH_BYTES_DEFAULT),
    ("embedded", "at most 8 MiB", model.BATCH_BYTES_MAX),
    ("embedded", "at most 30,000", model.WAIT_MS_MAX),
    ("embedded", "2 ms", checkpoint.SLICE_SECONDS * 1000),
    ("architecture decisions/002-checkpoint-and-segments", "eight of them", checkpoint.SMALL_PIECES_MAX),
    (
        "architecture operations decisions/002-checkpoint-and-segments",
        "less than a quarter",
        1 / catalogue.SPARSE_FACTOR,
    ),
    ("formats", "64 deltas", snapshots.DELTAS_MAX),
    ("formats", "256 KiB", snapshots.DELTA_BYTES_MIN),
]
UNITS = {"KiB": 1024, "MiB": 1024**2, "s": 1000}
WORDS = {"three": 3, "five": 5, "six": 6, "eight": 8, "quarter": 0.25}


def number_in(text: str) -> float:
    """The number that a quoted text starts with, or names in a word, in bytes or milliseconds."""
    digits = re.search(r"(?<!\w)(\d[\d,]*)(?: (KiB|MiB|s)\b)?", text)
    if digits:
        return int(digits[1].replace(",", "")) * UNITS.get(digits[2], 1)
    return next(value for word, value in WORDS.items() if word in text)


@pytest.mark.parametrize(("pages", "text", "value"), QUOTED)
def test_a_number_in_the_pages_is_the_one_in_the_code(pages: str, text: str, value: float) -> None:
    assert number_in(text) == value
    for page in pages.split():
        assert text in (ROOT / "docs" / f"{page}.md").read_text()


def test_blocks_are_found_with_their_line_and_kind() -> None:
    text = "# A\n\n```python\nx = 1\n```\n\n```console\n$ y\n```\n\n```python skip\nz\n```\n"
    assert [(b.line, b.is_python, b.is_run, b.code) for b in blocks(text)] == [
        (4, True, True, "x = 1\n"),
        (8, False, True, "$ y\n"),
        (12, True, False, "z\n"),
    ]


def test_a_block_runs_with_those_that_continue_it() -> None:
    text = "```python\na\n```\n```json\n{}\n```\n```python continued\nb\n```\n```python skip\nc\n```\n"
    assert [[block.code for block in script] for script in scripts(text)] == [["a\n", "b\n"], ["c\n"]]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# To you\n[a](no.md) [b](page.md#no) [c](#to-you) [d](page.md) `[e](x)` [f](https://h/x)\n")
    assert broken_links(page) == ["no.md", "page.md#no"]
