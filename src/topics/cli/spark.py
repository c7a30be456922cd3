"""What the subcommands that run on Spark have in common: their options, and a check that Spark is there."""

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer

from topics.cli.shell.invoking import ContextName, Json, Key, with_environment, with_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.runs.progress import Progress
    from topics.spark.servers.connection import Connection

Url = Annotated[
    str | None,
    typer.Option(help="The server, or several with commas between; TOPICS_URL by default. The token is TOPICS_TOKEN."),
]
Master = Annotated[str | None, typer.Option(help="The Spark master: spark://…, yarn, k8s://…; local[*,4] by default.")]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server, sc://….")]
Conf = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")]
State = Annotated[str | None, typer.Option(help="Where the ledgers of jobs are kept; ~/.topics/jobs by default.")]
Name = Annotated[str, typer.Option(help="Distinguishes jobs with the same arguments; a new name runs the job again.")]
SetWindow = Annotated[
    bool, typer.Option("--set-window", help="Let the topic remember idempotency keys for seven days.")
]
AtLeastOnce = Annotated[bool, typer.Option("--at-least-once", help="Continue even if rows may be written twice.")]


_OPTIONS: Final = {"master": Master, "remote": Remote, "conf": Conf, "json": Json}


class Cluster:
    """The Spark that a command was asked to use, and how the command tells what it does."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self.is_json: bool = given["json"]

    @property
    def is_named(self) -> bool:
        """Whether some option says which Spark, or how it is to be."""
        return any(self._given[name] for name in ("master", "remote", "conf"))

    def run(
        self, name: str, job: "Callable[[SparkSession, Progress], int | None]", settings: Sequence[str] = ()
    ) -> NoReturn:
        """Run a job to its end, and exit. Settings of Spark are those that were given, and before them these."""
        from topics.spark.runs.running import run

        conf = [*settings, *(self._given["conf"] or ())]
        where = {"master": self._given["master"], "remote": self._given["remote"]}
        raise SystemExit(run(name, job, **where, conf=conf, is_json=self.is_json))


def with_cluster(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of Spark, and --json: it gets them as its parameter `cluster`."""
    return with_options(function, "cluster", _OPTIONS, Cluster)


class Server(NamedTuple):
    """The server that a command was asked to use, for one that can do without Spark."""

    url: str | None
    key: str | None
    context: str | None

    def connection(self) -> "Connection":
        """The server that the options, the environment or the context in use name."""
        from topics.cli.shell import contexts
        from topics.settings import ClientSettings
        from topics.spark.servers.connection import Connection

        picked, origin = with_environment(*self)
        server = contexts.resolve(picked["url"], picked["key"], picked["context"], url_origin=origin)
        return Connection(url=server.url, token=server.key).with_tokens(ClientSettings.load().token_file)


def with_server(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that name a server: it gets them as its parameter `server`."""
    options = {"url": Url, "key": Key, "context": ContextName}
    return with_options(function, "server", options, lambda given: Server(**given))


def require(hint: str = "") -> None:
    """End with a message if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        print("topics: this needs Spark: pip install 'topics-engine[spark]'" + hint, file=sys.stderr)
        raise SystemExit(2)


def over_on_sigterm() -> threading.Event:
    """Set when the process is asked to end."""
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    return is_over


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """`["sep=;"]` as a mapping."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[key.strip()] = value
    return found
