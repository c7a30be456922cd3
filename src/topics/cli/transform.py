"""`topics transform`: a pipeline as a command."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli import spark as on_spark
from topics.cli.spark import Cluster, Url, with_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress

REFUSED: Final = 2


@with_cluster
def transform(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A TOML file with sources, SQL steps and sinks; or module:function.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then stop.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint directory; by default the one in the file.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what is wrong with the file, and end.")] = False,
    health: Annotated[str | None, typer.Option(help="A file that says how the job is, written twice a second.")] = None,
    url: Url = None,
    *,
    cluster: Cluster,
) -> None:
    """Run a pipeline: topics through SQL into topics, files or tables.

    Goes on until SIGTERM, or with --once to the end of what there is. Ended in any way and run again, it goes on from
    its checkpoint, and every row gets into a topic once.

    Example: topics transform revenue.toml --once
    """
    from topics.errors import TopicsError
    from topics.spark.jobs.declaring import load
    from topics.spark.jobs.transforming import is_function
    from topics.spark.jobs.transforming import transform as run_transform

    settings: list[str] = []
    if not is_function(file):
        try:
            found = load(file, url=url, checkpoint=checkpoint)
        except TopicsError as error:
            print(f"topics transform: {error}", file=sys.stderr)
            raise SystemExit(REFUSED) from None
        settings = [f"{key}={value}" for key, value in found.settings.items()]
    if check:
        return
    on_spark.require()

    def job(spark: "SparkSession", progress: "Progress") -> None:
        done = run_transform(
            spark,
            file,
            once=once,
            url=url,
            checkpoint=checkpoint,
            health=health,
            progress=progress,
            is_over=on_spark.over_on_sigterm(),
        )
        text = f"{done.rows:,} rows in {done.batches:,} batches"
        if done.late:
            text += f", {done.late:,} of them too late for their watermark"
        progress.finish(text, vars(done))

    cluster.run("transform", job, settings)
