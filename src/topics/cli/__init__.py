"""The `topics` command. Each subcommand imports what it needs when it runs, so that `--help` stays quick."""

import typer

from topics import __version__

app = typer.Typer(name="topics", help="A persistent event engine.", no_args_is_help=True, add_completion=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {__version__}")
        raise typer.Exit


@app.callback()
def topics(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A persistent event engine: named append-only logs over JSON HTTP."""


def main() -> None:
    app()
