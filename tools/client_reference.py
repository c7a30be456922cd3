"""Writes docs/client-reference.md from the docstrings and signatures of the client; run it after each change of them.

    python -m tools.client_reference

Classes are those that `topics.client` exports. Of each pair only the blocking one is shown: the asyncio one has the
same methods. Private names, dunders and tests' clocks are left out.
"""

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from topics import client as api
from topics.client.arguments import ConfigFields
from topics.client.errors import CODES
from topics.client.protocol.cursors import ReadOptions
from topics.client.protocol.operations import BulkOptions

PAGE: Final = Path(__file__).parent.parent / "docs" / "client-reference.md"

# Heading → the classes below it. What none of them names is under "Results".
GROUPS: Final = {
    "The client": ("Client",),
    "Loops": ("Listing", "Consumer", "Export", "Watcher"),
    "Producers": ("Producer",),
    "Workers": ("Worker", "JobContext", "JobDone", "Retry", "Reject"),
    "Kept cursors": ("FileCursor", "SQLiteCursor", "NamedCursor", "KeptCursor", "Position"),
    "Records and events": (
        *("NewRecord", "Record", "TypedRecord", "Job", "Tombstone", "Lost", "Records", "CaughtUp", "TopicGone"),
    ),
    "Hooks": ("Retrying", "Reconnecting"),
    "Results": (),
    "Errors": (
        *("ApiError", "ClientError", "ConnectionFailed", "CannotConnect", "ClientClosed", "DeadlineExceeded"),
        *("UnexpectedAnswer", "WatchEnded"),
    ),
}
MADE_BY_USERS: Final = ("Client", "FileCursor", "SQLiteCursor", "NamedCursor", "Retry", "Reject")
HEAD: Final = """# Reference of the Python client

Made of the docstrings by `python -m tools.client_reference`. To learn the client, read [the guide](client.md) first.

Everything here is in `topics.client`, and what programs need most in `topics`, too. `AsyncClient` has the methods of \
`Client`; await those that return a result, and use `async with` and `async for` for the others. Its classes begin \
with Async: `AsyncConsumer`, `AsyncWorker` and so on.
"""
OPTIONS: Final = {
    ReadOptions: "`**options` of `diff` and `consume`",
    ConfigFields: "`**fields` of `put_topic`",
    BulkOptions: "`**options` of `append_ndjson` and `append_arrow`",
}


def page() -> str:
    """The whole page."""
    return formatted("\n".join(parts()) + "\n")


def parts() -> Iterator[str]:
    yield HEAD
    named = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in api.__all__ if name not in named and not is_twin(name) and is_class(name))
    groups = {heading: names or rest for heading, names in GROUPS.items()}
    yield "".join(f"- [{heading}](#{anchor(heading)})\n" for heading in groups)
    for heading, names in groups.items():
        yield f"## {heading}\n"
        for name in names:
            yield from class_parts(name, getattr(api, name))
        if heading == "The client":
            yield from options_parts()
        if heading == "Errors":
            yield from code_parts()


def is_class(name: str) -> bool:
    return inspect.isclass(getattr(api, name))


def is_twin(name: str) -> bool:
    return name.startswith("Async") and name.removeprefix("Async") in api.__all__


def anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def class_parts(name: str, kind: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield prose(kind.__doc__)
    if fields := fields_of(kind):
        yield code(*fields)
    elif name in MADE_BY_USERS:
        yield code(signature(name, kind.__init__))
    for method, member in members_of(kind):
        of = f"{name}.{method}" if name != "Client" else method
        if isinstance(member, property):
            yield f"**`{of}`** (`{returned_by(definition_of(member.fget))}`): {prose(inspect.getdoc(member))}"
        else:
            yield f"#### {of}\n"
            yield code(signature(method, member))
            yield prose(inspect.getdoc(member))


def members_of(kind: Any) -> Iterator[tuple[str, Any]]:
    """Public methods and properties in the order of the sources, its own before those that it inherits."""
    seen: dict[str, Any] = {}
    for one in kind.__mro__:
        if one.__module__.startswith("topics."):
            seen = seen | {name: member for name, member in vars(one).items() if name[0] != "_" and name not in seen}
    for name, member in seen.items():
        if isinstance(member, classmethod | staticmethod):
            continue
        if inspect.isfunction(member) or isinstance(member, property):
            yield name, member


def fields_of(kind: Any) -> list[str]:
    """The fields of a struct or a named tuple, those of its bases first, with what the source says of them."""
    lines: list[str] = []
    if issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields"):
        for one in reversed(kind.__mro__):
            own = fields_in(one) if one.__module__.startswith("topics.") else []
            names = [line.partition(":")[0] for line in own]
            lines = [line for line in lines if line.partition(":")[0] not in names] + own
    return lines


def fields_in(kind: Any) -> list[str]:
    """The fields that a class declares itself, as its source has them."""
    source = textwrap.dedent(inspect.getsource(kind))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    rows = source.splitlines()
    return [textwrap.dedent("\n".join(rows[node.lineno - 1 : node.end_lineno])) for node in fields]


def signature(name: str, function: Any) -> str:
    """How it is called, without self, the tests' clock, and the body."""
    definition = definition_of(function)
    arguments = definition.args
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    pairs = [pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[0].arg != "clock"]
    arguments.kwonlyargs, arguments.kw_defaults = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    said = "" if definition.name == "__init__" else f" -> {returned_by(definition)}"
    return f"def {name}({plain(ast.unparse(arguments))}){said}: ..."


def definition_of(function: Any) -> ast.FunctionDef:
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition


def returned_by(definition: ast.FunctionDef) -> str:
    assert definition.returns is not None
    return plain(ast.unparse(definition.returns)).strip("'\"")


def plain(text: str) -> str:
    """Types without the module that the sources name."""
    return text.replace("results.", "")


def options_parts() -> Iterator[str]:
    for kind, who in OPTIONS.items():
        yield f"### {kind.__name__}\n"
        yield f"{who}. {prose(kind.__doc__)}"
        yield code(*fields_in(kind))


def code_parts() -> Iterator[str]:
    yield "### One class per code\n"
    yield "Each is an `ApiError`, and also the class of that name in `topics.errors`.\n"
    rows = (f"| `{kind.__name__}` | `{code}` | {one_line(kind.__doc__)} |\n" for code, kind in CODES.items())
    yield "| class | code | when |\n|---|---|---|\n" + "".join(rows)


def prose(text: str | None) -> str:
    """A docstring as Markdown: one line per paragraph."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "".join(f"{one_line(paragraph)}\n\n" for paragraph in paragraphs)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def code(*lines: str) -> str:
    return "```py\n" + "\n".join(lines) + "\n```\n"


def formatted(text: str) -> str:
    """The page with its signatures laid out by Ruff, all in one go, and single empty lines."""
    blocks = text.split("```py\n")
    bodies = [block.partition("\n```\n")[0] for block in blocks[1:]]
    mark = "\n\n# ---\n\n"
    command = (sys.executable, "-m", "ruff", "format", "--quiet", "--no-cache", "--line-length", "120", "-")
    laid = subprocess.run(command, input=mark.join(bodies), capture_output=True, text=True, check=True).stdout
    pieces = [piece.strip() for piece in laid.split("# ---")]
    assert len(pieces) == len(bodies)
    out = blocks[0]
    for piece, block in zip(pieces, blocks[1:], strict=True):
        out += f"```py\n{piece}\n```\n" + block.partition("\n```\n")[2]
    lines: list[str] = []
    is_code = False
    for line in out.splitlines():
        is_code ^= line.startswith("```")
        if line or is_code or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
