"""Renew the libraries of others that the console and its tests carry: `make vendor`.

Each file is taken as it is from its npm package, of the version below, and lies beside the package's licence. What
came from where is noted in `vendor.json` in the same directory, with a hash of each file; a test compares. To renew a
library, change its version here, and run it.
"""

import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CONSOLE: Final = ROOT / "src" / "topics" / "server" / "console" / "vendor"
TESTS: Final = ROOT / "tests" / "live" / "vendor"
DOWNLOADS: Final = ROOT / "build" / "vendor"
NOTES: Final = "vendor.json"


@dataclass(frozen=True)
class Library:
    """A package of npm, and what is taken from it: path in the package → file name here."""

    package: str
    version: str
    licence: str
    place: Path
    files: dict[str, str]

    @property
    def licence_file(self) -> str:
        return f"{self.package.lstrip('@').replace('/', '-')}.LICENSE"


LIBRARIES: Final = (
    Library(
        "preact",
        "10.29.8",
        "MIT",
        CONSOLE,
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
    ),
    Library("htm", "3.1.1", "Apache-2.0", CONSOLE, {"dist/htm.mjs": "htm.js"}),
    Library("@preact/signals-core", "1.14.5", "MIT", CONSOLE, {"dist/signals-core.mjs": "signals-core.js"}),
    Library("@preact/signals", "2.11.4", "MIT", CONSOLE, {"dist/signals.mjs": "signals.js"}),
    Library("uplot", "1.6.32", "MIT", CONSOLE, {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"}),
    Library("axe-core", "4.14.0", "MPL-2.0", TESTS, {"axe.min.js": "axe.js"}),
)


def main() -> int:
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    for place in (CONSOLE, TESTS):
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            path.unlink()
        notes = [take(library) for library in LIBRARIES if library.place == place]
        (place / NOTES).write_text(json.dumps(notes, indent=2) + "\n")
    return 0


def take(library: Library) -> dict[str, object]:
    """Download a package and take its files; the note of it."""
    asked = ["npm", "pack", "--silent", f"{library.package}@{library.version}"]
    packed = subprocess.run(asked, cwd=DOWNLOADS, check=True, capture_output=True, text=True).stdout.split()[-1]
    wanted = {**library.files, "LICENSE": library.licence_file}
    with tarfile.open(DOWNLOADS / packed) as archive:
        for source, name in wanted.items():
            member = archive.extractfile(f"package/{source}")
            assert member is not None, f"{source} is not a file of {library.package}"
            (library.place / name).write_bytes(member.read())
    print(f"{library.package} {library.version}: {', '.join(library.files.values())}")
    return {
        "package": library.package,
        "version": library.version,
        "licence": library.licence,
        "files": {name: {"from": source, "sha256": digest(library.place / name)} for source, name in wanted.items()},
    }


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
