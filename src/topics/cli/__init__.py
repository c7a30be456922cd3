"""The `topics` command. Each subcommand imports what it needs when it runs, so that `--help` stays quick.

shell/        what all commands share
data/         topics, records, cursors, routers, queues
operating/    servers, machines, and the command itself
serving/      the server: its start, its settings, its keys
the rest      the jobs on Spark
"""

from collections.abc import Callable

import typer
from typer._completion_classes import completion_init

from topics import __version__
from topics.cli.archive import archive
from topics.cli.audit import audit
from topics.cli.backups.backup import backup
from topics.cli.backups.restore import restore
from topics.cli.data.configuring import put
from topics.cli.data.cursor import cursor
from topics.cli.data.listing import info, ls
from topics.cli.data.queue import queue
from topics.cli.data.reading import read
from topics.cli.data.removing import delete, rm
from topics.cli.data.router import router
from topics.cli.data.sending import send
from topics.cli.data.tailing import tail, watch
from topics.cli.data.working import work
from topics.cli.export import export
from topics.cli.import_ import import_
from topics.cli.operating.bench import bench
from topics.cli.operating.context import completion, context
from topics.cli.operating.doctor import doctor
from topics.cli.operating.top import top
from topics.cli.replay import replay
from topics.cli.report import report
from topics.cli.serving.effective import show
from topics.cli.serving.flags import Gather, with_settings
from topics.cli.serving.keys import keys
from topics.cli.shell.invoking import command, help_of
from topics.cli.shell.manual import Command, Sections
from topics.cli.transform import transform

SPARK = "Large data, on Spark"

app = typer.Typer(
    name="topics",
    cls=Sections,
    help="A persistent event engine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
config = typer.Typer(name="config", cls=Sections, no_args_is_help=True, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {__version__}")
        raise typer.Exit


@app.callback()
def topics(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A persistent event engine: named append-only logs over JSON HTTP."""


def serve(gather: Gather) -> None:
    """Start the server.

    A setting is a flag here, a key in the settings file, and a variable: --data-dir, data_dir and TOPICS_DATA_DIR. The
    flag wins over the file, the file over the variable; topics config show says what is in effect, and from where.
    Sizes are written as 64MiB, times as 1h.

    Example: topics serve

    Example: topics serve --port 0 --data-dir /var/lib/topics --cache-bytes 1GiB
    """
    from topics.cli.serving.serve import run

    run(gather)


DATA: tuple[Callable[..., None], ...] = (send, read, tail, watch, ls, info, put, rm, delete)
OPERATING: tuple[Callable[..., None], ...] = (top, doctor, bench)
JOBS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("import", import_, "Data"),
    ("export", export, "Data"),
    ("audit", audit, "Operating"),
    ("backup", backup, "Operating"),
    ("restore", restore, "Operating"),
    ("archive", archive, SPARK),
    ("replay", replay, SPARK),
    ("transform", transform, SPARK),
    ("report", report, SPARK),
)

app.command("serve", cls=Command, help=help_of(serve.__doc__ or ""))(with_settings(serve))
command(config, "show", offline=True)(with_settings(show))
app.add_typer(config, help="The settings.")
app.add_typer(keys, help="The keys in a key file.")
for function in DATA:
    command(app, function.__name__, section="Data")(function)
app.add_typer(cursor, help="Named cursors: how far readers have come.", rich_help_panel="Data")
app.add_typer(router, help="Routers: copies of what is written to a topic.", rich_help_panel="Data")
app.add_typer(queue, help="The jobs of a queue, by hand.", rich_help_panel="Queues")
command(app, "work", section="Queues")(work)
for function in OPERATING:
    command(app, function.__name__, section="Operating")(function)
app.add_typer(context, help="Servers by name.", rich_help_panel="This command")
command(app, "completion", section="This command", offline=True)(completion)

for name, function, section in JOBS:
    app.command(name, cls=Command, help=help_of(function.__doc__ or ""), rich_help_panel=section)(function)


def main() -> None:
    completion_init()
    app(prog_name="topics")
