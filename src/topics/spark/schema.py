"""The columns of `format("topics")`, and record batches in the shape that Spark was promised.

Spark takes a batch only if its schema is exactly the declared one. Batches come here as exports, segments and lakes
have them (seq, ts, node, tag, meta, data) and leave with the columns asked for, in that order. Where types agree
nothing is copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.errors import InvalidRequest
from topics.reader import Lost

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES: Final = {
    "topic": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "node": "string",
    "tag": "string",
    "meta": "string",
    "data": "string",
    "kind": "string",
    "gap_from": "bigint",
    "gap_to": "bigint",
    "reason": "string",
}
STORED: Final = ("seq", "ts", "node", "tag", "meta", "data")  # what a record brings
_decode_bytes = msgspec.json.Decoder(bytes | None).decode

OF_GAPS: Final = ("kind", "gap_from", "gap_to", "reason")


def declared(includes_meta: bool, has_gaps: bool) -> str:
    """The schema of a read, as DDL."""
    left_out = (() if includes_meta else ("meta",)) + (() if has_gaps else OF_GAPS)
    return ", ".join(f"{name} {kind}" for name, kind in TYPES.items() if name not in left_out)


def check(schema: "StructType") -> None:
    """Refuse a schema that a reader cannot deliver. It may have fewer columns than the declared one, in any order."""
    for field in schema.fields:
        kind = TYPES.get(field.name)
        if kind is None:
            raise InvalidRequest(f"schema: there is no column {field.name!r}; the columns are {', '.join(TYPES)}")
        if field.name == "data" and field.dataType.simpleString() == "binary":
            continue
        if field.dataType.simpleString() != kind:
            raise InvalidRequest(
                f"schema: column {field.name} is {kind.upper()}, not {field.dataType.simpleString().upper()}; "
                "cast it, or parse it by from_json, after reading"
            )


@dataclass(frozen=True)
class Projection:
    """The schema that Spark expects, what has to be read for it, and tombstones in it."""

    schema: "pa.Schema"
    includes_meta: bool = True
    is_base64: bool = False  # the bytes of a binary column data are those that a JSON string has in base64

    @classmethod
    def of(cls, schema: "StructType", includes_meta: bool, is_base64: bool = False) -> "Projection":
        from pyspark.sql.pandas.types import to_arrow_schema

        check(schema)
        return cls(to_arrow_schema(schema, timezone="UTC"), includes_meta, is_base64)

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns to read."""
        names = [name for name in STORED if name in self.schema.names]
        return tuple(name for name in names if name != "meta" or self.includes_meta)

    def tombstone(self, topic: str, lost: Lost) -> "pa.RecordBatch":
        import pyarrow as pa

        said: dict[str, Any] = {
            "topic": topic,
            "kind": "tombstone",
            "gap_from": lost.first,
            "gap_to": lost.last,
            "reason": lost.reason,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array([said.get(field.name)], field.type) for field in self.schema], schema=self.schema
        )


class Shape:
    """Batches of one topic's records, as Spark expects them. A column that is the same in each row is built once."""

    def __init__(self, projection: Projection, topic: str) -> None:
        self._schema = projection.schema
        self._topic = topic
        self._is_base64 = projection.is_base64
        self._stored = frozenset(projection.stored)
        self._said = {"topic": topic, "kind": "record"}
        self._same: dict[str, pa.Array] = {}  # columns as long as the longest batch so far

    def records(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        import pyarrow as pa

        columns = [
            self._column(batch, field) if field.name in self._stored else self._repeated(field, batch.num_rows)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, batch: "pa.RecordBatch", field: "pa.Field") -> "pa.Array":
        import pyarrow as pa

        column = batch.column(field.name)
        if not self._is_base64 or not pa.types.is_binary(field.type):
            return as_type(column, field.type)
        values: list[bytes | None] = []
        for seq, text in zip(batch.column("seq").to_pylist(), column.to_pylist(), strict=True):
            try:
                values.append(_decode_bytes(text))
            except msgspec.MsgspecError:
                raise InvalidRequest(
                    f"topic {self._topic}, seq {seq}: data is no JSON string of base64; read it with binary=text"
                ) from None
        return pa.array(values, field.type)

    def _repeated(self, field: "pa.Field", count: int) -> "pa.Array":
        import pyarrow as pa

        column = self._same.get(field.name)
        if column is None or len(column) < count:
            column = pa.repeat(pa.scalar(self._said.get(field.name), field.type), count)
            self._same[field.name] = column
        return column.slice(0, count)


def as_type(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """A column of an export, segment or lake in Spark's type for it."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_uint64(column.type) and pa.types.is_int64(kind):
        return column.view(kind)  # seqs stay far below 2^63
    return column.cast(kind)


def tagged(batch: "pa.RecordBatch", tags: Iterable[str]) -> "pa.RecordBatch":
    """The rows of a batch that have one of the tags."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return batch.filter(pc.is_in(batch["tag"].cast(pa.string()), value_set=pa.array(sorted(tags), pa.string())))


def own_left_out(batch: "pa.RecordBatch", nodes: Sequence[str]) -> "pa.RecordBatch":
    """Without the records whose node is one of `nodes` (ND1)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    own = pc.is_in(batch.column("node"), value_set=pa.array(nodes, pa.string()))
    return batch.filter(pc.invert(own))
