"""The unit of systemd in deploy/: systemd can read it, and it leaves little of the machine to the server."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "deploy" / "topics.service"
EXPOSURE_MAX = 20  # tenths, as systemd-analyze counts: 100 is a unit without any protection
OFFLINE_VERSION = 250  # of systemd: from then on a unit that is not loaded can be rated

ANALYZE = shutil.which("systemd-analyze")


def version() -> int:
    said = subprocess.run([ANALYZE or "", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1].partition(".")[0])


def settings() -> list[str]:
    return [line for line in UNIT.read_text().splitlines() if line and not line.startswith(("#", "["))]


@pytest.mark.parametrize(
    "line",
    [
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "SystemCallFilter=@system-service",
        "StateDirectory=topics",
        "LimitNOFILE=65536",
    ],
)
def test_the_unit_takes_what_the_server_does_not_need(line: str) -> None:
    """See docs/security.md."""
    assert line in settings()


def test_the_server_can_tell_a_kill_from_a_power_loss() -> None:
    """DU10: the id of the boot lies below /proc/sys, which ProcSubset=pid would hide."""
    assert not [line for line in settings() if line.startswith("ProcSubset")]


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("unit", sorted((ROOT / "deploy").glob("*.service")), ids=lambda unit: unit.stem)
def test_systemd_takes_a_unit_as_it_is(unit: Path, tmp_path: Path) -> None:
    """But for the program, which is not installed here."""
    text = unit.read_text().replace("/opt/topics/bin/topics", sys.executable)
    (tmp_path / unit.name).write_text(text.replace("User=topics\n", "").replace("Group=topics\n", ""))
    done = subprocess.run([str(ANALYZE), "verify", str(tmp_path / unit.name)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not complaints, done.stderr


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")
def test_systemd_rates_the_unit_as_safe() -> None:
    """See docs/security.md."""
    if version() < OFFLINE_VERSION:
        pytest.skip(f"systemd {version()} rates only units that are loaded")
    command = [str(ANALYZE), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
