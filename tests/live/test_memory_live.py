"""A real server under writers that never end: its memory stays flat, and others go on (LM14)."""

from pathlib import Path
from typing import Any, Final
from unittest.mock import ANY

import pytest

from tests.api.clients.transcript import Client, ok
from tests.api.clients.transcript import refused as throttled
from topics.settings import MIB
from topics.testing.patience import wait_until
from topics.testing.server import ServerFailed, ServerProcess

LIMIT: Final = 32 * MIB
MEMORY_BYTES_MAX: Final = 2 * LIMIT + 96 * MIB  # beyond what an idle server has: the estimate's factor, and buffers


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


def tags(n: int) -> tuple[str, dict[str, Any]]:
    return "/v0/topics/t", {"records": [{"data": 1, "tag": f"{n}-{m}" + "t" * 200} for m in range(500)]}


def nodes(n: int) -> tuple[str, dict[str, Any]]:
    return "/v0/topics/t", {"records": [{"data": 1, "node": f"{n}-{m}" + "n" * 100} for m in range(500)]}


def keys(n: int) -> tuple[str, dict[str, Any]]:
    return "/v0/topics/logged", {"records": [{"data": 1}], "idempotency_key": f"{n}" + "k" * 200}


def new_topics(n: int) -> tuple[str, dict[str, Any]]:
    return f"/v0/topics/new-{n}", {"records": [{"data": 1}]}


@pytest.mark.parametrize("flood", [tags, nodes, keys, new_topics], ids=lambda flood: flood.__name__)
def test_memory_is_flat_under_a_flood_that_never_ends(tmp_path: Path, flood: Any) -> None:
    """LM14: writers are refused, readers are not, and what is deleted makes room."""
    with ServerProcess(tmp_path, {"TOPICS_MAX_MEMORY_BYTES": str(LIMIT), "TOPICS_MAX_TOPICS": "0"}) as server:
        api = Client(server.address)
        api.create("t", durability="ephemeral")
        api.create("logged", idempotency_window_ms=600_000)
        before, refused, taken = resident_bytes(server.pid), 0, 0
        with api.connect() as connection:
            n = 0
            while refused < 500:
                requests = [flood(n + m) for m in range(16)]
                connection.send(
                    b"".join(api.request("POST", f"{path}?return_seqs=false", body) for path, body in requests)
                )
                for _ in requests:
                    answer = connection.reply()
                    assert answer.status in (200, 201, 429), answer
                    refused += answer.status == 429
                    taken += answer.status != 429
                n += len(requests)
                if n % 1600 == 0:
                    assert Client(server.address).get("/v0/health").status == 200
        grown = resident_bytes(server.pid) - before
        print(f"{flood.__name__}: {taken} taken, {refused} refused, {grown / MIB:.0f} MiB more")
        assert grown < MEMORY_BYTES_MAX
        throttled(answer, 429, "throttled", {"limit": "max_memory_bytes", "max": LIMIT})
        assert api.get("/v0/topics/t").status == 200
        ok(api.post("/v0/topics/logged/diff", {"from_seq": 0}))
        for topic in ok(api.get("/v0/topics?limit=100"))["topics"]:
            ok(api.delete(f"/v0/topics/{topic['topic']}"))
        wait_until(
            "room", lambda: api.post("/v0/topics/room", {"records": [{"data": "x" * 10_000}]}).status in (200, 201)
        )
        assert "Traceback" not in server.output
        assert server.stop() == 0


def test_a_server_is_not_started_with_too_little(tmp_path: Path) -> None:
    """LM14: it says what would do."""
    with pytest.raises(ServerFailed, match=r"TOPICS_MAX_MEMORY_BYTES is 1000000, .* use at least 3145728"):
        ServerProcess(tmp_path, {"TOPICS_MAX_MEMORY_BYTES": "1000000"}).start()


def test_a_server_that_keeps_more_than_it_may_starts_and_says_so(tmp_path: Path) -> None:
    """LM14: or nothing could be deleted to get out."""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        for number in range(1500):
            api.create(f"topic-{number}")
        assert server.stop() == 0
    server.environ["TOPICS_MAX_MEMORY_BYTES"] = "3145728"
    with server:
        wait_until("it says so", lambda: "writes are refused" in server.output)
        throttled(Client(server.address).post("/v0/topics/topic-1", {"records": [{"data": 1}]}), 429, "throttled", ANY)
        ok(Client(server.address).delete("/v0/topics/topic-1"))
        assert server.stop() == 0
