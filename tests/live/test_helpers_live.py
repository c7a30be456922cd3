"""Helper processes that hang, in a real server: it serves what it can, and ends when it is told to."""

from pathlib import Path

import pytest

from tests.api.clients.transcript import Client, ok
from tests.torture.victim import HELPERS, Victim
from topics.testing.patience import wait_until

CACHE_BYTES = 9 << 20  # a checkpoint is due after half of it, and large enough for the sealing helper
BATCH = [{"data": "x" * 40_000}] * 20


@pytest.mark.parametrize("kind", HELPERS)
def test_a_helper_that_hangs_does_not_hold_up_a_stop(tmp_path: Path, kind: str) -> None:
    """SC3, G1: what was acked is there afterwards."""
    victim = Victim(tmp_path, {"TOPICS_CACHE_BYTES": str(CACHE_BYTES)}, is_confined=kind == "sync helper")
    try:
        victim.start()
        client = Client(victim.server.address)
        client.create("t")

        def write() -> int:
            return int(ok(client.post("/v0/topics/t", {"records": BATCH}))["head_seq"])

        wait_until("there is a helper", lambda: write() and victim.helpers(kind))
        with victim.stopped(kind) as count:
            assert count == 1
            head = [write() for _ in range(4)][-1]
            assert victim.server.stop() == 0
        victim.start()
        state = Client(victim.server.address).get("/v0/topics/t").json
        assert (state["head_seq"], state["count"]) == (head, head)
    finally:
        victim.close()


def test_while_sealing_is_behind_writes_are_slowed_before_any_is_refused(tmp_path: Path) -> None:
    """PR5, PR7: and go on when sealing does."""
    victim = Victim(tmp_path, {"TOPICS_CACHE_BYTES": str(CACHE_BYTES)})
    try:
        victim.start()
        client = Client(victim.server.address)
        client.create("t")

        def write() -> float:
            reply = client.post("/v0/topics/t", {"records": BATCH})
            ok(reply)
            return float(reply.json["performance"]["throttle_wait_ms"])

        wait_until("there is a helper", lambda: write() >= 0 and victim.helpers("sealing helper"))
        with victim.stopped("sealing helper"):
            wait_until("writes are slowed", lambda: write() > 0)
        for _ in range(40):
            write()
    finally:
        victim.close()
