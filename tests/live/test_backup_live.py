"""Backups of real server processes under load, with kills of the server, the backup and the restore (BK1, BK2)."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.live import object_store
from topics.backup import copying
from topics.backup.places import open_place
from topics.backup.points import Backup
from topics.client import Client
from topics.client.errors import ClientError
from topics.errors import TopicsError
from topics.storage.log_files import UNFINISHED
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import COMMAND, ServerFailed, ServerProcess

SETTINGS = {"TOPICS_SEGMENT_MAX_AGE_MS": "1000", "TOPICS_SEGMENT_MAX_EVENTS": "500"}  # checkpoints, and many segments


DIRECTORY, S3 = "directory", "s3"


def to(place: str) -> pytest.MarkDecorator:
    """Where the backup of a test goes: `make test` takes this kind of place, `make test-full` both."""
    others = [pytest.param(one, marks=pytest.mark.full) for one in (DIRECTORY, S3) if one != place]
    return pytest.mark.parametrize("dest", [place, *others], indirect=True)


@pytest.fixture
def dest(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a backup goes, and where it can be looked at."""
    if request.param == DIRECTORY:
        yield str(tmp_path / "backup")
        return
    if object_store.command() is None:
        pytest.skip("no S3 server is installed: make s3 installs one")
    for name, value in object_store.ENVIRON.items():
        monkeypatch.setenv(name, value)
    with object_store.object_store(tmp_path) as store:
        yield store.uri("topics")


class Writer(threading.Thread):
    """Writes and deletes, and remembers what it was told; a server that is gone is asked again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(url, retries=0)
        self._is_over = threading.Event()
        self.acked: dict[int, str] = {}  # seq → data
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            batch = [{"data": f"{self.sent + n}", "tag": f"t{n % 7}"} for n in range(50)]
            self.sent += 50
            try:
                written = self._client.append("load", batch, idempotency_key=str(self.sent))
            except (ClientError, TopicsError):
                self._is_over.wait(0.02)
                continue
            for seq, record in enumerate(batch, written.first_seq):
                self.acked[seq] = record["data"]

    def finish(self) -> dict[int, str]:
        self._is_over.set()
        self.join(PATIENCE_S)
        self._client.close()
        return dict(self.acked)

    def wait_for(self, count: int) -> None:
        enough = len(self.acked) + count
        wait_until(f"{count} more records are written", lambda: len(self.acked) >= enough)


@contextmanager
def loaded(directory: Path) -> Iterator[tuple[ServerProcess, Writer]]:
    with ServerProcess(directory, SETTINGS) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])  # the same after a restart
        url = url_of(server)
        with Client(url) as client:
            client.put_topic("load", durability="fsync")
        writer = Writer(url)
        writer.start()
        try:
            writer.wait_for(2000)
            yield server, writer
        finally:
            writer.finish()


def url_of(server: ServerProcess) -> str:
    return "http://{}:{}".format(*server.address)


def cli(*arguments: str, code: int = 0) -> str:
    """What the command says."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def begun(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def records_of(directory: Path, data: Path) -> dict[int, str]:
    """What a server on `data` has in the topic, record by record."""
    with ServerProcess(directory, {"TOPICS_DATA_DIR": str(data)}) as server:
        with Client(url_of(server)) as client:
            state = client.state("load")
            found = {
                row["seq"]: json.loads(row["data"]) for batch in client.export("load") for row in batch.to_pylist()
            }
        assert state.count == len(found) and server.stop() == 0
    return found


def check_copy(found: dict[int, str], acked: dict[int, str], before: dict[int, str]) -> None:
    """What was told before the backup began is there; whatever is there is what was told, in a row."""
    assert before.items() <= found.items()
    assert sorted(found) == list(range(1, len(found) + 1))
    assert all(acked[seq] == data for seq, data in found.items() if seq in acked)


@to(S3)
def test_a_backup_under_load_has_what_clients_were_told(tmp_path: Path, dest: str) -> None:
    """BK1, BK2: twice into the same place, record by record."""
    with loaded(tmp_path / "server") as (server, writer):
        told = []
        for _ in range(2):
            told.append(dict(writer.acked))
            said = json.loads(cli("backup", url_of(server), dest, "--json"))
            assert said["is_sound"] and "SECRET" not in json.dumps(said)
            writer.wait_for(1000)
        with Client(url_of(server)) as client:
            epoch = client.state("load").epoch
        acked = writer.finish()
        server.kill()
    done = json.loads(cli("restore", dest, str(tmp_path / "restored"), "--json"))
    assert done["raised"]
    found = records_of(tmp_path / "again", tmp_path / "restored")
    check_copy(found, acked, told[1])
    more = ServerProcess(tmp_path / "more", {"TOPICS_DATA_DIR": str(tmp_path / "restored")})
    with more as server, Client(url_of(server)) as client:
        page = client.diff("load", from_seq=max(found), epoch=epoch)
        assert page.tombstone is not None and page.tombstone.reason == "recreated"
    cli("restore", dest, str(tmp_path / "restored"), code=2)
    points = json.loads(cli("restore", dest, "--list", "--json"))["points"]
    assert len(points) == 2
    cli("restore", dest, str(tmp_path / "first"), "--until", str(points[0]["ts"]))
    check_copy(records_of(tmp_path / "once", tmp_path / "first"), acked, told[0])


