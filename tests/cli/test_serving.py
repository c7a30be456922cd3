"""Settings from flags, a file and the environment; keys in a key file."""

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Shell
from topics.cli.serving.flags import FILE_BYTES_MAX
from topics.cli.shell import exits
from topics.server.access.key_file import read_keys
from topics.settings import PUBLIC, flag_of, variable_of
from topics.testing.server import COMMAND


def settings(answer: Answer) -> dict[str, Any]:
    return {line["setting"]: line for line in answer.lines}


# --- settings


def test_every_setting_is_a_flag_with_its_variable_default_and_meaning(shell: Shell) -> None:
    """SC5"""
    shown = " ".join(shell.ok("serve", "--help").out.split())
    for one in PUBLIC:
        assert f"{flag_of(one)} " in shown and variable_of(one) in shown
    assert "TOPICS_TEST_" not in shown and "268435456 (256MiB)" in shown


def test_config_show_says_where_a_value_came_from(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text('cache_bytes = "64MiB"\nmax_claim = 5\nconsole = false\n')
    answer = shell.run(
        *("config", "show", "--max-limit", "7", "--json"), TOPICS_MAX_CLAIM="6", TOPICS_DATA_DIR="there", TOPICS_MX="1"
    )
    found = settings(answer)
    assert len(found) == len(PUBLIC)
    assert (found["max_limit"]["value"], found["max_limit"]["from"]) == (7, "flag")
    assert (found["cache_bytes"]["value"], found["cache_bytes"]["name"]) == (1 << 26, "cache_bytes in topics.toml")
    assert (found["max_claim"]["value"], found["console"]["value"]) == (5, False)
    assert (found["data_dir"]["value"], found["data_dir"]["from"]) == ("there", "environment")
    assert (found["max_topics"]["from"], found["max_topics"]["name"]) == ("default", None)
    assert "TOPICS_MX is set and is no setting" in answer.err
    assert "TOPICS_MAX_CLAIM has no effect: max_claim in topics.toml wins over it" in answer.err
    (tmp_path / "other.toml").write_text("max_claim = 8")
    assert settings(shell.ok("config", "show", "--config", "other.toml", "--json"))["max_claim"]["value"] == 8
    lines = shell.ok("config", "show").out.splitlines()
    assert "67108864 (64MiB)" in "\n".join(lines) and "TOPICS_TEST_" not in "\n".join(lines)


def test_a_setting_of_tests_is_shown_only_if_it_is_set(shell: Shell) -> None:
    assert "TEST" in shell.run("config", "show", TOPICS_TEST_MIN_HEARTBEAT_MS="5").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"port = ", "topics.toml is not TOML: "),
        (b"port = 1\nport = 2", "topics.toml is not TOML: "),
        (b"\xff", "topics.toml is not UTF-8"),
        (b"prot = 1", 'topics.toml: there is no setting "prot"; did you mean port?'),
        (b"[server]\nport = 1", 'there is no setting "server"'),
        (b'port = "http"', 'port in topics.toml is "http"'),
        (b"a=" + b"[" * 100_000, "topics.toml is not TOML: "),
        (b"#" * (FILE_BYTES_MAX + 1), "is larger than"),
    ],
)
@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
def test_a_broken_file_is_refused_by_name(shell: Shell, tmp_path: Path, text: bytes, said: str, command: Any) -> None:
    """SC5"""
    (tmp_path / "topics.toml").write_bytes(text)
    answer = shell.run(*command)
    assert answer.code == 2 and said in answer.err and answer.err.count("\n") == 1


def test_a_file_that_is_named_must_be_there(shell: Shell, tmp_path: Path) -> None:
    answer = shell.run("serve", "--config", "absent.toml")
    assert answer.code == 2 and "the settings file absent.toml does not exist" in answer.err
    assert shell.run("serve", "--config", str(tmp_path)).code == 2
    os.mkfifo(tmp_path / "topics.toml")
    assert shell.ok("config", "show").out, "a pipe that nobody writes to is empty"


