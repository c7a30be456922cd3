"""Commands as processes: a tail over a restart, a worker that drains, a closed pipe, the start-up."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.terminal import Terminal, url_of
from topics.client import Client
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import COMMAND, ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server") as process:
        process.environ["TOPICS_PORT"] = str(process.address[1])  # so that it comes back where it was
        yield process


@pytest.fixture
def terminal(server: ServerProcess, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path / "terminal", url_of(server))


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(url_of(server)) as one:
        yield one


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_tail_goes_on_after_a_restart_and_shows_what_was_lost(
    server: ServerProcess, terminal: Terminal, client: Client, how: str
) -> None:
    client.put_topic("orders", cap_records=3)
    client.append("orders", [{"data": "before"}])
    running = terminal.start("tail", "-f", "orders", "--json")
    try:
        running.until("the end of the topic", '"before"')
        getattr(server, how)()
        running.until("the notice", "waiting for")
        server.start()
        client.append("orders", [{"data": n} for n in range(10)])
        running.until("what came since", '"data":9')
        lines = [json.loads(line) for line in running.out.splitlines()]
        seqs = [line["$seq"] for line in lines if "$seq" in line]
        lost = [line["tombstone"] for line in lines if "tombstone" in line]
        missed = {seq for gap in lost for seq in range(gap["gap_from"], gap["gap_to"] + 1)}
        assert sorted({*seqs, *missed}) == list(range(1, 12)) and len(seqs) == len(set(seqs))
        if lost:
            assert "!!! orders:" in running.err
        assert running.end() == 130
    finally:
        running.kill()


def test_a_tail_by_time_announces_what_was_lost_before_it(terminal: Terminal, client: Client) -> None:
    client.put_topic("prices", cap_records=2)
    client.append("prices", [{"data": n} for n in range(1, 6)])
    running = terminal.start("tail", "-f", "prices", "--since", "1970-01-02")
    try:
        running.until("the records", "5")
        running.until("the gap", "!!! prices: 3 lost, seqs 1 to 3:")
    finally:
        running.kill()


def test_a_worker_runs_a_command_per_job_and_gives_back_what_fails(terminal: Terminal, client: Client) -> None:
    client.put_topic("jobs", type="queue", max_deliveries=2, dead_letter="jobs.dead")
    client.append("jobs", [{"data": {"n": n}, "tag": f"t{n}", "meta": {"m": n}} for n in range(5)])
    (terminal.directory / "job.sh").write_text(
        'read line; echo "$line $TOPICS_JOB_SEQ $TOPICS_JOB_TAG $TOPICS_JOB_META" >> done\n'
        'test "$TOPICS_JOB_SEQ" != 3\n'
    )
    answer = terminal.shell("topics work jobs --exec 'sh job.sh' -c 3 --delay 10ms --until-empty --json")
    assert answer.returncode == 0, answer
    done = (terminal.directory / "done").read_text().splitlines()
    assert sorted(set(done)) == [f'{{"n":{n}}} {n + 1} t{n} {{"m":{n}}}' for n in range(5)]
    assert "job 3, delivery 1: the command exited with 1" in answer.stderr and "Traceback" not in answer.stderr
    assert client.state("jobs").count == 0 and client.state("jobs.dead").count == 1
    assert json.loads(answer.stdout.splitlines()[-1])["done"] == 4


def test_a_worker_drains_on_sigterm(terminal: Terminal, client: Client) -> None:
    client.put_topic("jobs", type="queue")
    client.append("jobs", [{"data": 1}, {"data": 2}])
    running = terminal.start(
        "work", "jobs", "--exec", "echo begun; while ! test -e go; do sleep 0.02; done", "--lease", "2s"
    )
    try:
        running.until("the first job", "begun")
        running.process.send_signal(signal.SIGTERM)
        running.until("the notice", "draining, ")
        assert client.state("jobs").queue is not None
        (terminal.directory / "go").touch()
        assert running.process.wait(PATIENCE_S) == 0
        assert "1 jobs done, 0 failures" in running.out
        queue = client.state("jobs").queue
        assert queue is not None and (queue.ready, queue.in_flight) == (1, 0)
    finally:
        running.kill()


def test_a_lease_is_renewed_while_the_command_runs(terminal: Terminal, client: Client) -> None:
    client.put_topic("jobs", type="queue")
    client.append("jobs", [{"data": 1}])
    running = terminal.start(
        "work", "jobs", "--exec", "while ! test -e go; do sleep 0.02; done", "--lease", "1s", "-n", "1"
    )
    try:
        wait_until("it is claimed", lambda: list(client.leases("jobs")))
        first = next(client.leases("jobs")).deadline
        wait_until("it is renewed", lambda: any(lease.deadline > first for lease in client.leases("jobs")))
        (terminal.directory / "go").touch()
        assert running.process.wait(PATIENCE_S) == 0
        assert client.state("jobs").count == 0
    finally:
        running.kill()


def test_a_second_signal_ends_the_commands_and_gives_their_jobs_back(terminal: Terminal, client: Client) -> None:
    client.put_topic("jobs", type="queue")
    client.append("jobs", [{"data": 1}])
    running = terminal.start("work", "jobs", "--exec", "echo begun; exec sleep 100000")
    try:
        running.until("the job", "begun")
        running.process.send_signal(signal.SIGINT)
        running.until("the notice", "draining")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == 0
        assert "ended by signal 15" in running.err
        assert client.state("jobs").count == 1 and list(client.leases("jobs")) == []
    finally:
        running.kill()


def test_a_closed_pipe_ends_a_command_quietly(terminal: Terminal, client: Client) -> None:
    client.append("long", [{"data": "x" * 1000}] * 5000)
    process = subprocess.Popen(
        [*COMMAND, "read", "long"], env=terminal.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 100)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_lines_of_a_pipe_are_sent_as_they_come(terminal: Terminal, client: Client) -> None:
    process = subprocess.Popen([*COMMAND, "send", "live"], env=terminal.environ, stdin=subprocess.PIPE)
    assert process.stdin is not None
    client.put_topic("live")
    for n in range(3):
        process.stdin.write(f"{n}\n".encode())
        process.stdin.flush()
        wait_until("the line is sent", lambda n=n: client.state("live").head_seq == n + 1)
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0


def test_a_start_costs_little() -> None:
    """Of CPU time, best of three; the promise is 0.3 s on a quiet machine, the bound is generous."""
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([*COMMAND, "--version"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(times) < 1.0
