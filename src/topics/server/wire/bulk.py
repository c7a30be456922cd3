"""Bulk bodies: records as NDJSON or as an Arrow stream (additive).

Both give the same RecordIn as JSON does, so all limits, positions in errors and atomicity are those of any write.
An Arrow stream comes from outside: it is validated in full, and compressed buffers are refused, since nothing bounds
what they inflate to.
"""

import struct
from array import array
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from topics.core.topic.records import (
    CUT_BYTES,
    KEY_CHARACTERS_MAX,
    NO_META,
    Batch,
    Layout,
    Limits,
    RecordIn,
    decode_json,
    digest_of_text,
    short_stack,
)
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model import are_values
from topics.server.wire.counts import UNCOUNTED_TIMES, CountedRecord, decode_counted, exceeds, may_exceed
from topics.server.wire.large import LARGE_BYTES, lines_in

_decode_lines = msgspec.json.Decoder(RecordIn).decode_lines
_decode_counted_lines = msgspec.json.Decoder(CountedRecord).decode_lines
_decode_raw = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode

COLUMNS: Final = ("data", "tag", "node", "meta")
JSON_COLUMNS: Final = ("data", "meta")
FIELDS: Final = ("tag", "node")  # the columns that are fields of a record beside its data, in their order
OPENING: Final = b'{"records":'


def ndjson_in(body: bytes, limits: Limits) -> list[RecordIn]:
    """One record object per line; blank lines are skipped."""
    records_max = limits.max_batch_records
    breaks_max = UNCOUNTED_TIMES * (records_max + 1)
    if exceeds(body, b"\n", breaks_max) or exceeds(body, b"\r", breaks_max):
        raise BatchTooLarge(f"the body has far more lines, blank ones included, than the {records_max} records allowed")
    if len(body) > LARGE_BYTES:
        return lines_in(body, limits)
    try:
        records: list[RecordIn]
        if may_exceed(body, records_max):
            records = decode_counted(_decode_counted_lines, body, records_max)
        else:
            records = decode_json(_decode_lines, body)
    except BatchTooLarge:
        raise
    except InvalidRequest as error:
        message = error.message
        raise InvalidRequest(f"records{message}" if message.startswith("[") else message) from None
    if len(records) != sum(1 for line in body.splitlines() if line.strip()):
        raise InvalidRequest("the body is not one record per line")
    return records


class ArrowRows(NamedTuple):
    """The rows of a valid Arrow stream: `data` (JSON text), and optionally `tag`, `node`, `meta` (JSON text)."""

    names: frozenset[str]  # of COLUMNS, those that there are
    batches: list[Any]
    limits: Limits

    @classmethod
    def read(cls, body: bytes, limits: Limits) -> "ArrowRows":
        import pyarrow as pa

        try:
            _refuse_compressed(pa, body)
            names, batches = _batches(pa, body, limits.max_batch_records)
        except (pa.ArrowException, struct.error, OSError, ValueError) as error:
            raise InvalidRequest(f"the body is not a valid Arrow stream: {error}") from None
        return cls(names, batches, limits)

    def records(self) -> list[RecordIn]:
        """One by one; refuses what is no record."""
        data, tags, nodes, meta = (self._values(name) for name in COLUMNS)
        limits = self.limits
        if (found := _longer(data, limits.max_record_bytes)) is not None:
            raise RecordTooLarge(f"records[{found[0]}] is {found[1]} bytes, at most {limits.max_record_bytes}")
        if (found := _longer(meta, limits.max_meta_bytes)) is not None:
            raise InvalidRequest(f"records[{found[0]}].meta is {found[1]} bytes, at most {limits.max_meta_bytes}")
        with short_stack:  # whoever reads a text later finds it in a body, deeper down
            try:
                values = list(map(_decode_raw, data))
                metas = [NO_META if text is None else _decode_raw(text) for text in meta]
            except (TypeError, msgspec.MsgspecError, RecursionError):
                raise _first_bad(data, meta) from None
        return list(map(RecordIn, values, tags, nodes, metas))

    def _values(self, name: str) -> list[Any]:
        """JSON stays bytes: what is decoded and kept is bytes, and a text would be made for nothing."""
        import pyarrow as pa

        found: list[Any] = []
        for batch in self.batches:
            column = batch.column(name) if name in self.names else pa.nulls(batch.num_rows, pa.string())
            if name in JSON_COLUMNS:
                column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
            found += column.to_pylist()
        return found

    def batch(self, key: str | None) -> Batch | None:
        """What `check_batch` gives for the records, made by columns: in less than half the time, without an object for
        each. None: they need a look one by one, for what they have or for what is wrong with them."""
        if key is not None and len(key) > KEY_CHARACTERS_MAX:
            return None
        texts: list[_Text] = []
        for batch in self.batches:
            if batch.num_rows:
                text = self._text_of(batch)
                if text is None:
                    return None
                texts.append(text)
        if not texts:
            return None
        body = b"".join((OPENING, b"[", texts[0].rows[1:], *(text.rows for text in texts[1:]), b"]}"))
        if len(body) > CUT_BYTES or b"\n" in body or b"\r" in body:
            return None
        sizes = array("I", b"".join(text.sizes for text in texts))
        digest = 0 if key is None else digest_of_text(memoryview(body)[len(OPENING) : -1])
        layout = Layout(*(_joined(texts, name) for name in FIELDS)) if all(text.is_plain for text in texts) else None
        return Batch(body, sizes, any("tag" in text.fields for text in texts), digest=digest, layout=layout)

    def _text_of(self, batch: Any) -> "_Text | None":
        import pyarrow.compute as pc

        columns = {
            name: batch[name] for name in self.names if name == "data" or batch[name].null_count < batch.num_rows
        }
        if (
            "meta" in columns
            or columns["data"].null_count
            or any(str(one.type) != "string" for one in columns.values())
        ):
            return None
        lengths = pc.binary_length(columns["data"])
        limits = {"data": self.limits.max_record_bytes, "tag": self.limits.max_tag_bytes}
        for name, column in columns.items():
            if pc.max(pc.binary_length(column)).as_py() > limits.get(name, self.limits.max_node_bytes):
                return None
        if not _are_values(columns["data"]):
            return None
        given = [name for name in FIELDS if name in columns]
        fields, are_plain = zip(*(_fields(name, columns[name]) for name in given), strict=True) if given else ((), ())
        rows = pc.binary_join_element_wise(',{"data":', columns["data"], *fields, "}", "")
        return _Text(
            _used(rows, 2, pc.sum(pc.binary_length(rows)).as_py()),
            _used(lengths, 1, 4 * len(lengths)),
            {name: _used(pc.binary_length(some), 1, 4 * len(some)) for name, some in zip(given, fields, strict=True)},
            all(are_plain),
        )


