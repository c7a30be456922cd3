"""What is wrong with the value of an option or argument, in plain words: the value, and what to write instead."""

from typing import Any

import typer


def explain(error: typer.BadParameter) -> None:
    """Replace the words of the library that checked a value. A message of our own stays as it is."""
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return
    first = found()[0]
    message = _plain(first["type"], first["input"], first.get("ctx") or {}, error)
    if message is not None:
        error.message = message


def _plain(kind: str, value: Any, bounds: dict[str, Any], error: Any) -> str | None:
    if kind in ("int_parsing", "int_from_float", "int_parsing_size"):
        return f"{value!r} is not a whole number"
    if kind in ("float_parsing", "finite_number"):
        return f"{value!r} is not a number"
    if kind == "greater_than_equal":
        return f"{value} is too small; use {bounds['ge']} or more"
    if kind == "less_than_equal":
        return f"{value} is too large; use {bounds['le']} or less"
    choices = getattr(getattr(error.param, "type_descriptor", None), "choices", None)
    return _no_choice(value, [str(choice) for choice in choices]) if choices else None


def _no_choice(value: Any, choices: list[str]) -> str:
    from topics.faults import nearest, one_of

    close = nearest(str(value), choices)
    hint = "" if close is None else f"; did you mean {close}?"
    return f"{value!r} is not one of {one_of(choices)}{hint}"
