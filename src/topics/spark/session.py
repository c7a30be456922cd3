"""Sessions of Spark for the commands and the tests: quiet, in UTC, and with `format("topics")` registered.

Owned here: SPARK_REMOTE; SPARK_LAUNCHER_OPTS; and PYSPARK_PYTHON, so that the workers of a local session run the Python
that this package is installed in. Whoever has a session of their own calls `topics.spark.register(spark)` instead.

Under spark-submit the JVM runs before Python does, and knows what spark-submit was told; that stands over what is set
here. Its log begins on stderr, and is turned to the file once there is a session, unless somebody has set it up.
"""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics.errors import ConfigurationError
from topics.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_CONFIG: Final = Path(__file__).parent / "log4j2.properties"
CLASSES: Final = Path(".topics") / "spark"  # in the home: archives of classes
# A JVM that lives for seconds starts twice as fast with one compiler and the simplest collector.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

PYTHON: Final = "PYSPARK_PYTHON"  # the variable that names the Python of workers
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # the variable by which spark-submit tells Python where its JVM is
LAUNCHER: Final = "SPARK_LAUNCHER_OPTS"  # the variable with options for the JVM that makes the command of the other
LOG_LEVEL: Final = "spark.log.level"
SPARKS_LOG_CONFIG: Final = "org/apache/spark/log4j2"  # part of the place of Spark's own, which nobody has chosen
NO_CONNECT: Final = "a Spark Connect server needs more packages: pip install 'topics-engine[connect]'"

# Arrow's vectors check the bounds of each value that Spark takes; Spark takes none outside of a batch.
UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true"

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
    """A session on `master` or on the Connect server `remote`. None = what spark-submit or SPARK_REMOTE says, else
    `local[*,4]`.

    `local[*,4]` and not `local[*]`, which would let no task try again. What Spark itself has to say goes into
    `log_file`, warnings and errors, or nowhere.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigurationError("this needs Spark: pip install 'topics-engine[spark]'") from None

    from topics.spark import register

    if remote is None and master is None:
        remote = os.environ.get("SPARK_REMOTE") or None
    if remote is not None:
        spark = _connected(name, remote, conf or {})
    else:
        settings = {**QUIET, **RIGHT}
        if SUBMITTED in os.environ:
            given = _submitted()
            settings[LOG_LEVEL] = "WARN"
        else:
            given = dict(SparkConf().getAll())
            os.environ.setdefault(LAUNCHER, SHORT_LIVED)
            settings["spark.driver.extraJavaOptions"] = _java_options(java.use(), is_short_lived, log_file)
        settings["spark.master"] = master or given.get("spark.master", "local[*,4]")
        if settings["spark.master"].startswith("local"):
            os.environ.setdefault(PYTHON, sys.executable)
        builder = SparkSession.builder.appName(name)
        for key, value in {**settings, **(given if master is None else {}), **(conf or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        if SUBMITTED in os.environ and LOG_LEVEL not in given:
            _turn_log(spark, log_file)
    register(spark)
    return spark


def is_connected(spark: "SparkSession") -> bool:
    """Whether a session is one of a Connect server. Such a session has no JVM, and no context."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_python(spark: "SparkSession") -> None:
    """Refuse a session whose workers run a Python that cannot serve the format; warn where that cannot be known."""
    if is_connected(spark):
        return
    context = spark.sparkContext
    if (context.master or "").startswith("local"):
        fault = python_fault(context.pythonExec)
        if fault is not None:
            raise ConfigurationError(
                f"the workers of this session would run {context.pythonExec}, {fault}: set PYSPARK_PYTHON to "
                f"{sys.executable} before the session is made, or let topics.spark.session.build make it"
            )
    elif PYTHON not in os.environ and context.getConf().get("spark.pyspark.python") is None:
        warnings.warn(
            f"PYSPARK_PYTHON is not set: the workers of {context.master} run their {context.pythonExec}, which must be "
            f"Python {_version(sys.version_info)} and have topics-engine[spark]",
            stacklevel=3,
        )


@cache
def python_fault(named: str) -> str | None:
    """What is wrong with a Python for workers on this machine; None: it has all that they need."""
    found = shutil.which(named)
    if found is None:
        return "which is not there"
    own = os.path.abspath(sys.executable)
    if os.path.dirname(os.path.abspath(found)) == os.path.dirname(own) and os.path.samefile(found, own):
        return None
    code = "import sys, pyarrow, pyspark, topics.spark; print('%d.%d' % sys.version_info[:2])"
    asked = subprocess.run([found, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        return f"which cannot import what it needs ({said[-1]})"
    version = asked.stdout.strip()
    return None if version == _version(sys.version_info) else f"which is Python {version}, not the driver's"


def _version(info: Sequence[Any]) -> str:
    return f"{info[0]}.{info[1]}"


def _connected(name: str, remote: str, conf: Mapping[str, str]) -> "SparkSession":
    """A session on a Connect server: what belongs to the server's JVM is the server's matter."""
    from pyspark.errors import PySparkImportError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).remote(remote)
    for key, value in {**RIGHT, **conf}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkImportError:
        raise ConfigurationError(NO_CONNECT) from None


def _submitted() -> dict[str, str]:
    """The settings that spark-submit was given."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # without the JVM, SparkConf knows of no settings
    given = dict(SparkConf().getAll())
    if given.get("spark.app.name") == Path(sys.argv[0]).name:  # nobody named it
        del given["spark.app.name"]
    return given


def _turn_log(spark: "SparkSession", log_file: str | os.PathLike[str]) -> None:
    """Let Spark log into the file, if it logs as it does by itself."""
    jvm: Any = spark.sparkContext._jvm
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    if SPARKS_LOG_CONFIG in context.getConfiguration().getConfigurationSource().toString():
        jvm.java.lang.System.setProperty("topics.log", os.fspath(log_file))
        context.setConfigLocation(jvm.java.net.URI(LOG_CONFIG.as_uri()))


def _java_options(chosen: java.Java, is_short_lived: bool, log_file: str | os.PathLike[str]) -> str:
    options = [f"-Dlog4j2.configurationFile={LOG_CONFIG}", f"-Dtopics.log={os.fspath(log_file)}", UNCHECKED]
    if is_short_lived:
        options.append(SHORT_LIVED)
    if chosen.version >= 24:
        options.append("--sun-misc-unsafe-memory-access=allow")  # Arrow and Netty use it; Java 24 began to warn
    return " ".join([*options, *_class_options(chosen)])


def _class_options(chosen: java.Java) -> list[str]:
    """For the first session of a process: its JVM serves the others, too."""
    import pyspark

    if pyspark.SparkContext._gateway is not None:
        return []
    jars = f"{pyspark.__version__} in {Path(pyspark.__file__).parent}"
    try:
        return java.class_options(chosen, jars, Path.home() / CLASSES)
    except RuntimeError:  # nobody's home
        return []


@contextmanager
def under(spark: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session, for as long as something is made under them."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
