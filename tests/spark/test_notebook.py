"""The notebook runs from its first cell to its last, and its chart shows what was lost."""

import ast
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "notebook.ipynb"
BASH = "%%bash\n"


def run(source: str, names: dict[str, Any]) -> Any:
    """One cell, as Jupyter runs it: what its last line gives, or what a shell prints."""
    if source.startswith(BASH):
        return subprocess.run(
            ["bash", "-ec", source.removeprefix(BASH)], capture_output=True, text=True, check=True
        ).stdout
    tree = ast.parse(source)
    last = tree.body[-1] if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(ast.Module(tree.body[:-1] if last else tree.body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture
def names() -> Any:
    """What the cells define; the server ends, however far they came."""
    names: dict[str, Any] = {"__name__": "__main__"}
    yield names
    server = names.get("server")
    if server is not None and server.poll() is None:
        server.kill()
        server.wait()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the notebook begins with curl")
def test_the_notebook_goes_from_curl_to_a_chart_with_its_gap(
    spark: SparkSession, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", "")  # the notebook sets it
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "it is kept without outputs"
    given = [run("".join(cell["source"]), names) for cell in cells]
    assert '"$seq":1' in next(text for text in given if isinstance(text, str) and "head_seq" in text)
    (gap,) = names["gaps"]
    assert gap[2:] == (200, "cap") and 100 in given
    assert len(names["minutes"]) == 30, "10 minutes before the gap, 20 behind it"
    (chart,) = (one for one in given if hasattr(one, "_repr_svg_"))
    assert "200 orders lost (cap)" in chart._repr_svg_() and chart._repr_svg_().count('fill="#4477aa"') == 30
    assert names["server"].returncode == 0
