"""Writes docs/cli.md from the commands themselves; run it after each change of a command.

python -m tools.cli_page
"""

from pathlib import Path

from typer.main import get_command

from topics.cli import app
from topics.cli.shell.manual import page

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"

if __name__ == "__main__":
    PAGE.write_text(page(get_command(app)))
