"""top, doctor, bench, report and audit."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from topics.client import Client
from topics.settings import Settings
from topics.testing.server import ServerProcess, ServerThread


def test_top_shows_the_server_and_its_topics(shell: Shell, client: Client) -> None:
    client.append("topped", [{"data": 1}])
    out = shell.ok("top", "--once", "--every", "50ms").out
    assert "topped" in out and "ready" in out
    (found,) = shell.ok("top", "--once", "--every", "50ms", "--json", "--sort", "lost").lines
    assert {row["topic"] for row in found["topics"]} >= {"topped"}


def test_top_shows_rates_p99_pressure_lag_and_losses(shell: Shell, client: Client, server: ServerThread) -> None:
    client.put_topic("pressed", cap_records=2)
    client.append("pressed", [{"data": n} for n in range(5)])
    client.put_cursor("pressed", "reader", 1)
    server.advance(2_000)
    (found,) = shell.ok("top", "--once", "--every", "50ms", "--json", "--sort", "lost").lines
    (row,) = (row for row in found["topics"] if row["topic"] == "pressed")
    assert (row["lag"], row["lost"], row["records"]) == (4, 3, 2)
    assert found["write_rate"] > 0 and found["p99_ms"] is not None and found["pressure"] is not None
    out = shell.ok("top", "--once", "--every", "50ms").out
    assert "written/s" in out and "p99 " in out and "pressure " in out
    with ServerThread(Settings(api_keys="k:read:x.")) as other:
        answer = shell.run(
            "top", "--once", "--every", "50ms", "--json", "--url", "http://{}:{}".format(*other.address), "--key", "k"
        )
        assert answer.code == 0, "a key that may see little sees that"


def test_doctor_compares_the_clocks(shell: Shell, client: Client, server: ServerThread) -> None:
    server.advance(10_000)
    said = [one["said"] for one in shell.run("doctor", "--json").lines if "clock" in one["said"]]
    assert any("that of this machine" in text for text in said), "the clock of this server stands still"


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


# --- report and audit, without Spark


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)


@pytest.mark.usefixtures("no_spark")
def test_a_report_is_made_without_spark(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.put_topic("report.capped", cap_records=2)
    client.append("report.capped", [{"data": n} for n in range(5)])
    client.put_topic("report.jobs", type="queue", max_deliveries=1, dead_letter="report.dead")
    client.append("report.jobs", [{"data": n, "meta": {"reason": "bad"}} for n in range(3)])
    claimed = client.claim("report.jobs", "w").claimed
    client.nack("report.jobs", "w", claimed[:2])
    client.claim("report.jobs", "w")
    arguments = ("report", "r.html", "--topics", "report[.].*", "--seconds", "0", "--json")
    (line,) = shell.ok(*arguments).lines
    assert (line["topics"], line["records"]) == (3, 5)
    text = (tmp_path / "r.html").read_text()
    assert text.endswith("</html>\n") and "report.capped" in text and "bad" in text
    answer = shell.run("report", "no/such/r.html", "--seconds", "0")
    assert answer.code == 1 and "cannot be written" in answer.err
    answer = shell.run("report", "r.html", "--spark")
    assert answer.code == 2 and "without --spark" in answer.err
    assert shell.run("report", "--url", "http://127.0.0.1:1", "--seconds", "0").code == 3


@pytest.mark.usefixtures("no_spark")
def test_an_audit_of_a_server_or_a_directory_needs_no_spark(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.append("audited", [{"data": 1}])
    (found,) = [json.loads(shell.ok("audit", "--url", shell.url, "--topics", "audited", "--json").out)]
    assert found["is_sound"] and found["tallies"][0]["head"] == 1
    with ServerProcess(tmp_path / "other") as other, Client(other.url) as beside:
        beside.append("orders", [{"data": 1}])
    assert "Sound" in shell.ok("audit", "--path", str(tmp_path / "other" / "data")).out
    assert shell.run("audit", "--path", str(tmp_path / "absent")).code == 2
