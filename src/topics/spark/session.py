"""Sessions of Spark for the commands and the tests: quiet, in UTC, and with `format("topics")` registered.

Owned here: PYSPARK_PYTHON, so that the workers of a local session run the Python that this package is installed in.
Whoever has a session of their own calls `topics.spark.register(spark)` instead.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics.errors import ConfigurationError
from topics.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_CONFIG: Final = Path(__file__).parent / "log4j2.properties"
# A JVM that lives for seconds starts twice as fast with one compiler and the simplest collector.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
RIGHT: Final = {
    "spark.sql.session.timeZone": "UTC",  # $ts is a point in time; days and hours of it are those of UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def build(
    name: str = "topics",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    is_short_lived: bool = False,
    log_file: str | os.PathLike[str] = os.devnull,
) -> "SparkSession":
    """A session on `master` (None = what spark-submit says, else `local[*,4]`) or on the Connect server `remote`.

    `local[*,4]` and not `local[*]`, which would let no task try again. What Spark itself has to say goes into
    `log_file`, warnings and errors, or nowhere.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigurationError("this needs Spark: pip install 'topics-engine[spark]'") from None

    from topics.spark import register

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        spark = builder.remote(remote).getOrCreate()
    else:
        chosen = java.use()
        given = dict(SparkConf().getAll())
        settings = {**QUIET, **RIGHT, "spark.driver.extraJavaOptions": _java_options(chosen, is_short_lived, log_file)}
        settings["spark.master"] = master or given.get("spark.master", "local[*,4]")
        if settings["spark.master"].startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in {**settings, **(given if master is None else {}), **(conf or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _java_options(chosen: java.Java, is_short_lived: bool, log_file: str | os.PathLike[str]) -> str:
    options = [f"-Dlog4j2.configurationFile={LOG_CONFIG}", f"-Dtopics.log={os.fspath(log_file)}"]
    if is_short_lived:
        options.append(SHORT_LIVED)
    if chosen.version >= 24:
        options.append("--sun-misc-unsafe-memory-access=allow")  # Arrow and Netty use it; Java 24 began to warn
    return " ".join(options)
