"""One Spark session for all tests, one server for each module that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.rig import Rig
from tests.spark.trio import Trio
from topics.spark import session
from topics.testing.server import ServerProcess


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark has to say."""
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="session")
def spark(spark_log: Path) -> Iterator[SparkSession]:
    """Two cores, four attempts of a task."""
    place = spark_log.parent
    spark = session.build(
        "topics-tests",
        master="local[2,4]",
        is_short_lived=True,
        log_file=spark_log,
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place),
            "spark.driver.memory": "1g",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def rig(spark: SparkSession, server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Spark and the module's server; topics get names of the test's own."""
    with Rig(spark, server, request.node.name) as rig:
        yield rig


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Three servers of the test's own."""
    trio = Trio(tmp_path / "servers")
    yield trio
    trio.close()
