"""Which rules of the contract have a test, and which do not yet.

A test covers an id of docs/contract.md by naming it in the docstring of a test
function or class, or in `@pytest.mark.contract("TM3", "TM4")`. Tests of the oracle do not
count: they show that the yardstick is right, not the engine. Nor do those marked `full`:
`make test` has a test of every rule. What nobody covers is listed in
contract_uncovered.txt, which may only shrink. After covering a rule:

    python tests/test_contract_coverage.py --write
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONTRACT = TESTS.parent / "docs" / "contract.md"
UNCOVERED = TESTS / "contract_uncovered.txt"
FULL = "pytest.mark.full"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ORACLE_TESTS = "test_oracle*.py"
HOW_TO_SHRINK = "run: python tests/test_contract_coverage.py --write"


def contract_ids() -> list[str]:
    """Every id of the contract, in its order: rules, worked examples, scenarios, guarantees."""
    return re.findall(r"\*\*([A-Z]{1,2}\d+)\b", CONTRACT.read_text())


def named_ids(source: str, *, also_full: bool = False) -> Iterator[str]:
    """What looks like an id in the docstrings of functions and classes and in contract markers."""
    yield from (name for name, is_full in named_in(ast.parse(source)) if also_full or not is_full)


def named_in(node: ast.AST, is_full: bool = False) -> Iterator[tuple[str, bool]]:
    """Ids of a module or a definition and of those in it, each with whether it is marked `full`."""
    marks = marks_of(node)
    is_full = is_full or FULL in map(ast.unparse, marks)
    for mark in marks:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "contract":
            yield from ((arg.value, is_full) for arg in mark.args if isinstance(arg, ast.Constant))
    if isinstance(node, DEFINITIONS):
        yield from ((name, is_full) for name in re.findall(r"\b[A-Z]{1,2}\d+\b", ast.get_docstring(node) or ""))
    for child in getattr(node, "body", []):
        if isinstance(child, DEFINITIONS):
            yield from named_in(child, is_full)


def marks_of(node: ast.AST) -> list[ast.expr]:
    """The decorators of a function or a class, or the `pytestmark` of a module."""
    if not isinstance(node, ast.Module):
        return getattr(node, "decorator_list", [])
    assigned = [one for one in node.body if isinstance(one, ast.Assign)]
    given = [one.value for one in assigned if ast.unparse(one).startswith("pytestmark =")]
    return [mark for value in given for mark in (value.elts if isinstance(value, ast.List) else [value])]


@cache
def named_by_tests() -> list[tuple[str, str, bool]]:
    """Each id that a test file names: the id, the file, and whether it is marked `full` there."""
    paths = sorted(set(TESTS.rglob("test_*.py")) - set(TESTS.rglob(ORACLE_TESTS)))
    return [(name, str(path.relative_to(TESTS)), is_full) for path in paths for name, is_full in named_of(path)]


def named_of(path: Path) -> list[tuple[str, bool]]:
    return sorted(set(named_in(ast.parse(path.read_text()))))


def ids_named_by_tests(*, also_full: bool = False) -> dict[str, list[str]]:
    """Id → the test files that name it."""
    named: dict[str, list[str]] = {}
    for name, file, is_full in named_by_tests():
        if also_full or not is_full:
            named.setdefault(name, []).append(file)
    return named


def listed_ids() -> list[str]:
    return UNCOVERED.read_text().split()


def write_uncovered() -> list[str]:
    """Take the ids that are covered now off the list; return those that are uncovered and not on it."""
    named = ids_named_by_tests()
    uncovered = [name for name in contract_ids() if name not in named]
    listed = listed_ids() if UNCOVERED.exists() else uncovered
    UNCOVERED.write_text("".join(f"{name}\n" for name in uncovered if name in listed))
    return [name for name in uncovered if name not in listed]


def test_the_contract_names_each_rule_once() -> None:
    ids = contract_ids()
    assert [name for name in ids if ids.count(name) > 1] == []
    for letter, count in (("S", 30), ("E", 12), ("G", 15)):
        assert [name for name in ids if re.fullmatch(rf"{letter}\d+", name)] == [
            f"{letter}{n}" for n in range(1, count + 1)
        ]


def test_a_rule_without_a_test_is_on_the_list() -> None:
    named, listed = ids_named_by_tests(), listed_ids()
    new = [name for name in contract_ids() if name not in named and name not in listed]
    assert new == [], "these rules have no test; the list may not grow"


def test_a_rule_with_a_test_is_off_the_list() -> None:
    named = ids_named_by_tests()
    assert {name: named[name] for name in listed_ids() if name in named} == {}, HOW_TO_SHRINK


def test_the_list_holds_only_rules_of_the_contract() -> None:
    assert set(listed_ids()) <= set(contract_ids()), HOW_TO_SHRINK


def test_tests_name_only_rules_that_exist() -> None:
    ids = set(contract_ids())
    families = {name.rstrip("0123456789") for name in ids}
    unknown = {name: files for name, files in ids_named_by_tests(also_full=True).items() if name not in ids}
    assert {name: files for name, files in unknown.items() if name.rstrip("0123456789") in families} == {}


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ('def test_x():\n    """TM3: opens with a tombstone; (S1, E12)"""', ["TM3", "S1", "E12"]),
        ('async def test_x():\n    """Said of ST12."""', ["ST12"]),
        ('class TestX:\n    """DL1"""', ["DL1"]),
        ('@pytest.mark.contract("TM3", "TM4")\ndef test_x(): ...', ["TM3", "TM4"]),
        ('pytestmark = pytest.mark.contract("G1")', ["G1"]),
        ('@pytest.mark.full\ndef test_x():\n    """TM3"""', []),
        ('@pytest.mark.full\nclass TestX:\n    def test_x(self):\n        """TM3"""', []),
        ('pytestmark = [pytest.mark.full]\ndef test_x():\n    """TM3"""', []),
        ('pytestmark = pytest.mark.full\ndef test_x():\n    """TM3"""', []),
        ('"""TM3 in a module\'s docstring"""\nTEXT = "TM4"  # TM5', []),
    ],
)
def test_ids_are_found_in_docstrings_and_markers_of_usual_tests_only(source: str, ids: list[str]) -> None:
    assert list(named_ids(source)) == ids


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    missing = write_uncovered()
    print(f"{len(listed_ids())} of {len(contract_ids())} rules are listed as uncovered")
    sys.exit(f"uncovered and not on the list: {' '.join(missing)}" if missing else 0)
