"""What all jobs have in common: progress, failures in one sentence, the ledger's file, the command line."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from topics.errors import InvalidRequest
from topics.spark.runs.failures import failure_of, shortened
from topics.spark.runs.progress import Progress, lag_of
from topics.spark.runs.running import settings_of
from topics.spark.tables.outputs import Place
from topics.testing.clock import ManualClock

PLANNED = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate read partitions: Traceback (most recent call last):
  File "source.py", line 89, in partitions
    for look in origins.all_looks().values():
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "origins.py", line 76, in all_looks
topics.errors.InvalidRequest: there is no topic 'absent' in http://h:1
 SQLSTATE: 38000"""
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "job.py", line 19, in bad
ValueError: bad thing"""
TASK = """Job aborted: Task 0 failed 4 times: org.apache.spark.PythonException: Traceback (most recent call last):
topics.spark.rows.BadRow: row 2 of the partition is not a record: data is 'x'; nothing of this partition was written

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
Caused by: org.apache.spark.SparkException: more"""
COLUMN = """[UNRESOLVED_COLUMN] A column with name `foo` cannot be resolved. Did you mean `id`? SQLSTATE: 42703; line 1;
'Project ['foo]
+- Range (0, 3, step=1)"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLANNED, "there is no topic 'absent' in http://h:1"),
        (WORKER, "ValueError: bad thing"),
        (TASK, "row 2 of the partition is not a record: data is 'x'; nothing of this partition was written"),
        (COLUMN, "A column with name `foo` cannot be resolved. Did you mean `id`?"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/tmp/x. SQLSTATE: 42K03",
            "Path does not exist: file:/tmp/x.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_shortened_to_what_was_wrong(text: str, said: str) -> None:
    assert shortened(RuntimeError(text)) == said


def test_the_whole_trace_is_in_a_file_without_the_token(tmp_path: Path) -> None:
    failure = failure_of(RuntimeError(f"{WORKER} s3cret"), token="s3cret", directory=str(tmp_path))
    trace = Path(failure.trace_path).read_text()
    assert trace.endswith("ValueError: bad thing (hidden)\n") and "s3cret" not in str(failure)
    assert str(failure).splitlines()[1] == f"The full trace is in {failure.trace_path}"
    assert failure_of(InvalidRequest("option x is 'y'")).trace_path == "", "nothing to look up in a trace"


def test_progress_tells_rate_and_time_left_in_json_lines() -> None:
    clock, lines, out = ManualClock(), io.StringIO(), io.StringIO()
    with Progress("import", stream=lines, out=out, clock=clock, line_every_s=5) as progress:
        for _ in range(4):
            clock.advance(2000)
            progress.update(add=1000, total=10_000, lag=7)
        progress.note("a gap", topic="t")
        progress.finish("4,000 rows", {"rows": 4000})
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert told == [
        {
            "job": "import",
            "event": "progress",
            "rows": 3000,
            "total": 10_000,
            "rows_per_s": 500.0,
            "lag": 7,
            "eta_s": 14.0,
        },
        {"job": "import", "event": "note", "text": "a gap", "topic": "t"},
    ]
    assert json.loads(out.getvalue()) == {"job": "import", "event": "done", "seconds": 8.0, "rows": 4000}


def test_a_job_without_rows_tells_its_steps() -> None:
    clock, lines, shown = ManualClock(), io.StringIO(), io.StringIO()
    with Progress("audit", stream=lines, clock=clock, line_every_s=5) as progress:
        for step in ("checking data", "reading orders", "comparing lake"):
            progress.update(step=step)
            clock.advance(4000)
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == [
        {"job": "audit", "event": "progress", "step": "comparing lake", "seconds": 8.0}
    ]
    with Progress("audit", stream=shown, clock=clock, is_terminal=True) as progress:
        progress.update(step="reading orders")
    assert "{" not in shown.getvalue() and "rows" not in shown.getvalue()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = ManualClock()
    progress = Progress("export", stream=io.StringIO(), clock=clock)
    for rows in [100_000, *[1000] * 12]:
        clock.advance(1000)
        progress.update(add=rows)
    assert progress.rows_per_s == 1000


def test_the_time_left_follows_from_the_share_that_is_done() -> None:
    clock = ManualClock()
    progress = Progress("import", stream=io.StringIO(), clock=clock)
    assert progress.eta_s is None
    clock.advance(30_000)
    progress.update(share=0.25)
    assert progress.eta_s == 90


def test_the_time_before_the_first_share_is_no_work() -> None:
    clock = ManualClock()
    progress = Progress("import", stream=io.StringIO(), clock=clock, is_terminal=False)
    clock.advance(20_000)  # Spark starts
    progress.update(share=0.0)
    clock.advance(10_000)
    progress.update(share=0.5)
    assert progress.eta_s == 10


def test_on_a_terminal_progress_is_a_line_for_people() -> None:
    clock, lines = ManualClock(), io.StringIO()
    with Progress("archive", stream=lines, clock=clock, is_terminal=True) as progress:
        clock.advance(1000)
        progress.update(rows=12_345, lag=6)
        progress.note("lost [something]")
    assert "lost [something]" in lines.getvalue() and "{" not in lines.getvalue()


class Teletype(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_result_is_json_on_a_terminal_if_that_is_wanted() -> None:
    for is_json, shown in ((True, {"job": "export", "event": "done", "seconds": 0.0, "rows": 3}), (False, None)):
        out = Teletype()
        with Progress("export", stream=Teletype(), out=out, clock=ManualClock(), is_json=is_json) as progress:
            progress.finish("3 records", {"rows": 3})
        assert json.loads(out.getvalue()) == shown if shown else out.getvalue() == "3 records\n"


def test_the_lag_of_a_query_is_what_lies_between_its_end_and_the_heads() -> None:
    def offsets(**seqs: int) -> str:
        return json.dumps({topic: {"epoch": 1, "seq": seq} for topic, seq in seqs.items()})

    sources = [
        {"endOffset": offsets(a=5), "latestOffset": offsets(a=9, b=3)},
        {"endOffset": offsets(c=1), "latestOffset": offsets(c=1)},
        {"endOffset": "7", "latestOffset": None},
    ]
    assert lag_of({"sources": sources}) == 7
    assert lag_of({"sources": sources[2:]}) is None


def test_settings_are_pairs() -> None:
    assert settings_of(["a=b=c", " d = "]) == {"a": "b=c", "d": " "}
    with pytest.raises(InvalidRequest, match="--conf is 'x': it must be KEY=VALUE"):
        settings_of(["x"])


def test_a_file_is_put_whole_and_a_place_has_one_writer(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "lake"))
    place.put("a/b.json", b"one")
    place.put("a/b.json", b"two")
    assert place.read("a/b.json") == b"two" and place.read("a/c.json") is None
    assert [path.name for path in (tmp_path / "lake" / "a").iterdir()] == ["b.json"]
    with (
        place.locked(),
        pytest.raises(InvalidRequest, match="another job writes to"),
        Place(str(tmp_path / "lake")).locked(),
    ):
        pass
    with place.locked():
        place.remove("a")
    assert place.names() == ["_writer.lock"]


@pytest.mark.parametrize("job", ["import", "export", "archive", "replay"])
def test_without_spark_help_is_there_and_a_message_says_what_to_install(job: str) -> None:
    """In a process that cannot import pyspark."""
    script = (
        "import sys, importlib.util\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('pyspark', 'pyarrow'):\n"
        "            raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pyspark' else find(name, *rest)\n"
        "from topics.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, job]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "Examples:" in shown and f"    topics {job} " in shown
    asked = ["a*", "b", "--spark"] if job in ("import", "export") else ["a", "b"]
    answer = subprocess.run([*command, *asked], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("topics: this needs Spark: pip install 'topics-engine[spark]'")
