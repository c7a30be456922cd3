"""TOPICS_KEY_FILE: what it may say, when it is refused, and what its changes do to those who are connected."""

import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.api.clients.events import open_stream, watch
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import Socket
from tests.api.conftest import Start
from topics.errors import ConfigurationError
from topics.server.access.key_file import FILE_BYTES_MAX, POLL_MS, parse_keys, read_keys
from topics.server.auth import SCOPES, Key, Keyring
from topics.testing.patience import wait_until
from topics.testing.server import ServerThread


def line(name: str, scopes: str = "-", prefixes: str = "-") -> str:
    """A key whose secret is its name."""
    return f"{name} {scopes} {prefixes} sha256:{sha256(name.encode()).hexdigest()}\n"


def shown(key: Key) -> tuple[str | None, set[str], tuple[str, ...]]:
    return key.name, set(key.scopes), key.prefixes


# --- the grammar


def test_a_line_is_a_key() -> None:
    """AU17, AU4"""
    text = (
        "# who may do what\n\n"
        + line("feed", "read+w", "acme:|shared.")
        + "\t dash\tR  -   SHA256:".replace("SHA256", "sha256")
        + sha256(b"x").hexdigest().upper()
        + "   # a comment\r\n"
        + line("ops").rstrip("\n")
    )
    feed, dash, ops = parse_keys(text)
    assert shown(feed) == ("feed", {"read", "write"}, ("acme:", "shared."))
    assert shown(dash) == ("dash", {"read"}, ())
    assert shown(ops) == ("ops", set(SCOPES), ())
    assert dash.digest == sha256(b"x").digest()
    assert parse_keys("") == parse_keys("\n # nothing\n") == []


DIGEST = sha256(b"x").hexdigest()
BAD_LINES = [
    "dash",
    "dash read -",
    f"dash read - sha256:{DIGEST} more",
    f"dash read - {DIGEST}",
    f"dash read - sha256:{DIGEST[1:]}",
    f"dash read - sha256:{DIGEST}0",
    f"dash read - sha256:{'g' * 64}",
    f"dash read - sha1:{DIGEST}",
    f"dash fly - sha256:{DIGEST}",
    f"dash + - sha256:{DIGEST}",
    f"dash read a| sha256:{DIGEST}",
    f"dash read a||b sha256:{DIGEST}",
    f"-dash read - sha256:{DIGEST}",
    f"d\u00e4sh read - sha256:{DIGEST}",
    f"{'d' * 256} read - sha256:{DIGEST}",
    f"dash read - sha256:{sha256(b'').hexdigest()}",
]


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_line_that_is_no_key_is_refused_by_its_number(bad: str) -> None:
    """AU17"""
    with pytest.raises(ConfigurationError, match="line 3") as error:
        parse_keys(f"# keys\n{line('ops')}{bad}\n")
    assert DIGEST not in error.value.message


def test_names_and_digests_are_unique_over_file_and_variable() -> None:
    """AU17"""
    ring = Keyring.parse("plain:read")
    for text in (line("a") + line("b") + line("a"), line("a") + line("a").replace("a", "b", 1), line("plain")):
        with pytest.raises(ConfigurationError):
            ring.take(parse_keys(text))
    assert len(ring) == 1
    ring.take(parse_keys(line("a") + line("b")))
    assert len(ring) == 3


def test_a_file_without_keys_keeps_auth_on() -> None:
    """AU17"""
    ring = Keyring()
    assert not ring
    ring.take([])
    assert ring and ring.find(b"anything") is None


def test_a_key_that_changes_stays_the_same_key() -> None:
    """AU17"""
    ring = Keyring()
    ring.take(parse_keys(line("a") + line("b")))
    a, b = ring.find(b"a"), ring.find(b"b")
    assert a is not None and b is not None
    ring.take(parse_keys(line("a", "read", "x").replace("a", "renamed", 1)))
    assert ring.find(b"a") is a and shown(a) == ("renamed", {"read"}, ("x",))
    assert ring.find(b"b") is None and b.is_gone and not b.permits(frozenset(), ())
    assert not a.is_gone and a.permits(frozenset(("read",)), ("xy",)) and not a.permits(frozenset(("write",)), ())


# --- the file


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


