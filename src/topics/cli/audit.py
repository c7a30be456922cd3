"""`topics audit`: the audit as a table or JSON, and as an exit code."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli.spark import Conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.jobs.auditing import Audit

UNSOUND: Final = 1
IMPOSSIBLE: Final = 2


def audit(
    lake: Annotated[str | None, typer.Argument(help="A lake written by topics archive, to be compared.")] = None,
    path: Annotated[str | None, typer.Option(help="A data directory; a server may be running on it.")] = None,
    url: Annotated[
        str | None, typer.Option(help="A server, or several with commas between; without --path of TOPICS_URL.")
    ] = None,
    topics: Annotated[str | None, typer.Option(help="Only topics whose whole name matches this expression.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Doubts count as findings.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    master: Annotated[str | None, typer.Option(help="The Spark master, for a lake; local[*,4] by default.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, sc://…, for a lake.")] = None,
    conf: Conf = None,
) -> None:
    """Prove that nothing got lost in silence.

    Of every topic, live + deleted + announced loss must be the head. With --path all segments, snapshots and the log
    are held against their checksums and each other, and the counts that topics keep since their first record against
    what is there. A lake must equal the topics wherever both have a record. Of several servers each is audited in
    turn; they are sound if all are, and no name is on two of them.

    Exit code: 0 sound, 1 something was found, 2 it could not be done. The token is that of TOPICS_TOKEN.

    Example: topics audit lake --path topics-data
    """
    from contextlib import ExitStack

    from topics.errors import TopicsError
    from topics.settings import ClientSettings
    from topics.spark.jobs import auditing
    from topics.spark.runs import running
    from topics.spark.runs.failures import failure_of
    from topics.spark.runs.progress import Progress

    try:
        with ExitStack() as stack, Progress("audit") as progress:

            def build() -> "SparkSession":
                settings = running.settings_of(conf or ())
                return stack.enter_context(running.opened("audit", master=master, remote=remote, conf=settings))

            def said(step: str) -> None:
                progress.update(step=step)

            found = auditing.audit(lake, path=path, url=url, pattern=topics, build=build, said=said)
    except TopicsError as error:
        print(f"topics audit: {error}", file=sys.stderr)
        raise SystemExit(IMPOSSIBLE) from None
    except Exception as error:
        print(f"topics audit: {failure_of(error, token=ClientSettings.load().token)}", file=sys.stderr)
        raise SystemExit(IMPOSSIBLE) from None
    _show(found, is_json=json)
    if not found.is_sound or (strict and found.findings):
        raise SystemExit(UNSOUND)


def _show(found: "Audit", *, is_json: bool) -> None:
    if is_json:
        import msgspec

        document = {"is_sound": found.is_sound, **msgspec.to_builtins(found)}
        print(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        _show_tables(found)


def _show_tables(found: "Audit") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("topic", "seen in", *(f"[b]{name}" for name in ("head", "= live", "+ deleted", "+ lost")))
    for column in table.columns[2:]:
        column.justify = "right"
    for tally in found.tallies:
        numbers = (f"{n:,}" for n in (tally.head, tally.live, tally.deleted, tally.lost))
        table.add_row(tally.topic, tally.server or tally.place, *numbers)
    console.print(table)
    if found.compared:
        lake = Table("topic", "epoch", "covered by the lake", "rows", "equal to the topic", "deleted since")
        for one in found.compared:
            numbers = (f"{n:,}" for n in (one.covered, one.rows, one.equal, one.deleted_since))
            lake.add_row(one.topic, str(one.epoch), *numbers)
        console.print(lake)
    if found.segments or found.log_files:
        console.print(
            f"{found.segments:,} segments of {found.segment_bytes:,} bytes and {found.log_frames:,} frames in "
            f"{found.log_files:,} log files read",
            highlight=False,
        )
    if not found.is_complete:
        console.print("The log may hold records that are not sealed; no lake is compared with those.", highlight=False)
    for finding in found.findings:
        word = "FOUND" if finding.is_certain else "DOUBT"
        console.print(f"{word} {finding}", markup=False, highlight=False, soft_wrap=True)
    console.print("Sound: every seq is accounted for." if found.is_sound else "Not sound.", highlight=False)
