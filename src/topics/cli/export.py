"""`topics export`: records as files."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli import spark as on_spark
from topics.cli.spark import Conf, Master, Remote, Url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress

Format = Literal["parquet", "ndjson", "csv"]


def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC|PATTERN", help="A topic, or an expression of whole names.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="A new directory, or a URI.")],
    format: Annotated[Format, typer.Option(help="Format of the files.")] = "parquet",
    first_seq: Annotated[int | None, typer.Option(min=1, help="Inclusive; the first live record by default.")] = None,
    last_seq: Annotated[int | None, typer.Option(min=0, help="Inclusive; the head by default.")] = None,
    since: Annotated[str | None, typer.Option(help="From this time on: epoch-ms, or 2026-01-31T12:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    archive: Annotated[str | None, typer.Option(help="A lake, for what the server no longer has.")] = None,
    path: Annotated[str | None, typer.Option(help="A data directory to read from, alone or beside --url.")] = None,
    single: Annotated[bool, typer.Option("--single", help="One file.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any record of the range was lost.")] = False,
    url: Url = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Export a topic, or all that match, as Parquet, NDJSON or CSV.

    What was lost in the range is counted, and listed in DST/_gaps.ndjson. Run again, it takes what there is then.

    Example: topics export orders out --format ndjson --since 2026-01-01T00:00:00Z
    """
    on_spark.require()
    from topics.spark.jobs.exporting import Wanted
    from topics.spark.jobs.exporting import export as run_export
    from topics.spark.options import Connection
    from topics.spark.runs.running import run

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

    def job(spark: "SparkSession", progress: "Progress") -> None:
        server = Connection.load_beside(path, url)
        done = run_export(spark, wanted, destination, server=server, format=format, is_single=single, progress=progress)
        lost = f"; {done.lost:,} were lost, in {len(done.gaps)} gaps: see _gaps.ndjson" if done.gaps else ""
        fields = {"rows": done.rows, "files": done.files, "lost": done.lost, "gaps": len(done.gaps)}
        progress.finish(f"{done.rows:,} records in {done.files:,} files{lost}", {"destination": destination, **fields})

    raise SystemExit(run("export", job, master=master, remote=remote, conf=conf or ()))
