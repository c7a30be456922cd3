"""Commands with several servers behind --url."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from topics import placement
from topics.cli.shell import exits
from topics.client import Client
from topics.settings import Settings
from topics.testing.server import ServerThread


@pytest.fixture
def servers() -> Iterator[list[ServerThread]]:
    with ServerThread() as one, ServerThread() as two, ServerThread() as three:
        yield [one, two, three]


@pytest.fixture
def shell(servers: list[ServerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(",".join(map(url_of, servers)), tmp_path)


def url_of(server: ServerThread) -> str:
    return "http://{}:{}".format(*server.address)


def test_a_new_topic_goes_to_its_home_and_is_read_from_there(shell: Shell, servers: list[ServerThread]) -> None:
    urls = [url_of(server) for server in servers]
    for n in range(6):
        shell.ok("send", f"t{n}", str(n))
        assert [line["data"] for line in shell.ok("read", f"t{n}", "--json").lines] == [n]
    listed = {line["topic"]: line["server"] for line in shell.ok("ls", "--json").lines}
    assert listed == {f"t{n}": placement.home(f"t{n}", urls) for n in range(6)}
    assert "server" in shell.ok("ls").out


def test_import_and_export_of_a_file_go_to_the_server_of_the_topic(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "in.ndjson").write_text('{"n":1}\n{"n":2}\n')
    shell.ok("import", "in.ndjson", "imported")
    assert '{"n":2}' in shell.ok("export", "imported", "-").out


def test_a_topic_that_lives_elsewhere_is_used_there_and_one_on_two_servers_is_refused(
    shell: Shell, servers: list[ServerThread]
) -> None:
    urls = [url_of(server) for server in servers]
    away = next(url for url in urls if url != placement.home("moved", urls))
    with Client(away, "") as client:
        client.put_topic("moved")
    shell.ok("send", "moved", "1")
    assert shell.run("info", "moved", "--url", away).code == exits.DONE
    with Client(placement.home("moved", urls), "") as client:
        client.put_topic("moved")
    answer = shell.run("send", "moved", "2")
    assert answer.code != exits.DONE and away in answer.err and placement.home("moved", urls) in answer.err


def test_a_command_without_one_topic_asks_for_one_server(shell: Shell) -> None:
    for command in (["top", "-n", "1"], ["router", "ls"], ["tail", "a", "b"]):
        answer = shell.run(*command)
        assert answer.code != exits.DONE and "--url" in answer.err, command
        assert answer.err.count("topics ") == 1, command


def test_keys_come_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    with ServerThread(Settings(api_keys="first")) as one, ServerThread(Settings(api_keys="second")) as other:
        shell = Shell(f"{url_of(one)},{url_of(other)}", tmp_path)
        keys = tmp_path / "keys"
        keys.write_text(f"{url_of(one)} first\n{url_of(other)} second\n")
        answer = shell.run("send", "a", "1", TOPICS_TOKEN_FILE=str(keys))
        assert answer.code != exits.DONE and "chmod 600" in answer.err
        keys.chmod(0o600)
        for topic in ("a", "b", "c", "d"):
            assert shell.run("send", topic, "1", TOPICS_TOKEN_FILE=str(keys)).code == exits.DONE
        assert shell.run("ls", "--url", url_of(other), TOPICS_TOKEN_FILE=str(keys)).code == exits.DONE
        assert shell.run("send", "a", "1").code == exits.FORBIDDEN


def test_a_context_may_have_several_servers(shell: Shell) -> None:
    shell.ok("context", "add", "all", "--url", shell.url)
    assert shell.run("send", "t", "1", "--context", "all", TOPICS_URL=None).code == exits.DONE
    assert shell.run("context", "add", "bad", "--url", "http://a:1,,http://b:1").code == exits.USAGE
