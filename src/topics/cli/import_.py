"""`topics import`: files into a topic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli import spark as on_spark
from topics.cli.files.file_import import Mapped as MappedFile
from topics.cli.files.file_import import import_file, is_for_one_process
from topics.cli.shell.invoking import Call, run_alone
from topics.cli.spark import AtLeastOnce, Cluster, Name, Server, SetWindow, State, with_cluster, with_server
from topics.spark.tables.file_formats import ImportFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress

Data = Annotated[str | None, typer.Option(help="The field or column that is the data; the whole row by default.")]
Option = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of Spark's CSV or Parquet reader: sep=;")
]


@with_cluster
@with_server
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A file, - for stdin, a directory, a pattern, or a URI.")
    ],
    topic: Annotated[str, typer.Argument(help="The topic; created if absent.")],
    format: Annotated[
        ImportFormat | None, typer.Option(help="Format of the files; by default their names tell.")
    ] = None,
    data: Data = None,
    tag: Annotated[str | None, typer.Option(metavar="FIELD", help="The field or column that is the tag.")] = None,
    node: Annotated[str | None, typer.Option(metavar="FIELD", help="The field or column that is the node.")] = None,
    meta: Annotated[str | None, typer.Option(help="The field or column that is the meta.")] = None,
    text: Annotated[bool, typer.Option("--text", help="The column of --data is plain text, not JSON.")] = False,
    option: Option = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Keep the order of the rows, with a single task.")] = False,
    name: Name = "",
    state: State = None,
    set_window: SetWindow = False,
    at_least_once: AtLeastOnce = False,
    spark: Annotated[bool, typer.Option("--spark", help="Use Spark, whatever SRC is.")] = False,
    *,
    server: Server,
    cluster: Cluster,
) -> None:
    """Import files into a topic, each row once.

    NDJSON (.ndjson, .jsonl), JSON (.json: an array of rows, or one), CSV with a header, Parquet; compressed or not.
    If it is interrupted, run it again with the same arguments: it continues where it left off. New files are
    imported, files that are already in the topic are not.

    A plain file of up to 1 GiB needs no Spark, and keeps its order; directories, patterns, URIs, larger files do.

    Example: topics import orders.ndjson orders --tag sku

    Example: topics export orders - | topics import - copy --data data --tag tag --node node --meta meta

    Example: topics import 'orders/*.ndjson' orders --tag sku
    """
    if not (spark or option or set_window or at_least_once or cluster.is_named):
        what_file = MappedFile(data, tag, node, meta, text)
        if _import_alone(source, topic, format, what_file, state, name, server, is_json=cluster.is_json):
            return
    on_spark.require("; a plain file of a known format and up to 1 GiB needs none")
    from topics.spark.jobs.importing import Source
    from topics.spark.jobs.importing import import_ as run_import
    from topics.spark.tables.formats import Mapped

    mapped = Mapped(data=data, tag=tag, node=node, meta=meta, is_text=text)
    options = on_spark.pairs(option, "--option")
    what = Source(path=source, format=format, mapped=mapped, options=options, is_ordered=ordered)

    def job(session: "SparkSession", progress: "Progress") -> None:
        done = run_import(
            session,
            what,
            topic,
            server=server.connection(),
            state=state,
            name=name,
            sets_window=set_window,
            at_least_once=at_least_once,
            progress=progress,
        )
        text = f"{done.rows_now:,} rows imported into {topic}; {done.rows:,} rows of {done.files:,} files in all"
        progress.finish(text, {"topic": topic, "rows": done.rows_now, "rows_total": done.rows, "files": done.files})

    cluster.run("import", job)


def _import_alone(
    source: str,
    topic: str,
    format: ImportFormat | None,
    mapped: MappedFile,
    state: str | None,
    name: str,
    server: Server,
    *,
    is_json: bool,
) -> bool:
    """Do it without Spark; False if that cannot be."""
    if not is_for_one_process(source, format):
        if "://" not in source and not any(char in source for char in "*?[{,") and not Path(source).exists():
            raise typer.BadParameter(f"there is no file {source}", param_hint="SRC")
        return False

    def run(call: Call) -> None:
        import_file(call, source, topic, format, mapped, state=state, name=name)

    run_alone("import", run, *server, is_json=is_json, topic=topic)
    return True
