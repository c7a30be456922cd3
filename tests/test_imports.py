"""Who may import whom, and who may touch files, time and the environment.

The rules are tables below; each module of the package is parsed, not imported, and held against them. A new package
gets a row when it is born.
"""

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.effort import swept

SRC = Path(__file__).parent.parent / "src"

# Groups of modules that share a row. Each member is a part of its own.
GROUPS = {
    "words": "errors faults model placement ranges units",  # the vocabulary
    "seams": "clock settings tuning",  # what the outside world is asked through
    "hall": "engine.answers engine.export engine.gate engine.ledger engine.loading",  # what every room knows
    "rooms": "engine.changes engine.queues engine.reads engine.routers engine.seeing engine.upkeep",
    "decoding": "core.topic.config core.topic.records core.queue.jobs",  # what requests are decoded to
}
# The parts of the package and what each may import of the others, `topics` being the package's own names.
# A part may always import itself; the longest name that fits a module is its part.
LAYERS = {
    "topics": "words seams engine client",
    "words seams": "topics words",
    "core decoding": "topics words core decoding",
    "uring": "topics",
    "storage": "topics words clock uring",
    "engine.durability": "words seams core decoding storage",
    "hall rooms": "words seams core decoding storage engine.durability hall",
    "engine": "words seams core decoding storage engine.durability hall rooms backup",
    "reader": "words core storage engine.durability",
    "backup": "words seams core storage engine.durability reader client",
    "server": "topics words seams decoding engine engine.answers uring",
    "client": "topics words clock settings",
    "spark": "topics words seams client reader",
    "__main__ spark.jobs.__main__": "cli",  # entries, the latter for spark-submit
    "cli": "topics words seams engine server client reader backup spark",
    "testing": "topics words seams core decoding storage engine hall server client testing.oracle",
    "testing.oracle": "words",
}


def full(part: str) -> str:
    return part if part == "topics" else f"topics.{part}"


def parts_in(row: str) -> list[str]:
    """The parts that a row names, groups by their members."""
    return [full(part) for word in row.split() for part in GROUPS.get(word, word).split()]


def names(module: str, words: str) -> set[str]:
    return {f"{module}.{word}" for word in words.split()}


MAY_IMPORT = {part: set(parts_in(row)) for key, row in LAYERS.items() for part in parts_in(key)}

# Who may use what the rest is given.
MAY_TOUCH_FILES = {
    "topics.storage",  # owns the data directory
    "topics.testing",  # disks that fail on purpose, servers in a process of their own
    "topics.cli",  # the files that its user names
    "topics.backup",  # the places that its user names
    "topics.tuning",  # what the system says of this process
    "topics.uring",  # memory of the kernel's, sockets by their descriptors
    "topics.client.kept_cursors",  # likewise
    "topics.client.fleets.token_file",  # the keys that its user names
    "topics.server.access.key_file",  # the keys that its operator names
    "topics.server.console",  # its own static pages
    "topics.spark",  # Java, lakes, rows that do not fit into memory
}
MAY_READ_TIME = {"topics.clock"}
MAY_READ_ENVIRONMENT = {
    "topics.settings",
    "topics.spark.java",  # JAVA_HOME, as Spark reads it
    "topics.spark.session",  # PYSPARK_PYTHON
}

ENVIRONMENT = names("os", "environ environb getenv getenvb putenv unsetenv")
TIME = (
    names("time", "time monotonic perf_counter process_time thread_time clock_gettime sleep gmtime localtime ctime")
    | names("time", "time_ns monotonic_ns perf_counter_ns process_time_ns thread_time_ns clock_gettime_ns")
    | names("datetime.datetime", "now utcnow today")
    | {"datetime.date.today"}
)
FILE_MODULES = {"fcntl", "fileinput", "glob", "mmap", "shutil", "tempfile"}
FILES = (
    {"open"}
    | names("io", "open FileIO")
    | names("pyarrow", "memory_map create_memory_map OSFile")
    | names("os", "open fdopen read readv pread preadv write writev pwrite pwritev close dup lseek sendfile")
    | names("os", "fsync fdatasync sync truncate ftruncate posix_fallocate posix_fadvise copy_file_range lockf")
    | names("os", "rename renames replace remove unlink link symlink readlink mkdir makedirs rmdir removedirs")
    | names("os", "listdir scandir walk fwalk stat fstat lstat statvfs access chmod fchmod chown utime mkfifo mknod")
    | names("os.path", "exists lexists isfile isdir islink getsize getmtime samefile")
)
# Methods of pathlib.Path that do I/O and whose names belong to nothing else; looked for where pathlib is imported.
PATH_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "iterdir", "rglob"),
    *("is_file", "is_dir", "symlink_to", "hardlink_to"),
}


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.Call)