def wait_for_some(what: str, process: "subprocess.Popen[bytes]", counted: Callable[[], int], count: int) -> None:
    """Wait until so much is there, or the process has ended."""
    wait_until(f"some {what} is there", lambda: counted() >= count or process.poll() is not None)


def files_in(directory: Path) -> int:
    return len(os.listdir(directory)) if directory.is_dir() else -1


def objects_at(dest: str) -> int:
    with suppress(TopicsError, OSError):
        place = open_place(dest)
        return len(place.sizes())
    return 0


@to(DIRECTORY)
def test_killed_backups_and_servers_leave_nothing_wrong(tmp_path: Path, dest: str) -> None:
    """BK1: kill -9 of the backup, then of the server, in the middle; repeated, it is right."""
    with loaded(tmp_path / "server") as (server, writer):
        for count in (1, 4):
            process = begun("backup", url_of(server), dest)
            wait_for_some("of the backup", process, partial(objects_at, dest), count)
            process.kill()
            process.wait(PATIENCE_S)
        process = begun("backup", url_of(server), dest)
        server.kill()
        assert process.wait(PATIENCE_S) in (0, 2)
        server.start()
        before = dict(writer.acked)
        cli("backup", url_of(server), dest)
        acked = writer.finish()
    cli("restore", dest, str(tmp_path / "restored"))
    check_copy(records_of(tmp_path / "again", tmp_path / "restored"), acked, before)


@to(DIRECTORY)
def test_a_killed_restore_is_refused_by_a_server_and_done_again(tmp_path: Path, dest: str) -> None:
    """BK2"""
    with loaded(tmp_path / "server") as (server, writer):
        writer.wait_for(20_000)
        before = dict(writer.acked)
        cli("backup", url_of(server), dest)
        acked = writer.finish()
    target = tmp_path / "restored"
    for count in (0, 3):
        process = begun("restore", dest, str(target))
        wait_for_some("of the restore", process, partial(files_in, target / "restoring"), count)
        process.kill()
        if process.wait(PATIENCE_S) == 0:
            break
        assert (target / UNFINISHED).exists()
        with pytest.raises(ServerFailed, match="restore into this directory was interrupted"):
            ServerProcess(tmp_path / f"refused-{count}", {"TOPICS_DATA_DIR": str(target)}).start()
    else:
        cli("restore", dest, str(target))
    check_copy(records_of(tmp_path / "again", target), acked, before)


def marked(server: ServerProcess) -> int:
    """The server's time, by a record that is written now."""
    with Client(url_of(server)) as client:
        seq = client.append("mark", [{"data": 1}]).first_seq
        rows = [row for batch in client.export("mark", seq - 1) for row in batch.to_pylist()]
    return int(rows[0]["ts"].timestamp() * 1000)


def head_in(dest: str) -> int:
    """How many records the newest point of a copy has, with all of its log."""
    with suppress(TopicsError, OSError):
        place = open_place(dest)
        accounts = copying.audit(place, max(Backup(place).points)).accounts
        return max((account.head for account in accounts if account.topic == "load"), default=0)
    return 0


def wait_for_head(dest: str, head: int) -> None:
    wait_until("the copy has come so far", lambda: head_in(dest) >= head)


@to(S3)
def test_a_follower_survives_kills_of_the_server_and_of_itself(tmp_path: Path, dest: str) -> None:
    """BK1: once all is quiet, the copy has everything; and at any time before, what there was."""
    times: list[tuple[int, dict[int, str]]] = []
    with loaded(tmp_path / "server") as (server, writer):
        follower = begun("backup", url_of(server), dest, "--follow")
        wait_until("there is a copy", lambda: head_in(dest))
        for kill in (server.kill, follower.kill):
            writer.wait_for(2000)
            kill()
            if kill == server.kill:
                server.start()
            else:
                follower.wait(PATIENCE_S)
                follower = begun("backup", url_of(server), dest, "--follow", "--no-audit")
            before = dict(writer.acked)
            wait_for_head(dest, max(before))
            times.append((marked(server), before))
            writer.wait_for(1000)
        acked = writer.finish()
        with Client(url_of(server)) as client:
            head = client.state("load").head_seq
        wait_until("the copy has caught up", lambda: head_in(dest) == head)
        server.kill()
        follower.kill()
        follower.wait(PATIENCE_S)
    cli("restore", dest, str(tmp_path / "restored"))
    found = records_of(tmp_path / "again", tmp_path / "restored")
    check_copy(found, acked, acked)
    for index, (moment, before) in enumerate(times):
        cli("restore", dest, str(tmp_path / f"until-{index}"), "--until", str(moment))
        part = records_of(tmp_path / f"look-{index}", tmp_path / f"until-{index}")
        check_copy(part, acked, before)
        assert len(part) < len(found), "what was written later is not there"


