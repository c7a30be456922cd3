"""Every case of the catalogue: the fault happens, and what clients were told holds."""

import logging

import pytest

from tests.effort import is_quick
from tests.faults.case import Case
from tests.faults.catalogue import CASES
from tests.faults.lab import Lab

SAMPLE = CASES[:: 20 if is_quick() else 1]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[getattr(pytest.mark, case.needs)] if case.needs else [], id=case.id) for case in SAMPLE],
)
async def test_what_was_promised_holds(case: Case) -> None:
    """G1, G2, G3, G4, G5, G6, G7, G8, G9, G10, G11, G12, G13, G14, G15"""
    logging.getLogger("topics").setLevel(logging.CRITICAL)
    lab = Lab()
    await case.play(lab)
    assert lab.struck, "the fault never happened"
