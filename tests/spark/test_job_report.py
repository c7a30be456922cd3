"""`topics report`: the numbers are those of the server, and the page needs nothing else."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.commands import Command, is_read_by_spark
from tests.spark.rig import Rig
from topics.client import Job
from topics.clock import SystemClock
from topics.errors import InvalidRequest
from topics.reader import Lost
from topics.spark.jobs.reporting import ages, report, step_of
from topics.spark.options import Connection
from topics.spark.report import charts
from topics.spark.report.counting import Alone, OnSpark
from topics.spark.tables.lake import Commit, Covered, Lake
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

VOID = {"meta", "rect", "line"}


class Balanced(HTMLParser):
    """Whether what is opened is closed, and what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture
def own(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    with ServerProcess(tmp_path / "server") as server, Rig(spark, server) as rig:
        yield rig


def fill(rig: Rig) -> None:
    client = rig.client
    rig.append("orders", [{"n": n} for n in range(50)])
    client.put_topic("capped", cap_records=10)
    rig.append("capped", range(30))
    client.put_topic("jobs", type="queue", max_deliveries=1, dead_letter="jobs.dead")
    client.append("jobs", [{"data": n, "tag": "<b>mail</b>", "meta": {"reason": f"code {n % 2}"}} for n in range(5)])
    claimed = client.claim("jobs", "w", max_jobs=5).claimed
    client.nack("jobs", "w", claimed[:3])
    assert client.claim("jobs", "w").count == 0, "they have been delivered as often as they may be"


def test_a_report_has_the_numbers_of_the_server(own: Rig, tmp_path: Path) -> None:
    fill(own)
    file = tmp_path / "report.html"
    made = report(own.spark, str(file), url=own.url, seconds=0)
    assert {state.topic: state.count for state in made.states} == {
        "capped": 10,
        "jobs": 2,
        "jobs.dead": 3,
        "orders": 50,
    }
    assert {topic: sum(counts) for topic, counts in made.records.items()} == {
        "capped": 10,
        "jobs": 2,
        "jobs.dead": 3,
        "orders": 50,
    }
    assert sum(made.bytes["orders"]) == own.client.state("orders").bytes
    assert made.gaps == {"capped": [Lost(1, 20, "cap")]}
    (queue,) = made.queues
    assert (queue.ready, queue.in_flight, queue.dead_lettered) == (0, 2, 3)
    assert sum(queue.running.values()) == 2 and sum(queue.waiting.values()) == 0
    assert made.letters == {("jobs", "code 0", "1"): 2, ("jobs", "code 1", "1"): 1}


def test_without_spark_the_numbers_are_the_same(own: Rig, tmp_path: Path) -> None:
    fill(own)
    own.client.append("jobs.dead", [{"data": 1, "tag": "t"}, {"data": 2}, {"data": 3, "meta": {"error": 5}}])
    own.client.append("orders", [{"data": None, "meta": {"a": 1}}])
    now = SystemClock().now_ms() + 7_000
    on_spark, alone = OnSpark(own.spark, Connection.load(own.url)), Alone(lambda topic: own.client)
    topics = ["orders", "capped", "jobs", "jobs.dead"]
    for step_ms in (1, 1000):
        wanted = {step[:3] for step in on_spark.steps(topics, now - 60_000, step_ms, 60)}
        assert {step[:3] for step in alone.steps(topics, now - 60_000, step_ms, 60)} == wanted
    assert alone.ages("orders", now, ()) == on_spark.ages("orders", now, ())
    assert alone.ages("capped", now, {21, 22}) == on_spark.ages("capped", now, {21, 22})
    assert alone.letters(["jobs.dead"]) == on_spark.letters(["jobs.dead"])
    made = report(own.spark, str(tmp_path / "spark.html"), url=own.url, seconds=0)
    same = report(None, str(tmp_path / "alone.html"), url=own.url, seconds=0)
    assert (same.records, same.bytes, same.letters, same.gaps) == (made.records, made.bytes, made.letters, made.gaps)


def test_a_report_is_one_page_that_loads_nothing_and_escapes_every_name(own: Rig, tmp_path: Path) -> None:
    fill(own)
    own.client.put_topic("jobs", type="queue", max_deliveries=1, dead_letter="jobs.dead")
    own.client.append("jobs.dead", [{"data": 1, "tag": "<script>alert(1)</script>"}])
    file = tmp_path / "report.html"
    report(own.spark, str(file), url=own.url, seconds=0)
    text = file.read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and parser.loaded == []
    assert "svg" in parser.names and "script" not in parser.names
    assert "prefers-color-scheme: dark" in text and "&lt;script&gt;alert(1)" in text
    assert not re.search(r"@import|url\(", text)
    assert [one.name for one in tmp_path.glob("*.tmp")] == []


class Watching(SystemClock):
    """Time while the queues are watched: each pause is one step of a worker, and lasts a second."""

    def __init__(self, steps: list[Callable[[], None]]) -> None:
        self._steps = steps
        self._passed = 0.0

    def monotonic(self) -> float:
        return self._passed

    def pause(self, seconds: float) -> None:
        self._passed += 1
        self._steps.pop(0)()


def test_how_long_jobs_wait_and_run_is_watched(own: Rig, tmp_path: Path) -> None:
    own.client.put_topic("jobs", type="queue", lease_ms=20_000)
    claimed: list[Job] = []
    steps: list[Callable[[], None]] = [
        lambda: own.append("jobs", [1, 2]),
        lambda: claimed.extend(own.client.claim("jobs", "w", max_jobs=2).claimed),
        lambda: own.client.ack("jobs", "w", claimed[:1]) and None,
    ]
    clock = Watching(steps)
    file = tmp_path / "r.html"
    made = report(own.spark, str(file), url=own.url, seconds=3, clock=clock, pause=clock.pause)
    (queue,) = made.queues
    assert (len(queue.waits_ms), len(queue.runs_ms)) == (2, 1)
    assert "Watched for 3 s" in file.read_text()


def test_lag_is_that_of_checkpoints_and_lakes(own: Rig, tmp_path: Path) -> None:
    own.append("orders", range(20))
    rows = own.stream(topic="orders", startingSeq="earliest")
    own.run(rows.select("data"), "copy", tmp_path / "state" / "out")
    own.append("orders", range(7))
    epoch = own.client.state("orders").epoch
    lake = str(tmp_path / "lake")
    Lake.load(lake, must_exist=False).commit(Commit(covered=[Covered("orders", epoch, 1, 25)]))
    made = report(
        own.spark,
        str(tmp_path / "r.html"),
        url=own.url,
        pattern="orders",
        seconds=0,
        checkpoints=[str(tmp_path / "state")],
        lakes=[lake],
    )
    assert [(one.reader, one.topic, one.seq, one.lag) for one in made.behind] == [
        ("out", "orders", 20, 7),
        (f"lake {lake}", "orders", 25, 2),
    ]
    with pytest.raises(InvalidRequest, match="has no checkpoint of a streaming query"):
        report(own.spark, str(tmp_path / "r.html"), url=own.url, seconds=0, checkpoints=[str(tmp_path)])


def test_routers_are_shown_with_how_far_they_are_behind_and_why(own: Rig, tmp_path: Path) -> None:
    """RT15, RT19"""
    own.client.put_topic("small", cap_records=2, discard="reject")
    own.client.put_router("orders->small", "orders", "small")
    own.client.put_router("orders->copy", "orders", "copy")
    own.append("orders", range(5))
    assert own.values("small") == [0, 1] and own.values("copy") == list(range(5))
    file = tmp_path / "r.html"
    made = report(own.spark, str(file), url=own.url, pattern="orders", seconds=0)
    assert {one.router: (one.forwarded_total, one.lag, one.state) for one in made.routers} == {
        "orders->copy": (5, 0, "running"),
        "orders->small": (2, 3, "blocked"),
    }
    text = file.read_text()
    assert text.index("<td>orders-&gt;small</td>") < text.index("<td>orders-&gt;copy</td>"), "the worst comes first"
    assert "<td>blocked</td>" in text and "full" in text
    assert report(own.spark, str(file), url=own.url, pattern="other", seconds=0).routers == []


def test_killed_it_leaves_the_file_as_it_was_and_run_again_it_is_made(own: Rig, tmp_path: Path) -> None:
    own.append("orders", range(50))
    file = tmp_path / "r.html"
    file.write_text("the one before")
    arguments = ("report", str(file), "--seconds", "0", "--spark")
    command = Command(tmp_path / "process", *arguments, url=own.url)
    command.kill_once(is_read_by_spark(own, "orders"))
    assert file.read_text() == "the one before"
    assert [path.name for path in tmp_path.glob("r.html*")] == ["r.html"]
    made = report(own.spark, str(file), url=own.url, seconds=0)
    assert {topic: sum(counts) for topic, counts in made.records.items()} == {"orders": 50}
    assert file.read_text().endswith("</html>\n")


def test_an_empty_server_has_a_report_as_well(own: Rig, tmp_path: Path) -> None:
    made = report(own.spark, str(tmp_path / "r.html"), url=own.url)
    assert made.states == [] and "Nothing to draw" in (tmp_path / "r.html").read_text()
    with pytest.raises(InvalidRequest, match="cannot be written: No such file"):
        report(own.spark, str(tmp_path / "no" / "r.html"), url=own.url)


def test_steps_and_ages_and_units_suit_what_they_are_of() -> None:
    assert [step_of(ms) for ms in (0, 119_000, 121_000, 7_200_000, 29 * 86_400_000)] == [
        1_000,
        1_000,
        5_000,
        300_000,
        6 * 3_600_000,
    ]
    assert step_of(10**15) * 120 > 10**15
    assert ages([5, 999, 1000, 10**9]) == {
        "< 1 s": 2,
        "< 10 s": 1,
        "< 1 min": 0,
        "< 10 min": 0,
        "< 1 h": 0,
        "< 1 d": 0,
        "older": 1,
    }
    assert [charts.short(n) for n in (0, 999, 1234, 1_250_000)] == ["0", "999", "1.2k", "1.2M"]
    assert [charts.span(ms) for ms in (12, 3000, 90_000)] == ["12 ms", "3 s", "1.5 min"]


@pytest.mark.full
def test_the_command_writes_the_file(own: Rig, tmp_path: Path) -> None:
    own.append("orders", range(3))
    command = [sys.executable, "-m", "topics.spark.jobs", "report", "r.html", "--url", own.url, "--seconds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=True)
    assert '"records": 3' in done.stdout and "orders" in (tmp_path / "r.html").read_text()
