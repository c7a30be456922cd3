"""A topic as a data frame: the table of an export, its JSON spread over columns, for pandas, Polars or pyarrow.

Knows no socket, and imports these libraries when they are asked for. Invariant: no record and no value is left out;
what does not fit into a column of one type stays JSON text.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from topics.client.results import ExportInfo
from topics.client.values import encode
from topics.errors import InvalidRequest
from topics.faults import one_of

if TYPE_CHECKING:
    import pyarrow as pa

Library = Literal["pandas", "polars", "pyarrow"]

COLUMNS_MAX: Final = 1000  # of data; keys that are values, such as ids, make a table that nobody can use

_decode = msgspec.json.Decoder().decode


def require(library: str) -> None:
    """Raise if there is no such library, before anything is read for it."""
    if library not in get_args(Library):
        raise InvalidRequest(f"{library!r} is not a library of data frames; use {one_of(get_args(Library))}")
    try:
        import_module(library)
    except ImportError as error:
        others = [name for name in get_args(Library) if name != library]
        raise ImportError(f"a frame for {library} needs {library}; install it, or ask for {one_of(others)}") from error


def frame_of(table: "pa.Table", info: ExportInfo, library: Library, expand: bool) -> Any:
    """The table as a frame of the library."""
    if expand:
        table = expanded(table)
    if library == "pyarrow":
        return table
    if library == "polars":
        return import_module("polars").from_arrow(table)
    return _pandas_of(table, info)


def _pandas_of(table: "pa.Table", info: ExportInfo) -> Any:
    """With types that have a null: an integer beside one must not become a float. `attrs` says what is lost."""
    import pyarrow as pa

    pandas = import_module("pandas")
    types = {pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}
    frame = table.to_pandas(types_mapper=types.get)
    frame.attrs["topics"] = msgspec.to_builtins(info._asdict())
    return frame


def expanded(table: "pa.Table") -> "pa.Table":
    """The table with a column for each field of the data that are objects, in place of `data`.

    Other data stay in a column `data`, if there are any.
    """
    import pyarrow as pa

    texts: list[str] = table["data"].to_pylist()
    rows = [_object_of(text) for text in texts]
    columns = {name: table[name] for name in table.column_names if name != "data"}
    own = {*columns, "data"}
    if None in rows or not rows:
        left = [text if row is None else None for text, row in zip(texts, rows, strict=True)]
        columns["data"] = _column_of_texts(pa, left)
    for key in _keys_of(rows, "the records have"):
        name = key
        while name in columns or name in own:
            name = f"data.{name}"
        columns[name] = _column(pa, [None if row is None else row.get(key) for row in rows])
    return pa.table(columns).replace_schema_metadata(table.schema.metadata)


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value = _decode(text)
    except (ValueError, RecursionError):  # what others may write and msgspec does not read: half of a surrogate pair
        return None
    return value if isinstance(value, dict) else None


def _keys_of(rows: Sequence[Any], who: str) -> dict[str, None]:
    """All fields, in the order in which they come."""
    keys: dict[str, None] = {}
    for row in rows:
        if isinstance(row, dict):
            keys.update(dict.fromkeys(row))
            if len(keys) > COLUMNS_MAX:
                raise InvalidRequest(
                    f"{who} more than {COLUMNS_MAX} different fields, too many for columns; pass expand=False"
                )
    return keys


def _column(pa: Any, values: list[Any]) -> Any:
    """Values as a column of one type; as JSON texts if they have none in common."""
    try:
        _keys_of(values, "a field has")
        return pa.array(values)
    except (pa.ArrowException, InvalidRequest, OverflowError, RecursionError):
        return pa.array([None if value is None else encode(value).decode() for value in values], pa.string())


def _column_of_texts(pa: Any, texts: list[str | None]) -> Any:
    """JSON texts as a column of their values, if these have one type; otherwise as they are."""
    try:
        return pa.array([None if text is None else _decode(text) for text in texts])
    except (pa.ArrowException, ValueError, OverflowError, RecursionError):
        return pa.array(texts, pa.string())
