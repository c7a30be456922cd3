"""`topics report`: a server, or several, on one page."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.shell.invoking import Call, run_alone
from topics.cli.spark import Cluster, Server, with_cluster, with_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress

FileName = Annotated[str, typer.Argument(metavar="FILE", help="The HTML file to write.")]


@with_cluster
@with_server
def report(
    file: FileName = "topics-report.html",
    topics: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only topics whose whole name matches this expression.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to watch the queues.")] = 5.0,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A pipeline's checkpoint, for its lag; may be repeated.")
    ] = None,
    lake: Annotated[
        list[str] | None, typer.Option(metavar="LAKE", help="A lake, for its lag; may be repeated.")
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Count on Spark, for very many records.")] = False,
    *,
    server: Server,
    cluster: Cluster,
) -> None:
    """Write a report of a server, or of several: throughput, sizes, lag, gaps, queues, dead letters.

    One HTML file with charts, which needs nothing but a browser. It reads all live records once, in this process, or
    on Spark with --spark, --master, --remote or --conf.

    Example: topics report report.html --seconds 0

    Example: topics report report.html --checkpoint /tmp/topics-examples/revenue --spark
    """
    is_on_spark = spark or cluster.is_named
    if is_on_spark:
        on_spark.require("; without --spark, --master, --remote and --conf it needs none")

    def make(session: "SparkSession | None", progress: "Progress") -> None:
        from topics.spark.jobs.reporting import report as run_report

        made = run_report(
            session,
            file,
            server=server.connection(),
            pattern=topics,
            seconds=seconds,
            checkpoints=checkpoint or (),
            lakes=lake or (),
            progress=progress,
        )
        records = sum(state.count for state in made.states)
        text = f"{file}: {len(made.states):,} topics, {records:,} records"
        progress.finish(text, {"file": file, "topics": len(made.states), "records": records})

    if is_on_spark:
        cluster.run("report", make)

    def alone(call: Call) -> None:
        from topics.spark.runs.progress import Progress

        with Progress("report", is_json=call.is_json) as progress:
            make(None, progress)

    run_alone("report", alone, *server, is_json=cluster.is_json)
