"""Lint the OpenAPI document with redocly and spectral: `make lint-openapi`, and a part of `make check`.

Both come from npm, in the versions below, into build/openapi-lint. Where there is no node, or they cannot be installed,
nothing is linted and that is said; only a finding fails.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Final

import msgspec

from topics.server.openapi.document import document
from topics.settings import Settings
from topics.testing.server import ServerThread

HERE: Final = Path(__file__).parent
PLACE: Final = HERE.parent.parent / "build" / "openapi-lint"
BIN: Final = PLACE / "node_modules" / ".bin"
QUIET: Final = os.environ | {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
PACKAGES: Final = ("@redocly/cli@2.73.0", "@stoplight/spectral-cli@6.16.3")
INSTALL: Final = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
INSTALL_S: Final = 300
VARIANTS: Final = {"open": Settings(), "keyed": Settings(api_keys="root")}


def main() -> int:
    if which("npm") is None:
        print("there is no node: the OpenAPI document is not linted")
        return 0
    if not is_installed() or not all(runs(one) for one in ("redocly", "spectral")):
        print("redocly and spectral cannot be installed: the OpenAPI document is not linted")
        return 0
    is_clean = True
    for name, settings in VARIANTS.items():
        path = PLACE / f"{name}.json"
        with ServerThread(settings) as server:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(document(server.server.app))))
        for command in commands(path):
            is_clean = subprocess.run(command, cwd=PLACE, env=QUIET, check=False).returncode == 0 and is_clean
    return 0 if is_clean else 1


def is_installed() -> bool:
    """Install the linters, unless these versions are there."""
    PLACE.mkdir(parents=True, exist_ok=True)
    stamp, wanted = PLACE / "installed", "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    try:
        command = [*INSTALL, "--prefix", str(PLACE), *PACKAGES]
        subprocess.run(command, cwd=PLACE, env=QUIET, check=True, capture_output=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError):
        return False
    stamp.write_text(wanted)
    return True


def runs(program: str) -> bool:
    """Whether this node can run a linter."""
    version = subprocess.run([BIN / program, "--version"], env=QUIET, check=False, capture_output=True)
    return version.returncode == 0


def commands(path: Path) -> list[list[str]]:
    return [
        [str(BIN / "redocly"), "lint", path.name, "--config", str(HERE / "redocly.yaml")],
        [str(BIN / "spectral"), "lint", path.name, "--ruleset", str(HERE / "spectral.yaml"), "--fail-severity=hint"],
    ]


if __name__ == "__main__":
    sys.exit(main())
