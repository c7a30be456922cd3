"""`topics replay`: history back into a topic."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.spark import AtLeastOnce, Cluster, Name, SetWindow, State, Url, with_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress


@with_cluster
def replay(
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="A lake written by topics archive.")],
    topic: Annotated[str, typer.Argument(help="The topic to write; created if absent.")],
    source: Annotated[str | None, typer.Option("--from", help="The topic in the lake; TOPIC by default.")] = None,
    epoch: Annotated[int | None, typer.Option(help="Its instance (epoch); the last one by default.")] = None,
    first_seq: Annotated[int | None, typer.Option(min=1, help="Inclusive.")] = None,
    last_seq: Annotated[int | None, typer.Option(min=1, help="Inclusive.")] = None,
    since: Annotated[str | None, typer.Option(help="From this time on: epoch-ms, or 2026-01-31T12:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only records with this tag, or prefix*.")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Maximum records per second.")] = None,
    name: Name = "",
    state: State = None,
    set_window: SetWindow = False,
    at_least_once: AtLeastOnce = False,
    url: Url = None,
    *,
    cluster: Cluster,
) -> None:
    """Append what a lake has of a topic to a topic again, in order, each record once.

    Data, meta, tag and node are byte for byte those that were archived; seq and time are new. If it is interrupted,
    run it again with the same arguments: it continues where it left off.

    Example: topics replay /data/lake orders-again --from orders --tag 'eu.*' --rate 5000
    """
    on_spark.require()
    from topics.spark.jobs.replaying import History
    from topics.spark.jobs.replaying import replay as run_replay
    from topics.spark.options import moment
    from topics.spark.servers.connection import Connection

    def job(spark: "SparkSession", progress: "Progress") -> None:
        history = History(
            topic=source or topic,
            epoch=epoch,
            first=first_seq,
            last=last_seq,
            since=None if since is None else moment("--since", since),
            until=None if until is None else moment("--until", until),
            tag=tag,
        )
        done = run_replay(
            spark,
            lake,
            history,
            topic,
            server=Connection.load(url),
            rate=rate,
            state=state,
            name=name,
            sets_window=set_window,
            at_least_once=at_least_once,
            progress=progress,
        )
        lost = sum(gap.last - gap.first + 1 for gap in done.gaps)
        missing = sum(last - first + 1 for first, last in done.missing)
        text = f"{done.rows_now:,} records replayed into {topic}, {done.rows:,} in all"
        text += f"; {lost:,} of the range were lost before they were archived" if lost else ""
        text += f"; {missing:,} of the range are not in the lake" if missing else ""
        fields = {"rows": done.rows_now, "rows_total": done.rows, "lost": lost, "missing": missing}
        progress.finish(text, {"topic": topic, **fields})

    cluster.run("replay", job)
