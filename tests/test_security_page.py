"""The table of rules in docs/security.md: every rule about keys, security and limits, with tests that cover it.

A test covers a rule by naming it in its docstring or marker; its name says what it shows. After adding a rule or
renaming a test:

    python -m tests.test_security_page --write
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_contract_coverage import ORACLE_TESTS, TESTS, contract_ids, named_in

PAGE = TESTS.parent / "docs" / "security.md"
FAMILIES = ("AU", "SC", "LM")
SHOWN_MAX = 3  # tests of one rule
HEAD = "| rule | what its tests show | where |\n|---|---|---|\n"
NONE = "no test yet"
HOW_TO_WRITE = "run: python -m tests.test_security_page --write"

Shown = tuple[str, str]  # what a test shows, the file it is in


def rules() -> list[str]:
    """The ids of these families, in the order of the page."""
    ids = [name for name in contract_ids() if re.fullmatch(rf"({'|'.join(FAMILIES)})\d+", name)]
    return sorted(ids, key=lambda name: (FAMILIES.index(name[:2]), int(name[2:])))


def shown_in(source: str) -> Iterator[tuple[str, list[str]]]:
    """What each test of a module shows, and the rules that it names."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name.removeprefix("test_").replace("_", " "), [name for name, _ in named_in(node)]


@cache
def covering() -> dict[str, list[Shown]]:
    """The tests that name a rule, those that are most about it first."""
    found: dict[str, list[tuple[int, int, Shown]]] = {}
    for path in sorted(set(TESTS.rglob("test_*.py")) - set(TESTS.rglob(ORACLE_TESTS))):
        for shows, ids in shown_in(path.read_text()):
            for name in set(ids):
                place = str(path.relative_to(TESTS.parent))
                found.setdefault(name, []).append((ids.index(name), len(ids), (shows, place)))
    return {name: [shown for *_, shown in sorted(tests)] for name, tests in found.items()}


def row(rule: str, tests: list[Shown]) -> str:
    if not tests:
        return f"| {rule} | {NONE} | - |\n"
    return f"| {rule} | {'; '.join(shows for shows, _ in tests)} | {' '.join(f'`{where}`' for _, where in tests)} |\n"


def rows_in(page: str) -> dict[str, list[Shown]]:
    rows = {}
    for rule, shows, where in re.findall(r"^\| ([A-Z]{2}\d+) \| (.+) \| (.*) \|$", page, re.MULTILINE):
        places = re.findall(r"`([^`]+)`", where)
        rows[rule] = [] if shows == NONE else list(zip(shows.split("; "), places, strict=True))
    return rows


def complaints(page: str, tests: dict[str, list[Shown]]) -> list[str]:
    rows = rows_in(page)
    said = []
    if list(rows) != rules():
        said.append(f"the rules are not those of the contract, in its order: {sorted(set(rows) ^ set(rules()))}")
    for rule, shown in rows.items():
        said += [
            f"{rule}: no test of {where} that names it shows: {what}"
            for what, where in shown
            if (what, where) not in tests.get(rule, [])
        ]
        if not shown and tests.get(rule):
            said.append(f"{rule} has a test now")
    return said


@pytest.mark.slow  # it reads every test
def test_every_rule_about_keys_security_and_limits_is_listed_with_tests_that_name_it() -> None:
    assert complaints(PAGE.read_text(), covering()) == [], HOW_TO_WRITE


def test_a_row_that_is_wrong_is_found() -> None:
    page, tests = PAGE.read_text(), covering()
    first, second = rules()[:2]
    assert complaints(page.replace(f"| {second} |", f"| {first} |"), tests)
    assert complaints(re.sub(r"tests/api/test_auth\.py", "tests/api/test_gone.py", page, count=1), tests)
    assert complaints("", tests)


def write() -> None:
    """Put a fresh table in place of the one in the page; tests that it names already stay, if they still cover."""
    page = PAGE.read_text()
    kept, tests = rows_in(page), covering()
    table = HEAD
    for rule in rules():
        stays = [shown for shown in kept.get(rule, []) if shown in tests.get(rule, [])]
        table += row(rule, (stays + [shown for shown in tests.get(rule, []) if shown not in stays])[:SHOWN_MAX])
    PAGE.write_text(page.partition(HEAD)[0] + table)  # the table is the end of the page


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
