"""The `topics` command. Each subcommand imports what it needs when it runs, so that `--help` stays quick."""

import typer

from topics import __version__
from topics.cli.archive import archive
from topics.cli.audit import audit
from topics.cli.backups.backup import backup
from topics.cli.backups.restore import restore
from topics.cli.environment import variables_help
from topics.cli.export import export
from topics.cli.import_ import import_
from topics.cli.replay import replay
from topics.cli.report import report
from topics.cli.transform import transform

app = typer.Typer(name="topics", help="A persistent event engine.", no_args_is_help=True, add_completion=False)
config = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(config, name="config")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {__version__}")
        raise typer.Exit


@app.callback()
def topics(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A persistent event engine: named append-only logs over JSON HTTP."""


def _show_serve_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(context.get_help())
        typer.echo(variables_help())
        raise typer.Exit


@app.command(add_help_option=False)
def serve(
    help: bool = typer.Option(
        False, "--help", callback=_show_serve_help, is_eager=True, help="Show this and all variables."
    ),
) -> None:
    """Start the server. It is set by environment variables."""
    from topics.cli.serve import run

    run()


@config.command("show")
def show() -> None:
    """Print the settings in effect and where each comes from; secrets are masked."""
    from topics.cli.environment import show_settings

    show_settings()


app.command("import")(import_)
app.command()(export)
app.command()(archive)
app.command()(replay)
app.command()(transform)
app.command()(audit)
app.command()(report)
app.command()(backup)
app.command()(restore)


def main() -> None:
    app()
