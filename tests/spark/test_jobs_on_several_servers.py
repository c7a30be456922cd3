"""Archive, audit and report over three servers: every topic where it lives, one verdict, one page."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import topics.spark
from tests.spark.trio import Trio
from topics.cli import app
from topics.client import Client, ClientError, TopicOnSeveralServers
from topics.errors import InvalidRequest
from topics.reader import Lost
from topics.spark.jobs.archiving import Archived, Plan, archive
from topics.spark.jobs.auditing import audit
from topics.spark.jobs.reporting import report
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake
from topics.testing.patience import PATIENCE_MS, PATIENCE_S, wait_until

NAMES = ("t.a", "t.b", "t.c")


def connection(trio: Trio, *places: int) -> Connection:
    """All servers, or some of them."""
    urls = [trio.urls[n] for n in places or (0, 1, 2)]
    return Connection(url=",".join(urls), retries=0, timeout_ms=PATIENCE_MS)


def fill(trio: Trio) -> None:
    for n, topic in enumerate(NAMES):
        trio.put(n, topic, 10 * (n + 1))


def archived(spark: SparkSession, trio: Trio, lake: Path, selection: str = r"t\..", **plan: Any) -> Archived:
    chosen = Plan(selection=selection, server=connection(trio), is_once=True, **plan)
    return archive(spark, chosen, str(lake))


def rows(spark: SparkSession, trio: Trio, lake: Path, topic: str) -> list[tuple[int, str]]:
    """What `table` has of a topic, over all servers and the lake."""
    found = topics.spark.table(spark, topic, lake=str(lake), url=",".join(trio.urls)).collect()
    return sorted((row.seq, json.loads(row.data)) for row in found)


def all_of(topic: str, last: int) -> list[tuple[int, str]]:
    return [(seq, f"{topic}-{seq}") for seq in range(1, last + 1)]


def cli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


# --- archive


def test_archive_takes_every_topic_from_the_server_where_it_lives(
    spark: SparkSession, trio: Trio, tmp_path: Path
) -> None:
    fill(trio)
    lake = tmp_path / "lake"
    assert archived(spark, trio, lake).rows == 60
    for n, topic in enumerate(NAMES):
        trio.put(n, topic, 5)
        assert rows(spark, trio, lake, topic) == all_of(topic, 10 * (n + 1) + 5)
    assert archived(spark, trio, lake).rows == 15
    assert {topic: Lake.load(str(lake)).server(topic, 1) for topic in NAMES} == dict(zip(NAMES, trio.urls, strict=True))
    found = audit(str(lake), url=",".join(trio.urls), spark=spark)
    assert found.is_sound and {one.topic: one.equal for one in found.compared} == {"t.a": 15, "t.b": 25, "t.c": 35}


def test_trimming_deletes_on_the_server_of_the_topic(spark: SparkSession, trio: Trio, tmp_path: Path) -> None:
    fill(trio)
    assert archived(spark, trio, tmp_path / "lake", trims=True, keep_records=4).trimmed == 60 - 12
    for n, topic in enumerate(NAMES):
        with Client(trio.urls[n], "") as client:
            assert client.state(topic).count == 4
        assert rows(spark, trio, tmp_path / "lake", topic) == all_of(topic, 10 * (n + 1))


def test_archive_goes_on_with_the_others_while_a_server_is_down(
    spark: SparkSession, trio: Trio, tmp_path: Path
) -> None:
    fill(trio)
    lake, health, is_over = tmp_path / "lake", tmp_path / "health.json", threading.Event()
    trio.kill(1)
    plan = Plan(selection=r"t\..", server=connection(trio), every_ms=10, health=str(health))
    thread = threading.Thread(target=lambda: archive(spark, plan, str(lake), is_over=is_over))
    thread.start()

    def said() -> dict[str, Any]:
        return json.loads(health.read_bytes()) if health.exists() else {}

    try:
        wait_until("the others are archived", lambda: (said().get("rows"), said().get("lag")) == (40, 0))
        assert not said()["ok"] and f"{trio.urls[1]} cannot be reached" in said()["error"]
        trio.servers[1].start()
        wait_until("the third is, too", lambda: (said().get("rows"), said().get("ok")) == (60, True))
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert rows(spark, trio, lake, "t.b") == all_of("t.b", 20)


def test_once_all_servers_have_to_answer(spark: SparkSession, trio: Trio, tmp_path: Path) -> None:
    fill(trio)
    trio.kill(2)
    with pytest.raises(ClientError) as caught:
        archived(spark, trio, tmp_path / "lake")
    assert trio.urls[2] in str(caught.value)


def test_a_topic_that_moved_with_its_epoch_is_told_and_not_mixed_up(
    spark: SparkSession, trio: Trio, tmp_path: Path
) -> None:
    fill(trio)
    trio.put(0, "t.m", 10)
    lake = tmp_path / "lake"
    archived(spark, trio, lake)
    with Client(trio.urls[0], "") as client:
        client.delete_topic("t.m")
    trio.put(1, "t.m", 30)
    with pytest.raises(InvalidRequest, match=f"has its epoch 2 from {trio.urls[0]}, and the one on {trio.urls[1]}"):
        archived(spark, trio, lake)
    found = audit(str(lake), url=",".join(trio.urls), spark=spark)
    assert found.is_sound and [finding.is_certain for finding in found.findings] == [False]
    assert "they were not compared" in str(found.findings[0])

    health, is_over = tmp_path / "health.json", threading.Event()
    plan = Plan(selection=r"t\..", server=connection(trio), every_ms=10, health=str(health))
    trio.put(2, "t.c", 7)
    thread = threading.Thread(target=lambda: archive(spark, plan, str(lake), is_over=is_over))
    thread.start()
    try:
        wait_until("the others go on", lambda: health.exists() and json.loads(health.read_bytes())["rows"] == 7)
        assert "topic t.m is not archived" in json.loads(health.read_bytes())["error"]
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert len(Lake.load(str(lake)).entries["t.m", 2]) == 1, "nothing of the other log"


# --- audit


def test_an_audit_has_one_verdict_over_all_servers(trio: Trio) -> None:
    fill(trio)
    found = audit(url=",".join(trio.urls))
    assert found.is_sound
    assert [(one.topic, one.server, one.live) for one in found.tallies] == [
        ("t.a", trio.urls[0], 10),
        ("t.b", trio.urls[1], 20),
        ("t.c", trio.urls[2], 30),
    ]
    code, text = cli("audit", "--url", ",".join(trio.urls), "--json")
    assert code == 0 and json.loads(text)["is_sound"]
    trio.put(2, "t.a", 1)
    code, text = cli("audit", "--url", ",".join(trio.urls), "--json")
    assert code == 1 and f"it is on {trio.urls[0]} and on {trio.urls[2]}" in text


def test_an_audit_names_the_server_that_does_not_answer(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(trio)
    trio.kill(1)
    monkeypatch.setattr("topics.spark.jobs.auditing.RETRIES", 0)
    with pytest.raises(ClientError) as caught:
        audit(url=",".join(trio.urls))
    assert trio.urls[1] in str(caught.value) and trio.urls[0] not in str(caught.value)


# --- report


@pytest.mark.parametrize("is_on_spark", [False, True])
def test_a_report_has_the_topics_of_all_servers(
    spark: SparkSession, trio: Trio, tmp_path: Path, is_on_spark: bool
) -> None:
    fill(trio)
    with Client(trio.urls[1], "") as client:
        client.put_topic("capped", cap_records=5)
        client.append("capped", [{"data": n} for n in range(8)])
        client.put_topic("jobs", type="queue")
        client.append("jobs", [{"data": 1}])
    file = tmp_path / "report.html"
    made = report(spark if is_on_spark else None, str(file), url=",".join(trio.urls), seconds=0)
    assert {topic: sum(counts) for topic, counts in made.records.items()} == {
        "t.a": 10,
        "t.b": 20,
        "t.c": 30,
        "capped": 5,
        "jobs": 1,
    }
    assert made.gaps == {"capped": [Lost(1, 3, "cap")]} and [queue.ready for queue in made.queues] == [1]
    assert made.homes["capped"] == trio.urls[1] and [server.url for server in made.servers] == trio.urls
    text = file.read_text()
    assert "<h2>Servers</h2>" in text and all(f"<td>{url}</td>" in text for url in trio.urls)


def test_the_command_reports_all_servers_and_names_a_topic_that_is_there_twice(trio: Trio, tmp_path: Path) -> None:
    fill(trio)
    arguments = ("report", str(tmp_path / "r.html"), "--seconds", "0", "--url", ",".join(trio.urls), "--json")
    code, text = cli(*arguments)
    assert code == 0 and json.loads(text.splitlines()[-1])["topics"] == 3, text
    trio.put(0, "t.c", 1)
    with pytest.raises(TopicOnSeveralServers, match=r"t\.c"):
        report(None, str(tmp_path / "r.html"), url=",".join(trio.urls), seconds=0)
    assert cli(*arguments)[0] != 0
