"""`topics work`: a command for each job of a queue.

The job's data is on the command's stdin; what is known of it is in variables. Exit code 0 acks the job, any other gives
it back. While a command runs, its lease is renewed. SIGTERM and Ctrl-C drain: no more jobs are claimed, those that run
are finished and settled. A second signal ends the commands, and their jobs go back to the queue.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.data.queue import described, node_of
from topics.cli.shell import display
from topics.cli.shell.completing import Queue
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import duration_ms

if TYPE_CHECKING:
    from topics.client import Job, Worker

POLL_MS: Final = 1_000
EMPTY_POLL_S: Final = 0.2


def work(
    call: Call,
    topic: Queue,
    exec: Annotated[str, typer.Option("--exec", "-e", metavar="CMD", help="Run by sh for each job.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=1000, help="Jobs at a time.")] = 1,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many jobs.")] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when no job is ready or held.")] = False,
    node: Annotated[str | None, typer.Option(help="Who holds the jobs; cli@HOST:PID by default.")] = None,
    lease: Annotated[
        int, typer.Option(parser=duration_ms, metavar="TIME", help="How long a job is held; renewed while it runs.")
    ] = 30_000,
    delay: Annotated[
        int, typer.Option(parser=duration_ms, metavar="TIME", help="A failed job comes again after this; doubles.")
    ] = 1_000,
) -> None:
    """Run a command for each job of a queue, its data on stdin as JSON.

    Exit code 0 completes the job, any other gives it back. TOPICS_JOB_TOPIC, TOPICS_JOB_SEQ, TOPICS_JOB_TAG,
    TOPICS_JOB_DELIVERIES and TOPICS_JOB_META say what is known of it. On SIGTERM or Ctrl-C it claims no more, lets
    what runs finish, and ends; a second signal ends the commands, too. Delivery is at least once.

    Example: topics work jobs --exec 'cat >> done.ndjson' --until-empty
    """
    crew = _Crew(call, topic, exec, count)
    logger = logging.getLogger("topics.client")
    handler = _Quiet(call.name)
    logger.addHandler(handler)
    logger.propagate = False
    node = node or f"{node_of(None)}:{os.getpid()}"[:128]
    crew.worker = call.new_client().worker(
        topic,
        node,
        crew.run,
        slots=min(concurrency, count or concurrency),
        lease_ms=lease,
        delay_ms=delay,
        poll_ms=POLL_MS,
    )
    before = {number: signal.signal(number, crew.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    if until_empty:
        threading.Thread(target=crew.stop_when_empty, daemon=True).start()
    try:
        crew.worker.run()
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        logger.removeHandler(handler)
        logger.propagate = True
        crew.is_over.set()
    found = {"topic": topic, "done": crew.done, "failed": crew.failed}
    call.show(found, f"{crew.done:,} jobs done, {crew.failed:,} failures")
    if crew.failure is not None:
        raise crew.failure


class _Failed(Exception):
    """A command did not end with 0."""


class _Quiet(logging.Handler):
    """What a worker logs, without traces."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None:  # of a job that failed, its command has been named already
            display.say(f"topics {self._name}: {record.getMessage()}")


class _Crew:
    """The commands that run."""

    worker: "Worker"

    def __init__(self, call: Call, topic: str, command: str, count: int | None) -> None:
        self._call = call
        self._topic = topic
        self._command = command
        self._left = count
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._signals = 0
        self.done = self.failed = 0
        self.failure: BaseException | None = None
        self.is_over = threading.Event()

    def run(self, job: "Job") -> None:
        environ = {
            "TOPICS_JOB_TOPIC": self._topic,
            "TOPICS_JOB_SEQ": str(job.seq),
            "TOPICS_JOB_TAG": job.tag or "",
            "TOPICS_JOB_DELIVERIES": str(job.deliveries),
            "TOPICS_JOB_META": display.text_of(job.meta),
        }
        settings = [f"{name}={value}" for name, value in environ.items()]
        # env(1) adds to the environment, which only the settings read; a session of its own keeps Ctrl-C from it.
        process = subprocess.Popen(
            ["env", *settings, "sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr if self._call.is_json else None,
            start_new_session=True,
        )
        with self._lock:
            self._running.add(process)
            if self._signals > 1:
                _end(process)
        try:
            process.communicate(bytes(job.data) + b"\n")
        finally:
            with self._lock:
                self._running.discard(process)
        self._settle(job, process.returncode)

    def _settle(self, job: "Job", code: int) -> None:
        with self._lock:
            self.done += code == 0
            self.failed += code != 0
            if self._left is not None and (code == 0) and (self.done >= self._left):
                self.worker.stop()
        if self._call.is_json:
            self._call.emit({"topic": self._topic, "$seq": job.seq, "deliveries": job.deliveries, "exit_code": code})
        if code != 0:
            how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            display.say(f"topics work: {described(job)}: the command {how}; the job goes back to {self._topic}")
            raise _Failed

    def on_signal(self, number: int, frame: Any) -> None:
        self._signals += 1
        self.worker.stop()
        if self._signals == 1:
            # Not by print: the signal may have come within one.
            os.write(2, f"topics work: draining, {len(self._running)} jobs run; again to end them\n".encode())
            return
        for process in list(self._running):
            _end(process)

    def stop_when_empty(self) -> None:
        """Stop the worker when there is nothing to do, or when that cannot be known."""
        client = self._call.new_client()
        while not self.is_over.wait(EMPTY_POLL_S):
            try:
                queue = client.state(self._topic, touch=False).queue
            except Exception as error:
                self.failure = error
                self.worker.stop()
                return
            if queue is None or queue.ready + queue.in_flight == 0:
                self.worker.stop()
                return


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
