"""Every file in deploy/ is checked by the tool that reads it; where a tool is missing, its test is skipped."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_docs import ROOT
from topics.settings import Settings
from topics.testing.patience import PATIENCE_S

DEPLOY = ROOT / "deploy"


def tool(name: str) -> str:
    found = shutil.which(
        name, path=f"{Path('/usr/sbin')}:{Path('/usr/bin')}:{ROOT / '.venv-docs' / 'bin'}"
    ) or shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_nginx_takes_its_file(tmp_path: Path) -> None:
    nginx, openssl = tool("nginx"), tool("openssl")
    new = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=topics.example")
    run(openssl, "req", *new, "-keyout", str(tmp_path / "topics.key"), "-out", str(tmp_path / "topics.pem"))
    text = (DEPLOY / "nginx.conf").read_text()
    (tmp_path / "topics.conf").write_text(text.replace("/etc/ssl/", f"{tmp_path}/"))
    main = (
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; include {tmp_path}/topics.conf; }}"
    )
    (tmp_path / "nginx.conf").write_text(main)
    assert "test is successful" in run(nginx, "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"))


def test_caddy_takes_its_file() -> None:
    assert "Valid configuration" in run(
        tool("caddy"), "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")
    )


def test_kubernetes_takes_its_file() -> None:
    said = run(tool("kubernetes-validate"), str(DEPLOY / "kubernetes.yaml"))
    assert said.count("passed") == 3, said


def test_files_name_settings_that_exist() -> None:
    known = {field.metadata["variable"] for field in Settings.__dataclass_fields__.values()} | {
        "TOPICS_URL",
        "TOPICS_TOKEN",
    }
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert len(files) > 5
    named = {name for path in files for name in re.findall(r"TOPICS_[A-Z_]+[A-Z]", path.read_text())}
    assert named - known == set()