def test_keys_in_a_file_that_others_may_read_are_refused(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_text('api_keys = ["s3cret:read", "other"]')
    file.chmod(0o644)
    answer = shell.run("config", "show")
    assert answer.code == 2 and "chmod o= topics.toml" in answer.err and "s3cret" not in answer.err
    file.chmod(0o640)
    answer = shell.ok("config", "show", "--json")
    assert settings(answer)["api_keys"]["value"] == "(set, not shown)" and "s3cret" not in answer.out


def test_an_error_of_config_show_is_json_if_json_is_wanted(shell: Shell) -> None:
    answer = shell.run("config", "show", "--port", "http", "--json")
    assert answer.code == 2 and answer.err.startswith('{"error":') and "--port is" in answer.err


# --- keys


def test_a_key_is_made_listed_and_taken_out(shell: Shell, tmp_path: Path) -> None:
    """AU17"""
    file = tmp_path / "keys"
    made = shell.ok(
        "keys", "new", "dash", "--scopes", "read+w", "--prefix", "a:", "--prefix", "b.", "--key-file", "keys"
    )
    secret = made.out.strip()
    assert made.out.count("\n") == 1 and secret not in made.err and len(secret) > 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and secret not in file.read_text()
    (key,) = read_keys(str(file))
    assert (key.name, key.prefixes, key.digest) == ("dash", ("a:", "b."), sha256(secret.encode()).digest())
    assert key.scopes == {"read", "write"}
    (line,) = shell.ok("keys", "new", "ops", "--scopes", "all", "--key-file", "keys", "--json").lines
    assert line["scopes"] == ["admin", "delete", "read", "write"] and line["secret"] != secret
    assert [one["name"] for one in shell.ok("keys", "ls", "--key-file", "keys", "--json").lines] == ["dash", "ops"]
    shown = shell.run("keys", "ls", TOPICS_KEY_FILE="keys").out
    assert "a:|b." in shown and key.digest.hex() not in shown
    shell.ok("keys", "rm", "dash", "--yes", "--key-file", "keys")
    assert [one.name for one in read_keys(str(file))] == ["ops"]


def test_the_rest_of_a_key_file_stays_as_it_is(shell: Shell, tmp_path: Path) -> None:
    """Comments, order, mode, and that it is a link."""
    real = tmp_path / "elsewhere"
    text = f"# ours\n\nfeed  read  -  sha256:{sha256(b'x').hexdigest()}  # of Ann"
    real.write_text(text)
    real.chmod(0o640)
    (tmp_path / "keys").symlink_to(real)
    shell.ok("keys", "new", "dash", "--scopes", "r", "--key-file", "keys")
    assert real.read_text().startswith(text + "\ndash r - sha256:")
    shell.ok("keys", "rm", "dash", "--yes", "--key-file", "keys")
    assert real.read_text() == text + "\n"
    assert (tmp_path / "keys").is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "keys"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dash", "--scopes", "r"), 'has a key "dash" already'),
        (("new", "--scopes", "fly"), 'there is no scope "fly"'),
        (("new", "--scopes", ""), "a scope is empty"),
        (("new", "--scopes", "r", "--prefix", ""), "a prefix must not be empty"),
        (("new", "--scopes", "r", "--prefix", "a|b"), "a prefix must not be empty"),
        (("new", "--scopes", "r", "--prefix", "a b"), "a prefix must not be empty"),
        (("new", "--scopes", "r", "--prefix", "-"), "a prefix must not be empty"),
        (("new", "--scopes", "r", "--prefix", "#a"), "a prefix must not be empty"),
        (("new\nroot - -", "--scopes", "r"), "cannot name a key"),
        (("#new", "--scopes", "r"), "cannot name a key"),
        (("", "--scopes", "r"), "cannot name a key"),
        (("n\u00e4w", "--scopes", "r"), "the name is not"),
    ],
)
def test_what_would_be_read_as_another_key_is_refused(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """AU17"""
    shell.ok("keys", "new", "dash", "--scopes", "r", "--key-file", "keys")
    before = (tmp_path / "keys").read_bytes()
    answer = shell.run("keys", "new", *arguments, "--key-file", "keys")
    assert answer.code == exits.REFUSED and said in answer.err and answer.out == ""
    assert (tmp_path / "keys").read_bytes() == before


def test_a_file_that_a_server_would_refuse_is_not_changed(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("nonsense\n")
    file.chmod(0o600)
    for arguments in (("new", "dash", "--scopes", "r"), ("ls",), ("rm", "dash", "--yes")):
        answer = shell.run("keys", *arguments, "--key-file", "keys")
        assert answer.code == exits.REFUSED and "line 1" in answer.err
    file.write_text("")
    file.chmod(0o644)
    assert "chmod o=" in shell.run("keys", "new", "dash", "--scopes", "r", "--key-file", "keys").err
    assert file.read_text() == ""


def test_a_key_is_taken_out_only_if_it_is_there_and_somebody_says_yes(shell: Shell) -> None:
    shell.ok("keys", "new", "dash", "--scopes", "r", "--key-file", "keys")
    answer = shell.run("keys", "rm", "dsh", "--yes", "--key-file", "keys")
    assert answer.code == exits.ABSENT and "did you mean dash?" in answer.err
    assert shell.run("keys", "rm", "dash", "--key-file", "keys").code == exits.USAGE
    assert shell.run("keys", "ls", "--key-file", "absent").code == exits.REFUSED
    answer = shell.run("keys", "ls")
    assert answer.code == exits.REFUSED and "which key file?" in answer.err
    assert shell.run("keys", "new", "x", "--scopes", "r", "--key-file", "no/such/place").code == exits.REFUSED


@pytest.mark.process
def test_keys_that_are_made_at_the_same_time_are_all_kept(shell: Shell, tmp_path: Path) -> None:
    def make(n: int) -> int:
        command = [*COMMAND, "keys", "new", f"key{n}", "--scopes", "r", "--key-file", str(tmp_path / "keys")]
        return subprocess.run(command, capture_output=True, cwd=tmp_path).returncode

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(make, range(8))) == {0}
    assert {one.name for one in read_keys(str(tmp_path / "keys"))} == {f"key{n}" for n in range(8)}
