"""The simulation finds bugs: each of those that are planted, within the seeds that the documentation names."""

import re
from inspect import signature
from pathlib import Path

import pytest

from tests.effort import stride
from tests.sim.plan import plan_of
from tests.sim.planted import BUGS, planted
from tests.sim.shrink import failure_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<what>[^|]+) \| (?P<ids>[A-Z0-9, ]+) \| (?P<seeds>\d+) \|$", re.MULTILINE)
# The first seed, from 0 on, whose history shows the bug.
FOUND_BY = {
    "pipelining": 122,
    "skipped fsync": 0,
    "unsynced roll": 99,
    "revived frames": 9,
    "torn frame accepted": 0,
    "gate before sync": 0,
    "gate before write": 7,
    "lost wake-up": 3,
    "state not rebuilt": 10,
    "seq reuse": 0,
    "reservation ignored": 15,
    "floor off by one": 1,
    "silent expiry": 0,
    "eviction not logged": 11,
    "epoch kept": 0,
    "delete bound off by one": 18,
    "delete flags lost": 3,
    "keys left out": 1,
    "leases left out": 1,
    "cursor above head": 6,
    "replayed twice": 1,
    "unsynced snapshot name": 1,
    "ack not logged": 2,
    "lease cut short": 57,
    "dead letter doubled": 29,
    "one over the cap": 3,
    "stream skips one": 49,
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_called_like_what_it_replaces(name: str) -> None:
    """Else it is found for being called wrongly, whatever it does."""
    for owner, attribute, value in BUGS[name].replacements():
        right, wrong = ([*signature(call).parameters.values()] for call in (getattr(owner, attribute), value))
        shapes = [[(one.kind, one.default) for one in parameters] for parameters in (right, wrong)]
        assert shapes[0] == shapes[1], f"{attribute} takes {right}, not {wrong}"


@pytest.mark.parametrize("name", list(FOUND_BY)[:: 2 * min(7, stride())])
def test_a_planted_bug_is_found(name: str) -> None:
    """G1, G2, G3, G5, G6, G9, G10, G11, G12, G13, G14, G15, ST17: and without it the same history is right."""
    plan = plan_of(FOUND_BY[name])
    with planted(name):
        broken = failure_of(plan)
    assert broken is not None, f"the simulation misses: {BUGS[name].what}"
    assert not re.match(r"seed \d+: (Type|Attribute|Name)Error", str(broken)), f"it does not fit the code: {broken}"
    assert failure_of(plan) is None


@pytest.mark.full
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_bug_is_found_by_the_seed_that_is_named_and_none_before(name: str) -> None:
    with planted(name):
        found = [seed for seed in range(FOUND_BY[name] + 1) if failure_of(plan_of(seed)) is not None]
    assert found == [FOUND_BY[name]]


def test_the_page_lists_every_planted_bug_as_it_is() -> None:
    assert BUGS.keys() == FOUND_BY.keys()
    assert len(BUGS) >= 15
    section = PAGE.read_text().partition("\n## Simulation\n")[2].partition("\n## ")[0]
    told = {row["name"]: (row["what"], row["ids"], int(row["seeds"])) for row in ROW.finditer(section)}
    assert told == {name: (bug.what, bug.ids.replace(" ", ", "), FOUND_BY[name] + 1) for name, bug in BUGS.items()}
