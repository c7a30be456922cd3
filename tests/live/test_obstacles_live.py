"""What stands in the way of all writes, in a real process: no descriptors left, a directory that is removed."""

import http.client
import json
import os
import resource
import shutil
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerFailed, ServerProcess

CONNECTIONS = 60  # that do nothing
SPARE = 20  # descriptors that the server may open beyond those it has


class Caller:
    """One connection that is kept open."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(
            method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content[:1] == b"{" else content

    def write(self, value: str) -> int:
        return self.ask("POST", "/v0/topics/t", {"records": [{"data": value}], "config": {"durability": "fsync"}})[0]

    def values(self) -> list[str]:
        status, answer = self.ask("GET", "/v0/topics/t/diff?limit=1000")
        assert status == 200, answer
        return [record["data"] for record in answer["records"]]

    def reason(self) -> str:
        status, answer = self.ask("GET", "/readyz")
        assert status in (200, 503)
        return "" if status == 200 else answer["error"]["detail"]["reason"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_without_descriptors_the_log_goes_on_and_a_refused_write_is_never_there(tmp_path: Path) -> None:
    """HM7, ST4, ER7, G2: reads, metrics and health go on, too, and writes are acked again without a restart."""
    acked: list[str] = []
    refused: set[str] = set()

    def write(caller: Caller, value: str) -> None:
        acked.append(value) if caller.write(value) in (200, 201) else refused.add(value)

    with ServerProcess(tmp_path, {"TOPICS_SEGMENT_MAX_AGE_MS": "1"}) as server, ExitStack() as stack:
        caller = Caller(server.address)
        stack.callback(caller.close)
        idle = stack.enter_context(ExitStack())
        write(caller, "before")
        used = max(map(int, os.listdir(f"/proc/{server.pid}/fd")))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + SPARE, used + SPARE))
        for _ in range(CONNECTIONS):
            idle.enter_context(socket.create_connection(server.address, PATIENCE_S))
        for n in range(100):
            write(caller, f"during {n}")
            assert caller.ask("GET", "/v0/health")[0] == 200
            assert caller.ask("GET", "/v0/metrics")[0] == 200
            assert caller.values() == acked
        idle.close()
        wait_until("it is ready again", lambda: caller.reason() == "")
        write(caller, "after")
        assert acked[-1] == "after"
        server.kill()
        server.start()
        with closing(Caller(server.address)) as again:
            assert again.values() == acked
        assert not refused & set(acked)


def test_a_directory_that_is_removed_is_noticed(tmp_path: Path) -> None:
    """ST14, HM7: writes are refused from then on, health stays well."""
    with ServerProcess(tmp_path) as server, closing(Caller(server.address)) as caller:
        assert caller.write("kept") in (200, 201)

        def removed() -> bool:
            shutil.rmtree(server.data, ignore_errors=True)
            return not server.data.exists()

        wait_until("the directory is gone", removed)
        wait_until("it is noticed", lambda: caller.reason() == "directory_gone")
        assert caller.write("refused") == 500
        assert caller.ask("GET", "/v0/health")[0] == 200


def test_a_second_server_is_refused_though_the_lock_file_was_removed(tmp_path: Path) -> None:
    """ST14"""
    with ServerProcess(tmp_path / "one") as server, closing(Caller(server.address)) as caller:
        assert caller.write("first") in (200, 201)
        (server.data / "lock").unlink()
        second = ServerProcess(tmp_path / "two", {"TOPICS_DATA_DIR": str(server.data)})
        with pytest.raises(ServerFailed, match="in use by another server"):
            second.start()
        assert caller.write("second") in (200, 201)
        assert caller.values() == ["first", "second"]


def test_a_directory_of_which_only_segments_are_left_is_refused_and_left_alone(tmp_path: Path) -> None:
    """G5, ST12"""
    with ServerProcess(tmp_path) as server, closing(Caller(server.address)) as caller:
        assert caller.write("kept") in (200, 201)
        server.stop()
        for pattern in ("log-*", "snapshot-*"):
            for path in server.data.glob(pattern):
                path.unlink()
        left = sorted(path.name for path in server.data.glob("segment-*"))
        assert left
        with pytest.raises(ServerFailed, match="the snapshots and logs that it belongs to are missing"):
            server.start()
        assert sorted(path.name for path in server.data.glob("segment-*")) == left