class Module:
    """One parsed module: what it imports, and the full names of what it uses."""

    def __init__(self, name: str, source: str, *, is_package: bool = False) -> None:
        self.name = name
        self.package = name if is_package else name.rpartition(".")[0]
        self.imports: list[tuple[int, str]] = []  # line, full name of a module or of a name in one
        self.aliases: dict[str, str] = {}  # local name → full name
        self.nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOKED_AT)]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append((node.lineno, alias.name))
            if alias.asname:
                self.aliases[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                self.aliases[top] = top

    def _import_from(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            parts = self.package.split(".")
            anchor = ".".join(parts[: len(parts) - node.level + 1])
            origin = f"{anchor}.{origin}".rstrip(".")
        for alias in node.names:
            self.imports.append((node.lineno, f"{origin}.{alias.name}"))
            self.aliases[alias.asname or alias.name] = f"{origin}.{alias.name}"

    def uses(self) -> Iterator[tuple[int, str]]:
        """Line and full name of every name and attribute, as far as imports tell; `open` alone is the builtin."""
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and (name := self._full_name(node)):
                yield node.lineno, name

    def _full_name(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id if node.id == "open" else None)
        if isinstance(node, ast.Attribute) and (owner := self._full_name(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def method_calls(self) -> Iterator[tuple[int, ast.expr, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield node.lineno, node.func.value, node.func.attr


def is_within(name: str, parts: set[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def part_of(name: str) -> str:
    """The row of LAYERS for a module, or for a name in it; `topics.x` for a part that has none yet."""
    pieces = name.split(".")
    prefixes = (".".join(pieces[:n]) for n in range(len(pieces), 1, -1))
    return next((p for p in prefixes if p in MAY_IMPORT), "topics" if len(pieces) == 1 else ".".join(pieces[:2]))


def imported_parts(module: Module) -> Iterator[tuple[int, str]]:
    for line, name in module.imports:
        if is_within(name, {"topics"}):
            yield line, "topics" if is_public_name(name) else part_of(name)


def is_public_name(name: str) -> bool:
    """Is `topics.x` a name that the package itself defines, rather than a module of it?"""
    path = SRC / name.replace(".", "/")
    return (
        name.count(".") == 1 and name not in MAY_IMPORT and not path.is_dir() and not path.with_suffix(".py").is_file()
    )


def forbidden_imports(module: Module) -> list[str]:
    own = part_of(module.name)
    if own not in MAY_IMPORT:
        return [f"{own} has no row in LAYERS"]
    return [
        f"line {line}: {own} may not import {part}"
        for line, part in imported_parts(module)
        if part != own and part not in MAY_IMPORT[own]
    ]


def forbidden_uses(module: Module) -> list[str]:
    found = []
    if not is_within(module.name, MAY_READ_TIME):
        found += [f"line {line}: {name} reads time" for line, name in module.uses() if name in TIME]
        found += [
            f"line {line}: the event loop's time"
            for line, owner, method in module.method_calls()
            if method == "time" and "loop" in ast.unparse(owner)
        ]
    if not is_within(module.name, MAY_READ_ENVIRONMENT):
        found += [f"line {line}: {name} is the environment" for line, name in module.uses() if name in ENVIRONMENT]
    if not is_within(module.name, MAY_TOUCH_FILES):
        found += [f"line {line}: {name} touches files" for line, name in module.uses() if name in FILES]
        found += [f"line {line}: {name} is for files" for line, name in module.imports if is_within(name, FILE_MODULES)]
        if any(is_within(name, {"pathlib"}) for _, name in module.imports):
            calls = module.method_calls()
            found += [f"line {line}: .{method}() touches files" for line, _, method in calls if method in PATH_METHODS]
    return found


def paths() -> dict[str, Path]:
    found = {}
    for path in sorted((SRC / "topics").rglob("*.py")):
        pieces = path.relative_to(SRC).with_suffix("").parts
        found[".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)] = path
    return found


PATHS = paths()


@cache
def parsed(name: str) -> Module:
    return Module(name, PATHS[name].read_text(), is_package=PATHS[name].name == "__init__.py")


@swept("name", PATHS)
def test_a_module_imports_only_what_its_layer_may(name: str) -> None:
    assert forbidden_imports(parsed(name)) == []


@swept("name", PATHS)
def test_files_time_and_environment_are_used_by_their_owners_only(name: str) -> None:
    assert forbidden_uses(parsed(name)) == []


def test_every_package_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["spark"]
    requirements += project["optional-dependencies"]["iceberg"] + project["optional-dependencies"]["testing"]
    declared = {re.split(r"[<>=[]", requirement)[0] for requirement in requirements}
    imported = {name.partition(".")[0] for module in map(parsed, PATHS) for _, name in module.imports}
    assert imported - sys.stdlib_module_names - {"topics"} <= declared


def test_importing_topics_loads_nothing_heavy() -> None:
    heavy = ("topics.server", "topics.spark", "pyspark", "pyarrow", "pandas", "uvloop", "httptools", "typer")
    code = f"import sys, topics; print([m for m in {heavy!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "source", "part"),
    [
        ("topics.core.topic.log", "import topics.storage.wal", "topics.storage"),
        ("topics.core.topic.log", "from topics.storage import wal", "topics.storage"),
        ("topics.core.topic.log", "from topics import clock", "topics.clock"),
        ("topics.core.topic.log", "def f():\n    from ...storage.wal import Wal", "topics.storage"),
        ("topics.storage.wal", "from topics.core.entries import Appended", "topics.core"),
        ("topics.client.consumer", "from topics.engine import Engine", "topics.engine"),
        ("topics.server.app", "import topics.storage", "topics.storage"),
        ("topics.spark.reader", "from topics.storage.segments import read", "topics.storage"),
        ("topics.testing.oracle", "from topics.core.topic.log import Log", "topics.core"),
        ("topics.model", "from topics.settings import Settings", "topics.settings"),
        ("topics.core.topic.log", "from topics.testing.oracle import Oracle", "topics.testing.oracle"),
        ("topics.engine", "from topics.brandnew import x", "topics.brandnew"),
    ],
)
def test_an_import_across_layers_is_found(name: str, source: str, part: str) -> None:
    assert [p for _, p in imported_parts(Module(name, source))] == [part]
    assert len(forbidden_imports(Module(name, source))) == 1


def test_a_package_without_a_row_is_found() -> None:
    assert forbidden_imports(Module("topics.brandnew.x", "")) == ["topics.brandnew has no row in LAYERS"]


def test_relative_imports_inside_a_layer_are_allowed() -> None:
    package = Module("topics.core", "from .log import Log\nfrom . import entries", is_package=True)
    module = Module("topics.core.apply", "from .log import Log\nfrom topics import __version__\nfrom ..model import X")
    assert forbidden_imports(package) == forbidden_imports(module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nt = time.monotonic()",
        "import time as t\nx = t.time_ns",
        "from time import perf_counter as p\np()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "import asyncio\nasyncio.get_running_loop().time()",
        "import os\nos.environ['X']",
        "from os import environ, path\nenviron.get('X')",
        "import os\nos.getenv('X')",
        "open('x')",
        "import os\nos.fsync(3)",
        "import os.path\nos.path.exists('x')",
        "from os import rename\nrename('a', 'b')",
        "import shutil",
        "from pathlib import Path\nPath('x').read_text()",
        "import pyarrow as pa\npa.memory_map('x')",
    ],
)
def test_a_use_of_time_files_or_environment_is_found(source: str) -> None:
    assert len(forbidden_uses(Module("topics.engine", source))) == 1


def test_look_alikes_are_not_mistaken_for_time_files_or_environment() -> None:
    source = """
        import os
        from datetime import timedelta
        from pathlib import Path

        def start(self, clock, name: str, path: Path) -> None:
            self.open(path / name.replace("a", "b"))
            clock.monotonic(), self.time, os.getpid(), os.urandom(16), timedelta(1)
    """
    assert forbidden_uses(Module("topics.engine", textwrap.dedent(source))) == []


@pytest.mark.parametrize(
    ("owner", "source"),
    [
        ("topics.clock", "import time\ntime.monotonic()"),
        ("topics.settings", "import os\nos.environ"),
        ("topics.storage.disk", "import os, fcntl\nos.fsync(3)"),
        ("topics.server.console.pages", "from pathlib import Path\nPath('x').read_bytes()"),
    ],
)
def test_an_owner_may_use_what_it_owns(owner: str, source: str) -> None:
    assert forbidden_uses(Module(owner, source)) == []
