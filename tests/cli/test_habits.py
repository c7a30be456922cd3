"""Contexts, exit codes, errors, help, completion and the page."""

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from tests.cli.conftest import Shell
from tests.effort import stride
from topics.cli import app
from topics.cli.shell import exits
from topics.cli.shell.manual import page
from topics.client import Client
from topics.settings import Settings
from topics.testing.server import ServerThread

ROOT = Path(__file__).parent.parent.parent
WITHOUT_JSON = ("serve",)  # its log is JSON where there is no terminal


def commands() -> dict[str, Any]:
    """Every command, by its whole name."""
    found: dict[str, Any] = {}

    def walk(one: Any, name: str) -> None:
        if hasattr(one, "commands"):
            for word, child in one.commands.items():
                walk(child, f"{name} {word}".strip())
        else:
            found[name] = one

    walk(get_command(app), "")
    return found


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_json(name: str) -> None:
    one = COMMANDS[name]
    assert f"  topics {name} " in one.help + " " or f"  topics {name}\n" in one.help + "\n"
    if name not in WITHOUT_JSON:
        assert any("--json" in parameter.opts for parameter in one.params)


@pytest.mark.parametrize("name", list(COMMANDS)[:: min(3, stride())])
def test_help_eats_nothing_and_speaks_of_values_not_of_types(shell: Shell, name: str) -> None:
    answer = shell.run(*name.split(), "--help", COLUMNS="80")
    assert answer.code == 0
    assert re.findall(r"<[a-z][a-z \[\]]*>", answer.out) == [], "words of Python"
    usage = answer.out.partition("\n\n")[0]
    assert "{" not in usage and "..." not in usage
    if name == "archive":
        assert "topics-engine[iceberg]" in "".join(answer.out.split())


def test_the_page_is_what_the_commands_say() -> None:
    """Write it with: python -m tools.cli_page"""
    assert (ROOT / "docs" / "cli.md").read_text() == page(get_command(app))


def test_a_context_is_kept_for_its_owner_alone_and_picked_by_name(shell: Shell, client: Client, tmp_path: Path) -> None:
    client.append("contextual", [{"data": 1}])
    (tmp_path / "key").write_text("s3cret\n")
    shell.run("context", "add", "dead", "--url", "http://127.0.0.1:1", "--key-file", "key")
    shell.ok("context", "add", "here", "--url", shell.url)
    (file,) = (tmp_path / ".config" / "topics").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    answer = shell.run("info", "contextual", TOPICS_URL=None)
    assert answer.code == 3 and "http://127.0.0.1:1 (context dead)" in answer.err
    assert shell.run("info", "contextual", "--context", "here", TOPICS_URL=None).code == 0
    assert shell.run("info", "contextual", "--url", shell.url, TOPICS_URL=None).code == 0
    shell.ok("context", "use", "here")
    assert shell.run("info", "contextual", TOPICS_URL=None).code == 0
    shown = shell.ok("context", "ls", "--json")
    assert [(line["name"], line["current"], line["has_key"]) for line in shown.lines] == [
        ("dead", False, True),
        ("here", True, False),
    ]
    assert "s3cret" not in shown.out + shell.ok("context", "ls").out
    answer = shell.run("ls", "--context", "her")
    assert answer.code == 1 and "did you mean here?" in answer.err
    shell.ok("context", "rm", "here")
    assert shell.run("context", "use", "here").code == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts":{"a":1}}', "\ufffe"])
def test_a_broken_file_of_contexts_is_named(shell: Shell, tmp_path: Path, text: str) -> None:
    file = tmp_path / ".config" / "topics" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    answer = shell.run("ls", "--context", "a")
    assert answer.code == 1 and "contexts.json" in answer.err


@pytest.mark.parametrize("url", ["ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(shell: Shell, url: str) -> None:
    assert shell.run("context", "add", "bad", "--url", url).code == 2
    assert shell.run("ls", "--url", url).code != 0


def test_exit_codes_tell_what_happened(shell: Shell, client: Client) -> None:
    client.put_topic("full", cap_records=1, discard="reject")
    assert shell.run("send", "full", "1").code == exits.DONE
    assert shell.run("send", "full", "2").code == exits.LATER
    assert shell.run("info", "absent").code == exits.ABSENT
    assert shell.run("info", "not/a/name").code in (exits.REFUSED, exits.ABSENT)
    assert shell.run("queue", "claim", "full").code == exits.REFUSED
    assert shell.run("ls", "--nonsense").code == exits.USAGE
    assert shell.run("ls", "--url", "http://127.0.0.1:1").code == exits.UNREACHABLE


def test_an_error_is_a_json_line_if_json_is_wanted(shell: Shell) -> None:
    answer = shell.run("info", "absent", "--json")
    assert answer.out == "" and '{"error":{"code":"topic_not_found"' in answer.err


def test_a_key_is_needed_and_taken_from_option_and_variable(tmp_path: Path) -> None:
    with ServerThread(Settings(api_keys="s3cret,dash:read")) as server:
        shell = Shell("http://{}:{}".format(*server.address), tmp_path)
        answer = shell.run("ls")
        assert answer.code == exits.FORBIDDEN and "--key" in answer.err
        assert shell.run("send", "a", "1", "--key", "dash").code == exits.FORBIDDEN
        assert shell.run("send", "a", "1", "--key", "s3cret").code == exits.DONE
        assert shell.run("ls", TOPICS_TOKEN="dash").code == exits.DONE


def test_topic_names_are_completed(shell: Shell, client: Client) -> None:
    client.append("completed.one", [{"data": 1}])
    one = COMMANDS["read"]
    (topic,) = (parameter for parameter in one.params if parameter.name == "topic")
    context = typer.Context(one, info_name="read")
    context.params = {"url": shell.url}
    assert [str(item.value) for item in topic.shell_complete(context, "completed.")] == ["completed.one"]
    context.params = {"url": "http://127.0.0.1:1"}
    assert topic.shell_complete(context, "completed.") == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: Shell, name: str) -> None:
    assert "_TOPICS_COMPLETE" in shell.ok("completion", name).out


def test_help_imports_nothing_heavy() -> None:
    """What costs most of a start: `topics --help` and the declaration of all commands must do without."""
    heavy = (
        "pyarrow",
        "pyspark",
        "topics.server",
        "topics.client",
        "topics.spark.session",
        "uvloop",
        "rich",
        "asyncio",
    )
    code = f"import sys, topics.cli; print([m for m in {heavy!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
