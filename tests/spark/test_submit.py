"""The jobs under the spark-submit of the PySpark package, and as `python -m topics.spark.jobs`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.commands import SPARK, environ_of_spark
from tests.spark.rig import Rig
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake
from topics.testing.patience import PATIENCE_S

MODULE = (sys.executable, "-m", "topics.spark.jobs")


def where() -> str:
    """The file that spark-submit is given, as the guide says."""
    return subprocess.run([*MODULE, "--where"], capture_output=True, text=True, check=True).stdout.strip()


class Submitted:
    """`spark-submit FILE NAME …`, run to its end on one core, with a log of its events."""

    def __init__(self, rig: Rig, directory: Path, *arguments: str) -> None:
        self._events = directory / "events" / arguments[0]
        self._events.mkdir(parents=True)
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.local.dir": str(directory),
            "spark.sql.shuffle.partitions": "1",
        }
        given = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
        done = subprocess.run(
            [str(SPARK / "bin" / "spark-submit"), "--master", "local[1,3]", *given, where(), *arguments],
            env=environ_of_spark(directory, TOPICS_URL=rig.url),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr

    @property
    def summary(self) -> dict[str, Any]:
        """The last line of the output."""
        assert self.code == 0, self.output + self.errors
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        assert found["event"] == "done"
        return found

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the session, as its events tell."""
        (log,) = (path for path in self._events.iterdir() if not path.name.startswith("."))
        events = map(json.loads, log.read_text().splitlines())
        found = next(event for event in events if event["Event"] == "SparkListenerEnvironmentUpdate")
        settings: dict[str, str] = found["Spark Properties"]
        return settings


def test_files_are_imported_under_spark_submit(rig: Rig, tmp_path: Path) -> None:
    """ID1"""
    topic = f"{rig.prefix}.orders"
    (tmp_path / "orders.ndjson").write_text("".join(f'{{"n":{n}}}\n' for n in range(1, 21)))
    imported = Submitted(rig, tmp_path, "import", "orders.ndjson", topic)
    assert imported.summary["rows"] == 20
    assert [value["n"] for value in rig.values(topic)] == list(range(1, 21))
    settings = imported.settings
    assert (settings["spark.master"], settings["spark.app.name"]) == ("local[1,3]", "topics import")
    assert settings["spark.sql.shuffle.partitions"] == "1"
    assert settings["spark.sql.session.timeZone"] == "UTC"


PIPELINE = """
checkpoint = "state"
[sources.numbers]
topic = "{topic}"
schema = "INT"
[[steps]]
name = "doubled"
sql = "SELECT data * 2 AS n FROM numbers"
[sinks.out]
from = "doubled"
topic = "{out}"
"""


@pytest.mark.full
@pytest.mark.parametrize("job", ["archive", "export", "replay", "transform", "report"])
def test_the_other_jobs_run_under_spark_submit_as_well(rig: Rig, tmp_path: Path, job: str) -> None:
    topic, out = rig.topic("numbers", 3), f"{rig.prefix}.out"
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(topic=topic, out=out))
    lake = str(tmp_path / "lake")
    if job == "replay":
        archive(rig.spark, Plan(selection=topic, server=Connection(url=rig.url), is_once=True), lake)
    arguments = {
        "archive": (topic, lake, "--once"),
        "export": (topic, "out", "--format", "ndjson", "--single"),
        "replay": (lake, out, "--from", topic),
        "transform": ("pipeline.toml", "--once"),
        "report": ("report.html", "--topics", topic, "--seconds", "0"),
    }[job]
    done = Submitted(rig, tmp_path, job, *arguments)
    assert done.summary["records" if job == "report" else "rows"] == 3
    assert done.settings["spark.app.name"] == f"topics {job}"
    if job == "archive":
        assert Lake.load(lake).covered(topic, rig.client.state(topic).epoch) == [(1, 3)]
    elif job == "export":
        (file,) = (tmp_path / "out").glob("part-*.ndjson")
        assert [json.loads(line)["data"] for line in file.read_text().splitlines()] == [1, 2, 3]
    elif job == "report":
        assert topic in (tmp_path / "report.html").read_text()
    else:
        assert rig.values(out) == ([1, 2, 3] if job == "replay" else [{"n": n} for n in (2, 4, 6)])


@pytest.mark.full
def test_an_audit_runs_under_spark_submit_as_well(rig: Rig, tmp_path: Path) -> None:
    topic, lake = rig.topic("numbers", 20), str(tmp_path / "lake")
    archive(rig.spark, Plan(selection=topic, server=Connection(url=rig.url), is_once=True), lake)
    done = Submitted(rig, tmp_path, "audit", lake, "--topics", topic, "--json")
    assert done.code == 0, done.errors
    found = json.loads(done.output[done.output.index("{") :])
    assert found["is_sound"] and found["compared"][0]["equal"] == 20
    assert done.settings["spark.app.name"] == "topics audit"


def test_a_job_that_fails_under_spark_submit_says_why_and_no_trace_is_shown(rig: Rig, tmp_path: Path) -> None:
    done = Submitted(rig, tmp_path, "export", "absent", "out")
    assert done.code == 1
    said, told = done.output.splitlines()[-2:]
    assert said == f"topics export: there is no topic 'absent' in {rig.url}"
    trace = Path(told.removeprefix("The full trace is in "))
    assert "Traceback" in trace.read_text()
    trace.unlink()
    assert "Traceback" not in done.output + done.errors and "\tat " not in done.errors
    assert "absent" in (tmp_path / ".topics" / "export.log").read_text(), "what Spark itself says is in its log"


def test_the_module_runs_the_jobs_and_tells_where_it_is(tmp_path: Path) -> None:
    file = Path(where())
    assert file.is_file() and file.name == "__main__.py"
    shown = subprocess.run([*MODULE, "archive", "--help"], capture_output=True, text=True, check=True).stdout
    assert "Examples:" in shown and "    topics archive " in shown
    refused = subprocess.run(
        [*MODULE, "transform", "absent.toml", "--check"], capture_output=True, text=True, cwd=tmp_path
    )
    assert refused.returncode == 2
    assert refused.stderr == "topics transform: absent.toml cannot be read: No such file or directory\n"


def test_run_as_a_file_it_does_not_hide_modules_behind_its_neighbours() -> None:
    """`progress` and `ledger` are names that others have, too."""
    file = where()
    script = f"import runpy, sys; sys.argv[1:] = ['--where']; runpy.run_path({file!r}, run_name='__main__')"
    script += "; print(any(place.endswith('jobs') for place in sys.path))"
    environ = {**os.environ, "PYTHONPATH": str(Path(file).parent)}
    answer = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [file, "False"]
