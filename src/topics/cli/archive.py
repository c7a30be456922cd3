"""`topics archive`: live records into a lake."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.spark import Cluster, Url, with_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress


@with_cluster
def archive(
    topic: Annotated[str, typer.Argument(metavar="PATTERN", help="A topic, or an expression of whole names.")],
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="A directory, or a URI.")],
    once: Annotated[bool, typer.Option("--once", help="Stop at the current heads.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until SIGTERM, also while the server is away; the default.")
    ] = False,
    trim: Annotated[
        bool, typer.Option("--trim", help="Delete records from the topics once the lake has them durably.")
    ] = False,
    keep: Annotated[int, typer.Option(min=0, help="With --trim: keep this many of the newest seqs.")] = 0,
    iceberg: Annotated[
        bool, typer.Option("--iceberg", help="Keep the Iceberg table --table, too; needs topics-engine[iceberg].")
    ] = False,
    table: Annotated[str, typer.Option(help="Name of the Iceberg table.")] = "topics.records",
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge small files into large ones; see the documentation.")
    ] = False,
    health: Annotated[
        str | None, typer.Option(help="A file that says how the job is, written at every look for new records.")
    ] = None,
    batch_records: Annotated[int, typer.Option(min=1, help="Seqs per batch.")] = 1_000_000,
    every_ms: Annotated[int, typer.Option(min=1, help="Interval between checks for new records.")] = 1_000,
    path: Annotated[str | None, typer.Option(help="A data directory, to read sealed records from.")] = None,
    url: Url = None,
    *,
    cluster: Cluster,
) -> None:
    """Archive topics in a lake: Parquet files, a manifest of what they cover, a table of what was lost.

    Goes on until it is ended, unless --once; SIGTERM lets it finish its batch. Ended in any way and run again, it goes
    on where the lake ends. The lake is read by topics.spark.table, with the option archive of format("topics"), by
    topics replay, and as plain Parquet.

    Example: topics archive 'orders|clicks' /data/lake --once --trim --keep 100000
    """
    if once and follow:
        raise typer.BadParameter("--once and --follow exclude each other")
    on_spark.require()
    from topics.spark.jobs.archiving import Plan
    from topics.spark.jobs.archiving import archive as run_archive
    from topics.spark.servers.connection import Connection

    def job(spark: "SparkSession", progress: "Progress") -> None:
        plan = Plan(
            selection=topic,
            server=Connection.load(url),
            path=path,
            is_once=once,
            batch_records=batch_records,
            every_ms=every_ms,
            trims=trim,
            keep_records=keep,
            iceberg=table if iceberg else None,
            compacts=compact,
            health=health,
        )
        done = run_archive(spark, plan, lake, progress=progress, is_over=on_spark.over_on_sigterm())
        text = f"{done.rows:,} records archived in {done.batches:,} batches, {done.lost:,} were lost before"
        if trim:
            text += f", {done.trimmed:,} trimmed"
        progress.finish(text, {"lake": lake, **vars(done)})

    cluster.run("archive", job)
