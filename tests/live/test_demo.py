"""The demo as somebody runs it: it ends well, its account is right, and it leaves nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.test_docs import ROOT
from topics.testing.patience import PATIENCE_S


def test_the_demo_shows_a_loss_and_counts_every_acked_order(tmp_path: Path) -> None:
    """DU1, DU4, TM3, QU12"""
    command = [sys.executable, "-m", "examples.demo", "--seconds", "1"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "TMPDIR": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "LOST  1 to 7, cap" in run.stdout and "300 jobs done, 0 dead letters" in run.stdout
    account = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"^   (\w[\w ]*?) +([\d,]+)$", run.stdout, re.M)
    }
    assert account["acknowledged"] == account["in the topic"] > 0
    assert (account["missing"], account["twice"]) == (0, 0)
    assert "Nothing that was acknowledged is gone." in run.stdout
    assert list(tmp_path.iterdir()) == []
