"""The examples in the help of every command, run as they stand against a server; those that need more are parsed."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.live.terminal import Terminal, url_of
from topics.cli import app
from topics.client import Client
from topics.testing.server import ServerProcess

ENDLESS = ("tail -f",)
PARSED = ("archive", "replay", "transform", "audit", "serve")  # they need Spark or a lake, or do not end
OF_OTHERS = ("backup", "restore")  # they have tests of their own
ON_SPARK = ("'orders/*.ndjson'", "'orders|clicks'", "--spark")
# What an example finds, beyond what all find.
BEFORE = {
    "topics rm scratch": "topics send scratch 1",
    "topics cursor get": "topics cursor put orders mailer 1",
    "topics cursor put orders mailer 3": "topics cursor put orders mailer 2",
    "topics router rm": "topics router put 'orders->eu' orders eu",
    "topics queue ack": "topics queue claim jobs -n 1",
    "topics queue nack": "topics queue claim jobs -n 2",
    "topics queue extend": "topics queue claim jobs -n 3",
    "topics import orders.ndjson": "topics export orders orders.ndjson",
    "topics context use": "topics context add prod --url https://topics.example",
    "topics keys ls": "topics keys new dash --scopes read --key-file keys",
    "topics keys rm": "topics keys new dash --scopes read --key-file keys",
    "topics context rm": "topics context add prod --url https://topics.example",
}


def prepare(client: Client) -> None:
    """What the examples find: topics under the names that they use, as if nothing had been done before."""
    for one in list(client.topics()):
        client.delete_topic(one.topic)
    client.append("orders", [{"data": {"sku": sku}, "tag": "eu.1"} for sku in "ABCD"])
    client.put_topic("jobs", type="queue", max_deliveries=3, dead_letter="jobs.dead")
    client.append("jobs", [{"data": n} for n in range(3)])
    client.put_topic("prices", cap_records=10)


def examples(one: Any) -> Iterator[tuple[str, str]]:
    """The first word of each command, and its examples."""
    for word, child in one.commands.items():
        if word in OF_OTHERS:
            continue
        leaves = child.commands.values() if hasattr(child, "commands") else [child]
        for leaf in leaves:
            _, _, lines = leaf.help.partition("\b\nExamples:\n")
            for line in lines.splitlines():
                yield word, line.strip()


EXAMPLES = list(examples(get_command(app)))
RUN = [
    line for word, line in EXAMPLES if word not in PARSED and not any(text in line for text in (*ENDLESS, *ON_SPARK))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.mark.parametrize("line", RUN)
def test_an_example_does_what_it_says(server: ServerProcess, tmp_path: Path, line: str) -> None:
    """Each has a fresh set of topics, under the names that the examples use."""
    terminal = Terminal(tmp_path, url_of(server))
    with Client(url_of(server)) as client:
        prepare(client)
    for start, text in BEFORE.items():
        if line.startswith(start):
            before = terminal.shell(text)
            assert before.returncode == 0, before
    done = terminal.shell(line)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr


def test_tail_f_follows_until_it_is_interrupted_and_ends_quietly(server: ServerProcess, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, url_of(server))
    (line,) = (line for _, line in EXAMPLES if "tail -f" in line)
    assert terminal.shell("topics send orders '\"first\"'; topics send jobs.x 1").returncode == 0
    running = terminal.start(*shlex.split(line)[1:])
    try:
        running.until("the end of the topic", '"first"')
        assert terminal.shell("topics send orders '\"second\"'; topics send jobs.new '\"third\"'").returncode == 0
        running.until("what comes", '"second"')
        running.until("a topic that is new", '"third"')
        assert running.end() == 130
        assert running.err == ""
    finally:
        running.kill()


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES if line not in RUN])
def test_an_example_that_is_not_run_is_parsed(line: str) -> None:
    word, *arguments = shlex.split(line)[1:]
    one = get_command(app).commands[word]
    one.make_context(word, arguments)
