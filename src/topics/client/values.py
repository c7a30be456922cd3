"""Values in records: what Python types become as JSON, and what JSON becomes.

msgspec knows JSON's own types, its structs, dataclasses, attrs, enums, dates and so on. Pydantic models, of which this
package knows nothing but two methods, are asked themselves.
"""

import dataclasses
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from topics.errors import InvalidRequest

SHOWN_CHARACTERS: Final = 120

_decode = msgspec.json.Decoder().decode


def encode(body: Any) -> bytes:
    """A value as JSON text."""
    try:
        return _encoder.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"the request cannot be encoded as JSON: {error}") from error


def _ask_model(value: Any) -> Any:
    if hasattr(type(value), "model_dump_json"):
        return Raw(value.model_dump_json().encode())
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


_encoder: Final = msgspec.json.Encoder(enc_hook=_ask_model)


def is_object(value: Any) -> bool:
    """Is it an instance of a class that stands for a JSON object: a struct, a dataclass, a Pydantic model?"""
    kind = type(value)
    return isinstance(value, Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_dump_json")


def decoded(text: Raw, kind: Any = Any) -> Any:
    """The value of a JSON text; None if there is none. Raises ValueError if it is no `kind`."""
    view = memoryview(text)
    if not len(view):
        return None
    if kind is Any:
        return _decode(view)
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(bytes(view))
    return msgspec.json.decode(view, type=kind)


def shown(text: Raw) -> str:
    """A JSON text for a repr, cut if it is long."""
    whole = bytes(memoryview(text)[: SHOWN_CHARACTERS * 4]).decode("utf-8", "replace")
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}…"
