"""`topics report`: a server on one page."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.spark import Conf, Master, Remote, Url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress


def report(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The HTML file to write.")] = "topics-report.html",
    topics: Annotated[str | None, typer.Option(help="Only topics whose whole name matches this expression.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long to watch the queues.")] = 5.0,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="A pipeline's checkpoint, for its lag; may be repeated.")
    ] = None,
    lake: Annotated[list[str] | None, typer.Option(help="A lake, for its lag; may be repeated.")] = None,
    url: Url = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Write a report of a server: throughput, sizes, lag, gaps, queues, dead letters.

    One HTML file with charts, which needs nothing but a browser.

    Example: topics report report.html --checkpoint /tmp/topics-examples/revenue
    """
    on_spark.require()
    from topics.spark.jobs.reporting import report as run_report
    from topics.spark.runs.running import run

    def job(spark: "SparkSession", progress: "Progress") -> None:
        made = run_report(
            spark,
            file,
            url=url,
            pattern=topics,
            seconds=seconds,
            checkpoints=checkpoint or (),
            lakes=lake or (),
            progress=progress,
        )
        records = sum(state.count for state in made.states)
        text = f"{file}: {len(made.states):,} topics, {records:,} records"
        progress.finish(text, {"file": file, "topics": len(made.states), "records": records})

    raise SystemExit(run("report", job, master=master, remote=remote, conf=conf or ()))
