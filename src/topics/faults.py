"""What is wrong with a JSON text, in JSON's words: the field, what was given, what is allowed, and the nearest to it.

`fault_in` turns what a decoder raised into the message that a caller reads. It knows messages of msgspec, and asks the
decoder's type which values a field may have; a message that it does not know is shown as it is. Must not know: what
requests mean, who decodes them. It costs something only when a text is refused.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

GIVEN_BYTES_MAX: Final = 64 * 1024  # of a text in which the value at fault is looked up
SHOWN_CHARACTERS_MAX: Final = 40  # of a value
NAME_CHARACTERS_MAX: Final = 64  # of a name that others are compared with
NAMES_MAX: Final = 16  # that were given, and one that is missing is compared with

_PLACED: Final = re.compile(r"(?P<what>.*) - at `\$(?P<place>.*)`", re.DOTALL)
_STEPS: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_EXPECTED: Final = re.compile(r"Expected `(?P<kinds>[^`]+)`(?:, got `(?P<got>[^`]+)`| >= (?P<least>-?\d+))")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_NO_CHOICE: Final = re.compile(r"Invalid enum value '(?P<value>.*)'", re.DOTALL)

_ALLOWED: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_GIVEN: Final = _ALLOWED | {"int": "a number", "bool": "a boolean"}
_CHOICES: Final = {
    "durability": "a class",
    "type": "a type of topic",
    "discard": "a policy",
    "guarantee": "a guarantee",
    "consistency": "a consistency",
}
_KINDS: Final[dict[type, str]] = {
    int: "int", float: "float", str: "str", bool: "bool", list: "array", dict: "object", type(None): "null"
}  # fmt: skip

Steps = Sequence[str | int]


def fault_in(error: Exception, text: bytes, decode: Callable[[bytes], Any]) -> str:
    """Why `decode`, a method of a msgspec decoder, refused a text."""
    if not isinstance(error, msgspec.ValidationError):
        return f"the body is not valid JSON: {_malformed(error)}"
    said = str(error)
    placed = _PLACED.fullmatch(said)
    what, place = (said, "") if placed is None else (placed["what"], placed["place"])
    steps = [_step(match) for match in _STEPS.finditer(place)]
    return _plain(what, place.lstrip("."), _Given(text, decode, steps))


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that one that is not known was most likely meant to be; None if none is so much like it."""
    found = get_close_matches(name[:NAME_CHARACTERS_MAX].lower(), known, 1, likeness)
    return found[0] if found else None


def quoted(text: str) -> str:
    """A text as it is shown: in JSON's quotes, and not too long."""
    cut = text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
    return msgspec.json.encode(cut.encode(errors="replace").decode()).decode()


def one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


class _Given:
    """Where in a text the fault lies: what is there, and what the decoder would take."""

    def __init__(self, text: bytes, decode: Any, steps: Steps) -> None:
        self._text = text
        self._decode = decode
        self._steps = steps

    def value(self) -> Any:
        """What was given; LookupError: that cannot be told."""
        if len(self._text) > GIVEN_BYTES_MAX:
            raise LookupError
        try:
            are_lines = self._decode.__name__ == "decode_lines"
            value: Any = (_decode_lines if are_lines else _decode_any)(self._text)
            for step in self._steps:
                value = value[step]
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, AttributeError) as error:
            raise LookupError from error  # it need not be JSON behind the fault
        return value

    def shown(self, kind: str) -> str:
        """The value at fault in brackets, if it is a short one of this kind; empty if not."""
        try:
            value = self.value()
        except LookupError:
            return ""
        if kind in ("null", "array", "object") or _KINDS.get(type(value)) != kind:
            return ""
        return f" ({quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()})"

    def names(self) -> list[str]:
        """The first fields of the object that lacks one."""
        try:
            value = self.value()
        except LookupError:
            return []
        return list(value)[:NAMES_MAX] if isinstance(value, dict) else []

    def choices(self) -> list[str]:
        """The texts that are allowed here, if only some are."""
        kinds = list(_alternatives(getattr(getattr(self._decode, "__self__", None), "type", None)))
        for step in self._steps:
            kinds = [kind for outer in kinds for kind in _within(outer, step)]
        return [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]


def _plain(what: str, place: str, given: _Given) -> str:
    subject = place or "the body"
    if missing := _MISSING.fullmatch(what):
        close = nearest(missing["name"], given.names())
        hint = "" if close is None else f"; {quoted(close)} was given, did you mean {missing['name']}?"
        return f"{place}{'.' if place else ''}{missing['name']} is missing{hint}"
    if choice := _NO_CHOICE.fullmatch(what):
        return f"{subject}: {_no_choice(subject, choice['value'], given.choices())}"
    if what == "Integer value out of range":
        return f"{subject} is too large a number"
    expected = _EXPECTED.fullmatch(what)
    if expected is None:
        return f"{place}: {what}" if place else what
    if expected["got"] is None:
        return f"{subject} must not be below {expected['least']}{given.shown('int')}"
    kinds = expected["kinds"].split(" | ")
    words = [word for kind in kinds for word in _ALLOWED.get(kind, kind).split(" or ")]
    got = "a fraction" if expected["got"] == "float" and "int" in kinds else _GIVEN.get(expected["got"])
    choices = given.choices()
    use = f"; use {one_of(choices)}" if choices else ""
    return f"{subject} must be {one_of(words)}, not {got or expected['got']}{given.shown(expected['got'])}{use}"


def _no_choice(subject: str, value: str, choices: Sequence[str]) -> str:
    noun = _CHOICES.get(subject.rpartition(".")[2], "one of its values")
    if not choices:
        return f"{quoted(value)} is not {noun}"
    close = nearest(value, choices)
    hint = f"; did you mean {close}?" if close is not None and len(choices) > 1 else ""
    return f"{quoted(value)} is not {noun}; use {one_of(choices)}{hint}"


def _malformed(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte 0x{error.object[error.start]:02x})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, msgspec.MsgspecError):
        return "a number in it has too many digits"
    return str(error).removeprefix("JSON is malformed: ")


def _step(match: re.Match[str]) -> str | int:
    if match["name"] is not None:
        return match["name"]
    return int(match["index"]) if match["index"].isdigit() else match["index"]


def _alternatives(kind: Any) -> Iterator[Any]:
    """What a type consists of that can be one thing or another."""
    origin = get_origin(kind)
    if origin is Union or origin is UnionType:
        for one in get_args(kind):
            yield from _alternatives(one)
    elif origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    else:
        yield kind


def _within(kind: Any, step: str | int) -> Iterator[Any]:
    """The types of a member of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list or origin is dict:
        yield from _alternatives(arguments[-1])
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            if field.encode_name == step:
                yield from _alternatives(field.type)
    elif isinstance(step, int):  # a list of lines
        yield kind


_decode_any = msgspec.json.Decoder().decode
_decode_lines = msgspec.json.Decoder().decode_lines
