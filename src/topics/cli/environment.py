"""Settings for people: the table of variables, and the values in effect."""

import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from topics.errors import ConfigurationError
from topics.settings import Settings

REFUSED = 2  # exit code of a start that was refused
MASK = "(set, not shown)"


def variables_help() -> str:
    """Every variable with its default and meaning, from the settings themselves."""
    rows = [("variable", "default", "meaning")]
    rows += [(f.metadata["variable"], _text(f.default), f.metadata["meaning"]) for f in fields(Settings)]
    return "Environment variables\n\n" + "\n".join(_aligned(rows))


def show_settings() -> None:
    try:
        settings, sources = Settings.load(), Settings.sources()
    except ConfigurationError as error:
        print(f"topics: {error.message}", file=sys.stderr)
        raise SystemExit(REFUSED) from None
    rows = [("variable", "value", "from")]
    for field in fields(Settings):
        value = getattr(settings, field.name)
        text = MASK if field.metadata["secret"] and value else _text(value)
        source = sources[field.name]
        rows.append((field.metadata["variable"], text, source if source == "default" else f"environment: {source}"))
    print("\n".join(_aligned(rows)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value == "" else str(value)


def _aligned(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[n]) for row in rows) for n in range(2)]
    return [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
