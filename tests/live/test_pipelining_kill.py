"""A real server under clients that pipeline, killed with SIGKILL at random moments, over and over on one directory."""

import random
from pathlib import Path

import pytest

from tests.pipelining.check import check
from tests.pipelining.crowd import Crowd, looked_at
from tests.pipelining.look import look
from tests.pipelining.told import Told
from tests.pipelining.workload import Job, Workload
from topics.testing.server import ServerProcess

ANSWERS = (300, 1500)  # heard before a kill
PAD_MAX = 3000  # bytes of a record, so that a checkpoint comes every few hundred requests
SETTINGS = {"TOPICS_CACHE_BYTES": str(1 << 20), "TOPICS_LOG_LEVEL": "warning"}


@pytest.mark.parametrize("rounds", [6, pytest.param(24, marks=pytest.mark.full)])
def test_what_pipelining_clients_were_told_survives_kill_after_kill(tmp_path: Path, rounds: int) -> None:
    """ST17, S5, G1, G2, G3, G8, G9, G11, G12, G13, G15, WR10, DU3: whatever the moments and the checkpoints."""
    rng = random.Random(11)
    told = Told(may_throttle=True)
    held: list[Job] = []
    with ServerProcess(tmp_path, SETTINGS) as server:
        for round_ in range(rounds):
            workload = Workload(rng, f"r{round_}", pad_max=PAD_MAX)
            workload.held = [job for job in held if job.seq in told.held[job.topic]]
            crowd = Crowd(server.address, told, workload, rng)
            with crowd.connected():
                crowd.run_until(crowd.answers + rng.randint(*ANSWERS))
                server.kill()
                crowd.hear_the_rest()
            held = workload.held
            server.start()
            found = looked_at(server.address, look())
            try:
                check(told, found, "kill")
            except AssertionError as error:
                error.add_note(f"round {round_}, {crowd.answers} answers")
                raise
            told.adopt(found)
        assert server.stop() == 0
    assert sum(len(topic.records) for topic in found.values()) > rounds
