"""The corpus, and what chance makes of it: a search without coverage, the same every time. `make fuzz` searches on."""

import random
from itertools import islice

import pytest

from tests.effort import stride, tries
from tests.fuzz import bars
from tests.fuzz.mutate import mutations
from tests.fuzz.targets import CORPUS, TARGETS, corpus

MUTATIONS, MANY_MUTATIONS = 100, 2000  # of each target
CORPUS_BYTES_MAX = 300_000


def check(name: str, count: int) -> None:
    """The corpus of a target, and so many changes of it."""
    target = TARGETS[name]
    known = [*target.seeds(), *corpus(name)]
    changed = mutations(known, target.words, target.bytes_max, random.Random(f"fuzz {name}"))
    for data in (*known[:: stride()], *islice(changed, count)):
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"target {name}, input {data!r}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_answered_properly_and_cost_little(name: str) -> None:
    """LM8, ST12, G5, ER7"""
    check(name, tries(MUTATIONS))


@pytest.mark.full
@pytest.mark.parametrize("name", TARGETS)
def test_very_many_inputs_are_answered_properly_and_cost_little(name: str) -> None:
    """LM8, ST12, G5, ER7"""
    check(name, MANY_MUTATIONS)


def test_every_target_has_a_small_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < CORPUS_BYTES_MAX


def test_an_input_that_costs_too_much_every_time_fails_and_one_that_did_once_does_not() -> None:
    """The bars themselves."""
    costs = iter([1.0, 0.0])

    def cost() -> tuple[bars.Meter, int]:
        meter = bars.Meter()
        meter.turn_s = next(costs, 1.0)
        return meter, 10

    bars.check(cost)
    with pytest.raises(bars.TooMuch, match="1000 ms of CPU in one piece"):
        bars.check(cost)
