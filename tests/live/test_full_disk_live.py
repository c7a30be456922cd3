"""A server on a small file system of its own: full, killed, freed, without a restart.

It needs the right to mount; without it these tests are skipped.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from topics.storage.reserve import RESERVE_BYTES, RESERVE_NAME
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess

BATCH = [{"data": "x" * 1000}] * 500
REFUSALS = 5  # in a row: the disk is full for good

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a tmpfs with these options."""
    place = tmp_path / "mounted"

    def mounted(options: str) -> Path:
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        return place

    yield mounted
    if os.path.ismount(place):
        unmount = ["umount", str(place)]
        wait_until("it is unmounted", lambda: not subprocess.run(unmount, capture_output=True).returncode)


class Api:
    """One client, which keeps account of what it was told."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.acked: dict[str, int] = {}

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        with closing(HTTPConnection(*self._server.address, timeout=PATIENCE_S)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        return response.status, json.loads(content) if content[:1] == b"{" else content

    def write(self, topic: str, records: list[dict[str, str]] = BATCH) -> bool:
        status, answer = self.ask("POST", f"/v0/topics/{topic}", {"records": records})
        assert status in (200, 201, 429, 500), answer
        if status in (200, 201):
            self.acked[topic] = self.acked.get(topic, 0) + len(records)
        return status in (200, 201)

    def fill(self, topic: str) -> None:
        """Write until nothing is taken any more, and ready says why."""
        refusals = 0
        while refusals < REFUSALS or self.reason() != "disk_full":
            refusals = 0 if self.write(topic) else refusals + 1

    def count(self, topic: str) -> int:
        status, answer = self.ask("GET", f"/v0/topics/{topic}")
        assert status == 200, answer
        return int(answer["count"])

    def reason(self) -> str:
        status, answer = self.ask("GET", "/readyz")
        assert status in (200, 503), answer
        return "" if status == 200 else str(answer["error"]["detail"].get("reason", "replay"))

    def is_served(self) -> bool:
        return self.reason() != "replay"


def delete_topic(api: Api) -> int:
    return api.ask("DELETE", "/v0/topics/large")[0]


def delete_records(api: Api) -> int:
    return api.ask("POST", "/v0/topics/large/delete", {"before_seq": api.acked["large"]})[0]


def lower_cap(api: Api) -> int:
    return api.ask("PUT", "/v0/topics/large", {"cap_records": 10})[0]


def expire(api: Api) -> int:
    return api.ask("PUT", "/v0/topics/large", {"ttl_ms": 1})[0]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("free", [delete_topic, delete_records, lower_cap, expire])
def test_a_full_disk_is_written_to_again_when_enough_is_deleted(
    tmp_path: Path, mount: Mount, free: Callable[[Api], int], is_killed: bool
) -> None:
    """ST16, HM7, ER7, G1, G2: also behind a kill -9, and a start on the full disk."""
    environ = {"TOPICS_CACHE_BYTES": str(8 * 1024 * 1024)}
    server = ServerProcess(tmp_path, environ | {"TOPICS_DATA_DIR": str(mount("size=40m") / "data")})
    with server:
        api = Api(server)
        assert api.write("kept")
        api.fill("large")
        if is_killed:
            server.kill()
            server.start(until_ready=False)
            wait_until("it has started", api.is_served)
        assert (api.count("kept"), api.count("large")) == (api.acked["kept"], api.acked["large"])
        assert free(api) == 200
        wait_until("it is ready again", lambda: not api.reason())
        wait_until("a write is taken", lambda: api.write("kept"))
        reserve = Path(server.environ["TOPICS_DATA_DIR"]) / RESERVE_NAME
        assert reserve.stat().st_size == RESERVE_BYTES
        server.kill()
        server.start()
        assert api.count("kept") == api.acked["kept"]


def take_all(path: Path) -> None:
    """Fill the file system to the last byte."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(65536)):
            pass


def test_a_disk_that_others_fill_and_free_is_written_to_again(tmp_path: Path, mount: Mount) -> None:
    """ST16, HM7: reads go on meanwhile."""
    place = mount("size=40m")
    ballast = place / "ballast"
    with ServerProcess(tmp_path, {"TOPICS_DATA_DIR": str(place / "data")}) as server:
        api = Api(server)
        assert api.write("kept")
        take_all(ballast)
        api.fill("kept")
        assert api.ask("GET", "/v0/topics/kept/diff?limit=10")[0] == 200
        ballast.unlink()
        wait_until("it is ready again", lambda: not api.reason())
        assert api.write("kept")
        assert api.count("kept") == api.acked["kept"]
