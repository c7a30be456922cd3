"""Make this checkout run in the environment of the interpreter: its sources on the path, its command in bin.

    .venv/bin/python -m tools.linked

It is what `make run` needs of an editable install, without the packages that build one; an editable install takes its
place.
"""

import shlex
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"


def main() -> None:
    if sys.prefix == sys.base_prefix:
        sys.exit("this is for a virtual environment")
    Path(sysconfig.get_path("purelib"), "topics-sources.pth").write_text(f"{SOURCES}\n")
    command = Path(sysconfig.get_path("scripts"), "topics")
    run = f"exec {shlex.quote(sys.executable)} -c 'from topics.cli import main; main()'"
    command.unlink(missing_ok=True)
    command.write_text(f'#!/bin/sh\n{run} "$@"\n')
    command.chmod(0o755)


if __name__ == "__main__":
    main()
