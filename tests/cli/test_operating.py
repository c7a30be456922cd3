"""top, doctor and bench."""

from pathlib import Path

from tests.cli.conftest import Shell
from topics.client import Client


def test_top_shows_the_server_and_its_topics(shell: Shell, client: Client) -> None:
    client.append("topped", [{"data": 1}])
    out = shell.ok("top", "--once", "--every", "50ms").out
    assert "topped" in out and "ready" in out
    (found,) = shell.ok("top", "--once", "--every", "50ms", "--json", "--sort", "lost").lines
    assert {row["topic"] for row in found["topics"]} >= {"topped"}


def test_doctor_explains_findings_with_remedies(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.put_topic("ill", type="queue", cap_records=1, max_deliveries=3)
    client.append("ill", [{"data": n} for n in range(5)])
    client.pause("ill")
    found = shell.run("doctor", "--data-dir", str(tmp_path), "--json").lines
    said = [(one["level"], one["said"]) for one in found if one["subject"] == "topic ill"]
    assert ("note", "4 of 5 records were lost to caps or crashes") in said
    assert ("note", "this queue is paused") in said
    assert all(one["remedy"] for one in found if one["level"] != "ok")
    client.resume("ill")


def test_doctor_fails_where_something_is_wrong(shell: Shell) -> None:
    answer = shell.run("doctor", "--url", "http://127.0.0.1:1", "--quiet")
    assert answer.code == 1 and "fault" in answer.out and "→" in answer.out
    assert shell.run("doctor", "--no-server", "--data-dir", "/nowhere").code == 1


def test_bench_measures_and_leaves_nothing_behind(shell: Shell, client: Client) -> None:
    (found,) = shell.ok("bench", "-n", "20", "--batch", "5", "--clients", "2", "--json").lines
    assert found["writes"] == 20 and found["read_records"] == 100
    assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert [one.topic for one in client.topics("topics-bench")] == []
    assert "█" in shell.ok("bench", "-n", "5").out
