"""The examples do what they say, on their generated data: each is held against the same in plain Python."""

import re
import runpy
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output, Sink, TemporaryView
from pyspark.sql import SparkSession

from examples.pipelines import clicks, generate, letters, orders
from tests.spark.commands import SPARK, environ_of_spark
from tests.spark.rig import Rig
from topics.spark.jobs.transforming import transform
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

DECLARATIVE = Path(orders.__file__).parent / "declarative"


@pytest.fixture
def own(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    """A server of the example's own, whose topics have the names that the example gives them."""
    with ServerProcess(tmp_path / "server") as server, Rig(spark, server) as rig:
        yield rig


def minute_of(order: dict[str, Any]) -> str:
    return order["at"][:16] + ":00Z"


def revenue_of(found: list[dict[str, Any]]) -> dict[str, tuple[Decimal, int]]:
    """Revenue and number of orders by minute, of all minutes that a watermark of one minute has closed."""
    totals: dict[str, tuple[Decimal, int]] = defaultdict(lambda: (Decimal(0), 0))
    for order in found:
        revenue, count = totals[minute_of(order)]
        totals[minute_of(order)] = (revenue + Decimal(order["price"]), count + 1)
    newest = max(datetime.fromisoformat(order["at"]) for order in found)
    watermark = newest - timedelta(minutes=1)
    return {
        minute: total
        for minute, total in totals.items()
        if datetime.fromisoformat(minute) + timedelta(minutes=1) <= watermark
    }


def revenue_in(rig: Rig) -> dict[str, tuple[Decimal, int]]:
    values = rig.values("revenue")
    assert len({value["minute"] for value in values}) == len(values), "a minute is written once"
    return {value["minute"]: (Decimal(str(value["revenue"])), value["orders"]) for value in values}


def test_orders_become_revenue_per_minute(own: Rig, tmp_path: Path) -> None:
    orders.fill(own.client, 500)
    done = transform(own.spark, str(orders.FILE), once=True, url=own.url, checkpoint=str(tmp_path / "state"))
    assert (done.rows, done.late) == (500, 0)
    expected = revenue_of(list(generate.orders(500)))
    assert len(expected) > 20 and revenue_in(own) == expected
    assert {record.tag for record in own.client.diff("revenue", include_tags=True).records} == {"minute"}


class Graph(GraphElementRegistry):
    """What a declarative pipeline declares, to be run in the session of the tests."""

    def __init__(self) -> None:
        self.outputs: dict[str, Output] = {}
        self.flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        self.outputs[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise AssertionError("the example has none")

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError("the example has none")


def test_the_declarative_pipeline_declares_the_same_revenue(
    own: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", own.url)
    orders.fill(own.client, 500)
    graph = Graph()
    with graph_element_registration_context(graph):
        runpy.run_path(str(DECLARATIVE / "transformations" / "revenue.py"))
    for flow in graph.flows:
        target, rows = graph.outputs[flow.target], flow.func()
        if isinstance(target, TemporaryView):
            rows.createOrReplaceTempView(target.name)
            continue
        assert isinstance(target, Sink)
        writer = rows.writeStream.format(target.format).options(**target.options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "state")).start()
        assert query.awaitTermination(PATIENCE_S)
    assert revenue_in(own) == revenue_of(list(generate.orders(500)))


@pytest.mark.full
def test_the_declarative_pipeline_runs_by_the_command_of_spark(own: Rig, tmp_path: Path) -> None:
    place, state = tmp_path / "pipeline", tmp_path / "state"
    shutil.copytree(DECLARATIVE, place)
    spec = (place / "spark-pipeline.yml").read_text()
    (place / "spark-pipeline.yml").write_text(re.sub("storage: .*", f"storage: {state.as_uri()}", spec))
    orders.fill(own.client, 500)
    done = subprocess.run(
        [str(SPARK / "bin" / "spark-pipelines"), "run", "--spec", str(place / "spark-pipeline.yml")],
        env=environ_of_spark(tmp_path, TOPICS_URL=own.url, SPARK_TESTING="1"),  # a free port for its server
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert revenue_in(own) == revenue_of(list(generate.orders(500)))


def sessions_of(found: list[dict[str, Any]]) -> list[tuple[str, str, int, bool]]:
    """User, start, number of clicks, whether something was paid; sessions that have ended by the newest click."""
    by_user: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for click in found:
        by_user[click["user"]].append((datetime.fromisoformat(click["at"]), click["page"]))
    newest = max(at for visits in by_user.values() for at, _ in visits)
    sessions = []
    for user, visits in by_user.items():
        visit: list[tuple[datetime, str]] = []
        for at, page in [*sorted(visits), (newest - timedelta(minutes=1), "")]:
            if visit and (at - visit[-1][0] > timedelta(minutes=30)):
                pages = [page for _, page in visit]
                sessions.append((user, visit[0][0].isoformat(), len(visit), "paid" in pages))
                visit = []
            visit.append((at, page))
    return sorted(sessions)


def test_clicks_become_sessions(own: Rig, tmp_path: Path) -> None:
    clicks.fill(own.client, 40)
    name = f"{clicks.__name__}:sessions"
    transform(own.spark, name, once=True, url=own.url, checkpoint=str(tmp_path / "state"))
    values = own.values("sessions")
    found = sorted(
        (value["user"], datetime.fromisoformat(value["start"]).isoformat(), value["clicks"], value["is_paid"])
        for value in values
    )
    expected = sessions_of(generate.clicks(40))
    assert len(expected) > 40 and found == expected


def test_letters_are_sorted_by_cause_and_redriven_where_it_is_over(own: Rig) -> None:
    """QU14"""
    given = list(generate.jobs(200))
    mails = sum(tag == "smtp" for tag, _ in given)
    broken = sum(data["kind"] == "invoice" and data["amount"] is None for _, data in given)
    letters.fill(own.client)
    assert letters.work(own.client, is_smtp_up=False) == 200 - mails - broken
    assert own.client.state("jobs.dead").count == mails + broken
    assert letters.triage(own.spark, own.client, own.url) == {"smtp": mails}
    summary = {(value["tag"], value["cause"]): value["letters"] for value in own.values("jobs.triage")}
    assert summary == {("smtp", "service down"): mails, ("invoices", "no amount"): broken}
    assert letters.work(own.client, is_smtp_up=True) == mails
    assert own.client.state("jobs.dead").count == broken, "what is broken in itself stays"