def test_followers_of_server_and_directory_and_prunes_share_a_place(tmp_path: Path) -> None:
    """BK1: with prunes that spare nothing, some of them killed, and a follower that is killed, too."""
    dest = str(tmp_path / "backup")
    with loaded(tmp_path / "server") as (server, writer), ExitStack() as ending:
        sources = [url_of(server), str(server.data)]
        followers = [begun("backup", source, dest, "--follow", "--no-audit") for source in sources]
        ending.callback(lambda: [follower.kill() for follower in followers])
        wait_until("there is a copy", lambda: head_in(dest))
        for count in range(4):
            writer.wait_for(1500)
            process = begun("backup", "prune", dest, "--keep", "1", "--young", "0s")
            if count % 2:
                process.kill()
            assert process.wait(PATIENCE_S) in (0, -9)
            if count == 2:
                followers[1].kill()
                followers[1].wait(PATIENCE_S)
                followers[1] = begun("backup", sources[1], dest, "--follow", "--no-audit")
        acked = writer.finish()
        with Client(url_of(server)) as client:
            head = client.state("load").head_seq
        wait_until("the copy has caught up", lambda: head_in(dest) == head)
        cli("backup", url_of(server), dest)  # audited
        for follower in followers:
            follower.kill()
            follower.wait(PATIENCE_S)
        said = json.loads(cli("backup", "prune", dest, "--keep", "1", "--young", "0s", "--json"))
        server.kill()
    assert len(said["kept"]) == 2, "the newest of each source"
    cli("restore", dest, str(tmp_path / "restored"))
    check_copy(records_of(tmp_path / "again", tmp_path / "restored"), acked, acked)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """An object store whose objects can be removed.

    Not rclone's: beside an object that it removes, pyarrow puts an empty one with the name of the directory, which
    rclone takes for a file that hides the directory.
    """
    if object_store.emulator() is None:
        pytest.skip("no emulator of Google Cloud Storage is installed: make s3 installs one")
    with object_store.google_store(tmp_path) as uri:
        yield uri


def test_a_backup_in_an_object_store_is_pruned_and_restored(tmp_path: Path, store: str) -> None:
    """BK1, BK2: in Google Cloud Storage, as pyarrow speaks to it."""
    acked: dict[int, str] = {}
    data = tmp_path / "server" / "data"
    with ServerProcess(tmp_path / "server", SETTINGS) as server, Client(url_of(server)) as client:
        client.put_topic("load", durability="fsync")

        def write(count: int) -> None:
            batch = [{"data": f"{len(acked)}-{n}"} for n in range(count)]
            first = client.append("load", batch).first_seq
            acked.update((first + n, one["data"]) for n, one in enumerate(batch))

        def is_another_log(logs: set[Path]) -> bool:
            write(1)
            return logs.isdisjoint(data.glob("log-*"))

        for _ in range(3):
            write(700)
            logs = set(data.glob("log-*"))
            assert json.loads(cli("backup", url_of(server), store, "--json"))["is_sound"]
            wait_until("a checkpoint has freed the log that the backup has", partial(is_another_log, logs))
        assert json.loads(cli("backup", url_of(server), store, "--json"))["is_sound"]
    dry = json.loads(cli("backup", "prune", store, "--keep", "1", "--young", "0s", "--dry-run", "--json"))
    done = json.loads(cli("backup", "prune", store, "--keep", "1", "--young", "0s", "--json"))
    assert (len(done["kept"]), len(done["removed"])) == (1, 3)
    assert done["objects"] + done["objects_left"] == dry["objects"] > 0
    assert len(json.loads(cli("restore", store, "--list", "--json"))["points"]) == 1
    cli("restore", store, str(tmp_path / "restored"))
    check_copy(records_of(tmp_path / "again", tmp_path / "restored"), acked, acked)


def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path) -> None:
    """BK1"""
    dest = str(tmp_path / "backup")
    with ServerProcess(tmp_path / "server", {"TOPICS_API_KEYS": "k-acme::acme:,k-reader:read"}) as server:
        environ: dict[str, Any] = {**os.environ, "TOPICS_TOKEN": ""}
        for token in ("k-acme", "k-reader", "k-wrong"):
            environ["TOPICS_TOKEN"] = token
            done = subprocess.run(
                [*COMMAND, "backup", url_of(server), dest], capture_output=True, text=True, env=environ
            )
            assert done.returncode == 2 and done.stderr.count("\n") == 1 and token not in done.stderr
    assert "not a data directory" in cli("backup", str(tmp_path), dest, "--follow", code=2)
    assert "say what to keep" in cli("backup", "prune", dest, code=2)
    assert "'soon' is not a time" in cli("backup", "prune", dest, "--keep", "soon", code=2)
    assert "belong to a prune" in cli("backup", str(tmp_path), dest, "--keep", "1", code=2)
    assert "not a data directory" in cli("backup", str(tmp_path / "server"), dest, code=2)
    assert "there is no backup" in cli("restore", dest, str(tmp_path / "r"), code=2)
    assert "--until is 'noon'" in cli("restore", dest, str(tmp_path / "r"), "--until", "noon", code=2)
    assert not (tmp_path / "r").exists()