BAD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (missing, "cannot be read"),
    "readable by others": (lambda path: written(path, line("a"), 0o604), "by others"),
    "writable by others": (lambda path: written(path, line("a"), 0o602), "by others"),
    "no keys": (lambda path: written(path, "secret read"), "line 1"),
    "not UTF-8": (lambda path: (path.write_bytes(b"\xff"), path.chmod(0o600)), "UTF-8"),
    "too large": (lambda path: written(path, "#" * (FILE_BYTES_MAX + 1)), "larger"),
    "a directory": (directory, "not a file|cannot be read"),
    "a pipe": (pipe, "not a file"),
    "the same name twice": (lambda path: written(path, line("a") + line("a")), "same secret"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_stops_the_start(start: Start, tmp_path: Path, case: str) -> None:
    """AU17"""
    make, said = BAD_FILES[case]
    path = tmp_path / "keys"
    make(path)
    with pytest.raises(ConfigurationError, match=said) as error:
        start(key_file=str(path))
    if case != "the same name twice":
        assert "TOPICS_KEY_FILE" in error.value.message and str(path) in error.value.message


def test_the_group_may_read_the_file(tmp_path: Path) -> None:
    """AU17"""
    path = written(tmp_path / "keys", line("a"), 0o640)
    assert [key.name for key in read_keys(str(path))] == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# --- a server with one


class Keys:
    """A server with a key file that a test changes."""

    def __init__(self, start: Start, path: Path, text: str, **settings: Any) -> None:
        self.path = written(path, text)
        self.server: ServerThread = start(key_file=str(path), **settings)
        self.client = Client(self.server.address)

    def to(self, name: str) -> Client:
        return self.client.with_key(name)

    def change(self, text: str | None, mode: int = 0o600) -> None:
        """Replace the file as an operator does, and let the server look at it."""
        if text is None:
            self.path.unlink()
        else:
            os.replace(written(self.path.with_suffix(".new"), text, mode), self.path)
        self.poll()

    def poll(self) -> None:
        """Let the time pass after which the server looks, and wait until it has looked."""
        key_file = self.server.server.key_file
        assert key_file is not None
        alarm = key_file._alarm
        self.server.until(lambda: alarm._sleep is not None and not alarm._sleep.done())
        waiting = alarm._sleep
        self.server.until(lambda: self.server.clock.waits)
        self.server.advance(POLL_MS)
        self.server.until(lambda: alarm._sleep is not waiting)


@pytest.fixture
def keys(start: Start, tmp_path: Path) -> Keys:
    return Keys(start, tmp_path / "keys", line("root") + line("feed", "rw", "f."), api_keys="plain:read")


def test_keys_of_file_and_variable_stand_side_by_side(keys: Keys) -> None:
    """AU17, AU1"""
    for name in ("root", "feed", "plain"):
        ok(keys.to(name).get("/v0/topics"))
    refused(keys.client.get("/v0/topics"), 401, "unauthorized")
    refused(keys.to("feed").put("/v0/topics/f.x", {}), 403, "forbidden")
    refused(keys.to("feed").get("/v0/topics/x"), 403, "forbidden")


def test_a_server_with_a_file_without_keys_lets_nobody_in(start: Start, tmp_path: Path) -> None:
    """AU17"""
    keys = Keys(start, tmp_path / "keys", "# none yet\n")
    refused(keys.client.get("/v0/topics"), 401, "unauthorized")
    assert keys.client.get("/v0/health").status == 200
    keys.change(line("first"))
    ok(keys.to("first").get("/v0/topics"))


def test_a_change_counts_from_the_next_request_on(keys: Keys) -> None:
    """AU17"""
    assert POLL_MS < 5000
    keys.change(line("feed", "read", "g.") + line("fresh"))
    refused(keys.to("root").get("/v0/topics"), 401, "unauthorized")
    refused(keys.to("feed").post("/v0/topics/g.x", {"records": [{"data": 1}]}), 403, "forbidden")
    refused(keys.to("feed").get("/v0/topics/f.x"), 403, "forbidden")
    refused(keys.to("feed").get("/v0/topics/g.x"), 404, "topic_not_found")
    ok(keys.to("fresh").get("/v0/topics"))
    ok(keys.to("plain").get("/v0/topics"))


def test_a_wait_ends_with_its_key(keys: Keys) -> None:
    """AU17: a long poll is told so at once, and not when it would have ended."""
    ok(keys.to("root").put("/v0/topics/f.x", {}), 201)
    feed = keys.to("feed")
    with feed.connect() as connection:
        connection.send(feed.request("POST", "/v0/topics/f.x/diff", {"wait_ms": 30_000}))
        app = keys.server.server.app
        keys.server.until(lambda: app.waiting)
        keys.change(line("root"))
        refused(connection.reply(), 401, "unauthorized")
        keys.server.until(lambda: not app.waiting)


@pytest.mark.slow
def test_an_export_ends_with_its_key(keys: Keys) -> None:
    """AU17: in its midst, so that nobody takes what came for the whole."""
    root = keys.to("root")
    ok(root.put("/v0/topics/f.x", {}), 201)
    for _ in range(40):
        ok(root.post("/v0/topics/f.x", {"records": [{"data": "x" * 1_000_000}]}))
    feed = keys.to("feed")
    with feed.connect() as connection:
        connection.send(feed.request("GET", "/v0/topics/f.x/export"))
        connection.read_until(b"\r\n\r\n")
        keys.change(line("root"))
        with pytest.raises((AssertionError, ConnectionError)):
            connection.read_until(b"\r\n0\r\n\r\n")
    ok(root.get("/v0/topics/f.x"))


def test_it_is_read_at_once_when_asked(keys: Keys) -> None:
    """AU17: what SIGHUP does."""
    os.replace(written(keys.path.with_suffix(".new"), line("fresh")), keys.path)
    key_file = keys.server.server.key_file
    assert key_file is not None
    keys.server.run(key_file.reread)
    keys.server.until(lambda: keys.server.server.app.keyring.find(b"fresh"))
    ok(keys.to("fresh").get("/v0/topics"))


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (None, 0),
        ("nonsense\n", 0o600),
        (line("fresh"), 0o644),
        (line("fresh") + line("plain"), 0o600),
        (line("fresh") + line("fresh"), 0o600),
    ],
)
def test_a_bad_change_is_logged_once_and_changes_nothing(
    keys: Keys, caplog: pytest.LogCaptureFixture, text: str | None, mode: int
) -> None:
    """AU17"""
    with Socket(keys.server.address, "root") as ws:
        keys.change(text, mode)
        keys.poll()
        assert ws.ask("ping") == {"op": "pong"}
    said = [record.getMessage() for record in caplog.records if "stay as they were" in record.getMessage()]
    assert len(said) == 1
    for name in ("root", "feed", "plain"):
        ok(keys.to(name).get("/v0/topics"))
    refused(keys.to("fresh").get("/v0/topics"), 401, "unauthorized")
    keys.change(line("fresh"))
    ok(keys.to("fresh").get("/v0/topics"))


