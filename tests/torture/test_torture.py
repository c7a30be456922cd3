"""A short torture: every deed and every end at least once, and all that was told is there."""

from pathlib import Path

import pytest

from tests.torture.run import DEEDS, ENDS, Torture

LIVES = 9  # as many as there are ends
SEED = 3


@pytest.mark.contract(
    *("G1", "G2", "G3", "G8", "G9", "G11", "G12", "G13", "G14", "G15"),
    *("S5", "S17", "ST4", "ST12", "ST16", "ST17", "HM7", "ER7", "DU1", "DU3", "DU4", "DU7", "DU9", "WR10", "SC3"),
)
def test_a_server_that_is_tortured_keeps_what_it_told(tmp_path: Path) -> None:
    """Kills of the server and its helpers, stops, a full disk, no descriptors; accounts from the clients' journal."""
    torture = Torture(tmp_path, SEED)
    torture.campaign(LIVES)
    counts = torture.counts
    assert counts["lives checked"] == LIVES
    assert counts["directories audited"] == 1
    assert counts["killed: server"] >= ENDS.count("kill")
    assert counts["killed: server, while it starts"] == counts["killed: server, while it stops"] == 1
    assert counts["stopped with SIGTERM"] == 1
    assert counts["records acked"] > 0


def test_what_is_done_follows_from_the_seed(tmp_path: Path) -> None:
    """Whoever is told of a seed does the same things in the same order."""
    one, other = Torture(tmp_path, SEED), Torture(tmp_path, SEED)
    drawn = [[(torture._deeds.draw(), torture._ends.draw()) for _ in range(50)] for torture in (one, other)]
    assert drawn[0] == drawn[1]
    assert {deed for deed, _ in drawn[0]} == set(DEEDS)
    assert {end for _, end in drawn[0]} == set(ENDS)