class _Text(NamedTuple):
    """The records of a batch as they stand in a body."""

    rows: memoryview  # each behind a comma
    sizes: memoryview  # of their data
    fields: dict[str, memoryview]  # by name, the sizes of these fields, 0 where there is none; some record has one
    is_plain: bool  # nothing is escaped in a field


def _joined(texts: "list[_Text]", name: str) -> bytes:
    """The sizes of a field in all records; empty if none has one."""
    if not any(name in text.fields for text in texts):
        return b""
    return b"".join(text.fields.get(name) or bytes(len(text.sizes)) for text in texts)


def _used(column: Any, number: int, size: int) -> memoryview:
    """The bytes of a buffer of a column that was computed just now, and so begins at its beginning."""
    return memoryview(column.buffers()[number]).cast("B")[:size]


def _are_values(texts: Any) -> bool:
    try:
        with short_stack:  # as in `ArrowRows.records`
            return are_values(texts)
    except RecursionError:
        return False


def _fields(name: str, column: Any) -> tuple[Any, bool]:
    """A column of texts as fields of a record, nothing for a null; and whether none of them has an escape."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = column.dictionary_encode()
    texts = list(map(_encode, encoded.dictionary.to_pylist()))
    fields = pa.array([f',"{name}":{text.decode()}' for text in texts], pa.string())
    is_plain = sum(map(len, texts)) == pc.sum(pc.binary_length(encoded.dictionary)).as_py() + 2 * len(texts)
    return fields.take(encoded.indices).fill_null(""), is_plain


def _longer(texts: list[bytes | None], bytes_max: int) -> tuple[int, int] | None:
    """The number and the size of the first text that is too long. Whole columns first: none is, as a rule."""
    if max(map(len, filter(None, texts)), default=0) <= bytes_max:
        return None
    return next((n, len(text)) for n, text in enumerate(texts) if text is not None and len(text) > bytes_max)


def _first_bad(data: list[bytes | None], meta: list[bytes | None]) -> InvalidRequest:
    """The error of the first record that is none."""
    for n, texts in enumerate(zip(data, meta, strict=True)):
        for field, text in zip(("data", "meta"), texts, strict=True):
            if text is None:
                if field == "data":
                    return InvalidRequest(f"records[{n}].data is missing; a JSON null is the text null")
                continue
            try:
                _decode_raw(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                return InvalidRequest(f"records[{n}].{field} is not JSON: {error}")
    raise AssertionError("every record can be decoded")


def _batches(pa: Any, body: bytes, records_max: int) -> tuple[frozenset[str], list[Any]]:
    """The batches of a stream, validated in full, with those of COLUMNS that it has."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        schema = reader.schema
    places = {name: schema.get_all_field_indices(name) for name in COLUMNS if name in schema.names}
    if "data" not in places:
        raise InvalidRequest("the Arrow stream has no column data")
    for name, indices in places.items():
        kind = schema.field(indices[0]).type
        if len(indices) > 1:
            raise InvalidRequest(f"column {name} comes twice")
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidRequest(f"column {name} is of type {kind}; it must be a string")
    included = [indices[0] for indices in places.values()]
    batches: list[Any] = []
    count = 0
    options = pa.ipc.IpcReadOptions(included_fields=included, ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    with pa.ipc.open_stream(pa.py_buffer(body), options=options) as reader:
        for batch in reader:
            count += batch.num_rows
            if count > records_max:
                raise BatchTooLarge(f"records has more than {records_max} records")
            batch.validate(full=True)
            batches.append(batch)
    return frozenset(places), batches


# --- Arrow messages. Layout: 0xFFFFFFFF, metadata length (i32), metadata (a flatbuffer `Message`), body. Of the tables
# only what leads to RecordBatch.compression is read; every offset is checked by struct, pyarrow has verified the rest.

HEADER = 2  # field of Message
COMPRESSION = 3  # field of RecordBatch


def _refuse_compressed(pa: Any, body: bytes) -> None:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    for message in messages:
        if message.type == "dictionary":
            raise InvalidRequest("the Arrow stream has dictionaries; send plain strings")
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise InvalidRequest("the Arrow stream is compressed; send it plain, or with Content-Encoding: gzip")


def _is_compressed(metadata: bytes) -> bool:
    message = struct.unpack_from("<I", metadata, 0)[0]
    header = _field(metadata, message, HEADER)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where field `number` of the flatbuffer table at `table` lies; None if it is not set."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else None
