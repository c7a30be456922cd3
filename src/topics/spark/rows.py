"""Rows of a DataFrame as records: which columns count, how values become JSON, and which rows are none.

What leaves here are batches of five text columns, `topic data tag node meta`, in which `topic` and `data` have no
null and `data` and `meta` are valid JSON without a line break. A row that is none is named by its number in the
partition, counted from 0.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import Raw

from topics.errors import InvalidRequest
from topics.model import are_values, is_topic_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: Final = ("topic", "data", "tag", "node", "meta")
TEXT: Final = ("string",)
ALLOWED: Final = {  # types of a column; what is not text is converted to JSON
    "data": (*TEXT, "binary", "struct", "map", "array", "variant"),
    "meta": (*TEXT, "struct", "map", "variant"),
}
BINARY: Final = "topics.binary"  # metadata of a binary column: whether it is taken as `text` or made `base64`
SPILL_BYTES: Final = 64 * 1024 * 1024  # of checked rows kept in memory; more goes into a file
VALUE_SHOWN: Final = 60  # characters of a bad value in its message
NOTHING_WRITTEN: Final = "nothing of this partition was written"

_decode_value = msgspec.json.Decoder(Raw).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadRow(InvalidRequest):
    """A row that is not a record, found before anything of its partition was written."""


def bad_row(row: int, why: str) -> BadRow:
    return BadRow(f"row {row} of the partition is not a record: {why}; {NOTHING_WRITTEN}")


def marked(schema: "StructType", binary: str) -> "StructType":
    """A schema whose binary columns say how their bytes become JSON: as they are (`text`), or as `base64`."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    def mark(field: StructField) -> StructField:
        if not isinstance(field.dataType, BinaryType):
            return field
        return StructField(field.name, field.dataType, field.nullable, {**field.metadata, BINARY: binary})

    return StructType([mark(field) for field in schema.fields])


@dataclass(frozen=True)
class RowChecker:
    """How the rows of one DataFrame become records."""

    kinds: dict[str, str]  # column → string, binary, base64, struct, map, array or variant
    topic: str | None  # for rows without one

    @classmethod
    def of(cls, schema: "StructType", topic: str | None) -> "RowChecker":
        """Refuse, before any task runs, a DataFrame that has no records."""
        kinds = {field.name: field.dataType.typeName() for field in schema.fields}
        unknown = [name for name in kinds if name not in COLUMNS]
        if unknown:
            raise InvalidRequest(
                f"columns {', '.join(unknown)} cannot be written: a record has {', '.join(COLUMNS)}; select these"
            )
        if "data" not in kinds:
            raise InvalidRequest("there is no column data; for whole rows use select(struct('*').alias('data'))")
        if "topic" not in kinds and topic is None:
            raise InvalidRequest("nothing says which topic to write to: give option topic, or a column topic")
        for name, kind in kinds.items():
            if kind not in ALLOWED.get(name, TEXT):
                allowed = ", ".join(ALLOWED.get(name, TEXT))
                raise InvalidRequest(f"column {name} is of type {kind}; it must be one of {allowed}")
        for field in schema.fields:
            if kinds[field.name] == "binary" and field.metadata.get(BINARY) == "base64":
                kinds[field.name] = "base64"
        return cls(kinds, topic)

    def check(self, batch: "pa.RecordBatch", row: int) -> "pa.RecordBatch":
        """The records of a batch whose first row is number `row`; BadRow for what is none."""
        import pyarrow as pa

        count = batch.num_rows
        columns = {name: batch.column(place) for place, name in enumerate(self.kinds)}
        checked = {name: columns.get(name, pa.nulls(count, pa.string())) for name in COLUMNS}
        checked["data"] = self._json("data", columns["data"], row)
        if "meta" in columns:
            checked["meta"] = self._json("meta", columns["meta"], row)
        checked["topic"] = self._topics(columns.get("topic"), count, row)
        return pa.RecordBatch.from_arrays([checked[name].cast(pa.string()) for name in COLUMNS], list(COLUMNS))

    def _topics(self, column: "pa.Array | None", count: int, row: int) -> "pa.Array":
        import pyarrow as pa
        import pyarrow.compute as pc

        if column is None:
            return pa.repeat(self.topic, count)
        if self.topic is not None:
            column = column.fill_null(self.topic)
        for name in pc.unique(column).to_pylist():
            if name is None or not is_topic_name(name):
                place = next(n for n, other in enumerate(column.to_pylist()) if other == name)
                why = (
                    "topic is null, and option topic is not given" if name is None else f"{name!r} is not a topic name"
                )
                raise bad_row(row + place, why)
        return column

    def _json(self, name: str, column: "pa.Array", row: int) -> "pa.Array":
        """A column of JSON texts; of a converted one a null is the JSON null, or no meta."""
        import pyarrow as pa

        kind = self.kinds[name]
        if kind == "binary":
            column = _as_text(name, column, row)
        elif kind != "string":
            return pa.array(_converted(name, kind, column, row), pa.string())
        column = column.cast(pa.string())
        if name == "data":
            if column.null_count:
                place = next(n for n, text in enumerate(column) if not text.is_valid)
                raise bad_row(row + place, "data is null; a JSON null is the text null")
            checked = _checked_together(column)
            if checked is not None:
                return checked
        return _checked_singly(name, column, row)


