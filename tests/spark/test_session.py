"""Sessions, and how Spark comes to know the format."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_topics
import topics.spark
from tests.spark.rig import Rig, said_by, seqs
from topics.errors import ConfigurationError
from topics.spark.session import python_fault
from topics.spark.source import TopicsSource


def test_spark_finds_the_format_by_itself(rig: Rig) -> None:
    topic = rig.topic(count=3)
    fresh = rig.spark.newSession()
    rows = fresh.read.format("topics").option("url", rig.url).option("topic", topic).load()
    assert seqs(rows.collect()) == [1, 2, 3]
    assert pyspark_topics.DefaultSource is TopicsSource


def test_a_session_can_be_told_of_the_format(spark: SparkSession) -> None:
    fresh = spark.newSession()
    topics.spark.register(fresh)
    assert "nothing says where to read from" in said_by(
        lambda: fresh.read.format("topics").option("topic", "t").load().collect()
    )


def test_times_are_those_of_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(
    "module", ["topics.spark", "topics.spark.tables.lake", "topics.spark.java", "topics.spark.options"]
)
def test_importing_does_not_import_pyspark(module: str) -> None:
    code = f"import sys, {module}; print('pyspark' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize("given", ["remote='sc://127.0.0.1:1'", ""])
def test_without_the_packages_of_connect_the_message_says_what_to_install(given: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # without a file, PySpark takes it for a test of its own
    script.write_text(
        "import sys; sys.modules['grpc'] = None\n"
        "from topics.errors import ConfigurationError\n"
        "from topics.spark import session\n"
        f"try:\n    session.build({given})\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    environ = {**os.environ, **({} if given else {"SPARK_REMOTE": "sc://127.0.0.1:1"})}
    answer = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=True)
    assert "pip install 'topics-engine[connect]'" in answer.stdout


def test_without_spark_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from topics.errors import ConfigurationError\n"
        "from topics.spark import session\n"
        "try:\n    session.build()\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'topics-engine[spark]'" in answer.stdout


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'ModuleNotFoundError: No module named topics' >&2; exit 1", "No module named topics"),
        ("echo 3.7", "which is Python 3.7, not the driver's"),
    ],
)
def test_workers_of_another_python_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    other = tmp_path / "python3"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    with pytest.raises(ConfigurationError) as caught:
        topics.spark.register(spark)
    assert said in str(caught.value) and f"set PYSPARK_PYTHON to {sys.executable}" in str(caught.value)


def test_a_python_for_workers_must_be_there() -> None:
    assert python_fault("no-such-python") == "which is not there"
    assert python_fault(sys.executable) is None
