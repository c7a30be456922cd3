"""`topics export`: records as files."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.files.file_export import Wanted as WantedFile
from topics.cli.files.file_export import export_file, format_of
from topics.cli.shell.invoking import run_alone
from topics.cli.spark import Cluster, Server, with_cluster, with_server
from topics.model import is_topic_name
from topics.spark.tables.file_formats import ExportFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress

FormatOption = Annotated[
    ExportFormat | None, typer.Option(help="Format of the files; that of a single file is in its name.")
]


@with_cluster
@with_server
def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC|PATTERN", help="A topic, or an expression of whole names.")],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="A file (.ndjson, .csv, .parquet), - for stdout, a new directory, or a URI."
        ),
    ],
    format: FormatOption = None,
    first_seq: Annotated[int | None, typer.Option(min=1, help="Inclusive; the first live record by default.")] = None,
    last_seq: Annotated[int | None, typer.Option(min=0, help="Inclusive; the head by default.")] = None,
    since: Annotated[str | None, typer.Option(help="From this time on: epoch-ms, or 2026-01-31T12:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    archive: Annotated[str | None, typer.Option(help="A lake, for what the server no longer has.")] = None,
    path: Annotated[str | None, typer.Option(help="A data directory to read from, alone or beside --url.")] = None,
    single: Annotated[bool, typer.Option("--single", help="One file.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any record of the range was lost.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Use Spark, whatever DST is.")] = False,
    *,
    server: Server,
    cluster: Cluster,
) -> None:
    """Export a topic, or all that match, as Parquet, NDJSON or CSV.

    A topic goes into one file without Spark; a directory, several topics, --path and --archive need it. What was lost
    in the range is announced, and for a directory listed in its _gaps.ndjson.

    Example: topics export orders orders.ndjson --since 2026-01-01T00:00:00Z

    Example: topics export orders - --last-seq 100

    Example: topics export 'orders|clicks' out --format ndjson
    """
    alone = None if spark or path or archive or cluster.is_named else format_of(destination, format)
    if alone is not None and is_topic_name(topic):
        wanted_file = WantedFile(topic, _same(format, alone), first_seq, last_seq, since, until, strict)
        _alone(wanted_file, destination, server, is_json=cluster.is_json)
        return
    on_spark.require("; for one topic, name a file: topics export orders orders.ndjson")
    from topics.spark.jobs.exporting import Wanted
    from topics.spark.jobs.exporting import export as run_export
    from topics.spark.servers.connection import Connection

    wanted = Wanted(
        selection=topic,
        first=first_seq,
        last=last_seq,
        since=since,
        until=until,
        path=path,
        archive=archive,
        is_strict=strict,
    )

    def job(session: "SparkSession", progress: "Progress") -> None:
        is_offline = server.context is None and Connection.load_beside(path, server.url) is None
        used = None if is_offline else server.connection()
        done = run_export(
            session, wanted, destination, server=used, format=format or "parquet", is_single=single, progress=progress
        )
        lost = f"; {done.lost:,} were lost, in {len(done.gaps)} gaps: see _gaps.ndjson" if done.gaps else ""
        fields = {"rows": done.rows, "files": done.files, "lost": done.lost, "gaps": len(done.gaps)}
        progress.finish(f"{done.rows:,} records in {done.files:,} files{lost}", {"destination": destination, **fields})

    cluster.run("export", job)


def _alone(wanted: WantedFile, destination: str, server: Server, *, is_json: bool) -> None:
    """Do it without Spark."""
    run_alone(
        "export", lambda call: export_file(call, wanted, destination), *server, is_json=is_json, topic=wanted.topic
    )


def _same(given: ExportFormat | None, named: ExportFormat) -> ExportFormat:
    if given not in (None, named):
        raise typer.BadParameter(f"by its name the file is {named}, not {given}", param_hint="--format")
    return named
