"""Running a job as a command: a quiet session, its progress, its failure in one sentence, an exit code.

    raise SystemExit(run("export", lambda spark, progress: export(spark, …, progress=progress), master=master))

A job is a function of a session and a progress; it returns its exit code, None being 0.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics.errors import InvalidRequest
from topics.settings import ClientSettings
from topics.spark import session
from topics.spark.runs.failures import failure_of
from topics.spark.runs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED: Final = 1
INTERRUPTED: Final = 130
LOUD: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")  # what PySpark logs of each error


def run(
    name: str,
    job: "Callable[[SparkSession, Progress], int | None]",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Sequence[str] = (),
    is_json: bool = False,
) -> int:
    """Run a job to its end; its exit code. A failure is told on stderr. `conf` is as in settings_of.

    With `is_json` the result, and a failure, are JSON lines on a terminal, too.
    """
    token = ClientSettings.load().token
    try:
        settings = settings_of(conf)
        with (
            Progress(name, is_json=is_json) as progress,
            _warnings_as_notes(progress),
            opened(name, master=master, remote=remote, conf=settings) as spark,
        ):
            return job(spark, progress) or 0
    except KeyboardInterrupt:
        print(f"topics {name}: interrupted; run it again to continue", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except Exception as error:
        message = failure_of(error, token=token)
        line = json.dumps({"error": {"code": "failed", "message": message}}) if is_json else f"topics {name}: {message}"
        print(line, file=sys.stderr)  # noqa: T201
        return FAILED


@contextmanager
def opened(
    name: str, *, master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A quiet session, stopped at the end. What Spark logs goes into a file of the user's."""
    for logger in LOUD:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    spark = session.build(f"topics {name}", master=master, remote=remote, conf=conf, log_file=_log_file(name))
    try:
        yield spark
    finally:
        spark.stop()


def _log_file(name: str) -> str:
    """~/.topics/NAME.log, or nowhere."""
    directory = Path.home() / ".topics"
    try:
        directory.mkdir(exist_ok=True)
    except OSError:
        return os.devnull
    return str(directory / f"{name}.log")


@contextmanager
def _warnings_as_notes(progress: Progress) -> Iterator[None]:
    """Our own warnings are told like the rest; those of libraries are kept back."""

    def tell(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if category is UserWarning:
            progress.note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = tell
        yield


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """`["spark.driver.memory=2g"]` as settings."""
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise InvalidRequest(f"--conf is {text!r}: it must be KEY=VALUE")
        settings[key.strip()] = value
    return settings
