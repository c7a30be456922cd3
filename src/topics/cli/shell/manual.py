"""The help by sections, and the whole of it as a page: docs/cli.md is written from here, and a test holds it to this.

python -m topics.cli.shell.manual > docs/cli.md
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from topics.cli.shell import exits, mistakes
from topics.units import plain_duration, plain_size

OTHERS: Final = "Server"  # the section of commands that name none
ORDER: Final = ("Data", "Queues", "Operating", "Large data, on Spark", "This command", OTHERS)
OF_ALL: Final = ("--url", "--key", "--context", "--json", "--help")

NUMBER: Final = "N"
# What the value of an option is called, where that is not the option's own name.
VALUES: Final = {
    "idempotency_key": "KEY",
    "path": "DIR",
    "state": "DIR",
    "archive": "LAKE",
    "checkpoint": "DIR",
    "health": "FILE",
    "dead_letter": "TOPIC",
    "source": "TOPIC",
    "dest": "TOPIC",
    "since": "TIME",
    "until": "TIME",
    "topics": "REGEX",
    "data": "FIELD",
    "meta": "FIELD",
}

HEAD: Final = """\
# The command line

`topics` does from a terminal what [the API](api.md) does over HTTP. This page is `topics COMMAND --help` for \
every command; the tests run the examples against a server.

- [Habits](#habits)
- [Exit codes](#exit-codes)
{contents}

## Habits

- **Which server**: `--url` and `--key`, else `TOPICS_URL` and `TOPICS_TOKEN`, else the context in use, else \
`http://127.0.0.1:4000`. `topics context add prod --url https://topics.example --key-file key` remembers a \
server, readable only by you; `--context prod` picks it for one command, `topics context use prod` from now on. \
An error says which one was asked. `--url` may name [several servers](scale.md), with commas between them: a \
command goes to the one that has its topic, a new topic to its home; `TOPICS_TOKEN_FILE` has a key for each.
- **`--json`**: every command that talks to a server then prints NDJSON, one object per line, with the names of \
the API; `data` and `meta` are the bytes that were written. Errors are `{{"error":{{…}}}}` on stderr.
- **Data goes to stdout, all else to stderr**: progress, notices, and what was lost (`!!!`), with the range and \
the reason. Bars and colours are for terminals, and `NO_COLOR` turns colours off.
- **Nothing is destroyed in passing**: commands that delete say how many records and bytes it would be and ask. \
Without a terminal they refuse, unless you pass `--yes`.
- **Times and sizes** are written as `500ms`, `30s`, `1h30m`, `7d`, and as `4096`, `64KiB`, `1GB`. A tag matches \
as a whole, or with `eu*` by its beginning.
- **Completion**, of topic names, too: `eval "$(topics completion bash)"` in `~/.bashrc`; `topics completion \
zsh` and `topics completion fish` likewise.

## Exit codes

| code | meaning |
|---|---|
{codes}
| 128 + n | ended by signal n |

[audit](#topics-audit), [backup](#topics-backup), [restore](#topics-restore) and [doctor](#topics-doctor) have their \
own.
"""


class Command(TyperCommand):
    """A command whose help and messages say what a value is, not how it is kept: N, TIME, TOPIC, not <int range>."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for parameter in self.params:
            _name_value(parameter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            mistakes.explain(error)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar or ""]
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                name = parameter.metavar or parameter.name
                name += "…" if parameter.nargs != 1 and "…" not in name else ""
                pieces.append(name if parameter.required or name.startswith("[") else f"[{name}]")
        return pieces


def _name_value(parameter: Any) -> None:
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None or getattr(parameter, "is_flag", False):
        return
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
        if not descriptor.is_choice:
            parameter.display_type_rich = lambda ctx: None  # its name says it
        return
    if parameter.metavar is None and not descriptor.is_choice:
        is_number = descriptor.is_ranged or "int" in parameter.bare_type() or "float" in parameter.bare_type()
        name = parameter.name.removesuffix("_")
        parameter.metavar = NUMBER if is_number else VALUES.get(name, name.replace("_", "-").upper())
    forms = {"TIME": plain_duration, "SIZE": plain_size}
    if parameter.metavar in forms and isinstance(parameter.default, int):
        parameter.show_default = False
        parameter.help = f"{parameter.help}  [default: {forms[parameter.metavar](parameter.default)}]"


class Sections(TyperGroup):
    """A group whose help lists its commands by section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, commands in by_section(self, ctx):
            with formatter.section(section if len(self.commands) > len(commands) else "Commands"):
                rows = [(name, one.get_short_help_str(formatter.width - 20)) for name, one in commands]
                formatter.write_dl(rows)


def by_section(group: Any, ctx: Any) -> list[tuple[str, list[tuple[str, Any]]]]:
    found: dict[str, list[tuple[str, Any]]] = {}
    for name in group.list_commands(ctx):
        one = group.get_command(ctx, name)
        if one is not None and not one.hidden:
            section = getattr(one, "rich_help_panel", None)
            found.setdefault(section if isinstance(section, str) else OTHERS, []).append((name, one))
    return sorted(found.items(), key=lambda item: ORDER.index(item[0]) if item[0] in ORDER else len(ORDER))


def page(root: Any) -> str:
    """The page, of the command `topics`."""
    ctx = typer.Context(root, info_name="topics")
    sections = by_section(root, ctx)
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in exits.MEANINGS.items())
    contents = "\n".join(
        f"- [{section}](#{_anchor(section)}): {', '.join(f'[{n}](#topics-{n})' for n, _ in commands)}"
        for section, commands in sections
    )
    lines = [HEAD.format(codes=codes, contents=contents)]
    for section, commands in sections:
        lines.append(f"## {section}\n")
        for name, one in commands:
            lines += _entries(one, f"topics {name}", ctx, "###")
    return "\n".join(lines).rstrip("\n") + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _entries(one: Any, title: str, parent: Any, level: str) -> Iterator[str]:
    ctx = typer.Context(one, info_name=title.rpartition(" ")[2], parent=parent)
    yield f"{level} {title}\n"
    if hasattr(one, "list_commands"):
        yield f"{_plain(one.help or '')}\n"
        for name in one.list_commands(ctx):
            yield from _entries(one.get_command(ctx, name), f"{title} {name}", ctx, level + "#")
        return
    usage = " ".join(one.collect_usage_pieces(ctx))
    text, _, examples = (one.help or "").partition("\b\nExamples:\n")
    yield f"{_plain(text)}\n"
    yield f"```console\n$ {title} {usage}\n```\n"
    if examples:
        shown = "\n".join(f"$ {line.strip()}" for line in examples.strip("\n").splitlines())
        yield f"Examples:\n\n```console\n{shown}\n```\n"
    if rows := _rows(one, ctx):
        yield "| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _rows(one: Any, ctx: Any) -> list[str]:
    rows = []
    for parameter in one.get_params(ctx):
        row = parameter.get_help_record(ctx)
        if row is None or any(name in OF_ALL for name in parameter.opts):
            continue
        name, meaning = (_plain(cell).replace("|", "\\|").strip() for cell in row)
        rows.append(f"| `{name}` | {meaning} |")
    return rows


def _plain(text: str) -> str:
    """Paragraphs on one line each."""
    paragraphs = text.replace("\b", "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
