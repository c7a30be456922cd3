"""The catalogue: large enough, nothing twice, and the page says what the suite does."""

from collections import Counter

from tests.faults.catalogue import AREAS, CASES, PAGE, with_table
from tests.test_contract_coverage import contract_ids

LEAST = 160


def test_the_page_has_the_table_of_the_suite() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run python -m tests.faults.catalogue"


def test_there_are_many_cases_and_none_comes_twice() -> None:
    assert len(CASES) >= LEAST
    assert [name for name, count in Counter(case.id for case in CASES).items() if count > 1] == []


def test_every_case_says_what_must_hold_and_every_guarantee_is_at_stake_somewhere() -> None:
    guarantees = {f"G{number}" for number in range(1, 16)}
    assert guarantees <= set(contract_ids())
    assert {id for case in CASES for id in case.holds} == guarantees
    assert all(case.holds and case.injects for area in AREAS for case in area.cases)
