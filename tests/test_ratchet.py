"""Sizes that keep the house readable, and the exceptions, which may only shrink.

What is above its limit is listed in EXCEPTIONS with its present size. An entry that grows fails, and so does one that
has shrunk or is no longer needed: take the smaller number over. The table as the sources are now, to be pasted:

    python -m tests.test_ratchet
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TOPICS = Path(__file__).parent.parent / "src" / "topics"

FUNCTION, CLASS, FILE = "lines of a function", "methods of a class", "lines of a file"
PACKAGE, NAME, HEART = "modules of a package", "modules of one file name", "lines of core, storage and engine"
LIMITS = {FUNCTION: 70, CLASS: 25, FILE: 500, PACKAGE: 10, NAME: 1, HEART: 10_000}
HEART_PACKAGES = ("core", "storage", "engine")
UNCOUNTED_NAMES = ("__init__", "__main__")

Sizes = dict[str, dict[str, int]]  # limit → what is measured, by its dotted name below topics → size

EXCEPTIONS: Sizes = {
    CLASS: {
        "client.aio.client.AsyncClient": 32,
        "client.blocking.client.Client": 32,
        "core.topic.live.LiveRecords": 27,
        "storage.wal.Wal": 30,
        "testing.disk.MemoryDisk": 29,
        "testing.oracle.Oracle": 30,
        "testing.wire.WireTransport": 28,
    },
    FILE: {
        "testing.disk": 663,
        "testing.oracle": 709,
    },
    NAME: {
        "caller": 2,
        "client": 2,
        "clock": 2,
        "concurrency": 2,
        "connections": 2,
        "disk": 2,
        "errors": 2,
        "export": 3,
        "history": 2,
        "layout": 2,
        "producer": 2,
        "queue_calls": 2,
        "read_calls": 2,
        "records": 2,
        "sockets": 2,
        "streams": 2,
        "worker": 2,
    },
    HEART: {
        "all": 16858,
    },
}


def measure(root: Path) -> Sizes:
    """Everything that has a limit, of all modules below this directory."""
    sizes: Sizes = {limit: {} for limit in LIMITS}
    packages: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        text, place = path.read_text(), path.relative_to(root).with_suffix("").parts
        sizes[FILE][".".join(place)] = len(text.splitlines())
        if place[-1] != "__init__":
            packages[".".join(place[:-1]) or root.name] += 1
        if place[-1] not in UNCOUNTED_NAMES:
            names[place[-1]] += 1
        for limit, name, size in measured_in(ast.parse(text), ".".join(place)):
            sizes[limit][name] = size
    sizes[PACKAGE] |= packages
    sizes[NAME] |= names
    sizes[HEART]["all"] = sum(lines for name, lines in sizes[FILE].items() if name.split(".")[0] in HEART_PACKAGES)
    return sizes


def measured_in(node: ast.AST, place: str) -> Iterator[tuple[str, str, int]]:
    """Functions and classes below this node, and those within them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield FUNCTION, f"{place}.{child.name}", child.end_lineno - child.lineno + 1
            yield from measured_in(child, f"{place}.{child.name}")
        elif isinstance(child, ast.ClassDef):
            methods = [one for one in child.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield CLASS, f"{place}.{child.name}", len(methods)
            yield from measured_in(child, f"{place}.{child.name}")
        else:
            yield from measured_in(child, place)


def exceptions_of(sizes: Sizes) -> Sizes:
    """What is above its limit."""
    above = {limit: {n: size for n, size in sizes[limit].items() if size > most} for limit, most in LIMITS.items()}
    return {limit: dict(sorted(found.items())) for limit, found in above.items() if found}


def complaints(sizes: Sizes, exceptions: Sizes) -> list[str]:
    """Where the sizes are not those of the limits and their exceptions."""
    found, above = [], exceptions_of(sizes)
    for limit, most in LIMITS.items():
        listed, present = exceptions.get(limit, {}), above.get(limit, {})
        for name in sorted(listed | present):
            was, now = listed.get(name), present.get(name)
            if was is None:
                found.append(f"{name}: {now} {limit}, at most {most}")
            elif now is None:
                found.append(f"{name}: no exception is needed any more for the {limit}")
            elif now > was:
                found.append(f"{name}: {limit} grew from {was} to {now}, where at most {most} are wanted")
            elif now < was:
                found.append(f"{name}: {limit} shrank from {was} to {now}; the exception must, too")
    return found


def test_sizes_keep_their_limits_and_exceptions_only_shrink() -> None:
    assert complaints(measure(TOPICS), EXCEPTIONS) == []


# --- the ratchet itself


def planted(root: Path, sources: dict[str, str]) -> Sizes:
    """The sizes of a package with these modules; `a/b` is module b of package a."""
    for name, source in sources.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return measure(root)


def function(lines: int, name: str = "long") -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def methods(count: int) -> str:
    return "class Big:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(count))


def test_what_keeps_its_limit_needs_no_exception(tmp_path: Path) -> None:
    modules = {f"full/m{n}": "" for n in range(10)}
    sizes = planted(tmp_path, {"long": function(70), "big": methods(25), "core/lines": "#\n" * 500} | modules)
    assert exceptions_of(sizes) == {} and complaints(sizes, {}) == []


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"a": function(71)}, "a.long: 71 lines of a function, at most 70"),
        ({"a": "async " + function(71)}, "a.long: 71 lines of a function, at most 70"),
        ({"a": "if True:\n class A:\n" + function(71).replace("def", "  def")}, "a.A.long: 71 lines"),
        ({"a": methods(26)}, "a.Big: 26 methods of a class, at most 25"),
        ({"a/b": "#\n" * 501}, "a.b: 501 lines of a file, at most 500"),
        ({f"p/m{n}": "" for n in range(11)}, "p: 11 modules of a package, at most 10"),
        ({"a/same": "", "b/same": ""}, "same: 2 modules of one file name, at most 1"),
        ({f"core/p{n % 5}/m{n}": "#\n" * 500 for n in range(21)}, "all: 10500 lines of core, storage and engine"),
    ],
)
def test_what_is_above_its_limit_is_found(tmp_path: Path, sources: dict[str, str], complaint: str) -> None:
    sizes = planted(tmp_path, sources)
    (said,) = complaints(sizes, {})
    assert said.startswith(complaint)
    assert complaints(sizes, exceptions_of(sizes)) == []


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (79, "a.long: lines of a function grew from 79 to 80, where at most 70 are wanted"),
        (81, "a.long: lines of a function shrank from 81 to 80; the exception must, too"),
    ],
)
def test_an_exception_is_exact(tmp_path: Path, listed: int, complaint: str) -> None:
    assert complaints(planted(tmp_path, {"a": function(80)}), {FUNCTION: {"a.long": listed}}) == [complaint]


@pytest.mark.parametrize("source", [function(70), function(9, "renamed"), ""])
def test_an_exception_that_is_not_needed_goes(tmp_path: Path, source: str) -> None:
    said = complaints(planted(tmp_path, {"a": source}), {FUNCTION: {"a.long": 71}})
    assert said == ["a.long: no exception is needed any more for the lines of a function"]


def test_packages_and_entries_share_their_names_freely(tmp_path: Path) -> None:
    sizes = planted(tmp_path, dict.fromkeys(("a/__init__", "b/__init__", "a/__main__", "b/__main__"), ""))
    assert complaints(sizes, {}) == []


if __name__ == "__main__":
    print("EXCEPTIONS: Sizes = {")
    variables = {FUNCTION: "FUNCTION", CLASS: "CLASS", FILE: "FILE", PACKAGE: "PACKAGE", NAME: "NAME", HEART: "HEART"}
    for limit, above in exceptions_of(measure(TOPICS)).items():
        print(f"    {variables[limit]}: {{")
        for name, size in above.items():
            print(f'        "{name}": {size},')
        print("    },")
    print("}")