def _as_text(name: str, column: "pa.Array", row: int) -> "pa.Array":
    """Bytes that are JSON texts."""
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for place, value in enumerate(column.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                why = f"{name} is no text: {error}; set option binary to base64 to keep bytes of any kind"
                raise bad_row(row + place, why) from None
        raise


def _checked_together(column: "pa.Array") -> "pa.Array | None":
    """The texts, if each is one JSON value without blanks around it, else None."""
    import pyarrow as pa

    try:
        if not are_values(column):
            return None
    except RecursionError:
        return None
    if not _may_break(column):
        return column
    return pa.array([_compact(text) for text in column.to_pylist()], pa.string())


def _may_break(column: "pa.Array") -> bool:
    """Whether a line break is among the texts, or in what the batch has beside them."""
    texts = bytes(column.buffers()[2] or b"")
    return b"\n" in texts or b"\r" in texts


def _compact(text: str) -> str:
    """A text with line breaks between tokens in the form in which it is stored (CV26)."""
    return msgspec.json.format(text, indent=-1) if "\n" in text or "\r" in text else text


def _checked_singly(name: str, column: "pa.Array", row: int) -> "pa.Array":
    """Each text on its own: to find the bad one, and for meta, which must be an object."""
    import pyarrow as pa

    decode = cast(Callable[[str], Any], _decode_object if name == "meta" else _decode_value)
    texts: list[str | None] = column.to_pylist()
    for place, text in enumerate(texts):
        if text is not None:
            try:
                decode(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise bad_row(row + place, f"{name} is {_shown(text)}, which is not {_wanted(name)}: {error}") from None
    return pa.array([None if text is None else _compact(text) for text in texts], pa.string())


def _wanted(name: str) -> str:
    return "a JSON object" if name == "meta" else "JSON"


def _shown(text: str) -> str:
    return repr(text if len(text) <= VALUE_SHOWN else text[:VALUE_SHOWN] + "…")


# --- structs, maps, arrays and variants


def _converted(name: str, kind: str, column: "pa.Array", row: int) -> "list[str | None]":
    """Values as JSON, much as to_json does it: nulls of structs are left out, binaries are base64, times ISO 8601."""
    if kind == "variant":
        convert: Callable[[Any], Any] = _variant
    else:
        plain = _plain(column.type)

        def convert(value: Any) -> str:
            return _encode(plain(value)).decode()

    texts: list[str | None] = []
    for place, value in enumerate(column.to_pylist()):
        if value is None:
            texts.append("null" if name == "data" else None)
            continue
        try:
            text = convert(value)
            if name == "meta":
                _decode_object(text)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise bad_row(row + place, f"{name} cannot be written as {_wanted(name)}: {error}") from None
        texts.append(text)
    return texts


def _variant(value: dict[str, bytes]) -> str:
    from pyspark.sql.types import VariantVal

    return str(VariantVal(value["value"], value["metadata"]).toJson())


def _plain(kind: "pa.DataType") -> Callable[[Any], Any]:
    """What makes a value of an Arrow type one that is JSON as it is: maps come as pairs, nulls of structs go."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [(field.name, _plain(field.type)) for field in kind]
        return lambda value: {name: plain(value[name]) for name, plain in fields if value[name] is not None}
    if pa.types.is_map(kind):
        key_of, item_of = _plain(kind.key_type), _plain(kind.item_type)
        return lambda value: {_key(key_of(key)): None if item is None else item_of(item) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        plain = _plain(kind.value_type)
        return lambda value: [None if item is None else plain(item) for item in value]
    return lambda value: value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _encode(key).decode().strip('"')


# --- rows that wait


class Spool:
    """Checked batches, in memory or beyond SPILL_BYTES in a file that is gone when it is closed."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._file: Any = None
        self._writer: Any = None

    def add(self, batch: "pa.RecordBatch") -> None:
        self._batches.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        import pyarrow as pa

        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="topics-sink-")  # noqa: SIM115 - closed by close
            self._writer = pa.ipc.new_stream(self._file, self._batches[0].schema)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches, self._size_bytes = [], 0

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """What was added, in that order."""
        import pyarrow as pa

        if self._file is not None:
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                yield from reader
        yield from self._batches

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
