"""Files as rows of the sink, and records as lines: NDJSON, JSON, CSV and Parquet.

JSON is never parsed and written again: the text of a row, or of a field of it, is kept byte for byte. Rows of CSV
and Parquet become JSON by Spark's to_json, which leaves nulls out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from topics.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BLANK: Final = " \t\r"
SHOWN_MAX: Final = 80  # characters of a line in a message
RECORD: Final = "data STRING, tag STRING, node STRING, meta STRING"

_fields_of = msgspec.json.Decoder(dict[str, Raw]).decode
_items_of = msgspec.json.Decoder(list[Raw]).decode
_text_of = msgspec.json.Decoder(str).decode


class Mapped(Struct, frozen=True, omit_defaults=True):
    """Which field or column is what; None: the whole row is the data, and records have no tag, node or meta."""

    data: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None
    is_text: bool = False  # the data is plain text, to become a JSON string

    @property
    def is_whole(self) -> bool:
        return self == Mapped()


def rows_of(
    spark: "SparkSession", paths: Sequence[str], format: str, mapped: Mapped, options: Mapping[str, str]
) -> "DataFrame":
    """The rows of files, as the sink takes them."""
    if format in ("ndjson", "json"):
        return _json_rows(spark, paths, format, mapped)
    if format == "csv":
        defaults = {"header": "true", "enforceSchema": "false", "escape": '"'}
        if ".tsv" in paths[0].lower():
            defaults["sep"] = "\t"
        table = spark.read.options(**{**defaults, **options}).csv([*paths])
    else:
        table = spark.read.options(**options).parquet(*paths)
    return _table_rows(table, mapped)


# --- JSON


def _json_rows(spark: "SparkSession", paths: Sequence[str], format: str, mapped: Mapped) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    if format == "ndjson":
        lines = spark.read.text([*paths], lineSep="\n")
        lines = lines.select(F.btrim("value", F.lit(BLANK)).alias("value"), "_metadata.file_path").filter("value <> ''")
        if mapped.is_whole:
            return lines.select(F.col("value").alias("data"))
    else:
        lines = spark.read.text([*paths], wholetext=True).select("value", "_metadata.file_path")
    return lines.mapInArrow(_mapper(mapped, is_document=format == "json"), RECORD)


def _mapper(mapped: Mapped, is_document: bool) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What runs in the tasks."""

    def map_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        schema = pa.schema([(name, pa.string()) for name in ("data", "tag", "node", "meta")])
        for batch in batches:
            rows: list[tuple[str | None, ...]] = []
            for value, path in zip(batch["value"].to_pylist(), batch["file_path"].to_pylist(), strict=True):
                for text in _documents(value, path) if is_document else (value,):
                    rows.append(_record(text, path, mapped))
            columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=schema)

    return map_batches


def _documents(text: str, path: str) -> Iterator[str]:
    """The rows of a JSON file: the items of an array, or the one value that it is."""
    text = text.strip().removeprefix("\ufeff")
    if not text.startswith("["):
        yield text
        return
    try:
        items = _items_of(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from None
    for item in items:
        yield _str(item)


def _record(text: str, path: str, mapped: Mapped) -> tuple[str | None, ...]:
    """data, tag, node, meta."""
    if mapped.is_whole:
        return text, None, None, None
    try:
        fields = _fields_of(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"{path}: a row is not a JSON object: {error}: {_shown(text)}") from None
    data = text if mapped.data is None else _field(fields, mapped.data)
    if data is None:
        raise InvalidRequest(f"{path}: a row has no field {mapped.data!r}, which is to be the data: {_shown(text)}")
    return data, _label(fields, mapped.tag), _label(fields, mapped.node), _object(fields, mapped.meta)


def _field(fields: Mapping[str, Raw], name: str) -> str | None:
    return _str(fields[name]) if name in fields else None


def _label(fields: Mapping[str, Raw], name: str | None) -> str | None:
    """A tag or node: the text of a string, any other value as JSON; null is none."""
    text = None if name is None else _field(fields, name)
    if text is None or text == "null":
        return None
    return _text_of(text) if text.startswith('"') else text


def _object(fields: Mapping[str, Raw], name: str | None) -> str | None:
    text = None if name is None else _field(fields, name)
    return None if text == "null" else text


def _str(raw: Raw) -> str:
    return bytes(raw).decode()


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


# --- tables


def _table_rows(table: "DataFrame", mapped: Mapped) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    kinds = {field.name: field.dataType.typeName() for field in table.schema.fields}
    for name in (mapped.data, mapped.tag, mapped.node, mapped.meta):
        if name is not None and name not in kinds:
            raise InvalidRequest(f"there is no column {name!r}; the columns are {', '.join(kinds)}")
    columns = [_data(mapped, kinds).alias("data")]
    for label in ("tag", "node"):
        name = getattr(mapped, label)
        if name is not None:
            columns.append(F.col(_quoted(name)).cast("string").alias(label))
    if mapped.meta is not None:
        column = F.col(_quoted(mapped.meta))
        columns.append((column if kinds[mapped.meta] == "string" else F.to_json(column)).alias("meta"))
    return table.select(*columns)


def _data(mapped: Mapped, kinds: Mapping[str, str]) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    if mapped.data is None:
        return F.to_json(F.struct(*(F.col(_quoted(name)) for name in kinds)))
    column = F.col(_quoted(mapped.data))
    if kinds[mapped.data] == "string" and not mapped.is_text:
        return column  # JSON text
    return F.coalesce(as_json(column), F.lit("null"))


def as_json(column: "Column") -> "Column":
    """A value of any type as JSON text; null if it is null. to_json takes structs only, so one is put around it."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.to_json(F.struct(column.alias("v")))
    return F.when(column.isNotNull(), F.substring(text, F.lit(6), F.length(text) - F.lit(6)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def record_lines(rows: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """Records as JSON lines, in the order of `columns`; what is null is left out, data and meta are as they are."""
    from pyspark.sql import functions as F  # noqa: N812

    texts: dict[str, Any] = {
        "topic": lambda: as_json(F.col("topic")),
        "seq": lambda: F.col("seq").cast("string"),
        "ts": lambda: F.unix_millis("ts").cast("string"),
        "node": lambda: as_json(F.col("node")),
        "tag": lambda: as_json(F.col("tag")),
        "meta": lambda: F.col("meta"),
        "data": lambda: F.col("data"),
    }
    fields = [F.concat(F.lit(f'"{name}":'), texts[name]()) for name in columns]
    return rows.select(F.concat(F.lit("{"), F.concat_ws(",", *fields), F.lit("}")).alias("value"))
