"""The documentation is executed: its Python runs, its links lead somewhere.

A block opened as ```python is run as a script in an empty directory; one opened
as ```python continued is run behind the blocks before it. What `# → text` says is
the output, line by line. A block opened as ```python skip needs more than the
package (a running server, Spark) and is only compiled.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

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
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        run = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == re.findall(r"# → (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


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