# --- what is open when a key changes

LESS = {
    "the key is gone": "",
    "the scope is gone": line("feed", "d", "f."),
    "the prefix is gone": line("feed", "rw", "g."),
}


@pytest.mark.parametrize("change", LESS)
def test_streams_end_with_an_error_when_their_key_allows_less(keys: Keys, change: str) -> None:
    """AU17"""
    root, feed = keys.to("root"), keys.to("feed")
    root.create("f.log")
    root.create("f.queue", type="queue")
    session = watch(feed, "f.log")
    with open_stream(feed, session) as watching, open_stream(feed, "/v0/topics/f.queue/work?node=n") as working:
        watching.expect("caught-up")
        working.expect("comment")
        keys.change(line("root") + LESS[change])
        for stream in (watching, working):
            assert stream.expect("error").data["code"] == 401
            stream.expect_end()
    status = 401 if change == "the key is gone" else 403
    again = feed.get(session["stream_url"], "Accept: text/event-stream")
    assert again.status == feed.get("/v0/topics/f.queue/work?node=n").status == status
    assert root.metrics()["sse_connections"] == 0


@pytest.mark.parametrize("change", LESS)
def test_sockets_are_closed_when_their_key_allows_less_than_they_follow(keys: Keys, change: str) -> None:
    """AU17"""
    keys.to("root").create("f.log")
    with Socket(keys.server.address, "feed") as ws:
        assert ws.ask("subscribe", topics={"f.log": {}})["op"] == "subscribed"
        assert ws.message()["op"] == "caught_up"
        keys.change(line("root") + LESS[change])
        last = ws.message()
        assert (last["op"], last["code"]) == ("error", "unauthorized")
        assert ws.frame().close_code == 1008


def test_a_socket_that_follows_nothing_ends_only_with_its_key(keys: Keys) -> None:
    """AU17, AU6: a command is checked when it comes."""
    with Socket(keys.server.address, "feed") as ws:
        keys.change(line("root") + line("feed", "r", "f."))
        assert ws.ask("publish", topic="f.log", records=[{"data": 1}])["code"] == "forbidden"
        keys.change(line("root"))
        assert ws.message()["code"] == "unauthorized"
        assert ws.frame().close_code == 1008


def test_streams_and_sockets_that_keep_what_they_need_go_on(keys: Keys) -> None:
    """AU17"""
    root, feed = keys.to("root"), keys.to("feed")
    root.create("f.log")
    with open_stream(feed, watch(feed, "f.log")) as stream, Socket(keys.server.address, "feed") as ws:
        stream.expect("caught-up")
        assert ws.ask("subscribe", topics={"f.log": {}})["op"] == "subscribed"
        assert ws.message()["op"] == "caught_up"
        keys.change(line("root") + line("feed", "read", "f.l").replace("feed", "renamed", 1))
        root.write("f.log", 7)
        assert stream.records(1) == [7]
        assert ws.message()["records"][0]["data"] == 7
        refused(feed.post("/v0/topics/f.log", {"records": [{"data": 1}]}), 403, "forbidden")


def test_logs_name_keys_by_their_name(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """AU17, SC4: of a key of the environment, which has no name, nothing is said."""
    caplog.set_level("INFO")
    settings = {"api_keys": "plain:read", "access_log": True}
    keys = Keys(start, tmp_path / "keys", line("root") + line("feed", "rw", "f."), **settings)
    ok(keys.to("root").get("/v0/topics"))
    refused(keys.to("feed").get("/v0/topics/x"), 403, "forbidden")
    refused(keys.to("nobody").get("/v0/topics"), 401, "unauthorized")
    ok(keys.to("plain").get("/v0/topics?prefix=p"))

    def said() -> list[str]:
        return [message.rpartition(" ms")[2] for message in list(caplog.messages) if " ms" in message]

    wait_until("the last request is logged", lambda: len(said()) == 4)
    assert said() == [", key root", ", key feed", "", ""]
    keys.change(line("root") + line("fresh"))
    assert "holds 2 keys; new: fresh; gone: feed" in caplog.text
    assert "plain" not in caplog.text and "nobody" not in caplog.text
