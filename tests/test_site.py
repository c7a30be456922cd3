"""The site of the documentation: it builds without a warning, loads nothing from elsewhere, and lists its pages."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.test_docs import ROOT
from topics.testing.patience import PATIENCE_S

MKDOCS = ROOT / ".venv-docs" / "bin" / "python"
# What a page loads by itself; a link that somebody may follow is no request.
LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="?(https?:)?//[^"> ]+""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("there is no .venv-docs: make docs-tools")
    place = tmp_path_factory.mktemp("site")
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [str(MKDOCS), "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr
    return place


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert {path.name: LOADED.findall(path.read_text()) for path in pages if LOADED.search(path.read_text())} == {}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(.?https?:", path.read_text())]
    assert styles == []


def test_references_are_made_from_their_sources(site: Path) -> None:
    assert "append_ndjson" in (site / "client-reference.html").read_text()
    assert "/v0/topics/{topic}/diff" in (site / "reference" / "openapi.html").read_text()
    assert "topics send" in (site / "cli.html").read_text()


def test_programs_find_the_pages_in_llms_txt(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(links) > 40 and [link for link in links if not (site / link).exists()] == []
